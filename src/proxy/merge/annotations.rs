//! Which annotations are merged, as configured in `proxy.annotations`.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::names::{check_device, is_dns_name, is_qualified};
use crate::util::json_path::{JsonPath, Template};

/// Which annotations are merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Annotations {
    /// What is merged of Koordinator's: `devices` (annotation `scheduling.koordinator.sh/device-allocated`), `cpus` (CPUs
    /// and memory of `scheduling.koordinator.sh/resource-status`, for the pod as a whole), `sharedIds` (an id of its own
    /// for each part of an accelerator) and `allocatable` (the healthy devices of the node's Device, in
    /// `GetAllocatableResources`).
    ///
    /// With `sharedIds`, `GPU-1` becomes `GPU-1::` and a number derived from the pod's UID where a pod has only a part of
    /// it; without, several pods have the same id. DCGM-exporter (`--kubernetes-virtual-gpus`) removes the number; Kata
    /// Containers and others that make CDI names of ids find no such device. Zones never count these numbers.
    ///
    /// `allocatable` is for clients that subtract what pods have from what is allocatable, such as exporters of topology.
    /// If a device plugin offers the same cards under another resource, they count twice.
    pub koordinator: BTreeSet<Koordinator>,
    /// Resource names of Koordinator's devices by type (`gpu`), or type and vendor (`gpu/huawei`), in place of the
    /// built-in names.
    #[serde(deserialize_with = "resources")]
    pub resources: BTreeMap<String, String>,
    /// Other annotations that list devices: entries of `annotation` (its key), `resource`, `path` (a JSON path), and `id`
    /// and `container` (templates).
    ///
    /// They follow Koordinator's, in this order; a device that a pod gets twice counts for the first container.
    ///
    /// In `path`, `$` is the annotation's JSON, `.name` or `['name']` a member, `[0]` an element, and `[*]` or `.*` all of
    /// them: elements in their order, members sorted by name. Without `path`, the text is a list of ids, separated by
    /// commas. A path that matches nothing yields no device and is no error.
    ///
    /// In `id` and `container`, `{}` is what the path found, `{.a.b}` what is below it, and `{1}` the name or index that
    /// the first wildcard matched. Without `container`, the container is found as for Koordinator: the one that requests
    /// the resource, else the first that is no sidecar. Nothing verifies such an annotation: anybody who creates a pod can
    /// write it.
    #[schemars(with = "Vec<RawMapping>")]
    pub mappings: Vec<AnnotationMapping>,
}

/// What is merged of Koordinator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Koordinator {
    /// Devices of pods.
    Devices,
    /// CPUs and memory of pods.
    Cpus,
    /// An id of its own for each part of an accelerator.
    SharedIds,
    /// The node's healthy devices.
    Allocatable,
}

/// An annotation that lists devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, try_from = "RawMapping")]
pub struct AnnotationMapping {
    /// The annotation's key.
    pub annotation: String,
    /// Where the values are in its JSON; without it, its text is a list of ids, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<JsonPath>,
    /// The resource that these devices are.
    pub resource: String,
    /// The template of a device's id.
    pub id: Template,
    /// The template of the container's name; without it, the container is found by its requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Template>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawMapping {
    annotation: String,
    #[schemars(with = "Option<String>", regex(pattern = r"^\$"))]
    path: Option<JsonPath>,
    resource: String,
    #[schemars(with = "Option<String>", length(min = 1))]
    id: Option<Template>,
    #[schemars(with = "Option<String>", length(min = 1))]
    container: Option<Template>,
}

impl TryFrom<RawMapping> for AnnotationMapping {
    type Error = String;

