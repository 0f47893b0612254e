//! What watchers get, and when they are cut off.

use super::model::TestWatcher;
use super::*;

#[test]
fn a_watcher_is_cut_off_when_it_is_more_than_100_events_behind() {
    let (mut store, count) = store();
    let now = Instant::now();
    apply(&mut store, [PodEvent::Init, PodEvent::InitDone]);
    let (mut quick, mut slow) = (Watch::new(Arc::clone(&store.pods)), Watch::new(Arc::clone(&store.pods)));
    let mut received = 0;
    for number in 0..=MAX_UNREAD {
        assert_eq!(count.cut_off.load(Ordering::Relaxed), 0, "{number}");
        let at = now + Duration::from_millis(10 * number as u64);
        store.apply(PodEvent::Apply(pod("u", &[], "Running", &number.to_string())), at).unwrap();
        while let Poll::Ready(Some(event)) = poll(&mut quick) {
            event.unwrap();
            received += 1;
        }
    }
    assert_eq!((received, count.cut_off.load(Ordering::Relaxed)), (MAX_UNREAD + 2, 1), "with the marker");
    let Poll::Ready(Some(Err(status))) = poll(&mut slow) else { panic!("it continues") };
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "watch client channel closed"));
    // Nothing is buffered for a watcher that was cut off.
    assert_eq!(lock(&store.pods).watchers.buffered().0, 0);
    drop(slow);
    store.apply(PodEvent::Apply(pod("u", &[], "Failed", "")), now).unwrap();
    assert!(matches!(poll(&mut quick), Poll::Ready(Some(Ok(_)))));
}

/// Returns true if a watcher with an unsent message is to be ended.
fn is_over(watch: &mut Watch, context: &mut Context<'_>) -> bool {
    Pin::new(watch).poll_abort(context).is_ready()
}

#[test]
fn a_watcher_that_does_not_read_is_woken_when_it_is_cut_off() {
    let (mut store, _) = store();
    let now = Instant::now();
    apply(&mut store, [PodEvent::Init, PodEvent::InitDone]);
    let mut watch = Watch::new(Arc::clone(&store.pods));
    let woken = Arc::new(Woken::default());
    let waker = Arc::clone(&woken).into();
    for number in 0..=MAX_UNREAD {
        assert!(!is_over(&mut watch, &mut Context::from_waker(&waker)), "{number}");
        assert_eq!(woken.0.load(Ordering::Relaxed), 0, "{number}");
        let at = now + Duration::from_millis(10 * number as u64);
        store.apply(PodEvent::Apply(pod("u", &[], "Running", &number.to_string())), at).unwrap();
    }
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(is_over(&mut watch, &mut Context::from_waker(&waker)));
}

