//! Tables: every sample of Koordinator's formats, and every defect of its proxy by name. Random responses are
//! in `random`.

mod mapped;
mod random;
mod said;
mod zones;

use std::sync::Arc;

use prost::Message;
use prost::bytes::Bytes;

use super::*;
use crate::cluster::{Device, Devices};
use crate::kubelet::proto::{v1, v1alpha1};
use crate::machine::{Id, RecordedFiles};
use crate::pod::{Annotation, Container, ContainerKind, Life, Phase, Pod};

pub(super) const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";

/// A container, its kind by the first letter of its name: `sidecar`, `init`, else a regular one.
pub(super) fn container(name: &str, others: &[(&str, u64)]) -> Container {
    let kind = match name.as_bytes()[0] {
        b's' => ContainerKind::Sidecar,
        b'i' => ContainerKind::Init,
        _ => ContainerKind::App,
    };
    let mut others: Vec<(Box<str>, u64)> = others.iter().map(|(name, n)| ((*name).into(), *n)).collect();
    others.sort();
    Container { name: name.into(), kind, others: others.into(), ..Container::default() }
}

/// A pod with one annotation.
pub(super) fn pod(name: &str, key: &str, text: &str, containers: &[Container]) -> Pod {
    Pod {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        phase: Phase::Running,
        containers: containers.into(),
        annotations: [(key.into(), Annotation::Text(text.into()))].into(),
        ..Pod::default()
    }
}

/// As `<container>: <resource>=<id>,<id>@<nodes> ...`, pod by pod.
pub(super) fn shown(answer: &Bytes) -> Vec<String> {
    let answer = v1::ListPodResourcesResponse::decode(answer.clone()).unwrap();
    answer.pod_resources.iter().flat_map(shown_pod).collect()
}

fn shown_pod(pod: &v1::PodResources) -> Vec<String> {
    let group = |group: &v1::ContainerDevices| {
        let nodes = group.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id);
        let nodes: Vec<String> = nodes.map(|id| id.to_string()).collect();
        let place = if nodes.is_empty() { String::new() } else { format!("@{}", nodes.join("+")) };
        format!(" {}={}{place}", group.resource_name, group.device_ids.join(","))
    };
    let shown = |container: &v1::ContainerResources| {
        let groups: String = container.devices.iter().map(group).collect();
        format!("{}/{}:{groups}", pod.name, container.name)
    };
    pod.containers.iter().map(shown).collect()
}

/// The kubelet's response about these pods, with nothing allocated.
pub(super) fn answer(pods: &[Pod]) -> v1::ListPodResourcesResponse {
    let container = |container: &Container| v1::ContainerResources {
        name: container.name.to_string(),
        ..Default::default()
    };
    let listed = |pod: &Pod| v1::PodResources {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        containers: pod
            .containers
            .iter()
            .filter(|container| container.kind != ContainerKind::Init)
            .map(container)
            .collect(),
        ..Default::default()
    };
    v1::ListPodResourcesResponse { pod_resources: pods.iter().map(listed).collect() }
}

