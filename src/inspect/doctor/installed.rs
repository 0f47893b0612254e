//! What of numacast is installed: found by what pods run, so that nothing has to be configured.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;

use crate::cluster::{SlimContainer, SlimDaemonSet, runs_agents};
use crate::config::{Config, Layers, Origin};
use crate::controller::Coverage;
use crate::core_v1::{InspectedPod, PodDetails};
use crate::scheduler_config::{self, Profile};

/// Namespace and name of an object.
pub(super) type ObjectName = (String, String);

/// What a pod runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    Agent,
    Controller,
    /// Perhaps a scheduler.
    Scheduler,
    Other,
}

/// Returns what a pod runs, by images, commands and arguments.
pub(super) fn runs(words: &[Cow<'_, str>]) -> Runs {
    let is_ours = words.iter().any(|word| program(word).starts_with("numacast"));
    let has = |argument: &str| words.iter().any(|word| word == argument);
    match is_ours {
        true if has("agent") => Runs::Agent,
        true if has("controller") => Runs::Controller,
        false if words.iter().any(|word| program(word).contains("scheduler")) => Runs::Scheduler,
        _ => Runs::Other,
    }
}

/// Returns images, commands and arguments of a DaemonSet.
pub(super) fn words_of(set: &SlimDaemonSet) -> Vec<&str> {
    let containers = || set.pod().into_iter().flat_map(|pod| pod.containers());
    let images = containers().filter_map(|container| container.image.as_deref());
    images.chain(containers().flat_map(SlimContainer::arguments)).collect()
}

/// Returns the last part of a path or of an image's name, without tag and digest.
fn program(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or_default();
    name.split(['@', ':', '=']).next().unwrap_or_default()
}

/// A DaemonSet that runs agents.
#[derive(Debug)]
pub(super) struct AgentSet {
    pub(super) name: ObjectName,
    pub(super) is_deleted: bool,
    pub(super) coverage: Option<Coverage>,
    /// The user name of its pods.
    pub(super) user: String,
    /// Images by the container's name.
    pub(super) images: BTreeMap<String, String>,
    /// Memory limits in bytes by the container's name.
    pub(super) memory_limits: BTreeMap<String, u64>,
    pub(super) config_maps: Vec<ObjectName>,
    arguments: Vec<String>,
    /// Its pods, as indexes into all pods.
    pub(super) pods: Vec<usize>,
    /// The agents' configuration; `None` if it is not known.
    pub(super) config: Option<Config>,
}

impl AgentSet {
    pub(super) fn all(daemon_sets: &[SlimDaemonSet], pods: &[InspectedPod]) -> Vec<Self> {
        let agents = daemon_sets.iter().filter(|one| runs_agents(one));
        let mut sets: Vec<Self> = agents.map(Self::new).collect();
        for (index, pod) in pods.iter().enumerate() {
            let Some(("DaemonSet", owner)) =
                pod.placed.owner.as_ref().map(|(kind, name)| (kind.as_str(), name))
            else {
                continue;
            };
            let owner = (&pod.placed.pod.namespace, owner);
            let is_live = pod.details.is_some() && !pod.placed.pod.phase.is_terminal();
            if let Some(set) = sets.iter_mut().find(|set| is_live && (&set.name.0, &set.name.1) == owner) {
                set.pods.push(index);
            }
        }
        sets
    }

    fn new(of: &SlimDaemonSet) -> Self {
        let pod = of.pod().cloned().unwrap_or_default();
        let namespace = of.namespace().to_owned();
        let account =
            pod.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
        let image =
            |container: &SlimContainer| (container.name.clone(), container.image.clone().unwrap_or_default());
        let limit = |container: &SlimContainer| Some((container.name.clone(), container.memory_limit()?));
        Self {
            memory_limits: pod.containers().filter_map(limit).collect(),
            is_deleted: of.is_deleted(),
            coverage: Coverage::of(of),
            user: format!("system:serviceaccount:{namespace}:{account}"),
            images: pod.containers().map(image).collect(),
            config_maps: pod.config_maps().map(|name| (namespace.clone(), name.to_owned())).collect(),
            arguments: pod.containers().flat_map(SlimContainer::arguments).map(str::to_owned).collect(),
            pods: Vec::new(),
            config: None,
            name: (namespace, of.name().to_owned()),
        }
    }

    pub(super) fn place(&self) -> String {
        format!("DaemonSet {}/{}", self.name.0, self.name.1)
    }

    pub(super) fn configure(&mut self, maps: &BTreeMap<ObjectName, BTreeMap<String, String>>) {
        self.config = config_of(&self.arguments, &self.config_maps, maps);
    }
}

/// The controllers of a namespace.
#[derive(Debug)]
pub(super) struct ControllerSet {
    pub(super) namespace: String,
    /// Names of the pods, and whether each is Ready.
    pub(super) pods: Vec<(String, bool)>,
    pub(super) config_maps: Vec<ObjectName>,
    arguments: Vec<String>,
    pub(super) config: Option<Config>,
}

impl ControllerSet {
    pub(super) fn all(pods: &[InspectedPod]) -> Vec<Self> {
        let mut sets: BTreeMap<String, Self> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !pod.placed.pod.phase.is_terminal()) {
            let Some(details) = pod.details.as_deref().filter(|details| runs_in(details) == Runs::Controller)
            else {
                continue;
            };
            let namespace = &pod.placed.pod.namespace;
            let set = sets.entry(namespace.clone()).or_insert_with(|| Self {
                namespace: namespace.clone(),
                pods: Vec::new(),
                config_maps: details
                    .config_maps
                    .iter()
                    .map(|name| (namespace.clone(), name.clone()))
                    .collect(),
                arguments: details.containers.iter().flat_map(|one| one.arguments.iter().cloned()).collect(),
                config: None,
            });
            set.pods.push((pod.placed.pod.name.clone(), details.ready));
        }
        sets.into_values().collect()
    }

    pub(super) fn configure(&mut self, maps: &BTreeMap<ObjectName, BTreeMap<String, String>>) {
        self.config = config_of(&self.arguments, &self.config_maps, maps);
    }

    /// Returns its Lease, if it has one and that is known.
    pub(super) fn lease(&self) -> Option<ObjectName> {
        let lease = &self.config.as_ref()?.controller.lease;
        (!lease.is_empty()).then(|| (self.namespace.clone(), lease.clone()))
    }
}