#[test]
fn all_watches_end_when_the_server_stops() {
    let (mut store, count) = store();
    apply(&mut store, [PodEvent::Init, PodEvent::InitDone]);
    let mut watch = Watch::new(Arc::clone(&store.pods));
    let woken = Arc::new(Woken::default());
    let waker = Arc::clone(&woken).into();
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut watch).poll_next(&mut context).is_ready(), "the marker");
    assert!(Pin::new(&mut watch).poll_next(&mut context).is_pending());
    lock(&store.pods).watchers.close();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(!is_over(&mut watch, &mut context), "it may read the status first");
    for mut watch in [watch, Watch::new(Arc::clone(&store.pods))] {
        let Poll::Ready(Some(Err(status))) = poll(&mut watch) else { panic!("it continues") };
        assert_eq!(status.code(), Code::Unavailable);
        assert!(matches!(poll(&mut watch), Poll::Ready(None)));
    }
    apply(&mut store, [PodEvent::Apply(pod("u", &[], "Running", ""))]);
    assert_eq!((lock(&store.pods).watchers.buffered().0, count.cut_off.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_pod_that_is_deleted_during_a_list_is_not_in_it() {
    let (mut store, _) = store();
    let pods = ["a", "b", "c"].map(|uid| pod(uid, &[], "Running", ""));
    apply(&mut store, [PodEvent::Init, PodEvent::InitApply(pods[0].clone()), PodEvent::InitDone]);
    apply(&mut store, [PodEvent::Init]);
    pods.iter().for_each(|pod| apply(&mut store, [PodEvent::InitApply(pod.clone())]));
    // An unchanged pod, and a new one.
    apply(&mut store, [&pods[0], &pods[1]].map(|pod| PodEvent::Delete(pod.clone())));
    apply(&mut store, [PodEvent::InitDone]);
    assert_eq!(listed(&store.pods, uid_of_pod).into_keys().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn no_event_is_lost_after_the_initial_pods() {
    let (mut store, _) = store();
    let now = Instant::now();
    let list = [PodEvent::Init, PodEvent::InitApply(pod("a", &[], "Running", "")), PodEvent::InitDone];
    apply(&mut store, list);
    let mut watcher = TestWatcher::new(&store.pods, uid_of_pod);
    assert!(watcher.read_event(), "one of its list");
    // Meanwhile the pod is deleted and another one is added.
    store.apply(PodEvent::Delete(pod("a", &[], "Running", "")), now).unwrap();
    store.apply(PodEvent::Apply(pod("b", &[], "Running", "")), now).unwrap();
    watcher.unread = 2;
    while watcher.read_event() {}
    assert_eq!(watcher.known.keys().collect::<Vec<_>>(), ["b"]);
}

#[test]
fn a_deleted_event_has_only_uid_namespace_and_name() {
    let (mut store, _) = store();
    let now = Instant::now();
    let deleted = pod("m", &[("kubernetes.io/config.mirror", "h")], "Running", "");
    let list = [PodEvent::Init, PodEvent::InitApply(deleted.clone()), PodEvent::InitDone];
    apply(&mut store, list);
    let mut watches = [&store.pods, &store.infos].map(|cache| Watch::new(Arc::clone(cache)));
    watches.iter_mut().for_each(|watch| drop([poll(watch), poll(watch)]));
    store.apply(PodEvent::Delete(deleted), now).unwrap();
    let [pod, info] = watches.map(|mut watch| match poll(&mut watch) {
        Poll::Ready(Some(Ok(event))) => WatchPodsEvent::decode(event).unwrap(),
        other => panic!("{other:?}"),
    });
    assert_eq!((pod.r#type(), info.r#type()), (EventType::Deleted, EventType::Deleted));
    let names = ("m".to_owned(), "ns".to_owned(), "m".to_owned());
    let metadata =
        core::ObjectMeta { name: names.0, namespace: names.1, uid: names.2, ..core::ObjectMeta::default() };
    let expected = core::Pod { metadata: Some(metadata), ..core::Pod::default() };
    assert_eq!(core::Pod::decode(pod.pod).unwrap(), expected);
    let expected = PodConditions {
        pod_uid: "h".into(),
        pod_namespace: "ns".into(),
        pod_name: "m".into(),
        ..PodConditions::default()
    };
    assert_eq!(PodConditions::decode(info.pod).unwrap(), expected);
}

#[test]
fn a_burst_cuts_nobody_off_and_is_bounded() {
    let (mut store, count) = store();
    let now = Instant::now();
    let pods = |number: usize, note: &str| {
        let listed = (0..number).map(|n| PodEvent::InitApply(pod(&format!("u{n}"), &[], "Running", note)));
        std::iter::once(PodEvent::Init).chain(listed.collect::<Vec<_>>()).chain([PodEvent::InitDone])
    };
    pods(250, "before").for_each(|event| store.apply(event, now).unwrap());
    let mut watch = Watch::new(Arc::clone(&store.pods));
    while poll(&mut watch).is_ready() {}
    // Another kubelet: every pod has changed.
    pods(250, "after").for_each(|event| store.apply(event, now).unwrap());
    let mut received = 0;
    while let Poll::Ready(Some(event)) = poll(&mut watch) {
        event.unwrap();
        received += 1;
    }
    assert_eq!((received, count.cut_off.load(Ordering::Relaxed)), (250, 0));
    // A watcher that has not read them a second later is cut off.
    pods(250, "later").for_each(|event| store.apply(event, now).unwrap());
    let after = now + Duration::from_secs(1);
    store.apply(PodEvent::Apply(pod("u0", &[], "Failed", "")), after).unwrap();
    assert_eq!(count.cut_off.load(Ordering::Relaxed), 1);
    // The buffer is limited to all pods twice, plus 100 events.
    let mut watch = Watch::new(Arc::clone(&store.pods));
    while poll(&mut watch).is_ready() {}
    for round in 0..4 {
        pods(250, &round.to_string()).for_each(|event| store.apply(event, after).unwrap());
        assert_eq!(count.cut_off.load(Ordering::Relaxed), if round < 2 { 1 } else { 2 }, "{round}");
    }
    assert_eq!(lock(&store.pods).watchers.buffered().0, 0);
}

#[test]
fn a_list_is_encoded_once_and_dropped_if_unused() {
    let (mut store, _) = store();
    let now = Instant::now();
    apply(&mut store, [PodEvent::Init, PodEvent::InitDone]);
    store.apply(PodEvent::Apply(pod("a", &[], "Running", "")), now).unwrap();
    let mut cache = lock(&store.pods);
    let first = cache.list();
    assert_eq!(cache.list().as_ptr(), first.as_ptr());
    cache.drop_unused_list();
    assert_eq!(cache.list().as_ptr(), first.as_ptr(), "it was requested");
    cache.drop_unused_list();
    cache.drop_unused_list();
    assert!(first.is_unique(), "it is unused");
}
