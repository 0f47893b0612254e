//! What follows from a configuration: paths that are not set, and what the consumer needs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Config, Consumer, Host, Kubelet, PodInfo, PublishTo};
use crate::grpc::Socket;
use crate::scheduler::FingerprintView;

/// The file name of the podresources socket, the same as the kubelet's.
const PROXY_SOCKET: &str = "kubelet.sock";
/// The file name of the Pods API socket, the same as the kubelet's.
const PODS_API_SOCKET: &str = "pods-api.sock";
/// The file name of PodInfo's own socket.
const POD_INFO_SOCKET: &str = "pod-info.sock";

/// The paths of a configuration, none of them empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The host's root.
    pub root: PathBuf,
    /// The host's `/sys`.
    pub sys: PathBuf,
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// The directory where device plugins register.
    pub device_plugins: PathBuf,
    /// The podresources socket.
    pub socket: PathBuf,
    /// The socket of the kubelet's Pods API.
    pub pods_socket: PathBuf,
    /// The directory of the proxy's socket.
    pub proxy_dir: PathBuf,
    /// The directory of the Pods API socket that we serve.
    pub pods_api_dir: PathBuf,
}

impl Config {
    /// Returns the paths.
    pub fn paths(&self) -> Paths {
        let Host { root, sys, proc } = &self.host;
        let Kubelet { dir, device_plugins_dir, socket, .. } = &self.kubelet;
        let root = if root.as_os_str().is_empty() { Path::new("/") } else { root };
        let kubelet = path_or(dir, || root.join("var/lib/kubelet"));
        Paths {
            root: root.to_owned(),
            sys: path_or(sys, || root.join("sys")),
            proc: path_or(proc, || root.join("proc")),
            device_plugins: path_or(device_plugins_dir, || kubelet.join("device-plugins")),
            socket: path_or(socket, || kubelet.join("pod-resources/kubelet.sock")),
            pods_socket: kubelet.join("pods-api/pods-api.sock"),
            kubelet_dir: kubelet,
            proxy_dir: path_or(&self.proxy.dir, || root.join("run/numacast/pod-resources")),
            pods_api_dir: path_or(&self.pods_api.dir, || root.join("run/numacast/pods-api")),
        }
    }

    /// Returns who reads the objects, if there are any.
    pub fn consumer(&self) -> Consumer {
        match self.publish.to {
            PublishTo::ApiServer => self.consumer,
            PublishTo::Nowhere | PublishTo::File(_) => Consumer::None,
        }
    }

    /// Returns which pods the fingerprint covers.
    pub fn view(&self) -> FingerprintView {
        self.fingerprint.view.unwrap_or(match self.consumer() {
            Consumer::SchedulerPlugins => FingerprintView::Scheduler,
            _ => FingerprintView::None,
        })
    }

    /// Returns whether to reserve resources for bound pods. Only the API server reports bindings.
    pub fn reserves(&self) -> bool {
        let reads_directly =
            matches!(self.consumer(), Consumer::SchedulerPluginsDirect | Consumer::KaiDirect);
        reads_directly && self.pods.source.may_be_api_server()
    }

    /// Returns whether pods are annotated with what they have of each zone.
    pub fn annotates_pods(&self) -> bool {
        self.consumer() == Consumer::Kai
    }

    /// Returns whether missing NUMA ids become empty zones. The scheduler plugin takes a zone's position as its id, and
    /// panics or uses the wrong zone without them; KAI-Scheduler goes by the names, and counts empty zones as zones.
    pub fn has_fillers(&self) -> bool {
        !matches!(self.consumer(), Consumer::Kai | Consumer::KaiDirect)
    }

    /// Returns whether the object has the NUMA node of each container, for the plugin's preemption.
    pub fn has_placement(&self) -> bool {
        self.consumer() == Consumer::SchedulerPlugins
    }

    /// Returns the proxy's socket.
    pub fn proxy_socket(&self) -> Socket {
        socket(&self.paths().proxy_dir, PROXY_SOCKET, self.proxy.group)
    }

    /// Returns the socket of the Pods API that we serve.
    pub fn pods_api_socket(&self) -> Socket {
        socket(&self.paths().pods_api_dir, PODS_API_SOCKET, self.pods_api.group)
    }

    /// Returns the socket of PodInfo alone, if it is served.
    pub fn pod_info_socket(&self) -> Option<Socket> {
        let PodInfo { dir, group } = self.pods_api.pod_info.as_ref()?;
        let dir = path_or(dir, || self.paths().root.join("run/numacast/pod-info"));
        Some(socket(&dir, POD_INFO_SOCKET, *group))
    }

