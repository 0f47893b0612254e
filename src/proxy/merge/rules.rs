//! What is read of pods, as it is configured.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::koordinator::{DEVICES, STATUS};
use super::names::is_device;
use super::path::{Path, Template};

/// As it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Read what Koordinator's scheduler allocated.
    pub koordinator: bool,
    /// Names over our own: `gpu` or `gpu/huawei` to the resource.
    pub resources: BTreeMap<String, String>,
    /// Read the CPUs and the memory that Koordinator's scheduler allocated.
    pub cpus: bool,
    /// List an accelerator of which a pod has a part as `<id>::<number>`.
    pub shared_ids: bool,
    /// What the node has is in the answer about allocatable resources.
    pub allocatable: bool,
    /// Annotations of others.
    pub mappings: Vec<MappingSettings>,
}

/// What one annotation means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingSettings {
    /// Its key.
    pub annotation: String,
    /// Where in it the devices are; without one it is ids, separated by commas.
    pub path: Option<String>,
    /// The resource that they are.
    pub resource: String,
    /// What each is called.
    pub id: Option<String>,
    /// Which container has it.
    pub container: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            koordinator: true,
            resources: BTreeMap::new(),
            cpus: false,
            shared_ids: false,
            allocatable: false,
            mappings: Vec::new(),
        }
    }
}

/// What is read of pods, and what it means.
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
    pub(super) path: Option<Path>,
    pub(super) resource: Arc<str>,
    pub(super) id: Template,
    pub(super) container: Option<Template>,
}

impl Rules {
    /// Reads what is configured.
    ///
    /// # Errors
    /// One sentence that names the place.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let resources = settings.resources.iter().map(|(kind, name)| match is_kind(kind) {
            false => Err(format!(
                "resources: `{kind}` is neither a type nor a type and a vendor such as gpu/huawei"
            )),
            true => checked(name)
                .map(|name| (lower_vendor(kind), name))
                .map_err(|e| format!("resources.{kind}: {e}")),
        });
        let resources = resources.collect::<Result<_, _>>()?;
        let mappings = settings.mappings.iter().enumerate().map(|(index, mapping)| {
            let place = |error| format!("mapping {} (`{}`): {error}", index + 1, mapping.annotation);
            Mapping::new(mapping).map_err(place)
        });
        Ok(Self {
            koordinator: settings.koordinator,
            resources,
            cpus: settings.cpus,
            shared_ids: settings.shared_ids,
            allocatable: settings.allocatable,
            mappings: mappings.collect::<Result<_, _>>()?,
        })
    }

    /// The keys of the annotations that are read, each once, sorted.
    #[must_use]
    pub fn wanted(&self) -> Vec<String> {
        let own = [(self.koordinator, DEVICES), (self.cpus, STATUS)];
        let own = own.into_iter().filter(|(on, _)| *on).map(|(_, key)| key.to_owned());
        let mut keys: Vec<String> =
            own.chain(self.mappings.iter().map(|mapping| mapping.annotation.clone())).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Is what Koordinator reports of the node's devices of any use?
    #[must_use]
    pub const fn wants_devices(&self) -> bool {
        self.koordinator || self.allocatable
    }
}

impl Mapping {
    fn new(settings: &MappingSettings) -> Result<Self, String> {
        let MappingSettings { annotation, path, resource, id, container } = settings;
        if annotation.is_empty() {
            return Err("it names no annotation".to_owned());
        }
        let path = path.as_deref().map(Path::new).transpose().map_err(|error| format!("path: {error}"))?;
        let wildcards = path.as_ref().map_or(0, Path::wildcards);
        let template = |text: &Option<String>, key: &str| {
            let template = text.as_deref().map(|text| Template::new(text, wildcards)).transpose();
            template.map_err(|error| format!("{key}: {error}"))
        };
        let name = template(id, "id")?.unwrap_or_else(Template::itself);
        if name.is_fixed() {
            return Err("id: without a placeholder such as `{}` all devices would be one".to_owned());
        }
        Ok(Self {
            annotation: annotation.clone(),
            resource: checked(resource).map_err(|error| format!("resource: {error}"))?,
            id: name,
            container: template(container, "container")?,
            path,
        })
    }
}

fn checked(name: &str) -> Result<Arc<str>, String> {
    match is_device(name) {
        true => Ok(name.into()),
        false => Err(format!("`{name}` is no name of devices such as example.com/gpu")),
    }
}

/// `gpu`, `gpu/huawei`.
fn is_kind(text: &str) -> bool {
    let (kind, vendor) = text.split_once('/').unwrap_or((text, "any"));
    !kind.is_empty() && !vendor.is_empty() && !vendor.contains('/')
}

fn lower_vendor(text: &str) -> String {
    match text.split_once('/') {
        Some((kind, vendor)) => format!("{kind}/{}", vendor.to_ascii_lowercase()),
        None => text.to_owned(),
    }
}

impl Settings {
    /// Those of a configuration.
    #[must_use]
    pub fn from_config(annotations: &crate::config::ProxyAnnotations, allocatable: bool) -> Self {
        let mappings = annotations.mappings.iter().map(|mapping| MappingSettings {
            annotation: mapping.annotation.clone(),
            path: mapping.path.clone(),
            resource: mapping.resource.clone(),
            id: Some(mapping.id.clone()),
            container: mapping.container.clone(),
        });
        Self {
            koordinator: annotations.koordinator,
            resources: annotations.resources.clone(),
            cpus: annotations.cpus,
            shared_ids: annotations.shared_ids,
            allocatable,
            mappings: mappings.collect(),
        }
    }
}
