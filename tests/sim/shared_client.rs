//! One connection shared by many callers, against every kind of kubelet response.

mod schedules;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use numacast::kubelet::proto::v1;
use numacast::kubelet::{
    Caller, ClientError, FinishedCall, Observer, Request, RequestError, SharedClient, SharedResponse, decode_list,
};
use numacast::sim::kubelet::{KubeletVersion, Call, Fault, Options, PodSpec};
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use crate::support::SimNode;

/// The proxy's timeout for the kubelet: below its clients' deadlines.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Records calls.
#[derive(Debug, Default)]
struct CallLog(Mutex<Calls>);

#[derive(Clone, Debug, Default)]
struct Calls {
    /// Maximum number of concurrent calls.
    max_in_flight: usize,
    /// For each response, the number of callers that shared it.
    shared_by: Vec<(Request, usize)>,
    /// Number of errors by kind.
    errors: BTreeMap<&'static str, usize>,
}

impl CallLog {
    fn calls(&self) -> Calls {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for CallLog {
    fn started(&self, _: &Request, in_flight: usize) {
        let mut calls = self.0.lock().unwrap();
        calls.max_in_flight = calls.max_in_flight.max(in_flight);
    }

    fn finished(&self, call: &FinishedCall<'_>) {
        let mut calls = self.0.lock().unwrap();
        match call.error {
            None => calls.shared_by.push((call.request.clone(), call.shared_by)),
            Some(error) => *calls.errors.entry(error.kind()).or_default() += 1,
        }
    }
}

struct Fixture {
    node: SimNode,
    client: SharedClient,
    log: Arc<CallLog>,
}

impl Fixture {
    fn start() -> Self {
        Self::with(Options { limited: false, ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let (node, log) = (SimNode::with(options), Arc::new(CallLog::default()));
        node.kubelet.traffic();
        let client = SharedClient::start(node.kubelet.socket(), TIMEOUT, log.clone());
        Self { node, client, log }
    }

    fn aged(age: KubeletVersion) -> Self {
        Self::with(Options { age, limited: false, ..Options::default() })
    }

    async fn request(&self, request: Request) -> Result<Arc<SharedResponse>, RequestError> {
        self.client.request(request, Caller::Proxy).await
    }

    /// Sends the requests concurrently and returns the responses.
    async fn request_all(&self, requests: impl IntoIterator<Item = Request>) -> Vec<Result<Arc<SharedResponse>, RequestError>> {
        join_all(requests.into_iter().map(|request| self.request(request))).await
    }

    async fn run(&self, pods: &[&str]) {
        for name in pods {
            self.node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
        }
    }

    /// Starts a List to which the kubelet responds after `delay`. The returned future waits for the response.
    async fn busy(&self, delay: Duration) -> impl Future<Output = ()> + use<> {
        self.node.kubelet.fail_next(Call::List, 1, &Fault::Delay(delay));
        let client = self.client.clone();
        let first = tokio::spawn(async move { client.request(Request::List, Caller::Proxy).await.map(drop) });
        while self.node.kubelet.traffic().calls.is_empty() {
            tokio::task::yield_now().await;
        }
        async move { first.await.unwrap().unwrap() }
    }

    fn paths(&self) -> Vec<String> {
        let calls = self.node.kubelet.traffic().calls;
        calls
            .into_iter()
            .map(|(path, _)| path.replace(".PodResourcesLister/", " ").replacen('/', "", 1))
            .collect()
    }
}

fn get(name: &str) -> Request {
    Request::Get { namespace: "default".to_owned(), name: name.to_owned() }
}

/// Returns the sorted pod names. A Get response is a List of one pod.
fn names(response: &SharedResponse) -> Vec<String> {
    let mut names: Vec<_> =
        decode_list(response.bytes.clone()).unwrap().pods.into_iter().map(|pod| pod.name).collect();
    names.sort();
    names
}

#[track_caller]
fn assert_not_found(result: Result<Arc<SharedResponse>, RequestError>, name: &str) {
    let status = result.unwrap_err().status;
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(status.message(), format!("pod {name} in namespace default not found"));
}

#[tokio::test]
async fn every_request_has_its_response() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    assert_eq!(names(&fixture.request(Request::List).await.unwrap()), ["a"]);
    assert_eq!(names(&fixture.request(get("a")).await.unwrap()), ["a"]);
    assert_eq!(names(&fixture.request(Request::ListV1alpha1).await.unwrap()), ["a"]);
    assert!(!fixture.request(Request::Allocatable).await.unwrap().bytes.is_empty());
    assert_not_found(fixture.request(get("b")).await, "b");
    let expected = ["v1 List", "v1 Get", "v1alpha1 List", "v1 GetAllocatableResources", "v1 Get"];
    assert_eq!(fixture.paths(), expected);
}

#[tokio::test(start_paused = true)]
async fn requests_during_a_call_share_the_next_one() {
    let fixture = Fixture::start();
    let busy = fixture.busy(Duration::from_millis(50)).await;
    // The running call started before this pod existed.
    fixture.run(&["new"]).await;
    let responses: Vec<_> = fixture.request_all(vec![Request::List; 200]).await.into_iter().map(Result::unwrap).collect();
    busy.await;
    assert!(responses.iter().all(|response| Arc::ptr_eq(response, &responses[0])));
    assert_eq!(names(&responses[0]), ["new"]);
    assert_eq!(fixture.paths(), ["v1 List"; 2]);
    assert_eq!(fixture.log.calls().shared_by, [(Request::List, 1), (Request::List, 200)]);
}

#[tokio::test(start_paused = true)]
async fn lanes_do_not_wait_for_each_other() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    let busy = fixture.busy(Duration::from_secs(3)).await;
    let start = Instant::now();
    let requests = [get("a"), Request::Allocatable, Request::ListV1alpha1, get("a")];
    fixture.request_all(requests).await.into_iter().for_each(|result| drop(result.unwrap()));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    busy.await;
    let traffic = fixture.node.kubelet.traffic();
    assert_eq!((traffic.calls.len(), traffic.max_concurrent_total), (4, 2));
    assert_eq!(fixture.log.calls().max_in_flight, 2);
}

#[tokio::test(start_paused = true)]
async fn several_pods_at_once_cost_one_list() {
    let fixture = Fixture::start();
    fixture.run(&["a", "b", "c"]).await;
    let results = fixture.request_all(["a", "b", "nobody", "c", "a"].map(get)).await;
    let mut found = Vec::new();
    for (name, result) in ["a", "b", "nobody", "c", "a"].iter().zip(results) {
        match *name {
            "nobody" => assert_not_found(result, "nobody"),
            name => {
                assert_eq!(names(result.as_ref().unwrap()), [name]);
                found.push(result.unwrap());
            }
        }
    }
    assert!(Arc::ptr_eq(&found[0], &found[3]), "identical requests share the response");
    // Only the kubelet knows for certain that the pod does not exist.
    assert_eq!(fixture.paths(), ["v1 List", "v1 Get"]);
    assert_eq!(fixture.log.calls().shared_by, [(Request::List, 4)]);
}

/// Runs 256 callers that keep requesting pods that do not exist.
async fn request_unknown_pods(client: SharedClient) {
    join_all((0..256).map(async |caller| {
        for count in 0.. {
            let _ = client.request(get(&format!("nobody-{caller}-{count}")), Caller::Proxy).await;
        }
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_for_unknown_pods_do_not_delay_the_others() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    let flood = tokio::spawn(request_unknown_pods(fixture.client.clone()));
    sleep(Duration::from_secs(10)).await;
    let (before, begun) = (fixture.paths().len(), Instant::now());
    while begun.elapsed() < Duration::from_secs(20) {
        for request in [Request::List, Request::Allocatable, Request::ListV1alpha1, get("a")] {
            let start = Instant::now();
            fixture.request(request.clone()).await.unwrap();
            let took = start.elapsed();
            assert!(took < Duration::from_secs(1), "{request:?} took {took:?}");
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    flood.abort();
    let paths = fixture.paths().split_off(before);
    let gets = paths.iter().filter(|path| *path == "v1 Get").count() as f64;
    let calls = paths.len() as f64;
    assert!(calls <= 25.0 * seconds + 5.0, "{calls} calls in {seconds} s");
    // Gets for pods that do not exist, and the test's own.
    assert!(gets <= 5.0 * seconds + 5.0 + seconds * 25.0 / 4.0, "{gets} calls of Get in {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn an_impossible_name_is_not_requested() {
    let fixture = Fixture::start();
    let most = "x".repeat(253);
    assert_not_found(fixture.request(get(&most)).await, &most);
    assert_eq!(fixture.paths(), ["v1 Get"]);
    let error = fixture.request(get(&"ü".repeat(1 << 20))).await;
    assert_not_found(error, &format!("{}...", "ü".repeat(126)));
    let request = Request::Get { namespace: "y".repeat(4 << 20), name: "a".to_owned() };
    let error = fixture.request(request).await.unwrap_err();
    let expected = format!("pod a in namespace {}... not found", "y".repeat(253));
    assert_eq!((error.status.code(), error.status.message()), (Code::Unknown, &*expected));
    assert_eq!(fixture.paths(), ["v1 Get"]);
}

#[tokio::test(start_paused = true)]
async fn without_get_pods_are_looked_up_in_a_list() {
    for (age, said) in [(KubeletVersion::V1_29, 1), (KubeletVersion::V1_23, 1)] {
        let fixture = Fixture::aged(age);
        fixture.run(&["a"]).await;
        assert_eq!(names(&fixture.request(get("a")).await.unwrap()), ["a"]);
        assert_not_found(fixture.request(get("b")).await, "b");
        assert_eq!(names(&fixture.request(get("a")).await.unwrap()), ["a"]);
        let gets = |fixture: &Fixture| fixture.paths().iter().filter(|path| *path == "v1 Get").count();
        assert_eq!(gets(&fixture), said, "it is remembered: {:?}", fixture.paths());
        // Another kubelet may support Get.
        fixture.node.kubelet.set_version(KubeletVersion::V1_34);
        fixture.node.kubelet.restart().await.unwrap();
        fixture.request(Request::List).await.unwrap();
        assert_eq!(names(&fixture.request(get("a")).await.unwrap()), ["a"]);
        assert_not_found(fixture.request(get("b")).await, "b");
        assert_eq!(gets(&fixture), said + 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_kubelet_is_called_without_get() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    fixture.request(get("a")).await.unwrap();
    fixture.node.kubelet.set_version(KubeletVersion::V1_29);
    fixture.node.kubelet.restart().await.unwrap();
    let results = fixture.request_all(["a", "b"].map(get)).await;
    let [found, missing] = results.try_into().unwrap();
    assert_eq!(names(&found.unwrap()), ["a"]);
    assert_not_found(missing, "b");
}

#[tokio::test(start_paused = true)]
async fn abandoned_requests_leave_nothing_behind() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    let busy = fixture.busy(Duration::from_secs(2)).await;
    // Their callers have left by the time these calls could start.
    for request in [Request::List, get("a"), Request::Allocatable] {
        let _ = futures::poll!(std::pin::pin!(fixture.request(request)));
    }
    assert!(timeout(Duration::from_secs(1), fixture.request(Request::List)).await.is_err());
    busy.await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.paths(), ["v1 List"]);
    // A call continues while any caller waits for it, even if the first one left.
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Delay(Duration::from_secs(2)));
    let first = timeout(Duration::from_secs(1), fixture.request(Request::List));
    let (first, second) = tokio::join!(first, fixture.request(Request::List));
    assert!(first.is_err());
    assert_eq!(names(&second.unwrap()), ["a"]);
    assert_eq!(fixture.paths(), ["v1 List"; 2]);
    // A caller that arrives during an abandoned call still waits for the next one.
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Late(Duration::from_secs(2)));
    assert!(timeout(Duration::from_secs(1), fixture.request(Request::List)).await.is_err());
    fixture.run(&["b"]).await;
    assert_eq!(names(&fixture.request(Request::List).await.unwrap()), ["a", "b"]);
    assert_eq!(fixture.node.kubelet.traffic().max_concurrent["/v1.PodResourcesLister/List"], 1);
}

#[tokio::test(start_paused = true)]
async fn the_last_dropped_handle_ends_the_task() {
    let fixture = Fixture::start();
    fixture.request(Request::List).await.unwrap();
    let other = fixture.client.clone();
    drop(fixture.client);
    other.request(Request::List, Caller::Agent).await.unwrap();
    assert_eq!(Arc::strong_count(&fixture.log), 2);
    drop(other);
    while Arc::strong_count(&fixture.log) > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn rejections_by_the_rate_limiter_are_retried() {
    let fixture = Fixture::start();
    fixture.run(&["a", "b"]).await;
    let limited = Fault::Status(Code::ResourceExhausted, "rejected by rate limit".into());
    for call in [Call::List, Call::Get, Call::Allocatable] {
        fixture.node.kubelet.fail_next(call, 3, &limited);
    }
    let requests = [Request::List, get("a"), Request::Allocatable, Request::ListV1alpha1];
    fixture.request_all(requests).await.into_iter().for_each(|result| drop(result.unwrap()));
    assert_eq!(fixture.log.calls().errors["rate_limited"], 9);

    // The agent handles rate limiting itself, so it gets the error.
    fixture.node.kubelet.fail_next(Call::List, 1, &limited);
    let error = fixture.client.request(Request::List, Caller::Agent).await.unwrap_err();
    assert_eq!(error.error, ClientError::RateLimited("List"));

    // A limiter that keeps rejecting is reported at the deadline, not earlier.
    fixture.node.kubelet.fail_next(Call::List, 1000, &limited);
    let start = Instant::now();
    let error = fixture.request(Request::List).await.unwrap_err();
    assert!(start.elapsed() <= TIMEOUT && start.elapsed() > TIMEOUT - Duration::from_secs(1));
    assert_eq!(error.status.code(), Code::ResourceExhausted);
    assert_eq!(error.status.message(), "rejected by rate limit");
    let tried = fixture.node.kubelet.traffic().calls.len();
    assert!(tried < 40, "{tried} calls");

    // Nine rejections leave time for another attempt.
    fixture.node.kubelet.clear_faults();
    fixture.node.kubelet.fail_next(Call::List, 9, &limited);
    fixture.request(Request::List).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_kubelets_status_is_passed_on_unchanged() {
    let fixture = Fixture::start();
    let text = "the disk is on fire\n".repeat(100);
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Status(Code::Internal, text.clone()));
    let error = fixture.request(Request::List).await.unwrap_err();
    assert_eq!((error.status.code(), error.status.message()), (Code::Internal, &*text));
    for (age, code, message) in [
        (
            KubeletVersion::V1_20,
            Code::Unimplemented,
            "unknown method GetAllocatableResources for service v1.PodResourcesLister",
        ),
        (KubeletVersion::OnlyV1alpha1, Code::Unimplemented, "unknown service v1.PodResourcesLister"),
    ] {
        fixture.node.kubelet.set_version(age);
        let error = fixture.request(Request::Allocatable).await.unwrap_err();
        assert_eq!((error.status.code(), error.status.message()), (code, message));
    }
    fixture.node.kubelet.set_version(KubeletVersion::V1_34);
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Oversize(17 << 20));
    let error = fixture.request(Request::List).await.unwrap_err();
    assert_eq!(error.status.code(), Code::ResourceExhausted);
    assert!(error.status.message().starts_with("the kubelet's answer to List is too large"));
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Oversize(5 << 20));
    assert!(fixture.request(Request::List).await.unwrap().bytes.len() > 5 << 20);
}

/// Encodes a message followed by an unknown field.
fn with_unknown(message: &impl Message) -> Vec<u8> {
    [&message.encode_to_vec()[..], &[0xfa, 0x3f, 3, b'n', b'e', b'w']].concat()
}

/// Encodes a record as field number 1.
fn wrapped(record: &[u8]) -> Vec<u8> {
    [&[0x0a, u8::try_from(record.len()).unwrap()], record].concat()
}

#[tokio::test(start_paused = true)]
async fn every_byte_of_a_response_is_passed_on() {
    let fixture = Fixture::start();
    let container = v1::ContainerResources { name: "main".into(), ..Default::default() };
    let pod = |name: &str| {
        let named = v1::PodResources { name: name.into(), namespace: "default".into(), ..Default::default() };
        let mut record = with_unknown(&named);
        let container = with_unknown(&container);
        record.extend([0x1a, u8::try_from(container.len()).unwrap()]);
        record.extend(container);
        record
    };
    let (a, b) = (wrapped(&pod("a")), wrapped(&pod("b")));
    let list = [&b[..], &a, &with_unknown(&v1::ListPodResourcesResponse::default())].concat();
    let bytes = |call, bytes: &[u8]| fixture.node.kubelet.fail_next(call, 1, &Fault::Message(bytes.to_vec()));
    bytes(Call::List, &list);
    assert_eq!(fixture.request(Request::List).await.unwrap().bytes, list);
    bytes(Call::Get, &a);
    assert_eq!(fixture.request(get("a")).await.unwrap().bytes, a);
    bytes(Call::List, &list);
    let results = fixture.request_all(["a", "b"].map(get)).await;
    let results: Vec<_> = results.into_iter().map(|result| result.unwrap().bytes.clone()).collect();
    assert_eq!(results, [a, b]);
    let allocatable = with_unknown(&v1::AllocatableResourcesResponse::default());
    bytes(Call::Allocatable, &allocatable);
    assert_eq!(fixture.request(Request::Allocatable).await.unwrap().bytes, allocatable);
    // Responses are passed on without being decoded.
    bytes(Call::List, b"no message at all");
    assert_eq!(fixture.request(Request::List).await.unwrap().bytes, &b"no message at all"[..]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_retried_once() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    fixture.request(Request::List).await.unwrap();
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::CutShort);
    assert_eq!(names(&fixture.request(Request::List).await.unwrap()), ["a"]);
    fixture.node.kubelet.fail_next(Call::List, 2, &Fault::CutShort);
    let error = fixture.request(Request::List).await.unwrap_err();
    assert_eq!(error.status.code(), Code::Unavailable);
    assert!(error.status.message().starts_with("the kubelet's connection broke during List"), "{error:?}");
    assert_eq!(names(&fixture.request(Request::List).await.unwrap()), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_kubelet_is_unavailable_at_once_at_a_limited_rate() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    fixture.request(Request::List).await.unwrap();
    fixture.node.kubelet.stop();
    let start = Instant::now();
    let mut refused = 0;
    while start.elapsed() < Duration::from_secs(10) {
        let requests = [Request::List, get("a"), get("b"), Request::Allocatable];
        for result in fixture.request_all(requests).await {
            let status = result.unwrap_err().status;
            assert_eq!(status.code(), Code::Unavailable);
            let sentence = format!("there is no kubelet socket at {}", fixture.node.kubelet.socket().display());
            let lost = "the kubelet's connection broke during";
            assert!([&*sentence, lost].iter().any(|text| status.message().starts_with(text)), "{status:?}");
            refused += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    let attempts: usize = fixture.log.calls().errors.values().sum();
    assert!(attempts <= 5 + 250 && attempts > 100, "{attempts} attempts for {refused} errors");
    fixture.node.kubelet.boot().unwrap();
    fixture.node.kubelet.set_ready(true, true);
    assert_eq!(names(&fixture.request(Request::List).await.unwrap()), ["a"], "the next request connects again");
}

#[tokio::test(start_paused = true)]
async fn calls_and_waiting_for_them_time_out() {
    let fixture = Fixture::start();
    fixture.run(&["a"]).await;
    fixture.request(Request::List).await.unwrap();
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Hang);
    let start = Instant::now();
    let later = async {
        sleep(Duration::from_secs(1)).await;
        fixture.request(Request::List).await
    };
    let (first, second) = tokio::join!(fixture.request(Request::List), later);
    let error = first.unwrap_err();
    assert_eq!(error.status.code(), Code::Unavailable);
    let sentence =
        format!("the kubelet did not answer List on {} within 4s", fixture.node.kubelet.socket().display());
    assert_eq!(error.status.message(), sentence);
    assert_eq!(names(&second.unwrap()), ["a"], "a later request has a call of its own");
    assert_eq!(start.elapsed().as_secs(), 4);

    // Waiting for a call is bounded by the call's own timeout.
    fixture.node.kubelet.fail_next(Call::Allocatable, 1, &Fault::Hang);
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Hang);
    let start = Instant::now();
    let after = |seconds, request| {
        let fixture = &fixture;
        async move {
            sleep(Duration::from_secs(seconds)).await;
            let status = fixture.request(request).await.unwrap_err().status;
            assert_eq!(status.code(), Code::Unavailable);
            (start.elapsed().as_secs(), status.message().contains("did not answer Get on"))
        }
    };
    let (first, second, third) =
        tokio::join!(after(0, Request::Allocatable), after(1, Request::ListV1alpha1), after(2, get("a")));
    assert_eq!((first, second, third), ((4, false), (8, false), (6, true)));
}

#[tokio::test(start_paused = true)]
async fn no_call_starts_for_an_expired_request() {
    let fixture = Fixture::start();
    let long = Fault::Delay(Duration::from_millis(3_500));
    // Requests during a List wait for the next one, which starts before their deadline and ends after it.
    let behind_a_list = async |requests: &[Request]| {
        let before = fixture.paths().len();
        fixture.node.kubelet.fail_next(Call::List, 2, &long);
        let start = Instant::now();
        let later = async {
            sleep(Duration::from_millis(1)).await;
            fixture.request_all(requests.iter().cloned()).await
        };
        let (first, results) = tokio::join!(fixture.request(Request::List), later);
        first.unwrap();
        let errors: Vec<_> = results.into_iter().map(|result| result.unwrap_err().status).collect();
        assert!(errors.iter().all(|status| status.code() == Code::Unavailable), "{errors:?}");
        assert_eq!(fixture.paths()[before..], ["v1 List", "v1 List"]);
        (start.elapsed().as_secs(), errors[0].message().to_owned())
    };

    // The List does not contain these pods.
    let (seconds, sentence) = behind_a_list(&[get("b"), get("c")]).await;
    assert!(seconds == 7 && sentence.contains("did not answer Get on"), "{seconds} s: {sentence}");

    let cut = async {
        sleep(Duration::from_secs(5)).await;
        fixture.node.kubelet.cut_connections();
    };
    let ((seconds, sentence), ()) = tokio::join!(behind_a_list(&[Request::List]), cut);
    let lost = sentence.starts_with("the kubelet's connection broke during List");
    assert!(seconds == 5 && lost, "{seconds} s: {sentence}");
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_holds_in_every_second_and_exempts_the_agent() {
    let fixture = Fixture::start();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let clients = join_all((0..8).map(|_| async {
        while start.elapsed() < Duration::from_secs(5) {
            fixture.request(Request::List).await.unwrap();
            sleep(Duration::from_millis(1)).await;
        }
    }));
    let agent = async {
        sleep(Duration::from_secs(6)).await;
        // More requests than the budget allows.
        for _ in 0..10 {
            let requested_at = Instant::now();
            fixture.client.request(Request::List, Caller::Agent).await.unwrap();
            longest = longest.max(requested_at.elapsed());
        }
    };
    tokio::join!(clients, agent);
    assert!(longest < Duration::from_millis(5), "{longest:?}");
    let calls = fixture.node.kubelet.traffic().calls;
    let proxys: Vec<Instant> = calls.iter().map(|(_, at)| *at).take(calls.len() - 10).collect();
    let most = busiest_second(&proxys);
    assert!(most <= 30, "{most} calls in a second");
    assert!(proxys.len() > 100, "{} calls in five seconds", proxys.len());
}

/// Returns the largest number of calls in any one second.
fn busiest_second(calls: &[Instant]) -> usize {
    let second = Duration::from_secs(1);
    let within = |from: &Instant| calls.iter().filter(|at| (*from..*from + second).contains(*at)).count();
    calls.iter().map(within).max().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_shared_with_the_response() {
    let fixture = Fixture::start();
    let responses = fixture.request_all([Request::List, Request::List]).await;
    let [first, second] = responses.try_into().unwrap();
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(Arc::ptr_eq(&first.slot::<Mutex<u32>>(), &second.slot::<Mutex<u32>>()));
    *first.slot::<Mutex<u32>>().lock().unwrap() = 7;
    assert_eq!(*second.slot::<Mutex<u32>>().lock().unwrap(), 7);
    assert_eq!(*second.slot::<u64>(), 0, "of another type nothing is shared");
}
