//! Mapped annotations of other schedulers.

use super::*;

const KEY: &str = "example.com/devices";

/// What the List shows for a pod with these containers and a mapping, and its problems.
fn mapped(mapping: &str, text: &str, containers: &[Container]) -> (Vec<String>, Vec<(&'static str, usize)>) {
    let yaml = format!(
        "{{koordinator: [], mappings: [{{annotation: {KEY}, resource: example.com/nic{mapping}}}]}}"
    );
    let (rules, pods) = (rules(&yaml), [pod("p", KEY, text, containers)]);
    let problems = problems(&rules.plan(pods.iter(), &Node::default()));
    (merged(&rules, &pods, &Node::default()), problems)
}

fn of_one(mapping: &str, text: &str) -> (String, Vec<(&'static str, usize)>) {
    let (mut shown, problems) = mapped(mapping, text, &[container("main", &[])]);
    (shown.remove(0), problems)
}

#[test]
fn texts_are_ids_separated_by_commas() {
    let fine = |text: &str, mapping: &str| {
        let (shown, problems) = of_one(mapping, text);
        assert!(problems.is_empty(), "{problems:?}");
        shown
    };
    assert_eq!(fine("a", ""), "p/main: example.com/nic=a");
    assert_eq!(fine(" a, b ,,c,", ""), "p/main: example.com/nic=a,b,c");
    assert_eq!(fine("", ""), "p/main:");
    assert_eq!(fine("a,b", ", id: 'eth-{}'"), "p/main: example.com/nic=eth-a,eth-b");
    assert_eq!(of_one("", "a b,c").1, [("bad_id", 1)]);
}

#[test]
fn paths_find_what_is_in_json() {
    let gpus = r#"[{"uuid":"a","n":0,"of":"main"},{"uuid":"b","n":1,"of":"next"},{"n":2,"of":"main"},{"uuid":true}]"#;
    let (shown, problems) = of_one(", path: '$[*]', id: '{.uuid}::{.n}'", gpus);
    assert_eq!(shown, "p/main: example.com/nic=a::0,b::1");
    assert_eq!(problems, [("malformed", 0)], "two of them, told of once");
    let both = [container("main", &[]), container("next", &[])];
    let (shown, problems) = mapped(", path: '$[*]', id: '{.uuid}', container: '{.of}'", gpus, &both);
    assert_eq!(shown, ["p/main: example.com/nic=a", "p/next: example.com/nic=b"]);
    assert_eq!(problems, [("malformed", 0)]);
    let by_name = r#"{"main":["a","b"],"next":[7],"nobody":["x"]}"#;
    let (shown, problems) = mapped(", path: '$.*[*]', container: '{1}'", by_name, &both);
    assert_eq!(shown, ["p/main: example.com/nic=a,b", "p/next: example.com/nic=7"]);
    assert_eq!(problems, [("no_container", 1)]);
    let (shown, _) = mapped(", path: '$.*[*]', container: next", by_name, &both);
    assert_eq!(shown, ["p/main:", "p/next: example.com/nic=a,b,7,x"], "in the order of the keys");
    assert_eq!(of_one(", path: $", "nonsense").1, [("malformed", 0)]);
    assert_eq!(of_one(", path: $.a", "{}"), ("p/main:".to_owned(), vec![]), "nothing there is no error");
}

#[test]
fn names_from_annotations_are_shown_escaped_and_short() {
    let rules =
        rules("{mappings: [{annotation: a, resource: example.com/nic, path: '$.*[*]', container: '{1}'}]}");
    let sentence = |name: &str| {
        let pods = [pod("p", "a", &format!(r#"{{"{name}":["x"]}}"#), &[container("main", &[])])];
        rules.plan(pods.iter(), &Node::default()).problems()[0].sentence.clone()
    };
    let shown = |name: &str| {
        format!("pod ns/p: an annotation gives a device to container `{name}`, which it does not have")
    };
    assert_eq!(sentence(r"\u001b[2J"), shown(r"\u{1b}[2J"));
    assert_eq!(sentence(&"x".repeat(65)), shown(&"x".repeat(64)));
}

#[test]
fn containers_are_found_by_what_they_ask_for() {
    let both =
        [container("main", &[("koordinator.sh/gpu", 100)]), container("next", &[("example.com/nic", 1)])];
    assert_eq!(mapped("", "a,b", &both).0, ["p/main:", "p/next: example.com/nic=a,b"]);
    let both = [container("main", &[("example.com/nic", 1)]), container("next", &[("example.com/nic", 1)])];
    assert_eq!(mapped("", "a,b", &both).0, ["p/main: example.com/nic=a", "p/next: example.com/nic=b"]);
}

#[test]
fn what_is_selected_is_bounded() {
    let many = format!("[{}7]", "[1,2,3,4,5,6,7,8],".repeat(3000));
    let (_, problems) = of_one(", path: '$[*][*]', id: '{1}-{2}'", &many);
    assert_eq!(problems, [("too_many", 1009)], "16 that nobody asks for, of one more than a pod may have");
    let (_, problems) = of_one("", &"a,".repeat(30_000));
    assert!(problems.is_empty(), "a thousand times the same");
    let all: String = (0..5000).map(|n| format!("{n},")).collect();
    assert_eq!(of_one("", &all).1, [("too_many", 1009)]);
    // The key is repeated for each value below it.
    let long = format!(r#"{{"{}":[1,2,3]}}"#, "k".repeat(30_000));
    assert_eq!(of_one(", path: '$.*[*]', id: '{1}{}'", &long).1, [("bad_id", 3)]);
    assert_eq!(of_one(", path: '$.*[*]', container: '{1}'", &long).1, [("no_container", 3)]);
    // A container that is selected by name gets no more than it requests.
    let asks = [container("main", &[("example.com/nic", 20)])];
    let (_, problems) =
        mapped(", path: '$[*]', container: main", &format!("[{}0]", "1,2,3,4,5,6,7,8,9,".repeat(3)), &asks);
    assert!(problems.is_empty(), "the same nine, {problems:?}");
    let (_, problems) = mapped(", path: '$[*]', container: main", &format!("[{all}0]"), &asks);
    assert_eq!(problems, [("too_many", 1005)], "of one more than a pod may have");
}

#[test]
fn several_mappings_and_koordinator_are_together() {
    let yaml =
        "{mappings: [{annotation: a, resource: nvidia.com/gpu}, {annotation: a, resource: example.com/b},
                            {annotation: z, resource: example.com/z}]}";
    let rules = rules(yaml);
    assert_eq!(rules.wanted(), ["a", DEVICES, "z"]);
    let mut pod = pod("p", "a", "x,GPU-a", &[container("main", &[])]);
    let koordinators = (DEVICES.into(), Annotation::Text(r#"{"gpu":[{"id":"GPU-a"}]}"#.into()));
    pod.annotations = [pod.annotations[0].clone(), koordinators].into();
    let shown = merged(&rules, &[pod], &Node::default());
    assert_eq!(shown, ["p/main: nvidia.com/gpu=GPU-a,x example.com/b=x,GPU-a"]);
}

#[test]
fn places_of_mapped_devices_are_looked_up_but_not_checked() {
    let node = reported("", &[device("gpu", "GPU-a", 0, Some(1))]);
    let pods = [pod("p", KEY, "GPU-a,GPU-x", &[container("main", &[])])];
    let rules = rules(&format!("{{mappings: [{{annotation: {KEY}, resource: example.com/nic}}]}}"));
    assert_eq!(merged(&rules, &pods, &node), ["p/main: example.com/nic=GPU-a@1 example.com/nic=GPU-x"]);
    assert!(rules.plan(pods.iter(), &node).problems().is_empty());
}
