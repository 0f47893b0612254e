use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::cluster::WatchEvent;
use crate::controller::fake::{self, Parts};
use crate::controller::workers::CachedNode;

fn node(name: &str) -> (Box<str>, CachedNode) {
    (name.into(), CachedNode { uid: "u".into(), covered: false, ready: true })
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_causes_no_list_of_all_objects() {
    let (sender, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let parts = Parts::new(fake::cluster(move |call| {
        sender.send(call.clone()).unwrap();
        let (method, path) = call.split_once(' ').unwrap();
        let (kind, name) = path.rsplit_once('/').unwrap();
        let object = |name: &str| {
            let managed = json!([{"manager": "numacast", "fieldsV1": {"f:zones": {}}}]);
            json!({"metadata": {
                "name": name, "uid": name, "resourceVersion": "1", "managedFields": managed,
            }})
        };
        let details = json!({"name": name, "kind": kind.rsplit_once('/').unwrap().1});
        let not_found = json!({"status": "Failure", "code": 404, "reason": "NotFound", "details": details});
        let response = match (method, name.split('?').next().unwrap()) {
            ("GET", "nodes") => (200, json!({"metadata": {}, "items": [{}]})),
            ("GET", "noderesourcetopologies") => {
                let items = ["a", "b", "c"].map(object);
                (200, json!({"metadata": {}, "items": items}))
            }
            ("GET", "b") if kind.ends_with("noderesourcetopologies") => (200, object("b")),
            ("DELETE", _) => (200, json!({"status": "Success"})),
            // The Nodes, and the object that the Node owned.
            _ => (404, not_found),
        };
        async move { response }
    }));
    let workers = parts.workers();
    {
        let mut state = workers.state();
        state.nodes.apply(WatchEvent::Init);
        for name in ["a", "b", "c"] {
            state.nodes.apply(WatchEvent::InitApply(node(name)));
        }
        state.nodes.apply(WatchEvent::InitDone);
    }
    let grace = workers.settings.garbage.grace;
    assert!(tokio::time::timeout(grace, workers.collect_garbage()).await.is_err());
    let lists = |calls: &[String]| calls.iter().filter(|call| call.contains("limit=250")).count();
    let mut at_start = Vec::new();
    calls.recv_many(&mut at_start, 100).await;
    assert_eq!((at_start.len(), lists(&at_start)), (1, 1), "{at_start:?}");
    {
        let mut state = workers.state();
        for name in ["a", "b"] {
            state.nodes.apply(WatchEvent::Delete(node(name)));
            state.garbage.node_deleted(name.into(), Instant::now());
        }
    }
    // Until just before the interval.
    let interval = workers.settings.garbage.interval;
    assert!(tokio::time::timeout(interval - grace * 2, workers.collect_garbage()).await.is_err());
    let mut then = Vec::new();
    calls.recv_many(&mut then, 100).await;
    assert_eq!(lists(&then), 0, "{then:?}");
    let deleted: Vec<_> = then.iter().filter(|call| call.starts_with("DELETE")).collect();
    assert!(matches!(&*deleted, [call] if call.contains("noderesourcetopologies/b")), "{then:?}");
    assert!(then.iter().any(|call| call.starts_with("GET") && call.contains("/nodes/b")), "{then:?}");
    assert!(tokio::time::timeout(grace * 2, workers.collect_garbage()).await.is_err());
    let mut at_interval = Vec::new();
    calls.recv_many(&mut at_interval, 100).await;
    assert_eq!(lists(&at_interval), 1, "{at_interval:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_response_that_a_node_is_gone_is_requested_again() {
    let requests = AtomicUsize::new(0);
    let parts = Parts::new(fake::cluster(move |_| {
        // The first response is slow, and meanwhile the Node registers.
        let is_first = requests.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if !is_first {
                return (200, json!({"metadata": {"name": "a"}}));
            }
            sleep(MAX_AGE * 2).await;
            let details = json!({"name": "a", "kind": "nodes"});
            (404, json!({"status": "Failure", "code": 404, "reason": "NotFound", "details": details}))
        }
    }));
    assert!(!parts.workers().is_node_gone("a").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn held_back_garbage_is_reported_however_many_agents_are_not_ready() {
    let parts = Parts::new(fake::cluster(|_| async { (201, json!({"metadata": {"name": "e"}})) }));
    let workers = parts.workers();
    let node = Regarding::Node { name: "a", uid: "u" };
    while workers.events.post(Reason::AgentNotReady, node, "").await {}
    let mut reported = Reported::default();
    workers.hold_back(&Doubt::NoNodes { objects: 3 }, &mut reported).await;
    assert!(reported.is_posted);
    // An Event suppressed by the rate limit is posted later.
    while workers.events.post(Reason::GarbageHeldBack, Regarding::Objects, "").await {}
    workers.hold_back(&Doubt::NodesUnknown, &mut reported).await;
    assert!(!reported.is_posted);
    tokio::time::advance(Duration::from_secs(60)).await;
    workers.hold_back(&Doubt::NodesUnknown, &mut reported).await;
    assert!(reported.is_posted);
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_end_a_pass() {
    let (sender, mut deletions) = tokio::sync::mpsc::unbounded_channel();
    let parts = Parts::new(fake::cluster(move |call| {
        let name = call.rsplit('/').next().and_then(|name| name.split('?').next()).unwrap().to_owned();
        let response = match call.starts_with("DELETE") {
            true if name == "4" => (200, json!({"status": "Success"})),
            true => (500, json!({"status": "Failure", "code": 500, "reason": "InternalError"})),
            false => {
                let details = json!({"name": name, "kind": "nodes"});
                (404, json!({"status": "Failure", "code": 404, "reason": "NotFound", "details": details}))
            }
        };
        if call.starts_with("DELETE") {
            sender.send(name).unwrap();
        }
        async move { response }
    }));
    let workers = parts.workers();
    workers.state().nodes.apply(WatchEvent::InitDone);
    let metas = (0..MAX_FAILURES_IN_A_ROW * 2).map(|n| NrtMeta::ours(&n.to_string())).collect();
    workers.delete_each(metas, &mut Reported::default()).await.unwrap();
    let mut names = Vec::new();
    deletions.recv_many(&mut names, 100).await;
    let expected: Vec<String> = (0..5 + MAX_FAILURES_IN_A_ROW).map(|n| n.to_string()).collect();
    assert_eq!(names, expected, "a success starts the count anew");
}
