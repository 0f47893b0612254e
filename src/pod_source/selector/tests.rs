use numacast_sim::api_server::{ApiServer, PODS};
use numacast_sim::pods_api::SimPodsApi;
use serde_json::json;

use super::trial::INTERVAL;
use super::*;

/// Waits for a complete list, and returns its source and pods. Errors are added to `errors`.
async fn listed(selector: &mut SourceSelector, errors: &mut Vec<String>) -> (PodSourceKind, Vec<String>) {
    let mut names = Vec::new();
    loop {
        match selector.next().await {
            Ok(PodEvent::Init) => names.clear(),
            Ok(PodEvent::InitApply(pod)) => names.push(pod.name),
            Ok(PodEvent::InitDone) => return (selector.source(), names),
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
}

/// Starts an API server with one pod.
async fn api_server() -> ApiServer {
    let server = ApiServer::start_on_any_port(0).await.unwrap();
    let metadata = json!({"name": "a", "namespace": "default", "uid": "u"});
    server.put(&PODS, json!({"metadata": metadata, "spec": {"nodeName": "worker"}})).unwrap();
    server
}

fn cluster(server: &ApiServer) -> Cluster {
    Cluster::with_client(server.client().unwrap(), server.url(), Duration::from_secs(10))
}

fn sources(order: &[PodSourceKind], dir: &tempfile::TempDir) -> PodSources {
    PodSources {
        order: order.to_vec(),
        socket: dir.path().join("pods-api.sock"),
        timeout: Duration::from_secs(10),
        interval: Duration::from_secs(5),
        ..PodSources::default()
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_source_that_works_stays_until_it_fails_for_long() {
    let server = api_server().await;
    server.set_denied("list", "pods", true);
    let dir = tempfile::tempdir().unwrap();
    let order = [PodSourceKind::PodsApi, PodSourceKind::ApiServer, PodSourceKind::Kubelet];
    let sources = sources(&order, &dir);
    let socket = sources.socket.clone();
    let mut selector = SourceSelector::new(sources, "worker".to_owned(), Some(cluster(&server)));
    let mut errors = Vec::new();
    for round in 1..3 {
        let error = loop {
            match selector.next().await {
                Ok(event) => assert_eq!(event, PodEvent::Init, "no source works"),
                Err(error) => break error,
            }
        };
        for reason in
            ["no pod source works", "cannot watch the node's pods", "Pods API socket", "credentials"]
        {
            assert!(error.contains(reason), "{round}: {error}");
        }
    }
    let mut kubelet = SimPodsApi::start(socket).unwrap();
    assert_eq!(listed(&mut selector, &mut errors).await, (PodSourceKind::PodsApi, vec![]));
    // It fails for a while and recovers; no other source is tried, although one would work by now.
    server.set_denied("list", "pods", false);
    kubelet.stop();
    errors.clear();
    while errors.len() < 20 {
        errors.extend(selector.next().await.err());
    }
    assert_eq!(selector.source(), PodSourceKind::PodsApi);
    assert!(errors.iter().all(|error| error.contains("pods-api.sock")), "{errors:?}");
    kubelet.restart().unwrap();
    assert_eq!(listed(&mut selector, &mut errors).await, (PodSourceKind::PodsApi, vec![]));
    // It fails for long.
    kubelet.stop();
    let before = Instant::now();
    assert_eq!(listed(&mut selector, &mut errors).await, (PodSourceKind::ApiServer, vec!["a".to_owned()]));
    assert!(before.elapsed() >= FAILURE_TIMEOUT, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_preferred_source_is_switched_to_once_it_has_listed_all_pods() {
    let server = api_server().await;
    let dir = tempfile::tempdir().unwrap();
    let sources = sources(&[PodSourceKind::PodsApi, PodSourceKind::ApiServer], &dir);
    let socket = sources.socket.clone();
    let mut selector = SourceSelector::new(sources, "worker".to_owned(), Some(cluster(&server)));
    let mut errors = Vec::new();
    assert_eq!(listed(&mut selector, &mut errors).await, (PodSourceKind::ApiServer, vec!["a".to_owned()]));
    // A source that is up but cannot list all pods is not switched to.
    let kubelet = SimPodsApi::start(socket).unwrap();
    kubelet.fail_with(Some(tonic::Status::failed_precondition("Kubelet is initializing")));
    let before = Instant::now();
    while before.elapsed() < 3 * INTERVAL {
        let next = tokio::time::timeout(INTERVAL / 10, selector.next()).await;
        assert!(next.is_err(), "{next:?}");
    }
    assert!(kubelet.watch_calls() > 0, "it was tried");
    assert_eq!(selector.source(), PodSourceKind::ApiServer);
    kubelet.fail_with(None);
    assert_eq!(listed(&mut selector, &mut errors).await, (PodSourceKind::PodsApi, vec![]));
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test]
async fn without_a_cluster_only_the_kubelets_pods_api_works() {
    let dir = tempfile::tempdir().unwrap();
    let sources = sources(&[PodSourceKind::ApiServer, PodSourceKind::Kubelet, PodSourceKind::PodsApi], &dir);
    let _kubelet = SimPodsApi::start(sources.socket.clone()).unwrap();
    let mut selector = SourceSelector::new(sources, "worker".to_owned(), None);
    assert_eq!(listed(&mut selector, &mut Vec::new()).await, (PodSourceKind::PodsApi, vec![]));
}
