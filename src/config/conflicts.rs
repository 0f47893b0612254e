use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::{Config, Endpoint, PodSource, PublishTo};
use crate::nrt::Version;
use crate::proxy::annotations::Koordinator;
use crate::scheduler::{FingerprintMethod, FingerprintView};

/// A key to report, and the reason.
type Conflict = (&'static str, &'static str);

/// Maximum time before the fingerprint is withheld for a pod: after it, the pod is ignored.
const MAX_WITHHOLD_AFTER: Duration = Duration::from_secs(60);

impl Config {
    pub(super) fn conflicts(&self) -> Vec<Conflict> {
        let (proxy, annotations) = (&self.proxy, &self.proxy.annotations);
        let (merged, devices) = (annotations.are_merged(), annotations.has(Koordinator::Devices));
        let of_devices = annotations.has(Koordinator::SharedIds) || annotations.has(Koordinator::Allocatable);
        let has_names = !annotations.koordinator_resources.is_empty();
        let has_view = self.view() != FingerprintView::None;
        let is_old = self.publish.api_version == Version::V1alpha1;
        let has_bindings = self.pods.source.may_be_api_server();
        let method =
            "v1alpha1 has a place for the fingerprint of all pods only: set `fingerprint.method: all`";
        let view = "the scheduler's view of pods needs the API server: set `pods.source: apiServer`, or \
                    `fingerprint.view` to kubelet or none";
        let annotate = "pods are annotated for KAI-Scheduler as the API server reports them: set `pods.source: \
                        apiServer`, or `consumer: kaiDirect`";
        let only = "only Koordinator's devices have it: add `devices` to `proxy.annotations.koordinator`";
        let nothing = "nothing is merged, so no response lacks devices: set `proxy.annotations`";
        let no_zones =
            "nothing is merged that zones could count: set `proxy.enabled` and `proxy.annotations`";
        let plain = "health is plain HTTP and cannot share the address of metrics with TLS; choose another one, \
                     or none";
        let is_idle = self.publish.to == PublishTo::Nowhere && !proxy.enabled && !self.pods_api.enabled;
        let idle =
            "the agent would do nothing: set `proxy.enabled` or `podsApi.enabled`, or another `publish.to`";
        let uncounted = "there are no zones without an object: set another `publish.to`";
        let is_late = self.fingerprint.withhold_after.get() >= MAX_WITHHOLD_AFTER;
        let has_all = self.fingerprint.method == FingerprintMethod::All;
        let unnamed = self.controller.restart_scheduler && self.controller.scheduler.is_none();
        let chosen = |(is_so, key, why): (bool, _, _)| is_so.then_some((key, why));
        let mut conflicts: Vec<Conflict> = [
            (is_old && has_view && !has_all, "publish.apiVersion", method),
            (is_late, "fingerprint.withholdAfter", "it must be shorter than a minute"),
            (!has_bindings && self.view() == FingerprintView::Scheduler, "pods.source", view),
            (!has_bindings && self.annotates_pods(), "pods.source", annotate),
            (of_devices && !devices, "proxy.annotations.koordinator", only),
            (has_names && !devices, "proxy.annotations.koordinatorResources", only),
            (unnamed, "controller.restartScheduler", "no pods are named: set `controller.scheduler`"),
            (proxy.fail_closed && !merged, "proxy.failClosed", nothing),
            (proxy.zones && !(proxy.enabled && merged), "proxy.zones", no_zones),
            (proxy.zones && self.publish.to == PublishTo::Nowhere, "proxy.zones", uncounted),
            (is_idle, "publish.to", idle),
        ]
        .into_iter()
        .filter_map(chosen)
        .collect();
        if proxy.enabled {
            conflicts.extend(self.proxy_without_pods());
        }
        conflicts.extend(self.conflicts_of_directories());
        let shared = self.metrics.address != Endpoint::Nowhere && self.metrics.address == self.health.address;
        conflicts.extend((self.metrics.tls.is_some() && shared).then_some(("health.address", plain)));
        conflicts
    }

    /// Returns the conflict of a proxy that merges annotations without a pod source. `numacast proxy`
    /// serves the proxy without `proxy.enabled`, so it must check this itself.
    pub fn proxy_without_pods(&self) -> Option<(&'static str, &'static str)> {
        let none = "the proxy has no source of annotations: choose another one, or set \
                    `proxy.annotations.koordinator: []`";
        let is_none = self.proxy.annotations.are_merged() && self.pods.source == PodSource::None;
        is_none.then_some(("pods.source", none))
    }

