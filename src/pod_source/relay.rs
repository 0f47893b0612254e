//! Shares one watch of a pod source among all its subscribers in this process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, yield_now};

use super::PodTeller;
use crate::core_v1::{MAX_RAW_BYTES, reduce_to};
use crate::pod::annotation::{MAX_ANNOTATION_BYTES, PodMap, drop_longest_annotations};
use crate::pod::{Liveness, Pod, PodEvent, PodName, Wanted};

/// Queue length above which only the last event of each pod is kept.
const BEHIND: usize = 1024;

type Told = Result<PodEvent, String>;
type Events = BoxStream<'static, Told>;

/// The shared sources. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Relay {
    /// What any subscriber will want of a pod, except the serialized pod.
    wanted: Wanted,
    prompt: Arc<Notify>,
    asked: Arc<Mutex<AllAsked>>,
}

type AllAsked = Vec<(PodTeller, Weak<Asked>)>;

/// A source that is open as long as it has subscribers.
struct Asked {
    heard: Arc<Mutex<Heard>>,
    bell: Arc<watch::Sender<()>>,
    task: Mutex<JoinHandle<()>>,
}

impl Asked {
    fn new(events: Events) -> Self {
        let (heard, bell) = (Arc::<Mutex<Heard>>::default(), Arc::new(watch::Sender::new(())));
        let task = Mutex::new(tokio::spawn(hear(events, Arc::clone(&heard), Arc::clone(&bell))));
        Self { heard, bell, task }
    }

    /// Replaces the event stream, which starts with a new list.
    fn ask_anew(&self, events: Events) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        task.abort();
        *task = tokio::spawn(hear(events, Arc::clone(&self.heard), Arc::clone(&self.bell)));
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.task.get_mut().unwrap_or_else(PoisonError::into_inner).abort();
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

/// The pods as reported by the source, and its subscribers. Serialized pods are not cached: subscribers that
/// want them keep them.
#[derive(Default)]
struct Heard {
    pods: PodMap<Key>,
    complete: bool,
    /// The list being received.
    listing: Option<PodMap<Key>>,
    /// The source's last error, while it is failing.
    trouble: Option<String>,
    listeners: BTreeMap<u64, Queue>,
    /// The number of the next subscriber.
    next: u64,
}

/// The events that a subscriber has not received yet.
struct Queue {
    told: VecDeque<Told>,
    awaits: Awaits,
    /// Whether it wants serialized pods. Then, how many bytes of them are in the queue.
    whole: bool,
    bytes: usize,
    /// How many bytes of annotations are in the queue.
    texts: usize,
    /// The queue length above which superseded events are dropped.
    most: usize,
}

/// What a new subscriber waits for, because the cached pods are not good enough for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Nothing,
    /// The source is failing, so the cache may be stale: an event that proves that it works again.
    Proof,
    /// It wants serialized pods, which are not cached: the next list.
    Listing,
}

/// A new pod with the same name is a different pod.
type Key = (PodName, String);

fn key(pod: &Pod) -> Key {
    (pod.full_name(), pod.uid.clone())
}

fn without_whole(pod: &Pod) -> Pod {
    Pod { raw: None, ..pod.clone() }
}

/// A subscriber's stream.
struct Listener {
    asked: Arc<Asked>,
    news: watch::Receiver<()>,
    number: u64,
    wanted: Wanted,
}

impl Drop for Listener {
    fn drop(&mut self) {
        lock(&self.asked.heard).listeners.remove(&self.number);
    }
}

impl Relay {
    /// Returns a relay that caches the `wanted` parts of each pod: all that any subscriber will want, except
    /// the serialized pod.
    #[must_use]
    pub fn keeping(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Returns what to notify to read `/pods` ahead of its time.
    pub(super) fn prompt(&self) -> Arc<Notify> {
        Arc::clone(&self.prompt)
    }

    /// Subscribes to a source. Yields a snapshot of its pods, then its events. The source is opened if it has
    /// no subscribers yet, and reopened for each further one that wants serialized pods.
    pub(super) fn listen(
        &self,
        teller: PodTeller,
        wanted: Wanted,
        open: impl FnOnce(Wanted) -> Events,
    ) -> Events {
        let whole = wanted.has_raw();
        let asked = self.ask(teller, whole, open);
        let number = lock(&asked.heard).join(whole);
        let mut news = asked.bell.subscribe();
        news.mark_changed();
        let listener = Listener { asked, news, number, wanted };
        unfold(listener, |mut listener| async { Some((listener.next().await, listener)) }).boxed()
    }

    fn ask(&self, teller: PodTeller, whole: bool, open: impl FnOnce(Wanted) -> Events) -> Arc<Asked> {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, asked)| asked.strong_count() > 0);
        let same = all.iter().find(|(asked, _)| *asked == teller).and_then(|(_, asked)| asked.upgrade());
        let open = |whole| open(if whole { self.wanted.clone().with_raw() } else { self.wanted.clone() });
        if let Some(asked) = same {
            if whole {
                asked.ask_anew(open(true));
            }
            return asked;
        }
        let asked = Arc::new(Asked::new(open(whole)));
        all.push((teller, Arc::downgrade(&asked)));
        asked
    }
}