pub(super) fn bytes(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// Rules as configured in YAML.
pub(super) fn rules(yaml: &str) -> Rules {
    Rules::new(&serde_saphyr::from_str(yaml).unwrap(), false)
}

/// The rules of the default configuration.
fn plain() -> Rules {
    Rules::new(&Annotations::default(), false)
}

/// A device as Koordinator reports it.
pub(super) fn device(kind: &str, id: &str, minor: i64, node: Option<Id>) -> Device {
    let (kind, id) = (kind.into(), id.into());
    Device { kind, id, minor: Some(minor), healthy: true, node, ..Device::default() }
}

/// A node whose devices are reported.
pub(super) fn reported(vendor: &str, devices: &[Device]) -> Node {
    Node::new(Some(Arc::new(Devices { vendor: vendor.into(), devices: devices.into() })), Arc::default())
}

/// What the List shows for these pods on that node, merged according to `rules`.
pub(super) fn merged(rules: &Rules, pods: &[Pod], node: &Node) -> Vec<String> {
    shown(&rules.plan(pods.iter(), node).list(&bytes(&answer(pods)), Version::V1).unwrap().bytes)
}

/// The same for one pod with these containers.
fn of_pod(text: &str, containers: &[Container], node: &Node) -> Vec<String> {
    merged(&plain(), &[pod("p", DEVICES, text, containers)], node)
}

/// The same for one pod with one container that requests nothing.
fn of(text: &str, node: &Node) -> String {
    of_pod(text, &[container("main", &[])], node).remove(0)
}

/// The kinds of problems, and how many ids each left out.
pub(super) fn problems(plan: &Plan) -> Vec<(&'static str, usize)> {
    plan.problems().iter().map(|problem| (problem.kind.name(), problem.ids)).collect()
}

#[test]
fn every_sample_of_the_format_is_read() {
    let nothing = Node::default();
    let known = reported("", &[device("gpu", "GPU-b", 1, Some(1))]);
    let samples = [
        (
            r#"{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"16Gi",
                "koordinator.sh/gpu-memory-ratio":"100"}}]}"#,
            "p/main:",
        ),
        (
            r#"{"gpu":[{"minor":0,"id":"GPU-8c25ea37-2909-6e62-b7bf-e2fcadebea8d"}],
                "rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"100"},"id":"0000:1f:00.0"}]}"#,
            "p/main: nvidia.com/gpu=GPU-8c25ea37-2909-6e62-b7bf-e2fcadebea8d koordinator.sh/rdma=0000:1f:00.0",
        ),
        (
            r#"{"gpu":[{"id":"0"}],"rdma":[{"minor":0,"resources":{"koordinator.sh/rdma":"1"},"id":"0000:01:00.0",
                "extension":{"vfs":[{"minor":-1,"busID":"0000:01:00.2"}]}}]}"#,
            "p/main: nvidia.com/gpu=0 koordinator.sh/rdma=0000:01:00.2",
        ),
        (r#"{"gpu":[{"id":"0"}]}"#, "p/main: nvidia.com/gpu=0"),
        (r#"{"gpu":[{"minor":0,"resources":null,"id":"GPU-a"}]}"#, "p/main: nvidia.com/gpu=GPU-a"),
        (
            r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":100},"id":"GPU-a"}]}"#,
            "p/main: nvidia.com/gpu=GPU-a",
        ),
        (
            r#"{"rdma":[{"minor":0,"id":"0000:01:00.0","extension":{"vfs":[]}}]}"#,
            "p/main: koordinator.sh/rdma=0000:01:00.0",
        ),
        (
            r#"{"rdma":[{"minor":0,"id":"0000:01:00.0","extension":{}}]}"#,
            "p/main: koordinator.sh/rdma=0000:01:00.0",
        ),
        (
            r#"{"rdma":[{"minor":0,"id":"0000:01:00.0","extension":null,"new":[1]}]}"#,
            "p/main: koordinator.sh/rdma=0000:01:00.0",
        ),
        ("incorrect-device-allocation-annotation", "p/main:"),
        ("{}", "p/main:"),
        ("null", "p/main:"),
        (r#"{"gpu":null,"rdma":[]}"#, "p/main:"),
    ];
    for (text, expected) in samples {
        assert_eq!(of(text, &nothing), expected, "{text}");
    }
    assert_eq!(of(samples[0].0, &known), "p/main: nvidia.com/gpu=GPU-b@1", "found by its number");
}

#[test]
fn defect_1_a_sidecar_does_not_get_what_another_container_asks_for() {
    let text = r#"{"gpu":[{"minor":0,"id":"GPU-a"}]}"#;
    let (sidecar, main) = (container("sidecar", &[]), container("main", &[("koordinator.sh/gpu", 100)]));
    let shown = of_pod(text, &[sidecar.clone(), main], &Node::default());
    assert_eq!(shown, ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a"]);
    let shown = of_pod(text, &[sidecar, container("main", &[])], &Node::default());
    assert_eq!(shown, ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a"], "nobody asks");
    let (sidecar, main) = (container("sidecar", &[("nvidia.com/gpu", 1)]), container("main", &[]));
    let shown = of_pod(text, &[sidecar, main], &Node::default());
    assert_eq!(shown, ["p/sidecar: nvidia.com/gpu=GPU-a", "p/main:"], "unless it asks for it");
}

#[test]
fn defect_2_every_container_gets_as_many_as_it_asks_for() {
    let gpus = |count: usize| {
        let all: Vec<String> = (0..count).map(|n| format!(r#"{{"minor":{n},"id":"{n}"}}"#)).collect();
        format!(r#"{{"gpu":[{}]}}"#, all.join(","))
    };
    /// What each container requests, how many devices there are, and what each container gets.
    type Case<'a> = (&'a [&'a [(&'a str, u64)]], usize, &'a [&'a str]);
    let asks: [Case<'_>; 14] = [
        (&[&[("koordinator.sh/gpu", 100)], &[("koordinator.sh/gpu", 200)]], 3, &["0", "1,2"]),
        (
            &[
                &[("koordinator.sh/gpu-core", 100), ("koordinator.sh/gpu-memory-ratio", 100)],
                &[("nvidia.com/gpu", 2)],
            ],
            3,
            &["0", "1,2"],
        ),
        (&[&[("nvidia.com/gpu", 2)], &[], &[("nvidia.com/gpu", 1)]], 3, &["0,1", "", "2"]),
        // Counts that do not add up.
        (&[&[("nvidia.com/gpu", 1)], &[("nvidia.com/gpu", 1)]], 4, &["0", "1"]),
        (&[&[("nvidia.com/gpu", 4)], &[("nvidia.com/gpu", 4)]], 3, &["0,1,2", ""]),
        (&[&[("nvidia.com/gpu", u64::MAX)], &[("nvidia.com/gpu", u64::MAX)]], 2, &["0,1", ""]),
        (&[&[], &[("nvidia.com/gpu", 1)]], 3, &["", "0"]),
        // Parts: of the containers that share a card the first gets it, since each card is listed once.
        (&[&[("koordinator.sh/gpu-core", 50)], &[("koordinator.sh/gpu-core", 50)]], 1, &["0", ""]),
        (
            &[&[("koordinator.sh/gpu", 100)], &[("koordinator.sh/gpu", 50)], &[("koordinator.sh/gpu", 50)]],
            2,
            &["0", "1", ""],
        ),
        (&[&[("koordinator.sh/gpu-core", 50)], &[("koordinator.sh/gpu-memory-ratio", 50)]], 2, &["0", "1"]),
        (
            &[
                &[("koordinator.sh/gpu.shared", 2), ("koordinator.sh/gpu-core", 100)],
                &[("koordinator.sh/gpu", 100)],
            ],
            3,
            &["0,1", "2"],
        ),
        (&[&[("koordinator.sh/gpu-memory", 17_179_869_184)], &[("koordinator.sh/rdma", 100)]], 1, &["0", ""]),
        (&[&[("kubernetes.io/gpu-core", 100)], &[("huawei.com/npu-core", 4)]], 2, &["0", "1"]),
        (&[&[("example.com/other", 1)], &[("hugepages-2Mi", 4)]], 2, &["0,1", ""]),
    ];
    for (containers, count, expected) in asks {
        let names = ["main", "next", "third"];
        let containers: Vec<Container> =
            containers.iter().zip(names).map(|(others, name)| container(name, others)).collect();
        let expected: Vec<String> = expected
            .iter()
            .zip(names)
            .map(|(ids, name)| match *ids {
                "" => format!("p/{name}:"),
                ids => format!("p/{name}: nvidia.com/gpu={ids}"),
            })
            .collect();
        assert_eq!(of_pod(&gpus(count), &containers, &Node::default()), expected, "{containers:?}");
    }
}

#[test]
fn requests_that_add_up_to_the_devices_are_counts() {
    let cards = |count: usize| {
        let all: Vec<String> = (0..count).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
        format!(r#"{{"rdma":[{}]}}"#, all.join(","))
    };
    for (asks, count, expected) in [
        // As counts, and as shares of which 100 are one.
        ([2, 2], 4, ["0,1", "2,3"]),
        ([1, 3], 4, ["0", "1,2,3"]),
        ([100, 100], 2, ["0", "1"]),
        ([200, 100], 3, ["0,1", "2"]),
        ([1, 1], 1, ["0", ""]),
        ([1, 1], 2, ["0", "1"]),
        ([50, 50], 1, ["0", ""]),
        // Requests that make no sense.
        ([2, 2], 3, ["0", "1,2"]),
        ([u64::MAX, u64::MAX], 2, ["0,1", ""]),
    ] {
        for domain in ["koordinator.sh", "kubernetes.io"] {
            let name = format!("{domain}/rdma");
            let containers = ["main", "next"].into_iter().zip(asks);
            let containers: Vec<_> = containers.map(|(of, n)| container(of, &[(&name, n)])).collect();
            let shown = of_pod(&cards(count), &containers, &Node::default());
            let ids =
                shown.iter().map(|line| line.split_once('=').map_or("", |(_, ids)| ids)).collect::<Vec<_>>();
            assert_eq!(ids, expected, "{asks:?}, {count}");
        }
    }
}

#[test]
fn containers_that_end_before_the_others_start_get_nothing() {
    let text = r#"{"gpu":[{"minor":0,"id":"GPU-a"}]}"#;
    let (init, main) = (container("init", &[("nvidia.com/gpu", 1)]), container("main", &[]));
    assert_eq!(of_pod(text, &[init.clone(), main], &Node::default()), ["p/main: nvidia.com/gpu=GPU-a"]);
    let plan = plain().plan([pod("p", DEVICES, text, &[init])].iter(), &Node::default());
    assert_eq!(problems(&plan), [("no_container", 1)]);
}

#[test]
fn types_are_shared_out_each_for_itself() {
    let text =
        r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}],"rdma":[{"id":"0000:01:00.0"}],"fpga":[{"id":"f"}]}"#;
    let (main, next) = (
        container("main", &[("koordinator.sh/gpu", 100), ("koordinator.sh/fpga", 100)]),
        container("next", &[("koordinator.sh/gpu", 100), ("koordinator.sh/rdma", 1)]),
    );
    let shown = of_pod(text, &[main, next], &Node::default());
    assert_eq!(
        shown,
        [
            "p/main: koordinator.sh/fpga=f nvidia.com/gpu=GPU-a",
            "p/next: nvidia.com/gpu=GPU-b koordinator.sh/rdma=0000:01:00.0"
        ]
    );
}