    fn conflicts_of_directories(&self) -> Vec<Conflict> {
        let paths = self.paths();
        let info = self.pod_info_socket();
        let info = info.as_ref().and_then(|socket| socket.path.parent());
        let mut dirs = vec![("proxy.dir", &*paths.proxy_dir), ("podsApi.dir", &*paths.pods_api_dir)];
        dirs.extend(info.map(|dir| ("podsApi.podInfo", dir)));
        let mut conflicts = Vec::new();
        for (key, dir) in dirs {
            if !dir.is_absolute() || dir.components().any(|part| part == Component::ParentDir) {
                conflicts.push((key, "it must be an absolute path without `..`"));
            }
            if overlaps(dir, &self.kubelet_socket_dirs()) {
                conflicts.push((
                    key,
                    "that is a directory in which the kubelet creates sockets, or contains one, or is in one; ours needs a \
                     directory of its own",
                ));
            }
        }
        if self.proxy.enabled && self.pods_api.enabled && paths.proxy_dir == paths.pods_api_dir {
            conflicts.push(("podsApi.dir", "`proxy.dir` is the same; each needs a directory of its own"));
        }
        if info.is_some_and(|info| info == paths.proxy_dir || info == paths.pods_api_dir) {
            conflicts
                .push(("podsApi.podInfo", "another socket is in that directory; each needs one of its own"));
        }
        conflicts
    }

    /// Returns the directories in which the kubelet creates sockets; in some of them it removes all other
    /// files.
    fn kubelet_socket_dirs(&self) -> Vec<PathBuf> {
        let paths = self.paths();
        let parent = paths.socket.parent().map(Path::to_owned);
        let below = ["pod-resources", "pods-api"].map(|name| paths.kubelet_dir.join(name));
        below.into_iter().chain([paths.device_plugins]).chain(parent).collect()
    }
}

/// Returns true if `ours` is one of the directories, or one contains the other.
fn overlaps(ours: &Path, theirs: &[PathBuf]) -> bool {
    theirs.iter().any(|theirs| ours.starts_with(theirs) || theirs.starts_with(ours))
}

#[cfg(test)]
mod tests {
    use super::super::{Consumer, PodInfo, Proxy};
    use super::*;

    /// Returns the keys that are in conflict after a change of the defaults.
    fn keys(change: impl FnOnce(&mut Config)) -> Vec<&'static str> {
        let mut config = Config::default();
        change(&mut config);
        config.conflicts().into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn the_defaults_have_no_conflicts() {
        assert_eq!(keys(|_| {}), Vec::<&str>::new());
    }

    #[test]
    fn the_consumer_needs_its_source_of_pods() {
        assert_eq!(keys(|c| c.pods.source = PodSource::None), ["pods.source"]);
        assert_eq!(keys(|c| (c.consumer, c.pods.source) = (Consumer::Kai, PodSource::None)), ["pods.source"]);
        assert!(keys(|c| (c.consumer, c.pods.source) = (Consumer::KaiDirect, PodSource::None)).is_empty());
    }

    #[test]
    fn an_agent_that_publishes_nothing_serves_something() {
        assert_eq!(keys(|c| c.publish.to = PublishTo::Nowhere), ["publish.to"]);
        assert!(keys(|c| (c.publish.to, c.pods_api.enabled) = (PublishTo::Nowhere, true)).is_empty());
        let proxy = |c: &mut Config| (c.publish.to, c.proxy.enabled) = (PublishTo::Nowhere, true);
        assert!(keys(proxy).is_empty());
        assert_eq!(keys(|c| (proxy(c), c.proxy.zones = true).1), ["proxy.zones"]);
        let file = PublishTo::File("/run/topology.yaml".into());
        assert!(keys(|c| (c.publish.to, c.pods.source) = (file.clone(), PodSource::None)).is_empty());
    }

    #[test]
    fn the_socket_of_pod_info_has_a_directory_of_its_own() {
        let with = |dir: &str| {
            let info = PodInfo { dir: Some(dir.into()), group: None };
            keys(|c| c.pods_api.pod_info = Some(info.clone()))
        };
        assert!(with("/run/numacast/pod-info").is_empty());
        for dir in ["/run/numacast/pods-api", "/run/numacast/pod-resources", "relative", "/var/lib/kubelet"] {
            assert_eq!(with(dir), ["podsApi.podInfo"], "{dir}");
        }
    }

