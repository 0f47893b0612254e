//! A simulated kubelet, a shared client for it, and a record of its calls.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use numacast::kubelet::{
    Caller, ClientError, Observer, Request, RequestError, SharedClient, SharedResponse, decode_list,
};
use numacast_sim::kubelet::{Call, Fault, KubeletVersion, Options, PodSpec};
use tokio::time::Instant;
use tonic::Code;

use crate::support::{Node, with_frozen_clock};

pub(super) type Outcome = Result<Arc<SharedResponse>, RequestError>;

/// The proxy's timeout for the kubelet: below its clients' deadlines.
pub(super) const TIMEOUT: Duration = Duration::from_secs(4);

/// Records the calls that ended.
#[derive(Debug, Default)]
pub(super) struct CallLog(Mutex<Vec<EndedCall>>);

#[derive(Debug)]
struct EndedCall {
    time: Range<Instant>,
    /// The kind of its error.
    error: Option<&'static str>,
}

impl CallLog {
    pub(super) fn observer(self: &Arc<Self>) -> Observer {
        let log = Arc::clone(self);
        Arc::new(move |_, took, error| {
            let (now, error) = (Instant::now(), error.map(ClientError::kind));
            log.0.lock().unwrap().push(EndedCall { time: now - took..now, error });
        })
    }

    /// Returns the maximum number of calls that were in flight together.
    pub(super) fn max_in_flight(&self) -> usize {
        let calls = self.0.lock().unwrap();
        let in_flight = |at: &Instant| calls.iter().filter(|call| call.time.contains(at)).count();
        calls.iter().map(|call| in_flight(&call.time.start)).max().unwrap_or_default()
    }

    /// Returns the kinds of all errors.
    pub(super) fn errors(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().filter_map(|call| call.error).collect()
    }
}

/// A simulated kubelet and a shared client for it.
pub(super) struct Fixture {
    pub(super) node: Node,
    pub(super) client: SharedClient,
    pub(super) log: Arc<CallLog>,
}

impl Fixture {
    pub(super) fn start() -> Self {
        Self::with(Options { limited: false, ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let (node, log) = (Node::with(options), Arc::new(CallLog::default()));
        // Starts the recording of calls.
        node.kubelet.traffic();
        let client = SharedClient::start(node.kubelet.socket(), TIMEOUT, log.observer());
        Self { node, client, log }
    }

    pub(super) fn with_version(version: KubeletVersion) -> Self {
        Self::with(Options { version, limited: false, ..Options::default() })
    }

    pub(super) async fn request(&self, request: Request) -> Outcome {
        self.client.request(request, Caller::Proxy).await
    }

    /// Sends the requests concurrently and returns the responses.
    pub(super) async fn request_all(&self, requests: impl IntoIterator<Item = Request>) -> Vec<Outcome> {
        join_all(requests.into_iter().map(|request| self.request(request))).await
    }

    pub(super) async fn start_pods(&self, pods: &[&str]) {
        for name in pods {
            self.node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
        }
    }

    /// Starts a List to which the kubelet responds after `delay`. The returned future waits for the response.
    pub(super) async fn start_slow_list(&self, delay: Duration) -> impl Future<Output = ()> + use<> {
        self.node.kubelet.fail_next(Call::List, 1, &Fault::Delay(delay));
        let client = self.client.clone();
        let first = tokio::spawn(async move { client.request(Request::List, Caller::Proxy).await.map(drop) });
        with_frozen_clock(async {
            while self.node.kubelet.traffic().calls.is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        async move { first.await.unwrap().unwrap() }
    }

    /// Returns the calls to the kubelet so far, such as `v1 List`.
    pub(super) fn paths(&self) -> Vec<String> {
        let calls = self.node.kubelet.traffic().calls;
        calls
            .into_iter()
            .map(|(path, _)| path.replace(".PodResourcesLister/", " ").replacen('/', "", 1))
            .collect()
    }
}

pub(super) fn get(name: &str) -> Request {
    Request::Get { namespace: "default".to_owned(), name: name.to_owned() }
}

/// Returns the sorted pod names. A Get response is a List of one pod.
pub(super) fn names(response: &SharedResponse) -> Vec<String> {
    let mut names: Vec<_> =
        decode_list(response.bytes.clone()).unwrap().pods.into_iter().map(|pod| pod.name).collect();
    names.sort();
    names
}

#[track_caller]
pub(super) fn assert_not_found(result: Outcome, name: &str) {
    let status = result.unwrap_err().status;
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(status.message(), format!("pod {name} in namespace default not found"));
}

/// Returns the largest number of calls in any one second.
pub(super) fn busiest_second(calls: &[Instant]) -> usize {
    let second = Duration::from_secs(1);
    let within = |from: &Instant| calls.iter().filter(|at| (*from..*from + second).contains(*at)).count();
    calls.iter().map(within).max().unwrap_or_default()
}
