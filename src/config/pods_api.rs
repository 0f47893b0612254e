//! Configuration of the Pods API server.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Config, ServedSocket, SocketMode};

/// The Pods API that we serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodsApi {
    /// The agent serves it.
    pub enabled: bool,
    /// The directory of its socket; `<host.root>/run/numacast/pods-api` when not set.
    pub dir: Option<PathBuf>,
    /// Who may connect, as file permissions.
    pub mode: SocketMode,
    /// The group that the socket belongs to; that of the process when not set.
    pub group: Option<u32>,
    /// Who tells of the pods.
    pub source: PodsApiSource,
}

/// Who tells of the pods that are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PodsApiSource {
    /// The first that tells: the kubelet's own Pods API, the API server; where neither does the kubelet's `/pods`.
    #[default]
    Auto,
    /// The kubelet's own Pods API.
    PodsApi,
    /// The API server.
    ApiServer,
    /// The kubelet's `/pods`.
    Kubelet,
}

impl Default for PodsApi {
    fn default() -> Self {
        Self {
            enabled: false,
            dir: None,
            mode: SocketMode::ROOT,
            group: None,
            source: PodsApiSource::default(),
        }
    }
}

impl PodsApi {
    /// The socket's file name, the same as the kubelet's.
    pub const SOCKET: &str = "pods-api.sock";

    /// Returns the socket's path in a resolved configuration.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.as_deref().unwrap_or(Path::new("/run/numacast/pods-api")).join(Self::SOCKET)
    }

    /// Returns the socket of a resolved configuration.
    #[must_use]
    pub fn served(&self) -> ServedSocket {
        let keys = ["podsApi.dir", "podsApi.mode"];
        ServedSocket { path: self.socket(), mode: self.mode, group: self.group, keys }
    }

    pub(super) fn resolve(&mut self, root: &Path) {
        self.dir.get_or_insert_with(|| root.join("run/numacast/pods-api"));
    }

    /// Returns the conflicts: the key to report, and the reason.
    pub(super) fn conflicts(&self, config: &Config) -> Vec<(&'static str, &'static str)> {
        let resolved = config.clone().resolved();
        let (ours, proxys) = (resolved.pods_api.served(), resolved.proxy.socket());
        let mut conflicts = ours.conflicts(&resolved.kubelet);
        if resolved.proxy.enabled && self.enabled && ours.path.parent() == proxys.parent() {
            conflicts.push(("podsApi.dir", "`proxy.dir` is the same; each needs a directory of its own"));
        }
        conflicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_together_is_named() {
        let keys = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.pods_api.conflicts(&config).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert!(keys(|_| {}).is_empty());
        assert_eq!(keys(|c| c.pods_api.dir = Some("/var/lib/kubelet/pods-api".into())), ["podsApi.dir"]);
        assert_eq!(keys(|c| c.pods_api.dir = Some("/var/lib/kubelet/pods-api/a".into())), ["podsApi.dir"]);
        assert_eq!(keys(|c| c.pods_api.dir = Some("here".into())), ["podsApi.dir"]);
        assert_eq!(keys(|c| c.pods_api.dir = Some("/var/lib/kubelet/pod-resources".into())), ["podsApi.dir"]);
        assert_eq!(keys(|c| c.pods_api.dir = Some("/var/lib".into())), ["podsApi.dir"]);
        assert_eq!(keys(|c| c.pods_api.dir = Some("/var/lib/kubelet/x/../pods-api".into())), ["podsApi.dir"]);
        assert_eq!(keys(|c| c.pods_api.group = Some(7)), ["podsApi.mode"]);
        let one_place = |c: &mut Config| {
            (c.proxy.enabled, c.pods_api.enabled) = (true, true);
            c.pods_api.dir = Some("/run/numacast/pod-resources".into());
        };
        assert_eq!(keys(one_place), ["podsApi.dir"]);
        let ourselves = |c: &mut Config| {
            c.kubelet.pods_socket = Some("/run/numacast/pods-api/pods-api.sock".into());
        };
        assert_eq!(keys(ourselves), ["podsApi.dir"]);
    }
}
