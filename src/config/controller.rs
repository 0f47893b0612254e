use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Period, switch};
use crate::controller::SchedulerPods;
use crate::fragmentation::Shape;
use crate::names::is_name_part;

/// Maximum number of shapes: each adds a few series to the metrics.
const MAX_SHAPES: usize = 10;

/// The controller. The fields that are not keys are set by flags and the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Controller {
    /// The namespace of the DaemonSets and the Lease; empty if unknown.
    #[serde(skip)]
    pub namespace: String,
    /// Delete and nudge nothing; log what would be deleted.
    #[serde(skip)]
    pub dry_run: bool,
    /// The agents' DaemonSets, in the controller's namespace. If empty, agents are not checked.
    ///
    /// Their node selectors, affinities and tolerations determine which Nodes should have an agent. A Node is
    /// reported if the agent's pod has been missing or not Ready for five minutes. Agents are the pods with the
    /// labels that the selectors have in common. Requires `get` of the DaemonSets, and `list` and `watch` of
    /// `pods` in their namespace.
    #[schemars(inner(length(min = 1)))]
    pub daemon_sets: Vec<String>,
    /// The Lease for leader election, in the controller's namespace. If empty, every replica leads: run only
    /// one.
    ///
    /// The leader renews it every two seconds; after 15 s without, another replica leads. The others serve
    /// health and metrics and write nothing.
    pub lease: String,
    /// Make the scheduler retry rejected pods: `auto`, `off`, or the plugin's `cacheResyncPeriodSeconds`,
    /// such as `5s`.
    ///
    /// While pods are pending because the scheduler plugin rejected nodes, an object is updated now and then.
    ///
    /// The plugin refreshes its cache at each resync, which retries no pod; an update of any object retries
    /// all pods that it rejected. Otherwise they wait for up to five minutes. Only the annotation
    /// `numacast.io/nudge` changes.
    ///
    /// `auto`: 1, 2.6, 5.2 and 10.4 s after an object changed or a pod became pending, which suits periods of
    /// 1, 2, 5 and 10 s, then once a minute. At most one nudge per second; none while objects change more
    /// often than once a second. If a period is set, the last delay is slightly longer than it, so that a
    /// nudge follows the resync. With `off`, pods without a node are not watched.
    pub nudge: Nudge,
    /// The scheduler's pods, as `NAMESPACE/KEY=VALUE`, such as `kube-system/component=kube-scheduler`, to
    /// report objects that their plugin ignores. Default: no check
    ///
    /// With the overreserving cache, the plugin reads the objects that exist when it starts and none that is
    /// created later (scheduler-plugins issue 967). The controller compares creation times with the start of
    /// the oldest container of these pods: `numacast_fleet_objects_newer_than_scheduler`, a warning in the
    /// log. `numacast doctor` finds such objects by itself. Recreated objects count too, although the plugin
    /// may know their Nodes. Requires `list` of `pods` in that namespace.
    #[schemars(with = "Option<String>", regex(pattern = "^[a-z0-9-]+/.+=.*$"))]
    pub scheduler: Option<SchedulerPods>,
    /// Evict pods of `controller.scheduler` that started before an object was created.
    ///
    /// They are compared once a minute, and their PodDisruptionBudget is respected: with two replicas and one
    /// allowed disruption the scheduler knows the object of a new Node after at most two minutes. Requires
    /// `create` of `pods/eviction` in their namespace. Static pods cannot be restarted this way.
    pub restart_scheduler: bool,
    /// Shapes of pods, by name, such as `{large: "cpu=8,memory=64Gi,nvidia.com/gpu=1"}`, to export how many fit.
    ///
    /// At most ten. The amounts are what a Guaranteed pod requests: whole CPUs, memory, huge pages, devices.
    /// `numacast_fleet_shape_pods` is how many of its pods fit, each within one zone, and how many would fit if
    /// zones did not matter; `numacast_fleet_shape_stranded` is what is free but of no use to them. The alert
    /// `NumacastFragmented` fires if none fits within one zone although one would if zones did not matter.
    #[serde(deserialize_with = "shapes")]
    #[schemars(with = "BTreeMap<String, String>", extend("maxProperties" = MAX_SHAPES))]
    pub shapes: BTreeMap<String, Shape>,
    /// Objects of deleted Nodes.
    pub garbage: Garbage,
}

/// Objects of deleted Nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Garbage {
    /// How often all objects are read, to find those of Nodes deleted while no controller ran.
    ///
    /// A Node must have been gone for a minute (or the interval, if shorter) before its object is deleted.
    /// That minute (or shorter interval) is also the interval of the fleet metrics; a Node without a Ready
    /// agent is reported after five times as long.
    pub interval: Period,
    /// Percentage of the objects that may be deleted per interval, but always ten; if more have no Node, none
    /// is deleted. 100: no limit
    ///
    /// It protects from a wrong list of Nodes, such as of an API server restored from a backup. Meanwhile
    /// `numacast_garbage_held_back` is 1, and log and Event (`GarbageHeldBack`) report it. If many Nodes
    /// really were deleted, set it to 100 until their objects are deleted.
    #[serde(deserialize_with = "percentage")]
    #[schemars(range(max = 100))]
    pub max_percent: u8,
}

