//! Koordinator's devices: every sample of the format, and how devices are assigned to containers.

use super::*;

#[test]
fn every_sample_of_the_format_is_read() {
    let unreported = unreported();
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
        assert_eq!(of(text, &unreported), expected, "{text}");
    }
    assert_eq!(of(samples[0].0, &known), "p/main: nvidia.com/gpu=GPU-b@1", "found by its minor number");
}

#[test]
fn a_sidecar_does_not_get_what_another_container_requests() {
    let text = r#"{"gpu":[{"minor":0,"id":"GPU-a"}]}"#;
    let (sidecar, main) = (container("sidecar", &[]), container("main", &[("koordinator.sh/gpu", 100)]));
    let shown = of_pod(text, &[sidecar.clone(), main], &unreported());
    assert_eq!(shown, ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a"]);
    let shown = of_pod(text, &[sidecar, container("main", &[])], &unreported());
    assert_eq!(shown, ["p/sidecar:", "p/main: nvidia.com/gpu=GPU-a"], "no request");
    let (sidecar, main) = (container("sidecar", &[("nvidia.com/gpu", 1)]), container("main", &[]));
    let shown = of_pod(text, &[sidecar, main], &unreported());
    assert_eq!(shown, ["p/sidecar: nvidia.com/gpu=GPU-a", "p/main:"], "unless it requests it");
}

#[test]
fn every_container_gets_as_many_devices_as_it_requests() {
    let gpus = |count: usize| {
        let all: Vec<String> = (0..count).map(|n| format!(r#"{{"minor":{n},"id":"{n}"}}"#)).collect();
        format!(r#"{{"gpu":[{}]}}"#, all.join(","))
    };
    /// What each container requests, how many devices there are, and what each container gets.
    type Case<'a> = (&'a [&'a [(&'a str, u64)]], usize, &'a [&'a str]);
    let cases: [Case<'_>; 14] = [
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
    for (containers, count, expected) in cases {
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
        assert_eq!(of_pod(&gpus(count), &containers, &unreported()), expected, "{containers:?}");
    }
}

#[test]
fn requests_that_add_up_to_the_devices_are_counts() {
    let cards = |count: usize| {
        let all: Vec<String> = (0..count).map(|n| format!(r#"{{"id":"{n}"}}"#)).collect();
        format!(r#"{{"rdma":[{}]}}"#, all.join(","))
    };
    for (requests, count, expected) in [
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
            let containers = ["main", "next"].into_iter().zip(requests);
            let containers: Vec<_> = containers.map(|(of, n)| container(of, &[(&name, n)])).collect();
            let shown = of_pod(&cards(count), &containers, &unreported());
            let ids =
                shown.iter().map(|line| line.split_once('=').map_or("", |(_, ids)| ids)).collect::<Vec<_>>();
            assert_eq!(ids, expected, "{requests:?}, {count}");
        }
    }
    // Requests of other types of devices do not matter.
    let containers = [
        container("main", &[("koordinator.sh/rdma", 2), ("koordinator.sh/gpu", 100)]),
        container("next", &[("koordinator.sh/rdma", 1)]),
    ];
    let shown = of_pod(&cards(3), &containers, &unreported());
    assert_eq!(shown, ["p/main: koordinator.sh/rdma=0,1", "p/next: koordinator.sh/rdma=2"]);
}

#[test]
fn init_containers_get_nothing() {
    let text = r#"{"gpu":[{"minor":0,"id":"GPU-a"}]}"#;
    let (init, main) = (container("init", &[("nvidia.com/gpu", 1)]), container("main", &[]));
    assert_eq!(of_pod(text, &[init.clone(), main], &unreported()), ["p/main: nvidia.com/gpu=GPU-a"]);
    let allocations = read(&[pod("p", DEVICES, text, &[init])]);
    assert_eq!(errors(&allocations), ["no_container"]);
}

#[test]
fn every_type_is_assigned_on_its_own() {
    let text =
        r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}],"rdma":[{"id":"0000:01:00.0"}],"fpga":[{"id":"f"}]}"#;
    let (main, next) = (
        container("main", &[("koordinator.sh/gpu", 100), ("koordinator.sh/fpga", 100)]),
        container("next", &[("koordinator.sh/gpu", 100), ("koordinator.sh/rdma", 1)]),
    );
    let shown = of_pod(text, &[main, next], &unreported());
    assert_eq!(
        shown,
        [
            "p/main: koordinator.sh/fpga=f nvidia.com/gpu=GPU-a",
            "p/next: nvidia.com/gpu=GPU-b koordinator.sh/rdma=0000:01:00.0"
        ]
    );
}

#[test]
fn a_template_without_functions_keeps_the_id() {
    let text = r#"{"gpu":[{"minor":0,"id":"NPU-0","extension":{"gpuSharedResourceTemplate":"vir04"}}]}"#;
    assert_eq!(of(text, &unreported()), "p/main: nvidia.com/gpu=NPU-0");
}

#[test]
fn a_type_that_makes_no_resource_name_is_left_out() {
    for (kind, resource) in
        [("fpga", "koordinator.sh/fpga"), ("xpu", "koordinator.sh/xpu"), ("A_b.c", "koordinator.sh/A_b.c")]
    {
        let text = format!(r#"{{"{kind}":[{{"id":"x"}}]}}"#);
        assert_eq!(of(&text, &unreported()), format!("p/main: {resource}=x"));
    }
    for kind in ["", "/", "gpu/nvidia", "a b", "-", "ü", &"x".repeat(64)] {
        let text = format!(r#"{{"{kind}":[{{"id":"x"}}]}}"#);
        assert_eq!(of(&text, &unreported()), "p/main:", "{kind}");
        assert_eq!(errors(&read_one(&text, &unreported())), ["malformed"]);
    }
}

#[test]
fn accelerators_are_named_by_their_vendor() {
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
    let configured = "koordinatorResources: {gpu: example.com/any, gpu/huawei: huawei.com/Ascend910, \
                      rdma: example.com/rdma}";
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
fn a_device_without_id_is_found_by_its_minor_number_or_left_out() {
    let text = r#"{"gpu":[{"minor":0},{"minor":7},{"minor":1,"id":""},{},{"minor":"0"}]}"#;
    let node = reported(
        "",
        &[device("gpu", "GPU-a", 0, None), device("gpu", "", 1, None), device("rdma", "r", 7, None)],
    );
    assert_eq!(of(text, &node), "p/main: nvidia.com/gpu=GPU-a");
    let pods = [pod("p", DEVICES, text, &[container("main", &[])])];
    let allocations = default_rules().read(pods.iter(), &node);
    assert_eq!(errors(&allocations), ["no_id"]);
    assert!(allocations.errors()[0].kind.concerns_devices());
    assert_eq!(
        allocations.errors()[0].message,
        "pod ns/p: a device of type `gpu` has no id, and the node's Device object has no id for minor 7 (and 3 times \
         more)"
    );
    assert_eq!(errors(&read(&pods)), ["no_id"]);
    assert!(messages(&read(&pods))[0].ends_with(" (and 4 times more)"));
}
