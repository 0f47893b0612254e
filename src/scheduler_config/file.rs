//! What of a KubeSchedulerConfiguration concerns the plugin. Read leniently: the scheduler checks the rest.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{PLUGIN, SchedulerConfigError};

/// Plugins that sort pods: the default, and those of scheduler-plugins.
const SORTERS: [&str; 4] = ["PrioritySort", "Coscheduling", "QOSSort", "TopologicalSort"];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct File {
    pub(super) api_version: Option<String>,
    kind: Option<String>,
    pub(super) pod_initial_backoff_seconds: Option<i64>,
    pub(super) pod_max_backoff_seconds: Option<i64>,
    profiles: Option<Vec<Profile>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Profile {
    scheduler_name: Option<String>,
    /// Plugins by extension point.
    plugins: Option<BTreeMap<String, Option<PluginSet>>>,
    plugin_config: Option<Vec<PluginConfig>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PluginSet {
    enabled: Option<Vec<Plugin>>,
    disabled: Option<Vec<Plugin>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Plugin {
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PluginConfig {
    name: Option<String>,
    args: Option<Map<String, Value>>,
}

/// The plugin's cache, as its arguments select it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    /// Subtracts what it places from every zone, and reads the object again every so many seconds.
    OverReserve(u64),
    /// Reads the object for each pod, and skips nodes with a pod that is not bound yet.
    DiscardReserved,
    /// Reads the object for each pod.
    Passthrough,
}

impl File {
    pub(super) fn parse(text: &str) -> Result<Self, SchedulerConfigError> {
        let malformed = |error: serde_saphyr::Error| SchedulerConfigError::Malformed(error.to_string());
        let file: Self = serde_saphyr::from_str(text).map_err(malformed)?;
        match file.kind.as_deref() {
            Some("KubeSchedulerConfiguration") => Ok(file),
            kind => Err(SchedulerConfigError::OtherKind(kind.unwrap_or_default().to_owned())),
        }
    }

    /// Returns the profiles that use the plugin for anything.
    pub(super) fn with_plugin(&self) -> impl Iterator<Item = &Profile> {
        self.profiles.iter().flatten().filter(|profile| profile.has_plugin())
    }

    /// Returns what all profiles have of the plugin.
    pub(super) fn summaries(&self) -> Vec<super::Profile> {
        let summary = |profile: &Profile| super::Profile {
            name: profile.name().to_owned(),
            has_plugin: profile.has_plugin(),
            over_reserves: profile.has_plugin() && matches!(profile.cache(), Cache::OverReserve(_)),
        };
        self.profiles.iter().flatten().map(summary).collect()
    }
}

impl Profile {
    pub(super) fn name(&self) -> &str {
        self.scheduler_name.as_deref().unwrap_or("default-scheduler")
    }

    /// Returns whether the plugin is used for anything.
    fn has_plugin(&self) -> bool {
        ["preFilter", "filter", "score", "reserve", "postBind"].iter().any(|point| self.has(PLUGIN, point))
    }

    /// Returns whether a plugin that no profile has by default is enabled at an extension point.
    pub(super) fn has(&self, plugin: &str, point: &str) -> bool {
        self.lists(point, plugin, |set| &set.enabled)
            || self.lists("multiPoint", plugin, |set| &set.enabled) && !self.disables(point, plugin)
    }

    /// Returns whether a plugin, or all, are disabled at an extension point.
    fn disables(&self, point: &str, plugin: &str) -> bool {
        [plugin, "*"].iter().any(|name| self.lists(point, name, |set| &set.disabled))
    }

    /// Returns whether pods are sorted, without which the scheduler does not start.
    pub(super) fn sorts_pods(&self) -> bool {
        let is_disabled = ["queueSort", "multiPoint"].iter().any(|point| self.disables(point, SORTERS[0]));
        let has_own =
            self.set("queueSort").and_then(|set| set.enabled.as_ref()).is_some_and(|all| !all.is_empty());
        !is_disabled
            || has_own
            || SORTERS.iter().any(|name| self.lists("multiPoint", name, |set| &set.enabled))
    }

    fn set(&self, point: &str) -> Option<&PluginSet> {
        self.plugins.as_ref()?.get(point)?.as_ref()
    }

    fn lists(&self, point: &str, name: &str, list: fn(&PluginSet) -> &Option<Vec<Plugin>>) -> bool {
        let plugins = self.set(point).and_then(|set| list(set).as_ref());
        plugins.is_some_and(|all| all.iter().any(|plugin| plugin.name.as_deref() == Some(name)))
    }

    /// Returns the plugin's arguments.
    pub(super) fn args(&self) -> Option<&Map<String, Value>> {
        let mut configs = self.plugin_config.iter().flatten();
        configs.find(|config| config.name.as_deref() == Some(PLUGIN))?.args.as_ref()
    }

    /// Returns an argument, such as `cache.informerMode`; `null` counts as absent.
    pub(super) fn arg(&self, path: &str) -> Option<&Value> {
        let mut names = path.split('.');
        let first = self.args()?.get(names.next()?)?;
        let value = names.try_fold(first, |value, name| value.get(name))?;
        (!value.is_null()).then_some(value)
    }

    /// Returns an argument that is a text, or the plugin's default for it.
    pub(super) fn text<'a>(&'a self, path: &str, default: &'a str) -> &'a str {
        self.arg(path).and_then(Value::as_str).unwrap_or(default)
    }

    pub(super) fn cache(&self) -> Cache {
        let period = self.arg("cacheResyncPeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        match (self.arg("discardReservedNodes").and_then(Value::as_bool), u64::try_from(period)) {
            (Some(true), _) => Cache::DiscardReserved,
            (_, Ok(period @ 1..)) => Cache::OverReserve(period),
            _ => Cache::Passthrough,
        }
    }
}
