use std::time::Duration;

use super::{Config, Consumer, DraSource, Kubelet, Nudge, Paths, PodSource, PodsApiSource, PublishTo};
use crate::agent::{self, ConfigSources};
use crate::cluster::{Cluster, ClusterError};
use crate::controller::{self, NoNamespace, NudgePlan};
use crate::kai::OBSERVED_PLACEMENT;
use crate::kubelet::{ConfigFiles, Mounts};
use crate::machine::HostRoots;
use crate::nrt::Form;
use crate::pod::Wanted;
use crate::pod_source::{KubeletPort, PodSourceKind, PodSources};
use crate::proxy::annotations::{Koordinator, Rules};
use crate::scheduler::{FingerprintView, GateSettings};
use crate::topology::{NodeExclusions, ZoneRules};
use crate::{pods_api, proxy};

/// The deadline of one call to the API server.
pub const API_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last object may stay after a kubelet restart, until the known pods are back.
const RESTART_WAIT: Duration = Duration::from_secs(30);
/// Maximum deadline of a proxy's call to the kubelet: clients wait for 5 or 10 s.
const MAX_PROXY_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a proxy's response waits for a pod that the kubelet lists and the pod source does not.
const PROXY_WAIT: Duration = Duration::from_millis(500);
/// How long a proxy uses its last known annotations while the pod source fails.
const LAST_KNOWN: Duration = Duration::from_secs(600);
/// Minimum interval between passes over all objects.
const MIN_PASS: Duration = Duration::from_secs(1);
/// Maximum interval of the fleet's sums, and maximum time for which a Node must have been gone.
const MAX_GRACE: Duration = Duration::from_secs(60);

impl Config {
    /// Returns a client for the API server.
    pub async fn cluster(&self) -> Result<Cluster, ClusterError> {
        Cluster::new(self.kubeconfig.as_deref(), API_TIMEOUT).await
    }

    /// Returns the agent's settings.
    pub fn agent_settings(&self) -> agent::Settings {
        let Self { scan, publish, fingerprint, kubelet, .. } = self.clone();
        let Paths { sys, proc, kubelet_dir, device_plugins, socket, .. } = self.paths();
        agent::Settings {
            node: self.node_name.clone(),
            host: HostRoots { sys, proc },
            kubelet_dir,
            device_plugins,
            socket,
            kubelet_config: self.config_sources(),
            kubelet_timeout: kubelet.timeout.get(),
            needs_policies: self.consumer() != Consumer::None,
            poll: scan.poll.get(),
            restart_wait: RESTART_WAIT,
            file: match publish.to {
                PublishTo::File(path) => Some(path),
                PublishTo::ApiServer | PublishTo::Nowhere => None,
            },
            refresh: publish.refresh.get(),
            owner_reference: publish.owner_reference,
            conflicts: publish.conflicts,
            form: self.form(),
            events: publish.events,
            pods: self.pod_sources(),
            gate: GateSettings {
                view: self.view(),
                method: fingerprint.method,
                informer: fingerprint.informer_mode,
                release: fingerprint.plugin_release,
                withhold_after: fingerprint.withhold_after.get(),
                reserve: self.reserves(),
                placement: self.has_placement(),
                ..GateSettings::default()
            },
            annotate_pods: self.annotates_pods(),
            status_file: fingerprint.status_file,
            notify_file: scan.notify_file,
            cdi: self.paths().root.join("var/run/cdi"),
            reads_claims: self.dra.source == DraSource::Auto,
            rules: ZoneRules { fillers: self.has_fillers(), exclude: self.exclusions() },
        }
    }

    /// Returns what `exclude` means for the node `nodeName`.
    pub fn exclusions(&self) -> NodeExclusions {
        NodeExclusions {
            resources: self.exclude.resources_of(&self.node_name).cloned().collect(),
            pods: self.exclude.pods.clone(),
            outside_namespace: self.exclude.outside_namespace.clone(),
        }
    }

    /// Returns the form in which objects are written and read.
    pub fn form(&self) -> Form {
        Form { version: self.publish.api_version, policies: self.publish.topology_policies }
    }