    /// Returns the keys with values that follow from others if they are not set.
    pub(super) fn derived(&self) -> [(&'static str, Value); 8] {
        let paths = self.paths();
        let path = |path: &Path| Value::from(path.to_string_lossy());
        [
            ("host.sys", path(&paths.sys)),
            ("host.proc", path(&paths.proc)),
            ("kubelet.dir", path(&paths.kubelet_dir)),
            ("kubelet.devicePluginsDir", path(&paths.device_plugins)),
            ("kubelet.socket", path(&paths.socket)),
            ("proxy.dir", path(&paths.proxy_dir)),
            ("podsApi.dir", path(&paths.pods_api_dir)),
            ("fingerprint.view", serde_json::to_value(self.view()).unwrap_or_default()),
        ]
    }
}

/// Returns the path, or another if it is not set or empty.
fn path_or(path: &Option<PathBuf>, otherwise: impl FnOnce() -> PathBuf) -> PathBuf {
    path.clone().filter(|path| !path.as_os_str().is_empty()).unwrap_or_else(otherwise)
}

/// Returns a socket for root, as the kubelet's, or for a group as well. Connecting requires write permission.
fn socket(dir: &Path, name: &str, group: Option<u32>) -> Socket {
    Socket { path: dir.join(name), mode: if group.is_some() { 0o660 } else { 0o755 }, group }
}

#[cfg(test)]
mod tests {
    use super::super::PodSource;
    use super::*;

    #[test]
    fn unset_paths_are_below_the_host_root_and_the_kubelet_directory() {
        let mut config = Config::default();
        let paths = config.paths();
        assert_eq!(paths.socket, Path::new("/var/lib/kubelet/pod-resources/kubelet.sock"));
        assert_eq!((paths.sys.as_path(), paths.proc.as_path()), (Path::new("/sys"), Path::new("/proc")));
        config.host.root = "/host".into();
        config.host.proc = Some("/elsewhere".into());
        config.kubelet.socket = Some("/run/kubelet.sock".into());
        let paths = config.paths();
        assert_eq!(paths.pods_socket, Path::new("/host/var/lib/kubelet/pods-api/pods-api.sock"));
        assert_eq!(paths.socket, Path::new("/run/kubelet.sock"));
        assert_eq!(paths.sys, Path::new("/host/sys"));
        assert_eq!(paths.proc, Path::new("/elsewhere"));
        assert_eq!(config.proxy_socket().path, Path::new("/host/run/numacast/pod-resources/kubelet.sock"));
        config.host = Host { root: "".into(), sys: Some("".into()), proc: None };
        config.kubelet.dir = Some("".into());
        assert_eq!(config.paths().sys, Path::new("/sys"));
        assert_eq!(config.paths().device_plugins, Path::new("/var/lib/kubelet/device-plugins"));
    }

    #[test]
    fn a_group_may_connect_if_there_is_one() {
        let mut config = Config::default();
        let socket = config.pods_api_socket();
        assert_eq!((socket.mode, socket.group), (0o755, None));
        config.pods_api.group = Some(2000);
        let socket = config.pods_api_socket();
        assert_eq!((socket.mode, socket.group), (0o660, Some(2000)));
    }

    fn resolved(change: impl FnOnce(&mut Config)) -> (FingerprintView, bool) {
        let mut config = Config::default();
        change(&mut config);
        (config.view(), config.reserves())
    }

    #[test]
    fn view_and_reservations_follow_from_the_consumer() {
        let of = |consumer| resolved(|config| config.consumer = consumer);
        assert_eq!(of(Consumer::SchedulerPlugins), (FingerprintView::Scheduler, false));
        assert_eq!(of(Consumer::SchedulerPluginsDirect), (FingerprintView::None, true));
        assert_eq!(of(Consumer::Kai), (FingerprintView::None, false));
        assert_eq!(of(Consumer::KaiDirect), (FingerprintView::None, true));
        assert_eq!(of(Consumer::None), (FingerprintView::None, false));
    }

    #[test]
    fn what_is_not_published_to_the_api_server_has_no_consumer() {
        for to in ["none", "/run/numacast/topology.yaml"] {
            let to: PublishTo = to.parse().unwrap();
            let of =
                |consumer| resolved(|config| (config.consumer, config.publish.to) = (consumer, to.clone()));
            assert_eq!(of(Consumer::SchedulerPlugins), (FingerprintView::None, false), "{to}");
            assert_eq!(of(Consumer::SchedulerPluginsDirect), (FingerprintView::None, false), "{to}");
        }
        for text in ["", "off", "topology.yaml", "/run/"] {
            assert!(text.parse::<PublishTo>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }

    #[test]
    fn a_key_that_is_set_wins() {
        let without_bindings = resolved(|config| {
            config.consumer = Consumer::KaiDirect;
            config.fingerprint.view = Some(FingerprintView::Kubelet);
            config.pods.source = PodSource::PodsApi;
        });
        assert_eq!(without_bindings, (FingerprintView::Kubelet, false));
    }
}
