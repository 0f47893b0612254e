//! Fuzz targets for untrusted input, one function per parser: any bytes must not panic, and the accounting
//! must keep its invariants.
//!
//! `make fuzz` runs them on generated input, `tests/corpus` on the inputs kept in `fuzz/corpus`.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use numacast::agent::{self, Account, Recording};
use numacast::claims::{Claim, ClaimInUse, DeviceKey, Inventory, NodeClaims, Slice, SliceObject, parse_cdi};
use numacast::cluster::{self, DecodeError, FrameSplitter, KoordinatorDevices, PodFrame, PodListDecoder};
use numacast::config::{Config, Layers};
use numacast::core_v1::{self, decode_pod, read_pod};
use numacast::grpc;
use numacast::kubelet::proto::v1;
use numacast::kubelet::{
    self, Allocatable, Checkpoints, ContainerUsage, KubeletConfig, MemoryBlock, PodUsage, Usage,
};
use numacast::machine::{self, HostFiles, Machine, NumaNode, RecordedFiles, Recorder};
use numacast::pod::{Annotation, Container, ContainerKind, Pod, RawPod, Termination, Wanted};
use numacast::proxy::Allocations;
use numacast::proxy::annotations::{self, AnnotationMapping, Annotations, Koordinator, NodeDevices};
use numacast::proxy::merge::{Merged, PodResourcesVersion};
use numacast::topology::{self, HIGHEST_ZONE, Inputs, Topology, ZoneRules};
use numacast::util::json_path::JsonPath;
use numacast::util::wire::put_bytes;
use prost::Message;
use prost::bytes::Bytes;

/// A fuzz target.
pub(crate) type Target = fn(&[u8]);

/// All targets, by the name of their corpus.
pub(crate) const TARGETS: [(&str, Target); 13] = [
    ("sysfs", sysfs),
    ("podresources", podresources),
    ("checkpoints", checkpoints),
    ("claims", claims),
    ("kubelet_config", kubelet_config),
    ("config", config),
    ("recording", recording),
    ("pods", pods),
    ("pod_bytes", pod_bytes),
    ("merge", merge),
    ("annotations", annotations),
    ("grpc_frames", grpc_frames),
    ("pod_watch", pod_watch),
];

/// Host files: a line `@path` starts a file, `!path reason` is a file that cannot be read, and
/// every other line is the content of the file above it.
pub(crate) fn sysfs(data: &[u8]) {
    let files = recorded(&String::from_utf8_lossy(data));
    let recorder = Recorder::new(Borrowed(&files));
    let machine = machine::read(&recorder);
    let again = machine::read(&recorder.finish());
    match (machine, again) {
        (Ok(machine), Ok(again)) => {
            assert_eq!(machine, again, "what was read is complete");
            assert!(machine.nodes.windows(2).all(|pair| pair[0].id < pair[1].id), "{machine:?}");
            check(&Node { machine, ..Node::default() }.account());
        }
        (Err(live), Err(replayed)) => assert_eq!(live.to_string(), replayed.to_string()),
        (live, replayed) => panic!("{live:?} was recorded as {replayed:?}"),
    }
}

fn recorded(text: &str) -> RecordedFiles {
    let mut files = RecordedFiles::default();
    let mut current: Option<String> = None;
    for line in text.split_inclusive('\n') {
        if let Some(path) = line.strip_prefix('@') {
            let path = path.trim_end().to_owned();
            files.read.insert(path.clone(), String::new());
            current = Some(path);
        } else if let Some((path, reason)) = line.strip_prefix('!').and_then(|line| line.split_once(' ')) {
            files.errors.insert(path.to_owned(), reason.trim_end().to_owned());
        } else if let Some(text) = current.as_ref().and_then(|path| files.read.get_mut(path)) {
            text.push_str(line);
        }
    }
    files
}

/// Borrows the files, since a [`Recorder`] owns its source.
struct Borrowed<'a, F>(&'a F);

