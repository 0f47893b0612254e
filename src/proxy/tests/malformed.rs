//! Malformed and hostile annotations.

use super::*;

fn ids(allocations: &Allocations) -> Vec<String> {
    allocations.devices.devices.iter().map(|device| device.id.to_string()).collect()
}

#[test]
fn a_malformed_part_costs_no_more_than_itself() {
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
        let allocations = read_one(&text, &unreported());
        assert_eq!(ids(&allocations).len(), expected, "{text}");
        assert_eq!(errors(&allocations).contains(&"malformed"), malformed, "{text}");
    }
    let allocations = read_one("{", &unreported());
    assert_eq!(
        allocations.errors()[0].message,
        "pod ns/p: annotation `scheduling.koordinator.sh/device-allocated` cannot be parsed: it is not JSON (EOF while \
         parsing an object at line 1 column 1)"
    );
}

#[test]
fn depth_and_length_are_bounded() {
    // Far longer than any annotation that is kept.
    for open in ["[", "{\"a\":", "{\"gpu\":["] {
        assert_eq!(errors(&read_one(&open.repeat(1 << 20), &unreported())), ["malformed"]);
    }
    assert_eq!(
        errors(&read_one(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), &unreported())),
        ["malformed"]
    );
    let mut long = pod("p", DEVICES, "", &[container("main", &[])]);
    long.annotations[0].1 = Annotation::TooLong(70_000);
    let allocations = read(&[long]);
    assert_eq!(errors(&allocations), ["too_long"]);
    assert_eq!(
        allocations.errors()[0].message,
        "pod ns/p: annotation `scheduling.koordinator.sh/device-allocated` (70000 bytes) was dropped: it is longer \
         than 64 KiB, or among the longest of its pod or node"
    );
}

