use std::mem::{size_of, size_of_val};

use serde_json::{Value, json};

use super::*;
use crate::pod::{Annotation, Wanted};

fn read(pod: &Value) -> Pod {
    // From bytes, as in production: deserializing a `Value` is a different code path.
    Pod::from(serde_json::from_slice::<ApiPod>(&serde_json::to_vec(pod).unwrap()).unwrap())
}

fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "spec": spec, "status": {}})
}

fn termination(metadata: Value, status: Value) -> Termination {
    let mut object = json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "labels": {"x": "y"}, "managedFields": [{}]},
        "spec": {"nodeName": "w", "containers": [{"name": "c"}]},
        "status": status,
    });
    if let (Some(all), Value::Object(more)) = (object["metadata"].as_object_mut(), metadata) {
        all.extend(more);
    }
    read(&object).termination
}

#[test]
fn a_deleted_pod_without_running_containers_is_stopped() {
    let deleted = || json!({"deletionTimestamp": "2026-11-21T14:00:00Z"});
    let running = json!({"phase": "Running", "containerStatuses": [
        {"name": "c", "state": {"running": {"startedAt": "2026-11-21T14:00:00Z"}}},
        {"name": "d", "state": {"terminated": {"exitCode": 0}}},
    ]});
    let stopped = json!({"phase": "Running", "containerStatuses": [
        {"name": "c", "state": {"terminated": {"exitCode": 137}}},
    ]});
    let sidecar = json!({"phase": "Running", "initContainerStatuses": [
        {"name": "s", "state": {"running": {}}},
    ]});
    assert_eq!(termination(json!({}), running.clone()), Termination::Live);
    assert_eq!(termination(json!({}), stopped.clone()), Termination::Live, "it starts again");
    assert_eq!(termination(deleted(), running), Termination::Live);
    assert_eq!(termination(deleted(), sidecar), Termination::Live);
    assert_eq!(termination(deleted(), stopped), Termination::Stopped);
    assert_eq!(termination(deleted(), json!({"phase": "Failed"})), Termination::Terminated);
    assert_eq!(termination(json!({}), json!({"phase": "Succeeded"})), Termination::Terminated);
    assert_eq!(termination(json!({}), json!({})), Termination::Live);
}

#[test]
fn a_pod_has_the_requests_of_every_container() {
    let read = read(&json!({
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "deletionTimestamp": "2026-11-21T14:00:00Z"},
        "spec": {
            "initContainers": [
                {"name": "first", "resources": {"requests": {"cpu": "2", "example.com/nic": 1}}},
                {"name": "beside", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "again", "restartPolicy": "OnFailure"},
            ],
            "containers": [{"name": "main", "resources": {
                "limits": {"cpu": "3", "memory": "1.5Gi", "hugepages-2Mi": "4Mi", "example.com/gpu": "2"},
                "requests": {"cpu": "1500m", "ephemeral-storage": "1Gi", "storage": "1", "example.com/none": "0",
                             "hugepages-1Gi": "0"},
            }}],
            "ephemeralContainers": [{"name": "debug"}],
        },
        "status": {"phase": "Running", "qosClass": "Burstable"},
    }));
    let container = |name: &str, kind, cpu_milli, memory, others: &[(&str, u64)]| {
        let others = others.iter().map(|(name, amount)| (Box::from(*name), *amount)).collect();
        Container { name: name.into(), kind, cpu_milli, memory, others, guaranteed: false }
    };
    let expected = Pod {
        namespace: "ns".into(),
        name: "a".into(),
        uid: "u".into(),
        phase: Phase::Running,
        deleted: true,
        termination: Termination::Stopped,
        containers: [
            container("first", ContainerKind::Init, 2000, 0, &[("example.com/nic", 1)]),
            container("beside", ContainerKind::Sidecar, 100, 0, &[]),
            container("again", ContainerKind::Init, 0, 0, &[]),
            // A resource with only a limit has a request of the same amount.
            container(
                "main",
                ContainerKind::App,
                1500,
                3 << 29,
                &[("example.com/gpu", 2), ("example.com/none", 0), ("hugepages-2Mi", 4 << 20)],
            ),
        ]
        .into(),
        ..Pod::default()
    };
    assert_eq!(read, expected);
}

/// Builds the resources of one container from `cpu,memory` for requests and for limits; an empty text
/// means unset.
fn resources(requests: &str, limits: &str) -> Value {
    let amounts = |text: &str| match text.split_once(',') {
        Some((cpu, memory)) => {
            let given =
                [("cpu", cpu), ("memory", memory)].into_iter().filter(|(_, amount)| !amount.is_empty());
            Value::Object(given.map(|(name, amount)| (name.to_owned(), amount.into())).collect())
        }
        None => Value::Null,
    };
    json!({"requests": amounts(requests), "limits": amounts(limits)})
}