impl<F: HostFiles> HostFiles for Borrowed<'_, F> {
    fn read(&self, path: &str) -> io::Result<String> {
        self.0.read(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.list(path)
    }
}

/// The kubelet's responses: two bytes with the length of the GetAllocatableResources response, that response,
/// then the List response. If one cannot be decoded, which the transport would reject, the other is still
/// checked.
pub(crate) fn podresources(data: &[u8]) {
    let Some((length, rest)) = data.split_at_checked(2) else { return };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let (first, second) = rest.split_at(length.min(rest.len()));
    let allocatable = v1::AllocatableResourcesResponse::decode(first).map(Allocatable::from);
    let usage = v1::ListPodResourcesResponse::decode(second).map(Usage::from);
    let allocatable = allocatable.unwrap_or_default();
    if let Ok(usage) = usage {
        assert_eq!(usage, round_trip(&usage));
        let node = Node { allocatable: allocatable.clone(), usage, ..Node::default() };
        check(&node.account());
    }
    assert_eq!(allocatable, round_trip(&allocatable));
}

/// The managers' checkpoints, separated by a line `---`: CPUs, memory, devices. Every second pod in them is
/// listed with its containers from the checkpoints, except the first of several.
pub(crate) fn checkpoints(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut checkpoints = Checkpoints::default();
    let parsers =
        [kubelet::parse_cpu_checkpoint, kubelet::parse_memory_checkpoint, kubelet::parse_device_checkpoint];
    for (parse, text) in parsers.iter().zip(text.split("\n---\n")) {
        let before = checkpoints.clone();
        if let Err(error) = parse(text.as_bytes(), &mut checkpoints) {
            assert!(!error.is_empty());
            assert_eq!(checkpoints, before, "invalid text changes nothing");
        }
    }
    assert_eq!(checkpoints, round_trip(&checkpoints));
    let listed = |(name, containers): (&String, &Vec<ContainerUsage>)| PodUsage {
        name: name.clone(),
        containers: containers.iter().skip(usize::from(containers.len() > 1)).cloned().collect(),
        ..PodUsage::default()
    };
    let pods = checkpoints.pods.iter().step_by(2).map(listed).collect();
    let mut node = Node { usage: Usage { pods }, checkpoints: Some(checkpoints), ..Node::default() };
    node.allocatable.cpus = (0..8).collect();
    let account = node.account();
    check(&account);
    node.usage.pods.reverse();
    assert_eq!(node.account(), account, "the order of the List is of no importance");
}

/// Slices, claims and CDI files, one per line. With claims less is available, and what was recorded is the same.
pub(crate) fn claims(data: &[u8]) {
    let mut read = NodeClaims::default();
    let mut slices: Vec<Slice> = Vec::new();
    for (number, line) in data.split(|byte| *byte == b'\n').enumerate() {
        let object = serde_json::from_slice::<SliceObject>(line).map(Slice::from);
        slices.extend(object.ok().filter(|slice| !slice.driver.is_empty()));
        if let Ok(claim) = Claim::from_json(line) {
            let pods = [format!("pod-{number}")].into();
            read.claims.insert(format!("ns/{number}"), ClaimInUse { claim, is_known: true, pods });
        }
        let _ = parse_cdi(line, &mut read.cdi);
    }
    let devices = read.claims.values().flat_map(|of| &of.claim.devices);
    let in_use: BTreeSet<DeviceKey> = devices.map(DeviceKey::from).collect();
    let mut inventory = Inventory::default();
    for seconds in [0, 1, 500] {
        inventory.update(&slices, &in_use, Duration::from_secs(seconds));
    }
    read.inventory = inventory.into();
    // A recording does not tell since when a pool is lost.
    let read = round_trip(&read);
    assert_eq!(round_trip(&read), read);
    let without = Node::default().account();
    let with = Node { claims: Some(read), ..Node::default() }.account();
    check(&with);
    for (before, after) in without.zones.iter().zip(&with.zones) {
        for (name, amounts) in &before.resources {
            let after = after.resources[name];
            assert!(after.available <= amounts.available, "{name}: {after:?}, {amounts:?} without claims");
            assert_eq!(
                (after.capacity, after.allocatable),
                (amounts.capacity, amounts.allocatable),
                "{name}"
            );
        }
    }
}

