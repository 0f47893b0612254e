//! The poller on the paused clock, with a fake API server.

use std::sync::Mutex;

use super::*;
use crate::cluster::Device;
use crate::telemetry::registry::Registry;

/// A fake API server, and when it was called.
struct FakeServer {
    result: Mutex<ReadResult>,
    /// How long a call takes.
    delay: Mutex<Duration>,
    calls: Mutex<Vec<Duration>>,
}

impl FakeServer {
    fn set(&self, result: ReadResult) {
        *self.result.lock().unwrap() = result;
    }

    fn calls(&self) -> Vec<Duration> {
        self.calls.lock().unwrap().clone()
    }

    fn seconds(&self) -> Vec<u64> {
        self.calls().iter().map(Duration::as_secs).collect()
    }
}

/// Starts a poller that reads from a fake server.
fn poller(result: ReadResult) -> (Arc<FakeServer>, watch::Receiver<NodeDevices>, DevicePoller) {
    let server = FakeServer { result: Mutex::new(result), delay: Mutex::default(), calls: Mutex::default() };
    let server = Arc::new(server);
    let metrics = Metrics::register(&mut Registry::default(), true);
    let poll = Poll::new(Arc::default(), metrics);
    let node = poll.node.subscribe();
    let (start, called) = (Instant::now(), Arc::clone(&server));
    let read = move || {
        called.calls.lock().unwrap().push(start.elapsed());
        let (result, delay) = (called.result.lock().unwrap().clone(), *called.delay.lock().unwrap());
        async move {
            tokio::time::sleep(delay).await;
            result
        }
    };
    (server, node, poll.spawn(read))
}

fn one() -> Option<KoordinatorDevices> {
    let device = Device { kind: "gpu".into(), id: "GPU-a".into(), ..Device::default() };
    Some(KoordinatorDevices { devices: [device].into(), ..KoordinatorDevices::default() })
}

#[tokio::test(start_paused = true)]
async fn devices_are_read_periodically() {
    let (server, mut nodes, poller) = poller(Ok(None));
    poller.first_read().await;
    assert_eq!(server.seconds(), [0]);
    assert!(!nodes.borrow().is_reported());
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(server.seconds(), [0], "a minute, give or take a tenth");
    server.set(Ok(one()));
    nodes.changed().await.unwrap();
    assert!(nodes.borrow_and_update().is_reported());
    let times = server.seconds();
    assert!(times.len() == 2 && (54..=66).contains(&times[1]), "{times:?}");
    tokio::time::sleep(Duration::from_secs(500)).await;
    let gaps: Vec<u64> = server.seconds().windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 8 && gaps.iter().all(|gap| (53..=67).contains(gap)), "{gaps:?}");
    assert!(!nodes.has_changed().unwrap(), "unchanged devices are not sent again");
    let before = server.seconds().len();
    drop(poller);
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert!(server.seconds().len() == before, "the task has ended");
}

#[tokio::test(start_paused = true)]
async fn failed_reads_are_retried_with_growing_delays() {
    let (server, mut nodes, poller) = poller(Err(ClusterError::Forbidden("no".into())));
    poller.first_read().await;
    tokio::time::sleep(Duration::from_secs(400)).await;
    let gaps: Vec<u64> = server.seconds().windows(2).map(|pair| pair[1] - pair[0]).collect();
    let expected = [4..=6, 9..=12, 17..=23, 35..=45, 53..=67, 53..=67];
    assert!(gaps.iter().zip(&expected).all(|(gap, expected)| expected.contains(gap)), "{gaps:?}");
    assert!(gaps.len() >= expected.len(), "{gaps:?}");
    // A success resets the delay.
    server.set(Ok(one()));
    nodes.changed().await.unwrap();
    server.set(Err(ClusterError::Forbidden("no".into())));
    poller.read_now().await;
    let before = server.seconds().len();
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(server.seconds().len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_for_a_read_that_started_later() {
    let (server, _nodes, poller) = poller(Ok(None));
    *server.delay.lock().unwrap() = Duration::from_millis(700);
    // While the first read runs.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let then = Instant::now();
    assert!(!poller.has_read_since(then));
    let both = futures::future::join(poller.read_now(), poller.read_now());
    futures::future::join(both, async {
        poller.first_read().await;
        assert_eq!(then.elapsed(), Duration::from_millis(600));
        assert!(!poller.has_read_since(then), "that one started before");
    })
    .await;
    assert!(poller.has_read_since(then));
    assert_eq!(
        then.elapsed(),
        Duration::from_millis(1600),
        "a second after the first started, and its duration"
    );
    assert_eq!(server.calls().len(), 2, "one for all callers");
    // However many callers come one after another, there is one read per second.
    for _ in 0..50 {
        poller.read_now().await;
    }
    let at = server.calls();
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= MIN_INTERVAL), "{at:?}");
    assert_eq!(at.len(), 52);
    // No caller waits any more: only the periodic reads remain.
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(server.calls().len(), 52);
    poller.read_now().await;
    assert_eq!(server.calls().len(), 53);
}

#[tokio::test(start_paused = true)]
async fn a_failed_read_is_a_read_but_no_response() {
    let away = || Err(ClusterError::Unauthorized("no".into()));
    let (server, _nodes, poller) = poller(away());
    assert!(!poller.has_response() && !poller.has_read_since(Instant::now()));
    let then = Instant::now();
    poller.read_now().await;
    assert!(poller.has_read_since(then) && !poller.has_response());
    server.set(Err(ClusterError::Forbidden("no".into())));
    poller.read_now().await;
    assert!(poller.has_response(), "that reading is forbidden is a response");
    server.set(away());
    poller.read_now().await;
    assert!(poller.has_response());
}

#[tokio::test(start_paused = true)]
async fn the_devices_last_reported_stay_while_reading_fails() {
    let (server, mut nodes, poller) = poller(Err(ClusterError::Forbidden("no".into())));
    poller.first_read().await;
    assert!(!nodes.borrow().is_reported());
    server.set(Ok(one()));
    nodes.changed().await.unwrap();
    assert_eq!(server.seconds().len(), 2);
    assert!((4..=6).contains(&server.seconds()[1]), "soon after a failure");
    server.set(Err(ClusterError::Forbidden("no".into())));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(nodes.borrow_and_update().is_reported());
    server.set(Ok(None));
    nodes.changed().await.unwrap();
    assert!(!nodes.borrow().is_reported(), "Koordinator is gone");
}