#[test]
fn defect_3_a_template_without_functions_keeps_the_id() {
    let text = r#"{"gpu":[{"minor":0,"id":"NPU-0","extension":{"gpuSharedResourceTemplate":"vir04"}}]}"#;
    assert_eq!(of(text, &Node::default()), "p/main: nvidia.com/gpu=NPU-0");
}

#[test]
fn defect_4_no_resource_without_a_name() {
    for (kind, resource) in
        [("fpga", "koordinator.sh/fpga"), ("xpu", "koordinator.sh/xpu"), ("A_b.c", "koordinator.sh/A_b.c")]
    {
        let text = format!(r#"{{"{kind}":[{{"id":"x"}}]}}"#);
        assert_eq!(of(&text, &Node::default()), format!("p/main: {resource}=x"));
    }
    for kind in ["", "/", "gpu/nvidia", "a b", "-", "ü", &"x".repeat(64)] {
        let text = format!(r#"{{"{kind}":[{{"id":"x"}}]}}"#);
        assert_eq!(of(&text, &Node::default()), "p/main:", "{kind}");
        let plan =
            plain().plan([pod("p", DEVICES, &text, &[container("main", &[])])].iter(), &Node::default());
        assert_eq!(problems(&plan), [("malformed", 0)]);
    }
}

#[test]
fn defect_5_accelerators_are_called_by_their_vendor() {
    let text = r#"{"gpu":[{"minor":0,"id":"x"}]}"#;
    let resource = |vendor: &str| {
        let shown = of(text, &reported(vendor, &[device("gpu", "x", 0, None)]));
        shown.strip_prefix("p/main: ").unwrap().strip_suffix("=x").unwrap().to_owned()
    };
    for (vendor, expected) in [
        ("", "nvidia.com/gpu"),
        ("nvidia", "nvidia.com/gpu"),
        ("NVIDIA", "nvidia.com/gpu"),
        ("huawei", "huawei.com/npu"),
        ("cambricon", "cambricon.com/mlu"),
        ("metax", "metax-tech.com/gpu"),
        ("baidu", "kunlunxin.com/xpu"),
        ("amd", "amd.com/gpu"),
        ("somebody", "koordinator.sh/gpu"),
    ] {
        assert_eq!(resource(vendor), expected, "{vendor}");
    }
    let configured =
        "resources: {gpu: example.com/any, gpu/huawei: huawei.com/Ascend910, rdma: example.com/rdma}";
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"x"}],"rdma":[{"id":"y"}]}"#, &[container("main", &[])])];
    for (vendor, name) in [("huawei", "huawei.com/Ascend910"), ("nvidia", "example.com/any")] {
        let node = reported(vendor, &[device("gpu", "x", 0, None), device("rdma", "y", 0, None)]);
        assert_eq!(
            merged(&rules(configured), &pods, &node),
            [format!("p/main: {name}=x example.com/rdma=y")]
        );
    }
}