/// The kubelet's configuration file, and its `configz` response.
pub(crate) fn kubelet_config(data: &[u8]) {
    match kubelet::parse_config(&String::from_utf8_lossy(data)) {
        Ok((config, problems)) => {
            assert!(problems.iter().all(|problem| !problem.is_empty()));
            assert_eq!(config, round_trip(&config));
            check(&Node { config: Some(config), ..Node::default() }.account());
        }
        Err(problem) => assert!(!problem.is_empty()),
    }
    if let Err(problem) = kubelet::parse_configz(data) {
        assert!(!problem.is_empty());
    }
}

/// numacast's configuration file.
pub(crate) fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Layers::default().text(&text, Path::new("numacast.yaml")).finish() {
        Ok(effective) => {
            let written = serde_json::to_string(&effective.config).expect("a configuration can be written");
            let read: Config = serde_json::from_str(&written).expect("what was written can be read");
            assert_eq!(read, effective.config);
        }
        Err(errors) => assert!(errors.iter().all(|error| !error.to_string().is_empty())),
    }
}

/// A recording, as attached to a bug report.
pub(crate) fn recording(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(recording) = Recording::parse(&text, Path::new("recording.json")) else { return };
    assert_eq!(recording, round_trip(&recording));
    let Ok(scan) = recording.scan() else { return };
    let rules = recording.rules();
    let account = |scan| Account::new(scan, None, &BTreeSet::new(), &rules);
    let object = |account: &Account| {
        serde_json::to_string(&agent::object(&recording.node, None, &account.with_reservations(&[]))).ok()
    };
    let (first, again) = (account(scan), recording.scan().map(account));
    if rules.exclude.resources.is_empty() {
        check(&first.topology);
    } else {
        check_zones(&first.topology);
    }
    assert_eq!(object(&first), again.ok().and_then(|again| object(&again)), "a replay gives the same bytes");
}

/// A pod in the Pods API's encoding, a pod in JSON, and the kubelet's pod list.
pub(crate) fn pods(data: &[u8]) {
    if let Ok(pod) = decode_pod(data) {
        check_pod(&pod);
    }
    if let Ok(pod) = Pod::from_json(data) {
        check_pod(&pod);
        // A derived deserializer also accepts an array for an object.
        if data.trim_ascii_start().starts_with(b"{") {
            let list = [b"{\"items\":[", data, b"]}"].concat();
            // No annotations are requested from a list.
            let bare = Pod { annotations: Box::default(), ..pod };
            assert_eq!(kubelet::parse_pods([&list[..]]), Ok(vec![bare]));
        }
    }
    let whole = kubelet::parse_pods([data]);
    assert_eq!(kubelet::parse_pods(data.chunks(3)), whole, "however it comes in");
    whole.iter().flatten().for_each(check_pod);
}

/// One pod in protocol buffers: its outline has the same identity and phase.
pub(crate) fn pod_bytes(data: &[u8]) {
    let outline = core_v1::outline(data);
    assert!(outline.is_empty() || outline.len() * 2 < data.len());
    if let Ok(pod) = decode_pod(data) {
        check_pod(&pod);
        if !outline.is_empty() {
            let of = |pod: Pod| (pod.namespace, pod.name, pod.uid, pod.deleted, pod.phase);
            assert_eq!(decode_pod(&outline).map(of), Ok(of(pod)));
        }
    }
}

