//! The shape of pods that `show` fits to nodes, and what it says about all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::fleet::{Row, amounts};
use crate::admission::PodRequest;
use crate::core_v1::PlacedPod;
use crate::fragmentation::{Fragmentation, Shape, ShapeError};
use crate::names::check_zone_resource;
use crate::pod::{Phase, Pod};
use crate::render::Line;

/// The shape that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedShape {
    /// That of most pods that run.
    Running,
    /// This one.
    Of(Shape),
}

impl FromStr for WantedShape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "running" { Ok(Self::Running) } else { text.parse().map(Self::Of) }
    }
}

/// A shape, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenShape {
    /// The shape.
    pub shape: Shape,
    /// The number of running pods that request it, if it was chosen because of them.
    pub pods: Option<usize>,
}

impl From<Shape> for ChosenShape {
    fn from(shape: Shape) -> Self {
        Self { shape, pods: None }
    }
}

impl fmt::Display for ChosenShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, pods } = self;
        match pods {
            None => write!(f, "{shape}"),
            Some(1) => write!(f, "{shape} (requested by 1 running pod)"),
            Some(pods) => write!(f, "{shape} (requested by {pods} running pods)"),
        }
    }
}

impl ChosenShape {
    /// Returns the shape that most running pods with exclusive CPUs have; of several the largest.
    #[must_use]
    pub fn of_most(pods: &[PlacedPod]) -> Option<Self> {
        let mut counts: BTreeMap<Shape, usize> = BTreeMap::new();
        for shape in pods.iter().filter_map(|placed| shape_of(&placed.pod)) {
            *counts.entry(shape).or_default() += 1;
        }
        let size = |shape: &Shape| shape.amounts().find(|(name, _)| *name == "cpu").map(|(_, cpus)| cpus);
        let most = counts.into_iter().max_by_key(|(shape, pods)| (*pods, size(shape)));
        most.map(|(shape, pods)| Self { shape, pods: Some(pods) })
    }

    /// Returns a sentence about all rows.
    #[must_use]
    pub fn summary<'a>(&self, rows: impl IntoIterator<Item = &'a Row>) -> Line {
        let mut total: Option<Fragmentation> = None;
        for of_node in rows.into_iter().filter_map(|row| row.fragmentation.as_ref()) {
            total.get_or_insert_default().add(of_node);
        }
        let Some(total) = total else { return Line::from(format!("{self}: no node is large enough")) };
        let Fragmentation { aligned, any, stranded } = &total;
        let stranded = match amounts(stranded) {
            none if none.is_empty() => String::new(),
            some => format!("; stranded: {some}"),
        };
        let pods = if *aligned == 1 { "1 pod fits".to_owned() } else { format!("{aligned} pods fit") };
        Line::from(format!("{self}: {pods}, {any} if zones did not matter{stranded}"))
    }
}

/// Returns what a running Guaranteed pod requests of zones, if it has exclusive CPUs.
fn shape_of(pod: &Pod) -> Option<Shape> {
    if pod.phase != Phase::Running || !pod.qos_guaranteed {
        return None;
    }
    let mut amounts = PodRequest::from(pod).of_node();
    amounts.retain(|name, _| check_zone_resource(name).is_ok());
    let millicores = amounts.get_mut("cpu").filter(|milli| milli.is_multiple_of(1000))?;
    *millicores /= 1000;
    Shape::new(amounts).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(phase: &str, class: &str, limits: serde_json::Value) -> PlacedPod {
        let value = json!({"metadata": {"name": "p", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]},
            "status": {"phase": phase, "qosClass": class}});
        let pod = Pod::from_json(&serde_json::to_vec(&value).unwrap()).unwrap();
        PlacedPod { pod, ..PlacedPod::default() }
    }

    #[test]
    fn the_shape_of_most_running_pods_with_exclusive_cpus_is_chosen() {
        let small = json!({"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"});
        let large = json!({"cpu": 4, "memory": "1Gi", "a.b/gpu": "1"});
        let shared = json!({"cpu": "500m", "memory": "1Gi"});
        let running = |limits: &serde_json::Value| pod("Running", "Guaranteed", limits.clone());
        let chosen = |pods: &[PlacedPod]| ChosenShape::of_most(pods).map(|chosen| chosen.to_string());
        let mut pods = vec![running(&small), running(&large), running(&shared), running(&shared)];
        let of_large = "a.b/gpu=1,cpu=4,memory=1Gi (requested by 1 running pod)";
        assert_eq!(chosen(&pods).as_deref(), Some(of_large), "the largest of several");
        pods.push(running(&small));
        pods.extend(["Pending", "Succeeded", "Failed"].map(|phase| pod(phase, "Guaranteed", large.clone())));
        pods.extend([(); 3].map(|()| pod("Running", "Burstable", large.clone())));
        assert_eq!(chosen(&pods).as_deref(), Some("cpu=2,memory=1Gi (requested by 2 running pods)"));
        assert_eq!(chosen(&[running(&shared)]), None);
    }

    #[test]
    fn a_shape_is_named_or_that_of_running_pods() {
        let read = |text: &str| text.parse::<WantedShape>().map_err(|error| error.to_string());
        assert_eq!(read("running"), Ok(WantedShape::Running));
        assert_eq!(read("cpu=2"), Ok(WantedShape::Of("cpu=2".parse().unwrap())));
        assert!(read("runing").unwrap_err().contains("has no amount"), "as any other text");
    }
}
