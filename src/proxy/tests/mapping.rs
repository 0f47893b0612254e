//! Annotations of other schedulers, by configured mappings.

use super::*;

const KEY: &str = "example.com/devices";

/// What the List shows for a pod with these containers and a mapping, and its allocations.
fn read_mapped(mapping: &str, text: &str, containers: &[Container]) -> (Vec<String>, Allocations) {
    let yaml =
        format!("{{koordinator: [], mappings: [{{annotation: {KEY}, resource: example.com/nic{mapping}}}]}}");
    let (rules, pods) = (rules(&yaml), [pod("p", KEY, text, containers)]);
    (merged(&rules, &pods, &unreported()), rules.read(pods.iter(), &unreported()))
}

/// What the List shows for a pod with these containers and a mapping, and its errors.
fn mapped(mapping: &str, text: &str, containers: &[Container]) -> (Vec<String>, Vec<&'static str>) {
    let (shown, allocations) = read_mapped(mapping, text, containers);
    (shown, errors(&allocations))
}

fn of_one(mapping: &str, text: &str) -> (String, Vec<&'static str>) {
    let (mut shown, errors) = mapped(mapping, text, &[container("main", &[])]);
    (shown.remove(0), errors)
}

#[test]
fn a_text_is_ids_separated_by_commas() {
    let fine = |text: &str| {
        let (shown, errors) = of_one("", text);
        assert!(errors.is_empty(), "{errors:?}");
        shown
    };
    assert_eq!(fine("a"), "p/main: example.com/nic=a");
    assert_eq!(fine(" a, b ,,c,"), "p/main: example.com/nic=a,b,c");
    assert_eq!(fine(""), "p/main:");
    assert_eq!(of_one("", "a b,c").1, ["bad_id"]);
}

