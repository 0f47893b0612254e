//! One watch on the API server, of the node's pods or of its object: opened, heard, and gone on with where it ended.
//!
//! A watch lasts for minutes. Where it ends or breaks, the next one begins after the last version that was told, at once:
//! the API server answers that from its watch cache. What has to be read anew, because the API server no longer knows that
//! version, and everything that it refused, waits longer and at random ([`Pace`]): mostly an API server restarted, and all
//! agents of the cluster lost theirs in the same moment.

use std::time::Duration;

use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::debug;

use super::pods::{Frames, Odd};
use super::{Cluster, ClusterError, Failure, chain};
use crate::backoff::{spread, within};

/// For how long a watch is asked for, from this on and up to twice as long, as Kubernetes' own clients do. At 5,000 nodes
/// that is some 11 requests per second.
const SECONDS: u32 = 300;
/// The API server tells each watch about once a minute how far it is (a bookmark), so that no load balancer takes it for
/// unused. One that misses two of them in a row is dead, or what it watches is no more, such as the objects of a CRD that
/// was deleted and made again.
const SILENCE: Duration = Duration::from_secs(130);
/// So many watches in a row that tell nothing at all. Then the version is doubted: after a restore of etcd it may be one that is
/// still to come, and the API server leaves out all changes up to it.
const SILENT: u32 = 2;
/// An answer is waited for as long: the API server itself gives up after a minute.
pub(super) const ANSWER: Duration = Duration::from_secs(65);
/// A watch that was asked for again and has not failed after this works.
const QUIET: Duration = Duration::from_secs(1);
/// A watch that does not last as long is no good: who cuts it would be asked again and again.
const SHORT: Duration = Duration::from_secs(10);

/// Within this the next watch begins after one that worked.
const RECONNECT: Duration = Duration::from_secs(1);
/// After a failure nobody is asked sooner...
const LEAST: Duration = Duration::from_millis(500);
/// ...and within this from then on, at random...
const WINDOW: Duration = Duration::from_secs(10);
/// ...or within up to this after many failures.
const WINDOW_LIMIT: Duration = Duration::from_secs(30);
/// The longest wait that the API server may ask for.
const ASKED_LIMIT: Duration = Duration::from_secs(300);

/// When the API server may be asked again.
#[derive(Debug)]
pub(super) struct Pace {
    failures: u32,
    not_before: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { failures: 0, not_before: Instant::now() }
    }

    pub(super) async fn wait(&self) {
        sleep_until(self.not_before).await;
    }

    /// A watch that worked has ended. An agent cannot know whether it alone lost it: where all did, the API server that
    /// went away refuses this attempt, and the ones after it are spread.
    fn ended(&mut self) {
        self.not_before = Instant::now() + within(RECONNECT);
    }

    /// The API server refused, with the wait that it asks for, or cannot be reached: for others it is likely the same.
    pub(super) fn failed(&mut self, asked: Option<Duration>) {
        let least = asked.unwrap_or_default().clamp(LEAST, ASKED_LIMIT);
        self.not_before = Instant::now() + spread(&mut self.failures, least, WINDOW, WINDOW_LIMIT);
    }

    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }
}

/// What is watched.
pub(super) trait Watched: Send + 'static {
    /// What is told of it.
    type Event: Send;

    /// What is done, for sentences: `watch pods of the node`.
    fn what(&self) -> String;

    /// The path, with what is selected, and the form in which it is wanted.
    fn request(&self) -> (String, &'static str);

    /// How its frames are told apart.
    fn frames(&self) -> Frames;

    /// What a frame says.
    ///
    /// # Errors
    /// It is none of this watch.
    fn read(&self, frame: &[u8]) -> Result<Told<Self::Event>, Odd>;

    /// Why it cannot be watched.
    fn explain(&self, _cluster: &Cluster, failure: Failure) -> ClusterError {
        failure.explain(&self.what())
    }
}

/// What a frame says.
pub(super) enum Told<E> {
    /// This happened, with this version.
    Event(E, String),
    /// All up to this version was told.
    Until(String),
    /// Something went wrong.
    Failed(Box<Status>),
}

/// What is heard of a watch.
pub(super) enum Heard<E> {
    /// This happened.
    Event(E),
    /// It works again, though nothing happened.
    Again,
}

/// Why nothing is heard.
pub(super) enum Lost {
    /// For a while; it goes on by itself.
    Failed(ClusterError),
    /// What is watched has to be read anew, for this reason if there is one to tell.
    Stale(Option<ClusterError>),
}

/// A watch and those after it.
pub(super) struct Watch<W> {
    pub(super) cluster: Cluster,
    pub(super) pace: Pace,
    watched: W,
    /// All up to this version was told.
    version: String,
    open: Option<Open>,
    /// It failed, and has told nothing since.
    broken: bool,
    /// So many in a row told nothing at all.
    silent: u32,
}

/// A watch that goes on.
struct Open {
    body: Body,
    frames: Frames,
    since: Instant,
    /// For how long it was asked for.
    asked: Duration,
    /// When the last frame came.
    heard: Instant,
    told: bool,
}

impl<W: Watched> Watch<W> {
    pub(super) fn new(cluster: Cluster, watched: W, version: String) -> Self {
        Self { cluster, pace: Pace::new(), watched, version, open: None, broken: false, silent: 0 }
    }

    /// The last version that was told, or that of what was read; empty if there is none.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// All up to this version was read.
    pub(super) fn go_on_from(&mut self, version: String) {
        self.version = version;
        self.broken = false;
        self.pace.worked();
    }

