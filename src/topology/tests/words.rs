//! Messages in the logs.

use super::*;

#[test]
fn findings_say_what_where_and_what_follows() {
    let resource = || "memory".to_owned();
    for (finding, sentence) in [
        (
            Finding::UnpublishedNodes(ids("64")),
            "NUMA node 64 is not published: the scheduler holds ids 0 to 63 only",
        ),
        (
            Finding::UnpublishedNodes(ids("64-70")),
            "NUMA nodes 64-70 are not published: the scheduler holds ids 0 to 63 only",
        ),
        (
            Finding::UnknownCpus("8-9".into()),
            "the kubelet names CPUs 8-9, which are in no zone; they are left out",
        ),
        (
            Finding::ImpossibleMemory { nodes: ids("1"), resource: resource(), bytes: 7 },
            "the kubelet offers 7 bytes of memory on NUMA node 1, more than it has; clamped",
        ),
        (
            Finding::ImpossibleMemory { nodes: ids("1-2"), resource: resource(), bytes: 7 },
            "the kubelet offers up to 7 bytes of memory on each of NUMA nodes 1-2, more than they have; clamped",
        ),
        (
            Finding::OverusedMemory { nodes: ids("0"), resource: resource() },
            "more memory is in use on NUMA node 0 than it can have",
        ),
        (
            Finding::OverusedMemory { nodes: ids("0-1"), resource: resource() },
            "more memory is in use on NUMA nodes 0-1 than they can have",
        ),
        (
            Finding::DevicesOnUnknownNodes { resource: "a/b".into(), nodes: ids("3") },
            "devices of a/b are on NUMA node 3, which has no zone; left out there",
        ),
        (
            Finding::DevicesOnUnknownNodes { resource: "a/b".into(), nodes: ids("3,5") },
            "devices of a/b are on NUMA nodes 3,5, which have no zone; left out there",
        ),
    ] {
        assert_eq!(finding.to_string(), sentence);
    }
}