#[test]
fn pods_are_guaranteed_as_in_the_kubelet() {
    for (containers, expected) in [
        (&[][..], false),
        (&[("", "")], false),
        (&[("1,1Gi", "1,1Gi")], true),
        (&[("1,1Gi", "1000m,1024Mi")], true),
        (&[("", "1,1Gi")], true),
        (&[("0,0", "0,0")], false),
        (&[("1,1Gi", "2,1Gi")], false),
        (&[("1,1Gi", "1,")], false),
        (&[("1,1Gi", "")], false),
        (&[("1,1Gi", "1,1Gi"), ("", "")], false),
        (&[("1,1Gi", "1,1Gi"), ("500m,1", "500m,1")], true),
        // Only the sums are compared; the API server rejects requests above their limit.
        (&[("2,1Gi", "1,1Gi"), ("1,1Gi", "2,1Gi")], true),
        (&[("-1,1Gi", "-1,1Gi")], false),
    ] {
        let list = |range: &[(&str, &str)]| -> Vec<Value> {
            range.iter().map(|(r, l)| json!({"name": "c", "resources": resources(r, l)})).collect()
        };
        let apps = read(&pod(json!({"containers": list(containers)})));
        assert_eq!(apps.guaranteed, expected, "{containers:?}");
        assert_eq!(apps.qos_guaranteed, expected, "the status has no class");
        let split = containers.len().min(1);
        let with_init =
            json!({"initContainers": list(&containers[..split]), "containers": list(&containers[split..])});
        assert_eq!(read(&pod(with_init)).guaranteed, expected, "{containers:?}, the first of them init");
    }
}

#[test]
fn pod_level_resources_decide_the_qos_class() {
    for (of_pod, of_container, guaranteed, pod_level) in [
        (resources("1,1Gi", "1,1Gi"), resources("500m,", ""), true, true),
        (resources("1,1Gi", "2,1Gi"), resources("1,1Gi", "1,1Gi"), false, true),
        (resources("1,", ""), resources("1,1Gi", "1,1Gi"), false, true),
        (json!({"limits": {"hugepages-2Mi": "2Mi"}}), resources("1,1Gi", "1,1Gi"), false, true),
        (json!({}), resources("1,1Gi", "1,1Gi"), false, false),
        (Value::Null, resources("1,1Gi", "1,1Gi"), true, false),
    ] {
        let spec = json!({"resources": of_pod, "containers": [{"name": "c", "resources": of_container}]});
        let read = read(&pod(spec));
        assert_eq!((read.guaranteed, read.pod_level.is_some()), (guaranteed, pod_level), "{of_pod}");
    }
}

#[test]
fn the_class_of_the_status_is_kept_beside_the_computed_one() {
    let mut pod = pod(json!({"containers": [{"name": "c", "resources": resources("1,1Gi", "1,1Gi")}]}));
    for (class, expected) in [("BestEffort", false), ("Guaranteed", true), ("", true)] {
        pod["status"]["qosClass"] = class.into();
        let read = read(&pod);
        assert_eq!((read.guaranteed, read.qos_guaranteed), (true, expected), "{class}");
    }
}

#[test]
fn invalid_amounts_count_as_one() {
    for (amount, cpu_milli, whole) in [
        (json!("much"), 1000, 1),
        (json!(null), 1000, 1),
        (json!(true), 1000, 1),
        (json!([1, [2]]), 1000, 1),
        (json!({"a": {"b": 1}}), 1000, 1),
        (json!("-1"), 0, 0),
        (json!(-1), 0, 0),
        (json!(2), 2000, 2),
        (json!(0.5), 500, 1),
        (json!(" 2 "), 2000, 2),
        (json!("500e-3"), 500, 1),
        (json!("1000000001n"), 1001, 2),
        // Kubernetes reads an amount that does not fit in 64 bits as 0 or as an arbitrary number.
        (json!("99999999E"), 0, 0),
        (json!(u64::MAX), 0, 0),
        (json!("20000000000000000001"), 18_446_744_073_709_551_000, 1_553_255_926_290_448_385),
    ] {
        let requests = json!({"cpu": amount, "memory": amount, "example.com/gpu": amount});
        let read = read(&pod(json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})));
        let [container] = &*read.containers else { panic!("{read:?}") };
        assert_eq!((container.cpu_milli, container.memory), (cpu_milli, whole), "{amount}");
        let gpus: Vec<u64> = container.others.iter().map(|(_, count)| *count).collect();
        assert_eq!(gpus, [whole], "{amount}");
    }
    // Go writes `null` for empty values.
    let empty = json!({"metadata": {"name": "a", "deletionTimestamp": null}, "spec": {"containers": null}});
    assert_eq!(read(&empty), Pod { name: "a".into(), ..Pod::default() });
    // Deep enough to overflow the stack of a recursive parser.
    let deep = format!(
        r#"{{"spec":{{"x":{}{}}},"metadata":{{"name":"a"}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(Pod::from(serde_json::from_str::<ApiPod>(&deep).unwrap()).name, "a");
}

