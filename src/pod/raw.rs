//! The fields of the API's Pod that [`Pod`] is built from. JSON is deserialized right into these types,
//! skipping the rest; protocol buffers are converted into them.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tracing::debug;

use super::{Annotation, Container, ContainerKind, Life, Phase, Pod};
use crate::quantity::{Parsed, Quantity};

/// The QoS class of pods whose requests equal their limits.
const GUARANTEED: &str = "Guaranteed";
/// The resources that determine the QoS class.
const CLASSIFYING: [&str; 2] = ["cpu", "memory"];

/// A pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawPod {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec: Spec,
    #[serde(deserialize_with = "or_default")]
    pub(crate) status: Status,
}

/// The pod's identity.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    /// Only its presence matters.
    pub(crate) deletion_timestamp: Option<IgnoredAny>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) annotations: Annotations,
}

/// Annotations by key. A value that is not a string is skipped: neither the API server nor the kubelet
/// accepts such a pod.
#[derive(Debug, Default)]
pub(crate) struct Annotations(BTreeMap<Box<str>, Annotation>);

impl Annotations {
    /// Prefix of kubectl's annotations, which nothing here reads and which are large:
    /// `last-applied-configuration` repeats the whole pod.
    const NOBODYS: &str = "kubectl.kubernetes.io/";

    /// Adds an annotation.
    pub(crate) fn put(&mut self, key: &str, text: &str) {
        if !key.starts_with(Self::NOBODYS) {
            self.0.insert(key.into(), Annotation::of(text));
        }
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnnotationsVisitor)
    }
}

struct AnnotationsVisitor;

impl<'de> Visitor<'de> for AnnotationsVisitor {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Annotations, A::Error> {
        let mut annotations = Annotations::default();
        while let Some(key) = items.next_key::<String>()? {
            if let MaybeText(Some(text)) = items.next_value()? {
                annotations.put(&key, &text);
            }
        }
        Ok(annotations)
    }
}

/// A string; any other value is skipped.
struct MaybeText(Option<String>);

