//! The fields of the API's Pod that [`Pod`](super::Pod) is built from. JSON is deserialized right into these
//! types, skipping the rest; protocol buffers are converted into them.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Annotation;
use crate::quantity::{Parsed, Quantity};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiPod {
    #[serde(deserialize_with = "or_default")]
    pub(crate) metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec: Spec,
    #[serde(deserialize_with = "or_default")]
    pub(crate) status: Status,
}

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
pub(crate) struct Annotations(pub(super) BTreeMap<Box<str>, Annotation>);

impl Annotations {
    /// Prefix of kubectl's annotations, which nothing here reads and which are large:
    /// `last-applied-configuration` repeats the whole pod.
    const UNUSED: &str = "kubectl.kubernetes.io/";

    pub(crate) fn put(&mut self, key: &str, text: &str) {
        if !key.starts_with(Self::UNUSED) {
            self.0.insert(key.into(), Annotation::of(text));
        }
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut annotations = Self::default();
        for (key, value) in BTreeMap::<String, Scalar>::deserialize(deserializer)? {
            if let Scalar::Text(text) = value {
                annotations.put(&key, &text);
            }
        }
        Ok(annotations)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    #[serde(deserialize_with = "or_default")]
    pub(crate) init_containers: Vec<ApiContainer>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) containers: Vec<ApiContainer>,
    /// Pod-level resources (1.34 and later).
    pub(crate) resources: Option<Resources>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) resource_claims: Vec<ClaimReference>,
}

/// A reference to a ResourceClaim. One of a template has no name.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimReference {
    pub(crate) resource_claim_name: Option<Box<str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ApiContainer {
    pub(crate) name: Box<str>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) restart_policy: Box<str>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) resources: Resources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub(crate) requests: Amounts,
    #[serde(deserialize_with = "or_default")]
    pub(crate) limits: Amounts,
}

pub(crate) type Amounts = BTreeMap<Box<str>, Amount>;

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
    /// The claims that were made from templates.
    #[serde(deserialize_with = "or_default")]
    pub(crate) resource_claim_statuses: Vec<ClaimReference>,
    /// The claim that was made for extended resources.
    pub(crate) extended_resource_claim_status: Option<ClaimReference>,
}

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
    pub(crate) fn read(text: &str) -> Self {
        Parsed::of(text).map_or(Self::INVALID, |parsed| Self {
            quantity: parsed.quantity(),
            value: parsed.value(),
            milli: parsed.milli_value(),
        })
    }

    const INVALID: Self = Self { quantity: Quantity::whole(1), value: 1, milli: 1000 };

    /// Returns the exact quantity in billionths; 0 if negative.
    pub(super) fn nano(self) -> i128 {
        self.quantity.nano().max(0)
    }

    /// Returns the rounded value; 0 if negative.
    pub(super) fn whole(self) -> u64 {
        u64::try_from(self.value).unwrap_or(0)
    }

    /// Returns CPU in millicores; 0 if negative. The result is a multiple of 1000 exactly where the kubelet
    /// and the scheduler plugin see whole CPUs (`Value() * 1000 == MilliValue()`). They compute in 64 bits,
    /// so absurd amounts may overflow to anything.
    pub(super) fn cpu_milli(self) -> u64 {
        if self.value > 0 && self.value.wrapping_mul(1000) == self.milli {
            return self.whole().min(u64::MAX / 1000) * 1000;
        }
        u64::try_from(self.milli).ok().filter(|milli| !milli.is_multiple_of(1000)).unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Scalar::deserialize(deserializer)? {
            // The JSON decoder allows surrounding space; the other encodings do not.
            Scalar::Text(text) => Self::read(text.trim()),
            Scalar::Number(text) => Self::read(&text),
            Scalar::Other => Self::INVALID,
        })
    }
}

/// Any value. Those that are neither text nor number are skipped without recursion.
enum Scalar {
    Text(String),
    Number(String),
    Other,
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value.to_string()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Scalar, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Scalar, A::Error> {
        while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Other)
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