    #[test]
    fn v1alpha1_has_only_the_fingerprint_of_all_pods() {
        let old = |c: &mut Config| {
            c.publish.api_version = Version::V1alpha1;
            c.fingerprint.method = FingerprintMethod::WithExclusiveResources;
        };
        assert_eq!(keys(old), ["publish.apiVersion"]);
        let without = |c: &mut Config| {
            old(c);
            c.consumer = Consumer::None;
        };
        assert!(keys(without).is_empty());
    }

    #[test]
    fn the_fingerprint_is_withheld_within_a_minute() {
        let after = |text: &str| keys(|c| c.fingerprint.withhold_after = text.parse().unwrap());
        assert_eq!((after("59s"), after("1m")), (vec![], vec!["fingerprint.withholdAfter"]));
    }

    #[test]
    fn sockets_have_a_directory_of_their_own() {
        for (dir, is_valid) in [
            ("/var/lib/kubelet/pod-resources", false),
            ("/var/lib/kubelet/pods-api", false),
            ("/var/lib/kubelet/pods-api/a", false),
            ("/var/lib/kubelet/device-plugins", false),
            ("/var/lib/kubelet/x/../pod-resources", false),
            ("/var/lib", false),
            ("here", false),
            ("/run/elsewhere", true),
        ] {
            let expected = |key| if is_valid { vec![] } else { vec![key] };
            assert_eq!(keys(|c| c.proxy.dir = Some(dir.into())), expected("proxy.dir"), "{dir}");
            assert_eq!(keys(|c| c.pods_api.dir = Some(dir.into())), expected("podsApi.dir"), "{dir}");
        }
        assert_eq!(keys(|c| c.kubelet.socket = Some("/run/numacast/pod-resources/x".into())), ["proxy.dir"]);
        let same = |c: &mut Config| {
            (c.proxy.enabled, c.pods_api.enabled) = (true, true);
            c.pods_api.dir = Some("/run/numacast/pod-resources".into());
        };
        assert_eq!(keys(same), ["podsApi.dir"]);
    }

    #[test]
    fn settings_of_the_proxy_without_effect_are_errors() {
        assert_eq!(keys(|c| c.proxy.zones = true), ["proxy.zones"]);
        let alone = |c: &mut Config| {
            (c.proxy.enabled, c.pods.source, c.consumer) = (true, PodSource::None, Consumer::None);
        };
        assert_eq!(keys(alone), ["pods.source"]);
        let mut config = Config { consumer: Consumer::None, ..Config::default() };
        config.pods.source = PodSource::None;
        assert!(config.conflicts().is_empty(), "numacast proxy checks it itself");
        assert_eq!(config.proxy_without_pods().map(|(key, _)| key), Some("pods.source"));
        config.proxy.annotations.koordinator.clear();
        assert_eq!(config.proxy_without_pods(), None);

        // With Koordinator's devices they have an effect, with its CPUs alone they have none.
        let of_devices = |change: fn(&mut Proxy)| {
            assert!(keys(|c| change(&mut c.proxy)).is_empty(), "with Koordinator's devices");
            keys(|c| {
                c.proxy.annotations.koordinator = [Koordinator::Cpus].into();
                change(&mut c.proxy);
            })
        };
        for what in [Koordinator::SharedIds, Koordinator::Allocatable] {
            let with_cpus = keys(|c| c.proxy.annotations.koordinator = [Koordinator::Cpus, what].into());
            assert_eq!(with_cpus, ["proxy.annotations.koordinator"]);
        }
        let named = |p: &mut Proxy| {
            p.annotations.koordinator_resources = [("gpu".into(), "a.b/c".into())].into();
        };
        assert_eq!(of_devices(named), ["proxy.annotations.koordinatorResources"]);
        assert!(of_devices(|p| p.fail_closed = true).is_empty(), "CPUs are merged");
        let nothing = |c: &mut Config| {
            c.proxy.fail_closed = true;
            c.proxy.annotations.koordinator.clear();
        };
        assert_eq!(keys(nothing), ["proxy.failClosed"]);
        assert_eq!(keys(|c| c.controller.restart_scheduler = true), ["controller.restartScheduler"]);
    }
}