    fn config_sources(&self) -> ConfigSources {
        let Kubelet { config_source, config_file, config_dir, config_overrides, .. } = self.kubelet.clone();
        let Paths { root: host_root, proc, kubelet_dir, .. } = self.paths();
        let (node, mounts) = (self.node_name.clone(), Mounts::read());
        let files =
            ConfigFiles { file: config_file, dir: config_dir, kubelet_dir, host_root, proc, node, mounts };
        ConfigSources { source: config_source, files, port: self.kubelet_port(), overrides: config_overrides }
    }

    fn kubelet_port(&self) -> KubeletPort {
        let Kubelet { address, ca_file, server_name, certificate_fingerprints, timeout, .. } =
            self.kubelet.clone();
        KubeletPort {
            node: self.node_name.clone(),
            address,
            ca_file,
            server_name,
            fingerprints: certificate_fingerprints,
            timeout: timeout.get(),
        }
    }

    /// Returns the sources of the node's pods, without annotations other than those that the agent writes.
    pub fn pod_sources(&self) -> PodSources {
        PodSources {
            order: self.source_order(),
            socket: self.paths().pods_socket,
            timeout: self.kubelet.timeout.get(),
            interval: self.scan.poll.get(),
            port: self.kubelet_port(),
            wanted: if self.annotates_pods() { Wanted::of([OBSERVED_PLACEMENT]) } else { Wanted::default() },
            informer: None,
            refresh: None,
        }
    }

    fn source_order(&self) -> Vec<PodSourceKind> {
        use PodSourceKind::{ApiServer, Kubelet, PodsApi};
        let needs_api_server =
            self.reserves() || self.annotates_pods() || self.view() == FingerprintView::Scheduler;
        match self.pods.source {
            PodSource::Auto if needs_api_server => vec![ApiServer],
            PodSource::Auto => vec![ApiServer, PodsApi, Kubelet],
            PodSource::ApiServer => vec![ApiServer],
            PodSource::PodsApi => vec![PodsApi],
            PodSource::Kubelet => vec![Kubelet],
            PodSource::None => Vec::new(),
        }
    }

    /// Returns the proxy's settings.
    pub fn proxy_settings(&self) -> proxy::Settings {
        let paths = self.paths();
        let annotations = &self.proxy.annotations;
        proxy::Settings {
            node: self.node_name.clone(),
            socket: self.proxy_socket(),
            kubelet: paths.socket,
            timeout: self.kubelet.timeout.get().min(MAX_PROXY_TIMEOUT),
            wait: PROXY_WAIT,
            last_known: LAST_KNOWN,
            fail_closed: self.proxy.fail_closed,
            allocatable: annotations.has(Koordinator::Allocatable),
            zones: self.proxy.zones,
            reads_devices: annotations.has(Koordinator::Devices),
            looks_up_pods: self.source_order().contains(&PodSourceKind::ApiServer),
            rules: annotations.are_merged().then(|| Rules::new(annotations, self.proxy.zones)),
            sys: paths.sys,
        }
    }

    /// Returns the settings of the Pods API server.
    pub fn pods_api_settings(&self) -> pods_api::Settings {
        use PodSourceKind::{ApiServer, Kubelet, PodsApi};
        let order = match self.pods_api.source {
            // The kubelet's own Pods API is the fastest, and has static pods instead of their mirrors.
            PodsApiSource::Auto => vec![PodsApi, ApiServer, Kubelet],
            PodsApiSource::PodsApi => vec![PodsApi],
            PodsApiSource::ApiServer => vec![ApiServer],
            PodsApiSource::Kubelet => vec![Kubelet],
        };
        pods_api::Settings { socket: self.pods_api_socket(), info_socket: self.pod_info_socket(), order }
    }

