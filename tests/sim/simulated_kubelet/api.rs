//! The simulated podresources API, its versions and its faults.

use std::collections::BTreeSet;
use std::time::Duration;

use numacast::kubelet::{Allocatable, ClientError, ConfigFiles, KubeletConfig};
use numacast_sim::kubelet::{Call, ClaimedDevice, Fault, KubeletVersion, Options, PodSpec, Role};
use tonic::Code;

use super::{Node, immediate, role, spec};

#[tokio::test]
async fn a_pending_pod_is_listed_without_resources_and_a_rejected_one_leaves() {
    let mut node = Node::new(&spec("single-numa-node"), immediate());
    node.kubelet.add_pod(PodSpec::guaranteed("wide", 12, 1 << 30)).unwrap();
    let (usage, ..) = node.client.list().await.unwrap();
    assert!(usage.pods[0].containers[0].cpus.is_empty());
    assert!(node.kubelet.add_pod(PodSpec::new("wide")).is_err());
    assert!(node.kubelet.admit_pod("uid-wide").is_err());
    assert!(node.client.list().await.unwrap().0.pods.is_empty());
}

#[tokio::test]
async fn old_kubelets_list_terminated_pods() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("job", 2, 0)).await.unwrap();
    assert!(node.kubelet.terminate_pod("default", "job"));
    assert!(node.client.list().await.unwrap().0.pods.is_empty());
    node.kubelet.set_version(KubeletVersion::V1_29);
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].name, "job");
    assert_eq!(node.get("job").await.unwrap_err(), "PodResources API Get method disabled");
}

#[tokio::test]
async fn old_kubelets_list_terminated_pods_without_devices() {
    let options = Options { version: KubeletVersion::V1_29, release_lag: Duration::MAX, ..immediate() };
    let mut node = Node::new(&spec("best-effort"), options);
    let pod = PodSpec::guaranteed("job", 2, 1 << 30).devices("example.com/nic", 1);
    node.kubelet.start_pod(pod).await.unwrap();
    node.kubelet.terminate_pod("default", "job");
    let (usage, ..) = node.client.list().await.unwrap();
    let job = usage.pods[0].containers[0].clone();
    assert_eq!((job.cpus.len(), job.memory.len(), job.devices.len()), (2, 1, 0));
    assert_eq!(node.kubelet.expected().zones[&0]["cpu"].available, 6, "a terminated pod has no resources");
    node.kubelet.reconcile();
    let (usage, ..) = node.client.list().await.unwrap();
    let job = usage.pods[0].containers[0].clone();
    assert_eq!((job.cpus.len(), job.memory.len()), (0, 1));
}

#[tokio::test]
async fn get_returns_one_pod() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 0)).await.unwrap();
    assert_eq!(node.get("db").await.unwrap().containers[0].cpus.to_string(), "1,5");
    assert_eq!(node.get("missing").await.unwrap_err(), "pod missing in namespace default not found");
}

#[tokio::test]
async fn faults_affect_the_next_calls_in_order() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    for name in ["c", "b", "a"] {
        node.kubelet.start_pod(PodSpec::new(name)).await.unwrap();
    }
    let kubelet = &node.kubelet;
    kubelet.fail_next(Call::List, 1, &Fault::Status(Code::Internal, "broken".into()));
    kubelet.fail_next(Call::List, 1, &Fault::Empty);
    kubelet.fail_next(Call::List, 1, &Fault::Partial(2));
    kubelet.fail_next(Call::List, 1, &Fault::Oversize(17 << 20));
    kubelet.fail_next(Call::List, 1, &Fault::Delay(Duration::from_millis(1)));
    let error = node.client.list().await.unwrap_err();
    assert_eq!(error.to_string(), "the kubelet responded to List with Internal: broken");
    assert_eq!(node.client.list().await.unwrap().0.pods.len(), 0);
    let mut oldest: Vec<_> =
        node.client.list().await.unwrap().0.pods.iter().map(|pod| pod.name.clone()).collect();
    oldest.sort();
    assert_eq!(oldest, ["b", "c"]);
    let error = node.client.list().await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { .. }), "{error}");
    assert_eq!(node.client.list().await.unwrap().0.pods.len(), 3);
    assert_eq!(node.kubelet.calls().list, 5);
}

#[tokio::test]
async fn a_restart_drops_plugins_and_lists_no_pods_at_first() {
    let mut node = Node::new(&spec("best-effort"), immediate());
    node.kubelet.start_pod(PodSpec::guaranteed("net", 2, 0).devices("example.com/nic", 1)).await.unwrap();
    let first = node.client.list().await.unwrap().1;
    node.kubelet.stop();
    assert!(!node.kubelet.socket().exists());
    assert!(node.client.list().await.is_err(), "the old connection is closed");
    node.kubelet.boot().unwrap();
    let (usage, second) = node.client.list().await.unwrap();
    assert!(usage.pods.is_empty());
    assert_ne!(first, second);
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!(allocatable, Allocatable::default());
    node.kubelet.set_ready(true, true);
    let allocatable = node.client.allocatable().await.unwrap().0;
    assert_eq!((allocatable.cpus.len(), allocatable.devices.len()), (14, 0));
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].cpus.to_string(), "1,5", "allocations outlive the process");
    node.kubelet.register_plugin("example.com/nic", true);
    assert_ne!(node.client.allocatable().await.unwrap().0.devices.len(), 0);
    node.kubelet.restart().await.unwrap();
    assert_ne!(node.client.allocatable().await.unwrap().0.devices.len(), 0);
}

