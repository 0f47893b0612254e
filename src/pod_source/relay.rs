//! One who tells about pods, heard by several in this process: asked once, whoever listens.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::PodTeller;
use crate::pod::{Life, Pod, PodEvent, PodName, Wanted};

/// Who is so many events behind what is there is told all of that anew instead.
const BEHIND: usize = 1024;

type Told = Result<PodEvent, String>;
type Events = BoxStream<'static, Told>;

/// Those that are asked. Each clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Relay {
    wanted: Wanted,
    prompt: Arc<Notify>,
    asked: Arc<Mutex<Vec<(PodTeller, Weak<Asked>)>>>,
}

/// One that is asked, for as long as anybody listens.
struct Asked {
    heard: Arc<Mutex<Heard>>,
    news: watch::Receiver<()>,
    task: JoinHandle<()>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

/// What was told, and to whom it has to be told on.
#[derive(Default)]
struct Heard {
    pods: BTreeMap<Key, Pod>,
    complete: bool,
    /// The list that is coming in.
    listing: Option<BTreeMap<Key, Pod>>,
    /// Why nothing is told now.
    trouble: Option<String>,
    listeners: BTreeMap<u64, Queue>,
    /// The number of the next listener.
    next: u64,
}

/// What one listener still has to be told.
#[derive(Default)]
struct Queue {
    told: VecDeque<Told>,
    /// It came while nothing was told: what was told before may be true no more, and it hears of it when that is over.
    waits: bool,
}

/// A pod that returns under its name is another one.
type Key = (PodName, String);

fn key(pod: &Pod) -> Key {
    (pod.full_name(), pod.uid.clone())
}

/// One who listens.
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
    /// Of each pod is kept what is wanted, which is what any listener will want.
    #[must_use]
    pub fn keeping(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// What to ring for a reading of `/pods` ahead of its time.
    pub(super) fn prompt(&self) -> Arc<Notify> {
        Arc::clone(&self.prompt)
    }

    /// What this one tells: all that is there, then what comes. It is opened, with what is wanted of pods, if nobody
    /// listens to it yet.
    pub(super) fn listen(
        &self,
        teller: PodTeller,
        wanted: Wanted,
        open: impl FnOnce(Wanted) -> Events,
    ) -> Events {
        let asked = self.ask(teller, open);
        let number = lock(&asked.heard).join();
        let mut news = asked.news.clone();
        news.mark_changed();
        let listener = Listener { asked, news, number, wanted };
        unfold(listener, |mut listener| async { Some((listener.next().await, listener)) }).boxed()
    }

    fn ask(&self, teller: PodTeller, open: impl FnOnce(Wanted) -> Events) -> Arc<Asked> {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, asked)| asked.strong_count() > 0);
        let same = all.iter().find(|(asked, _)| *asked == teller).and_then(|(_, asked)| asked.upgrade());
        if let Some(asked) = same {
            return asked;
        }
        let (bell, news) = watch::channel(());
        let heard = Arc::<Mutex<Heard>>::default();
        let task = tokio::spawn(hear(open(self.wanted.clone()), Arc::clone(&heard), bell));
        let asked = Arc::new(Asked { heard, news, task });
        all.push((teller, Arc::downgrade(&asked)));
        asked
    }
}