#[test]
fn only_wanted_annotations_are_kept() {
    let mut object = pod(json!({"containers": []}));
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    object["metadata"]["annotations"] = json!({
        "a.b/long": "x".repeat(Annotation::MAX_BYTES + 1), "a.b/longest": "x".repeat(Annotation::MAX_BYTES), "a.b/number": 7, "a.b/none": null,
        "a.b/deep": serde_json::from_str::<Value>(&deep).unwrap(), "a.b/map": {"a": "b"}, "a.b/empty": "", "c": "\"\u{fc}\"",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    });
    let all = read(&object);
    let keys =
        |pod: &Pod| pod.annotations.iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&all), "a.b/empty a.b/long a.b/longest c");
    let kept = all.clone().keeping(&Wanted::of([
        "c",
        "a.b/long",
        "kubectl.kubernetes.io/last-applied-configuration",
    ]));
    assert_eq!(
        *kept.annotations,
        [
            ("a.b/long".into(), Annotation::TooLong(Annotation::MAX_BYTES + 1)),
            ("c".into(), Annotation::Text("\"\u{fc}\"".into()))
        ]
    );
    assert_eq!(keys(&all.keeping(&Wanted::default())), "");
    for nothing in [Value::Null, json!({})] {
        object["metadata"]["annotations"] = nothing;
        assert_eq!(keys(&read(&object)), "");
    }
}

#[test]
fn a_pod_of_thousands_of_containers_takes_bounded_memory() {
    // The API server accepts 1.5 MB of containers, resources or annotations.
    let one = |number: usize| json!({"name": format!("c{number}"), "resources": {"requests": {"cpu": "10m", "a.b/c": "1"}}});
    let many = read(&pod(json!({"containers": (0..20_000).map(one).collect::<Vec<_>>()})));
    assert_eq!(many.containers.len(), Container::MAX_PER_POD);
    let sum: u64 = many.containers.iter().map(|container| container.cpu_milli).sum();
    let others: u64 =
        many.containers.iter().flat_map(|container| &container.others).map(|(_, count)| count).sum();
    assert_eq!((sum, others), (200_000, 20_000), "all requests are summed");
    let wide = |number: usize| (format!("a.b/c{number}"), json!("1"));
    let wide: serde_json::Map<_, _> = (0..20_000).map(wide).collect();
    let wide = read(&pod(json!({"containers": [{"name": "c", "resources": {"requests": wide}}]})));
    let mut annotated = pod(json!({"containers": []}));
    for key in ["a", "b", "c", "d"] {
        annotated["metadata"]["annotations"][key] = "x".repeat(60_000).into();
    }
    let annotated = read(&annotated).keeping(&Wanted::of(["a", "b", "c", "d"]));
    let texts = annotated.annotations.iter().filter(|(_, text)| matches!(text, Annotation::Text(_)));
    assert_eq!(texts.count(), 1);
    for pod in [many, wide] {
        assert!(bytes(&pod) < 64 << 10, "{} bytes", bytes(&pod));
    }
}

/// The memory a pod record takes, without allocator overhead.
fn bytes(pod: &Pod) -> usize {
    let container = |container: &Container| {
        let names: usize = container.others.iter().map(|(name, _)| name.len()).sum();
        container.name.len() + size_of_val(&*container.others) + names
    };
    let strings = pod.namespace.capacity() + pod.name.capacity() + pod.uid.capacity();
    let containers: usize = pod.containers.iter().map(container).sum();
    size_of::<Pod>() + strings + size_of_val(&*pod.containers) + containers
}

#[test]
fn a_pod_takes_a_few_hundred_bytes() {
    let asks = json!({
        "requests": {"cpu": "4", "memory": "16Gi", "hugepages-1Gi": "4Gi", "openshift.io/sriov-numa-0": "1"},
        "limits": {"cpu": "4", "memory": "16Gi", "hugepages-1Gi": "4Gi", "openshift.io/sriov-numa-0": "1"},
    });
    let container = |name: &str| {
        let env: Vec<Value> =
            (0..60).map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "x".repeat(60)})).collect();
        json!({"name": name, "image": "registry.example.com/team/image:v1.2.3", "env": env, "resources": asks})
    };
    let fat = json!({
        "metadata": {
            "name": "user-plane-function-7d9c5b6f8d-x2k4q",
            "namespace": "core-network-production",
            "uid": "0d4f6a0e-6a55-4b0c-9f0e-2f6f1c0b7a11",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "y".repeat(4000)},
        },
        "spec": {
            "initContainers": [container("wait-for-network")],
            "containers": [container("data-plane"), container("metrics-exporter")],
        },
        "status": {"phase": "Running", "qosClass": "Guaranteed"},
    });
    assert!(fat.to_string().len() > 10_000, "the message is large");
    let read = read(&fat);
    assert!(read.guaranteed);
    assert!(bytes(&read) < 700, "{}", bytes(&read));
    let slim = pod(json!({"containers": [{"name": "main", "resources": resources("1,1Gi", "1,1Gi")}]}));
    assert!(bytes(&self::read(&slim)) < 256, "{}", bytes(&self::read(&slim)));
}
