//! Wrong or malformed content of annotations, and the locations of devices.

use super::*;

/// The plan for one pod with one container.
fn planned(text: &str, node: &Node) -> Plan {
    plain().plan([pod("p", DEVICES, text, &[container("main", &[])])].iter(), node)
}

fn ids(plan: &Plan) -> Vec<String> {
    plan.devices.devices.iter().map(|device| device.id.to_string()).collect()
}

#[test]
fn what_is_malformed_costs_no_more_than_itself() {
    let good = r#"{"id":"GPU-a"}"#;
    for (text, expected, malformed) in [
        ("", 0, true),
        ("{", 0, true),
        ("[]", 0, true),
        ("\"gpu\"", 0, true),
        ("7", 0, true),
        (r#"{"gpu":{"id":"GPU-a"}}"#, 0, true),
        (r#"{"gpu":"GPU-a"}"#, 0, true),
        (r#"{"gpu":[null,7,"x",[],GOOD]}"#, 1, true),
        (r#"{"gpu":[{"id":5},GOOD]}"#, 1, true),
        (r#"{"gpu":[{"id":["a"]},GOOD]}"#, 1, true),
        (r#"{"gpu":[GOOD],"rdma":7}"#, 1, true),
        (r#"{"rdma":[{"id":"r","extension":{"vfs":7}}],"gpu":[GOOD]}"#, 1, true),
        (r#"{"rdma":[{"id":"r","extension":{"vfs":[{"minor":1}]}}],"gpu":[GOOD]}"#, 1, true),
        (r#"{"rdma":[{"id":"r","extension":{"vfs":[{"busID":7}]}}],"gpu":[GOOD]}"#, 1, true),
        (r#"{"gpu":[{"id":"GPU-a","minor":1e999999}]}"#, 0, true),
        (r#"{"gpu":[{"id":"GPU-a","minor":99999999999999999999999999}]}"#, 1, false),
        (r#"{"gpu":[{"id":"GPU-a","minor":-1.5,"extension":7,"resources":[]}]}"#, 1, false),
        (
            r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":"lots","koordinator.sh/gpu":{}}}]}"#,
            1,
            true,
        ),
        (r#"{"gpu":[{"id":"x"}],"gpu":[GOOD]}"#, 1, false),
    ] {
        let text = text.replace("GOOD", good);
        let plan = planned(&text, &Node::default());
        assert_eq!(ids(&plan).len(), expected, "{text}");
        assert_eq!(problems(&plan).iter().any(|(kind, _)| *kind == "malformed"), malformed, "{text}");
    }
    let plan = planned("{", &Node::default());
    assert_eq!(
        plan.problems()[0].sentence,
        "pod ns/p: annotation `scheduling.koordinator.sh/device-allocated` is not understood: it is no JSON (EOF while \
         parsing an object at line 1 column 1)"
    );
}

#[test]
fn depth_and_length_are_bounded() {
    // Far longer than any annotation that is kept.
    for open in ["[", "{\"a\":", "{\"gpu\":["] {
        assert_eq!(problems(&planned(&open.repeat(1 << 20), &Node::default())), [("malformed", 0)]);
    }
    assert_eq!(
        problems(&planned(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), &Node::default())),
        [("malformed", 0)]
    );
    let mut long = pod("p", DEVICES, "", &[container("main", &[])]);
    long.annotations[0].1 = Annotation::TooLong(70_000);
    let plan = plain().plan([long].iter(), &Node::default());
    assert_eq!(problems(&plan), [("too_long", 0)]);
    assert_eq!(
        plan.problems()[0].sentence,
        "pod ns/p: annotation `scheduling.koordinator.sh/device-allocated` has 70000 bytes, too many to be read"
    );
}

#[test]
fn ids_are_short_and_can_be_printed() {
    let longest = "x".repeat(256);
    for (id, good) in [
        ("a", true),
        ("0000:01:00.0", true),
        ("MIG-a::1", true),
        (longest.as_str(), true),
        (&format!("{longest}x"), false),
        ("a b", false),
        ("ä", false),
        (r"a\nb", false),
        (r"\u0000", false),
        (r"\u001b[2J", false),
    ] {
        let plan = planned(&format!(r#"{{"gpu":[{{"id":"{id}"}}]}}"#), &Node::default());
        assert_eq!(ids(&plan).len(), usize::from(good), "{id}");
        assert_eq!(problems(&plan), if good { vec![] } else { vec![("bad_id", 1)] });
    }
    let empty = r#"{"rdma":[{"id":"r","extension":{"vfs":[{"busID":""}]}}]}"#;
    assert_eq!(problems(&planned(empty, &Node::default())), [("bad_id", 1)], "and not the card itself");
}

#[test]
fn a_pod_has_a_thousand_devices_at_most() {
    let all: Vec<String> = (0..1500).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
    let text = format!(r#"{{"gpu":[{}]}}"#, all.join(","));
    let asks = [container("main", &[("koordinator.sh/gpu", 150_000)])];
    let plan = plain().plan([&pod("p", DEVICES, &text, &asks)].into_iter(), &Node::default());
    assert_eq!(ids(&plan).len(), 1024);
    assert_eq!(problems(&plan), [("too_many", 476)]);
    assert!(!plan.misses_devices(), "another look at the node would not help");
}

#[test]
fn a_pod_has_no_more_devices_than_it_asks_for() {
    let of = |kind: &str, asks: &[(&str, u64)]| {
        let all: Vec<String> = (0..100).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
        let text = format!(r#"{{"{kind}":[{}]}}"#, all.join(","));
        let plan = plain()
            .plan([&pod("p", DEVICES, &text, &[container("main", asks)])].into_iter(), &Node::default());
        (ids(&plan).len(), problems(&plan))
    };
    assert_eq!(of("gpu", &[("koordinator.sh/gpu", 800)]), (8, vec![("too_many", 92)]));
    assert_eq!(of("gpu", &[("nvidia.com/gpu", 2)]), (2, vec![("too_many", 98)]));
    assert_eq!(of("gpu", &[]), (16, vec![("too_many", 84)]), "nobody asks");
    let few = of("rdma", &[("koordinator.sh/rdma", 200)]);
    assert_eq!(few, (18, vec![("too_many", 82)]), "a request may be for every card that fits");
}

#[test]
fn made_up_devices_of_many_pods_leave_the_answer_small_and_others_theirs() {
    let long = "x".repeat(ID_LIMIT - 8);
    let made_up = |of: usize| {
        let all: Vec<String> = (0..200).map(|n| format!(r#"{{"id":"{of}-{n}-{long}"}}"#)).collect();
        format!(r#"{{"gpu":[{}]}}"#, all.join(","))
    };
    let asks = [container("main", &[("koordinator.sh/gpu", 102_400)])];
    let mut pods: Vec<Pod> = (0..64).map(|n| pod(&format!("p{n}"), DEVICES, &made_up(n), &asks)).collect();
    let honest = r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}],"of-a-long-name":[{"id":"x"}]}"#;
    pods.push(pod("honest", DEVICES, honest, &[container("main", &[("koordinator.sh/gpu", 200)])]));
    let plain_answer = bytes(&answer(&pods));
    let plan = plain().plan(pods.iter(), &Node::default());
    let merged = plan.list(&plain_answer, Version::V1).unwrap();
    let added = merged.bytes.len() - plain_answer.len();
    assert!((500_000..NODE_BYTES).contains(&added), "{added} bytes more");
    let shown = shown(&merged.bytes);
    assert_eq!(
        shown.last().unwrap(),
        "honest/main: nvidia.com/gpu=GPU-a,GPU-b koordinator.sh/of-a-long-name=x"
    );
    assert_eq!(plan.problems().len(), 64, "one of each of the others");
    let sentence =
        "the annotations of all pods are too large for an answer: some of its devices are left out";
    assert!(
        plan.problems().iter().all(|problem| problem.sentence.ends_with(sentence)),
        "{:?}",
        plan.problems()
    );
}

#[test]
fn a_pod_has_devices_of_a_few_types_and_many_such_pods_are_borne() {
    let types = |of: usize| -> String {
        let types: Vec<String> = (0..1024).map(|n| format!(r#""t{of}-{n}":[{{"id":"x"}}]"#)).collect();
        format!(r#"{{"none":[],"more":null,{}}}"#, types.join(","))
    };
    let pods: Vec<Pod> =
        (0..100).map(|n| pod(&format!("p{n}"), DEVICES, &types(n), &[container("main", &[])])).collect();
    let plan = plain().plan(pods.iter(), &Node::default());
    assert_eq!(plan.devices.resources.len(), 100 * 16);
    assert!(problems(&plan).iter().all(|problem| *problem == ("too_many", 1024 - 16)));
    assert_eq!(plan.problems()[0].sentence, "pod ns/p0: it has devices of more than 16 types");
    let merged = plan.list(&bytes(&answer(&pods)), Version::V1).unwrap();
    assert_eq!((merged.pods, merged.devices), (100, 1600));
    // Each listed device is found in the plan in a few steps.
    let listed = plan.list(&merged.bytes, Version::V1).unwrap();
    assert_eq!((listed.devices, listed.left_out.allocated), (0, 1600));
}

#[test]
fn what_is_said_twice_is_there_once() {
    let text = r#"{"gpu":[{"id":"a"},{"id":"b"},{"id":"a"}]}"#;
    assert_eq!(of(text, &Node::default()), "p/main: nvidia.com/gpu=a,b");
    assert!(planned(text, &Node::default()).problems().is_empty());
}

#[test]
fn ids_that_the_node_does_not_have_are_left_out() {
    let sick = Device { healthy: false, ..device("gpu", "GPU-sick", 1, None) };
    let mut card = device("rdma", "0000:01:00.0", 0, Some(1));
    card.functions = ["0000:01:00.1".into()].into();
    let node = reported("", &[device("gpu", "GPU-a", 0, None), sick, card]);
    let text = r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-sick"},{"id":"GPU-lie"},{"id":"0000:01:00.0"}],
                   "rdma":[{"id":"0000:01:00.0","extension":{"vfs":[{"busID":"0000:01:00.1"},{"busID":"0000:01:00.7"}]}}]}"#;
    assert_eq!(of(text, &node), "p/main: nvidia.com/gpu=GPU-a,GPU-sick koordinator.sh/rdma=0000:01:00.1@1");
    let plan = planned(text, &node);
    assert_eq!(problems(&plan), [("unknown_id", 3)]);
    assert!(plan.misses_devices());
    assert_eq!(
        plan.problems()[0].sentence,
        "pod ns/p: the node has no device `GPU-lie` of type `gpu`, as its Device says (and 2 times more)"
    );
    assert_eq!(planned(text, &Node::default()).problems(), [], "where nobody reports, nobody knows better");
}

#[test]
fn two_pods_with_the_same_device_keep_it_and_are_told_of() {
    let whole = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory-ratio":100}}]}"#;
    let half = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":50,"koordinator.sh/gpu-memory-ratio":"100"}}]}"#;
    let template = r#"{"gpu":[{"id":"GPU-a","extension":{"gpuSharedResourceTemplate":"vir04"}}]}"#;
    let card = r#"{"rdma":[{"id":"r","resources":{"koordinator.sh/rdma":"1"}}]}"#;
    for (one, other, clash) in [
        (whole, whole, true),
        (whole, half, true),
        (half, half, false),
        (half, template, false),
        (template, template, false),
        (card, card, false),
    ] {
        let pods = [("p", one), ("q", other)]
            .map(|(name, text)| pod(name, DEVICES, text, &[container("main", &[])]));
        let plan = plain().plan(pods.iter(), &Node::default());
        let shown = merged(&plain(), &pods, &Node::default());
        assert!(shown.iter().all(|line| line.contains('=')), "{shown:?}");
        assert_eq!(problems(&plan), if clash { vec![("claimed_twice", 0)] } else { vec![] });
        if clash {
            let expected = "pod ns/q: `nvidia.com/gpu` `GPU-a` is given to pod ns/p as well, not in parts";
            assert_eq!(plan.problems()[0].sentence, expected);
        }
    }
    let pods = ["p", "q", "r"].map(|name| pod(name, DEVICES, whole, &[container("main", &[])]));
    let plan = plain().plan(pods.iter(), &Node::default());
    assert_eq!(problems(&plan), [("claimed_twice", 0), ("claimed_twice", 0)]);
}

#[test]
fn a_part_and_the_whole_are_one_device_and_two_parts_are_not() {
    use super::super::plan::is_same;
    let same = |one: &str, other: &str| {
        assert_eq!(is_same(one.as_bytes(), other.as_bytes()), is_same(other.as_bytes(), one.as_bytes()));
        is_same(one.as_bytes(), other.as_bytes())
    };
    assert!(same("GPU-a", "GPU-a") && same("GPU-a", "GPU-a::0"));
    assert!(!same("GPU-a::0", "GPU-a::1") && !same("GPU-a", "GPU-b::0") && !same("GPU-a", "GPU-a::x"));
}

#[test]
fn parts_have_ids_of_their_own_that_stay() {
    let half = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":50}},{"id":"GPU-b"}],
                   "rdma":[{"id":"r","resources":{"koordinator.sh/rdma":"1"}}]}"#;
    let of = |name: &str| pod(name, DEVICES, half, &[container("main", &[])]);
    let shared = rules("{koordinator: [devices, sharedIds]}");
    let shown = |pods: &[Pod]| merged(&shared, pods, &Node::default());
    let both = shown(&[of("p"), of("q")]);
    let number = |line: &str| -> u64 {
        let (_, rest) = line.split_once("=GPU-a::").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    let numbers = [number(&both[0]), number(&both[1])];
    assert!(numbers[0] != numbers[1] && numbers.iter().all(|number| *number < 1 << 31), "{numbers:?}");
    assert_eq!(both[0], format!("p/main: nvidia.com/gpu=GPU-a::{},GPU-b koordinator.sh/rdma=r", numbers[0]));
    assert_eq!(shown(&[of("q")]), [both[1].clone()], "whoever comes and goes");
    assert_eq!(shown(&[of("q"), of("o"), of("p")])[2], both[0]);
    let again = Pod { uid: "another".into(), ..of("p") };
    assert_ne!(shown(&[again])[0], both[0], "another pod of that name");
}

#[test]
fn numbers_of_parts_are_of_the_pod_and_differ_on_a_device() {
    let half = |id: &str| format!(r#"{{"id":"{id}","resources":{{"koordinator.sh/gpu-core":50}}}}"#);
    let of = |uid: &str| {
        let text = format!(r#"{{"gpu":[{},{}]}}"#, half("GPU-a"), half("GPU-b"));
        Pod { uid: uid.into(), ..pod(uid, DEVICES, &text, &[container("main", &[])]) }
    };
    let numbers = |pods: &[Pod]| -> Vec<Vec<u64>> {
        let of_line = |line: &String| {
            let (_, ids) = line.split_once('=').unwrap();
            ids.split(',').map(|id| id.split_once("::").unwrap().1.parse().unwrap()).collect()
        };
        merged(&rules("{koordinator: [devices, sharedIds]}"), pods, &Node::default()).iter().map(of_line).collect()
    };
    // The number depends on the pod's name and UID only. Among some hundred thousand pods, two have the same
    // number.
    let mut known = std::collections::HashMap::new();
    let (one, other) = (0_u32..)
        .find_map(|number| {
            let this = of(&number.to_string());
            let other = known.insert(super::super::plan::number_of(&this), this.clone())?;
            Some((other, this))
        })
        .unwrap();
    let alone = numbers(std::slice::from_ref(&one));
    assert_eq!(alone[0][0], alone[0][1], "on every device the same");
    assert_eq!(alone, numbers(std::slice::from_ref(&other)));
    let number = alone[0][0];
    let mut both = numbers(&[one, other]);
    both.sort_unstable();
    assert_eq!(both, [[number, number], [number + 1, number + 1]], "the later one takes the next");
}

#[test]
fn devices_are_where_they_are_reported_to_be_or_sysfs_says() {
    let files = [
        ("0000:01:00.0", "0\n"),
        ("0000:01:00.1", "1\n"),
        ("0000:02:00.0", "-1\n"),
        ("0000:03:00.0", "2\n"),
        ("0000:04:00.0", "1024\n"),
        ("0000:05:00.0", "x\n"),
    ];
    let read =
        files.map(|(address, text)| (format!("sys/bus/pci/devices/{address}/numa_node"), text.to_owned()));
    let pci = Arc::new(Pci::new(RecordedFiles { read: read.into(), ..RecordedFiles::default() }));
    let mut card = device("rdma", "0000:01:00.0", 0, Some(5));
    card.functions = ["0000:01:00.1".into(), "0000:01:00.2".into()].into();
    let unplaced = Device { bus: "00000000:03:00.0".into(), ..device("gpu", "GPU-b", 1, None) };
    let devices =
        vec![device("gpu", "GPU-a", 0, Some(3)), unplaced, card, device("rdma", "0000:02:00.0", 1, None)];
    let all = Devices { vendor: "".into(), devices: devices.into() };
    let reported = Node::new(Some(Arc::new(all)), Arc::clone(&pci));
    let unreported = Node::new(None, pci);
    let cards = |ids: &str| {
        let entries: Vec<String> = ids.split(' ').map(|id| format!(r#"{{"id":"{id}"}}"#)).collect();
        format!(r#"{{"rdma":[{}]}}"#, entries.join(","))
    };
    assert_eq!(
        of(r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#, &reported),
        "p/main: nvidia.com/gpu=GPU-a@3 nvidia.com/gpu=GPU-b@2"
    );
    let all = "0000:01:00.0 0000:01:00.1 0000:01:00.2 0000:02:00.0";
    assert_eq!(
        of(&cards(all), &reported),
        "p/main: koordinator.sh/rdma=0000:01:00.0,0000:01:00.1,0000:01:00.2@5 koordinator.sh/rdma=0000:02:00.0",
        "functions are where their card is"
    );
    let all = "0000:01:00.0 0000:01:00.1 0000:01:00.2 0000:02:00.0 0000:04:00.0 0000:05:00.0 0000:03:00.0";
    assert_eq!(
        of(&cards(all), &unreported),
        "p/main: koordinator.sh/rdma=0000:01:00.0@0 koordinator.sh/rdma=0000:01:00.1@1 \
         koordinator.sh/rdma=0000:01:00.2,0000:02:00.0,0000:04:00.0,0000:05:00.0 koordinator.sh/rdma=0000:03:00.0@2"
    );
}

#[test]
fn cpus_and_memory_of_the_pod_are_told_where_the_kubelet_is_silent() {
    const STATUS: &str = "scheduling.koordinator.sh/resource-status";
    let of = |text: &str| pod("p", STATUS, text, &[container("main", &[])]);
    let told = |text: &str, kubelets: &v1::ListPodResourcesResponse| {
        let plan = rules("{koordinator: [devices, cpus]}").plan([of(text)].iter(), &Node::default());
        let merged = plan.list(&bytes(kubelets), Version::V1).unwrap().bytes;
        let pod = v1::ListPodResourcesResponse::decode(merged).unwrap().pod_resources.remove(0);
        let block = |block: &v1::ContainerMemory| {
            let nodes: Vec<i64> =
                block.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id).collect();
            format!("{}={}@{nodes:?}", block.memory_type, block.size)
        };
        (pod.cpu_ids, pod.memory.iter().map(block).collect::<Vec<_>>())
    };
    let silent = answer(&[of("")]);
    let both = r#"{"cpuset":"35-36,67-68","numaNodeResources":[{"node":1,"resources":{"cpu":4,"memory":"1Gi"}},
                   {"node":0,"resources":{"hugepages-1Gi":"50Gi","memory":0,"kubernetes.io/batch-cpu":7}}]}"#;
    let expected = vec!["memory=1073741824@[1]".to_owned(), "hugepages-1Gi=53687091200@[0]".to_owned()];
    assert_eq!(told(both, &silent), (vec![35, 36, 67, 68], expected.clone()));
    for nothing in [
        "{}",
        "null",
        r#"{"numaNodeResources":[{"node":0}]}"#,
        r#"{"cpuset":""}"#,
        r#"{"cpuset":null,"numaNodeResources":null}"#,
    ] {
        assert_eq!(told(nothing, &silent), (vec![], vec![]), "{nothing}");
        let plan = rules("{koordinator: [devices, cpus]}").plan([of(nothing)].iter(), &Node::default());
        assert!(plan.is_empty() && plan.problems().is_empty(), "{nothing}: {:?}", plan.problems());
    }
    // What the kubelet reports, for the pod or for a container, takes precedence; CPUs and memory
    // independently.
    let mut exclusive = silent.clone();
    exclusive.pod_resources[0].containers[0].cpu_ids = vec![1];
    assert_eq!(told(both, &exclusive), (vec![], expected));
    let block = v1::ContainerMemory { memory_type: "memory".into(), size: 7, topology: None };
    let mut blocks = silent.clone();
    blocks.pod_resources[0].containers[0].memory = vec![block.clone()];
    assert_eq!(told(both, &blocks), (vec![35, 36, 67, 68], vec![]));
    let mut of_pod = silent.clone();
    of_pod.pod_resources[0].cpu_ids = vec![9];
    of_pod.pod_resources[0].memory = vec![block];
    assert_eq!(told(both, &of_pod), (vec![9], vec!["memory=7@[]".to_owned()]));
    // An empty list of CPUs counts as no list.
    let mut pod = silent.pod_resources[0].encode_to_vec();
    crate::util::wire::put_bytes(&mut pod, 4, b"");
    let mut empty = Vec::new();
    crate::util::wire::put_bytes(&mut empty, 1, &pod);
    let plan = rules("{koordinator: [devices, cpus]}").plan([of(both)].iter(), &Node::default());
    let merged = plan.list(&empty.into(), Version::V1).unwrap().bytes;
    let merged = v1::ListPodResourcesResponse::decode(merged).unwrap();
    assert_eq!(merged.pod_resources[0].cpu_ids, [35, 36, 67, 68]);
    // v1alpha1 has neither, and the setting is off by default.
    let plan = rules("{koordinator: [devices, cpus]}").plan([of(both)].iter(), &Node::default());
    let listed = bytes(&silent);
    assert_eq!(plan.list(&listed, Version::V1alpha1).unwrap().bytes.as_ptr(), listed.as_ptr());
    assert!(plain().plan([of(both)].iter(), &Node::default()).is_empty());
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
        let (told_cpus, told_blocks) = told(text, &silent);
        assert_eq!((told_cpus.len(), told_blocks.len()), (cpus, blocks), "{text}");
        let plan = rules("{koordinator: [devices, cpus]}").plan([of(text)].iter(), &Node::default());
        assert_eq!(problems(&plan), [("malformed", 0)], "{text}");
    }
}

#[test]
fn a_problem_is_new_once() {
    let bad = |name: &str| pod(name, DEVICES, "{", &[container("main", &[])]);
    let one = plain().plan([bad("p")].iter(), &Node::default());
    let two = plain().plan([bad("p"), bad("q")].iter(), &Node::default());
    assert_eq!(one.new_problems(&Plan::default()).count(), 1);
    let new: Vec<_> = two.new_problems(&one).map(|problem| problem.pod.1.as_str()).collect();
    assert_eq!(new, ["q"]);
    assert_eq!(two.new_problems(&two).count(), 0);
    let mut names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
    names.dedup();
    assert_eq!(names.len(), 8);
}
