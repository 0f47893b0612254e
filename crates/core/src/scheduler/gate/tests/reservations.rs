//! Reservations for bound pods and for what init containers keep.

use super::*;

/// Returns a bench with one zone and without a fingerprint.
fn bench(reserve: bool) -> Bench {
    let settings = GateSettings { view: FingerprintView::None, reserve, ..GateSettings::default() };
    Bench { topology: topology(&[8]), ..Bench::with(settings) }
}

#[test]
fn requests_of_a_bound_pod_are_reserved_until_the_list_shows_them() {
    let mut bench = bench(true);
    let mut reserved = |pods: &[Pod], names: &str, milliseconds: u64| {
        let verdict = bench.evaluate(pods, names, ms(milliseconds));
        assert_eq!((verdict.decision, verdict.fingerprint), (Decision::Publish, None));
        verdict.reservations.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let waiting = "ns/a: cpu 2 in every zone";
    let pending = [pod("a", "1", Pending)];
    assert_eq!(reserved(&pending, "", 0), waiting, "at once");
    assert_eq!(reserved(&pending, "a", 1), waiting, "it is named before it is admitted");
    assert_eq!(reserved(&pending, "a+", 2), "");
    assert_eq!(reserved(&[pod("a", "1", Running)], "a+", 3), "");
    assert_eq!(reserved(&[pod("a", "1", Running)], "", 3), "", "it is terminating");
    // A pod with the same name, while the List has the first pod's entry.
    assert_eq!(reserved(&[pod("a", "2", Pending)], "a+", 4), waiting);
    assert_eq!(reserved(&[pod("a", "2", Pending)], "a+ a", 5), waiting);
    assert_eq!(reserved(&[pod("a", "2", Failed)], "a+", 6), "", "it was rejected");
    assert_eq!(reserved(&[Pod { deleted: true, ..pod("a", "3", Pending) }], "", 7), waiting);
    assert_eq!(reserved(&[], "", 8), "");
    let burstable = Pod { guaranteed: false, ..pod("b", "4", Pending) };
    assert_eq!(reserved(&[burstable], "", 9), "");
    // The agent has just started and has not seen the pod before.
    assert_eq!(reserved(&[pod("a", "5", Running)], "", 10), waiting);
    assert_eq!(reserved(&[pod("a", "5", Running)], "", 60_009), waiting);
    assert_eq!(reserved(&[pod("a", "5", Running)], "", 60_010), "", "given up");
}

#[test]
fn the_leftover_of_init_containers_is_reserved_while_the_pod_is_listed() {
    let mut bench = bench(false);
    let mut reserved = |pod: &Pod, names: &str| {
        let verdict = bench.evaluate(slice::from_ref(pod), names, ms(0));
        verdict.reservations.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let with_init = |uid: &str, phase| {
        let init = Container {
            name: "init".into(),
            kind: ContainerKind::Init,
            cpu_milli: 6000,
            ..Container::default()
        };
        let pod = pod("a", uid, phase);
        Pod { containers: [init].into_iter().chain(pod.containers).collect(), ..pod }
    };
    let leftover = "ns/a: cpu 4 in every zone";
    assert_eq!(reserved(&with_init("1", Pending), "a"), "", "it is named before it is admitted");
    assert_eq!(reserved(&with_init("1", Running), "b+ a+"), leftover);
    assert_eq!(reserved(&with_init("1", Running), "b+"), "", "it is no longer listed");
    assert_eq!(reserved(&with_init("1", Succeeded), "a+"), "");
    assert_eq!(reserved(&pod("a", "2", Running), "a+"), "", "it has no init container");

    // Only its init container has exclusive CPUs: the pod is not waited for.
    let mut only_init = with_init("3", Pending);
    only_init.containers[1].cpu_milli = 1500;
    assert_eq!(reserved(&only_init, ""), "ns/a: cpu 6 in every zone");
    assert_eq!(reserved(&only_init, "a"), "ns/a: cpu 6 in every zone");
    (only_init.phase, only_init.deleted) = (Running, true);
    assert_eq!(reserved(&only_init, ""), "", "it is no longer listed");
}

#[test]
fn with_reservations_the_fingerprint_is_withheld_at_once() {
    let mut bench = Bench::with(GateSettings { reserve: true, ..GateSettings::default() });
    assert_eq!(bench.decision(&[pod("a", "1", Pending)], "", 0), UNACCOUNTED);
    assert_eq!(bench.decision(&[pod("a", "1", Pending)], "a+", 1), Decision::Publish);
}

#[test]
fn nothing_is_reserved_for_excluded_pods_and_unlisted_resources() {
    let pods = [pod("a", "1", Pending)];
    let reserved = |bench: &mut Bench, exclude: NodeExclusions| {
        bench.act("", |gate, input| {
            let input = GateInput { exclude: &exclude, ..*input };
            gate.evaluate(Some(&pods), &input, ms(0)).reservations.len()
        })
    };
    assert_eq!(reserved(&mut bench(true), NodeExclusions::default()), 1);
    let outside = NodeExclusions { outside_namespace: Some("other".into()), ..NodeExclusions::default() };
    assert_eq!(reserved(&mut bench(true), outside), 0);
    let mut without_zones = Bench { topology: Topology::default(), ..bench(true) };
    assert_eq!(reserved(&mut without_zones, NodeExclusions::default()), 0);
}
