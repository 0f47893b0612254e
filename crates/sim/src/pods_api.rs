//! A simulated Pods API of a kubelet (KEP-4188), with faults that real ones do not show on demand.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::Stream;
use numacast_core::core_v1::proto as core;
use prost::Message;
use prost::bytes::Bytes;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::serve::Serving;
use crate::proto::pods::pods_server::{Pods, PodsServer};
use crate::proto::pods::{
    EventType, GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent,
    WatchPodsRequest,
};
use crate::sync::lock;

type WatchResult = Result<WatchPodsEvent, Status>;

/// A simulated Pods API. Dropping it is like a kubelet crash: the socket stays, but nothing listens on it.
#[derive(Debug)]
pub struct SimPodsApi {
    path: PathBuf,
    shared: Arc<Mutex<State>>,
    serving: Option<Serving>,
}

#[derive(Debug, Default)]
struct State {
    /// By UID, which is the order of `ListPods`.
    pods: BTreeMap<String, Bytes>,
    watchers: Vec<mpsc::UnboundedSender<WatchResult>>,
    /// Number of calls of WatchPods.
    watch_calls: usize,
    /// Whether the end of the initial list is not marked.
    no_sync_marker: bool,
    /// Number of pods after which the initial events of a watch stop.
    stalls_after: Option<usize>,
    /// The status of every call.
    error: Option<Status>,
}

impl State {
    fn send(&mut self, result: &WatchResult) {
        self.watchers.retain(|watcher| watcher.send(result.clone()).is_ok());
    }
}

fn event(kind: EventType, pod: Bytes) -> WatchPodsEvent {
    WatchPodsEvent { r#type: kind.into(), pod }
}

fn uid(pod: &core::Pod) -> String {
    pod.metadata.clone().unwrap_or_default().uid
}

impl SimPodsApi {
    /// Listens at `path`, without pods.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub fn start(path: PathBuf) -> io::Result<Self> {
        let mut api = Self { path, shared: Arc::default(), serving: None };
        api.restart()?;
        Ok(api)
    }

    /// Restarts the kubelet: all connections are closed, and there is a new socket at the path. Pods stay.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop();
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&self.path)?;
        let routes = Routes::new(PodsServer::new(Service(Arc::clone(&self.shared)))).into_axum_router();
        self.serving = Some(Serving::start(listener, routes));
        Ok(())
    }

    /// Stops the kubelet; its socket file stays.
    pub fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.control.cut_connections();
        }
        lock(&self.shared).watchers.clear();
    }

    /// Adds or changes a pod and sends an event to all watchers. As on a real kubelet, the first event of a
    /// new pod may be `Modified`.
    pub fn set(&self, pod: &core::Pod) {
        self.set_silently(pod);
        let event = event(EventType::Modified, pod.encode_to_vec().into());
        lock(&self.shared).send(&Ok(event));
    }

    /// Like [`SimPodsApi::set`], but without the event.
    pub fn set_silently(&self, pod: &core::Pod) {
        lock(&self.shared).pods.insert(uid(pod), pod.encode_to_vec().into());
    }

    /// Like [`SimPodsApi::set`], with an encoded pod.
    pub fn set_encoded(&self, uid: &str, pod: Vec<u8>) {
        let pod = Bytes::from(pod);
        let mut state = lock(&self.shared);
        state.pods.insert(uid.to_owned(), pod.clone());
        state.send(&Ok(event(EventType::Modified, pod)));
    }

    /// Removes a pod and sends an event to all watchers.
    pub fn remove(&self, pod: &core::Pod) {
        self.remove_silently(pod);
        let metadata = pod.metadata.clone().unwrap_or_default();
        let core::ObjectMeta { name, namespace, uid, .. } = metadata;
        let metadata = core::ObjectMeta { name, namespace, uid, ..core::ObjectMeta::default() };
        let pod = core::Pod { metadata: Some(metadata), ..core::Pod::default() };
        lock(&self.shared).send(&Ok(event(EventType::Deleted, pod.encode_to_vec().into())));
    }

    /// Marks a pod as terminated: kubelets of 1.36 send a `Deleted` event then, but keep the object and send
    /// no event when that is removed.
    pub fn finish(&self, pod: &core::Pod) {
        self.remove(pod);
        self.set_silently(pod);
    }

    /// Like [`SimPodsApi::remove`], but without the event.
    pub fn remove_silently(&self, pod: &core::Pod) {
        lock(&self.shared).pods.remove(&uid(pod));
    }

    /// Sends any event to all watchers.
    pub fn send_event(&self, kind: i32, pod: Vec<u8>) {
        lock(&self.shared).send(&Ok(WatchPodsEvent { r#type: kind, pod: pod.into() }));
    }

    /// Ends all watches with the error for clients that are too slow.
    pub fn end_watches(&self) {
        let mut state = lock(&self.shared);
        state.send(&Err(Status::resource_exhausted("watch client channel closed")));
        state.watchers.clear();
    }

    /// Closes all connections, without any other effect.
    pub fn cut_connections(&self) {
        if let Some(serving) = &self.serving {
            serving.control.cut_connections();
        }
    }

    /// Sets whether watches mark the end of the initial list.
    pub fn set_sync_marker(&self, marks: bool) {
        lock(&self.shared).no_sync_marker = !marks;
    }

    /// Sets the number of pods after which the initial list of new watches stalls.
    pub fn stall_after(&self, pods: Option<usize>) {
        lock(&self.shared).stalls_after = pods;
    }

    /// Sets a status with which every call fails, or none.
    pub fn fail_with(&self, status: Option<Status>) {
        lock(&self.shared).error = status;
    }

    /// Number of open watches.
    #[must_use]
    pub fn open_watches(&self) -> usize {
        let mut state = lock(&self.shared);
        state.watchers.retain(|watcher| !watcher.is_closed());
        state.watchers.len()
    }

    /// Number of calls of WatchPods.
    #[must_use]
    pub fn watch_calls(&self) -> usize {
        lock(&self.shared).watch_calls
    }
}

#[derive(Clone, Debug)]
struct Service(Arc<Mutex<State>>);

#[tonic::async_trait]
impl Pods for Service {
    type WatchPodsStream = std::pin::Pin<Box<dyn Stream<Item = WatchResult> + Send>>;

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<ListPodsResponse>, Status> {
        let state = lock(&self.0);
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(Response::new(ListPodsResponse { pods: state.pods.values().cloned().collect() })),
        }
    }

    async fn get_pod(&self, request: Request<GetPodRequest>) -> Result<Response<GetPodResponse>, Status> {
        let state = lock(&self.0);
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let uid = request.into_inner().pod_uid;
        match state.pods.get(&uid) {
            Some(pod) => Ok(Response::new(GetPodResponse { pod: pod.clone() })),
            None => Err(Status::not_found(format!("pod with UID {uid} not found"))),
        }
    }

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let mut state = lock(&self.0);
        state.watch_calls += 1;
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let (sender, mut events) = mpsc::unbounded_channel();
        let max = state.stalls_after.unwrap_or(usize::MAX);
        for pod in state.pods.values().take(max) {
            // Cannot fail: the receiver still exists.
            let _ = sender.send(Ok(event(EventType::Added, pod.clone())));
        }
        if state.stalls_after.is_none() && !state.no_sync_marker {
            let _ = sender.send(Ok(event(EventType::InitialSyncComplete, Bytes::new())));
        }
        state.watchers.push(sender);
        let next = futures::stream::poll_fn(move |context| events.poll_recv(context));
        Ok(Response::new(Box::pin(next)))
    }
}
