//! Configuration of what the podresources proxy merges.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::names::{check_device, is_dns_name, is_qualified};
use crate::util::json_path::{JsonPath, Template};

/// What is merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ProxyAnnotations {
    /// Koordinator's devices.
    pub koordinator: bool,
    /// Type of device, or type and vendor, to the resource that it is.
    #[serde(deserialize_with = "resources")]
    pub resources: BTreeMap<String, String>,
    /// Koordinator's CPUs and memory.
    pub cpus: bool,
    /// A part of a device has an id of its own.
    pub shared_ids: bool,
    /// What others write.
    pub mappings: Vec<ProxyMapping>,
}

/// Where somebody's annotation has devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, try_from = "RawMapping")]
pub struct ProxyMapping {
    /// The annotation's key.
    pub annotation: String,
    /// Which values in its JSON; its text is a list of ids, separated by commas, when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<JsonPath>,
    /// What these devices are.
    pub resource: String,
    /// What the id is made of.
    pub id: Template,
    /// What the container's name is made of; it is found by what containers ask for when not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Template>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawMapping {
    annotation: String,
    path: Option<JsonPath>,
    resource: String,
    id: Option<Template>,
    container: Option<Template>,
}

impl TryFrom<RawMapping> for ProxyMapping {
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

impl Default for ProxyAnnotations {
    fn default() -> Self {
        Self {
            koordinator: true,
            resources: BTreeMap::new(),
            cpus: false,
            shared_ids: false,
            mappings: Vec::new(),
        }
    }
}

impl ProxyAnnotations {
    /// Returns true if anything is merged.
    #[must_use]
    pub fn are_wanted(&self) -> bool {
        self.koordinator || self.cpus || !self.mappings.is_empty()
    }
}