    fn try_from(raw: RawMapping) -> Result<Self, String> {
        let RawMapping { annotation, path, resource, id, container } = raw;
        check_annotation(&annotation)?;
        check_device(&resource)?;
        let id = id.unwrap_or_default();
        if id.is_fixed() {
            return Err(format!("with the id `{id}` all devices are one; write a placeholder such as {{}}"));
        }
        let wildcards = path.as_ref().map_or(0, JsonPath::wildcards);
        let too_high = |template: &&Template| template.wildcards() > wildcards;
        if let Some(template) = [Some(&id), container.as_ref()].into_iter().flatten().find(too_high) {
            let named = template.wildcards();
            return Err(format!("`{template}` names wildcard {named} of the path, which has {wildcards}"));
        }
        Ok(Self { annotation, path, resource, id, container })
    }
}

fn check_annotation(key: &str) -> Result<(), String> {
    let (domain, name) = key.rsplit_once('/').unwrap_or(("a", key));
    match is_dns_name(domain) && name.len() <= 63 && is_qualified(name) {
        true => Ok(()),
        false => Err(format!("`{key}` is no key of an annotation; write one such as example.com/devices")),
    }
}

fn resources<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let resources: BTreeMap<String, String> = BTreeMap::deserialize(deserializer)?;
    let word = |text: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !text.is_empty() && text.bytes().all(inner)
    };
    for (kind, resource) in &resources {
        let parts: Vec<&str> = kind.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| word(part)) {
            let reason = format!(
                "`{kind}` is no type of device; write one such as gpu, or one with its vendor, gpu/huawei"
            );
            return Err(serde::de::Error::custom(reason));
        }
        check_device(resource).map_err(serde::de::Error::custom)?;
    }
    Ok(resources)
}

impl Default for Annotations {
    fn default() -> Self {
        Self { koordinator: [Koordinator::Devices].into(), resources: BTreeMap::new(), mappings: Vec::new() }
    }
}

impl Annotations {
    /// Returns true if anything is merged.
    #[must_use]
    pub fn are_merged(&self) -> bool {
        self.has(Koordinator::Devices) || self.has(Koordinator::Cpus) || !self.mappings.is_empty()
    }

    /// Returns true if this is merged of Koordinator's.
    #[must_use]
    pub fn has(&self, what: Koordinator) -> bool {
        self.koordinator.contains(&what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_never_work_is_an_error() {
        let read = |yaml: &str| serde_saphyr::from_str::<Annotations>(yaml).map_err(|error| error.to_string());
        for (yaml, reason) in [
            ("{koordinator: [gpus]}", "unknown variant `gpus`"),
            ("{resources: {'GPU': nvidia.com/gpu}}", "`GPU` is no type of device"),
            ("{resources: {'gpu/a/b': nvidia.com/gpu}}", "`gpu/a/b` is no type of device"),
            ("{resources: {gpu: cpu}}", "`cpu` is no device"),
            ("{mappings: [{annotation: 'a b', resource: a.b/c}]}", "`a b` is no key of an annotation"),
            ("{mappings: [{annotation: a.b/c, resource: memory}]}", "`memory` is no device"),
            ("{mappings: [{resource: a.b/c}]}", "annotation"),
            ("{mappings: [{annotation: a.b/c, resource: a.b/c, ids: x}]}", "ids"),
            (
                "{mappings: [{annotation: a, resource: a.b/c, path: '$.a['}]}",
                "`$.a[` is no path: in brackets is a name in quotes, a position such as `[0]`, or `*`, at character 5",
            ),
            ("{mappings: [{annotation: a, resource: a.b/c, id: 'x'}]}", "with the id `x` all devices are one"),
            (
                "{mappings: [{annotation: a, resource: a.b/c, path: '$.*', container: 'c{2}'}]}",
                "`c{2}` names wildcard 2 of the path, which has 1",
            ),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(reason), "{yaml}: {error}");
        }
        let valid =
            read("{resources: {gpu/huawei: huawei.com/npu}, mappings: [{annotation: a, resource: a.b/c}]}");
        assert_eq!(valid.unwrap().mappings[0].id.to_string(), "{}");
    }
}
