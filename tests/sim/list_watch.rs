//! Lists and watches of many objects, with faults that a real API server does not produce on demand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use numacast::cluster::{Cluster, ListWatchEvent, ListWatchStream, PublishedObject};
use numacast_sim::api_server::{ApiServer, Fault, NODES, RecordedRequest, TOPOLOGIES};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

fn watch(server: &ApiServer) -> ListWatchStream<PublishedObject> {
    let client = server.client().unwrap();
    Cluster::with_client(client, server.url(), Duration::from_secs(10)).watch_objects(None)
}

/// A number of watches of one API server, and how many lists they have got.
struct Fleet {
    server: ApiServer,
    lists: Arc<AtomicUsize>,
    _watches: JoinSet<()>,
}

const WATCHES: usize = 60;

impl Fleet {
    fn start() -> Self {
        let server = ApiServer::start_in_process(0);
        let lists = Arc::new(AtomicUsize::new(0));
        let watches = (0..WATCHES).map(|_| {
            let (mut events, lists) = (watch(&server), Arc::clone(&lists));
            async move {
                while let Some(event) = events.next().await {
                    let is_list = matches!(event, Ok(ListWatchEvent::Listed(_)));
                    lists.fetch_add(usize::from(is_list), Ordering::Relaxed);
                }
            }
        });
        let _watches = watches.collect();
        Self { server, lists, _watches }
    }

    fn take_lists(&self) -> usize {
        self.lists.swap(0, Ordering::Relaxed)
    }
}

/// Returns the number of requests in each second.
fn seconds(requests: &[RecordedRequest]) -> BTreeMap<u64, usize> {
    let mut seconds = BTreeMap::new();
    for request in requests {
        *seconds.entry(request.at.duration_since(requests[0].at).as_secs()).or_default() += 1;
    }
    seconds
}

/// They begin at the same moment.
#[tokio::test(start_paused = true)]
async fn watches_end_at_different_times_and_resume() {
    let fleet = Fleet::start();
    sleep(Duration::from_secs(5)).await;
    let before = fleet.server.requests(&TOPOLOGIES).len();
    assert_eq!((fleet.take_lists(), before), (WATCHES, 2 * WATCHES));
    sleep(Duration::from_secs(3600)).await;
    let requests = &fleet.server.requests(&TOPOLOGIES)[before..];
    assert_eq!(fleet.take_lists(), 0);
    assert!((15 * WATCHES..=31 * WATCHES).contains(&requests.len()), "{}", requests.len());
    let seconds = seconds(requests);
    let max = *seconds.values().max().unwrap();
    assert!(max <= WATCHES / 4, "{seconds:?}");
}

/// All agents lose their watches at the same moment, and the returning API server has no history.
#[tokio::test(start_paused = true)]
async fn watches_of_a_restarted_api_server_are_reopened_over_some_time() {
    let fleet = Fleet::start();
    sleep(Duration::from_secs(90)).await;
    assert_eq!(fleet.take_lists(), WATCHES);
    fleet.server.stop();
    sleep(Duration::from_secs(5)).await;
    fleet.server.put(&NODES, json!({"metadata": {"name": "another"}})).unwrap();
    fleet.server.compact_history();
    let before = fleet.server.requests(&TOPOLOGIES).len();
    fleet.server.resume();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(fleet.take_lists(), WATCHES);
    let requests = &fleet.server.requests(&TOPOLOGIES)[before..];
    // A rejected watch, a list and the watch after it.
    assert!(requests.len() <= 3 * WATCHES, "{}", requests.len());
    let seconds = seconds(requests);
    let (last, max) = (*seconds.keys().last().unwrap(), *seconds.values().max().unwrap());
    assert!(last >= 10 && max <= requests.len() / 4, "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_api_server_is_asked_again_over_some_time() {
    let fleet = Fleet::start();
    fleet.server.fail_next("list", TOPOLOGIES.plural, WATCHES, Fault::TooManyRequests { retry_after: 20 });
    sleep(Duration::from_secs(19)).await;
    let before = fleet.server.requests(&TOPOLOGIES).len();
    assert_eq!((fleet.take_lists(), before), (0, WATCHES));
    sleep(Duration::from_secs(20)).await;
    assert_eq!(fleet.take_lists(), WATCHES);
    let requests = &fleet.server.requests(&TOPOLOGIES)[before..];
    let seconds = seconds(requests);
    assert!(*seconds.values().max().unwrap() <= requests.len() / 4, "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_is_detected() {
    // After a bookmark, and without one: 65 s later, until it should have ended.
    for (has_bookmark, limit) in [(true, 130), (false, 190)] {
        let server = ApiServer::start_in_process(0);
        if !has_bookmark {
            server.fail_next("watch", TOPOLOGIES.plural, 1, Fault::StallWithin(0));
        }
        let mut events = watch(&server);
        let listed = events.next().await.unwrap();
        assert!(matches!(&listed, Ok(ListWatchEvent::Listed(objects)) if objects.is_empty()), "{listed:?}");
        assert!(timeout(Duration::from_secs(65), events.next()).await.is_err(), "there is no event");
        let start = Instant::now();
        server.set_frozen(has_bookmark);
        server.put(&TOPOLOGIES, json!({"metadata": {"name": "w"}, "zones": []})).unwrap();
        let thaw = async {
            sleep(Duration::from_secs(limit)).await;
            server.set_frozen(false);
        };
        let (event, ()) = tokio::join!(events.next(), thaw);
        let event = event.unwrap();
        assert!(matches!(&event, Ok(ListWatchEvent::Listed(objects)) if objects.len() == 1), "{event:?}");
        // And the delay before the list.
        assert!(start.elapsed() < Duration::from_secs(limit + 11), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_open_again_after_an_error_says_so() {
    let server = ApiServer::start_in_process(0);
    server.fail_next("watch", TOPOLOGIES.plural, 1, Fault::TooManyRequests { retry_after: 1 });
    let mut events = watch(&server);
    let listed = events.next().await.unwrap();
    assert!(matches!(listed, Ok(ListWatchEvent::Listed(_))), "{listed:?}");
    let failed = events.next().await.unwrap();
    assert!(failed.is_err(), "{failed:?}");
    let resumed = events.next().await.unwrap();
    assert!(matches!(resumed, Ok(ListWatchEvent::Resumed)), "{resumed:?}");
    server.put(&TOPOLOGIES, json!({"metadata": {"name": "w"}, "zones": []})).unwrap();
    let applied = events.next().await.unwrap();
    assert!(matches!(applied, Ok(ListWatchEvent::Applied(_))), "{applied:?}");
}
