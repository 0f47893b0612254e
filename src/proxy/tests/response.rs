//! What is merged into which response.

use super::*;

#[test]
fn devices_that_the_kubelet_allocated_take_precedence() {
    let pods = [
        pod(
            "p",
            DEVICES,
            r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}],"rdma":[{"id":"r"}]}"#,
            &[container("main", &[]), container("next", &[])],
        ),
        pod("q", DEVICES, r#"{"gpu":[{"id":"GPU-c"},{"id":"GPU-d"}]}"#, &[container("main", &[])]),
    ];
    let mut from_kubelet = kubelet_list(&pods);
    let group = |ids: &[&str]| v1::ContainerDevices {
        resource_name: "nvidia.com/gpu".into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        topology: None,
    };
    // An entry without ids is not an allocation.
    from_kubelet.pod_resources[0].containers[1].devices = vec![group(&[]), group(&["GPU-c"])];
    let merged = read(&pods).merge_list(&bytes(&from_kubelet), PodResourcesVersion::V1).unwrap();
    assert_eq!(
        shown(&merged.bytes),
        [
            "p/main: koordinator.sh/rdma=r",
            "p/next: nvidia.com/gpu= nvidia.com/gpu=GPU-c",
            "q/main: nvidia.com/gpu=GPU-d"
        ]
    );
    assert_eq!(merged.devices, 2);
    assert_eq!(merged.omitted, Omitted { allocated: 2, listed: 1, ..Omitted::default() });
    from_kubelet.pod_resources[0].containers[1].devices = vec![group(&[])];
    let merged = read(&pods).merge_list(&bytes(&from_kubelet), PodResourcesVersion::V1).unwrap();
    assert_eq!(merged.omitted, Omitted::default());
    assert_eq!(merged.devices, 5);
}

#[test]
fn claimed_devices_are_not_added() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#, &[container("main", &[])])];
    let mut from_kubelet = kubelet_list(&pods);
    let name = "nvidia.com/gpu=GPU-a".to_owned();
    let claimed = v1::ClaimResource { cdi_devices: vec![v1::CdiDevice { name }], ..Default::default() };
    let claim = v1::DynamicResource { claim_resources: vec![claimed], ..Default::default() };
    from_kubelet.pod_resources[0].containers[0].dynamic_resources = vec![claim];
    let merged = read(&pods).merge_list(&bytes(&from_kubelet), PodResourcesVersion::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=GPU-b"]);
    assert_eq!(merged.omitted, Omitted { claimed: 1, ..Omitted::default() });
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
    for yaml in ["{koordinator: [devices, sharedIds, allocatable]}", "{koordinator: [devices, allocatable]}"]
    {
        let allocations = rules(yaml).read(pods.iter(), &node);
        let mut from_kubelet = kubelet_list(&pods);
        // As plugins with time-slicing list it, for another pod.
        from_kubelet.pod_resources[1].containers[0].devices = vec![v1::ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: vec!["GPU-a::0".into(), "GPU-b::x".into(), "GPU-b::1".into()],
            topology: None,
        }];
        let merged = allocations.merge_list(&bytes(&from_kubelet), PodResourcesVersion::V1).unwrap();
        assert_eq!(shown(&merged.bytes)[0], "p/main: nvidia.com/gpu=GPU-ab", "{yaml}");
        assert_eq!(merged.omitted, Omitted { listed: 2, ..Omitted::default() });
        // As a claim.
        let mut from_kubelet = kubelet_list(&pods);
        let name = "nvidia.com/gpu=GPU-a".to_owned();
        let claimed = v1::ClaimResource { cdi_devices: vec![v1::CdiDevice { name }], ..Default::default() };
        let claim = v1::DynamicResource { claim_resources: vec![claimed], ..Default::default() };
        from_kubelet.pod_resources[0].containers[0].dynamic_resources = vec![claim];
        let merged = allocations.merge_list(&bytes(&from_kubelet), PodResourcesVersion::V1).unwrap();
        assert_eq!(shown(&merged.bytes)[0], "p/main: nvidia.com/gpu=GPU-b,GPU-ab", "{yaml}");
        assert_eq!(merged.omitted, Omitted { claimed: 1, ..Omitted::default() });
        // Each device is listed once.
        let allocatable = v1::AllocatableResourcesResponse {
            devices: vec![v1::ContainerDevices {
                resource_name: "nvidia.com/gpu".into(),
                device_ids: vec!["GPU-a::0".into(), "GPU-a::1".into()],
                topology: None,
            }],
            ..Default::default()
        };
        let merged = allocations.merge_allocatable(&bytes(&allocatable)).unwrap();
        assert_eq!((merged.devices, merged.omitted.listed), (3, 1), "{yaml}");
    }
    // A mapping may name parts, where the kubelet lists the whole.
    let rules = rules("{mappings: [{annotation: a, resource: example.com/nic}]}");
    let pods = [
        pod("p", "a", "n::0,n::1,n0,n::x", &[container("main", &[])]),
        pod("q", "a", "", &[container("main", &[])]),
    ];
    let mut from_kubelet = kubelet_list(&pods);
    from_kubelet.pod_resources[1].containers[0].devices = vec![v1::ContainerDevices {
        resource_name: "example.com/nic".into(),
        device_ids: vec!["n".into()],
        topology: None,
    }];
    let allocations = rules.read(pods.iter(), &unreported());
    let merged = allocations.merge_list(&bytes(&from_kubelet), PodResourcesVersion::V1).unwrap();
    assert_eq!(shown(&merged.bytes)[0], "p/main: example.com/nic=n0,n::x");
}

