//! `numacast snapshot` on a simulated node.

use assert_cmd::Command;
use numacast::nrt::NodeResourceTopology;
use numacast_sim::kubelet::{KubeletVersion, Options, PodSpec, Split};

use crate::support::Node;

const GIB: u64 = 1 << 30;

async fn busy_node() -> Node {
    let node = Node::start();
    let pods = [
        PodSpec::guaranteed("a", 2, GIB).hugepages("hugepages-2Mi", 64 << 20).devices("example.com/nic", 1),
        PodSpec::guaranteed("b", 3, GIB),
        PodSpec::new("c"),
    ];
    for pod in pods {
        node.kubelet.start_pod(pod).await.unwrap();
    }
    node
}

/// Runs the binary on another thread, since this one drives the simulated kubelet.
async fn numacast(args: Vec<String>) -> (Option<i32>, String, String) {
    let run =
        move || Command::new(env!("CARGO_BIN_EXE_numacast")).args(args).env("NODE_NAME", "worker").output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

async fn snapshot(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    let root = node.root().to_str().unwrap();
    let all = [&["snapshot", "--host-root", root], args].concat();
    numacast(all.into_iter().map(str::to_owned).collect()).await
}

#[tokio::test]
async fn json_and_yaml_have_the_expected_zones() {
    let node = busy_node().await;
    let (code, json, warnings) = snapshot(&node, &["-o", "json"]).await;
    assert_eq!((code, warnings.as_str()), (Some(0), ""));
    let object: NodeResourceTopology = serde_json::from_str(&json).unwrap();
    assert_eq!(object.metadata.name.as_deref(), Some("worker"));
    assert_eq!(node.kubelet.expected().differences(&object, Split::PerGroup), Vec::<String>::new());
    let (_, yaml, _) = snapshot(&node, &[]).await;
    let from_yaml: NodeResourceTopology = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(from_yaml, object);
}

#[tokio::test]
async fn the_same_state_gives_the_same_bytes() {
    // Like the real one, the simulated kubelet returns a different order each time.
    let node = busy_node().await;
    let (_, first, _) = snapshot(&node, &[]).await;
    for _ in 0..3 {
        assert_eq!(snapshot(&node, &[]).await.1, first);
    }
}

#[tokio::test]
async fn a_recording_gives_the_same_bytes_without_the_node() {
    let node = busy_node().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bug.json").to_str().unwrap().to_owned();
    let (code, live, _) = snapshot(&node, &["--record", &file]).await;
    assert_eq!(code, Some(0));
    drop(node);
    let (code, replayed, warnings) = numacast(vec!["snapshot".into(), "--replay".into(), file]).await;
    assert_eq!((code, warnings.as_str()), (Some(0), ""));
    assert_eq!(replayed, live);
}

/// Resource exclusions of this node, of all nodes and of another one, and a pod pattern.
const EXCLUSIONS: [&str; 4] = [
    "--set",
    r#"exclude.resources={"*": [example.com/nic], worker: [hugepages-1Gi], other: [cpu]}"#,
    "--set",
    "exclude.pods=[{namespace: 'infra-*'}]",
];

/// Returns a pod in another namespace that requests some of everything.
fn infra(name: &str) -> PodSpec {
    let pod = PodSpec::guaranteed(name, 3, GIB).hugepages("hugepages-2Mi", 64 << 20);
    PodSpec { namespace: "infra-1".into(), ..pod.devices("example.com/bridge", 1) }
}

#[tokio::test]
async fn excluded_resources_are_omitted_and_excluded_pods_are_not_counted() {
    let node = busy_node().await;
    let without_infra = node.kubelet.expected();
    node.kubelet.start_pod(infra("x")).await.unwrap();
    let differences = |json: &str| {
        let object: NodeResourceTopology = serde_json::from_str(json).unwrap();
        without_infra.differences(&object, Split::PerGroup)
    };
    let (code, json, warnings) = snapshot(&node, &[&["-o", "json"], EXCLUSIONS.as_slice()].concat()).await;
    assert_eq!(code, Some(0), "{warnings}");
    let found: Vec<String> = differences(&json);
    let places: Vec<&str> = found.iter().map(|line| line.split(" instead").next().unwrap()).collect();
    let missing =
        ["node-0 example.com/nic", "node-0 hugepages-1Gi", "node-1 example.com/nic", "node-1 hugepages-1Gi"];
    assert_eq!(places, missing.map(|place| format!("{place}: nothing")), "{json}");
    for text in
        ["hugepages-1Gi is excluded: ", "example.com/nic is excluded: ", "pods infra-*/* are excluded: "]
    {
        assert_eq!(warnings.matches(text).count(), 1, "{warnings}");
    }
    let (_, counted, _) = snapshot(&node, &["-o", "json"]).await;
    assert!(differences(&counted).iter().any(|line| line.contains("cpu")), "{counted}");
    let (_, outside, _) = snapshot(&node, &["-o", "json", "--set", "exclude.outsideNamespace=default"]).await;
    assert_eq!(differences(&outside), Vec::<String>::new());
}

#[tokio::test]
async fn a_recording_contains_exclusions_only_if_there_are_any() {
    let node = busy_node().await;
    node.kubelet.start_pod(infra("x")).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bug.json").to_str().unwrap().to_owned();
    let args = [&["--record", &file], EXCLUSIONS.as_slice()].concat();
    let (code, live, _) = snapshot(&node, &args).await;
    assert_eq!(code, Some(0));
    let replay = || numacast(vec!["snapshot".into(), "--replay".into(), file.clone()]);
    let (code, replayed, warnings) = replay().await;
    assert_eq!((code, replayed), (Some(0), live));
    assert!(warnings.contains("pods infra-*/* are excluded: "), "{warnings}");
    // The format that older versions write and read.
    snapshot(&node, &["--record", &file]).await;
    assert!(!std::fs::read_to_string(&file).unwrap().contains("\"exclude\""));
    assert_eq!(replay().await.2, "");
}

#[tokio::test]
async fn a_malformed_sysfs_file_is_one_warning_and_affects_one_zone() {
    let node = busy_node().await;
    let (_, before, _) = snapshot(&node, &["-o", "json"]).await;
    let file = "sys/devices/system/node/node0/cpulist";
    std::fs::write(node.root().join(file), "0-7,x\n").unwrap();
    let (code, after, warnings) = snapshot(&node, &["-o", "json"]).await;
    assert_eq!(code, Some(0));
    let expected =
        format!("{file}: `0-7,x` is not a list of ids such as 0-3,8; no CPUs of this node are known");
    assert_eq!(warnings.lines().filter(|line| line.ends_with(&expected)).count(), 1, "{warnings}");
    let zones = |json: &str| -> NodeResourceTopology { serde_json::from_str(json).unwrap() };
    let (before, after) = (zones(&before).spec.zones, zones(&after).spec.zones);
    assert_eq!(after[1], before[1]);
    let cpu = |zone: &numacast::nrt::Zone| {
        let resources = zone.resources.clone().unwrap();
        resources.into_iter().find(|resource| resource.name == "cpu").unwrap().available.ceil()
    };
    assert_eq!(cpu(&after[0]), 0, "CPUs that cannot be read are not available");
    assert!(cpu(&before[0]) > 0);
}

#[tokio::test]
async fn without_a_numa_directory_there_is_one_zone() {
    let node = busy_node().await;
    std::fs::remove_dir_all(node.root().join("sys/devices/system/node")).unwrap();
    let (code, json, _) = snapshot(&node, &["-o", "json"]).await;
    assert_eq!(code, Some(0));
    let object: NodeResourceTopology = serde_json::from_str(&json).unwrap();
    let names: Vec<&str> = object.spec.zones.iter().map(|zone| zone.name.as_str()).collect();
    assert_eq!(names, ["node-0"]);
    let resources = object.spec.zones[0].resources.as_ref().unwrap();
    let cpu = resources.iter().find(|resource| resource.name == "cpu").unwrap();
    assert_eq!(cpu.capacity.ceil(), 16);
}

#[tokio::test]
async fn kubelets_that_are_too_old_are_an_error_of_one_line() {
    for (version, expected) in [
        (KubeletVersion::V1_20, "does not serve GetAllocatableResources (numacast needs kubelet 1.23"),
        (KubeletVersion::OnlyV1alpha1, "does not serve List (numacast needs kubelet 1.23"),
    ] {
        let node = Node::with(Options { version, limited: false, ..Options::default() });
        let (code, stdout, stderr) = snapshot(&node, &[]).await;
        assert_eq!((code, stdout.as_str()), (Some(1), ""));
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