/// A gRPC client's input: a size for the pieces it arrives in, then HTTP/2. The output must be as long as the
/// input, independent of the pieces, and acceptable itself.
pub(crate) fn grpc_frames(data: &[u8]) {
    let Some((chunk, sent)) = data.split_first() else { return };
    let given = grpc::filter_client_bytes(sent, usize::MAX);
    assert_eq!(given.len(), sent.len());
    assert_eq!(grpc::filter_client_bytes(sent, usize::from(*chunk)), given, "independent of the pieces");
    assert_eq!(grpc::filter_client_bytes(&given, usize::MAX), given, "filtering twice changes nothing");
}

/// The API server's pod responses in protocol buffers: a size for the pieces they arrive in, then a list, an
/// error status, or the frames of a watch, parsed as each of them.
pub(crate) fn pod_watch(data: &[u8]) {
    let Some((size, sent)) = data.split_first() else { return };
    let pieces = || sent.chunks(usize::from(*size).max(1));
    let whole = list([sent]);
    assert_eq!(list(pieces()), whole, "however it comes in");
    if let (pods, Ok(version)) = whole {
        check_list(pods, version);
    }
    assert_ne!(cluster::decode_status(500, sent).code, 0);
    assert_eq!(frames(pieces()), frames([sent]), "however it comes in");
}

/// Returns the pods of a list that arrives in these pieces, and its resource version or the error.
fn list<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Result<String, DecodeError>) {
    let (mut list, mut pods) = (PodListDecoder::default(), Vec::new());
    for piece in pieces {
        list.push(piece);
        loop {
            match list.take() {
                Ok(Some(pod)) => pods.push(pod.to_vec()),
                Ok(None) => break,
                Err(error) => return (pods, Err(error)),
            }
        }
    }
    (pods, list.finish())
}

/// Checks that a list encoded again from what was decoded is the same list.
fn check_list(pods: Vec<Vec<u8>>, version: String) {
    let (mut metadata, mut content, mut again) = (Vec::new(), Vec::new(), b"k8s\0".to_vec());
    put_bytes(&mut metadata, 2, version.as_bytes());
    put_bytes(&mut content, 1, &metadata);
    for pod in &pods {
        check_message(pod);
        put_bytes(&mut content, 2, pod);
    }
    put_bytes(&mut again, 1, b"\x0a\x02v1\x12\x07PodList");
    put_bytes(&mut again, 2, &content);
    assert_eq!(list([&again[..]]), (pods, Ok(version)));
}

/// Returns the events in the frames of a watch that arrives in these pieces.
fn frames<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let (mut splitter, mut events) = (FrameSplitter::default(), Vec::new());
    for piece in pieces {
        splitter.push(piece);
        loop {
            match splitter.take() {
                Ok(Some(frame)) => events.push(event(frame)),
                Ok(None) => break,
                Err(error) => {
                    events.push(error.to_string());
                    return events;
                }
            }
        }
    }
    events
}

fn event(frame: &[u8]) -> String {
    let event = PodFrame::decode(frame);
    if let Ok(PodFrame::Applied(pod, version) | PodFrame::Deleted(pod, version)) = &event {
        assert!(!version.is_empty());
        check_message(pod);
    }
    format!("{event:?}")
}

/// Checks that a pod that can be decoded keeps its original bytes.
fn check_message(bytes: &[u8]) {
    let Ok(pod) = read_pod(bytes, &Wanted::default().with_raw()) else { return };
    assert_eq!(pod.raw.as_deref(), Some(&RawPod::Protobuf(Bytes::copy_from_slice(bytes))));
    check_pod(&pod);
}