#[test]
fn ended_pods_get_nothing() {
    let text = r#"{"gpu":[{"id":"GPU-a"}]}"#;
    let ended = |phase: Phase| Pod {
        phase,
        termination: Termination::Terminated,
        ..pod("old", DEVICES, text, &[container("main", &[])])
    };
    let running = pod("new", DEVICES, text, &[container("main", &[])]);
    for phase in [Phase::Succeeded, Phase::Failed] {
        let pods = [ended(phase), running.clone()];
        assert_eq!(
            merged(&default_rules(), &pods, &unreported()),
            ["old/main:", "new/main: nvidia.com/gpu=GPU-a"]
        );
        assert!(read(&pods).errors().is_empty());
    }
    // A terminating pod still has its devices.
    let terminating = Pod {
        deleted: true,
        termination: Termination::Stopped,
        ..pod("old", DEVICES, text, &[container("main", &[])])
    };
    let shown = merged(&default_rules(), &[terminating], &unreported());
    assert_eq!(shown, ["old/main: nvidia.com/gpu=GPU-a"]);
}

#[test]
fn of_two_pods_with_one_name_the_one_that_was_not_deleted_counts() {
    let of = |uid: &str, id: &str, deleted: bool| {
        let text = format!(r#"{{"gpu":[{{"id":"{id}"}}]}}"#);
        Pod { uid: uid.into(), deleted, ..pod("p", DEVICES, &text, &[container("main", &[])]) }
    };
    let listed = bytes(&kubelet_list(&[of("1", "", false)]));
    for (pods, expected) in [
        ([of("1", "old", true), of("2", "new", false)], "new"),
        ([of("2", "new", false), of("1", "old", true)], "new"),
        ([of("1", "old", false), of("2", "new", false)], "new"),
        ([of("1", "old", true), of("2", "new", true)], "new"),
    ] {
        let merged = read(&pods).merge_list(&listed, PodResourcesVersion::V1).unwrap();
        assert_eq!(shown(&merged.bytes), [format!("p/main: nvidia.com/gpu={expected}")]);
    }
    let ended = Pod { phase: Phase::Failed, ..of("2", "ended", false) };
    let pods = [of("1", "old", true), ended];
    let merged = read(&pods).merge_list(&listed, PodResourcesVersion::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=old"], "one that ended has nothing");
    // Older kubelets list both; it is unknown which one is meant, but only one is.
    let mut twice = kubelet_list(&[of("1", "", false)]);
    twice.pod_resources.push(twice.pod_resources[0].clone());
    let pods = [of("1", "x", false)];
    let merged = read(&pods).merge_list(&bytes(&twice), PodResourcesVersion::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=x", "p/main:"]);
    // A pod without the container is not the one that is meant.
    twice.pod_resources[0].containers.clear();
    let merged = read(&pods).merge_list(&bytes(&twice), PodResourcesVersion::V1).unwrap();
    assert_eq!(shown(&merged.bytes), ["p/main: nvidia.com/gpu=x"]);
}

#[test]
fn unknown_fields_are_kept() {
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
    let merged = read(&pods).merge_list(&listed.into(), PodResourcesVersion::V1).unwrap();
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
fn the_healthy_devices_of_the_node_are_allocatable() {
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
    let unchanged = default_rules().read([].iter(), &node).merge_allocatable(&listed).unwrap();
    assert_eq!(
        (unchanged.bytes.as_ptr(), unchanged.devices),
        (listed.as_ptr(), 0),
        "only where it is configured"
    );
    let rules = rules("{koordinator: [devices, allocatable]}");
    let merged = rules.read([].iter(), &node).merge_allocatable(&listed).unwrap();
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
    assert_eq!((all.cpu_ids, merged.devices, merged.omitted.listed), (vec![1, 2], 4, 1));
    let node = reported("", &devices[1..2]);
    let none = rules.read([].iter(), &node).merge_allocatable(&listed).unwrap();
    assert_eq!((none.bytes.as_ptr(), none.devices), (listed.as_ptr(), 0), "nothing is new");
    assert_eq!(none.omitted, Omitted { listed: 1, ..Omitted::default() });
}

#[test]
fn get_and_v1alpha1_have_the_same_devices() {
    let pods = [pod(
        "p",
        DEVICES,
        r#"{"gpu":[{"id":"GPU-a"}]}"#,
        &[container("sidecar", &[]), container("main", &[])],
    )];
    let node = reported("", &[device("gpu", "GPU-a", 0, Some(3))]);
    let allocations = default_rules().read(pods.iter(), &node);
    let one = v1::GetPodResourcesResponse { pod_resources: kubelet_list(&pods).pod_resources.pop() };
    let got = allocations.merge_get(&bytes(&one)).unwrap();
    let decoded = v1::GetPodResourcesResponse::decode(got.bytes).unwrap();
    assert_eq!(shown_pod(&decoded.pod_resources.unwrap()), ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a@3"]);
    assert_eq!(got.listed.names().collect::<Vec<_>>(), [("ns", "p")]);
    let old = allocations.merge_list(&bytes(&kubelet_list(&pods)), PodResourcesVersion::V1alpha1).unwrap();
    let decoded = v1::ListPodResourcesResponse::decode(old.bytes.clone()).unwrap();
    assert_eq!(
        shown_pod(&decoded.pod_resources[0]),
        ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a"],
        "no topology"
    );
    let decoded = v1alpha1::ListPodResourcesResponse::decode(old.bytes).unwrap();
    assert_eq!(decoded.pod_resources[0].containers[1].devices[0].device_ids, ["GPU-a"]);
    let empty = allocations.merge_get(&Bytes::new()).unwrap();
    assert!(empty.bytes.is_empty() && empty.listed.names().next().is_none());
}

#[test]
fn added_devices_are_encoded_as_by_prost() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#, &[container("main", &[])])];
    let node = reported("", &[device("gpu", "GPU-a", 0, Some(0)), device("gpu", "GPU-b", 1, Some(1))]);
    let allocations = default_rules().read(pods.iter(), &node);
    let merged = allocations.merge_list(&bytes(&kubelet_list(&pods)), PodResourcesVersion::V1).unwrap().bytes;
    let decoded = v1::ListPodResourcesResponse::decode(merged.clone()).unwrap();
    assert_eq!(shown(&merged), ["p/main: nvidia.com/gpu=GPU-a@0 nvidia.com/gpu=GPU-b@1"]);
    assert_eq!(decoded.encode_to_vec(), merged);
}

#[test]
fn one_pod_in_several_records_is_one_pod() {
    // Valid, though no encoder writes it: the name at the end, in a record of its own.
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"}]}"#, &[container("main", &[])])];
    let allocations = rules("{koordinator: [devices, cpus]}").read(pods.iter(), &unreported());
    let part =
        |pod: v1::PodResources| v1::GetPodResourcesResponse { pod_resources: Some(pod) }.encode_to_vec();
    let whole = kubelet_list(&pods).pod_resources.remove(0);
    let named = v1::PodResources { containers: vec![], ..whole.clone() };
    let containers = v1::PodResources { containers: whole.containers, ..Default::default() };
    let wrong = v1::PodResources { name: "q".into(), namespace: "other".into(), ..Default::default() };
    let all = Bytes::from([part(wrong), part(containers), part(named)].concat());
    let decoded = v1::GetPodResourcesResponse::decode(allocations.merge_get(&all).unwrap().bytes).unwrap();
    assert_eq!(shown_pod(&decoded.pod_resources.unwrap()), ["p/main: nvidia.com/gpu=GPU-a"]);
    // In a List they would be three pods, none of them with both.
    assert_eq!(allocations.merge_list(&all, PodResourcesVersion::V1).unwrap().devices, 0);
}

#[test]
fn nothing_to_merge_copies_nothing() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"}]}"#, &[container("main", &[])])];
    let listed = bytes(&kubelet_list(&pods));
    let other = [Pod { name: "other".into(), ..pods[0].clone() }];
    for allocations in [Allocations::default(), read(&other)] {
        let merged = allocations.merge_list(&listed, PodResourcesVersion::V1).unwrap();
        assert_eq!((merged.bytes.as_ptr(), merged.bytes.len()), (listed.as_ptr(), listed.len()));
        assert_eq!((merged.devices, merged.listed.names().count()), (0, 1));
    }
    assert!(Allocations::default().is_empty() && !read(&pods).is_empty());
}

#[test]
fn the_listed_pods_are_returned() {
    let names = ["a", "b"].map(|name| pod(name, DEVICES, "{}", &[]));
    let merged =
        Allocations::default().merge_list(&bytes(&kubelet_list(&names)), PodResourcesVersion::V1).unwrap();
    assert_eq!(merged.listed.names().collect::<Vec<_>>(), [("ns", "a"), ("ns", "b")]);
    // A name that is not UTF-8, and one that follows another.
    let strange = Bytes::from_static(&[0x0a, 3, 0x0a, 1, 0xff, 0x0a, 6, 0x0a, 1, b'x', 0x0a, 1, b'y']);
    let merged = Allocations::default().merge_list(&strange, PodResourcesVersion::V1).unwrap();
    assert_eq!(merged.listed.names().collect::<Vec<_>>(), [("", "y")]);
}

#[test]
fn devices_of_containers_that_are_not_listed_are_counted() {
    let text = r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#;
    let containers = ["sidecar", "main"].map(|name| container(name, &[("nvidia.com/gpu", 1)]));
    let pods = [pod("p", DEVICES, text, &containers)];
    let allocations = read(&pods);
    let mut old = kubelet_list(&pods);
    old.pod_resources[0].containers.remove(0);
    let merged = allocations.merge_list(&bytes(&old), PodResourcesVersion::V1).unwrap();
    assert_eq!(
        (merged.devices, merged.omitted.no_container),
        (1, 1),
        "kubelets before 1.29 list no sidecars"
    );
    old.pod_resources[0].containers.clear();
    let listed = bytes(&old);
    let merged = allocations.merge_list(&listed, PodResourcesVersion::V1).unwrap();
    assert_eq!((merged.devices, merged.omitted.no_container), (0, 2));
    assert_eq!(merged.bytes.as_ptr(), listed.as_ptr());
    assert_eq!(merged.omitted.reasons()[3], ("container_not_listed", 2));
}

#[test]
fn invalid_responses_are_an_error() {
    let pods = [pod("p", DEVICES, r#"{"gpu":[{"id":"GPU-a"}]}"#, &[container("main", &[])])];
    let allocations = rules("{koordinator: [devices, allocatable]}")
        .read(pods.iter(), &reported("", &[device("gpu", "GPU-a", 0, None)]));
    let cut = Bytes::from_static(&[0x0a, 0x20, 0x0a, 0x01]);
    for error in [
        allocations.merge_list(&cut, PodResourcesVersion::V1).unwrap_err(),
        allocations.merge_get(&cut).unwrap_err(),
        allocations.merge_allocatable(&cut).unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            "invalid protocol buffers message: a field that exceeds its message at byte 1"
        );
    }
    // Errors deeper in the message are noticed only where something is merged.
    let deep = bytes(&kubelet_list(&pods));
    let at = deep.iter().rposition(|byte| *byte == 4).unwrap();
    let mut broken = deep.to_vec();
    broken[at] = 5;
    let broken = Bytes::from(broken);
    assert!(allocations.merge_list(&broken, PodResourcesVersion::V1).is_err());
    assert_eq!(Allocations::default().merge_list(&broken, PodResourcesVersion::V1).unwrap().bytes, broken);
}
