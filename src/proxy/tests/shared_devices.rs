//! Devices that several pods have, in parts or as a whole.

use super::*;

#[test]
fn a_device_of_two_pods_is_reported() {
    let whole = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory-ratio":100}}]}"#;
    let half = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":50,"koordinator.sh/gpu-memory-ratio":"100"}}]}"#;
    let template = r#"{"gpu":[{"id":"GPU-a","extension":{"gpuSharedResourceTemplate":"vir04"}}]}"#;
    let card = r#"{"rdma":[{"id":"r","resources":{"koordinator.sh/rdma":"1"}}]}"#;
    for (one, other, is_error) in [
        (whole, whole, true),
        (whole, half, true),
        (half, half, false),
        (half, template, false),
        (template, template, false),
        (card, card, false),
    ] {
        let pods = [("p", one), ("q", other)]
            .map(|(name, text)| pod(name, DEVICES, text, &[container("main", &[])]));
        let allocations = read(&pods);
        let shown = merged(&default_rules(), &pods, &unreported());
        assert!(shown.iter().all(|line| line.contains('=')), "{shown:?}");
        assert_eq!(errors(&allocations), if is_error { vec!["allocated_twice"] } else { vec![] });
        if is_error {
            let expected = "pod ns/q: `nvidia.com/gpu` `GPU-a` is also allocated to pod ns/p, not in parts";
            assert_eq!(allocations.errors()[0].message, expected);
        }
    }
    let pods = ["p", "q", "r"].map(|name| pod(name, DEVICES, whole, &[container("main", &[])]));
    let allocations = read(&pods);
    assert_eq!(errors(&allocations), ["allocated_twice", "allocated_twice"]);
}

#[test]
fn parts_have_ids_of_their_own() {
    let half = r#"{"gpu":[{"id":"GPU-a","resources":{"koordinator.sh/gpu-core":50}},{"id":"GPU-b"}],
                   "rdma":[{"id":"r","resources":{"koordinator.sh/rdma":"1"}}]}"#;
    let of = |name: &str| pod(name, DEVICES, half, &[container("main", &[])]);
    let shared = rules("{koordinator: [devices, sharedIds]}");
    let shown = |pods: &[Pod]| merged(&shared, pods, &unreported());
    let both = shown(&[of("p"), of("q")]);
    let number = |line: &str| -> u64 {
        let (_, rest) = line.split_once("=GPU-a::").unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    let numbers = [number(&both[0]), number(&both[1])];
    assert!(numbers[0] != numbers[1] && numbers.iter().all(|number| *number < 1 << 31), "{numbers:?}");
    assert_eq!(both[0], format!("p/main: nvidia.com/gpu=GPU-a::{},GPU-b koordinator.sh/rdma=r", numbers[0]));
    assert_eq!(shown(&[of("q")]), [both[1].clone()], "whichever other pods there are");
    assert_eq!(shown(&[of("q"), of("o"), of("p")])[2], both[0]);
    let again = Pod { uid: "another".into(), ..of("p") };
    assert_ne!(shown(&[again])[0], both[0], "another pod of that name");
}

#[test]
fn part_numbers_depend_on_the_pod_and_differ_per_device() {
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
        let shown = merged(&rules("{koordinator: [devices, sharedIds]}"), pods, &unreported());
        shown.iter().map(of_line).collect()
    };
    // The number depends on the pod's name and UID only. Among some hundred thousand pods, two have the same
    // number.
    let mut known = std::collections::HashMap::new();
    let (one, other) = (0_u32..)
        .find_map(|number| {
            let this = of(&number.to_string());
            let other = known.insert(part_number(&this), this.clone())?;
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