fn check_pod(pod: &Pod) {
    assert!(!pod.name.is_empty() && !pod.namespace.is_empty(), "{pod:?}");
    assert_eq!(pod.termination == Termination::Terminated, pod.phase.is_terminal(), "{pod:?}");
    assert!(pod.deleted || pod.termination != Termination::Stopped, "{pod:?}");
    assert!(pod.annotations.windows(2).all(|pair| pair[0].0 < pair[1].0), "{pod:?}");
    let apps = pod.containers.iter().skip_while(|container| container.kind != ContainerKind::App);
    assert!(apps.into_iter().all(|container| container.kind == ContainerKind::App), "{pod:?}");
    for container in &pod.containers {
        assert!(container.others.windows(2).all(|pair| pair[0].0 < pair[1].0), "{container:?}");
        let known = |(name, amount): &(Box<str>, u64)| *amount > 0 || name.contains('/');
        assert!(container.others.iter().all(known), "{container:?}");
    }
}

/// Merging into the kubelet's responses: two bytes with the length of a text, that text, then a response. The
/// text's first three lines are what Koordinator's scheduler wrote to one pod each, the fourth is its CPU and
/// memory allocation for all of them, the rest is Koordinator's Device object.
pub(crate) fn merge(data: &[u8]) {
    let Some((length, rest)) = data.split_at_checked(2) else { return };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let (text, response) = rest.split_at(length.min(rest.len()));
    let response = Bytes::copy_from_slice(response);
    let text = String::from_utf8_lossy(text);
    let mut lines = text.splitn(5, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (written, status) = ([line(), line(), line()], line());
    let devices: Option<KoordinatorDevices> = serde_json::from_str(line()).ok();
    let pods: Vec<Pod> = NAMES
        .iter()
        .zip(written)
        .map(|(name, text)| annotated(name, &[(DEVICES, text), (STATUS, status)]))
        .collect();
    let wanted = Annotations { koordinator: koordinator(&text), ..Annotations::default() };
    let rules = annotations::Rules::new(&wanted, true);
    let node = NodeDevices::new(devices.map(Arc::new), Arc::default());
    let allocations = rules.read(pods.iter(), &node);
    check_merged_list(&allocations, &response, PodResourcesVersion::V1);
    check_merged_list(&allocations, &response, PodResourcesVersion::V1alpha1);
    check_get(&allocations, &response);
    check_allocatable(&allocations, &response);
    let nothing = Allocations::default();
    let merged = [
        nothing.merge_list(&response, PodResourcesVersion::V1),
        nothing.merge_get(&response),
        nothing.merge_allocatable(&response),
    ];
    for merged in merged {
        assert!(merged.is_err() || merged.is_ok_and(|it| it.bytes == response && it.devices == 0));
    }
}

const DEVICES: &str = "scheduling.koordinator.sh/device-allocated";
const STATUS: &str = "scheduling.koordinator.sh/resource-status";
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Returns a pod of three containers, two of which request devices.
fn annotated(name: &str, annotations: &[(&str, &str)]) -> Pod {
    let container = |name: &str, kind, others: &[(&str, u64)]| Container {
        name: name.into(),
        kind,
        others: others.iter().map(|(name, amount)| ((*name).into(), *amount)).collect(),
        ..Container::default()
    };
    let all = annotations.iter().map(|(key, text)| (Box::from(*key), Annotation::of(text)));
    Pod {
        namespace: "ns".into(),
        name: name.into(),
        containers: [
            container("sidecar", ContainerKind::Sidecar, &[]),
            container(
                "main",
                ContainerKind::App,
                &[("koordinator.sh/gpu", 100), ("koordinator.sh/rdma", 100)],
            ),
            container("next", ContainerKind::App, &[("nvidia.com/gpu", 2)]),
        ]
        .into(),
        annotations: all.collect(),
        ..Pod::default()
    }
}

/// A device with its NUMA nodes: resource, ID, nodes.
type Placed = (String, String, Vec<i64>);

fn placed(groups: &[v1::ContainerDevices]) -> Vec<Placed> {
    let of = |group: &v1::ContainerDevices| {
        let nodes: Vec<i64> =
            group.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id).collect();
        let name = group.resource_name.clone();
        group.device_ids.iter().map(move |id| (name.clone(), id.clone(), nodes.clone())).collect::<Vec<_>>()
    };
    groups.iter().flat_map(of).collect()
}