async fn hear(mut events: Events, heard: Arc<Mutex<Heard>>, bell: watch::Sender<()>) {
    while let Some(told) = events.next().await {
        lock(&heard).take(&told);
        bell.send_replace(());
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heard {
    fn take(&mut self, told: &Told) {
        match told {
            Ok(PodEvent::Listing) => self.listing = Some(BTreeMap::new()),
            Ok(PodEvent::Listed(pod)) => {
                self.listing.get_or_insert_default().insert(key(pod), pod.clone());
            }
            Ok(PodEvent::Complete) => {
                self.pods = self.listing.take().unwrap_or_default();
                self.complete = true;
            }
            Ok(PodEvent::Is(pod)) => drop(self.pods.insert(key(pod), pod.clone())),
            Ok(PodEvent::Gone(pod)) => drop(self.pods.remove(&key(pod))),
            Ok(PodEvent::Again) | Err(_) => {}
        }
        match told {
            Ok(event) if event.is_proof() => self.trouble = None,
            Ok(_) => {}
            Err(sentence) => self.trouble = Some(sentence.clone()),
        }
        let proof = matches!(told, Ok(event) if event.is_proof());
        let most = BEHIND + self.pods.len();
        let mut anew = Vec::new();
        for (number, queue) in &mut self.listeners {
            if !queue.waits || told.is_err() {
                queue.told.push_back(told.clone());
            }
            if queue.told.len() > most || queue.waits && proof {
                anew.push(*number);
            }
        }
        for number in anew {
            let queue = self.all();
            self.listeners.insert(number, queue);
        }
    }

    fn join(&mut self) -> u64 {
        let (number, queue) = (self.next, self.all());
        self.next += 1;
        self.listeners.insert(number, queue);
        number
    }

    /// What is to be told next to this listener, and is there more?
    fn next_for(&mut self, number: u64) -> (Option<Told>, bool) {
        let queue = self.listeners.get_mut(&number);
        queue.map_or((None, false), |queue| (queue.told.pop_front(), !queue.told.is_empty()))
    }

    /// What somebody has to be told who knows nothing.
    fn all(&self) -> Queue {
        if let Some(sentence) = &self.trouble {
            return Queue { told: [Err(sentence.clone())].into(), waits: true };
        }
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
        Queue { told: told.into_iter().map(Ok).collect(), waits: false }
    }
}

/// Of two with one name the one that runs is told of last: whoever goes by names keeps that.
fn listed(pods: &BTreeMap<Key, Pod>) -> impl Iterator<Item = PodEvent> {
    let (running, others): (Vec<_>, Vec<_>) = pods.values().partition(|pod| pod.life == Life::Living);
    others.into_iter().chain(running).cloned().map(PodEvent::Listed)
}

impl Listener {
    async fn next(&mut self) -> Told {
        loop {
            // What comes after this is noticed.
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
    use std::cell::Cell;

    use futures::FutureExt;
    use tokio::sync::mpsc;

    use super::*;
    use crate::pod::Whole;

    struct Teller {
        relay: Relay,
        opened: Cell<usize>,
        tell: mpsc::UnboundedSender<Told>,
        told: Cell<Option<mpsc::UnboundedReceiver<Told>>>,
    }

    impl Teller {
        fn new() -> Self {
            let (tell, told) = mpsc::unbounded_channel();
            let relay = Relay::keeping(Wanted::default().whole());
            Self { relay, opened: Cell::new(0), tell, told: Cell::new(Some(told)) }
        }

        fn listen(&self, wanted: &Wanted) -> Events {
            self.relay.listen(PodTeller::ApiServer, wanted.clone(), |wanted| {
                assert!(wanted.wants_whole());
                self.opened.set(self.opened.get() + 1);
                let told = self.told.take().unwrap();
                unfold(told, |mut told| async { Some((told.recv().await?, told)) }).boxed()
            })
        }

        async fn tell(&self, event: PodEvent) {
            self.tell.send(Ok(event)).unwrap();
            settle().await;
        }
    }

    /// Everybody has had a turn.
    async fn settle() {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }

    fn pod(name: &str) -> Pod {
        let whole = Some(Box::new(Whole::Protobuf("bytes".into())));
        Pod { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}"), whole, ..Pod::default() }
    }

    /// All that can be heard now, in short.
    fn heard(events: &mut Events) -> String {
        let mut words = Vec::new();
        while let Some(Some(told)) = events.next().now_or_never() {
            words.push(match told {
                Ok(PodEvent::Listing) => "[".into(),
                Ok(PodEvent::Complete) => "]".into(),
                Ok(PodEvent::Listed(pod)) => pod.name,
                Ok(PodEvent::Is(pod)) => {
                    format!("+{}{}", pod.name, if pod.whole.is_some() { "!" } else { "" })
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
        let teller = Teller::new();
        let mut first = teller.listen(&Wanted::default().whole());
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
        teller.tell.send(Err("trouble".into())).unwrap();
        settle().await;
        let mut after_trouble = teller.listen(&Wanted::default());
        assert_eq!((heard(&mut later), heard(&mut after_trouble)), ("trouble".into(), "trouble".into()));
        // A list that begins is no proof, and may fail as well.
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
        assert_eq!(teller.opened.get(), 1, "it was asked once");
    }

    #[tokio::test]
    async fn whoever_does_not_listen_is_told_all_anew_and_holds_no_more_than_that() {
        let teller = Teller::new();
        let mut lazy = teller.listen(&Wanted::default());
        teller.tell(PodEvent::Listing).await;
        teller.tell(PodEvent::Complete).await;
        for number in 0..10_000 {
            teller.tell(PodEvent::Is(pod(&format!("p{}", number % 3)))).await;
        }
        let asked = teller.relay.ask(PodTeller::ApiServer, |_| unreachable!());
        assert!(lock(&asked.heard).listeners[&0].told.len() <= BEHIND + 3);
        let words = heard(&mut lazy);
        assert!(words.starts_with("[ p0 p1 p2 ] +p"), "{}", &words[..40]);
    }

    #[tokio::test]
    async fn nobody_is_asked_when_nobody_listens() {
        let teller = Teller::new();
        let events = teller.listen(&Wanted::default());
        let other = teller.listen(&Wanted::default());
        drop(events);
        settle().await;
        assert!(!teller.tell.is_closed(), "the other one listens");
        drop(other);
        settle().await;
        assert!(teller.tell.is_closed());
    }
}
