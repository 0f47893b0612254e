use std::cell::RefCell;

use futures::FutureExt;
use tokio::sync::mpsc;

use super::*;
use crate::core_v1::MAX_RAW_BYTES;
use crate::pod::{Annotation, MAX_ANNOTATION_BYTES, Pod, PodEvent, RawPod};
use crate::pod_source::queue::{MAX_EVENTS, pod_of, raw_bytes};
use crate::pod_source::samples::annotated;

/// A source that reports what the test sends.
#[derive(Default)]
struct Source {
    informer: SharedInformer,
    /// For each time it was opened, whether for serialized pods.
    opened: RefCell<Vec<bool>>,
    /// The sender of the stream that was opened last.
    sender: RefCell<Option<mpsc::UnboundedSender<Item>>>,
}

impl Source {
    fn subscribe(&self, wanted: &Wanted) -> Events {
        self.informer.subscribe(PodSourceKind::ApiServer, wanted.clone(), |wanted| {
            self.opened.borrow_mut().push(wanted.has_raw());
            let (sender, items) = mpsc::unbounded_channel();
            self.sender.replace(Some(sender));
            unfold(items, |mut items| async { Some((items.recv().await?, items)) }).boxed()
        })
    }

    fn shared(&self) -> Arc<SharedSource> {
        self.informer.source(PodSourceKind::ApiServer, false, |_| unreachable!())
    }

    fn is_closed(&self) -> bool {
        self.sender.borrow().as_ref().is_some_and(mpsc::UnboundedSender::is_closed)
    }

    fn send(&self, item: Item) {
        self.sender.borrow().as_ref().unwrap().send(item).unwrap();
    }

    async fn report(&self, event: PodEvent) {
        self.send(Ok(event));
        settle().await;
    }
}

/// Lets all tasks run.
async fn settle() {
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
}

fn pod(name: &str) -> Pod {
    let raw = Some(Box::new(RawPod::Protobuf("bytes".into())));
    Pod { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}"), raw, ..Pod::default() }
}

/// Returns all available items.
fn available(events: &mut Events) -> Vec<Item> {
    std::iter::from_fn(|| tokio::task::unconstrained(events.next()).now_or_never().flatten()).collect()
}

/// Returns all available items in short form.
fn received(events: &mut Events) -> String {
    let short = |item: Item| match item {
        Ok(PodEvent::Init) => "[".into(),
        Ok(PodEvent::InitDone) => "]".into(),
        Ok(PodEvent::InitApply(pod)) => pod.name,
        Ok(PodEvent::Apply(pod)) => format!("+{}{}", pod.name, if pod.raw.is_some() { "!" } else { "" }),
        Ok(PodEvent::Delete(pod)) => format!("-{}", pod.name),
        Ok(PodEvent::Resumed) => "resumed".into(),
        Err(error) => error,
    };
    available(events).into_iter().map(short).collect::<Vec<String>>().join(" ")
}

#[tokio::test]
async fn a_new_subscriber_gets_a_snapshot_and_then_the_same_events_as_all() {
    let source = Source::default();
    let mut first = source.subscribe(&Wanted::default().with_raw());
    source.report(PodEvent::Init).await;
    source.report(PodEvent::InitApply(pod("a"))).await;
    let mut during_list = source.subscribe(&Wanted::default());
    assert_eq!((received(&mut first), received(&mut during_list)), ("[ a".into(), "[ a".into()));
    for event in [
        PodEvent::InitApply(pod("b")),
        PodEvent::InitDone,
        PodEvent::Apply(pod("c")),
        PodEvent::Delete(pod("a")),
    ] {
        source.report(event).await;
    }
    let mut later = source.subscribe(&Wanted::default());
    assert_eq!(received(&mut first), "b ] +c! -a");
    assert_eq!(received(&mut during_list), "b ] +c -a", "without what it does not want");
    assert_eq!(received(&mut later), "[ b c ]");
    source.send(Err("error".into()));
    settle().await;
    let mut after_error = source.subscribe(&Wanted::default());
    assert_eq!((received(&mut later), received(&mut after_error)), ("error".into(), "error".into()));
    // The start of a list does not show that the source works: the list may still fail.
    source.report(PodEvent::Init).await;
    source.report(PodEvent::InitApply(pod("x"))).await;
    assert_eq!(received(&mut after_error), "", "the cache may be stale");
    for name in ["b", "c"] {
        source.report(PodEvent::InitApply(pod(name))).await;
    }
    source.report(PodEvent::InitDone).await;
    source.report(PodEvent::Delete(pod("x"))).await;
    source.report(PodEvent::Apply(pod("d"))).await;
    assert_eq!(received(&mut later), "[ x b c ] -x +d");
    assert_eq!(received(&mut after_error), "[ b c x ] -x +d");
    assert_eq!(received(&mut source.subscribe(&Wanted::default())), "[ b c d ]", "the source has recovered");
    assert_eq!(source.opened.borrow().len(), 1, "it was opened once");
}