#[test]
fn paths_select_devices_in_json() {
    let gpus = r#"[{"uuid":"a","of":"main"},{"uuid":"b","of":"next"},{"of":"main"},{"uuid":true}]"#;
    let (shown, errors) = of_one(", path: '*', id: uuid", gpus);
    assert_eq!(shown, "p/main: example.com/nic=a,b");
    assert_eq!(errors, ["malformed"], "two of them, reported once");
    let both = [container("main", &[]), container("next", &[])];
    let (shown, errors) = mapped(", path: '*', id: uuid, container: of", gpus, &both);
    assert_eq!(shown, ["p/main: example.com/nic=a", "p/next: example.com/nic=b"]);
    assert_eq!(errors, ["malformed"]);
    let by_name = r#"{"main":["a","b"],"next":[7],"nobody":["x"]}"#;
    let (shown, errors) = mapped(", path: '*.*', container: '*'", by_name, &both);
    assert_eq!(shown, ["p/main: example.com/nic=a,b", "p/next: example.com/nic=7"]);
    assert_eq!(errors, ["no_container"]);
    let (shown, _) = mapped(", path: '*.*'", by_name, &both);
    assert_eq!(shown, ["p/main: example.com/nic=a,b,7,x", "p/next:"], "in the order of the keys");
    assert_eq!(of_one(", path: '*.*', container: '*'", r#"[["a"]]"#).1, ["malformed"], "no key");
    assert_eq!(of_one(", path: a", "nonsense").1, ["malformed"]);
    assert_eq!(of_one(", path: a", "{}"), ("p/main:".to_owned(), vec![]), "nothing there is no error");
}

#[test]
fn names_in_messages_are_escaped_and_truncated() {
    let rules =
        rules("{mappings: [{annotation: a, resource: example.com/nic, path: '*.*', container: '*'}]}");
    let message = |name: &str| {
        let pods = [pod("p", "a", &format!(r#"{{"{name}":["x"]}}"#), &[container("main", &[])])];
        rules.read(pods.iter(), &unreported()).errors()[0].message.clone()
    };
    let shown = |name: &str| {
        format!("pod ns/p: an annotation allocates a device to container `{name}`, which it does not have")
    };
    assert_eq!(message(r"\u001b[2J"), shown(r"\u{1b}[2J"));
    assert_eq!(message(&"x".repeat(65)), shown(&"x".repeat(64)));
}

#[test]
fn containers_are_found_by_their_requests() {
    let both =
        [container("main", &[("koordinator.sh/gpu", 100)]), container("next", &[("example.com/nic", 1)])];
    assert_eq!(mapped("", "a,b", &both).0, ["p/main:", "p/next: example.com/nic=a,b"]);
    let both = [container("main", &[("example.com/nic", 1)]), container("next", &[("example.com/nic", 1)])];
    assert_eq!(mapped("", "a,b", &both).0, ["p/main: example.com/nic=a", "p/next: example.com/nic=b"]);
}

#[test]
fn selected_devices_are_bounded() {
    let many: String = (0..3000).map(|n| format!("[{n},{n}.1,{n}.2],")).collect();
    // Of one more than a pod may have, 16 that are not requested.
    let too_many = ["pod ns/p: an annotation allocates 1025 of `example.com/nic`; only 16 are merged"];
    let main = [container("main", &[])];
    assert_eq!(messages(&read_mapped(", path: '*.*'", &format!("[{many}7]"), &main).1), too_many);
    let (_, errors) = of_one("", &"a,".repeat(30_000));
    assert!(errors.is_empty(), "a thousand times the same");
    let all: String = (0..5000).map(|n| format!("{n},")).collect();
    assert_eq!(messages(&read_mapped("", &all, &main).1), too_many);
    let long = "k".repeat(30_000);
    assert_eq!(of_one(", path: '*'", &format!(r#"["{long}"]"#)).1, ["bad_id"]);
    let long = format!(r#"{{"{long}":[1,2,3]}}"#);
    assert_eq!(of_one(", path: '*.*', container: '*'", &long).1, ["no_container"]);
    // A container that is selected by name gets what it requests, or 16.
    let of_main = |ids: &str, requests: &[(&str, u64)]| {
        let text = format!(r#"{{"main":[{ids}0]}}"#);
        read_mapped(", path: '*.*', container: '*'", &text, &[container("main", requests)]).1
    };
    assert!(of_main(&"1,2,3,4,5,6,7,8,9,".repeat(3), &[]).errors().is_empty(), "the same ten");
    for (requests, merged, others) in [(&[("example.com/nic", 20)][..], 20, 1004), (&[][..], 16, 1008)] {
        let allocations = of_main(&all, requests);
        let message = format!(
            "pod ns/p: an annotation allocates more than {merged} of `example.com/nic` to container `main`; only \
             {merged} are merged (and {others} times more)"
        );
        assert_eq!(messages(&allocations), [message]);
    }
}

#[test]
fn several_mappings_and_koordinator_are_combined() {
    let yaml =
        "{mappings: [{annotation: a, resource: nvidia.com/gpu}, {annotation: a, resource: example.com/b},
                            {annotation: z, resource: example.com/z}]}";
    let rules = rules(yaml);
    assert_eq!(rules.keys(), ["a", DEVICES, "z"]);
    let mut pod = pod("p", "a", "x,GPU-a", &[container("main", &[])]);
    let koordinator = (DEVICES.into(), Annotation::Text(r#"{"gpu":[{"id":"GPU-a"}]}"#.into()));
    pod.annotations = [pod.annotations[0].clone(), koordinator].into();
    let shown = merged(&rules, &[pod], &unreported());
    assert_eq!(shown, ["p/main: nvidia.com/gpu=GPU-a,x example.com/b=x,GPU-a"]);
}

#[test]
fn mapped_devices_have_numa_nodes_but_are_not_checked() {
    let node = reported("", &[device("gpu", "GPU-a", 0, Some(1))]);
    let pods = [pod("p", KEY, "GPU-a,GPU-x", &[container("main", &[])])];
    let rules = rules(&format!("{{mappings: [{{annotation: {KEY}, resource: example.com/nic}}]}}"));
    assert_eq!(merged(&rules, &pods, &node), ["p/main: example.com/nic=GPU-a@1 example.com/nic=GPU-x"]);
    assert!(rules.read(pods.iter(), &node).errors().is_empty());
}