    /// What was told makes no sense, or what it should be read after could not be read.
    pub(super) fn fail(&mut self, error: Option<&ClusterError>) {
        self.open = None;
        self.broken = true;
        self.pace.failed(error.and_then(ClusterError::retry_after));
    }

    /// What is heard next.
    ///
    /// # Errors
    /// It can be asked again, and waits as long as it should.
    pub(super) async fn next(&mut self) -> Result<Heard<W::Event>, Lost> {
        loop {
            self.pace.wait().await;
            let news = match &mut self.open {
                None => self.begin().await.map(|()| None)?,
                Some(_) => self.hear().await?,
            };
            if let Some(news) = news {
                return Ok(news);
            }
        }
    }

    async fn begin(&mut self) -> Result<(), Lost> {
        let (path, form) = self.watched.request();
        let seconds = fastrand::u32(SECONDS..2 * SECONDS);
        let request = hyper::Request::get(format!(
            "{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
            self.version
        ));
        let call = async {
            let request = request.body(Vec::new()).map_err(kube::Error::HttpError)?;
            self.cluster.ask(request, form).await
        };
        match self.cluster.within(ANSWER, &self.watched.what(), call).await {
            Ok(body) => {
                let (frames, now) = (self.watched.frames(), Instant::now());
                let asked = Duration::from_secs(seconds.into());
                self.open = Some(Open { body, frames, since: now, asked, heard: now, told: false });
                Ok(())
            }
            Err(failure) => Err(self.lose(self.watched.explain(&self.cluster, failure))),
        }
    }

    async fn hear(&mut self) -> Result<Option<Heard<W::Event>>, Lost> {
        let Some(open) = &mut self.open else { return Ok(None) };
        match open.frames.take() {
            Ok(Some(frame)) => {
                (open.told, open.heard, self.silent) = (true, Instant::now(), 0);
                let told = self.watched.read(frame);
                return told.map_err(|odd| self.odd(&odd)).and_then(|told| self.take(told));
            }
            Ok(None) => {}
            Err(odd) => return Err(self.odd(&odd)),
        }
        let silence = open.heard + SILENCE;
        // One that works again says nothing as long as nothing happens. That the API server has taken it, and refused nothing
        // since, is all that it can say: another question would cost it more.
        let limit = if self.broken { silence.min(open.since + QUIET) } else { silence };
        match timeout_at(limit, open.body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(piece) = frame.into_data() {
                    open.frames.put(&piece);
                }
                Ok(None)
            }
            Ok(Some(Err(error))) => self.end(Some(&error)).map(|()| None),
            Ok(None) => self.end(None).map(|()| None),
            Err(_) if limit == silence => self.give_up().map(|()| None),
            Err(_) => {
                self.worked();
                Ok(Some(Heard::Again))
            }
        }
    }

    fn take(&mut self, told: Told<W::Event>) -> Result<Option<Heard<W::Event>>, Lost> {
        match told {
            Told::Event(event, version) => {
                self.version = version;
                self.worked();
                Ok(Some(Heard::Event(event)))
            }
            Told::Until(version) => {
                self.version = version;
                let again = std::mem::take(&mut self.broken);
                self.pace.worked();
                Ok(again.then_some(Heard::Again))
            }
            Told::Failed(status) => {
                let error = self.watched.explain(&self.cluster, Failure::Status(status));
                Err(self.lose(error))
            }
        }
    }

    fn worked(&mut self) {
        self.broken = false;
        self.pace.worked();
    }

    /// After the end of a watch, in time or because it was cut: the next one tells what this one did not.
    fn end(&mut self, error: Option<&kube::Error>) -> Result<(), Lost> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let lasted = open.since.elapsed();
        let reason = error.map_or_else(|| "the API server ended it".to_owned(), |error| chain(error));
        debug!("{} ended after {lasted:.1?}: {reason}", self.watched.what());
        if lasted >= SHORT || (open.told && error.is_none()) {
            // At the end of its time, which is random already, the next one begins at once.
            if error.is_some() || lasted + RECONNECT < open.asked {
                self.pace.ended();
            }
            return Ok(());
        }
        let reason = format!("the watch lasted {lasted:.1?} only: {reason}");
        Err(self.lose(ClusterError::Unreachable { server: self.cluster.server.clone(), reason }))
    }

    /// Nothing comes, not even a bookmark.
    fn give_up(&mut self) -> Result<(), Lost> {
        debug!("{}: nothing was heard for {SILENCE:?}", self.watched.what());
        self.open = None;
        self.pace.ended();
        self.silent += 1;
        if self.silent < SILENT {
            return Ok(());
        }
        self.silent = 0;
        Err(Lost::Stale(None))
    }

    /// After a watch that was refused: is what was told still something to go on from?
    fn lose(&mut self, error: ClusterError) -> Lost {
        self.fail(Some(&error));
        match is_useless(&error) {
            true => Lost::Stale(Some(error)),
            false => Lost::Failed(error),
        }
    }

    /// After something that should not be there everything is read again.
    fn odd(&mut self, odd: &Odd) -> Lost {
        self.fail(None);
        Lost::Stale(Some(self.cluster.not_understood(&self.watched.what(), odd.to_string())))
    }
}

/// Must a client list again instead of watching from this version? It has expired, is invalid, or is newer than any that the API
/// server knows.
pub(super) fn is_useless(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Refused { code: 400 | 410, .. }) || is_ahead(error)
}

/// Is the version newer than any that this API server knows? A load balancer's 504 says nothing of it.
pub(super) fn is_ahead(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Refused { code: 504, message, .. } if message.contains("Too large resource version"))
}
