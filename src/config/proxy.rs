//! Configuration of the podresources proxy. Settings that could never work are rejected.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Config, Period, PodSource, ProxyAnnotations, ServedSocket, SocketMode};

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

impl Proxy {
    /// Returns the socket's path in a resolved configuration.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.as_deref().unwrap_or(Path::new("/run/numacast/pod-resources")).join("kubelet.sock")
    }

    /// Returns the socket of a resolved configuration.
    #[must_use]
    pub fn served(&self) -> ServedSocket {
        let keys = ["proxy.dir", "proxy.mode"];
        ServedSocket { path: self.socket(), mode: self.mode, group: self.group, keys }
    }

    pub(super) fn resolve(&mut self, root: &Path) {
        self.dir.get_or_insert_with(|| root.join("run/numacast/pod-resources"));
    }

    /// Returns the key to report, and the reason, if annotations are merged but there is no pod source.
    /// `numacast proxy` serves the proxy without `proxy.enabled`, so it must check this itself.
    #[must_use]
    pub fn needs_pods(&self, config: &Config) -> Option<(&'static str, &'static str)> {
        let nobody = "nobody tells the proxy of annotations; choose another source, or set \
                      `proxy.annotations.koordinator: false`";
        let is_none = self.annotations.are_wanted() && config.pods.source == Some(PodSource::None);
        is_none.then_some(("pods.source", nobody))
    }

    /// Returns settings that have no effect: the key to report, and the reason.
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

    /// Returns the conflicts: the key to report, and the reason.
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
