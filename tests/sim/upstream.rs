//! One connection for many askers, against everything a kubelet can answer.

use std::sync::Arc;
use std::time::Duration;

use numacast::kubelet::{Ask, Asker, ClientError, Flight, Refusal, Upstream, usage_of};
use numacast::sim::kubelet::{Age, Call, Fault, Options, PodSpec};
use tonic::Code;

use crate::support::SimNode;

const TIMEOUT: Duration = Duration::from_secs(4);

fn upstream(node: &SimNode) -> Upstream {
    Upstream::start(node.kubelet.socket(), TIMEOUT, Arc::new(()))
}

fn get(name: &str) -> Ask {
    Ask::Get { namespace: "default".to_owned(), name: name.to_owned() }
}

fn names(flight: &Flight) -> Vec<String> {
    usage_of(flight.bytes.clone()).unwrap().pods.into_iter().map(|pod| pod.name).collect()
}

#[tokio::test]
async fn each_question_has_its_answer() {
    let node = SimNode::start();
    node.kubelet.start_pod(PodSpec::new("a").devices("example.com/nic", 1)).await.unwrap();
    let upstream = upstream(&node);
    let flight = upstream.ask(Ask::List, Asker::Proxy).await.unwrap();
    assert_eq!(names(&flight), ["a"]);
    // An answer to Get is a List of one.
    assert_eq!(names(&upstream.ask(get("a"), Asker::Proxy).await.unwrap()), ["a"]);
    assert_eq!(node.kubelet.calls().get, 1);
    let old = upstream.ask(Ask::ListV1alpha1, Asker::Proxy).await.unwrap();
    assert_eq!(names(&old), ["a"]);
    assert!(!upstream.ask(Ask::Allocatable, Asker::Proxy).await.unwrap().bytes.is_empty());
    let missing = upstream.ask(get("b"), Asker::Proxy).await.unwrap_err();
    assert_eq!(missing.status.code(), Code::Unknown);
    assert_eq!(missing.status.message(), "pod b in namespace default not found");
}
