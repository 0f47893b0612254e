//! Pods that the zones do not account for yet.

use super::*;

#[test]
fn the_fingerprint_is_withheld_until_the_list_shows_the_cpus_of_a_bound_pod() {
    let mut bench = Bench::new();
    let pods = [pod("a", "1", Running), pod("b", "2", Pending)];
    assert_eq!(bench.decision(&pods[..1], "a+", 0), Decision::Publish);
    let waiting = bench.evaluate(&pods, "a+", ms(100));
    assert_eq!((waiting.decision, waiting.recheck_at), (Decision::Wait, Some(ms(120))));
    assert_eq!(waiting.unaccounted, [("ns".to_owned(), "b".to_owned())]);
    assert_eq!(bench.decision(&pods, "a+ b", 119), Decision::Wait, "it is named before it is admitted");
    assert_eq!(bench.decision(&pods, "a+ b", 120), UNACCOUNTED);
    let accounted = bench.evaluate(&pods, "a+ b+", ms(150));
    assert_eq!(accounted.decision, Decision::Publish);
    assert_eq!(value(&accounted), fingerprint("a b"), "the plugin will count it in a moment");
    let running = [pod("a", "1", Running), pod("b", "2", Running)];
    assert_eq!(value(&bench.evaluate(&running, "a+ b+", ms(900))), fingerprint("a b"));
    assert_eq!(bench.decision(&running, "a+", 950), Decision::Publish, "what it released is free");
}

#[test]
fn pods_bound_one_after_another_do_not_defer_the_decision_indefinitely() {
    let mut bench = Bench::new();
    let mut decisions = Vec::new();
    for number in 0..10_u64 {
        // The previous pod is accounted just in time.
        let known: Vec<Pod> = (0..=number).map(|n| pod(&format!("p{n}"), &n.to_string(), Pending)).collect();
        let shown: String = (0..number).map(|n| format!("p{n}+ ")).collect();
        decisions.push(bench.decision(&known, &shown, number * 19));
    }
    let waits = usize::try_from(MAX_EXTENSION).unwrap() * 20 / 19 + 1;
    assert!(decisions[..waits].iter().all(|decision| *decision == Decision::Wait), "{decisions:?}");
    assert!(decisions[waits..].contains(&UNACCOUNTED), "{decisions:?}");
}

#[test]
fn pods_without_exclusive_resources_are_not_waited_for() {
    let mut bench = Bench::new();
    let burstable = Pod { guaranteed: false, ..pod("a", "1", Pending) };
    assert_eq!(bench.decision(&[burstable], "", 0), Decision::Publish);
    bench.requirements.cpus = false;
    assert_eq!(bench.decision(&[pod("b", "2", Pending)], "", 0), Decision::Publish);
}

#[test]
fn a_terminated_pod_is_not_waited_for() {
    for gone in [pod("a", "1", Succeeded), pod("a", "1", Failed)] {
        let mut bench = Bench::new();
        assert_eq!(bench.decision(&[pod("a", "1", Pending)], "", 0), Decision::Wait);
        assert_eq!(bench.decision(&[pod("a", "1", Pending)], "", 100), UNACCOUNTED);
        assert_eq!(bench.decision(slice::from_ref(&gone), "", 101), Decision::Publish, "{gone:?}");
        assert_eq!(bench.decision(&[], "", 102), Decision::Publish);
    }
}

#[test]
fn a_pod_deleted_while_running_is_waited_for_until_a_later_list() {
    let terminating = || [Pod { deleted: true, ..pod("a", "1", Running) }];
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&terminating(), "", 0), Decision::Wait);
    // The List from before its admission, and one that may have been requested before the deletion.
    assert_eq!(bench.evaluate_again(&terminating(), "", ms(100)).decision, UNACCOUNTED);
    assert_eq!(bench.decision(&terminating(), "", 101), UNACCOUNTED);
    assert_eq!(bench.decision(&terminating(), "", 102), Decision::Publish, "what it had is free");
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&[pod("a", "1", Running)], "a+", 0), Decision::Publish);
    assert_eq!(bench.decision(&terminating(), "a+", 1), Decision::Publish, "it was accounted for before");
    let gone = bench.evaluate(&terminating(), "", ms(2));
    assert_eq!((gone.decision, gone.recheck_at), (Decision::Publish, None), "it released its resources");
}

#[test]
fn a_pod_deleted_while_pending_is_waited_for_until_it_is_gone() {
    let gone = || Pod { deleted: true, ..pod("a", "1", Pending) };
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&[pod("a", "1", Pending)], "", 0), Decision::Wait);
    assert_eq!(
        bench.decision(&[gone()], "", 100),
        UNACCOUNTED,
        "the kubelet may admit it before it learns of the deletion"
    );
    assert_eq!(bench.decision(&[gone()], "a+", 200), Decision::Publish, "admitted until it terminates");
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&[gone()], "a", 0), Decision::Wait);
    assert_eq!(bench.decision(&[], "", 100), Decision::Publish);
    assert_eq!(bench.decision(&[gone()], "", 200), Decision::Wait);
    let failed = Pod { phase: Failed, ..gone() };
    assert_eq!(bench.decision(&[failed], "", 300), Decision::Publish, "a finalizer keeps it");
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&[gone()], "", 0), Decision::Wait);
    assert_eq!(bench.decision(&[gone()], "", 60_000), Decision::Publish, "given up");
}