    /// Returns the controller's settings; `pod` is the name of its own pod, if any.
    ///
    /// # Errors
    /// If a DaemonSet or the Lease is set, but not the namespace.
    pub fn controller_settings(&self, pod: Option<&str>) -> Result<controller::Settings, NoNamespace> {
        let controller = &self.controller;
        let lease = Some(controller.lease.clone()).filter(|name| !name.is_empty());
        if controller.namespace.is_empty() && !(controller.daemon_sets.is_empty() && lease.is_none()) {
            return Err(NoNamespace);
        }
        let interval = controller.garbage.interval.get();
        // Tests have shorter intervals than clusters.
        let grace = interval.clamp(MIN_PASS, MAX_GRACE);
        Ok(controller::Settings {
            // A restarted pod gets a new identity: its predecessor may still be running.
            identity: format!("{}_{:016x}", pod.unwrap_or("numacast"), fastrand::u64(..)),
            namespace: controller.namespace.clone(),
            daemon_sets: controller.daemon_sets.clone(),
            lease,
            dry_run: controller.dry_run,
            garbage: controller::Rules {
                interval: interval.max(MIN_PASS),
                grace,
                max_percent: controller.garbage.max_percent,
            },
            not_ready_after: grace * 5,
            fleet_interval: grace,
            nudge: match controller.nudge {
                _ if controller.dry_run => None,
                Nudge::Auto => Some(NudgePlan::default()),
                Nudge::Every(period) => Some(NudgePlan::of_period(period.get())),
                Nudge::Off => None,
            },
            scheduler: controller.scheduler.clone(),
            restart_scheduler: controller.restart_scheduler,
            shapes: controller.shapes.clone(),
            form: Form { policies: false, ..self.form() },
            events: self.publish.events,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_controller(change: impl FnOnce(&mut Config)) -> controller::Settings {
        let mut config = Config::default();
        config.controller.namespace = "numacast".to_owned();
        change(&mut config);
        config.controller_settings(None).unwrap()
    }

    #[test]
    fn nudges_follow_the_configuration_and_a_dry_run_has_none() {
        let plan = |nudge: &str, dry_run: bool| {
            of_controller(|config| {
                (config.controller.nudge, config.controller.dry_run) = (nudge.parse().unwrap(), dry_run);
            })
            .nudge
        };
        assert_eq!(plan("auto", false), Some(NudgePlan::default()));
        assert_eq!(plan("5s", false), Some(NudgePlan::of_period(Duration::from_secs(5))));
        assert_eq!(plan("off", false), None);
        assert_eq!(plan("auto", true), None);
    }

    #[test]
    fn the_times_of_the_controller_follow_from_its_interval() {
        for (interval, expected) in [
            ("10m", [600, 60, 60, 300]),
            ("1h", [3600, 60, 60, 300]),
            ("1m", [60, 60, 60, 300]),
            ("20s", [20, 20, 20, 100]),
            ("1ms", [1, 1, 1, 5]),
        ] {
            let settings =
                of_controller(|config| config.controller.garbage.interval = interval.parse().unwrap());
            let times = [
                settings.garbage.interval,
                settings.garbage.grace,
                settings.fleet_interval,
                settings.not_ready_after,
            ];
            assert_eq!(times, expected.map(Duration::from_secs), "{interval}");
        }
    }

    #[test]
    fn the_controller_needs_a_namespace_for_its_daemon_sets_and_its_lease() {
        let mut config = Config::default();
        assert!(config.controller_settings(None).is_err());
        (config.controller.daemon_sets, config.controller.lease) = (Vec::new(), String::new());
        assert!(config.controller_settings(None).is_ok());
    }

    #[test]
    fn the_api_server_is_the_source_of_pods_if_the_object_needs_it() {
        use PodSourceKind::{ApiServer, Kubelet, PodsApi};
        let order = |consumer, source| {
            let mut config = Config { consumer, ..Config::default() };
            config.pods.source = source;
            config.pod_sources().order
        };
        assert_eq!(order(Consumer::SchedulerPlugins, PodSource::Auto), [ApiServer]);
        assert_eq!(order(Consumer::Kai, PodSource::Auto), [ApiServer]);
        assert_eq!(order(Consumer::None, PodSource::Auto), [ApiServer, PodsApi, Kubelet]);
        assert!(order(Consumer::None, PodSource::None).is_empty());
    }

    #[test]
    fn a_proxy_gives_up_before_its_clients() {
        let timeout = |timeout: &str| {
            let mut config = Config::default();
            config.kubelet.timeout = timeout.parse().unwrap();
            config.proxy_settings().timeout
        };
        assert_eq!(timeout("10s"), Duration::from_secs(4));
        assert_eq!(timeout("1s"), Duration::from_secs(1));
    }
}