#[tokio::test]
async fn a_subscriber_that_wants_serialized_pods_causes_a_new_list_for_all() {
    let source = Source::default();
    let mut plain = source.subscribe(&Wanted::default());
    for event in PodEvent::list([pod("a")]) {
        source.report(event).await;
    }
    assert_eq!(received(&mut plain), "[ a ]");
    let mut raw = source.subscribe(&Wanted::default().with_raw());
    assert_eq!(source.opened.borrow()[..], [false, true], "it was reopened for serialized pods");
    assert_eq!(received(&mut raw), "", "serialized pods are not cached");
    for event in [PodEvent::Init, PodEvent::InitApply(pod("a"))] {
        source.report(event).await;
    }
    let mut later = source.subscribe(&Wanted::default());
    for event in [PodEvent::InitDone, PodEvent::Apply(pod("b"))] {
        source.report(event).await;
    }
    assert_eq!((received(&mut plain), received(&mut raw)), ("[ a ] +b".into(), "[ a ] +b!".into()));
    assert_eq!(received(&mut later), "[ a ] [ a ] +b");
    assert_eq!(source.opened.borrow().len(), 2);
}

#[tokio::test]
async fn a_slow_subscriber_gets_the_last_event_of_each_pod() {
    let source = Source::default();
    let mut slow = source.subscribe(&Wanted::default());
    source.report(PodEvent::Init).await;
    source.report(PodEvent::InitDone).await;
    for number in 0..10_000 {
        source.report(PodEvent::Apply(pod(&format!("p{}", number % 3)))).await;
        source.report(PodEvent::Delete(pod("q"))).await;
        source.send(Err(number.to_string()));
    }
    settle().await;
    assert!(source.shared().state.borrow().subscribers[&0].items.len() <= MAX_EVENTS);
    let items = received(&mut slow);
    assert!(items.starts_with("[ ] +p") && items.ends_with("+p0 -q 9999"), "{items:.40}");
}

#[tokio::test]
async fn queued_bytes_are_bounded_and_only_of_what_is_wanted() {
    let source = Source::default();
    let mut raw = source.subscribe(&Wanted::default().with_raw());
    let mut plain = source.subscribe(&Wanted::default());
    let large = |number: usize| {
        let bytes = vec![0; 1_400_000];
        Pod { raw: Some(Box::new(RawPod::Protobuf(bytes.into()))), ..pod(&number.to_string()) }
    };
    source.send(Ok(PodEvent::Init));
    source.send(Ok(PodEvent::InitApply(pod("small"))));
    (0..64).for_each(|number| source.send(Ok(PodEvent::InitApply(large(number)))));
    source.send(Ok(PodEvent::InitDone));
    (0..64).for_each(|number| source.send(Ok(PodEvent::Apply(large(number)))));
    for _ in 0..300 {
        settle().await;
    }
    let shared = source.shared();
    let queued =
        |id: u64| -> usize { shared.state.borrow().subscribers[&id].items.iter().map(raw_bytes).sum() };
    assert!(queued(0) <= MAX_RAW_BYTES && queued(0) > MAX_RAW_BYTES / 2, "{}", queued(0));
    assert_eq!(queued(1), 0);
    assert_eq!(received(&mut plain).split(' ').count(), 2 + 1 + 64 + 64);
    let (mut kept, mut outlines) = (0, 0);
    for item in available(&mut raw) {
        match pod_of(&item).and_then(|pod| pod.raw.as_deref()) {
            Some(RawPod::Protobuf(_)) => kept += 1,
            Some(_) => outlines += 1,
            None => {}
        }
    }
    let fit = MAX_RAW_BYTES / 1_400_000;
    assert_eq!((kept, outlines), (1 + fit, 128 - fit), "the largest are reduced");
    assert_eq!(shared.state.borrow().subscribers[&0].raw_bytes, 0);
}

#[tokio::test]
async fn annotations_are_bounded_in_the_cache_and_in_queues() {
    let source = Source::default();
    let mut first = source.subscribe(&Wanted::of(["a"]));
    let shared = source.shared();
    let apply = |event| shared.state.send_modify(|state| state.apply(&Ok(event)));
    let check = |pods: &mut dyn Iterator<Item = &Pod>| {
        let bytes: usize = pods.map(Pod::annotation_bytes).sum();
        assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&bytes), "{bytes}");
    };
    let many = || (0..500).map(|number| annotated(&number.to_string(), Annotation::MAX_BYTES));
    apply(PodEvent::Init);
    apply(PodEvent::InitApply(annotated("small", 1000)));
    many().for_each(|pod| apply(PodEvent::InitApply(pod)));
    check(&mut shared.state.borrow().pods.incoming().unwrap().values());
    check(&mut shared.state.borrow().subscribers[&0].items.iter().filter_map(pod_of));
    apply(PodEvent::InitDone);
    many().for_each(|pod| apply(PodEvent::Apply(pod)));
    check(&mut shared.state.borrow().pods.objects().values());
    check(&mut shared.state.borrow().subscribers[&0].items.iter().filter_map(pod_of));
    for events in [&mut first, &mut source.subscribe(&Wanted::of(["a"]))] {
        let items = available(events);
        let kept: Vec<_> = items.iter().filter_map(pod_of).map(Pod::annotation_bytes).collect();
        assert!(kept.contains(&1000) && kept.len() > 500, "the longest are dropped, and no pod");
    }
    assert!(shared.state.borrow().subscribers.values().all(|queue| queue.annotation_bytes == 0));
}

#[tokio::test]
async fn a_source_is_closed_without_subscribers() {
    let source = Source::default();
    let events = source.subscribe(&Wanted::default());
    let other = source.subscribe(&Wanted::default());
    drop(events);
    settle().await;
    assert!(!source.is_closed(), "there is another subscriber");
    drop(other);
    settle().await;
    assert!(source.is_closed());
}
