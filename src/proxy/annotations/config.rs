//! Which annotations are merged, as configured in `proxy.annotations`.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::names::{check_device, is_dns_name, is_name_part};
use crate::util::json_path::JsonPath;

/// Which annotations are merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Annotations {
    /// What is merged of Koordinator's allocations: `devices`, `cpus` (CPUs and memory), `sharedIds` (an id
    /// for each part of an accelerator) and `allocatable` (healthy devices, in `GetAllocatableResources`).
    ///
    /// `devices` is the annotation `scheduling.koordinator.sh/device-allocated`, `cpus` that of
    /// `scheduling.koordinator.sh/resource-status`, for the pod as a whole, and `allocatable` the node's
    /// Device.
    ///
    /// With `sharedIds`, `GPU-1` becomes `GPU-1::` and a number derived from the pod's UID where a pod has
    /// only a part of it; without, several pods have the same id. DCGM-exporter (`--kubernetes-virtual-gpus`)
    /// removes the number; Kata Containers and others that make CDI names of ids find no such device. Zones
    /// never count these numbers.
    ///
    /// `allocatable` is for clients that subtract what pods have from what is allocatable, such as exporters
    /// of topology. If a device plugin offers the same cards under another resource, they count twice.
    pub koordinator: BTreeSet<Koordinator>,
    /// Resource names of Koordinator's devices by type (`gpu`), or type and vendor (`gpu/huawei`).
    ///
    /// They replace the built-in names.
    #[serde(deserialize_with = "resources")]
    pub koordinator_resources: BTreeMap<String, String>,
    /// Other annotations that list devices: `annotation` (its key), `resource`, and the paths `path`, `id`
    /// and `container` of each.
    ///
    /// They are applied after Koordinator's annotations, in the order listed. A device listed twice for a pod
    /// counts only for the first container. An entry has one resource: an annotation with devices of several
    /// needs an entry for each.
    ///
    /// `path` selects the devices in the annotation's JSON by names of fields and positions in lists, such as
    /// `devices.0`. `*` is every element of a list, in order, or every field, sorted by name. A backslash
    /// escapes a special character in a name: `nvidia\.com/gpu`. Without `path`, the text is a list of ids,
    /// separated by commas. A path that selects nothing yields no device and is not an error.
    ///
    /// `id` and `container` are paths below a device, to its id and to the name of its container. Without
    /// `id`, the device itself is the id. Where the names of containers are fields above the devices, as in
    /// `{"main": ["A", "B"]}` with the path `*.*`, set `container` to `*`: it stands for the first field that
    /// a `*` of `path` matched, here `main`. Without `container`, it is found as for Koordinator: the one
    /// that requests the resource, else the first that is no sidecar. Nothing verifies such an annotation:
    /// anybody who creates a pod can write it.
    #[schemars(with = "Vec<RawMapping>")]
    pub mappings: Vec<AnnotationMapping>,
}

/// What is merged of Koordinator's allocations.
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
    /// The path of the devices in its JSON; without it, its text is a list of ids, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<JsonPath>,
    /// The resource that these devices are.
    pub resource: String,
    /// The path from a device to its id; without it, the device is the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<JsonPath>,
    /// The path from a device to its container's name, or `*`: the name of the first field that a wildcard of
    /// `path` matched. Without it, the container is found by its requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<JsonPath>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawMapping {
    annotation: String,
    #[schemars(with = "Option<String>", length(min = 1))]
    path: Option<JsonPath>,
    resource: String,
    #[schemars(with = "Option<String>", length(min = 1))]
    id: Option<JsonPath>,
    #[schemars(with = "Option<String>", length(min = 1))]
    container: Option<JsonPath>,
}

impl TryFrom<RawMapping> for AnnotationMapping {
    type Error = String;

    fn try_from(raw: RawMapping) -> Result<Self, String> {
        let RawMapping { annotation, path, resource, id, container } = raw;
        check_annotation(&annotation)?;
        check_device(&resource)?;
        if path.is_none() && (id.is_some() || container.is_some()) {
            return Err("`id` and `container` need a `path`".to_owned());
        }
        let below = [id.as_ref(), container.as_ref().filter(|container| !container.is_wildcard())];
        if let Some(several) = below.into_iter().flatten().find(|path| path.has_wildcard()) {
            return Err(format!("`{several}` may select several values; a wildcard belongs in `path`"));
        }
        let has_key = path.as_ref().is_some_and(JsonPath::has_wildcard);
        if container.as_ref().is_some_and(JsonPath::is_wildcard) && !has_key {
            return Err("the container `*` needs a wildcard in `path`".to_owned());
        }
        Ok(Self { annotation, path, resource, id, container })
    }
}

fn check_annotation(key: &str) -> Result<(), String> {
    let (domain, name) = key.rsplit_once('/').unwrap_or(("a", key));
    match is_dns_name(domain) && is_name_part(name) {
        true => Ok(()),
        false => Err(format!("`{key}` is not an annotation key; write one such as example.com/devices")),
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
                "`{kind}` is not a type of device; write one such as gpu, or one with its vendor, gpu/huawei"
            );
            return Err(serde::de::Error::custom(reason));
        }
        check_device(resource).map_err(serde::de::Error::custom)?;
    }
    Ok(resources)
}

impl Default for Annotations {
    fn default() -> Self {
        Self {
            koordinator: [Koordinator::Devices].into(),
            koordinator_resources: BTreeMap::new(),
            mappings: Vec::new(),
        }
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
    fn invalid_configurations_are_rejected() {
        let read =
            |yaml: &str| serde_saphyr::from_str::<Annotations>(yaml).map_err(|error| error.to_string());
        for (yaml, reason) in [
            ("{koordinator: [gpus]}", "unknown variant `gpus`"),
            ("{koordinatorResources: {'GPU': nvidia.com/gpu}}", "`GPU` is not a type of device"),
            ("{koordinatorResources: {'gpu/a/b': nvidia.com/gpu}}", "`gpu/a/b` is not a type of device"),
            ("{koordinatorResources: {gpu: cpu}}", "`cpu` is not a device resource"),
            ("{mappings: [{annotation: 'a b', resource: a.b/c}]}", "`a b` is not an annotation key"),
            ("{mappings: [{annotation: a.b/c, resource: memory}]}", "`memory` is not a device resource"),
            ("{mappings: [{resource: a.b/c}]}", "annotation"),
            ("{mappings: [{annotation: a.b/c, resource: a.b/c, ids: x}]}", "ids"),
            (
                "{mappings: [{annotation: a, resource: a.b/c, path: '$.a'}]}",
                "`$.a` is not a path: a special character in a name needs a `\\`",
            ),
            ("{mappings: [{annotation: a, resource: a.b/c, id: x}]}", "`id` and `container` need a `path`"),
            (
                "{mappings: [{annotation: a, resource: a.b/c, path: '*', id: 'a.*'}]}",
                "`a.*` may select several values",
            ),
            (
                "{mappings: [{annotation: a, resource: a.b/c, path: a, container: '*'}]}",
                "the container `*` needs a wildcard in `path`",
            ),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(reason), "{yaml}: {error}");
        }
        let valid = "{koordinatorResources: {gpu/huawei: huawei.com/npu}, \
                     mappings: [{annotation: a, resource: a.b/c}]}";
        assert_eq!(read(valid).unwrap().mappings[0].id, None);
    }
}
