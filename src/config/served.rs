//! Keys of the sockets that are served: the podresources proxy and the Pods API.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::proxy::annotations::Annotations;

/// The podresources proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Proxy {
    /// Serve the kubelet's podresources API, with devices from pod annotations.
    ///
    /// It concerns the agent only: `numacast proxy` always serves it.
    ///
    /// The agent is ready only if the proxy is: the socket is served, the kubelet responds, and pods were
    /// listed once. It requires `list` and `watch` of `pods`, `get` of `devices.scheduling.koordinator.sh`
    /// (with `proxy.annotations.koordinator`), write access to `proxy.dir`, and more memory if responses are
    /// large.
    ///
    /// The socket file stays when the proxy is disabled, so that clients get "connection refused" and not "no
    /// such file". Move clients back to the kubelet's socket first.
    pub enabled: bool,
    /// The directory of its socket, `kubelet.sock`. Default: `<host.root>/run/numacast/pod-resources`
    ///
    /// Clients mount the directory where they expect the kubelet's, never the socket file, which is replaced
    /// at each restart. It must be on the host, and not a directory of the kubelet. If it changes, the old
    /// socket stays without a server.
    pub dir: Option<PathBuf>,
    /// The group (its number) whose members may connect, besides root.
    ///
    /// The socket's mode is 0660 with it, and 0755 without, as the kubelet's.
    ///
    /// Whoever connects sees the pods, devices and CPUs of the node, and uses a part of the kubelet's rate
    /// limit. The process must be in the group itself unless it has CAP_CHOWN; the chart adds it to the pod's
    /// `supplementalGroups`. Clients need the same number in theirs.
    pub group: Option<u32>,
    /// Reject requests (`Unavailable`) if devices may be missing in the response.
    ///
    /// Otherwise the kubelet's response is returned unchanged.
    ///
    /// For nodes where a pod without its device is worse than none, as with Multus, whose pods the kubelet
    /// then retries. It applies to all clients: one unknown pod rejects every List, so metrics have gaps when
    /// the API server has been away for more than ten minutes, and from the start of the agent until pods
    /// were listed once. A static pod is known by its mirror: one that starts while the API server is away is
    /// unknown, unless `pods.source` is `podsApi` or `kubelet`.
    ///
    /// Invalid annotations do not count, or anybody who creates a pod could block all clients: their devices
    /// are left out and counted (`numacast_proxy_annotation_errors`).
    pub fail_closed: bool,
    /// Count merged devices in the agent's own zones.
    ///
    /// The healthy devices of Koordinator's Device are then allocatable, and with `cpus` in
    /// `proxy.annotations.koordinator` CPUs and memory count as well.
    ///
    /// It requires `proxy.enabled` and something to merge. A device that is used in part is not available.
    /// Nothing is merged until pods and devices were read once.
    pub zones: bool,
    /// What is merged.
    pub annotations: Annotations,
}

/// The Pods API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodsApi {
    /// Serve the kubelet's Pods API, and PodInfo.
    ///
    /// It concerns the agent only: `numacast pods-api` always serves them.
    ///
    /// The agent is ready only if this is: the socket is served, and pods were listed once. Pods are kept as
    /// they were encoded, about 10 KiB each. It requires `list` and `watch` of `pods`, unless the kubelet's
    /// own Pods API is the source, and write access to `podsApi.dir`. The socket file stays when it is
    /// disabled.
    pub enabled: bool,
    /// The directory of its socket, `pods-api.sock`. Default: `<host.root>/run/numacast/pods-api`
    ///
    /// Clients mount the directory, never the socket file, which is replaced at each restart. It may not be a
    /// directory of the kubelet. If it changes, the old socket stays without a server.
    pub dir: Option<PathBuf>,
    /// The group (its number) whose members may connect, besides root.
    ///
    /// The socket's mode is 0660 with it, and 0755 without.
    ///
    /// Whoever connects can read everything in the node's pods, such as environment variables. The rest is as
    /// for `proxy.group`.
    pub group: Option<u32>,
    /// Serve PodInfo on a socket of its own as well, `pod-info.sock`, in `dir` (default:
    /// `<host.root>/run/numacast/pod-info`), for the members of `group`.
    ///
    /// Its clients can read names, phase and conditions of the node's pods, and nothing else of them.
    /// `dir` and `group` are as `podsApi.dir` and `podsApi.group`.
    pub pod_info: Option<PodInfo>,
    /// Where its pods are read: `podsApi` (the kubelet's own), `apiServer`, `kubelet` (its `/pods`, for
    /// PodInfo only), or `auto`: the first that works.
    ///
    /// `podsApi`, from kubelet 1.36 on, has the kubelet's own view of containers and static pods. `apiServer`
    /// has what the API server received last, and static pods as their mirrors. `kubelet` is read at each
    /// `scan.poll` and requires `get` of `nodes/pods`. With `auto`, `podsApi` is used again when the kubelet
    /// serves it; while neither of the first two works, PodInfo is read from `/pods` if permitted, and Pods
    /// has its last known pods.
    pub source: PodsApiSource,
}

/// The socket of PodInfo alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PodInfo {
    /// The directory of its socket.
    pub dir: Option<PathBuf>,
    /// The group whose members may connect, besides root.
    pub group: Option<u32>,
}

/// Where the served pods are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PodsApiSource {
    /// The first that works: the kubelet's Pods API, the API server, the kubelet's `/pods`.
    #[default]
    Auto,
    /// The kubelet's own Pods API.
    PodsApi,
    /// The API server.
    ApiServer,
    /// The kubelet's `/pods`.
    Kubelet,
}
