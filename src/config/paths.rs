//! Paths of the host's files and of the kubelet's sockets.

use std::path::{Path, PathBuf};

use super::{Config, Host, Kubelet};

/// All paths of a configuration, including defaults. None is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The host's root, on which the defaults of the others are based.
    pub root: PathBuf,
    /// The host's `/sys`.
    pub sys: PathBuf,
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// Where device plugins register.
    pub device_plugins: PathBuf,
    /// The podresources socket.
    pub socket: PathBuf,
    /// The socket of the kubelet's Pods API.
    pub pods_socket: PathBuf,
}

impl Config {
    /// Returns the paths, whether the configuration is resolved or not.
    #[must_use]
    pub fn paths(&self) -> Paths {
        let Host { root, sys, proc } = &self.host;
        let Kubelet { dir, device_plugins, socket, pods_socket, .. } = &self.kubelet;
        let root = if root.as_os_str().is_empty() { Path::new("/") } else { root };
        let kubelet = given(dir, || root.join("var/lib/kubelet"));
        Paths {
            root: root.to_owned(),
            sys: given(sys, || root.join("sys")),
            proc: given(proc, || root.join("proc")),
            device_plugins: given(device_plugins, || kubelet.join("device-plugins")),
            socket: given(socket, || kubelet.join("pod-resources/kubelet.sock")),
            pods_socket: given(pods_socket, || kubelet.join("pods-api/pods-api.sock")),
            kubelet_dir: kubelet,
        }
    }
}

/// Returns the path, or the default if it is unset or empty.
fn given(path: &Option<PathBuf>, otherwise: impl FnOnce() -> PathBuf) -> PathBuf {
    path.clone().filter(|path| !path.as_os_str().is_empty()).unwrap_or_else(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_set_follows_from_the_root_and_the_kubelets_directory() {
        let mut config = Config::default();
        assert!(config.proxy.socket().is_absolute() && config.pods_api.socket().is_absolute());
        let paths = config.paths();
        assert_eq!(paths.socket, Path::new("/var/lib/kubelet/pod-resources/kubelet.sock"));
        assert_eq!((paths.sys.as_path(), paths.proc.as_path()), (Path::new("/sys"), Path::new("/proc")));
        assert_eq!(config.clone().resolved().paths(), paths);
        config.host.root = "/host".into();
        config.kubelet.socket = Some("/run/kubelet.sock".into());
        let paths = config.paths();
        assert_eq!(paths.pods_socket, Path::new("/host/var/lib/kubelet/pods-api/pods-api.sock"));
        assert_eq!(paths.socket, Path::new("/run/kubelet.sock"));
        config.host = Host { root: "".into(), sys: Some("".into()), proc: None };
        config.kubelet.dir = Some("".into());
        assert_eq!(config.paths().sys, Path::new("/sys"));
        assert_eq!(config.paths().device_plugins, Path::new("/var/lib/kubelet/device-plugins"));
        assert_eq!(config.clone().resolved().kubelet.dir.as_deref(), Some(Path::new("/var/lib/kubelet")));
    }
}