fn all_placed(pods: &[v1::PodResources]) -> Vec<Placed> {
    let containers = pods.iter().flat_map(|pod| &pod.containers);
    containers.flat_map(|container| placed(&container.devices)).collect()
}

/// Returns what is allocated to a pod, as it appears in a response without allocated devices.
fn allocated(allocations: &Allocations, name: &str, version: PodResourcesVersion) -> v1::PodResources {
    let container = |name: &str| v1::ContainerResources { name: name.into(), ..Default::default() };
    let bare = v1::PodResources {
        name: name.into(),
        namespace: "ns".into(),
        containers: ["sidecar", "main", "next"].map(container).into(),
        ..Default::default()
    };
    let bare = v1::ListPodResourcesResponse { pod_resources: vec![bare] }.encode_to_vec();
    let merged = allocations.merge_list(&bare.into(), version).expect("a response");
    let mut decoded = v1::ListPodResourcesResponse::decode(merged.bytes).expect("a message");
    decoded.pod_resources.remove(0)
}

/// Adds allocations to a pod; returns true if it was the pod that they are for.
fn put(allocated: &v1::PodResources, pod: &mut v1::PodResources, taken: &[Placed]) -> bool {
    let own = all_placed(std::slice::from_ref(pod));
    let claims = pod.containers.iter().flat_map(|container| &container.dynamic_resources);
    let devices = claims.flat_map(|claim| &claim.claim_resources).flat_map(|device| &device.cdi_devices);
    let claimed: BTreeSet<String> = devices.map(|cdi| cdi.name.clone()).collect();
    let has_cpus = !pod.cpu_ids.is_empty() || pod.containers.iter().any(|one| !one.cpu_ids.is_empty());
    let has_memory = !pod.memory.is_empty() || pod.containers.iter().any(|one| !one.memory.is_empty());
    let mut found = allocated.containers.iter().all(|container| container.devices.is_empty());
    for of in allocated.containers.iter().filter(|of| !of.devices.is_empty()) {
        let Some(container) = pod.containers.iter_mut().find(|one| one.name == of.name) else {
            continue;
        };
        found = true;
        for (name, id, nodes) in placed(&of.devices) {
            let listed = taken.iter().any(|(known, same, _)| (known, same) == (&name, &id));
            let is_own = own.iter().any(|(known, ..)| *known == name);
            if listed || is_own || claimed.contains(&format!("{name}={id}")) {
                continue;
            }
            let nodes = nodes.into_iter().map(|id| v1::NumaNode { id }).collect();
            let topology = Some(v1::TopologyInfo { nodes });
            container.devices.push(v1::ContainerDevices {
                resource_name: name,
                device_ids: vec![id],
                topology,
            });
        }
    }
    if !has_cpus {
        pod.cpu_ids.clone_from(&allocated.cpu_ids);
    }
    if !has_memory {
        pod.memory.clone_from(&allocated.memory);
    }
    found
}

/// Splits the devices into one group each, so that their grouping does not matter.
fn one_by_one(pods: &mut [v1::PodResources]) {
    for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
        let alone = |(resource_name, id, nodes): Placed| v1::ContainerDevices {
            resource_name,
            device_ids: vec![id],
            topology: Some(v1::TopologyInfo {
                nodes: nodes.into_iter().map(|id| v1::NumaNode { id }).collect(),
            }),
        };
        container.devices = placed(&container.devices).into_iter().map(alone).collect();
    }
}

fn decoded(merged: &Merged) -> Vec<v1::PodResources> {
    let response = v1::ListPodResourcesResponse::decode(merged.bytes.clone()).expect("a message");
    response.pod_resources
}