#[test]
fn a_pod_with_the_name_of_an_earlier_one_is_distinguished() {
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&[pod("a", "1", Running)], "a+", 0), Decision::Publish);
    // The kubelet has not learned yet that the first pod was force-deleted.
    let second = [pod("a", "2", Pending)];
    assert_eq!(bench.decision(&second, "a+", 10), Decision::Wait, "those CPUs are the first pod's");
    assert_eq!(bench.decision(&second, "a+", 30), UNACCOUNTED);
    assert_eq!(bench.decision(&second, "a a+", 35), UNACCOUNTED, "the first is being torn down");
    assert_eq!(bench.decision(&second, "", 40), UNACCOUNTED);
    assert_eq!(bench.decision(&second, "a+", 70), Decision::Publish);
    assert_eq!(bench.decision(&second, "", 75), Decision::Wait);
    assert_eq!(bench.decision(&[pod("a", "2", Running)], "a+", 80), Decision::Publish);
    assert_eq!(bench.decision(&[pod("a", "2", Running)], "", 90), Decision::Publish);
    // A pod's entry is removed with the pod, whatever others the List shows.
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&[pod("a", "1", Running)], "a+ b", 0), Decision::Publish);
    assert_eq!(bench.decision(&[], "b", 10), Decision::Publish);
    assert_eq!(bench.decision(&[pod("a", "2", Pending)], "a+ b", 20), Decision::Publish);
}

#[test]
fn a_successor_with_the_same_cpus_is_accounted_by_a_later_list() {
    let mut bench = Bench::new();
    assert_eq!(bench.decision(&[pod("a", "1", Running)], "a+", 0), Decision::Publish);
    // The first pod's deletion was never observed.
    assert_eq!(bench.decision(&[pod("a", "2", Pending)], "a+", 10), Decision::Wait);
    let running = [pod("a", "2", Running)];
    bench.number -= 1;
    assert_eq!(bench.decision(&running, "a+", 50), UNACCOUNTED, "the same List");
    assert_eq!(
        bench.decision(&running, "a+", 60),
        UNACCOUNTED,
        "it may have been requested before the pod ran"
    );
    assert_eq!(bench.decision(&running, "a+", 70), Decision::Publish);
}

#[test]
fn a_running_pod_missing_from_the_list_for_long_is_waited_for() {
    let mut bench = Bench::new();
    let pods = [pod("a", "1", Running)];
    assert_eq!(bench.decision(&pods, "a+", 0), Decision::Publish);
    let missing = bench.evaluate(&pods, "", ms(100));
    assert_eq!((missing.decision, missing.recheck_at), (Decision::Publish, Some(ms(10_100))));
    assert_eq!(bench.decision(&pods, "a+", 200), Decision::Publish, "it is back");
    assert_eq!(bench.decision(&pods, "", 300), Decision::Publish);
    assert_eq!(bench.decision(&pods, "", 10_299), Decision::Publish);
    assert_eq!(bench.decision(&pods, "", 10_300), Decision::Wait, "the kubelet lost it");
    assert_eq!(bench.decision(&pods, "", 10_400), UNACCOUNTED);
    assert_eq!(bench.decision(&[pod("a", "1", Succeeded)], "", 10_500), Decision::Publish);
}

#[test]
fn a_pod_is_given_up_after_a_limit_in_which_the_kubelet_responded() {
    let mut bench = Bench::new();
    let pods = [pod("a", "1", Pending)];
    assert_eq!(bench.decision(&pods, "", 0), Decision::Wait);
    let withheld = bench.evaluate(&pods, "", ms(30_000));
    assert_eq!((withheld.decision, withheld.recheck_at), (UNACCOUNTED, Some(ms(60_000))));
    // Time in which the kubelet does not respond does not count, whenever that was noticed.
    bench.is_responding = false;
    assert_eq!(bench.evaluate(&pods, "", ms(500_000)).recheck_at, Some(ms(530_000)));
    bench.is_responding = true;
    assert_eq!(bench.evaluate(&pods, "", ms(600_000)).recheck_at, Some(ms(630_000)));
    assert_eq!(bench.decision(&pods, "", 629_999), UNACCOUNTED);
    let given_up = bench.evaluate(&pods, "", ms(630_000));
    assert_eq!(given_up.decision, Decision::Publish);
    assert_eq!(given_up.given_up, [("ns".to_owned(), "a".to_owned())]);
    let after = bench.evaluate(&pods, "", ms(630_001));
    assert!(after.given_up.is_empty() && after.unaccounted.is_empty(), "it is reported once");
    assert_eq!(bench.decision(&[pod("b", "2", Pending)], "", 640_000), Decision::Wait, "the next pod");
}

#[test]
fn a_running_pod_that_waits_for_a_resize_is_accounted() {
    let mut bench = Bench::new();
    let mut resized = pod("a", "1", Running);
    resized.containers[0].cpu_milli = 5000;
    assert_eq!(
        bench.decision(slice::from_ref(&resized), "", 0),
        Decision::Wait,
        "the agent has just started"
    );
    assert_eq!(
        bench.decision(&[resized.clone()], "a", 1),
        Decision::Wait,
        "a List from before it was admitted"
    );
    assert_eq!(bench.decision(&[resized.clone()], "a+", 2), Decision::Publish);
    let pending = Pod { uid: "2".into(), phase: Pending, ..resized };
    assert_eq!(bench.decision(&[pending], "a+", 3), Decision::Wait);
}