#[test]
fn defect_6_a_device_without_an_id_is_found_by_its_number_or_left_out() {
    let text = r#"{"gpu":[{"minor":0},{"minor":7},{"minor":1,"id":""},{},{"minor":"0"}]}"#;
    let node = reported(
        "",
        &[device("gpu", "GPU-a", 0, None), device("gpu", "", 1, None), device("rdma", "r", 7, None)],
    );
    assert_eq!(of(text, &node), "p/main: nvidia.com/gpu=GPU-a");
    let pods = [pod("p", DEVICES, text, &[container("main", &[])])];
    let plan = plain().plan(pods.iter(), &node);
    assert_eq!(problems(&plan), [("no_id", 4)]);
    assert!(plan.misses_devices());
    assert_eq!(
        plan.problems()[0].sentence,
        "pod ns/p: a device of type `gpu` has no id, and of number 7 none is known (and 3 times more)"
    );
    assert_eq!(problems(&plain().plan(pods.iter(), &Node::default())), [("no_id", 5)]);
}

#[test]
fn defect_7_what_the_kubelet_allocated_itself_is_what_the_pod_has() {
    let pods = [
        pod(
            "p",
            DEVICES,
            r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}],"rdma":[{"id":"r"}]}"#,
            &[container("main", &[]), container("next", &[])],
        ),
        pod("q", DEVICES, r#"{"gpu":[{"id":"GPU-c"},{"id":"GPU-d"}]}"#, &[container("main", &[])]),
    ];
    let mut kubelets = answer(&pods);
    let group = |ids: &[&str]| v1::ContainerDevices {
        resource_name: "nvidia.com/gpu".into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        topology: None,
    };
    // An entry without ids is not an allocation.
    kubelets.pod_resources[0].containers[1].devices = vec![group(&[]), group(&["GPU-c"])];
    let merged = plain().plan(pods.iter(), &Node::default()).list(&bytes(&kubelets), Version::V1).unwrap();
    assert_eq!(
        shown(&merged.bytes),
        [
            "p/main: koordinator.sh/rdma=r",
            "p/next: nvidia.com/gpu= nvidia.com/gpu=GPU-c",
            "q/main: nvidia.com/gpu=GPU-d"
        ]
    );
    assert_eq!((merged.pods, merged.devices), (2, 2));
    assert_eq!(merged.left_out, LeftOut { allocated: 2, listed: 1, ..LeftOut::default() });
    kubelets.pod_resources[0].containers[1].devices = vec![group(&[])];
    let merged = plain().plan(pods.iter(), &Node::default()).list(&bytes(&kubelets), Version::V1).unwrap();
    assert_eq!(merged.left_out, LeftOut::default());
    assert_eq!(merged.devices, 5);
}