#[test]
fn ids_are_short_and_printable() {
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
        let allocations = read_one(&format!(r#"{{"gpu":[{{"id":"{id}"}}]}}"#), &unreported());
        assert_eq!(ids(&allocations).len(), usize::from(good), "{id}");
        assert_eq!(errors(&allocations), if good { vec![] } else { vec!["bad_id"] });
    }
    let empty = r#"{"rdma":[{"id":"r","extension":{"vfs":[{"busID":""}]}}]}"#;
    assert_eq!(errors(&read_one(empty, &unreported())), ["bad_id"], "and not the card itself");
}

#[test]
fn devices_of_a_pod_are_bounded() {
    let all: Vec<String> = (0..1500).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
    let text = format!(r#"{{"gpu":[{}]}}"#, all.join(","));
    let requests = [container("main", &[("koordinator.sh/gpu", 150_000)])];
    let allocations = read(&[pod("p", DEVICES, &text, &requests)]);
    assert_eq!(ids(&allocations).len(), 1024);
    assert_eq!(
        messages(&allocations),
        ["pod ns/p: annotations allocate more than 1024 devices to it (and 475 times more)"]
    );
    assert!(!allocations.errors()[0].kind.concerns_devices(), "reading the devices again would not help");
}

#[test]
fn of_devices_that_a_pod_does_not_request_few_are_merged() {
    let of = |kind: &str, requests: &[(&str, u64)]| {
        let all: Vec<String> = (0..100).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
        let text = format!(r#"{{"{kind}":[{}]}}"#, all.join(","));
        let allocations = read(&[pod("p", DEVICES, &text, &[container("main", requests)])]);
        assert_eq!(errors(&allocations), ["too_many"]);
        let merged = ids(&allocations).len();
        let message = &allocations.errors()[0].message;
        assert!(message.starts_with("pod ns/p: an annotation allocates 100 of `"), "{message}");
        assert!(message.ends_with(&format!("`; only {merged} are merged")), "{message}");
        merged
    };
    assert_eq!(of("gpu", &[("koordinator.sh/gpu", 800)]), 8);
    assert_eq!(of("gpu", &[("nvidia.com/gpu", 2)]), 2);
    assert_eq!(of("gpu", &[]), 16, "no request");
    assert_eq!(of("rdma", &[("koordinator.sh/rdma", 200)]), 18, "a request may be for every card that fits");
}

#[test]
fn invented_devices_of_many_pods_leave_the_response_small() {
    let long = "x".repeat(MAX_ID_BYTES - 8);
    let invented = |of: usize| {
        let all: Vec<String> = (0..200).map(|n| format!(r#"{{"id":"{of}-{n}-{long}"}}"#)).collect();
        format!(r#"{{"gpu":[{}]}}"#, all.join(","))
    };
    let requests = [container("main", &[("koordinator.sh/gpu", 102_400)])];
    let mut pods: Vec<Pod> =
        (0..64).map(|n| pod(&format!("p{n}"), DEVICES, &invented(n), &requests)).collect();
    let honest = r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}],"of-a-long-name":[{"id":"x"}]}"#;
    pods.push(pod("honest", DEVICES, honest, &[container("main", &[("koordinator.sh/gpu", 200)])]));
    let unmerged = bytes(&kubelet_list(&pods));
    let allocations = read(&pods);
    let merged = allocations.merge_list(&unmerged, PodResourcesVersion::V1).unwrap();
    let added = merged.bytes.len() - unmerged.len();
    assert!((500_000..MAX_ADDED_BYTES).contains(&added), "{added} bytes more");
    let shown = shown(&merged.bytes);
    assert_eq!(
        shown.last().unwrap(),
        "honest/main: nvidia.com/gpu=GPU-a,GPU-b koordinator.sh/of-a-long-name=x"
    );
    assert_eq!(allocations.errors().len(), 64, "one of each of the others");
    let message =
        "the annotations of all pods are too large for a response: some of its devices are left out";
    assert!(
        allocations.errors().iter().all(|error| error.message.ends_with(message)),
        "{:?}",
        allocations.errors()
    );
}

#[test]
fn types_of_a_pod_are_bounded() {
    let types = |of: usize| -> String {
        let types: Vec<String> = (0..1024).map(|n| format!(r#""t{of}-{n}":[{{"id":"x"}}]"#)).collect();
        format!(r#"{{"none":[],"more":null,{}}}"#, types.join(","))
    };
    let pods: Vec<Pod> =
        (0..100).map(|n| pod(&format!("p{n}"), DEVICES, &types(n), &[container("main", &[])])).collect();
    let allocations = read(&pods);
    assert_eq!(allocations.devices.resources.len(), 100 * 16);
    assert!(errors(&allocations).iter().all(|kind| *kind == "too_many"));
    assert_eq!(allocations.errors()[0].message, "pod ns/p0: it has devices of more than 16 types");
    let merged = allocations.merge_list(&bytes(&kubelet_list(&pods)), PodResourcesVersion::V1).unwrap();
    assert_eq!(merged.devices, 1600);
    // Each listed device is found in the allocations in a few steps.
    let listed = allocations.merge_list(&merged.bytes, PodResourcesVersion::V1).unwrap();
    assert_eq!((listed.devices, listed.omitted.allocated), (0, 1600));
}

#[test]
fn a_device_that_is_named_twice_is_added_once() {
    let text = r#"{"gpu":[{"id":"a"},{"id":"b"},{"id":"a"}]}"#;
    assert_eq!(of(text, &unreported()), "p/main: nvidia.com/gpu=a,b");
    assert!(read_one(text, &unreported()).errors().is_empty());
}

#[test]
fn unknown_ids_are_left_out() {
    let broken = Device { healthy: false, ..device("gpu", "GPU-broken", 1, None) };
    let mut card = device("rdma", "0000:01:00.0", 0, Some(1));
    card.functions = ["0000:01:00.1".into()].into();
    let node = reported("", &[device("gpu", "GPU-a", 0, None), broken, card]);
    let text = r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-broken"},{"id":"GPU-invented"},{"id":"0000:01:00.0"}],
                   "rdma":[{"id":"0000:01:00.0","extension":{"vfs":[{"busID":"0000:01:00.1"},{"busID":"0000:01:00.7"}]}}]}"#;
    assert_eq!(of(text, &node), "p/main: nvidia.com/gpu=GPU-a,GPU-broken koordinator.sh/rdma=0000:01:00.1@1");
    let allocations = read_one(text, &node);
    assert_eq!(errors(&allocations), ["unknown_id"]);
    assert!(allocations.errors()[0].kind.concerns_devices());
    assert_eq!(
        allocations.errors()[0].message,
        "pod ns/p: the node's Device has no device `GPU-invented` of type `gpu` (and 2 times more)"
    );
    assert_eq!(read_one(text, &unreported()).errors(), [], "nothing to check them with");
}

#[test]
fn an_error_is_new_once() {
    let bad = |name: &str| pod(name, DEVICES, "{", &[container("main", &[])]);
    let one = read(&[bad("p")]);
    let two = read(&[bad("p"), bad("q")]);
    assert_eq!(one.new_errors(&Allocations::default()).count(), 1);
    let new: Vec<_> = two.new_errors(&one).map(|error| error.pod.1.as_str()).collect();
    assert_eq!(new, ["q"]);
    assert_eq!(two.new_errors(&two).count(), 0);
}
