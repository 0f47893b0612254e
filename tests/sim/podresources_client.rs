//! The podresources client against every kind of kubelet response.

use std::time::Duration;

use numacast::kubelet::ClientError;
use numacast_sim::kubelet::{Call, Fault, KubeletVersion, Options, PodSpec};
use tonic::Code;

use crate::support::Node;

const GIB: u64 = 1 << 30;

#[tokio::test]
async fn list_and_allocatable_show_what_is_allocated() {
    let node = Node::start();
    let spec = PodSpec::guaranteed("a", 2, GIB).devices("example.com/nic", 1);
    let allocations = node.kubelet.start_pod(spec).await.unwrap();
    let mut client = node.client();

    let (usage, _) = client.list().await.unwrap();
    let container = &usage.pods[0].containers[0];
    assert_eq!(container.cpus, allocations[0].cpus);
    assert_eq!(container.memory.iter().map(|block| block.bytes).sum::<u64>(), GIB);
    assert_eq!(container.devices.len(), 1);

    let (allocatable, _) = client.allocatable().await.unwrap();
    assert!(container.cpus.difference(&allocatable.cpus).is_empty());
    assert!(allocatable.devices.iter().any(|group| group.resource == "example.com/nic"));
}

#[tokio::test]
async fn a_kubelet_without_get_allocatable_is_unsupported() {
    for version in [KubeletVersion::V1_20, KubeletVersion::OnlyV1alpha1] {
        let node = Node::with(Options { version, limited: false, ..Options::default() });
        let sentence = node.client().allocatable().await.unwrap_err().to_string();
        assert_eq!(
            sentence,
            format!(
                "the kubelet at {} does not serve GetAllocatableResources (numacast needs kubelet 1.23 or \
                 later, or 1.21 with the feature gate KubeletPodResourcesGetAllocatable)",
                node.kubelet.socket().display()
            )
        );
    }
}

#[tokio::test]
async fn a_rate_limit_differs_from_a_response_that_is_too_large() {
    let node = Node::start();
    let mut client = node.client();
    node.kubelet.fail_next(Call::List, 1, &Fault::rate_limited());
    assert_eq!(client.list().await.unwrap_err(), ClientError::RateLimited("List"));

    // What a Go client in between reports for a response above its own limit.
    let large = "grpc: received message larger than max (5000000 vs. 4194304)";
    node.kubelet.fail_next(Call::List, 1, &Fault::Status(Code::ResourceExhausted, large.into()));
    let expected = ClientError::TooLarge { call: "List", detail: large.into() };
    assert_eq!(client.list().await.unwrap_err(), expected);

    node.kubelet.fail_next(Call::List, 1, &Fault::Oversize(17 << 20));
    assert!(matches!(client.list().await.unwrap_err(), ClientError::TooLarge { call: "List", .. }));

    // The limit is sixteen MiB, not tonic's four.
    node.kubelet.fail_next(Call::List, 1, &Fault::Oversize(5 << 20));
    client.list().await.unwrap();
}

#[tokio::test]
async fn exceeding_the_kubelets_rate_limit_is_an_error() {
    let node = Node::with(Options::default());
    // At the same time: on a busy machine fewer might be sent than the limit allows.
    let calls = (0..200).map(|_| async { node.client().list().await });
    let mut rejected = 0;
    for result in futures::future::join_all(calls).await {
        match result {
            Ok(_) => {}
            Err(ClientError::RateLimited("List")) => rejected += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(node.kubelet.calls().rejected, rejected);
    assert!(rejected > 0);
}

#[tokio::test]
async fn a_call_that_gets_no_response_times_out() {
    let node = Node::start();
    let mut client = node.client_with_short_timeout();
    client.list().await.unwrap();
    node.kubelet.fail_next(Call::List, 1, &Fault::Hang);
    let error = client.list().await.unwrap_err();
    let expected = ClientError::Deadline {
        path: node.kubelet.socket(),
        call: "List",
        after: Duration::from_millis(200),
    };
    assert_eq!(error, expected);
    client.list().await.unwrap();
}

#[tokio::test]
async fn any_other_status_is_reported_with_its_message() {
    let node = Node::start();
    let mut client = node.client();
    node.kubelet.fail_next(Call::List, 1, &Fault::Status(Code::Internal, "the disk is full".into()));
    let sentence = client.list().await.unwrap_err().to_string();
    assert_eq!(sentence, "the kubelet responded to List with Internal: the disk is full");
}

#[tokio::test]
async fn a_restarted_kubelet_gets_a_new_connection() {
    let node = Node::start();
    let mut client = node.client();
    let (_, first) = client.list().await.unwrap();
    let (_, same) = client.list().await.unwrap();
    assert_eq!(first, same);
    for _ in 0..3 {
        node.kubelet.restart().await.unwrap();
        let (_, next) = client.list().await.unwrap();
        assert_ne!(next, first);
        let (_, allocatable) = client.allocatable().await.unwrap();
        assert_eq!(allocatable, next);
    }
}

#[tokio::test]
async fn a_missing_socket_or_one_without_a_listener_is_an_error() {
    let node = Node::start();
    let mut client = node.client();
    client.list().await.unwrap();
    node.kubelet.stop();
    let socket = node.kubelet.socket();
    assert!(matches!(
        client.list().await.unwrap_err(),
        ClientError::Refused(path) | ClientError::NoSocket(path) if path == socket
    ));
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    assert_eq!(client.list().await.unwrap_err(), ClientError::NoSocket(socket));
}

#[tokio::test]
async fn a_new_socket_at_the_path_replaces_a_working_connection() {
    let node = Node::start();
    let other = Node::start();
    other.kubelet.start_pod(PodSpec::new("other")).await.unwrap();
    let mut client = node.client();
    assert_eq!(client.list().await.unwrap().0.pods.len(), 0);
    std::fs::rename(other.kubelet.socket(), node.kubelet.socket()).unwrap();
    assert_eq!(client.list().await.unwrap().0.pods[0].name, "other");
}