fn check_merged_list(allocations: &Allocations, response: &Bytes, version: PodResourcesVersion) {
    let merged = allocations.merge_list(response, version);
    let Ok(before) = v1::ListPodResourcesResponse::decode(response.clone()) else { return };
    let merged = merged.expect("prost accepts it");
    let (mut expected, mut after) = (before.pod_resources, decoded(&merged));
    assert_eq!(merged.bytes == *response, after == expected);
    let taken = all_placed(&expected);
    for name in NAMES {
        let allocated = allocated(allocations, name, version);
        let mut named =
            expected.iter_mut().filter(|pod| (pod.namespace.as_str(), pod.name.as_str()) == ("ns", name));
        // If two pods share the name, one of them gets everything.
        named.any(|pod| put(&allocated, pod, &taken));
    }
    one_by_one(&mut expected);
    one_by_one(&mut after);
    assert_eq!(after, expected);
}

fn check_get(allocations: &Allocations, response: &Bytes) {
    let merged = allocations.merge_get(response);
    let Ok(before) = v1::GetPodResourcesResponse::decode(response.clone()) else { return };
    let merged = merged.expect("prost accepts it");
    let after = v1::GetPodResourcesResponse::decode(merged.bytes).expect("a message");
    let (Some(mut expected), Some(mut after)) = (before.pod_resources, after.pod_resources) else {
        return assert_eq!(merged.devices, 0);
    };
    if expected.namespace == "ns" && NAMES.contains(&expected.name.as_str()) {
        let taken = all_placed(std::slice::from_ref(&expected));
        put(&allocated(allocations, &expected.name, PodResourcesVersion::V1), &mut expected, &taken);
    }
    one_by_one(std::slice::from_mut(&mut expected));
    one_by_one(std::slice::from_mut(&mut after));
    assert_eq!(after, expected);
}

fn check_allocatable(allocations: &Allocations, response: &Bytes) {
    let merged = allocations.merge_allocatable(response);
    let Ok(before) = v1::AllocatableResourcesResponse::decode(response.clone()) else { return };
    let merged = merged.expect("prost accepts it");
    let after = v1::AllocatableResourcesResponse::decode(merged.bytes).expect("a message");
    assert_eq!((&after.cpu_ids, &after.memory), (&before.cpu_ids, &before.memory));
    let (before, after) = (placed(&before.devices), placed(&after.devices));
    assert_eq!(after[..before.len()], before);
    assert_eq!(after.len() - before.len(), merged.devices);
    let known: BTreeSet<(&str, &str)> =
        before.iter().map(|(name, id, _)| (name.as_str(), id.as_str())).collect();
    assert!(after[before.len()..].iter().all(|(name, id, _)| !known.contains(&(name.as_str(), id.as_str()))));
}

/// Returns what is merged of Koordinator's; some texts without shared ids.
fn koordinator(text: &str) -> BTreeSet<Koordinator> {
    let shared = (text.len() % 2 == 1).then_some(Koordinator::SharedIds);
    [Koordinator::Devices, Koordinator::Cpus].into_iter().chain(shared).collect()
}

/// Annotations: three lines with a path each, and the text that every parser is given.
pub(crate) fn annotations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(4, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let [path, id, container]: [Option<JsonPath>; 3] = std::array::from_fn(|_| read_and_written(line()));
    let mapping = AnnotationMapping {
        annotation: "other".into(),
        path,
        resource: "example.com/nic".into(),
        id,
        container,
    };
    let plain = AnnotationMapping { path: None, container: None, ..mapping.clone() };
    let wanted = Annotations {
        koordinator: koordinator(&text),
        mappings: vec![mapping, plain],
        ..Annotations::default()
    };
    let rules = annotations::Rules::new(&wanted, true);
    let text = line();
    let pods = ["a", "b"].map(|name| annotated(name, &[("other", text), (DEVICES, text), (STATUS, text)]));
    let device: Option<KoordinatorDevices> = serde_json::from_str(text).ok();
    for devices in [None, device.map(Arc::new)] {
        let node = NodeDevices::new(devices, Arc::default());
        let allocations = rules.read(pods.iter(), &node);
        assert_eq!(allocations, rules.read(pods.iter(), &node), "repeatable");
        let is_short = |message: &str| (1..2000).contains(&message.len());
        assert!(allocations.errors().iter().all(|error| is_short(&error.message)));
        for name in ["a", "b"] {
            let all = all_placed(&[allocated(&allocations, name, PodResourcesVersion::V1)]);
            assert!(all.len() <= 1024);
            for (resource, id, _) in &all {
                assert!(resource.contains('/'), "{resource:?}");
                assert!(
                    (1..300).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()),
                    "{id:?}"
                );
            }
            let each: BTreeSet<_> = all.iter().map(|(resource, id, _)| (resource, id)).collect();
            assert_eq!(each.len(), all.len(), "each once");
        }
    }
}