/// Whether to update objects so that the scheduler retries rejected pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nudge {
    /// At times that suit the usual resync periods.
    #[default]
    Auto,
    /// Never.
    Off,
    /// For this resync period of the plugin.
    Every(Period),
}

fn percentage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let percent = serde_json::Value::deserialize(deserializer)?;
    let number = percent.as_u64().and_then(|number| u8::try_from(number).ok());
    let valid = number.filter(|number| *number <= 100);
    valid.ok_or_else(|| serde::de::Error::custom(format!("`{percent}` is not a whole number from 0 to 100")))
}

fn shapes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Shape>, D::Error> {
    let shapes: BTreeMap<String, Shape> = BTreeMap::deserialize(deserializer)?;
    if let Some(name) = shapes.keys().find(|name| !is_name_part(name)) {
        let valid = "at most 63 letters, digits, dashes, underscores and dots";
        return Err(serde::de::Error::custom(format!(
            "`{name}` cannot be the name of a shape: write {valid}"
        )));
    }
    if shapes.len() > MAX_SHAPES {
        return Err(serde::de::Error::custom(format!("there are more than {MAX_SHAPES} shapes")));
    }
    Ok(shapes)
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            namespace: String::new(),
            dry_run: false,
            daemon_sets: vec!["numacast-agent".to_owned()],
            lease: "numacast-controller".to_owned(),
            nudge: Nudge::Auto,
            scheduler: None,
            restart_scheduler: false,
            shapes: BTreeMap::new(),
            garbage: Garbage::default(),
        }
    }
}

impl Default for Garbage {
    fn default() -> Self {
        Self { interval: Period::seconds(600), max_percent: 20 }
    }
}

impl FromStr for Nudge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::Every).map_err(|error| format!("{error}, nor auto or off")),
        }
    }
}

impl fmt::Display for Nudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Every(period) => write!(f, "{period}"),
        }
    }
}

impl Serialize for Nudge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nudge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        switch::deserialize(deserializer, "auto, off, or a period such as 5s")
    }
}

impl JsonSchema for Nudge {
    fn schema_name() -> Cow<'static, str> {
        "Nudge".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "boolean"]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nudge_is_parsed_from_what_it_prints() {
        for text in ["auto", "off", "5s", "10s"] {
            assert_eq!(text.parse::<Nudge>().unwrap().to_string(), text);
        }
        let read = |text: &str| serde_saphyr::from_str::<Nudge>(text).map_err(|error| error.to_string());
        assert_eq!(read("off"), Ok(Nudge::Off));
        assert_eq!(read("5s"), Ok(Nudge::Every(Period::seconds(5))));
        let error = read("soon").unwrap_err();
        assert!(error.contains("`soon` is not a duration such as 500ms, 10s or 5m, nor auto"), "{error}");
    }

    #[test]
    fn shapes_have_names_and_are_few() {
        let read = |shapes: &str| {
            serde_saphyr::from_str::<Controller>(&format!("shapes: {shapes}"))
                .map(|controller| {
                    controller.shapes.values().map(Shape::to_string).collect::<Vec<_>>().join(" ")
                })
                .map_err(|error| error.to_string())
        };
        let two = "{large: 'cpu=8,memory=64Gi,nvidia.com/gpu=1', small_1: cpu=1}";
        assert_eq!(read(two).unwrap(), "cpu=8,memory=64Gi,nvidia.com/gpu=1 cpu=1");
        let many: Vec<String> = (0..=MAX_SHAPES).map(|n| format!("a{n}: cpu=1")).collect();
        for (shapes, words) in [
            ("{'': cpu=1}", "`` cannot be the name of a shape"),
            ("{'a b': cpu=1}", "`a b` cannot be the name of a shape"),
            ("{a: cpu=1.5}", "cpu=1500m is not a whole number"),
            ("[cpu=1]", "expected"),
            ("{a: {cpu: 1}}", "expected"),
            (&format!("{{{}}}", many.join(", ")), "there are more than 10 shapes"),
        ] {
            let error = read(shapes).unwrap_err();
            assert!(error.contains(words), "{shapes}: {error}");
        }
        assert!(read(&format!("{{{}}}", many[1..].join(", "))).is_ok());
    }

    #[test]
    fn a_percentage_is_at_most_100() {
        let read = |percent: &str| {
            serde_json::from_str::<Garbage>(&format!("{{\"maxPercent\": {percent}}}"))
                .map(|garbage| garbage.max_percent)
                .map_err(|error| error.to_string())
        };
        assert_eq!((read("0"), read("20"), read("100")), (Ok(0), Ok(20), Ok(100)));
        for percent in ["101", "-1", "300", "2.5", "\"20%\"", "true"] {
            let error = read(percent).unwrap_err();
            assert!(
                error.starts_with(&format!("`{percent}` is not a whole number from 0 to 100")),
                "{error}"
            );
        }
    }
}