/// A pod that may run the plugin.
#[derive(Debug)]
pub(super) struct SchedulerPod {
    pub(super) name: ObjectName,
    pub(super) started: Option<Timestamp>,
    pub(super) config_maps: Vec<ObjectName>,
    /// Whether its configuration may be a file of the node.
    pub(super) has_own_file: bool,
    /// The configurations that name the plugin, and the ConfigMap of each.
    pub(super) configs: Vec<(ObjectName, String)>,
}

impl SchedulerPod {
    pub(super) fn all(pods: &[InspectedPod]) -> Vec<Self> {
        let pods = pods.iter().filter(|pod| !pod.placed.pod.phase.is_terminal());
        let of = |pod: &InspectedPod| {
            let details = pod.details.as_deref().filter(|details| runs_in(details) == Runs::Scheduler)?;
            let namespace = &pod.placed.pod.namespace;
            Some(Self {
                name: pod.placed.pod.full_name(),
                started: details.started().and_then(|seconds| Timestamp::from_second(seconds).ok()),
                config_maps: details
                    .config_maps
                    .iter()
                    .map(|name| (namespace.clone(), name.clone()))
                    .collect(),
                has_own_file: details.has_host_path
                    && details
                        .containers
                        .iter()
                        .flat_map(|one| &one.arguments)
                        .any(|one| one.starts_with("--config")),
                configs: Vec::new(),
            })
        };
        pods.filter_map(of).collect()
    }

