//! Clients of a podresources socket in Go and Python, and what they hear; a recorder before a kubelet; what one answer has
//! beyond another, byte by byte.
//!
//! Nothing here shares code with what merges answers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use base64_of::decode;
use numacast::kubelet::Usage;
use numacast::kubelet::proto::v1;
use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use super::parts::Parts;
use super::process::{Process, tethered};
use super::wait::until;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Kubernetes' own client library in Go.
    Go,
    /// grpc-go by its own resolver of `unix:`.
    GoUnix,
    /// grpc-go as old versions of it were: the socket's path is the `:authority`.
    GoPath,
    /// grpcio and what grpcio-tools makes of the definitions.
    Python,
}

/// All of them.
pub(crate) const EVERYBODY: [Who; 4] = [Who::Go, Who::GoUnix, Who::GoPath, Who::Python];

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rpc {
    List,
    ListV1alpha1,
    Allocatable,
    /// A pod, `namespace/name`.
    Get(String),
    /// Any method by its path, with an empty request.
    Other(&'static str),
}

impl Rpc {
    fn arguments(&self) -> Vec<&str> {
        match self {
            Self::List => vec!["--rpc", "list"],
            Self::ListV1alpha1 => vec!["--rpc", "list-v1alpha1"],
            Self::Allocatable => vec!["--rpc", "allocatable"],
            Self::Get(pod) => vec!["--rpc", "get", "--pod", pod],
            Self::Other(path) => vec!["--rpc", path],
        }
    }

    /// The method's path.
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::List => "/v1.PodResourcesLister/List",
            Self::ListV1alpha1 => "/v1alpha1.PodResourcesLister/List",
            Self::Allocatable => "/v1.PodResourcesLister/GetAllocatableResources",
            Self::Get(_) => "/v1.PodResourcesLister/Get",
            Self::Other(path) => path,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Heard {
    /// As grpc-go calls it: `OK`, `ResourceExhausted`.
    pub(crate) code: String,
    /// Of the status.
    pub(crate) text: String,
    /// As they came.
    #[serde(deserialize_with = "base64_of::bytes")]
    pub(crate) bytes: Vec<u8>,
    /// What the client makes of them, as protobuf's JSON.
    #[serde(default)]
    pub(crate) answer: Value,
}

impl Heard {
    /// Fails unless it is an answer.
    pub(crate) fn ok(self) -> Result<Self> {
        ensure!(self.code == "OK", "{}: {}", self.code, self.text);
        Ok(self)
    }
}

/// The clients' programs.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    go: PathBuf,
    python: PathBuf,
}

#[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
impl Clients {
    pub(crate) fn of(parts: &Parts) -> Self {
        Self { go: parts.program("podresources"), python: parts.program("grpcio") }
    }

    /// The program in Go, which is a load and a recorder, too.
    pub(crate) fn go(&self) -> &Path {
        &self.go
    }

    /// One answer.
    pub(crate) async fn ask(&self, who: Who, socket: &Path, rpc: &Rpc) -> Result<Heard> {
        self.ask_with(who, socket, rpc, &[]).await
    }

    /// One answer to a client with further arguments, such as `--limit`.
    pub(crate) async fn ask_with(&self, who: Who, socket: &Path, rpc: &Rpc, more: &[&str]) -> Result<Heard> {
        let (program, dial) = match who {
            Who::Go => (&self.go, Some("library")),
            Who::GoUnix => (&self.go, Some("unix")),
            Who::GoPath => (&self.go, Some("raw")),
            Who::Python => (&self.python, None),
        };
        let mut command = tokio::process::Command::new(program);
        command.arg("ask").arg("--socket").arg(socket).args(rpc.arguments()).args(more);
        command.args(dial.into_iter().flat_map(|dial| ["--dial", dial]));
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{who:?} ends with {}: {complaint}", output.status);
        let line = String::from_utf8(output.stdout)?;
        serde_json::from_str(&line).with_context(|| format!("{who:?} says {line}"))
    }
}

/// A forwarding server before a kubelet, which adds unknown fields at every level of each answer and remembers it.
pub(crate) struct Recorder {
    process: Process,
    log: PathBuf,
    socket: PathBuf,
}

/// An answer that was sent, or the error that was.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Sent {
    pub(crate) path: String,
    /// When the call came, in nanoseconds since 1970.
    pub(crate) received: u64,
    /// When it was answered.
    pub(crate) answered: u64,
    #[serde(default, deserialize_with = "base64_of::bytes")]
    pub(crate) sent: Vec<u8>,
}

