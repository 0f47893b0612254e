//! The podresources proxy, as people configure it; refused where it could never work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::exclude::check_device;
use super::{Config, Period, PodSource, ServedSocket, SocketMode};
use crate::json_path::{JsonPath, Template};

/// The podresources proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Proxy {
    /// The agent serves it.
    pub enabled: bool,
    /// The directory of its socket; `<host.root>/run/numacast/pod-resources` when not set.
    pub dir: Option<PathBuf>,
    /// Who may connect, as file permissions.
    pub mode: SocketMode,
    /// The group that the socket belongs to; that of the process when not set.
    pub group: Option<u32>,
    /// The deadline of one call to the kubelet.
    pub timeout: Period,
    /// How long an answer waits for a pod that nobody has told about.
    pub wait: Period,
    /// How long what was told is believed while nobody tells.
    pub last_known: Period,
    /// Refuse what may lack devices.
    pub fail_closed: bool,
    /// Put the node's devices into `GetAllocatableResources`.
    pub allocatable: bool,
    /// Zones count merged devices.
    pub zones: bool,
    /// What is merged.
    pub annotations: ProxyAnnotations,
}

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
    match super::exclude::is_dns_name(domain) && name.len() <= 63 && super::exclude::is_qualified(name) {
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

impl Default for Proxy {
    fn default() -> Self {
        Self {
            enabled: false,
            dir: None,
            mode: SocketMode::ROOT,
            group: None,
            timeout: Period::seconds(4),
            wait: Period(Duration::from_millis(500)),
            last_known: Period::seconds(600),
            fail_closed: false,
            allocatable: false,
            zones: false,
            annotations: ProxyAnnotations::default(),
        }
    }
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
    /// Is anything merged at all?
    #[must_use]
    pub fn are_wanted(&self) -> bool {
        self.koordinator || self.cpus || !self.mappings.is_empty()
    }
}

impl Proxy {
    /// The path of the socket of a resolved configuration.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.as_deref().unwrap_or(Path::new("/run/numacast/pod-resources")).join("kubelet.sock")
    }

    /// The socket of a resolved configuration.
    #[must_use]
    pub fn served(&self) -> ServedSocket {
        let keys = ["proxy.dir", "proxy.mode"];
        ServedSocket { path: self.socket(), mode: self.mode, group: self.group, keys }
    }

    pub(super) fn resolve(&mut self, root: &Path) {
        self.dir.get_or_insert_with(|| root.join("run/numacast/pod-resources"));
    }

    /// Who tells of annotations, if somebody has to and nobody does: the key to blame, and why. `numacast proxy` serves it
    /// without `proxy.enabled`, and has to ask for itself.
    #[must_use]
    pub fn needs_pods(&self, config: &Config) -> Option<(&'static str, &'static str)> {
        let nobody = "nobody tells the proxy of annotations; choose another source, or set \
                      `proxy.annotations.koordinator: false`";
        let is_none = self.annotations.are_wanted() && config.pods.source == Some(PodSource::None);
        is_none.then_some(("pods.source", nobody))
    }

    /// What would change nothing, though somebody has set it.
    fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        let ProxyAnnotations { koordinator, resources, shared_ids, .. } = &self.annotations;
        let devices = "without Koordinator there is no Device object to read; set `proxy.annotations.koordinator: true`";
        let types = "only Koordinator's devices have it; set `proxy.annotations.koordinator: true`";
        let nothing = "nothing is merged, so no answer lacks devices; set what `proxy.annotations` has";
        [
            (self.allocatable && !koordinator, "proxy.allocatable", devices),
            (*shared_ids && !koordinator, "proxy.annotations.sharedIds", types),
            (!resources.is_empty() && !koordinator, "proxy.annotations.resources", types),
            (self.fail_closed && !self.annotations.are_wanted(), "proxy.failClosed", nothing),
        ]
        .into_iter()
        .filter_map(|(is_so, key, why)| is_so.then_some((key, why)))
        .collect()
    }

    /// What cannot work together: the key to blame, and why.
    pub(super) fn conflicts(&self, config: &Config) -> Vec<(&'static str, &'static str)> {
        let resolved = config.clone().resolved();
        let mut conflicts = resolved.proxy.served().conflicts(&resolved.kubelet);
        if self.enabled {
            conflicts.extend(self.needs_pods(config));
        }
        conflicts.extend(self.without_effect());
        if self.zones && !(self.enabled && self.annotations.are_wanted()) {
            let nothing = "nothing is merged that zones could count; set `proxy.enabled` and what `proxy.annotations` has";
            conflicts.push(("proxy.zones", nothing));
        }
        conflicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_never_work_is_refused() {
        let read = |yaml: &str| serde_saphyr::from_str::<Proxy>(yaml).map_err(|error| error.to_string());
        for (yaml, reason) in [
            ("annotations: {resources: {'GPU': nvidia.com/gpu}}", "`GPU` is no type of device"),
            ("annotations: {resources: {'gpu/a/b': nvidia.com/gpu}}", "`gpu/a/b` is no type of device"),
            ("annotations: {resources: {gpu: cpu}}", "`cpu` is no device"),
            (
                "annotations: {mappings: [{annotation: 'a b', resource: a.b/c}]}",
                "`a b` is no key of an annotation",
            ),
            ("annotations: {mappings: [{annotation: a.b/c, resource: memory}]}", "`memory` is no device"),
            ("annotations: {mappings: [{resource: a.b/c}]}", "annotation"),
            ("annotations: {mappings: [{annotation: a.b/c, resource: a.b/c, ids: x}]}", "ids"),
            (
                "annotations: {mappings: [{annotation: a, resource: a.b/c, path: '$.a['}]}",
                "`$.a[` is no path: in brackets is a name in quotes, a position such as `[0]`, or `*`, at character 5",
            ),
            (
                "annotations: {mappings: [{annotation: a, resource: a.b/c, id: 'x'}]}",
                "with the id `x` all devices are one",
            ),
            (
                "annotations: {mappings: [{annotation: a, resource: a.b/c, path: '$.*', container: 'c{2}'}]}",
                "`c{2}` names wildcard 2 of the path, which has 1",
            ),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(reason), "{yaml}: {error}");
        }
        let fine = read(
            "annotations: {resources: {gpu/huawei: huawei.com/npu}, mappings: [{annotation: a, resource: a.b/c}]}",
        );
        assert_eq!(fine.unwrap().annotations.mappings[0].id.to_string(), "{}");
    }

    #[test]
    fn what_cannot_work_together_is_named() {
        let keys = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.proxy.conflicts(&config).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert!(keys(|_| {}).is_empty());
        assert_eq!(keys(|c| c.proxy.dir = Some("/var/lib/kubelet/pod-resources".into())), ["proxy.dir"]);
        assert_eq!(keys(|c| c.kubelet.socket = Some("/run/numacast/pod-resources/x".into())), ["proxy.dir"]);
        assert_eq!(keys(|c| c.proxy.dir = Some("here".into())), ["proxy.dir"]);
        assert_eq!(keys(|c| c.proxy.dir = Some("/var/lib/kubelet/x/../pod-resources".into())), ["proxy.dir"]);
        assert_eq!(keys(|c| c.proxy.dir = Some("/var/lib/kubelet/device-plugins".into())), ["proxy.dir"]);
        assert_eq!(keys(|c| c.proxy.dir = Some("/var/lib/kubelet/pods-api".into())), ["proxy.dir"]);
        assert_eq!(keys(|c| c.proxy.dir = Some("/var/lib".into())), ["proxy.dir"]);
        assert_eq!(keys(|c| c.proxy.group = Some(7)), ["proxy.mode"]);
        assert_eq!(keys(|c| c.proxy.zones = true), ["proxy.zones"]);
        let alone = |c: &mut Config| {
            c.proxy.enabled = true;
            c.pods.source = Some(PodSource::None);
        };
        assert_eq!(keys(alone), ["pods.source"]);
        let by_itself = |c: &mut Config| c.pods.source = Some(PodSource::None);
        assert!(keys(by_itself).is_empty(), "numacast proxy asks for itself");
        let mut config = Config::default();
        by_itself(&mut config);
        assert_eq!(config.proxy.needs_pods(&config).map(|(key, _)| key), Some("pods.source"));
        config.proxy.annotations.koordinator = false;
        assert_eq!(config.proxy.needs_pods(&config), None);
        let without = |change: fn(&mut Proxy)| {
            let mut config = Config::default();
            change(&mut config.proxy);
            assert!(config.proxy.conflicts(&config).is_empty(), "with Koordinator");
            config.proxy.annotations.koordinator = false;
            config.proxy.annotations.cpus = true;
            config.proxy.conflicts(&config).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(without(|p| p.allocatable = true), ["proxy.allocatable"]);
        assert_eq!(without(|p| p.annotations.shared_ids = true), ["proxy.annotations.sharedIds"]);
        let named = |p: &mut Proxy| p.annotations.resources = [("gpu".into(), "a.b/c".into())].into();
        assert_eq!(without(named), ["proxy.annotations.resources"]);
        assert!(without(|p| p.fail_closed = true).is_empty(), "CPUs are merged");
        let nothing = |c: &mut Config| (c.proxy.fail_closed, c.proxy.annotations.koordinator) = (true, false);
        assert_eq!(keys(nothing), ["proxy.failClosed"]);
    }
}
