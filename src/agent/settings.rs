//! The agent's part of the configuration, with resolved paths.

use std::path::PathBuf;
use std::time::Duration;

use super::kubelet_config::ConfigSources;
use crate::config::{self, Config, Paths, RivalsMode};
use crate::kubelet::{ByHand, ConfigFiles, Mounts};
use crate::machine::HostRoots;
use crate::nrt::{Form, Version};
use crate::pod_source::{KubeletPort, PodTellers};
use crate::scheduler::{Informer, PluginRelease, Terms, View};
use crate::topology::{Exclude, Method, Rules};

/// The agent's settings, with resolved paths.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the cluster.
    pub node: String,
    /// The roots of `/sys` and `/proc`.
    pub host: HostRoots,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// Where device plugins register.
    pub device_plugins: PathBuf,
    /// The podresources socket.
    pub socket: PathBuf,
    /// The sources of the kubelet's configuration.
    pub kubelet_config: ConfigSources,
    /// The deadline of one call to the kubelet.
    pub kubelet_timeout: Duration,
    /// The interval between scans when nothing happens.
    pub poll: Duration,
    /// How long the last good object may stay after a kubelet restart.
    pub settle: Duration,
    /// How often the object is applied again if nothing changed.
    pub refresh: Duration,
    /// Whether to make the Node the object's owner.
    pub owner_reference: bool,
    /// Whether to watch the object, to repair it at once.
    pub watch_object: bool,
    /// What to do about a publisher that keeps rewriting the object.
    pub rivals: RivalsMode,
    /// The form in which the object is written.
    pub form: Form,
    /// Whether to post Kubernetes Events about the Node.
    pub events: bool,
    /// The sources of the node's pods; there may be none.
    pub pods: PodTellers,
    /// Which fingerprint to publish, and whether to reserve resources for bound pods.
    pub terms: Terms,
    /// The status file, which lists the pods of the fingerprint for people.
    pub status_file: Option<PathBuf>,
    /// Whether to publish on which NUMA node each container is.
    pub placement: bool,
    /// A file that is touched to request a scan.
    pub notify_file: Option<PathBuf>,
    /// How to compute the topology.
    pub rules: Rules,
}

impl Settings {
    /// Returns the agent's settings from a configuration.
    #[must_use]
    pub fn from_config(config: &Config) -> Self {
        let config = config.clone().resolved();
        let port = KubeletPort::from_config(&config);
        let kubelet_config = config_sources(&config, port.clone());
        let pods = PodTellers::from_config(&config, port);
        let Paths { sys, proc, kubelet_dir, device_plugins, socket, .. } = config.paths();
        let rules =
            Rules { fillers: config.zones.fillers, exclude: exclude(&config.exclude, &config.node_name) };
        Self {
            node: config.node_name,
            host: HostRoots { sys, proc },
            kubelet_dir,
            device_plugins,
            socket,
            kubelet_config,
            kubelet_timeout: config.kubelet.timeout.get(),
            poll: config.scan.poll.get(),
            settle: config.scan.settle.get(),
            refresh: config.publish.refresh.get(),
            owner_reference: config.publish.owner_reference,
            watch_object: config.publish.watch,
            rivals: config.publish.rivals,
            form: form(&config.publish),
            events: config.publish.events,
            pods,
            terms: terms(&config.fingerprint, config.publish.reserve.unwrap_or_default()),
            status_file: config.fingerprint.status_file,
            placement: config.publish.placement.unwrap_or_default(),
            notify_file: config.scan.notify_file,
            rules,
        }
    }
}

fn form(publish: &config::Publish) -> Form {
    let version = match publish.api_version {
        config::ApiVersion::V1alpha1 => Version::V1alpha1,
        config::ApiVersion::V1alpha2 => Version::V1alpha2,
    };
    Form { version, policies: publish.topology_policies }
}

fn config_sources(config: &Config, port: KubeletPort) -> ConfigSources {
    let kubelet = &config.kubelet.config;
    let Paths { root, proc, kubelet_dir, .. } = config.paths();
    let files = ConfigFiles {
        file: kubelet.file.clone(),
        dir: kubelet.dir.clone(),
        kubelet_dir,
        host_root: root,
        proc,
        node: config.node_name.clone(),
        mounts: Mounts::now(),
    };
    let by_hand = ByHand {
        cpu_manager_policy: kubelet.cpu_manager_policy.map(|policy| policy.to_string()),
        memory_manager_policy: kubelet.memory_manager_policy.map(|policy| policy.to_string()),
        topology_manager_policy: kubelet.topology_manager_policy.map(|policy| policy.to_string()),
        topology_manager_scope: kubelet.topology_manager_scope.map(|scope| scope.to_string()),
        topology_manager_policy_options: kubelet.topology_manager_policy_options.clone(),
    };
    ConfigSources { source: kubelet.source, files, port, by_hand }
}

fn terms(fingerprint: &config::Fingerprint, reserve: bool) -> Terms {
    let config::Fingerprint { view, method, informer, plugin, hold_after, hold_limit, status_file: _ } =
        fingerprint;
    Terms {
        view: match view.unwrap_or_default() {
            config::FingerprintView::Scheduler => View::Scheduler,
            config::FingerprintView::Kubelet => View::Kubelet,
            config::FingerprintView::None => View::None,
        },
        method: match method {
            config::FingerprintMethod::All => Method::All,
            config::FingerprintMethod::WithExclusiveResources => Method::WithExclusiveResources,
        },
        informer: match informer {
            config::Informer::Dedicated => Informer::Dedicated,
            config::Informer::Shared => Informer::Shared,
        },
        release: match plugin {
            config::PluginRelease::V0_34 => PluginRelease::V0_34,
            config::PluginRelease::V0_35 => PluginRelease::V0_35,
        },
        patience: hold_after.get(),
        hold_limit: hold_limit.get(),
        reserve,
    }
}

/// Returns the exclusions for `node`: its own list and the one for every node, united.
fn exclude(config: &config::Exclude, node: &str) -> Exclude {
    Exclude {
        resources: config.resources_of(node).cloned().collect(),
        pods: config.pods.clone(),
        outside_namespace: config.outside_namespace.clone(),
    }
}