#[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
impl Recorder {
    /// Serves in the directory `dir`, in front of another socket.
    pub(crate) async fn start(clients: &Clients, upstream: &Path, dir: &Path, more: &[&str]) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let socket = dir.join("kubelet.sock");
        let mut command = tethered(clients.go());
        command.arg("record").arg("--upstream").arg(upstream).arg("--listen").arg(&socket).args(more);
        let process = Process::start("recorder", dir, command)?;
        let mut recorder = Self { process, log: dir.join("recorder.log"), socket };
        until("the recorder serves", async || {
            recorder.process.still_runs()?;
            ensure!(std::os::unix::net::UnixStream::connect(&recorder.socket).is_ok());
            Ok(())
        })
        .await?;
        Ok(recorder)
    }

    /// Where it serves.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// How many answers it has sent.
    pub(crate) fn count(&self) -> Result<usize> {
        Ok(self.sent_since(0)?.len())
    }

    /// Every answer but the first `known`, in the order in which they were sent.
    pub(crate) fn sent_since(&self, known: usize) -> Result<Vec<Sent>> {
        let text = std::fs::read_to_string(&self.log)?;
        // The last line may be on its way.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        // The first one only tells that it serves.
        whole
            .lines()
            .skip(known + 1)
            .map(|line| serde_json::from_str(line).context(line.to_owned()))
            .collect()
    }
}

/// One device of one container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    /// `namespace/name`.
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) resource: String,
    pub(crate) id: String,
    /// NUMA nodes.
    pub(crate) nodes: Vec<i64>,
}

/// Every device in the answer of a List or a Get, as a client decoded it, in its order.
pub(crate) fn held(answer: &Value) -> Result<Vec<Held>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = match &answer["podResources"] {
        Value::Object(pod) => vec![Value::Object(pod.clone())],
        pods => list(pods),
    };
    let mut all = Vec::new();
    for pod in pods {
        let name = format!("{}/{}", text(&pod["namespace"]), text(&pod["name"]));
        for container in list(&pod["containers"]) {
            for device in list(&container["devices"]) {
                let nodes = list(&device["topology"]["nodes"]);
                // 0 is left out; protobuf's JSON has numbers of 64 bits as texts.
                let nodes = nodes.iter().map(|node| node["ID"].as_str().unwrap_or("0").parse());
                let nodes = nodes.collect::<Result<Vec<i64>, _>>()?;
                for id in list(&device["deviceIds"]) {
                    all.push(Held {
                        pod: name.clone(),
                        container: text(&container["name"]),
                        resource: text(&device["resourceName"]),
                        id: text(&id),
                        nodes: nodes.clone(),
                    });
                }
            }
        }
    }
    Ok(all)
}

/// An answer in an order of its own: the kubelet's is another each time.
pub(crate) fn in_order(answer: &Value) -> Value {
    match answer {
        Value::Array(list) => {
            let mut list: Vec<Value> = list.iter().map(in_order).collect();
            list.sort_by_key(Value::to_string);
            list.into()
        }
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), in_order(value))).collect(),
        other => other.clone(),
    }
}

/// Every device of pods, as our own client decodes it; it merges the nodes of one device.
pub(crate) fn held_of(usage: &Usage) -> BTreeSet<Held> {
    let mut all = BTreeSet::new();
    for pod in &usage.pods {
        for container in &pod.containers {
            for group in &container.devices {
                all.extend(group.ids.iter().map(|id| Held {
                    pod: format!("{}/{}", pod.namespace, pod.name),
                    container: container.name.clone(),
                    resource: group.resource.clone(),
                    id: id.clone(),
                    nodes: group.nodes.iter().map(i64::from).collect(),
                }));
            }
        }
    }
    all
}