impl<'de> Deserialize<'de> for MaybeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = MaybeText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<MaybeText, E> {
        Ok(MaybeText(Some(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<MaybeText, E> {
        Ok(MaybeText(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<MaybeText, E> {
        Ok(MaybeText(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<MaybeText, E> {
        Ok(MaybeText(None))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<MaybeText, E> {
        Ok(MaybeText(None))
    }

    fn visit_unit<E: Error>(self) -> Result<MaybeText, E> {
        Ok(MaybeText(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<MaybeText, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(MaybeText(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<MaybeText, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(MaybeText(None))
    }
}

/// The pod's specification.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    #[serde(deserialize_with = "or_default")]
    pub(crate) init_containers: Vec<RawContainer>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) containers: Vec<RawContainer>,
    /// Pod-level resources (1.34 and later).
    pub(crate) resources: Option<Resources>,
}

/// An init or app container.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawContainer {
    pub(crate) name: Box<str>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) restart_policy: Box<str>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) resources: Resources,
}

/// Requests and limits.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub(crate) requests: Amounts,
    #[serde(deserialize_with = "or_default")]
    pub(crate) limits: Amounts,
}

/// Amounts by resource name.
pub(crate) type Amounts = BTreeMap<Box<str>, Amount>;

/// The pod's status.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Status {
    #[serde(deserialize_with = "or_default")]
    pub(crate) phase: Box<str>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) qos_class: Box<str>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) container_statuses: Vec<ContainerStatus>,
}

/// The status of a container.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStatus {
    #[serde(deserialize_with = "or_default")]
    pub(crate) state: State,
}

/// The state of a container. Of its three alternatives only `running` is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// Only its presence matters.
    pub(crate) running: Option<IgnoredAny>,
}

/// A quantity. One that cannot be parsed counts as 1, so that code waiting for all requests to be allocated
/// does not take it for zero. Neither the API server nor the kubelet accepts a pod with such a quantity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    quantity: Quantity,
    /// Rounded as the kubelet and the scheduler do.
    value: i64,
    /// The same in thousandths.
    milli: i64,
}

impl Amount {
    /// Parses the text of a quantity.
    pub(crate) fn read(text: &str) -> Self {
        match Parsed::of(text) {
            Ok(parsed) => {
                Self { quantity: parsed.quantity(), value: parsed.value(), milli: parsed.milli_value() }
            }
            Err(error) => {
                debug!("a pod asks for an amount that cannot be read and counts as 1: {error}");
                Self { quantity: Quantity::whole(1), value: 1, milli: 1000 }
            }
        }
    }

    /// Returns the rounded value; 0 if negative.
    fn whole(self) -> u64 {
        u64::try_from(self.value).unwrap_or(0)
    }

    /// Returns CPU in millicores; 0 if negative. The result is a multiple of 1000 exactly where the kubelet
    /// and the scheduler plugin see whole CPUs (`Value() * 1000 == MilliValue()`). They compute in 64 bits,
    /// so absurd amounts may overflow to anything.
    fn cpu_milli(self) -> u64 {
        if self.value > 0 && self.value.wrapping_mul(1000) == self.milli {
            return self.whole().min(u64::MAX / 1000) * 1000;
        }
        u64::try_from(self.milli).ok().filter(|milli| !milli.is_multiple_of(1000)).unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

struct AmountVisitor;

impl<'de> Visitor<'de> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
        // The JSON decoder allows surrounding space; the other encodings do not.
        Ok(Amount::read(text.trim()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Amount, E> {
        Ok(Amount::read(&value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Amount, E> {
        Ok(Amount::read(&value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Amount, E> {
        Ok(Amount::read(&value.to_string()))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Amount, E> {
        Ok(Amount::read(&value.to_string()))
    }

    fn visit_unit<E: Error>(self) -> Result<Amount, E> {
        Ok(Amount::read("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Amount, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Amount::read("[...]"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Amount, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Amount::read("{...}"))
    }
}

/// Reads `null` as the default: Go writes it for empty values.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl From<RawPod> for Pod {
    fn from(raw: RawPod) -> Self {
        let RawPod { metadata, mut spec, status } = raw;
        let deleted = metadata.deletion_timestamp.is_some();
        spec.fill_requests();
        let guaranteed = spec.is_guaranteed();
        Self {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            phase: status.phase(),
            deleted,
            life: status.life(deleted),
            guaranteed,
            said_guaranteed: match &*status.qos_class {
                "" => guaranteed,
                class => class == GUARANTEED,
            },
            pod_level: spec.resources.as_ref().is_some_and(Resources::is_pod_level),
            containers: spec.into_containers(),
            annotations: metadata.annotations.0.into_iter().collect(),
            whole: None,
        }
    }
}

impl Spec {
    /// Sets missing requests to the limit. The API server does so, and so does a kubelet that reads a
    /// manifest; other sources may not.
    fn fill_requests(&mut self) {
        for container in self.init_containers.iter_mut().chain(&mut self.containers) {
            let Resources { requests, limits } = &mut container.resources;
            for (name, limit) in limits {
                requests.entry(name.clone()).or_insert(*limit);
            }
        }
    }

    /// Computes the QoS class as the kubelet does (`ComputePodQOS`). Since 1.34 pod-level resources decide if
    /// set; API servers and kubelets that do not know them drop them.
    fn is_guaranteed(&self) -> bool {
        if let Some(resources) = &self.resources {
            return is_guaranteed(std::iter::once(resources));
        }
        is_guaranteed(
            self.init_containers.iter().chain(&self.containers).map(|container| &container.resources),
        )
    }

    /// Returns init containers first, as in the podresources List.
    fn into_containers(self) -> Box<[Container]> {
        let init = self.init_containers.into_iter().map(|container| {
            let kind = if &*container.restart_policy == "Always" {
                ContainerKind::Sidecar
            } else {
                ContainerKind::Init
            };
            container.digest(kind)
        });
        let apps = self.containers.into_iter().map(|container| container.digest(ContainerKind::App));
        Container::bounded(init.chain(apps))
    }
}

/// Returns true if every part has CPU and memory limits, and the summed requests equal the summed limits.
fn is_guaranteed<'a>(parts: impl Iterator<Item = &'a Resources>) -> bool {
    let (mut requested, mut limited, mut any) = ([0_i128; 2], [0_i128; 2], false);
    for part in parts {
        any = true;
        for (index, name) in CLASSIFYING.iter().enumerate() {
            let amount =
                |amounts: &Amounts| amounts.get(*name).map_or(0, |amount| amount.quantity.nano().max(0));
            let limit = amount(&part.limits);
            if limit == 0 {
                return false;
            }
            limited[index] = limited[index].saturating_add(limit);
            requested[index] = requested[index].saturating_add(amount(&part.requests));
        }
    }
    any && requested == limited
}

impl Resources {
    fn is_pod_level(&self) -> bool {
        let counts = |name: &str| CLASSIFYING.contains(&name) || name.starts_with("hugepages-");
        self.requests.keys().chain(self.limits.keys()).any(|name| counts(name))
    }
}

impl RawContainer {
    fn digest(self, kind: ContainerKind) -> Container {
        let mut container = Container { name: self.name, kind, ..Container::default() };
        let mut others = Vec::new();
        for (name, amount) in self.resources.requests {
            match &*name {
                "cpu" => container.cpu_milli = amount.cpu_milli(),
                "memory" => container.memory = amount.whole(),
                other if other.contains('/') => others.push((name, amount.whole())),
                other if other.starts_with("hugepages-") && amount.whole() > 0 => {
                    others.push((name, amount.whole()));
                }
                _ => {}
            }
        }
        container.others = others.into();
        container
    }
}

impl Status {
    fn phase(&self) -> Phase {
        match &*self.phase {
            "Pending" | "" => Phase::Pending,
            "Running" => Phase::Running,
            "Succeeded" => Phase::Succeeded,
            "Failed" => Phase::Failed,
            _ => Phase::Unknown,
        }
    }

    fn life(&self, deleted: bool) -> Life {
        if self.phase().is_terminal() {
            return Life::Ended;
        }
        let mut containers = self.init_container_statuses.iter().chain(&self.container_statuses);
        let any_runs = containers.any(|container| container.state.running.is_some());
        if deleted && !any_runs { Life::Leaving } else { Life::Living }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{size_of, size_of_val};

    use serde_json::{Value, json};

    use super::*;
    use crate::pod::Wanted;

    fn read(pod: &Value) -> Pod {
        // From bytes, as in production: deserializing a `Value` is a different code path.
        Pod::from(serde_json::from_slice::<RawPod>(&serde_json::to_vec(pod).unwrap()).unwrap())
    }

    fn pod(spec: Value) -> Value {
        json!({"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "spec": spec, "status": {}})
    }

    fn life(metadata: Value, status: Value) -> Life {
        let mut object = json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "labels": {"x": "y"}, "managedFields": [{}]},
            "spec": {"nodeName": "w", "containers": [{"name": "c"}]},
            "status": status,
        });
        if let (Some(all), Value::Object(more)) = (object["metadata"].as_object_mut(), metadata) {
            all.extend(more);
        }
        read(&object).life
    }

    #[test]
    fn a_pod_leaves_when_it_was_deleted_and_nothing_of_it_runs() {
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
        assert_eq!(life(json!({}), running.clone()), Life::Living);
        assert_eq!(life(json!({}), stopped.clone()), Life::Living, "it starts again");
        assert_eq!(life(deleted(), running), Life::Living);
        assert_eq!(life(deleted(), sidecar), Life::Living);
        assert_eq!(life(deleted(), stopped), Life::Leaving);
        assert_eq!(life(deleted(), json!({"phase": "Failed"})), Life::Ended);
        assert_eq!(life(json!({}), json!({"phase": "Succeeded"})), Life::Ended);
        assert_eq!(life(json!({}), json!({})), Life::Living);
    }

    #[test]
    fn the_record_holds_what_every_container_asks_for() {
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
            Container { name: name.into(), kind, cpu_milli, memory, others }
        };
        let expected = Pod {
            namespace: "ns".into(),
            name: "a".into(),
            uid: "u".into(),
            phase: Phase::Running,
            deleted: true,
            life: Life::Leaving,
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
    fn a_pod_is_guaranteed_as_the_kubelet_counts() {
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
            assert_eq!(apps.said_guaranteed, expected, "the status says nothing");
            let split = containers.len().min(1);
            let with_init = json!({"initContainers": list(&containers[..split]), "containers": list(&containers[split..])});
            assert_eq!(read(&pod(with_init)).guaranteed, expected, "{containers:?}, the first of them init");
        }
    }

    #[test]
    fn resources_of_the_pod_decide_where_they_are_given() {
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
            assert_eq!((read.guaranteed, read.pod_level), (guaranteed, pod_level), "{of_pod}");
        }
    }

    #[test]
    fn the_status_is_quoted_beside_what_the_specification_makes() {
        let mut pod = pod(json!({"containers": [{"name": "c", "resources": resources("1,1Gi", "1,1Gi")}]}));
        for (class, said) in [("BestEffort", false), ("Guaranteed", true), ("", true)] {
            pod["status"]["qosClass"] = class.into();
            let read = read(&pod);
            assert_eq!((read.guaranteed, read.said_guaranteed), (true, said), "{class}");
        }
    }

    #[test]
    fn nonsense_loses_no_pod_and_is_never_taken_for_nothing() {
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
            let read =
                read(&pod(json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})));
            let [container] = &*read.containers else { panic!("{read:?}") };
            assert_eq!((container.cpu_milli, container.memory), (cpu_milli, whole), "{amount}");
            let gpus: Vec<u64> = container.others.iter().map(|(_, count)| *count).collect();
            assert_eq!(gpus, [whole], "{amount}");
        }
        // Go writes `null` for empty values.
        let empty =
            json!({"metadata": {"name": "a", "deletionTimestamp": null}, "spec": {"containers": null}});
        assert_eq!(read(&empty), Pod { name: "a".into(), ..Pod::default() });
        // Deep enough to overflow the stack of a recursive parser.
        let deep = format!(
            r#"{{"spec":{{"x":{}{}}},"metadata":{{"name":"a"}}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(Pod::from(serde_json::from_str::<RawPod>(&deep).unwrap()).name, "a");
    }

    #[test]
    fn only_annotations_that_somebody_wants_are_kept() {
        let mut object = pod(json!({"containers": []}));
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        object["metadata"]["annotations"] = json!({
            "a.b/long": "x".repeat(Annotation::LONGEST + 1), "a.b/longest": "x".repeat(Annotation::LONGEST), "a.b/number": 7, "a.b/none": null,
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
                ("a.b/long".into(), Annotation::TooLong(Annotation::LONGEST + 1)),
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
    fn a_pod_of_thousands_of_containers_takes_a_bounded_record() {
        // The API server accepts 1.5 MB of containers, resources or annotations.
        let one = |number: usize| json!({"name": format!("c{number}"), "resources": {"requests": {"cpu": "10m", "a.b/c": "1"}}});
        let many = read(&pod(json!({"containers": (0..20_000).map(one).collect::<Vec<_>>()})));
        assert_eq!(many.containers.len(), Container::MOST);
        let sum: u64 = many.containers.iter().map(|container| container.cpu_milli).sum();
        let others: u64 =
            many.containers.iter().flat_map(|container| &container.others).map(|(_, count)| count).sum();
        assert_eq!((sum, others), (200_000, 20_000), "nothing of what they ask for is forgotten");
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
    fn a_record_takes_a_few_hundred_bytes() {
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
        assert!(fat.to_string().len() > 10_000, "it is a large one");
        let read = read(&fat);
        assert!(read.guaranteed);
        assert!(bytes(&read) < 700, "{}", bytes(&read));
        let slim = pod(json!({"containers": [{"name": "main", "resources": resources("1,1Gi", "1,1Gi")}]}));
        assert!(bytes(&self::read(&slim)) < 256, "{}", bytes(&self::read(&slim)));
    }
}
