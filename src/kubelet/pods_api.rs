//! The kubelet's Pods API (kubelet.md 4): every pod that the kubelet knows, and what becomes of it, from 1.36 on.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::{Stream, unfold};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tracing::{debug, warn};

use super::belief::{Belief, SOON, Teller};
use super::client::{Identity, age, channel, identity, innermost};
use super::proto::pods::pods_client::PodsClient;
use super::proto::pods::{EventType, GetPodRequest, WatchPodsEvent, WatchPodsRequest};
use crate::backoff::{back_off, jittered};
use crate::core_v1::decode_pod;
use crate::pod::{Life, Pod, PodEvent, Wanted};

/// A pod with everything in it is smaller; the API server takes none above 3 MiB.
const MESSAGE_LIMIT: usize = 32 << 20;

/// How often everything is told anew: the kubelet may lose an event without a word. A new watch tells one pod at a
/// time, where ListPods would tell all of them in one message of some 10 KiB each.
const ANEW: Duration = Duration::from_secs(180);

/// The same while there are pods that have ended: nothing tells that the object of such a one is deleted.
const ANEW_AFTER_END: Duration = Duration::from_secs(60);

/// Where a kubelet has never said that its list is complete, as early builds do not, it is when nothing came for so long.
const SILENCE: Duration = Duration::from_secs(10);

/// A kubelet that is as old knows its pods, as far as anybody can tell who knew none of them before.
const GROWN_UP: Duration = Duration::from_secs(60);

/// How soon to try again after a failure.
const RETRY: Duration = Duration::from_millis(100);
/// The longest wait between two failures.
const RETRY_LIMIT: Duration = Duration::from_secs(5);
/// How soon to ask a kubelet again that does not serve this: it may be replaced by one that does.
const UNSERVED: Duration = Duration::from_secs(30);

/// Follows the pods of the kubelet whose Pods API is at `socket`; `deadline` is that of anything which is no waiting for
/// news, `wanted` the annotations that are kept. An error is one sentence, and it goes on after a back-off, with everything listed anew.
pub fn follow_pods(
    socket: PathBuf,
    deadline: Duration,
    wanted: Wanted,
) -> impl Stream<Item = Result<PodEvent, String>> + Send + 'static {
    let follow = Follow {
        socket,
        deadline,
        wanted,
        watch: None,
        belief: Belief::default(),
        events: VecDeque::new(),
        deleted: VecDeque::new(),
        known: None,
        marks: false,
        failures: 0,
        not_before: Instant::now(),
    };
    unfold(follow, |mut follow| async { Some((follow.next().await, follow)) })
}

struct Follow {
    socket: PathBuf,
    deadline: Duration,
    wanted: Wanted,
    watch: Option<Watch>,
    belief: Belief,
    /// What is still to be told.
    events: VecDeque<PodEvent>,
    /// Pods that were said to be deleted, to be looked after.
    deleted: VecDeque<Pod>,
    /// The kubelet that told a list which was believed.
    known: Option<Identity>,
    /// Has a kubelet ever said that a list is complete?
    marks: bool,
    failures: u32,
    not_before: Instant,
}

struct Watch {
    channel: Channel,
    /// The socket that we connected to.
    identity: Identity,
    told: Streaming<WatchPodsEvent>,
    /// The list that is coming in, by namespace and name.
    listing: Option<BTreeMap<(String, String), Pod>>,
    /// When to begin another.
    ends: Instant,
    /// A pod that cannot be read is told of once.
    complained: bool,
}

/// Why there is no watch.
struct Trouble {
    sentence: String,
    /// This kubelet will not serve it.
    unserved: bool,
}

impl Trouble {
    fn passing(sentence: String) -> Self {
        Self { sentence, unserved: false }
    }
}