// ---- bytes

/// A field of a message with its tag.
#[derive(Clone, Copy, Debug)]
struct Record<'a> {
    number: u64,
    /// All of it.
    whole: &'a [u8],
    /// What is in it, where it is delimited by a length.
    inner: Option<&'a [u8]>,
}

fn varint(bytes: &[u8]) -> Result<(u64, usize)> {
    let mut value = 0_u64;
    for (place, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok((value, place + 1));
        }
    }
    bail!("no varint")
}

fn records(mut bytes: &[u8]) -> Result<Vec<Record<'_>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (tag, head) = varint(bytes)?;
        let rest = bytes.get(head..).context("a tag and nothing")?;
        let (begin, length) = match tag & 7 {
            0 => (head, varint(rest)?.1),
            1 => (head, 8),
            2 => {
                let (length, more) = varint(rest)?;
                (head + more, usize::try_from(length)?)
            }
            5 => (head, 4),
            other => bail!("wire type {other}"),
        };
        let inner = bytes.get(begin..begin + length).context("a field that is cut off")?;
        let inner = (tag & 7 == 2).then_some(inner);
        all.push(Record { number: tag >> 3, whole: &bytes[..begin + length], inner });
        bytes = &bytes[begin + length..];
    }
    Ok(all)
}

/// Every device in the bytes of a List or a Get of either version, in their order.
pub(crate) fn held_in(answer: &[u8]) -> Result<Vec<Held>> {
    // A Get has one pod where a List has several.
    let answer = v1::ListPodResourcesResponse::decode(answer)?;
    let mut all = Vec::new();
    for pod in answer.pod_resources {
        let name = format!("{}/{}", pod.namespace, pod.name);
        for container in pod.containers {
            container
                .devices
                .into_iter()
                .for_each(|group| all.extend(held_of_group(&name, &container.name, group)));
        }
    }
    Ok(all)
}

fn held_of_group(pod: &str, container: &str, group: v1::ContainerDevices) -> impl Iterator<Item = Held> {
    let nodes: Vec<i64> = group.topology.into_iter().flat_map(|t| t.nodes).map(|node| node.id).collect();
    group.device_ids.into_iter().map(move |id| Held {
        pod: pod.to_owned(),
        container: container.to_owned(),
        resource: group.resource_name.clone(),
        id,
        nodes: nodes.clone(),
    })
}

/// What an answer has beyond another, in its order.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Added {
    pub(crate) devices: Vec<Held>,
    /// `namespace/name` of pods that have CPUs or memory as a whole.
    pub(crate) shares: Vec<(String, Share)>,
}

/// What a pod has as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) cpus: Vec<i64>,
    /// Kind, bytes, NUMA nodes.
    pub(crate) memory: Vec<(String, u64, Vec<i64>)>,
}

