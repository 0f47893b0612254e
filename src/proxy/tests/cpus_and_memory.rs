//! CPUs and memory of Koordinator's annotation.

use super::*;

#[test]
fn cpus_and_memory_are_added_where_the_kubelet_reports_none() {
    const STATUS: &str = "scheduling.koordinator.sh/resource-status";
    let of = |text: &str| pod("p", STATUS, text, &[container("main", &[])]);
    let with_cpus = rules("{koordinator: [devices, cpus]}");
    let read = |text: &str| with_cpus.read([of(text)].iter(), &unreported());
    let after = |text: &str, from_kubelet: &v1::ListPodResourcesResponse| {
        let allocations = read(text);
        let merged = allocations.merge_list(&bytes(from_kubelet), PodResourcesVersion::V1).unwrap().bytes;
        let pod = v1::ListPodResourcesResponse::decode(merged).unwrap().pod_resources.remove(0);
        let block = |block: &v1::ContainerMemory| {
            let nodes: Vec<i64> =
                block.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id).collect();
            format!("{}={}@{nodes:?}", block.memory_type, block.size)
        };
        (pod.cpu_ids, pod.memory.iter().map(block).collect::<Vec<_>>())
    };
    let without = kubelet_list(&[of("")]);
    let both = r#"{"cpuset":"35-36,67-68","numaNodeResources":[{"node":1,"resources":{"cpu":4,"memory":"1Gi"}},
                   {"node":0,"resources":{"hugepages-1Gi":"50Gi","memory":0,"kubernetes.io/batch-cpu":7}}]}"#;
    let expected = vec!["memory=1073741824@[1]".to_owned(), "hugepages-1Gi=53687091200@[0]".to_owned()];
    assert_eq!(after(both, &without), (vec![35, 36, 67, 68], expected.clone()));
    for nothing in [
        "{}",
        "null",
        r#"{"numaNodeResources":[{"node":0}]}"#,
        r#"{"cpuset":""}"#,
        r#"{"cpuset":null,"numaNodeResources":null}"#,
    ] {
        assert_eq!(after(nothing, &without), (vec![], vec![]), "{nothing}");
        let allocations = read(nothing);
        assert!(allocations.is_empty() && allocations.errors().is_empty(), "{nothing}: {allocations:?}");
    }
    // What the kubelet reports, for the pod or for a container, takes precedence; CPUs and memory
    // independently.
    let mut exclusive = without.clone();
    exclusive.pod_resources[0].containers[0].cpu_ids = vec![1];
    assert_eq!(after(both, &exclusive), (vec![], expected));
    let block = v1::ContainerMemory { memory_type: "memory".into(), size: 7, topology: None };
    let mut blocks = without.clone();
    blocks.pod_resources[0].containers[0].memory = vec![block.clone()];
    assert_eq!(after(both, &blocks), (vec![35, 36, 67, 68], vec![]));
    let mut of_pod = without.clone();
    of_pod.pod_resources[0].cpu_ids = vec![9];
    of_pod.pod_resources[0].memory = vec![block];
    assert_eq!(after(both, &of_pod), (vec![9], vec!["memory=7@[]".to_owned()]));
    // An empty list of CPUs counts as no list.
    let mut pod = without.pod_resources[0].encode_to_vec();
    crate::util::wire::put_bytes(&mut pod, 4, b"");
    let mut empty = Vec::new();
    crate::util::wire::put_bytes(&mut empty, 1, &pod);
    let allocations = read(both);
    let merged = allocations.merge_list(&empty.into(), PodResourcesVersion::V1).unwrap().bytes;
    let merged = v1::ListPodResourcesResponse::decode(merged).unwrap();
    assert_eq!(merged.pod_resources[0].cpu_ids, [35, 36, 67, 68]);
    // v1alpha1 has neither, and it is not read by default.
    let allocations = read(both);
    let listed = bytes(&without);
    assert_eq!(
        allocations.merge_list(&listed, PodResourcesVersion::V1alpha1).unwrap().bytes.as_ptr(),
        listed.as_ptr()
    );
    assert!(super::read(&[of(both)]).is_empty());
    for (text, cpus, blocks) in [
        ("{", 0, 0),
        ("[]", 0, 0),
        (r#"{"cpuset":7,"numaNodeResources":[{"node":0,"resources":{"memory":1}}]}"#, 0, 1),
        (r#"{"cpuset":"3-1"}"#, 0, 0),
        (r#"{"cpuset":"0-8192"}"#, 0, 0),
        (r#"{"cpuset":"1","numaNodeResources":7}"#, 1, 0),
        (
            r#"{"cpuset":"1","numaNodeResources":[7,{"node":-1},{"node":1024},{"resources":{"memory":1}}]}"#,
            1,
            0,
        ),
        (r#"{"numaNodeResources":[{"node":0,"resources":7},{"node":1,"resources":{"memory":"x"}}]}"#, 0, 0),
        (
            r#"{"numaNodeResources":[{"node":0,"resources":{"memory":1}},{"node":0,"resources":{"memory":2}}]}"#,
            0,
            1,
        ),
    ] {
        let (cpu_ids, memory) = after(text, &without);
        assert_eq!((cpu_ids.len(), memory.len()), (cpus, blocks), "{text}");
        let allocations = read(text);
        assert_eq!(errors(&allocations), ["malformed"], "{text}");
    }
}
