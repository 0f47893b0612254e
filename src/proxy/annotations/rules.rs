//! What is read from pods, as configured.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::annotations::{AnnotationMapping, Annotations, Koordinator};
use super::koordinator::{DEVICES, STATUS};
use crate::util::json_path::{JsonPath, Template};

/// What is read from pods, and what it means.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(super) koordinator: bool,
    pub(super) resources: BTreeMap<String, Arc<str>>,
    pub(super) cpus: bool,
    pub(super) shared_ids: bool,
    pub(super) allocatable: bool,
    pub(super) mappings: Vec<Mapping>,
}

/// What one annotation means.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) annotation: String,
    pub(super) path: Option<JsonPath>,
    pub(super) resource: Arc<str>,
    pub(super) id: Template,
    pub(super) container: Option<Template>,
}

impl Rules {
    /// Creates the rules; with `zones`, they include the node's own devices.
    #[must_use]
    pub fn new(annotations: &Annotations, zones: bool) -> Self {
        let resources = annotations.resources.iter();
        Self {
            koordinator: annotations.has(Koordinator::Devices),
            resources: resources.map(|(kind, name)| (kind.clone(), name.as_str().into())).collect(),
            cpus: annotations.has(Koordinator::Cpus),
            shared_ids: annotations.has(Koordinator::SharedIds),
            allocatable: zones || annotations.has(Koordinator::Allocatable),
            mappings: annotations.mappings.iter().map(Mapping::new).collect(),
        }
    }

    /// Returns the same rules, but with the device's own id for its parts, for callers that count devices.
    #[must_use]
    pub fn without_shared_ids(&self) -> Self {
        Self { shared_ids: false, ..self.clone() }
    }

    /// Returns the keys of the annotations that are read, without duplicates, sorted.
    #[must_use]
    pub fn wanted(&self) -> Vec<String> {
        let own = [(self.koordinator, DEVICES), (self.cpus, STATUS)];
        let own = own.into_iter().filter(|(on, _)| *on).map(|(_, key)| key.to_owned());
        let mapped = self.mappings.iter().map(|mapping| mapping.annotation.clone());
        let mut keys: Vec<String> = own.chain(mapped).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl Mapping {
    fn new(mapping: &AnnotationMapping) -> Self {
        let AnnotationMapping { annotation, path, resource, id, container } = mapping.clone();
        Self { annotation, path, resource: resource.into(), id, container }
    }
}