impl Added {
    /// Is there nothing?
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// What the answer `got` of a List or a Get has beyond `sent`. Fails unless everything else is the same, byte for byte and in the
/// same order, but for the lengths of what holds the additions.
pub(crate) fn added(sent: &[u8], got: &[u8]) -> Result<Added> {
    let mut all = Added::default();
    let (before, after) = (records(sent)?, records(got)?);
    ensure!(before.len() == after.len(), "{} fields became {}", before.len(), after.len());
    for (before, after) in before.into_iter().zip(after) {
        match (before.number, before.inner.zip(after.inner)) {
            (1, Some((before, after))) => added_to_pod(before, after, &mut all)?,
            _ => ensure!(before.whole == after.whole, "{:?} became {:?}", before, after),
        }
    }
    Ok(all)
}

/// As [`added`], of `GetAllocatableResources`. Its devices are of no pod and no container.
pub(crate) fn added_to_allocatable(sent: &[u8], got: &[u8]) -> Result<Vec<Held>> {
    added_groups(("", ""), 1, sent, got)
}

fn added_to_pod(sent: &[u8], got: &[u8], all: &mut Added) -> Result<()> {
    let before = records(sent)?;
    let text = |number: u64| -> String {
        let field = before.iter().find(|record| record.number == number).and_then(|record| record.inner);
        String::from_utf8_lossy(field.unwrap_or_default()).into_owned()
    };
    let pod = format!("{}/{}", text(2), text(1));
    let mut before = before.iter().peekable();
    let mut share = Vec::new();
    for after in records(got)? {
        if before.next_if(|before| before.whole == after.whole).is_some() {
            continue;
        }
        let grown = before.next_if(|before| (before.number, after.number) == (3, 3));
        match grown.and_then(|before| before.inner).zip(after.inner) {
            Some((before, after)) => added_to_container(&pod, before, after, &mut all.devices)?,
            None => {
                ensure!([4, 5].contains(&after.number), "{pod}: {after:?} was not there");
                share.extend_from_slice(after.whole);
            }
        }
    }
    ensure!(before.next().is_none(), "{pod}: something is missing");
    if !share.is_empty() {
        all.shares.push((pod, share_of(&share)?));
    }
    Ok(())
}

fn share_of(fields: &[u8]) -> Result<Share> {
    let v1::PodResources { cpu_ids, memory, .. } = v1::PodResources::decode(fields)?;
    let nodes =
        |topology: Option<v1::TopologyInfo>| topology.into_iter().flat_map(|t| t.nodes).map(|node| node.id);
    let memory =
        memory.into_iter().map(|block| (block.memory_type, block.size, nodes(block.topology).collect()));
    Ok(Share { cpus: cpu_ids, memory: memory.collect() })
}

fn added_to_container(pod: &str, sent: &[u8], got: &[u8], all: &mut Vec<Held>) -> Result<()> {
    let before = records(sent)?;
    let name = before.iter().find(|record| record.number == 1).and_then(|record| record.inner);
    let container = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
    all.extend(added_groups((pod, &container), 2, sent, got)?);
    Ok(())
}

/// The devices, of this field, that one message has beyond another.
fn added_groups((pod, container): (&str, &str), number: u64, sent: &[u8], got: &[u8]) -> Result<Vec<Held>> {
    let mut all = Vec::new();
    let mut before = records(sent)?.into_iter().peekable();
    for after in records(got)? {
        if before.next_if(|before| before.whole == after.whole).is_some() {
            continue;
        }
        let inner = after.inner.filter(|_| after.number == number);
        let inner = inner.with_context(|| format!("{pod} {container}: {after:?} was not there"))?;
        let group = v1::ContainerDevices::decode(inner)?;
        ensure!(!group.resource_name.is_empty() && !group.device_ids.is_empty(), "{group:?}");
        all.extend(held_of_group(pod, container, group));
    }
    ensure!(before.next().is_none(), "{pod} {container}: something is missing");
    Ok(all)
}

/// What JSON has of bytes.
mod base64_of {
    use anyhow::{Context, Result};
    use serde::{Deserialize, Deserializer, de};

    pub(super) fn decode(text: &str) -> Result<Vec<u8>> {
        let digit = |c: u8| -> Result<u32> {
            let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let place = alphabet.iter().position(|one| *one == c).context("no base64")?;
            Ok(u32::try_from(place)?)
        };
        let text = text.trim_end_matches('=').as_bytes();
        let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
        for group in text.chunks(4) {
            let mut value = 0;
            for place in 0..4 {
                value = value << 6 | group.get(place).map_or(Ok(0), |c| digit(*c))?;
            }
            bytes.extend(&value.to_be_bytes()[1..group.len()]);
        }
        Ok(bytes)
    }

    pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        // Go writes null for none.
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        decode(&text).map_err(de::Error::custom)
    }
}

