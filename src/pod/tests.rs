use serde_json::json;

use super::*;

#[test]
fn a_long_annotation_is_known_by_its_length_alone() {
    let longest = "x".repeat(Annotation::LONGEST);
    assert_eq!(Annotation::of(&longest), Annotation::Text(longest.as_str().into()));
    assert_eq!(Annotation::of(&format!("{longest}x")), Annotation::TooLong(Annotation::LONGEST + 1));
}

#[test]
fn of_annotations_that_are_too_long_together_the_longest_go() {
    let kept = |lengths: &[usize]| -> Vec<bool> {
        let named =
            |(at, length): (usize, &usize)| (at.to_string().into(), Annotation::of(&"x".repeat(*length)));
        let pod = Pod { annotations: lengths.iter().enumerate().map(named).collect(), ..Pod::default() };
        let pod = pod.keeping(&Wanted::of((0..lengths.len()).map(|at| at.to_string())));
        pod.annotations.iter().map(|(_, annotation)| matches!(annotation, Annotation::Text(_))).collect()
    };
    let half = Annotation::LONGEST / 2;
    assert_eq!(kept(&[half, half]), [true, true]);
    assert_eq!(kept(&[half, half + 1]), [true, false]);
    assert_eq!(kept(&[1, half + 2, half + 1, half]), [true, false, false, true]);
}

#[test]
fn what_nobody_wants_is_dropped() {
    let whole = || Some(Box::new(Whole::Json(Bytes::from_static(b"{}"))));
    let annotations = || ["a", "b"].map(|key| (key.into(), Annotation::of(key))).into();
    let pod = || Pod { annotations: annotations(), whole: whole(), ..Pod::default() };
    let wanted = Wanted::of(["b"]);
    assert!(!wanted.wants_whole() && wanted.clone().whole().wants_whole());
    let read = pod().keeping(&wanted);
    assert_eq!((read.annotations.len(), &*read.annotations[0].0, read.whole), (1, "b", None));
    let read = pod().keeping(&wanted.whole());
    assert_eq!((read.annotations.len(), read.whole), (1, whole()));
    assert!(Wanted::default().whole().annotations.is_empty());
}

#[test]
fn annotations_of_a_pod_that_has_ended_are_dropped() {
    for (life, kept) in [(Life::Living, 1), (Life::Leaving, 1), (Life::Ended, 0)] {
        let annotations = [("a".into(), Annotation::of("text"))].into();
        let pod = Pod { life, annotations, ..Pod::default() };
        assert_eq!(pod.keeping(&Wanted::of(["a"])).annotations.len(), kept, "{life:?}");
    }
}

fn container(kind: ContainerKind, others: &[(&str, u64)]) -> Container {
    let others = others.iter().map(|(name, amount)| (Box::from(*name), *amount)).collect();
    Container { kind, cpu_milli: 1000, others, ..Container::default() }
}

#[test]
fn of_too_many_resources_those_that_it_asks_none_of_go_first() {
    let named = |at: usize| format!("example.com/{at:03}");
    let asking = |amounts: Vec<u64>| {
        let others = amounts.into_iter().enumerate().map(|(at, amount)| (named(at).into(), amount));
        let all =
            Container::bounded([Container { others: others.collect(), ..Container::default() }].into_iter());
        all[0].others.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    let most = Container::MOST_OTHERS;
    let first = |count| (0..count).map(named).collect::<Vec<_>>();
    assert_eq!(asking([vec![0], vec![1; most - 1]].concat()), first(most), "there is room for all");
    assert_eq!(asking([vec![0], vec![1; most]].concat()), (1..=most).map(named).collect::<Vec<_>>());
    assert_eq!(asking(vec![1; most + 9]), first(most));
}

#[test]
fn containers_that_are_too_many_count_as_one_that_runs_for_the_longest() {
    use ContainerKind::{App, Init, Sidecar};
    let last = |kinds: &[ContainerKind]| {
        let before = std::iter::repeat_n(container(Init, &[]), Container::MOST - 1);
        let more = kinds.iter().map(|kind| container(*kind, &[("example.com/nic", 2)]));
        let all = Container::bounded(before.chain(more));
        let Container { kind, cpu_milli, others, .. } = &all[Container::MOST - 1];
        (all.len(), *kind, *cpu_milli, others[0].1)
    };
    let most = Container::MOST;
    assert_eq!(last(&[Init]), (most, Init, 1000, 2));
    assert_eq!(last(&[Init, Init]), (most, Init, 2000, 4));
    assert_eq!(last(&[Init, Sidecar, Init]), (most, Sidecar, 3000, 6));
    assert_eq!(last(&[Sidecar, App]), (most, App, 2000, 4));
    assert_eq!(last(&[App, Sidecar]), (most, App, 2000, 4));
}

#[test]
fn of_what_containers_ask_for_together_what_they_ask_none_of_goes_first() {
    let named = |at: usize| format!("example.com/{at:03}");
    let most = Container::MOST_OTHERS;
    let many: Vec<String> = (1..=most).map(named).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 1)).collect();
    let before = std::iter::repeat_n(Container::default(), Container::MOST - 1);
    let more = [container(ContainerKind::App, &[(&named(0), 0)]), container(ContainerKind::App, &many)];
    let all = Container::bounded(before.chain(more));
    let others = &all[Container::MOST - 1].others;
    assert_eq!((others.len(), others[0].1), (most, 1));
}

#[test]
fn a_pod_without_a_name_or_a_namespace_is_none() {
    let read = |name: &str, namespace: &str| {
        let pod = json!({"metadata": {"name": name, "namespace": namespace, "uid": "u"}, "spec": {"containers": []}});
        Pod::from_json(pod.to_string().as_bytes()).map(|pod| pod.full_name())
    };
    assert_eq!(read("a", "ns"), Ok(("ns".into(), "a".into())));
    assert!(read("", "ns").is_err() && read("a", "").is_err() && read("", "").is_err());
}
