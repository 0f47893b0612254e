//! One upstream connection shared by many callers, against every kind of kubelet response.

mod schedules;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use numacast::kubelet::proto::v1;
use numacast::kubelet::{Request, Caller, ClientError, FinishedCall, SharedResponse, Observer, RequestError, SharedClient, decode_list};
use numacast::sim::kubelet::{Age, Call, Fault, Options, PodSpec};
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use crate::support::SimNode;

/// The proxy's upstream timeout: below its clients' deadlines.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Records calls.
#[derive(Debug, Default)]
struct Seen(Mutex<Calls>);

#[derive(Clone, Debug, Default)]
struct Calls {
    /// Maximum number of calls in flight.
    most: usize,
    /// For each response, the number of callers that shared it.
    shared_by: Vec<(Request, usize)>,
    /// Number of errors by kind.
    errors: BTreeMap<&'static str, usize>,
}

impl Seen {
    fn calls(&self) -> Calls {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Seen {
    fn started(&self, _: &Request, in_flight: usize) {
        let mut calls = self.0.lock().unwrap();
        calls.most = calls.most.max(in_flight);
    }

    fn finished(&self, call: &FinishedCall<'_>) {
        let mut calls = self.0.lock().unwrap();
        match call.error {
            None => calls.shared_by.push((call.request.clone(), call.shared_by)),
            Some(error) => *calls.errors.entry(error.kind()).or_default() += 1,
        }
    }
}

struct Asked {
    node: SimNode,
    upstream: SharedClient,
    seen: Arc<Seen>,
}

impl Asked {
    fn start() -> Self {
        Self::with(Options { limited: false, ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let (node, seen) = (SimNode::with(options), Arc::new(Seen::default()));
        node.kubelet.traffic();
        let upstream = SharedClient::start(node.kubelet.socket(), TIMEOUT, seen.clone());
        Self { node, upstream, seen }
    }

    fn aged(age: Age) -> Self {
        Self::with(Options { age, limited: false, ..Options::default() })
    }

    async fn ask(&self, ask: Request) -> Result<Arc<SharedResponse>, RequestError> {
        self.upstream.request(ask, Caller::Proxy).await
    }

    /// Sends the requests concurrently and returns the responses.
    async fn ask_all(&self, asks: impl IntoIterator<Item = Request>) -> Vec<Result<Arc<SharedResponse>, RequestError>> {
        join_all(asks.into_iter().map(|ask| self.ask(ask))).await
    }

    async fn run(&self, pods: &[&str]) {
        for name in pods {
            self.node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
        }
    }

    /// Starts a List that the kubelet answers after `delay`. The returned future waits for the response.
    async fn busy(&self, delay: Duration) -> impl Future<Output = ()> + use<> {
        self.node.kubelet.fail_next(Call::List, 1, &Fault::Delay(delay));
        let upstream = self.upstream.clone();
        let first = tokio::spawn(async move { upstream.request(Request::List, Caller::Proxy).await.map(drop) });
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
fn names(flight: &SharedResponse) -> Vec<String> {
    let mut names: Vec<_> =
        decode_list(flight.bytes.clone()).unwrap().pods.into_iter().map(|pod| pod.name).collect();
    names.sort();
    names
}

#[track_caller]
fn assert_not_found(answer: Result<Arc<SharedResponse>, RequestError>, name: &str) {
    let status = answer.unwrap_err().status;
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(status.message(), format!("pod {name} in namespace default not found"));
}

#[tokio::test]
async fn each_question_has_its_answer() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    assert_eq!(names(&asked.ask(Request::List).await.unwrap()), ["a"]);
    assert_eq!(names(&asked.ask(get("a")).await.unwrap()), ["a"]);
    assert_eq!(names(&asked.ask(Request::ListV1alpha1).await.unwrap()), ["a"]);
    assert!(!asked.ask(Request::Allocatable).await.unwrap().bytes.is_empty());
    assert_not_found(asked.ask(get("b")).await, "b");
    let expected = ["v1 List", "v1 Get", "v1alpha1 List", "v1 GetAllocatableResources", "v1 Get"];
    assert_eq!(asked.paths(), expected);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_while_a_call_is_under_way_shares_the_next_one() {
    let asked = Asked::start();
    let busy = asked.busy(Duration::from_millis(50)).await;
    // The call in flight started before this pod existed.
    asked.run(&["new"]).await;
    let flights: Vec<_> = asked.ask_all(vec![Request::List; 200]).await.into_iter().map(Result::unwrap).collect();
    busy.await;
    assert!(flights.iter().all(|flight| Arc::ptr_eq(flight, &flights[0])));
    assert_eq!(names(&flights[0]), ["new"]);
    assert_eq!(asked.paths(), ["v1 List"; 2]);
    assert_eq!(asked.seen.calls().shared_by, [(Request::List, 1), (Request::List, 200)]);
}

#[tokio::test(start_paused = true)]
async fn the_lanes_do_not_wait_for_each_other() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    let busy = asked.busy(Duration::from_secs(3)).await;
    let start = Instant::now();
    let asks = [get("a"), Request::Allocatable, Request::ListV1alpha1, get("a")];
    asked.ask_all(asks).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    busy.await;
    let traffic = asked.node.kubelet.traffic();
    assert_eq!((traffic.calls.len(), traffic.all_at_once), (4, 2));
    assert_eq!(asked.seen.calls().most, 2);
}

#[tokio::test(start_paused = true)]
async fn several_pods_at_once_cost_one_list() {
    let asked = Asked::start();
    asked.run(&["a", "b", "c"]).await;
    let answers = asked.ask_all(["a", "b", "nobody", "c", "a"].map(get)).await;
    let mut found = Vec::new();
    for (name, answer) in ["a", "b", "nobody", "c", "a"].iter().zip(answers) {
        match *name {
            "nobody" => assert_not_found(answer, "nobody"),
            name => {
                assert_eq!(names(answer.as_ref().unwrap()), [name]);
                found.push(answer.unwrap());
            }
        }
    }
    assert!(Arc::ptr_eq(&found[0], &found[3]), "whoever asks for the same shares the answer");
    // Only the kubelet knows for certain that the pod does not exist.
    assert_eq!(asked.paths(), ["v1 List", "v1 Get"]);
    assert_eq!(asked.seen.calls().shared_by, [(Request::List, 4)]);
}

/// Runs 256 callers that keep requesting pods that do not exist.
async fn make_up_names(upstream: SharedClient) {
    join_all((0..256).map(async |caller| {
        for count in 0.. {
            let _ = upstream.request(get(&format!("nobody-{caller}-{count}")), Caller::Proxy).await;
        }
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_makes_up_names_does_not_delay_the_others() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    let flood = tokio::spawn(make_up_names(asked.upstream.clone()));
    sleep(Duration::from_secs(10)).await;
    let (before, begun) = (asked.paths().len(), Instant::now());
    while begun.elapsed() < Duration::from_secs(20) {
        for ask in [Request::List, Request::Allocatable, Request::ListV1alpha1, get("a")] {
            let start = Instant::now();
            asked.ask(ask.clone()).await.unwrap();
            let took = start.elapsed();
            assert!(took < Duration::from_secs(1), "{ask:?} took {took:?}");
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    flood.abort();
    let paths = asked.paths().split_off(before);
    let gets = paths.iter().filter(|path| *path == "v1 Get").count() as f64;
    let calls = paths.len() as f64;
    assert!(calls <= 25.0 * seconds + 5.0, "{calls} calls in {seconds} s");
    // Gets for pods that do not exist, and the test's own.
    assert!(gets <= 5.0 * seconds + 5.0 + seconds * 25.0 / 4.0, "{gets} calls of Get in {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_cannot_be_is_not_asked_for() {
    let asked = Asked::start();
    let most = "x".repeat(253);
    assert_not_found(asked.ask(get(&most)).await, &most);
    assert_eq!(asked.paths(), ["v1 Get"]);
    let told = asked.ask(get(&"ü".repeat(1 << 20))).await;
    assert_not_found(told, &format!("{}...", "ü".repeat(126)));
    let ask = Request::Get { namespace: "y".repeat(4 << 20), name: "a".to_owned() };
    let told = asked.ask(ask).await.unwrap_err();
    let expected = format!("pod a in namespace {}... not found", "y".repeat(253));
    assert_eq!((told.status.code(), told.status.message()), (Code::Unknown, &*expected));
    assert_eq!(asked.paths(), ["v1 Get"]);
}

#[tokio::test(start_paused = true)]
async fn where_get_is_not_served_pods_are_looked_up_in_a_list() {
    for (age, said) in [(Age::V1_29, 1), (Age::V1_23, 1)] {
        let asked = Asked::aged(age);
        asked.run(&["a"]).await;
        assert_eq!(names(&asked.ask(get("a")).await.unwrap()), ["a"]);
        assert_not_found(asked.ask(get("b")).await, "b");
        assert_eq!(names(&asked.ask(get("a")).await.unwrap()), ["a"]);
        let gets = |asked: &Asked| asked.paths().iter().filter(|path| *path == "v1 Get").count();
        assert_eq!(gets(&asked), said, "it is remembered: {:?}", asked.paths());
        // Another kubelet may support Get.
        asked.node.kubelet.set_age(Age::V1_34);
        asked.node.kubelet.restart().await.unwrap();
        asked.ask(Request::List).await.unwrap();
        assert_eq!(names(&asked.ask(get("a")).await.unwrap()), ["a"]);
        assert_not_found(asked.ask(get("b")).await, "b");
        assert_eq!(gets(&asked), said + 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_is_replaced_by_an_older_one_is_asked_in_its_way() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    asked.ask(get("a")).await.unwrap();
    asked.node.kubelet.set_age(Age::V1_29);
    asked.node.kubelet.restart().await.unwrap();
    let answers = asked.ask_all(["a", "b"].map(get)).await;
    let [found, missing] = answers.try_into().unwrap();
    assert_eq!(names(&found.unwrap()), ["a"]);
    assert_not_found(missing, "b");
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_leaves_nothing_behind() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    let busy = asked.busy(Duration::from_secs(2)).await;
    // Their callers have left by the time these calls could start.
    for ask in [Request::List, get("a"), Request::Allocatable] {
        let _ = futures::poll!(std::pin::pin!(asked.ask(ask)));
    }
    assert!(timeout(Duration::from_secs(1), asked.ask(Request::List)).await.is_err());
    busy.await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(asked.paths(), ["v1 List"]);
    // A call continues while any caller waits for it, even if the first one left.
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::Delay(Duration::from_secs(2)));
    let first = timeout(Duration::from_secs(1), asked.ask(Request::List));
    let (first, second) = tokio::join!(first, asked.ask(Request::List));
    assert!(first.is_err());
    assert_eq!(names(&second.unwrap()), ["a"]);
    assert_eq!(asked.paths(), ["v1 List"; 2]);
    // A caller that arrives during an abandoned call still waits for the next one.
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::Late(Duration::from_secs(2)));
    assert!(timeout(Duration::from_secs(1), asked.ask(Request::List)).await.is_err());
    asked.run(&["b"]).await;
    assert_eq!(names(&asked.ask(Request::List).await.unwrap()), ["a", "b"]);
    assert_eq!(asked.node.kubelet.traffic().at_once["/v1.PodResourcesLister/List"], 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_handle_that_is_dropped() {
    let asked = Asked::start();
    asked.ask(Request::List).await.unwrap();
    let other = asked.upstream.clone();
    drop(asked.upstream);
    other.request(Request::List, Caller::Agent).await.unwrap();
    assert_eq!(Arc::strong_count(&asked.seen), 2);
    drop(other);
    while Arc::strong_count(&asked.seen) > 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_limiters_refusals_are_waited_out() {
    let asked = Asked::start();
    asked.run(&["a", "b"]).await;
    let limited = Fault::Status(Code::ResourceExhausted, "rejected by rate limit".into());
    for call in [Call::List, Call::Get, Call::Allocatable] {
        asked.node.kubelet.fail_next(call, 3, &limited);
    }
    let asks = [Request::List, get("a"), Request::Allocatable, Request::ListV1alpha1];
    asked.ask_all(asks).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    assert_eq!(asked.seen.calls().errors["rate_limited"], 9);

    // The agent handles rate limiting itself, so it gets the error.
    asked.node.kubelet.fail_next(Call::List, 1, &limited);
    let told = asked.upstream.request(Request::List, Caller::Agent).await.unwrap_err();
    assert_eq!(told.error, ClientError::RateLimited("List"));

    // A limiter that keeps rejecting is reported at the deadline, not earlier.
    asked.node.kubelet.fail_next(Call::List, 1000, &limited);
    let start = Instant::now();
    let told = asked.ask(Request::List).await.unwrap_err();
    assert!(start.elapsed() <= TIMEOUT && start.elapsed() > TIMEOUT - Duration::from_secs(1));
    assert_eq!(told.status.code(), Code::ResourceExhausted);
    assert_eq!(told.status.message(), "rejected by rate limit");
    let tried = asked.node.kubelet.traffic().calls.len();
    assert!(tried < 40, "{tried} calls");

    // Nine rejections leave time for another attempt.
    asked.node.kubelet.clear_faults();
    asked.node.kubelet.fail_next(Call::List, 9, &limited);
    asked.ask(Request::List).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kubelets_words_are_passed_on_as_they_are() {
    let asked = Asked::start();
    let words = "the disk is on fire\n".repeat(100);
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::Status(Code::Internal, words.clone()));
    let told = asked.ask(Request::List).await.unwrap_err();
    assert_eq!((told.status.code(), told.status.message()), (Code::Internal, &*words));
    for (age, code, message) in [
        (
            Age::V1_20,
            Code::Unimplemented,
            "unknown method GetAllocatableResources for service v1.PodResourcesLister",
        ),
        (Age::OnlyV1alpha1, Code::Unimplemented, "unknown service v1.PodResourcesLister"),
    ] {
        asked.node.kubelet.set_age(age);
        let told = asked.ask(Request::Allocatable).await.unwrap_err();
        assert_eq!((told.status.code(), told.status.message()), (code, message));
    }
    asked.node.kubelet.set_age(Age::V1_34);
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::Oversize(17 << 20));
    let told = asked.ask(Request::List).await.unwrap_err();
    assert_eq!(told.status.code(), Code::ResourceExhausted);
    assert!(told.status.message().starts_with("the kubelet's answer to List is too large"));
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::Oversize(5 << 20));
    assert!(asked.ask(Request::List).await.unwrap().bytes.len() > 5 << 20);
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
async fn every_byte_of_an_answer_arrives_whatever_it_means() {
    let asked = Asked::start();
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
    let bytes = |call, bytes: &[u8]| asked.node.kubelet.fail_next(call, 1, &Fault::Message(bytes.to_vec()));
    bytes(Call::List, &list);
    assert_eq!(asked.ask(Request::List).await.unwrap().bytes, list);
    bytes(Call::Get, &a);
    assert_eq!(asked.ask(get("a")).await.unwrap().bytes, a);
    bytes(Call::List, &list);
    let answers = asked.ask_all(["a", "b"].map(get)).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().bytes.clone()).collect();
    assert_eq!(answers, [a, b]);
    let allocatable = with_unknown(&v1::AllocatableResourcesResponse::default());
    bytes(Call::Allocatable, &allocatable);
    assert_eq!(asked.ask(Request::Allocatable).await.unwrap().bytes, allocatable);
    // Responses are passed on without being decoded.
    bytes(Call::List, b"no message at all");
    assert_eq!(asked.ask(Request::List).await.unwrap().bytes, &b"no message at all"[..]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_is_made_again_once() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    asked.ask(Request::List).await.unwrap();
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::CutShort);
    assert_eq!(names(&asked.ask(Request::List).await.unwrap()), ["a"]);
    asked.node.kubelet.fail_next(Call::List, 2, &Fault::CutShort);
    let told = asked.ask(Request::List).await.unwrap_err();
    assert_eq!(told.status.code(), Code::Unavailable);
    assert!(told.status.message().starts_with("the kubelet's connection broke during List"), "{told:?}");
    assert_eq!(names(&asked.ask(Request::List).await.unwrap()), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_is_away_is_unavailable_at_once_and_is_not_hammered() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    asked.ask(Request::List).await.unwrap();
    asked.node.kubelet.stop();
    let start = Instant::now();
    let mut refused = 0;
    while start.elapsed() < Duration::from_secs(10) {
        let asks = [Request::List, get("a"), get("b"), Request::Allocatable];
        for answer in asked.ask_all(asks).await {
            let status = answer.unwrap_err().status;
            assert_eq!(status.code(), Code::Unavailable);
            let sentence = format!("there is no kubelet socket at {}", asked.node.kubelet.socket().display());
            let lost = "the kubelet's connection broke during";
            assert!([&*sentence, lost].iter().any(|words| status.message().starts_with(words)), "{status:?}");
            refused += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    let attempts: usize = asked.seen.calls().errors.values().sum();
    assert!(attempts <= 5 + 250 && attempts > 100, "{attempts} attempts for {refused} refusals");
    asked.node.kubelet.boot().unwrap();
    asked.node.kubelet.set_ready(true, true);
    assert_eq!(names(&asked.ask(Request::List).await.unwrap()), ["a"], "whoever asks next tries");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_and_so_does_waiting_for_it() {
    let asked = Asked::start();
    asked.run(&["a"]).await;
    asked.ask(Request::List).await.unwrap();
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::Hang);
    let start = Instant::now();
    let later = async {
        sleep(Duration::from_secs(1)).await;
        asked.ask(Request::List).await
    };
    let (first, second) = tokio::join!(asked.ask(Request::List), later);
    let told = first.unwrap_err();
    assert_eq!(told.status.code(), Code::Unavailable);
    let sentence =
        format!("the kubelet did not answer List on {} within 4s", asked.node.kubelet.socket().display());
    assert_eq!(told.status.message(), sentence);
    assert_eq!(names(&second.unwrap()), ["a"], "who asked later has a call of his own");
    assert_eq!(start.elapsed().as_secs(), 4);

    // Waiting for a call is bounded by the call's own timeout.
    asked.node.kubelet.fail_next(Call::Allocatable, 1, &Fault::Hang);
    asked.node.kubelet.fail_next(Call::List, 1, &Fault::Hang);
    let start = Instant::now();
    let after = |seconds, ask| {
        let asked = &asked;
        async move {
            sleep(Duration::from_secs(seconds)).await;
            let status = asked.ask(ask).await.unwrap_err().status;
            assert_eq!(status.code(), Code::Unavailable);
            (start.elapsed().as_secs(), status.message().contains("did not answer Get on"))
        }
    };
    let (first, second, third) =
        tokio::join!(after(0, Request::Allocatable), after(1, Request::ListV1alpha1), after(2, get("a")));
    assert_eq!((first, second, third), ((4, false), (8, false), (6, true)));
}

#[tokio::test(start_paused = true)]
async fn no_call_starts_for_a_question_whose_time_is_up() {
    let asked = Asked::start();
    let long = Fault::Delay(Duration::from_millis(3_500));
    // Requests during a List wait for the next one, which starts before their deadline and ends after it.
    let behind_a_list = async |asks: &[Request]| {
        let before = asked.paths().len();
        asked.node.kubelet.fail_next(Call::List, 2, &long);
        let start = Instant::now();
        let later = async {
            sleep(Duration::from_millis(1)).await;
            asked.ask_all(asks.iter().cloned()).await
        };
        let (first, answers) = tokio::join!(asked.ask(Request::List), later);
        first.unwrap();
        let refusals: Vec<_> = answers.into_iter().map(|answer| answer.unwrap_err().status).collect();
        assert!(refusals.iter().all(|status| status.code() == Code::Unavailable), "{refusals:?}");
        assert_eq!(asked.paths()[before..], ["v1 List", "v1 List"]);
        (start.elapsed().as_secs(), refusals[0].message().to_owned())
    };

    // The List does not contain these pods.
    let (seconds, sentence) = behind_a_list(&[get("b"), get("c")]).await;
    assert!(seconds == 7 && sentence.contains("did not answer Get on"), "{seconds} s: {sentence}");

    let cut = async {
        sleep(Duration::from_secs(5)).await;
        asked.node.kubelet.cut_connections();
    };
    let ((seconds, sentence), ()) = tokio::join!(behind_a_list(&[Request::List]), cut);
    let lost = sentence.starts_with("the kubelet's connection broke during List");
    assert!(seconds == 5 && lost, "{seconds} s: {sentence}");
}

#[tokio::test(start_paused = true)]
async fn the_budget_holds_in_every_second_and_the_agent_does_not_wait_for_it() {
    let asked = Asked::start();
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let clients = join_all((0..8).map(|_| async {
        while start.elapsed() < Duration::from_secs(5) {
            asked.ask(Request::List).await.unwrap();
            sleep(Duration::from_millis(1)).await;
        }
    }));
    let agent = async {
        sleep(Duration::from_secs(6)).await;
        // More requests than the budget allows.
        for _ in 0..10 {
            let asked_at = Instant::now();
            asked.upstream.request(Request::List, Caller::Agent).await.unwrap();
            longest = longest.max(asked_at.elapsed());
        }
    };
    tokio::join!(clients, agent);
    assert!(longest < Duration::from_millis(5), "{longest:?}");
    let calls = asked.node.kubelet.traffic().calls;
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
async fn a_slot_is_made_once_for_all_who_share_an_answer() {
    let asked = Asked::start();
    let flights = asked.ask_all([Request::List, Request::List]).await;
    let [first, second] = flights.try_into().unwrap();
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(Arc::ptr_eq(&first.slot::<Mutex<u32>>(), &second.slot::<Mutex<u32>>()));
    *first.slot::<Mutex<u32>>().lock().unwrap() = 7;
    assert_eq!(*second.slot::<Mutex<u32>>().lock().unwrap(), 7);
    assert_eq!(*second.slot::<u64>(), 0, "of another type nothing is shared");
}