/// Parses the text, and checks that it is formatted as it was.
fn read_and_written<T: std::str::FromStr<Err: ToString> + ToString>(text: &str) -> Option<T> {
    match text.parse::<T>() {
        Ok(read) => {
            assert_eq!(read.to_string(), text);
            Some(read)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fn round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("it can be written");
    serde_json::from_str(&text).expect("what was written can be read")
}

/// A node with two NUMA nodes by default.
struct Node {
    machine: Machine,
    allocatable: Allocatable,
    usage: Usage,
    claims: Option<NodeClaims>,
    checkpoints: Option<Checkpoints>,
    config: Option<KubeletConfig>,
}

impl Default for Node {
    fn default() -> Self {
        let node = |id, cpus: &str| NumaNode {
            id,
            cpus: cpus.parse().expect("a list of CPUs"),
            memory: 8 << 30,
            hugepages: [(2 << 20, 256)].into(),
            distances: [(0, 10), (2, 21)].into(),
            ..NumaNode::default()
        };
        let memory = |node| MemoryBlock {
            resource: "memory".into(),
            bytes: 7 << 30,
            nodes: [node].into_iter().collect(),
        };
        let allocatable = Allocatable { memory: vec![memory(0), memory(2)], ..Allocatable::default() };
        let machine =
            Machine { nodes: vec![node(0, "0-3"), node(2, "4-7")], numa: true, ..Machine::default() };
        Self { machine, allocatable, usage: Usage::default(), checkpoints: None, claims: None, config: None }
    }
}

impl Node {
    fn account(&self) -> Topology {
        topology::account(&Inputs {
            machine: &self.machine,
            allocatable: &self.allocatable,
            usage: &self.usage,
            terminated: &BTreeSet::new(),
            claims: self.claims.as_ref(),
            checkpoints: self.checkpoints.as_ref(),
            config: self.config.as_ref(),
            policies: None,
            remembered: &BTreeSet::new(),
            rules: &ZoneRules { fillers: true, ..ZoneRules::default() },
        })
    }
}

/// Checks the invariants of every accounting.
fn check(account: &Topology) {
    check_zones(account);
    for zone in &account.zones {
        assert!(zone.resources.contains_key("cpu") && zone.resources.contains_key("memory"), "{zone:?}");
    }
}

/// Checks the invariants that are true even if resources are excluded.
fn check_zones(account: &Topology) {
    let ids: Vec<_> = account.zones.iter().map(|zone| zone.id).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
    assert!(ids.iter().all(|id| *id <= HIGHEST_ZONE), "{ids:?}");
    for zone in &account.zones {
        assert!(zone.costs.keys().eq(ids.iter()), "{zone:?}");
        assert!(zone.resources.keys().eq(account.zones[0].resources.keys()), "{zone:?}");
        for (name, amounts) in &zone.resources {
            assert!(amounts.available <= amounts.allocatable, "{name}: {amounts:?}");
            assert!(amounts.allocatable <= amounts.capacity, "{name}: {amounts:?}");
        }
    }
    assert!(account.findings.iter().all(|finding| !finding.to_string().is_empty()));
}