    pub(super) fn configure(&mut self, maps: &BTreeMap<ObjectName, BTreeMap<String, String>>) {
        let texts = self.config_maps.iter().filter_map(|name| Some((name, maps.get(name)?)));
        let texts =
            texts.flat_map(|(name, texts)| texts.values().map(move |text| (name.clone(), text.clone())));
        self.configs = texts.filter(|(_, text)| text.contains(scheduler_config::PLUGIN)).collect();
    }

    pub(super) fn place(&self) -> String {
        format!("Pod {}/{}", self.name.0, self.name.1)
    }

    pub(super) fn profiles(&self) -> impl Iterator<Item = Profile> {
        self.configs.iter().flat_map(|(_, text)| scheduler_config::profiles(text).unwrap_or_default())
    }

    pub(super) fn has_plugin(&self) -> bool {
        self.profiles().any(|profile| profile.has_plugin)
    }
}

/// Returns what a pod runs.
fn runs_in(details: &PodDetails) -> Runs {
    let words = details.containers.iter().flat_map(|one| std::iter::once(&one.image).chain(&one.arguments));
    runs(&words.map(|word| Cow::Borrowed(word.as_str())).collect::<Vec<_>>())
}

/// Returns the configuration of a container with these arguments; `None` if its file is not known or invalid.
fn config_of(
    arguments: &[String],
    names: &[ObjectName],
    maps: &BTreeMap<ObjectName, BTreeMap<String, String>>,
) -> Option<Config> {
    let mut layers = Layers::default();
    if let Some(path) = values_of(arguments, "--config").next() {
        let file = Path::new(path).file_name()?.to_str()?;
        let text = names.iter().find_map(|name| maps.get(name)?.get(file))?;
        layers = layers.text(text, Path::new(path));
    }
    for setting in values_of(arguments, "--set") {
        let (key, value) = setting.split_once('=')?;
        layers = layers.typed(key, value, Origin::Flag("--set".to_owned()));
    }
    Some(layers.finish().ok()?.config)
}

/// Returns the values of a flag, as `--flag value` or `--flag=value`.
fn values_of<'a>(arguments: &'a [String], flag: &'a str) -> impl Iterator<Item = &'a str> {
    let next = |index: usize| arguments.get(index + 1).map(String::as_str);
    arguments.iter().enumerate().filter_map(move |(index, argument)| match argument.strip_prefix(flag)? {
        "" => next(index),
        rest => rest.strip_prefix('='),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Runs {
        runs(&words.iter().map(|word| Cow::Borrowed(*word)).collect::<Vec<_>>())
    }

    #[test]
    fn pods_are_known_by_what_they_run() {
        assert_eq!(of(&["x/numacast:v1", "/numacast", "agent", "--config"]), Runs::Agent);
        assert_eq!(of(&["x/numacast@sha256:1", "controller"]), Runs::Controller);
        assert_eq!(of(&["x/numacast:v1", "/numacast", "doctor"]), Runs::Other);
        assert_eq!(of(&["registry:5000/kube-scheduler:v1", "--v=4"]), Runs::Scheduler);
        assert_eq!(of(&["x/y", "/bin/kube-scheduler"]), Runs::Scheduler);
        assert_eq!(of(&["scheduler.example/x:v1", "controller"]), Runs::Other);
    }

    #[test]
    fn the_configuration_is_that_of_file_and_flags() {
        let name = ("ns".to_owned(), "map".to_owned());
        let maps = [(name.clone(), [("c.yaml".to_owned(), "consumer: kai\n".to_owned())].into())].into();
        let arguments = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let read = |words: &[&str]| config_of(&arguments(words), std::slice::from_ref(&name), &maps);
        let config = read(&["agent", "--config", "/etc/x/c.yaml", "--set=controller.lease=x"]).unwrap();
        assert_eq!((config.consumer, config.controller.lease.as_str()), (crate::config::Consumer::Kai, "x"));
        assert_eq!(read(&["agent"]), Some(Config::default()));
        assert_eq!(read(&["agent", "--config=/etc/x/other.yaml"]), None, "the file is not known");
        assert_eq!(read(&["agent", "--set", "nonsense=1"]), None);
    }
}
