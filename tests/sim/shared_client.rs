//! One connection shared by many callers, against every kind of kubelet response.

mod fixture;
mod schedules;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use numacast::kubelet::proto::v1;
use numacast::kubelet::{Caller, ClientError, Request, SharedClient};
use numacast_sim::kubelet::{Call, Fault, KubeletVersion};
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use self::fixture::{Fixture, TIMEOUT, assert_not_found, busiest_second, get, names};
use crate::support::with_frozen_clock;

#[tokio::test]
async fn every_kind_of_request_gets_its_response() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a"]).await;
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
    let list = fixture.start_slow_list(Duration::from_millis(50)).await;
    // The running call started before this pod existed.
    fixture.start_pods(&["new"]).await;
    let responses = fixture.request_all(vec![Request::List; 200]).await.into_iter();
    let responses: Vec<_> = responses.map(Result::unwrap).collect();
    list.await;
    assert!(responses.iter().all(|response| Arc::ptr_eq(response, &responses[0])));
    assert_eq!(names(&responses[0]), ["new"]);
    assert_eq!(fixture.paths(), ["v1 List"; 2]);
}

#[tokio::test(start_paused = true)]
async fn other_methods_do_not_wait_for_a_list() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a"]).await;
    let list = fixture.start_slow_list(Duration::from_secs(3)).await;
    let start = Instant::now();
    let requests = [get("a"), Request::Allocatable, Request::ListV1alpha1, get("a")];
    fixture.request_all(requests).await.into_iter().for_each(|result| drop(result.unwrap()));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    list.await;
    let traffic = fixture.node.kubelet.traffic();
    assert_eq!((traffic.calls.len(), traffic.max_concurrent_total), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn several_pods_are_looked_up_in_one_list() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a", "b", "c"]).await;
    let results = fixture.request_all(["a", "b", "missing", "c", "a"].map(get)).await;
    let mut found = Vec::new();
    for (name, result) in ["a", "b", "missing", "c", "a"].iter().zip(results) {
        match *name {
            "missing" => assert_not_found(result, "missing"),
            name => {
                assert_eq!(names(result.as_ref().unwrap()), [name]);
                found.push(result.unwrap());
            }
        }
    }
    assert!(Arc::ptr_eq(&found[0], &found[3]), "identical requests share the response");
    // Only the kubelet knows for certain that the pod does not exist.
    assert_eq!(fixture.paths(), ["v1 List", "v1 Get"]);
}