impl Follow {
    async fn next(&mut self) -> Result<PodEvent, String> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Err(trouble) = self.hear().await {
                return Err(self.fail(trouble));
            }
        }
    }

    /// Hears one thing, be it that there is nothing to hear.
    async fn hear(&mut self) -> Result<(), Trouble> {
        let Some(watch) = &mut self.watch else {
            sleep_until(self.not_before).await;
            self.watch = Some(self.begin(None).await?);
            return Ok(());
        };
        if let Some(pod) = self.deleted.pop_front() {
            let channel = watch.channel.clone();
            self.look_after(pod, channel).await;
            return Ok(());
        }
        let listing = watch.listing.is_some();
        let limit = match listing {
            true => Instant::now() + if self.marks { self.deadline } else { SILENCE },
            false => watch.ends,
        };
        let path = self.socket.display();
        match timeout_at(limit, watch.told.message()).await {
            Ok(Ok(Some(event))) => self.take(event),
            Ok(Ok(None)) => {
                return Err(Trouble::passing(format!("the kubelet at {path} ended the watch of its pods")));
            }
            Ok(Err(status)) => return Err(explain(&self.socket, &status)),
            Err(_) if listing && self.marks => {
                let limit = self.deadline;
                return Err(Trouble::passing(format!(
                    "the kubelet at {path} did not go on with the list of its pods within {limit:?}"
                )));
            }
            Err(_) if listing => self.complete(),
            Err(_) => self.begin_anew().await?,
        }
        Ok(())
    }

    /// The list is complete.
    fn complete(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let Some(listed) = watch.listing.take() else { return };
        self.failures = 0;
        let pods: Vec<Pod> = listed.into_values().collect();
        if pods.iter().any(|pod| pod.life == Life::Ended) {
            watch.hurry();
        }
        let grown_up = !self.belief.knows_any() && age(watch.identity) > GROWN_UP;
        let known = self.known == Some(watch.identity) || grown_up;
        let teller = if known { Teller::Known } else { Teller::Young };
        self.events.extend(self.belief.take(pods, teller, Instant::now()));
        if self.belief.doubts() {
            watch.ends = Instant::now() + SOON;
        } else {
            self.known = Some(watch.identity);
        }
    }

    fn take(&mut self, event: WatchPodsEvent) {
        let Some(watch) = &mut self.watch else { return };
        let kind = event.r#type();
        if kind == EventType::InitialSyncComplete {
            self.marks = true;
            return self.complete();
        }
        let pod = match decode_pod(&event.pod) {
            Ok(pod) => pod.keeping(&self.wanted),
            Err(reason) => return watch.complain(&self.socket, &reason),
        };
        match (kind, &mut watch.listing) {
            // Which of the two it is says nothing: the first word of a new pod may be that it was modified.
            (EventType::Added | EventType::Modified, Some(listing)) => {
                listing.insert(pod.full_name(), pod);
            }
            (EventType::Added | EventType::Modified, None) => self.is_there(pod),
            (EventType::Deleted, Some(listing)) => {
                listing.remove(&pod.full_name());
            }
            (EventType::Deleted, None) => self.deleted.push_back(pod),
            (EventType::Unspecified | EventType::InitialSyncComplete, _) => {
                debug!("the kubelet tells of a pod in a way that we do not know");
            }
        }
    }

    /// Looks what has become of a pod that was said to be deleted: kubelets say so when no container of it will ever run
    /// again, though its object may live on, Succeeded or Failed (seen with 1.36).
    async fn look_after(&mut self, pod: Pod, channel: Channel) {
        let mut client = PodsClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        let request = GetPodRequest { pod_uid: pod.uid.clone() };
        let answer = timeout(self.deadline, client.get_pod(request)).await;
        let left = answer.ok().and_then(Result::ok).and_then(|pod| decode_pod(&pod.into_inner().pod).ok());
        match left {
            Some(left) => self.is_there(left.keeping(&self.wanted)),
            None => self.is_gone(pod),
        }
    }

    fn is_there(&mut self, pod: Pod) {
        if let Some(watch) = &mut self.watch
            && pod.life == Life::Ended
        {
            watch.hurry();
        }
        self.belief.is(&pod);
        self.events.push_back(PodEvent::Is(pod));
    }

    fn is_gone(&mut self, pod: Pod) {
        self.belief.gone(&pod);
        self.events.push_back(PodEvent::Gone(pod));
    }

    /// Another watch on the same connection, unless another kubelet has taken the place.
    async fn begin_anew(&mut self) -> Result<(), Trouble> {
        let old = self.watch.take().map(|watch| (watch.channel, watch.identity));
        let same = |(_, known): &(Channel, Identity)| identity(&self.socket).is_ok_and(|now| now == *known);
        self.watch = Some(self.begin(old.filter(same)).await?);
        Ok(())
    }

    async fn begin(&self, connection: Option<(Channel, Identity)>) -> Result<Watch, Trouble> {
        let (channel, identity) = match connection {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut client = PodsClient::new(channel.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        // The kubelet's answer begins with the first pod, or with the end of an empty list.
        match timeout(self.deadline, client.watch_pods(WatchPodsRequest {})).await {
            Ok(Ok(events)) => Ok(Watch {
                channel,
                identity,
                told: events.into_inner(),
                listing: Some(BTreeMap::new()),
                ends: Instant::now() + jittered(ANEW),
                complained: false,
            }),
            Ok(Err(status)) => Err(explain(&self.socket, &status)),
            Err(_) => Err(Trouble::passing(format!(
                "the kubelet did not answer WatchPods on {} within {:?}",
                self.socket.display(),
                self.deadline
            ))),
        }
    }

    async fn connect(&self) -> Result<(Channel, Identity), Trouble> {
        let identity = identity(&self.socket).map_err(|error| unreached(&self.socket, &error))?;
        let stream = timeout(self.deadline, UnixStream::connect(&self.socket))
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
            .map_err(|error| unreached(&self.socket, &error))?;
        let channel = timeout(self.deadline, channel(stream)).await;
        match channel {
            Ok(Ok(channel)) => Ok((channel, identity)),
            Ok(Err(error)) => Err(no_grpc(&self.socket, &innermost(&error))),
            Err(_) => Err(no_grpc(&self.socket, "it says nothing")),
        }
    }

    /// Ends the watch and says when to try again.
    fn fail(&mut self, trouble: Trouble) -> String {
        self.watch = None;
        while let Some(pod) = self.deleted.pop_front() {
            self.is_gone(pod);
        }
        let wait = match trouble.unserved {
            true => jittered(UNSERVED),
            false => back_off(&mut self.failures, RETRY, RETRY_LIMIT),
        };
        self.not_before = Instant::now() + wait;
        trouble.sentence
    }
}

impl Watch {
    /// It is listened to for a shorter time.
    fn hurry(&mut self) {
        self.ends = self.ends.min(Instant::now() + jittered(ANEW_AFTER_END));
    }

    /// One pod that cannot be read must not cost us the others.
    fn complain(&mut self, socket: &Path, reason: &str) {
        if !self.complained {
            warn!(
                "a pod that the kubelet tells of on {} cannot be read and is left out: {reason}",
                socket.display()
            );
            self.complained = true;
        }
    }
}

/// Why nobody can be connected to.
fn unreached(socket: &Path, error: &io::Error) -> Trouble {
    let path = socket.display();
    match error.kind() {
        // A kubelet that has just started has made its directory and not yet its socket.
        io::ErrorKind::NotFound => Trouble {
            sentence: format!(
                "there is no Pods API socket at {path}: kubelets serve it from 1.36 on (there with the feature gate \
                 PodsAPI); is `kubelet.podsSocket` right?"
            ),
            unserved: socket.parent().is_none_or(|directory| !directory.is_dir()),
        },
        io::ErrorKind::ConnectionRefused => Trouble::passing(format!(
            "nobody listens on {path}: the kubelet is not running, is just starting, or no longer serves its Pods API"
        )),
        _ => Trouble::passing(format!("cannot connect to {path}: {error}")),
    }
}

fn no_grpc(socket: &Path, reason: &str) -> Trouble {
    let path = socket.display();
    Trouble::passing(format!(
        "{path} is a socket, but no gRPC server answers on it ({reason}); is `kubelet.podsSocket` right?"
    ))
}

/// What a status means for us.
fn explain(socket: &Path, status: &Status) -> Trouble {
    use std::error::Error as _;
    let path = socket.display();
    let message: String = status.message().chars().take(300).collect();
    match status.code() {
        Code::Unimplemented => Trouble {
            sentence: format!("the kubelet at {path} does not serve the Pods API ({message})"),
            unserved: true,
        },
        Code::FailedPrecondition => {
            Trouble::passing(format!("the kubelet at {path} cannot tell its pods yet: {message}"))
        }
        Code::ResourceExhausted => Trouble::passing(format!(
            "the kubelet at {path} ended the watch of its pods, for we were too slow or it has too many clients: {message}"
        )),
        _ if status.source().is_some() => Trouble::passing(format!(
            "the connection to the kubelet at {path} broke during WatchPods: {}",
            innermost(status)
        )),
        code => {
            Trouble::passing(format!("the kubelet at {path} answered WatchPods with {code:?}: {message}"))
        }
    }
}