#[test]
fn a_device_that_a_claim_has_is_not_listed_as_well() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#, &[container("main", &[])])];
    let mut kubelets = answer(&pods);
    let name = "nvidia.com/gpu=GPU-a".to_owned();
    let claimed = v1::ClaimResource { cdi_devices: vec![v1::CdiDevice { name }], ..Default::default() };
    let claim = v1::DynamicResource { claim_resources: vec![claimed], ..Default::default() };
    kubelets.pod_resources[0].containers[0].dynamic_resources = vec![claim];
    let merged = plain().plan(pods.iter(), &Node::default()).list(&bytes(&kubelets), Version::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=GPU-b"]);
    assert_eq!(merged.left_out, LeftOut { claimed: 1, ..LeftOut::default() });
}

#[test]
fn a_part_of_a_device_is_that_device() {
    let text = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":50}},{"id":"GPU-b"},{"id":"GPU-ab"}]}"#;
    let pods = [
        pod("p", DEVICES, text, &[container("main", &[])]),
        pod("q", DEVICES, r#"{"rdma":[{"id":"r"}]}"#, &[container("main", &[])]),
    ];
    let devices =
        [device("gpu", "GPU-a", 0, None), device("gpu", "GPU-b", 1, None), device("gpu", "GPU-ab", 2, None)];
    let node = reported("", &[&devices[..], &[device("rdma", "r", 0, None)]].concat());
    for yaml in ["{koordinator: [devices, sharedIds, allocatable]}", "{koordinator: [devices, allocatable]}"] {
        let plan = rules(yaml).plan(pods.iter(), &node);
        let mut kubelets = answer(&pods);
        // As plugins with time-slicing list it, for another pod.
        kubelets.pod_resources[1].containers[0].devices = vec![v1::ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: vec!["GPU-a::0".into(), "GPU-b::x".into(), "GPU-b::1".into()],
            topology: None,
        }];
        let merged = plan.list(&bytes(&kubelets), Version::V1).unwrap();
        assert_eq!(shown(&merged.bytes)[0], "p/main: nvidia.com/gpu=GPU-ab", "{yaml}");
        assert_eq!(merged.left_out, LeftOut { listed: 2, ..LeftOut::default() });
        // As a claim.
        let mut kubelets = answer(&pods);
        let name = "nvidia.com/gpu=GPU-a".to_owned();
        let claimed = v1::ClaimResource { cdi_devices: vec![v1::CdiDevice { name }], ..Default::default() };
        let claim = v1::DynamicResource { claim_resources: vec![claimed], ..Default::default() };
        kubelets.pod_resources[0].containers[0].dynamic_resources = vec![claim];
        let merged = plan.list(&bytes(&kubelets), Version::V1).unwrap();
        assert_eq!(shown(&merged.bytes)[0], "p/main: nvidia.com/gpu=GPU-b,GPU-ab", "{yaml}");
        assert_eq!(merged.left_out, LeftOut { claimed: 1, ..LeftOut::default() });
        // Each device is listed once.
        let allocatable = v1::AllocatableResourcesResponse {
            devices: vec![v1::ContainerDevices {
                resource_name: "nvidia.com/gpu".into(),
                device_ids: vec!["GPU-a::0".into(), "GPU-a::1".into()],
                topology: None,
            }],
            ..Default::default()
        };
        let merged = plan.allocatable(&bytes(&allocatable)).unwrap();
        assert_eq!((merged.devices, merged.left_out.listed), (3, 1), "{yaml}");
    }
    // A mapping may name parts, where the kubelet lists the whole.
    let rules = rules("{mappings: [{annotation: a, resource: example.com/nic}]}");
    let pods = [
        pod("p", "a", "n::0,n::1,n0,n::x", &[container("main", &[])]),
        pod("q", "a", "", &[container("main", &[])]),
    ];
    let mut kubelets = answer(&pods);
    kubelets.pod_resources[1].containers[0].devices = vec![v1::ContainerDevices {
        resource_name: "example.com/nic".into(),
        device_ids: vec!["n".into()],
        topology: None,
    }];
    let merged = rules.plan(pods.iter(), &Node::default()).list(&bytes(&kubelets), Version::V1).unwrap();
    assert_eq!(shown(&merged.bytes)[0], "p/main: example.com/nic=n0,n::x");
}