async fn hear(mut events: Events, heard: Arc<Mutex<Heard>>, bell: Arc<watch::Sender<()>>) {
    while let Some(told) = events.next().await {
        let whole = is_whole(&told);
        lock(&heard).take(&told);
        bell.send_replace(());
        if whole {
            // Let subscribers take a serialized pod before the next one is read: they are large.
            yield_now().await;
        }
    }
}

fn pod_of(told: &Told) -> Option<&Pod> {
    told.as_ref().ok().and_then(PodEvent::object)
}

fn pod_of_mut(told: &mut Told) -> Option<&mut Pod> {
    told.as_mut().ok().and_then(PodEvent::object_mut)
}

fn is_whole(told: &Told) -> bool {
    pod_of(told).is_some_and(|pod| pod.raw.is_some())
}

fn whole_bytes(told: &Told) -> usize {
    pod_of(told).map_or(0, Pod::raw_bytes)
}

fn texts(told: &Told) -> usize {
    pod_of(told).map_or(0, Pod::annotation_bytes)
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heard {
    fn take(&mut self, told: &Told) {
        match told {
            Ok(PodEvent::Listing) => self.listing = Some(PodMap::default()),
            Ok(PodEvent::Listed(pod)) => {
                self.listing.get_or_insert_default().insert(key(pod), without_whole(pod));
            }
            Ok(PodEvent::Complete) => {
                self.pods = self.listing.take().unwrap_or_default();
                self.complete = true;
            }
            Ok(PodEvent::Is(pod)) => self.pods.insert(key(pod), without_whole(pod)),
            Ok(PodEvent::Gone(pod)) => self.pods.remove(&key(pod)),
            Ok(PodEvent::Again) | Err(_) => {}
        }
        match told {
            Ok(event) if event.is_proof() => self.trouble = None,
            Ok(_) => {}
            Err(sentence) => self.trouble = Some(sentence.clone()),
        }
        let proof = matches!(told, Ok(event) if event.is_proof());
        // Subscribers should not buffer bytes that they do not want.
        let slim = is_whole(told).then(|| told.clone().map(|event| event.map(|pod| without_whole(&pod))));
        let mut satisfied = Vec::new();
        for (number, queue) in &mut self.listeners {
            if queue.awaits == Awaits::Listing && matches!(told, Ok(PodEvent::Listing)) {
                queue.awaits = Awaits::Nothing;
            }
            if queue.awaits == Awaits::Proof && proof {
                satisfied.push(*number);
            } else if queue.awaits == Awaits::Nothing || told.is_err() {
                let told = slim.as_ref().filter(|_| !queue.whole).unwrap_or(told);
                queue.push(told.clone());
            }
        }
        for number in satisfied {
            let queue = self.all();
            self.listeners.insert(number, queue);
        }
    }

    fn join(&mut self, whole: bool) -> u64 {
        let number = self.next;
        let queue = match (whole, &self.trouble) {
            (true, _) => Queue { whole, ..Queue::of([], Awaits::Listing) },
            (false, Some(sentence)) => Queue::of([Err(sentence.clone())], Awaits::Proof),
            (false, None) => self.all(),
        };
        self.next += 1;
        self.listeners.insert(number, queue);
        number
    }

    /// Returns the next event for this subscriber, and whether there are more.
    fn next_for(&mut self, number: u64) -> (Option<Told>, bool) {
        let queue = self.listeners.get_mut(&number);
        queue.map_or((None, false), |queue| (queue.pop(), !queue.told.is_empty()))
    }

    /// Returns the initial snapshot for a new subscriber.
    fn all(&self) -> Queue {
        let mut told = VecDeque::new();
        if self.complete {
            told.push_back(PodEvent::Listing);
            told.extend(listed(&self.pods));
            told.push_back(PodEvent::Complete);
        }
        if let Some(listing) = &self.listing {
            told.push_back(PodEvent::Listing);
            told.extend(listed(listing));
        }
        Queue::of(told.into_iter().map(Ok), Awaits::Nothing)
    }
}

impl Queue {
    fn of(told: impl IntoIterator<Item = Told>, awaits: Awaits) -> Self {
        let told: VecDeque<Told> = told.into_iter().collect();
        let texts = told.iter().map(texts).sum();
        Self { told, awaits, whole: false, bytes: 0, texts, most: BEHIND }
    }

    fn pop(&mut self) -> Option<Told> {
        let told = self.told.pop_front()?;
        self.bytes -= whole_bytes(&told);
        self.texts -= texts(&told);
        Some(told)
    }

    fn push(&mut self, told: Told) {
        self.bytes += whole_bytes(&told);
        self.texts += texts(&told);
        self.told.push_back(told);
        if self.told.len() > self.most || self.bytes > MAX_RAW_BYTES || self.texts > MAX_ANNOTATION_BYTES {
            self.drop_longest_annotations();
            self.most = BEHIND.max(2 * self.told.len());
            self.bytes = reduce_to(MAX_RAW_BYTES, self.told.iter_mut().filter_map(pod_of_mut));
            self.texts = drop_longest_annotations(self.told.iter_mut().filter_map(pod_of_mut));
        }
    }

    /// Drops superseded events: those before the start of the newest list, and all but the last event of each
    /// pod and the last error.
    fn drop_longest_annotations(&mut self) {
        let start = self.told.iter().rposition(|told| matches!(told, Ok(PodEvent::Listing))).unwrap_or(0);
        let (mut seen, mut trouble) = (BTreeSet::new(), false);
        let mut kept: VecDeque<Told> = VecDeque::new();
        for told in self.told.drain(..).skip(start).rev() {
            let is_last = match &told {
                Ok(PodEvent::Is(pod) | PodEvent::Gone(pod)) => seen.insert(key(pod)),
                Err(_) => !std::mem::replace(&mut trouble, true),
                Ok(_) => true,
            };
            if is_last {
                kept.push_front(told);
            }
        }
        self.told = kept;
    }
}

/// Returns the pods as list events. If two pods share a name, the running one comes last, so name-keyed
/// caches keep it.
fn listed(pods: &BTreeMap<Key, Pod>) -> impl Iterator<Item = PodEvent> {
    let (running, others): (Vec<_>, Vec<_>) = pods.values().partition(|pod| pod.liveness == Liveness::Live);
    others.into_iter().chain(running).cloned().map(PodEvent::Listed)
}

impl Listener {
    async fn next(&mut self) -> Told {
        loop {
            // Marks the current version as seen first: later events wake this again.
            let over = self.news.changed().await.is_err();
            let (told, more) = lock(&self.asked.heard).next_for(self.number);
            if more {
                self.news.mark_changed();
            }
            match told {
                Some(told) => return told.map(|event| event.map(|pod| pod.keeping(&self.wanted))),
                None if over => std::future::pending().await,
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures::FutureExt;
    use tokio::sync::mpsc;

    use super::*;
    use crate::pod::annotation::tests::annotated;
    use crate::pod::{Annotation, RawPod};

    #[derive(Default)]
    struct Teller {
        relay: Relay,
        /// For each time it was opened, whether for serialized pods.
        opened: RefCell<Vec<bool>>,
        /// The sender of the stream that was opened last.
        tell: RefCell<Option<mpsc::UnboundedSender<Told>>>,
    }

    impl Teller {
        fn listen(&self, wanted: &Wanted) -> Events {
            self.relay.listen(PodTeller::ApiServer, wanted.clone(), |wanted| {
                self.opened.borrow_mut().push(wanted.has_raw());
                let (tell, told) = mpsc::unbounded_channel();
                self.tell.replace(Some(tell));
                unfold(told, |mut told| async { Some((told.recv().await?, told)) }).boxed()
            })
        }

        fn is_closed(&self) -> bool {
            self.tell.borrow().as_ref().is_some_and(mpsc::UnboundedSender::is_closed)
        }

        fn say(&self, told: Told) {
            self.tell.borrow().as_ref().unwrap().send(told).unwrap();
        }

        async fn tell(&self, event: PodEvent) {
            self.say(Ok(event));
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
        let whole = Some(Box::new(RawPod::Protobuf("bytes".into())));
        Pod { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}"), raw: whole, ..Pod::default() }
    }

    /// Returns all available events in short form.
    fn heard(events: &mut Events) -> String {
        let mut words = Vec::new();
        while let Some(Some(told)) = tokio::task::unconstrained(events.next()).now_or_never() {
            words.push(match told {
                Ok(PodEvent::Listing) => "[".into(),
                Ok(PodEvent::Complete) => "]".into(),
                Ok(PodEvent::Listed(pod)) => pod.name,
                Ok(PodEvent::Is(pod)) => {
                    format!("+{}{}", pod.name, if pod.raw.is_some() { "!" } else { "" })
                }
                Ok(PodEvent::Gone(pod)) => format!("-{}", pod.name),
                Ok(PodEvent::Again) => "again".into(),
                Err(sentence) => sentence,
            });
        }
        words.join(" ")
    }

    #[tokio::test]
    async fn who_comes_later_hears_what_is_there_and_then_the_same_as_all() {
        let teller = Teller::default();
        let mut first = teller.listen(&Wanted::default().with_raw());
        teller.tell(PodEvent::Listing).await;
        teller.tell(PodEvent::Listed(pod("a"))).await;
        let mut amid = teller.listen(&Wanted::default());
        assert_eq!((heard(&mut first), heard(&mut amid)), ("[ a".into(), "[ a".into()));
        for event in
            [PodEvent::Listed(pod("b")), PodEvent::Complete, PodEvent::Is(pod("c")), PodEvent::Gone(pod("a"))]
        {
            teller.tell(event).await;
        }
        let mut later = teller.listen(&Wanted::default());
        assert_eq!(heard(&mut first), "b ] +c! -a");
        assert_eq!(heard(&mut amid), "b ] +c -a", "without what it does not want");
        assert_eq!(heard(&mut later), "[ b c ]");
        teller.say(Err("trouble".into()));
        settle().await;
        let mut after_trouble = teller.listen(&Wanted::default());
        assert_eq!((heard(&mut later), heard(&mut after_trouble)), ("trouble".into(), "trouble".into()));
        // The start of a list is no proof: the list may still fail.
        teller.tell(PodEvent::Listing).await;
        teller.tell(PodEvent::Listed(pod("x"))).await;
        assert_eq!(heard(&mut after_trouble), "", "nothing is known to be true now");
        for name in ["b", "c"] {
            teller.tell(PodEvent::Listed(pod(name))).await;
        }
        teller.tell(PodEvent::Complete).await;
        teller.tell(PodEvent::Gone(pod("x"))).await;
        teller.tell(PodEvent::Is(pod("d"))).await;
        assert_eq!(heard(&mut later), "[ x b c ] -x +d");
        assert_eq!(heard(&mut after_trouble), "[ b c x ] -x +d");
        assert_eq!(heard(&mut teller.listen(&Wanted::default())), "[ b c d ]", "the trouble is over");
        assert_eq!(teller.opened.borrow().len(), 1, "it was asked once");
    }

    #[tokio::test]
    async fn who_wants_whole_pods_hears_all_of_them_anew_and_others_hear_so_too() {
        let teller = Teller::default();
        let mut plain = teller.listen(&Wanted::default());
        for event in [PodEvent::Listing, PodEvent::Listed(pod("a")), PodEvent::Complete] {
            teller.tell(event).await;
        }
        assert_eq!(heard(&mut plain), "[ a ]");
        let mut whole = teller.listen(&Wanted::default().with_raw());
        assert_eq!(teller.opened.borrow()[..], [false, true], "it was opened for more");
        assert_eq!(heard(&mut whole), "", "what is kept is not whole");
        for event in [PodEvent::Listing, PodEvent::Listed(pod("a"))] {
            teller.tell(event).await;
        }
        let mut later = teller.listen(&Wanted::default());
        for event in [PodEvent::Complete, PodEvent::Is(pod("b"))] {
            teller.tell(event).await;
        }
        assert_eq!((heard(&mut plain), heard(&mut whole)), ("[ a ] +b".into(), "[ a ] +b!".into()));
        assert_eq!(heard(&mut later), "[ a ] [ a ] +b");
        assert_eq!(teller.opened.borrow().len(), 2);
    }

    #[tokio::test]
    async fn of_what_waits_for_who_does_not_listen_the_last_word_of_each_pod_is_kept() {
        let teller = Teller::default();
        let mut lazy = teller.listen(&Wanted::default());
        teller.tell(PodEvent::Listing).await;
        teller.tell(PodEvent::Complete).await;
        for number in 0..10_000 {
            teller.tell(PodEvent::Is(pod(&format!("p{}", number % 3)))).await;
            teller.tell(PodEvent::Gone(pod("q"))).await;
            teller.say(Err(number.to_string()));
        }
        settle().await;
        let asked = teller.relay.ask(PodTeller::ApiServer, false, |_| unreachable!());
        assert!(lock(&asked.heard).listeners[&0].told.len() <= BEHIND);
        let words = heard(&mut lazy);
        assert!(words.starts_with("[ ] +p") && words.ends_with("+p0 -q 9999"), "{words:.40}");
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_and_nobody_waits_for_what_it_does_not_want() {
        let teller = Teller::default();
        let mut whole = teller.listen(&Wanted::default().with_raw());
        let mut slim = teller.listen(&Wanted::default());
        let large = |number: usize| {
            let bytes = vec![0; 1_400_000];
            Pod { raw: Some(Box::new(RawPod::Protobuf(bytes.into()))), ..pod(&number.to_string()) }
        };
        teller.say(Ok(PodEvent::Listing));
        teller.say(Ok(PodEvent::Listed(pod("small"))));
        (0..64).for_each(|number| teller.say(Ok(PodEvent::Listed(large(number)))));
        teller.say(Ok(PodEvent::Complete));
        (0..64).for_each(|number| teller.say(Ok(PodEvent::Is(large(number)))));
        for _ in 0..300 {
            settle().await;
        }
        let asked = teller.relay.ask(PodTeller::ApiServer, false, |_| unreachable!());
        let waiting = |number: u64| -> usize {
            lock(&asked.heard).listeners[&number].told.iter().map(whole_bytes).sum()
        };
        assert!(waiting(0) <= MAX_RAW_BYTES && waiting(0) > MAX_RAW_BYTES / 2, "{}", waiting(0));
        assert_eq!(waiting(1), 0);
        assert_eq!(heard(&mut slim).split(' ').count(), 2 + 1 + 64 + 64);
        let (mut kept, mut outlines) = (0, 0);
        while let Some(Some(told)) = tokio::task::unconstrained(whole.next()).now_or_never() {
            match pod_of(&told).and_then(|pod| pod.raw.as_deref()) {
                Some(RawPod::Protobuf(_)) => kept += 1,
                Some(_) => outlines += 1,
                None => {}
            }
        }
        assert_eq!(
            (kept, outlines),
            (1 + MAX_RAW_BYTES / 1_400_000, 128 - MAX_RAW_BYTES / 1_400_000),
            "the largest are left out"
        );
        assert_eq!(lock(&asked.heard).listeners[&0].bytes, 0);
    }

    #[tokio::test]
    async fn annotations_are_bounded_in_what_is_kept_and_in_what_waits() {
        let teller = Teller::default();
        let mut first = teller.listen(&Wanted::of(["a"]));
        let asked = teller.relay.ask(PodTeller::ApiServer, false, |_| unreachable!());
        let tell = |event| lock(&asked.heard).take(&Ok(event));
        let bounded = |pods: &mut dyn Iterator<Item = &Pod>| {
            let bytes: usize = pods.map(Pod::annotation_bytes).sum();
            assert!((MAX_ANNOTATION_BYTES / 2..=MAX_ANNOTATION_BYTES).contains(&bytes), "{bytes}");
        };
        let many = || (0..500).map(|number| annotated(&number.to_string(), Annotation::MAX_BYTES));
        tell(PodEvent::Listing);
        tell(PodEvent::Listed(annotated("small", 1000)));
        many().for_each(|pod| tell(PodEvent::Listed(pod)));
        bounded(&mut lock(&asked.heard).listing.as_ref().unwrap().values());
        bounded(&mut lock(&asked.heard).listeners[&0].told.iter().filter_map(pod_of));
        tell(PodEvent::Complete);
        many().for_each(|pod| tell(PodEvent::Is(pod)));
        bounded(&mut lock(&asked.heard).pods.values());
        bounded(&mut lock(&asked.heard).listeners[&0].told.iter().filter_map(pod_of));
        for events in [&mut first, &mut teller.listen(&Wanted::of(["a"]))] {
            let mut kept = Vec::new();
            while let Some(Some(told)) = tokio::task::unconstrained(events.next()).now_or_never() {
                kept.extend(pod_of(&told).map(Pod::annotation_bytes));
            }
            assert!(kept.contains(&1000) && kept.len() > 500, "the longest go, and no pod");
        }
        assert!(lock(&asked.heard).listeners.values().all(|queue| queue.texts == 0));
    }

    #[tokio::test]
    async fn nobody_is_asked_when_nobody_listens() {
        let teller = Teller::default();
        let events = teller.listen(&Wanted::default());
        let other = teller.listen(&Wanted::default());
        drop(events);
        settle().await;
        assert!(!teller.is_closed(), "the other one listens");
        drop(other);
        settle().await;
        assert!(teller.is_closed());
    }
}