/// Runs 256 callers that keep requesting pods that do not exist.
async fn request_unknown_pods(client: SharedClient) {
    join_all((0..256).map(async |caller| {
        for count in 0.. {
            let _ = client.request(get(&format!("missing-{caller}-{count}")), Caller::Proxy).await;
        }
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_for_unknown_pods_do_not_delay_the_others() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a"]).await;
    let callers = tokio::spawn(request_unknown_pods(fixture.client.clone()));
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
    callers.abort();
    let paths = fixture.paths().split_off(before);
    let gets = paths.iter().filter(|path| *path == "v1 Get").count() as f64;
    let calls = paths.len() as f64;
    assert!(calls <= 25.0 * seconds + 5.0, "{calls} calls in {seconds} s");
    // Gets for pods that do not exist, and the test's own.
    assert!(gets <= 5.0 * seconds + 5.0 + seconds * 25.0 / 4.0, "{gets} calls of Get in {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_too_long_is_not_requested() {
    let fixture = Fixture::start();
    let longest = "x".repeat(253);
    assert_not_found(fixture.request(get(&longest)).await, &longest);
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
    for version in [KubeletVersion::V1_29, KubeletVersion::V1_23] {
        let fixture = Fixture::with_version(version);
        fixture.start_pods(&["a"]).await;
        assert_eq!(names(&fixture.request(get("a")).await.unwrap()), ["a"]);
        assert_not_found(fixture.request(get("b")).await, "b");
        assert_eq!(names(&fixture.request(get("a")).await.unwrap()), ["a"]);
        let gets = |fixture: &Fixture| fixture.paths().iter().filter(|path| *path == "v1 Get").count();
        assert_eq!(gets(&fixture), 1, "Get is not tried again: {:?}", fixture.paths());
        // Another kubelet may support Get.
        fixture.node.kubelet.set_version(KubeletVersion::V1_34);
        fixture.node.kubelet.restart().await.unwrap();
        fixture.request(Request::List).await.unwrap();
        assert_eq!(names(&fixture.request(get("a")).await.unwrap()), ["a"]);
        assert_not_found(fixture.request(get("b")).await, "b");
        assert_eq!(gets(&fixture), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_downgrade_of_the_kubelet_get_is_not_used() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a"]).await;
    fixture.request(get("a")).await.unwrap();
    fixture.node.kubelet.set_version(KubeletVersion::V1_29);
    fixture.node.kubelet.restart().await.unwrap();
    let results = fixture.request_all(["a", "b"].map(get)).await;
    let [found, missing] = results.try_into().unwrap();
    assert_eq!(names(&found.unwrap()), ["a"]);
    assert_not_found(missing, "b");
}

#[tokio::test(start_paused = true)]
async fn no_call_starts_for_dropped_requests() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a"]).await;
    let list = fixture.start_slow_list(Duration::from_secs(2)).await;
    // These requests are dropped before their calls could start.
    for request in [Request::List, get("a"), Request::Allocatable] {
        let _ = futures::poll!(std::pin::pin!(fixture.request(request)));
    }
    assert!(timeout(Duration::from_secs(1), fixture.request(Request::List)).await.is_err());
    list.await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.paths(), ["v1 List"]);
    // A call continues while any caller waits for it, even if the first request was dropped.
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Delay(Duration::from_secs(2)));
    let first = timeout(Duration::from_secs(1), fixture.request(Request::List));
    let (first, second) = tokio::join!(first, fixture.request(Request::List));
    assert!(first.is_err());
    assert_eq!(names(&second.unwrap()), ["a"]);
    assert_eq!(fixture.paths(), ["v1 List"; 2]);
    // A request during a call whose requests were dropped still waits for the next one.
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Stale(Duration::from_secs(2)));
    assert!(timeout(Duration::from_secs(1), fixture.request(Request::List)).await.is_err());
    fixture.start_pods(&["b"]).await;
    assert_eq!(names(&fixture.request(Request::List).await.unwrap()), ["a", "b"]);
    assert_eq!(fixture.node.kubelet.traffic().max_concurrent["/v1.PodResourcesLister/List"], 1);
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_the_last_handle() {
    let fixture = Fixture::start();
    fixture.request(Request::List).await.unwrap();
    let other = fixture.client.clone();
    drop(fixture.client);
    other.request(Request::List, Caller::Agent).await.unwrap();
    assert_eq!(Arc::strong_count(&fixture.log), 2);
    drop(other);
    with_frozen_clock(async {
        while Arc::strong_count(&fixture.log) > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn rejections_by_the_rate_limiter_are_retried() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a", "b"]).await;
    let limited = Fault::rate_limited();
    for call in [Call::List, Call::Get, Call::Allocatable] {
        fixture.node.kubelet.fail_next(call, 3, &limited);
    }
    let requests = [Request::List, get("a"), Request::Allocatable, Request::ListV1alpha1];
    fixture.request_all(requests).await.into_iter().for_each(|result| drop(result.unwrap()));
    assert_eq!(fixture.log.errors(), ["rate_limited"; 9]);

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
    let calls = fixture.node.kubelet.traffic().calls.len();
    assert!(calls < 40, "{calls} calls");

    // Nine rejections leave time for another attempt.
    fixture.node.kubelet.clear_faults();
    fixture.node.kubelet.fail_next(Call::List, 9, &limited);
    fixture.request(Request::List).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_kubelets_errors_are_passed_on_unchanged() {
    let fixture = Fixture::start();
    let text = "the disk is full\n".repeat(100);
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Status(Code::Internal, text.clone()));
    let error = fixture.request(Request::List).await.unwrap_err();
    assert_eq!((error.status.code(), error.status.message()), (Code::Internal, &*text));
    for (version, code, message) in [
        (
            KubeletVersion::V1_20,
            Code::Unimplemented,
            "unknown method GetAllocatableResources for service v1.PodResourcesLister",
        ),
        (KubeletVersion::OnlyV1alpha1, Code::Unimplemented, "unknown service v1.PodResourcesLister"),
    ] {
        fixture.node.kubelet.set_version(version);
        let error = fixture.request(Request::Allocatable).await.unwrap_err();
        assert_eq!((error.status.code(), error.status.message()), (code, message));
    }
    fixture.node.kubelet.set_version(KubeletVersion::V1_34);
    fixture.node.kubelet.fail_next(Call::List, 1, &Fault::Oversize(17 << 20));
    let error = fixture.request(Request::List).await.unwrap_err();
    assert_eq!(error.status.code(), Code::ResourceExhausted);
    assert!(error.status.message().starts_with("the kubelet's response to List is too large"));
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
async fn responses_are_passed_on_byte_by_byte() {
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
    fixture.start_pods(&["a"]).await;
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
async fn without_a_kubelet_requests_fail_at_once_and_few_connect() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a"]).await;
    fixture.request(Request::List).await.unwrap();
    fixture.node.kubelet.stop();
    let start = Instant::now();
    let mut errors = 0;
    while start.elapsed() < Duration::from_secs(10) {
        let requests = [Request::List, get("a"), get("b"), Request::Allocatable];
        for result in fixture.request_all(requests).await {
            let status = result.unwrap_err().status;
            assert_eq!(status.code(), Code::Unavailable);
            let socket = fixture.node.kubelet.socket();
            let missing = format!("there is no kubelet socket at {}", socket.display());
            let lost = "the kubelet's connection broke during";
            assert!([&*missing, lost].iter().any(|text| status.message().starts_with(text)), "{status:?}");
            errors += 1;
        }
        sleep(Duration::from_millis(1)).await;
    }
    let attempts = fixture.log.errors().len();
    assert!(attempts <= 5 + 250 && attempts > 100, "{attempts} attempts for {errors} errors");
    fixture.node.kubelet.boot().unwrap();
    fixture.node.kubelet.set_ready(true, true);
    let response = fixture.request(Request::List).await.unwrap();
    assert_eq!(names(&response), ["a"], "the next request connects again");
}

#[tokio::test(start_paused = true)]
async fn calls_and_requests_that_wait_for_them_time_out() {
    let fixture = Fixture::start();
    fixture.start_pods(&["a"]).await;
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
    let expected = format!(
        "the kubelet did not respond to List on {} within 4s",
        fixture.node.kubelet.socket().display()
    );
    assert_eq!(error.status.message(), expected);
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
            (start.elapsed().as_secs(), status.message().contains("did not respond to Get on"))
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
    let (seconds, error) = behind_a_list(&[get("b"), get("c")]).await;
    assert!(seconds == 7 && error.contains("did not respond to Get on"), "{seconds} s: {error}");

    let cut = async {
        sleep(Duration::from_secs(5)).await;
        fixture.node.kubelet.cut_connections();
    };
    let ((seconds, error), ()) = tokio::join!(behind_a_list(&[Request::List]), cut);
    let lost = error.starts_with("the kubelet's connection broke during List");
    assert!(seconds == 5 && lost, "{seconds} s: {error}");
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_applies_in_every_second_but_not_to_the_agent() {
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
    let of_proxy: Vec<Instant> = calls.iter().map(|(_, at)| *at).take(calls.len() - 10).collect();
    let max = busiest_second(&of_proxy);
    assert!(max <= 30, "{max} calls in a second");
    assert!(of_proxy.len() > 100, "{} calls in five seconds", of_proxy.len());
}

#[tokio::test(start_paused = true)]
async fn a_response_and_its_slot_are_shared() {
    let fixture = Fixture::start();
    let responses = fixture.request_all([Request::List, Request::List]).await;
    let [first, second] = responses.try_into().unwrap();
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(Arc::ptr_eq(&first.slot::<Mutex<u32>>(), &second.slot::<Mutex<u32>>()));
    *first.slot::<Mutex<u32>>().lock().unwrap() = 7;
    assert_eq!(*second.slot::<Mutex<u32>>().lock().unwrap(), 7);
    assert_eq!(*second.slot::<u64>(), 0, "another type has a slot of its own");
}