#[test]
fn defect_8_pods_that_ended_get_nothing() {
    let text = r#"{"gpu":[{"id":"GPU-a"}]}"#;
    let ended = |phase: Phase| Pod {
        phase,
        life: Life::Ended,
        ..pod("old", DEVICES, text, &[container("main", &[])])
    };
    let living = pod("new", DEVICES, text, &[container("main", &[])]);
    for phase in [Phase::Succeeded, Phase::Failed] {
        let pods = [ended(phase), living.clone()];
        assert_eq!(
            merged(&plain(), &pods, &Node::default()),
            ["old/main:", "new/main: nvidia.com/gpu=GPU-a"]
        );
        assert!(plain().plan(pods.iter(), &Node::default()).problems().is_empty());
    }
    // A terminating pod still has its devices.
    let leaving =
        Pod { deleted: true, life: Life::Leaving, ..pod("old", DEVICES, text, &[container("main", &[])]) };
    assert_eq!(merged(&plain(), &[leaving], &Node::default()), ["old/main: nvidia.com/gpu=GPU-a"]);
}

#[test]
fn defect_9_of_two_pods_of_one_name_the_one_that_was_not_deleted_counts() {
    let of = |uid: &str, id: &str, deleted: bool| {
        let text = format!(r#"{{"gpu":[{{"id":"{id}"}}]}}"#);
        Pod { uid: uid.into(), deleted, ..pod("p", DEVICES, &text, &[container("main", &[])]) }
    };
    let listed = bytes(&answer(&[of("1", "", false)]));
    for (pods, expected) in [
        ([of("1", "old", true), of("2", "new", false)], "new"),
        ([of("2", "new", false), of("1", "old", true)], "new"),
        ([of("1", "old", false), of("2", "new", false)], "new"),
        ([of("1", "old", true), of("2", "new", true)], "new"),
    ] {
        let merged = plain().plan(pods.iter(), &Node::default()).list(&listed, Version::V1).unwrap();
        assert_eq!(shown(&merged.bytes), [format!("p/main: nvidia.com/gpu={expected}")]);
    }
    let ended = Pod { phase: Phase::Failed, ..of("2", "ended", false) };
    let pods = [of("1", "old", true), ended];
    let merged = plain().plan(pods.iter(), &Node::default()).list(&listed, Version::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=old"], "one that ended has nothing");
    // Older kubelets list both; it is unknown which one is meant, but only one is.
    let mut twice = answer(&[of("1", "", false)]);
    twice.pod_resources.push(twice.pod_resources[0].clone());
    let pods = [of("1", "x", false)];
    let merged = plain().plan(pods.iter(), &Node::default()).list(&bytes(&twice), Version::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=x", "p/main:"]);
    // A pod without the container is not the one that is meant.
    twice.pod_resources[0].containers.clear();
    let merged = plain().plan(pods.iter(), &Node::default()).list(&bytes(&twice), Version::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=x"]);
}

#[test]
fn defect_10_what_is_not_known_here_stays() {
    // As a future kubelet may encode it: a field 99 in the pod, in the container and in the response.
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"}]}"#, &[container("main", &[])])];
    let field = [0x9a, 0x06, 0x03, b'n', b'e', b'w'];
    let container = [&[0x0a, 0x04][..], b"main", &field].concat();
    let pod = [
        &field[..],
        &[0x0a, 0x01, b'p', 0x12, 0x02, b'n', b's', 0x1a, container.len() as u8],
        &container,
        &field,
    ]
    .concat();
    let listed = [&[0x0a, pod.len() as u8][..], &pod, &field].concat();
    let merged =
        plain().plan(pods.iter(), &Node::default()).list(&listed.clone().into(), Version::V1).unwrap();
    let devices = v1::ContainerDevices {
        resource_name: "nvidia.com/gpu".into(),
        device_ids: vec!["GPU-a".into()],
        topology: None,
    };
    let new = [&[0x12, devices.encoded_len() as u8][..], &devices.encode_to_vec()].concat();
    let container = [&container[..], &new].concat();
    let pod = [
        &field[..],
        &[0x0a, 0x01, b'p', 0x12, 0x02, b'n', b's', 0x1a, container.len() as u8],
        &container,
        &field,
    ]
    .concat();
    assert_eq!(merged.bytes, [&[0x0a, pod.len() as u8][..], &pod, &field].concat());
}

#[test]
fn defect_11_the_node_s_healthy_devices_are_allocatable() {
    let mut devices = vec![
        device("gpu", "GPU-a", 0, Some(0)),
        device("gpu", "GPU-b", 1, Some(1)),
        Device { healthy: false, ..device("gpu", "GPU-c", 2, Some(1)) },
        device("gpu", "", 3, Some(1)),
        device("rdma", "0000:01:00.0", 0, Some(1)),
        device("rdma", "0000:02:00.0", 1, None),
    ];
    devices[4].functions = ["0000:01:00.1".into(), "0000:01:00.2".into()].into();
    let node = reported("", &devices);
    let listed = v1::AllocatableResourcesResponse {
        devices: vec![v1::ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: vec!["GPU-b".into()],
            topology: None,
        }],
        cpu_ids: vec![1, 2],
        memory: vec![],
    };
    let listed = bytes(&listed);
    let unchanged = plain().plan([].iter(), &node).allocatable(&listed).unwrap();
    assert_eq!(
        (unchanged.bytes.as_ptr(), unchanged.devices),
        (listed.as_ptr(), 0),
        "only where it is configured"
    );
    let rules = rules("{koordinator: [devices, allocatable]}");
    let merged = rules.plan([].iter(), &node).allocatable(&listed).unwrap();
    let all = v1::AllocatableResourcesResponse::decode(merged.bytes).unwrap();
    let shown: Vec<String> = all
        .devices
        .iter()
        .map(|group| {
            let nodes = group.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id);
            format!("{}={}@{:?}", group.resource_name, group.device_ids.join(","), nodes.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(
        shown,
        [
            "nvidia.com/gpu=GPU-b@[]",
            "koordinator.sh/rdma=0000:01:00.1,0000:01:00.2@[1]",
            "koordinator.sh/rdma=0000:02:00.0@[]",
            "nvidia.com/gpu=GPU-a@[0]"
        ]
    );
    assert_eq!((all.cpu_ids, merged.devices, merged.left_out.listed), (vec![1, 2], 4, 1));
    let node = reported("", &devices[1..2]);
    let none = rules.plan([].iter(), &node).allocatable(&listed).unwrap();
    assert_eq!((none.bytes.as_ptr(), none.devices), (listed.as_ptr(), 0), "nothing is new");
    assert_eq!(none.left_out, LeftOut { listed: 1, ..LeftOut::default() });
}

#[test]
fn get_and_v1alpha1_say_the_same() {
    let pods = [pod(
        "p",
        DEVICES,
        r#"{"gpu":[{"id":"GPU-a"}]}"#,
        &[container("sidecar", &[]), container("main", &[])],
    )];
    let node = reported("", &[device("gpu", "GPU-a", 0, Some(3))]);
    let plan = plain().plan(pods.iter(), &node);
    let one = v1::GetPodResourcesResponse { pod_resources: answer(&pods).pod_resources.pop() };
    let got = plan.get(&bytes(&one)).unwrap();
    let decoded = v1::GetPodResourcesResponse::decode(got.bytes).unwrap();
    assert_eq!(shown_pod(&decoded.pod_resources.unwrap()), ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a@3"]);
    assert_eq!(got.listed.names().collect::<Vec<_>>(), [("ns", "p")]);
    let old = plan.list(&bytes(&answer(&pods)), Version::V1alpha1).unwrap();
    let decoded = v1::ListPodResourcesResponse::decode(old.bytes.clone()).unwrap();
    assert_eq!(
        shown_pod(&decoded.pod_resources[0]),
        ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a"],
        "no topology"
    );
    let decoded = v1alpha1::ListPodResourcesResponse::decode(old.bytes).unwrap();
    assert_eq!(decoded.pod_resources[0].containers[1].devices[0].device_ids, ["GPU-a"]);
    let nobody = plan.get(&Bytes::new()).unwrap();
    assert!(nobody.bytes.is_empty() && nobody.listed.names().next().is_none());
}

#[test]
fn what_is_put_in_is_written_as_others_write_it() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#, &[container("main", &[])])];
    let node = reported("", &[device("gpu", "GPU-a", 0, Some(0)), device("gpu", "GPU-b", 1, Some(1))]);
    let merged = plain().plan(pods.iter(), &node).list(&bytes(&answer(&pods)), Version::V1).unwrap().bytes;
    let decoded = v1::ListPodResourcesResponse::decode(merged.clone()).unwrap();
    assert_eq!(shown(&merged), ["p/main: nvidia.com/gpu=GPU-a@0 nvidia.com/gpu=GPU-b@1"]);
    assert_eq!(decoded.encode_to_vec(), merged);
}

#[test]
fn one_pod_in_several_records_is_one_pod() {
    // Valid, though no encoder writes it: the name at the end, in a record of its own.
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"}]}"#, &[container("main", &[])])];
    let plan = rules("{koordinator: [devices, cpus]}").plan(pods.iter(), &Node::default());
    let part =
        |pod: v1::PodResources| v1::GetPodResourcesResponse { pod_resources: Some(pod) }.encode_to_vec();
    let whole = answer(&pods).pod_resources.remove(0);
    let named = v1::PodResources { containers: vec![], ..whole.clone() };
    let containers = v1::PodResources { containers: whole.containers, ..Default::default() };
    let wrong = v1::PodResources { name: "q".into(), namespace: "other".into(), ..Default::default() };
    let all = Bytes::from([part(wrong), part(containers), part(named)].concat());
    let decoded = v1::GetPodResourcesResponse::decode(plan.get(&all).unwrap().bytes).unwrap();
    assert_eq!(shown_pod(&decoded.pod_resources.unwrap()), ["p/main: nvidia.com/gpu=GPU-a"]);
    // In a List they would be three pods, none of them with both.
    assert_eq!(plan.list(&all, Version::V1).unwrap().devices, 0);
}

#[test]
fn nothing_to_merge_is_no_copy() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"}]}"#, &[container("main", &[])])];
    let listed = bytes(&answer(&pods));
    let other = [Pod { name: "other".into(), ..pods[0].clone() }];
    for plan in [Plan::default(), plain().plan(other.iter(), &Node::default())] {
        let merged = plan.list(&listed, Version::V1).unwrap();
        assert_eq!((merged.bytes.as_ptr(), merged.bytes.len()), (listed.as_ptr(), listed.len()));
        assert_eq!((merged.pods, merged.devices, merged.listed.names().count()), (0, 0, 1));
    }
    assert!(Plan::default().is_empty() && !plain().plan(pods.iter(), &Node::default()).is_empty());
}

#[test]
fn who_is_listed_is_told() {
    let names = ["a", "b"].map(|name| pod(name, DEVICES, "{}", &[]));
    let merged = Plan::default().list(&bytes(&answer(&names)), Version::V1).unwrap();
    assert_eq!(merged.listed.names().collect::<Vec<_>>(), [("ns", "a"), ("ns", "b")]);
    // A name that is not UTF-8, and one that follows another.
    let strange = Bytes::from_static(&[0x0a, 3, 0x0a, 1, 0xff, 0x0a, 6, 0x0a, 1, b'x', 0x0a, 1, b'y']);
    let merged = Plan::default().list(&strange, Version::V1).unwrap();
    assert_eq!(merged.listed.names().collect::<Vec<_>>(), [("", "y")]);
}

#[test]
fn what_the_answer_does_not_have_gets_nothing_and_is_counted() {
    let text = r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#;
    let asks = [container("sidecar", &[("nvidia.com/gpu", 1)]), container("main", &[("nvidia.com/gpu", 1)])];
    let pods = [pod("p", DEVICES, text, &asks)];
    let plan = plain().plan(pods.iter(), &Node::default());
    let mut old = answer(&pods);
    old.pod_resources[0].containers.remove(0);
    let merged = plan.list(&bytes(&old), Version::V1).unwrap();
    assert_eq!(
        (merged.devices, merged.left_out.no_container),
        (1, 1),
        "kubelets before 1.29 list no sidecars"
    );
    old.pod_resources[0].containers.clear();
    let listed = bytes(&old);
    let merged = plan.list(&listed, Version::V1).unwrap();
    assert_eq!((merged.devices, merged.left_out.no_container, merged.pods), (0, 2, 0));
    assert_eq!(merged.bytes.as_ptr(), listed.as_ptr());
    assert_eq!(merged.left_out.reasons()[3], ("container_not_listed", 2));
}

#[test]
fn answers_that_are_none_are_an_error() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"}]}"#, &[container("main", &[])])];
    let plan = rules("{koordinator: [devices, allocatable]}")
        .plan(pods.iter(), &reported("", &[device("gpu", "GPU-a", 0, None)]));
    let cut = Bytes::from_static(&[0x0a, 0x20, 0x0a, 0x01]);
    for error in [
        plan.list(&cut, Version::V1).unwrap_err(),
        plan.get(&cut).unwrap_err(),
        plan.allocatable(&cut).unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            "the bytes are no protocol buffers message: a record that is longer than what it is in at byte 1"
        );
    }
    // Errors deeper in the message are noticed only where something is merged.
    let deep = bytes(&answer(&pods));
    let at = deep.iter().rposition(|byte| *byte == 4).unwrap();
    let mut broken = deep.to_vec();
    broken[at] = 5;
    let broken = Bytes::from(broken);
    assert!(plan.list(&broken, Version::V1).is_err());
    assert_eq!(Plan::default().list(&broken, Version::V1).unwrap().bytes, broken);
}