#[test]
fn what_is_added_is_found_and_anything_else_is_an_error() -> Result<()> {
    ensure!(decode("AAEC/w==")? == [0, 1, 2, 255] && decode("TWFu")? == b"Man");
    let topology = |id| Some(v1::TopologyInfo { nodes: vec![v1::NumaNode { id }] });
    let devices = |name: &str, id: &str| v1::ContainerDevices {
        resource_name: name.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: topology(1),
    };
    let container =
        |name: &str| v1::ContainerResources { name: name.to_owned(), ..v1::ContainerResources::default() };
    let mut answer = v1::ListPodResourcesResponse {
        pod_resources: vec![v1::PodResources {
            name: "a".to_owned(),
            namespace: "b".to_owned(),
            containers: vec![container("one"), container("two")],
            ..v1::PodResources::default()
        }],
    };
    answer.pod_resources[0].containers[1].devices.push(devices("x/y", "0"));
    // Unknown fields of each wire type behind everything.
    let salt = [
        0xa0, 0x1f, 0x2a, 0xa2, 0x1f, 0x01, 0x07, 0xa5, 0x1f, 1, 2, 3, 4, 0xa1, 0x1f, 1, 2, 3, 4, 5, 6, 7, 8,
    ];
    let sent = [answer.encode_to_vec(), salt.to_vec()].concat();
    ensure!(added(&sent, &sent)?.is_nothing());
    let containers = &mut answer.pod_resources[0].containers;
    containers[0].devices.push(devices("n/gpu", "GPU-1"));
    containers[1].devices.insert(0, devices("n/gpu", "GPU-2"));
    let got = [answer.encode_to_vec(), salt.to_vec()].concat();
    let of = |container: &str, id: &str| Held {
        pod: "b/a".to_owned(),
        container: container.to_owned(),
        resource: "n/gpu".to_owned(),
        id: id.to_owned(),
        nodes: vec![1],
    };
    ensure!(added(&sent, &got)?.devices == [of("one", "GPU-1"), of("two", "GPU-2")]);
    let own = Held { resource: "x/y".to_owned(), ..of("two", "0") };
    ensure!(held_in(&got)? == [of("one", "GPU-1"), of("two", "GPU-2"), own]);
    let whole = v1::PodResources {
        cpu_ids: vec![2, 300],
        memory: vec![v1::ContainerMemory {
            memory_type: "memory".to_owned(),
            size: 7,
            topology: topology(1),
        }],
        ..v1::PodResources::default()
    };
    let share = Share { cpus: vec![2, 300], memory: vec![("memory".to_owned(), 7, vec![1])] };
    let pod = |more: &[u8]| {
        let pod = [answer.pod_resources[0].encode_to_vec(), salt.to_vec(), more.to_vec()].concat();
        let mut list = vec![0x0a];
        prost::encoding::encode_varint(pod.len() as u64, &mut list);
        [list, pod].concat()
    };
    let with = added(&pod(&[]), &pod(&whole.encode_to_vec()))?;
    ensure!(with == Added { devices: Vec::new(), shares: vec![("b/a".to_owned(), share)] }, "{with:?}");
    ensure!(added(&pod(&whole.encode_to_vec()), &pod(&[])).is_err(), "CPUs are gone");
    let has = v1::AllocatableResourcesResponse { devices: vec![devices("x/y", "0")], ..Default::default() };
    let mut more = has.clone();
    more.devices.push(devices("n/gpu", "GPU-1"));
    let new = added_to_allocatable(&has.encode_to_vec(), &more.encode_to_vec())?;
    ensure!(new == [Held { pod: String::new(), ..of("", "GPU-1") }], "{new:?}");
    ensure!(added_to_allocatable(&more.encode_to_vec(), &has.encode_to_vec()).is_err(), "a device is gone");
    ensure!(added(&got, &sent).is_err(), "devices are gone");
    ensure!(added(&sent, &answer.encode_to_vec()).is_err(), "unknown fields are gone");
    answer.pod_resources[0].containers.swap(0, 1);
    ensure!(added(&sent, &[answer.encode_to_vec(), salt.to_vec()].concat()).is_err(), "another order");
    answer.pod_resources[0].containers.remove(0);
    ensure!(added(&sent, &[answer.encode_to_vec(), salt.to_vec()].concat()).is_err(), "a container is gone");
    Ok(())
}