#[tokio::test]
async fn the_socket_and_the_checkpoints_appear_by_rename() {
    use inotify::{EventMask, Inotify, WatchMask};
    let node = Node::new(&spec("best-effort"), immediate());
    let mut inotify = Inotify::init().unwrap();
    for directory in ["pod-resources", "."] {
        let mask = WatchMask::CREATE | WatchMask::MODIFY | WatchMask::MOVED_TO;
        inotify.watches().add(node.dir.path().join(directory), mask).unwrap();
    }
    node.kubelet.stop();
    node.kubelet.boot().unwrap();
    node.kubelet.start_pod(PodSpec::guaranteed("db", 2, 1 << 30)).await.unwrap();
    let mut buffer = [0; 65536];
    let mut moved = BTreeSet::new();
    for event in inotify.read_events(&mut buffer).unwrap() {
        let name = event.name.unwrap().to_str().unwrap().to_owned();
        if event.mask == EventMask::MOVED_TO {
            moved.insert(name);
        } else {
            assert!(name.starts_with('.'), "{name}: {:?}", event.mask);
        }
    }
    let expected = ["cpu_manager_state", "kubelet.sock", "memory_manager_state"];
    assert_eq!(moved, expected.map(str::to_owned).into());
}

#[tokio::test]
async fn the_configuration_file_is_valid() {
    let node = Node::new(&spec("single-numa-node"), immediate());
    let files = ConfigFiles { kubelet_dir: node.dir.path().to_owned(), ..ConfigFiles::default() };
    let (config, errors) = files.read().unwrap();
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(config.topology_manager_policy, "single-numa-node");
    assert_eq!(config.reserved_system_cpus.to_string(), "0,4");
    assert_ne!(config, KubeletConfig::default());
}

#[tokio::test]
async fn responses_are_in_random_order_that_depends_on_the_seed() {
    let order = async |seed: u64| {
        let mut node = Node::new(&spec("best-effort"), Options { seed, ..immediate() });
        for number in 0..8 {
            node.kubelet.start_pod(PodSpec::new(&format!("pod-{number}"))).await.unwrap();
        }
        let pods = node.client.list().await.unwrap().0.pods;
        pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>()
    };
    assert_eq!(order(1).await, order(1).await);
    assert_ne!(order(1).await, order(2).await);
}

#[tokio::test]
async fn claimed_devices_are_listed_and_not_counted() {
    let options = Options { version: KubeletVersion::V1_35, ..immediate() };
    let mut node = Node::new(&spec("single-numa-node"), options);
    let claimed = |device: &str, share: Option<&str>| ClaimedDevice {
        claim: "gpus".into(),
        driver: "gpu.example.com".into(),
        pool: "worker".into(),
        device: device.into(),
        share: share.map(str::to_owned),
    };
    let mut pod = PodSpec::new("train");
    pod.containers[0].claims = vec![claimed("gpu-0", None), claimed("gpu-1", Some("half"))];
    let empty = node.kubelet.expected();
    node.kubelet.start_pod(pod).await.unwrap();
    assert_eq!(node.kubelet.expected(), empty);
    let resources = node.dynamic_resources().await;
    assert_eq!((resources.len(), resources[0].claim_name.as_str()), (1, "gpus"));
    let names: Vec<usize> = resources[0].claim_resources.iter().map(|of| of.cdi_devices.len()).collect();
    assert_eq!(names, [1, 2]);
    let (usage, ..) = node.client.list().await.unwrap();
    assert_eq!(usage.pods[0].containers[0].claimed[1].share.as_deref(), Some("half"));
    node.kubelet.set_version(KubeletVersion::V1_34);
    assert_eq!(node.dynamic_resources().await[0].claim_resources[1].share_id, None);
    node.kubelet.set_version(KubeletVersion::V1_29);
    assert!(node.dynamic_resources().await.is_empty());
}

#[tokio::test]
async fn each_version_lacks_later_features() {
    let mut node = Node::new(&spec("best-effort"), Options { limited: true, ..immediate() });
    let containers = vec![role("mesh", Role::Sidecar, 1, 1 << 30), role("main", Role::App, 2, 1 << 30)];
    let pod = PodSpec { guaranteed: true, containers, ..PodSpec::new("web") };
    node.kubelet.start_pod(pod).await.unwrap();
    for (version, containers, memory, cpus) in [
        (KubeletVersion::V1_21, 1, 0, 14),
        (KubeletVersion::V1_23, 1, 4, 14),
        (KubeletVersion::V1_29, 2, 4, 14),
        (KubeletVersion::V1_37, 2, 4, 14),
    ] {
        node.kubelet.set_version(version);
        let (usage, ..) = node.client.list().await.unwrap();
        let allocatable = node.client.allocatable().await.unwrap().0;
        let found = (usage.pods[0].containers.len(), allocatable.memory.len(), allocatable.cpus.len());
        assert_eq!(found, (containers, memory, cpus), "{version:?}");
    }
    // A kubelet 1.21 reports only the CPUs that were free at its start.
    node.kubelet.set_version(KubeletVersion::V1_21);
    node.kubelet.restart().await.unwrap();
    assert_eq!(node.client.allocatable().await.unwrap().0.cpus.len(), 11);
    // No limiter before 1.27.
    for _ in 0..50 {
        node.client.list().await.unwrap();
    }
    assert_eq!(node.kubelet.calls().rejected, 0);
}
