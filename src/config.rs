//! One configuration model for file, environment and flags.
//!
//! Layers are merged key by key (defaults, file, environment, flags; the later wins), and every value remembers
//! where it came from. Unknown keys fail, with a suggestion.

mod address;
mod annotations;
mod consumer;
mod endpoint;
mod exclude;
mod explain;
mod layers;
mod names;
mod paths;
mod percent;
mod pods_api;
mod proxy;
mod rivals;
mod scheduler_pods;
mod schema;
mod socket;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use address::Address;
pub use annotations::{ProxyAnnotations, ProxyMapping};
pub use consumer::{Cache, Consumer};
pub use endpoint::Endpoint;
pub use exclude::{EVERY_NODE, Exclude};
pub use explain::{Explanation, explain};
pub use layers::{ConfigError, Effective, Layers, Origin};
pub(crate) use names::is_device;
pub use paths::Paths;
pub use percent::Percent;
pub use pods_api::{PodsApi, PodsApiSource};
pub use proxy::Proxy;
pub use rivals::RivalsMode;
pub use scheduler_pods::SchedulerPods;
pub use schema::SCHEMA;
pub use socket::{ServedSocket, SocketMode};
pub use watch::FileWatch;

/// Everything a person can set. The defaults are in [`Config::default`], the words for people in [`DOCS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// The node's name in the cluster.
    pub node_name: String,
    /// Who reads the object.
    pub consumer: Consumer,
    /// How the plugin of scheduler-plugins reads it.
    pub cache: Option<Cache>,
    /// Where the host's files are.
    pub host: Host,
    /// Where the kubelet is.
    pub kubelet: Kubelet,
    /// When to look.
    pub scan: Scan,
    /// Who tells about pods.
    pub pods: Pods,
    /// Where and how to write.
    pub publish: Publish,
    /// What the object says of pods.
    pub fingerprint: Fingerprint,
    /// What zones look like.
    pub zones: Zones,
    /// What zones leave out.
    pub exclude: Exclude,
    /// The podresources proxy.
    pub proxy: Proxy,
    /// The Pods API that we serve.
    pub pods_api: PodsApi,
    /// What the controller does; the agent reads nothing of it.
    pub controller: Controller,
    /// What to tell people.
    pub log: Log,
    /// What to tell monitoring.
    pub metrics: Metrics,
    /// What to tell the kubelet about ourselves.
    pub health: Health,
}

/// Where the host's files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Host {
    /// Every path below moves with it.
    pub root: PathBuf,
    /// Stands for `/sys`; `<host.root>/sys` when not set.
    pub sys: Option<PathBuf>,
    /// Stands for `/proc`; `<host.root>/proc` when not set.
    pub proc: Option<PathBuf>,
}

/// Where the kubelet is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Kubelet {
    /// The kubelet's `--root-dir`; `<host.root>/var/lib/kubelet` when not set.
    pub dir: Option<PathBuf>,
    /// Where device plugins register; `<kubelet.dir>/device-plugins` when not set.
    pub device_plugins: Option<PathBuf>,
    /// The podresources socket; `<kubelet.dir>/pod-resources/kubelet.sock` when not set.
    pub socket: Option<PathBuf>,
    /// The socket of the Pods API; `<kubelet.dir>/pods-api/pods-api.sock` when not set.
    pub pods_socket: Option<PathBuf>,
    /// The deadline of one call.
    pub timeout: Period,
    /// Its HTTPS port; what the Node says when not set.
    pub address: Option<Address>,
    /// Who signs its serving certificate (PEM); the cluster's CA when not set.
    pub ca_file: Option<PathBuf>,
    /// The name in its serving certificate; the address when not set.
    pub server_name: Option<String>,
    /// How it is configured, or who tells.
    pub config: KubeletConfig,
}

/// How the kubelet is configured, or who tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeletConfig {
    /// Whom to believe.
    pub source: ConfigSource,
    /// The kubelet's configuration file; what its command line says, else `<kubelet.dir>/config.yaml`, when not set.
    pub file: Option<PathBuf>,
    /// The directory with the kubelet's drop-ins; what its command line says, else none, when not set.
    pub dir: Option<PathBuf>,
    /// Stands for the kubelet's own.
    pub topology_manager_policy: Option<TopologyManagerPolicy>,
    /// Stands for the kubelet's own.
    pub topology_manager_scope: Option<TopologyManagerScope>,
    /// Are added to the kubelet's own.
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// Stands for the kubelet's own.
    pub cpu_manager_policy: Option<CpuManagerPolicy>,
    /// Stands for the kubelet's own.
    pub memory_manager_policy: Option<MemoryManagerPolicy>,
}

/// Who tells how the kubelet is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ConfigSource {
    /// Its files; where they cannot be read, the kubelet itself.
    #[default]
    Auto,
    /// Its files and its command line.
    File,
    /// The kubelet itself.
    Configz,
    /// Nobody but whoever configures numacast.
    None,
}

/// How strictly a kubelet aligns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyManagerPolicy {
    /// Not at all.
    None,
    /// If it can.
    BestEffort,
    /// To as few nodes as can be.
    Restricted,
    /// To one node.
    SingleNumaNode,
}

/// What a kubelet aligns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TopologyManagerScope {
    /// Each container.
    Container,
    /// All containers of a pod together.
    Pod,
}

/// Whether a kubelet gives out CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CpuManagerPolicy {
    /// It does not.
    None,
    /// It does.
    Static,
}

/// Whether a kubelet gives out memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemoryManagerPolicy {
    /// It does not.
    None,
    /// It does.
    Static,
}

/// Implements `Display` with the kubelet's spelling.
macro_rules! spelt {
    ($($policy:ty),*) => {$(
        impl fmt::Display for $policy {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )*};
}
spelt!(TopologyManagerPolicy, TopologyManagerScope, CpuManagerPolicy, MemoryManagerPolicy);

/// When to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scan {
    /// How often to look when nothing seems to happen, give or take a tenth.
    pub poll: Period,
    /// How long the last good object may stay after a kubelet restart.
    pub settle: Period,
    /// A file that somebody touches when it is time to look.
    pub notify_file: Option<PathBuf>,
}

/// Who tells about pods what the kubelet's List does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pods {
    /// Whom to ask; the API server when not set.
    pub source: Option<PodSource>,
    /// How often the kubelet's `/pods` is read.
    pub interval: Period,
}

/// Whom to ask about pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PodSource {
    /// The API server; where nothing in the object needs it, the first that tells.
    Auto,
    /// The API server.
    #[default]
    ApiServer,
    /// The kubelet's Pods API.
    PodsApi,
    /// The kubelet's `/pods`.
    Kubelet,
    /// Nobody.
    None,
}

impl PodSource {
    /// Returns true if the API server may be the source.
    #[must_use]
    pub const fn may_be_api_server(self) -> bool {
        matches!(self, Self::Auto | Self::ApiServer)
    }
}

/// Where and how to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Publish {
    /// A kubeconfig file; `$KUBECONFIG`, `~/.kube/config` or the pod's service account when not set.
    pub kubeconfig: Option<PathBuf>,
    /// The deadline of one API call.
    pub timeout: Period,
    /// How often the object is applied again although nothing changed.
    pub refresh: Period,
    /// Make the Node own the object, so that it goes with the Node.
    pub owner_reference: bool,
    /// Watch the object, to repair it at once.
    pub watch: bool,
    /// What to do about a publisher that keeps rewriting the object.
    pub rivals: RivalsMode,
    /// Post Kubernetes Events about the Node.
    pub events: bool,
    /// The version of the API in which to write.
    pub api_version: ApiVersion,
    /// Write the deprecated name of policy and scope as well.
    pub topology_policies: bool,
    /// Say on which NUMA node each container is; as the consumer needs it when not set.
    pub placement: Option<bool>,
    /// Take what a bound pod asks for from every zone until the kubelet's List shows it; as the consumer needs it when
    /// not set.
    pub reserve: Option<bool>,
}

/// What the object says of pods: the scheduler plugin believes it only where this is what it knows itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fingerprint {
    /// Whose pods it stands for; as the consumer needs it when not set.
    pub view: Option<FingerprintView>,
    /// Which of them.
    pub method: FingerprintMethod,
    /// Which pods the plugin has.
    pub informer: Informer,
    /// The plugin's release.
    pub plugin: PluginRelease,
    /// How long a bound pod may be unaccounted before the object is held.
    pub hold_after: Period,
    /// How long a pod may hold the object.
    pub hold_limit: Period,
    /// Where to write the pods of the fingerprint, for people.
    pub status_file: Option<PathBuf>,
}

/// Whose pods the fingerprint stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FingerprintView {
    /// Those that the scheduler plugin counts.
    #[default]
    Scheduler,
    /// Those of the kubelet's List.
    Kubelet,
    /// There is none.
    None,
}

/// Which pods the fingerprint stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FingerprintMethod {
    /// All.
    #[default]
    All,
    /// Those with resources of their own.
    WithExclusiveResources,
}

/// Which pods the plugin has: its `cache.informerMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Informer {
    /// All that are not Pending.
    #[default]
    Dedicated,
    /// Those that are Running.
    Shared,
}

/// The release of scheduler-plugins, as far as its rules differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PluginRelease {
    /// Tags up to v0.34.7, and v0.35.4-devel.
    #[serde(rename = "v0.34")]
    V0_34,
    /// v0.35.7 and later.
    #[default]
    #[serde(rename = "v0.35")]
    V0_35,
}

/// A version of the API of `NodeResourceTopology`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ApiVersion {
    /// For consumers that read no other.
    V1alpha1,
    /// The one that is stored.
    #[default]
    V1alpha2,
}

/// What zones look like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Zones {
    /// Emit empty zones for missing NUMA ids.
    pub fillers: bool,
}

/// What the controller does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Controller {
    /// Where it runs, and the agents with it.
    pub namespace: String,
    /// The DaemonSet of the agents; empty: nobody looks for silent ones.
    pub daemon_set: String,
    /// The Lease by which one replica leads; empty: every replica does.
    pub lease: String,
    /// Delete nothing, and say what would be deleted.
    pub dry_run: bool,
    /// Update an object now and then while pods wait because of the scheduler plugin.
    pub nudge: Nudge,
    /// The scheduler's pods. If set, objects created after they started are reported.
    pub scheduler: Option<SchedulerPods>,
    /// Objects of Nodes that are gone.
    pub garbage: Garbage,
    /// Nodes whose agent does not work.
    pub silent: Silent,
    /// Sums over all objects.
    pub fleet: Fleet,
}

/// Whether to nudge while pods are pending because of the scheduler plugin: `auto`, `off`, or the plugin's
/// resync period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nudge {
    /// At times that suit the usual resync periods.
    #[default]
    Auto,
    /// Never.
    Off,
    /// For this resync period of the plugin.
    Every(Period),
}

/// Objects of Nodes that are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Garbage {
    /// How often all objects are looked at.
    pub interval: Period,
    /// How long a Node must have been gone.
    pub grace: Period,
    /// How many of the objects may go within one interval.
    pub most: Percent,
}

/// Nodes whose agent does not work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Silent {
    /// How long it must have been so.
    pub after: Period,
}

/// Sums over all objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fleet {
    /// How often they are drawn up.
    pub interval: Period,
}

/// What to tell people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Log {
    /// The least severe level that is written.
    pub level: LogLevel,
    /// Text for people, JSON for collectors.
    pub format: LogFormat,
}

/// What to tell monitoring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Metrics {
    /// Where the agent serves them.
    pub address: Endpoint,
    /// How the agent encrypts them.
    pub tls: Tls,
}

/// How metrics are encrypted: plain HTTP where nothing is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Tls {
    /// The certificate and its chain (PEM).
    pub cert_file: Option<PathBuf>,
    /// Its private key (PEM).
    pub key_file: Option<PathBuf>,
    /// Who signs the certificates that clients must have (PEM); any client may read where it is not set.
    pub client_ca_file: Option<PathBuf>,
}

/// What to tell the kubelet about ourselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Health {
    /// Where the agent answers its probes.
    pub address: Endpoint,
}

/// How severe a line must be to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only what needs a person.
    Error,
    /// And what may.
    Warn,
    /// And what changed.
    #[default]
    Info,
    /// And what was looked at.
    Debug,
    /// Everything.
    Trace,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For collectors.
    Json,
}

/// Keys and their descriptions, in the order of the file. A test checks that every key of [`Config`] is
/// listed.
pub const DOCS: &[(&str, &str)] = &[
    ("nodeName", "The node's name in the cluster. In a pod: NODE_NAME, from spec.nodeName."),
    (
        "consumer",
        "schedulerPlugins, kai or none. Who reads the object: the scheduler-plugins' NodeResourceTopologyMatch, \
         KAI-Scheduler, or no scheduler. cache, fingerprint.view, publish.placement and publish.reserve follow from it \
         where they are not set.",
    ),
    (
        "cache",
        "overReserve or direct, for schedulerPlugins alone. How the plugin reads the object: at the ticks of its \
         overreserving cache (cacheResyncPeriodSeconds above 0), or for each pod that it places (cacheResyncPeriodSeconds: \
         0, or discardReservedNodes: true). Not set: overReserve with schedulerPlugins",
    ),
    ("host.root", "Where the host's root is mounted; the paths below start there unless they are set."),
    ("host.sys", "Stands for /sys. Not set: <host.root>/sys"),
    ("host.proc", "Stands for /proc. Not set: <host.root>/proc"),
    ("kubelet.dir", "The kubelet's --root-dir. Not set: <host.root>/var/lib/kubelet"),
    (
        "kubelet.devicePlugins",
        "Where device plugins register; kubelets with another --root-dir keep it in /var/lib/kubelet. Not set: \
         <kubelet.dir>/device-plugins",
    ),
    ("kubelet.socket", "The podresources socket. Not set: <kubelet.dir>/pod-resources/kubelet.sock"),
    ("kubelet.podsSocket", "The socket of the Pods API. Not set: <kubelet.dir>/pods-api/pods-api.sock"),
    ("kubelet.timeout", "The deadline of one call to the kubelet."),
    (
        "kubelet.address",
        "The kubelet's HTTPS port, an IP address or a name with a port perhaps. In a pod: NODE_ADDRESS, from \
         status.hostIP. Not set: what the Node says, which is also asked for the port of an address without one",
    ),
    (
        "kubelet.caFile",
        "Who signs the kubelet's serving certificate (PEM). Not set: the CA of the API server's certificate",
    ),
    ("kubelet.serverName", "The name in the kubelet's serving certificate. Not set: the address"),
    (
        "kubelet.config.source",
        "Who tells how the kubelet is configured: auto, file (its files and command line), configz (the kubelet itself: \
         nodes/configz get) or none. auto is file, and configz where the files cannot be read.",
    ),
    (
        "kubelet.config.file",
        "The kubelet's own configuration file. Not set: what its command line says, else <kubelet.dir>/config.yaml",
    ),
    (
        "kubelet.config.dir",
        "The directory with drop-ins over that file. Not set: what its command line says, else none",
    ),
    (
        "kubelet.config.topologyManagerPolicy",
        "Stands for what the kubelet says: none, best-effort, restricted or single-numa-node; with the scope or not at \
         all. Not set: what was read",
    ),
    (
        "kubelet.config.topologyManagerScope",
        "Stands for what the kubelet says: container or pod; with the policy or not at all. Not set: what was read",
    ),
    (
        "kubelet.config.topologyManagerPolicyOptions",
        "Stand for the options of the same names that the kubelet says, such as max-allowable-numa-nodes.",
    ),
    (
        "kubelet.config.cpuManagerPolicy",
        "Stands for what the kubelet says: none or static. Not set: what was read",
    ),
    (
        "kubelet.config.memoryManagerPolicy",
        "Stands for what the kubelet says: None or Static. Not set: what was read",
    ),
    ("scan.poll", "How often to look when nothing seems to happen, give or take a tenth."),
    (
        "scan.settle",
        "How long the last good object may stay after a kubelet restart, until known pods are back.",
    ),
    (
        "scan.notifyFile",
        "A file that somebody, such as a hook of the container runtime, touches when it is time to look. Not set: none",
    ),
    (
        "pods.source",
        "Who tells which pods there are, what they ask for and that they are gone or have ended: auto, apiServer (a watch \
         of this node's pods: pods list, watch), podsApi (the kubelet's Pods API, 1.36 and later), kubelet (its HTTPS \
         endpoint /pods: nodes/pods get) or none. auto is the first of them that tells, and apiServer alone where \
         fingerprint.view is scheduler or publish.reserve is true. Not set: apiServer",
    ),
    (
        "pods.interval",
        "How often the kubelet's /pods is read where that is the source; less often where it would take more than a \
         thousandth of a core.",
    ),
    (
        "publish.kubeconfig",
        "A kubeconfig file. Not set: $KUBECONFIG, ~/.kube/config or the pod's service account",
    ),
    ("publish.timeout", "The deadline of one call to the API server."),
    ("publish.refresh", "How often the object is applied again although nothing changed."),
    ("publish.ownerReference", "Make the Node own the object, so that it is deleted with the Node."),
    ("publish.watch", "Watch the object, so that what others do to it is repaired at once."),
    (
        "publish.rivals",
        "report or fight. What to do about another publisher that keeps rewriting the object: tell and let it be, or \
         answer each rewrite.",
    ),
    ("publish.apiVersion", "v1alpha2 or v1alpha1, the version of the API in which the object is written."),
    (
        "publish.topologyPolicies",
        "Write the deprecated field topologyPolicies as well, with NFD's name of policy and scope.",
    ),
    ("publish.events", "Post Kubernetes Events about the Node, for what an operator must act on."),
    (
        "publish.placement",
        "Say on which NUMA node each container is, for the scheduler plugin's preemption. Not set: true with the \
         overreserving cache, else false",
    ),
    (
        "publish.reserve",
        "Take what a pod asks for from every zone as soon as it is bound, until the kubelet's List shows what it got (needs \
         the API server as pods.source). Not set: true where the object is read directly (kai, or schedulerPlugins with \
         cache: direct), else false",
    ),
    (
        "fingerprint.view",
        "scheduler, kubelet or none. Whose pods the fingerprint stands for: those that the scheduler plugin counts \
         (needs the API server as pods.source), or those of the kubelet's List. Not set: scheduler with the overreserving \
         cache, else none",
    ),
    (
        "fingerprint.method",
        "all or with-exclusive-resources. Which of these pods; the plugin reads it from the object.",
    ),
    ("fingerprint.informer", "dedicated or shared. The plugin's cache.informerMode; the two must be equal."),
    (
        "fingerprint.plugin",
        "v0.34 (tags up to v0.34.7, and v0.35.4-devel) or v0.35 (v0.35.7 and later). The release of scheduler-plugins: \
         its rule for exclusive resources.",
    ),
    (
        "fingerprint.holdAfter",
        "How long a pod that was bound may be missing in the zones before the object is held.",
    ),
    (
        "fingerprint.holdLimit",
        "How long one pod may hold the object while the kubelet answers; after that it is let go, with an Event.",
    ),
    (
        "fingerprint.statusFile",
        "A file for people: the fingerprint and its pods, in JSON, as resource-topology-exporter writes it. Not set: \
         none",
    ),
    ("zones.fillers", "Emit empty zones for missing NUMA ids: the scheduler plugin needs position == id."),
    (
        "exclude.resources",
        "Resources that no zone lists: by node name, or \"*\" for every node; both lists count.",
    ),
    ("exclude.pods", "Pods whose resources look free, by patterns of their namespace and name."),
    (
        "exclude.outsideNamespace",
        "Only pods of this namespace count; what all others hold looks free. Not set: every pod counts",
    ),
    (
        "proxy.enabled",
        "The agent serves the kubelet's podresources API once more, on a socket of its own, with devices that pods have by \
         annotation. numacast proxy serves it alone, whatever this says.",
    ),
    (
        "proxy.dir",
        "The directory of its socket, kubelet.sock: mount it where clients look for the kubelet's. Not set: \
         <host.root>/run/numacast/pod-resources",
    ),
    ("proxy.mode", "Who may connect, as file permissions of the socket in quotes; to connect is to write."),
    (
        "proxy.group",
        "The number of the group that the socket belongs to, for clients that are not root; with a mode such as \"0660\". \
         Not set: that of the process",
    ),
    (
        "proxy.timeout",
        "The deadline of one call to the kubelet; clients wait for 5 or 10 s themselves. While the agent serves the proxy its \
         scans have this one too, since both share a connection, and not that of kubelet.timeout.",
    ),
    (
        "proxy.wait",
        "How long an answer waits for the annotations of a pod that the kubelet lists and pods.source has not told of.",
    ),
    (
        "proxy.lastKnown",
        "How long annotations are believed while pods.source does not tell; after that answers are passed through.",
    ),
    (
        "proxy.failClosed",
        "Refuse to answer (Unavailable) where devices may be missing, instead of passing the kubelet's answer through.",
    ),
    (
        "proxy.allocatable",
        "Put the healthy devices of Koordinator's Device object into GetAllocatableResources as well.",
    ),
    (
        "proxy.zones",
        "The agent's own zones count the merged devices, and the healthy ones of Koordinator's Device object as theirs. With \
         proxy.annotations.cpus the CPUs and the memory as well.",
    ),
    (
        "proxy.annotations.koordinator",
        "Merge what Koordinator's scheduler allocated: scheduling.koordinator.sh/device-allocated.",
    ),
    (
        "proxy.annotations.resources",
        "The resource that a type of device is (gpu), or one of a vendor (gpu/huawei); over numacast's own table.",
    ),
    (
        "proxy.annotations.cpus",
        "Merge CPUs and memory of scheduling.koordinator.sh/resource-status, as those of the pod as a whole. With proxy.zones \
         they leave the zones, too.",
    ),
    (
        "proxy.annotations.sharedIds",
        "Where a pod has a part of an accelerator its id gets a number, GPU-...::1804289383, made of the pod's UID, so that no \
         two pods have the same. Zones count devices as ever.",
    ),
    (
        "proxy.annotations.mappings",
        "Other annotations that tell of devices: a list of annotation (its key), path (a JSON path), resource, id and \
         container (templates).",
    ),
    (
        "podsApi.enabled",
        "The agent serves the kubelet's Pods API, and PodInfo, on a socket of its own. numacast pods-api serves them alone, \
         whatever this says.",
    ),
    (
        "podsApi.dir",
        "The directory of its socket, pods-api.sock; never the kubelet's. Not set: <host.root>/run/numacast/pods-api",
    ),
    ("podsApi.mode", "Who may connect, as file permissions of the socket in quotes; to connect is to write."),
    (
        "podsApi.group",
        "The number of the group that the socket belongs to, for clients that are not root; with a mode such as \"0660\". \
         Not set: that of the process",
    ),
    (
        "podsApi.source",
        "Who tells of the pods: podsApi (the kubelet's own), apiServer, or kubelet (its /pods, of which PodInfo alone is \
         served). auto: the first of these that tells.",
    ),
    (
        "controller.namespace",
        "The controller: the namespace of its DaemonSet and its Lease. In a pod: POD_NAMESPACE, from metadata.namespace.",
    ),
    (
        "controller.daemonSet",
        "The DaemonSet of the agents. Nothing (\"\"): the controller does not look for silent agents",
    ),
    (
        "controller.lease",
        "The Lease by which one of several controllers leads. Nothing (\"\"): each leads, so run only one",
    ),
    ("controller.dryRun", "Delete nothing; the log says what would be deleted. There are no nudges either."),
    (
        "controller.nudge",
        "auto, off, or the scheduler plugin's cacheResyncPeriodSeconds (5s). While pods are pending because the plugin \
         rejected nodes, update one object now and then, so that the scheduler tries them again.",
    ),
    (
        "controller.scheduler",
        "The pods of the scheduler that runs the plugin, as NAMESPACE/KEY=VALUE (kube-system/component=kube-scheduler). The \
         controller reports objects created after they started, which the plugin ignores. Not set: it does not check",
    ),
    ("controller.garbage.interval", "How often all objects are looked at for those of Nodes that are gone."),
    ("controller.garbage.grace", "How long a Node must have been gone before its object is deleted."),
    (
        "controller.garbage.most",
        "Percent of the objects that may be deleted within one interval; when more are due nothing is. Up to ten may \
         always go. 100: no limit",
    ),
    (
        "controller.silent.after",
        "How long the agent of a Ready Node may be missing or not Ready before that is told.",
    ),
    (
        "controller.fleet.interval",
        "How often the sums over all objects are drawn up; less often where that takes long.",
    ),
    ("log.level", "error, warn, info, debug or trace."),
    ("log.format", "text or json."),
    (
        "metrics.address",
        "Where /metrics is served (HTTP): an IP address with a port, :9742 for all addresses, or none.",
    ),
    ("metrics.tls.certFile", "The certificate for metrics and its chain (PEM). Not set: plain HTTP"),
    ("metrics.tls.keyFile", "Its private key (PEM); both or neither."),
    (
        "metrics.tls.clientCaFile",
        "Who signs the certificates that readers of metrics must have (PEM). Not set: anybody may read",
    ),
    (
        "health.address",
        "Where /livez, /readyz and /startupz are served (plain HTTP): an IP address with a port, :9743 for all \
         addresses, or none.",
    ),
];

impl Default for Host {
    fn default() -> Self {
        Self { root: "/".into(), sys: None, proc: None }
    }
}

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            dir: None,
            device_plugins: None,
            socket: None,
            pods_socket: None,
            timeout: Period::seconds(10),
            address: None,
            ca_file: None,
            server_name: None,
            config: KubeletConfig::default(),
        }
    }
}

impl Default for Scan {
    fn default() -> Self {
        Self { poll: Period::seconds(5), settle: Period::seconds(30), notify_file: None }
    }
}

impl Default for Pods {
    fn default() -> Self {
        Self { source: None, interval: Period::seconds(5) }
    }
}

impl Default for Publish {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            timeout: Period::seconds(5),
            refresh: Period::seconds(600),
            owner_reference: true,
            watch: true,
            rivals: RivalsMode::Report,
            events: true,
            api_version: ApiVersion::V1alpha2,
            topology_policies: false,
            placement: None,
            reserve: None,
        }
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self {
            view: None,
            method: FingerprintMethod::default(),
            informer: Informer::default(),
            plugin: PluginRelease::default(),
            hold_after: Period(Duration::from_millis(50)),
            hold_limit: Period::seconds(60),
            status_file: None,
        }
    }
}

impl Default for Zones {
    fn default() -> Self {
        Self { fillers: true }
    }
}

impl Default for Controller {
    fn default() -> Self {
        Self {
            namespace: String::new(),
            daemon_set: "numacast-agent".to_owned(),
            lease: "numacast-controller".to_owned(),
            dry_run: false,
            nudge: Nudge::Auto,
            scheduler: None,
            garbage: Garbage::default(),
            silent: Silent::default(),
            fleet: Fleet::default(),
        }
    }
}

impl Default for Garbage {
    fn default() -> Self {
        Self { interval: Period::seconds(600), grace: Period::seconds(60), most: Percent::of(20) }
    }
}

impl Default for Silent {
    fn default() -> Self {
        Self { after: Period::seconds(300) }
    }
}

impl Default for Fleet {
    fn default() -> Self {
        Self { interval: Period::seconds(60) }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Text }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { address: Endpoint::loopback(9742), tls: Tls::default() }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self { address: Endpoint::loopback(9743) }
    }
}

impl Config {
    /// Returns the conflicts in a resolved configuration: the key to report, and the reason.
    fn conflicts(&self) -> Vec<(&'static str, &'static str)> {
        let mut conflicts = self.conflicts_of_addresses();
        let KubeletConfig { topology_manager_policy: policy, topology_manager_scope: scope, .. } =
            &self.kubelet.config;
        match (policy, scope) {
            (Some(_), None) => conflicts.push((
                "kubelet.config.topologyManagerPolicy",
                "consumers misread a policy without its scope: set `kubelet.config.topologyManagerScope` as well",
            )),
            (None, Some(_)) => conflicts.push((
                "kubelet.config.topologyManagerScope",
                "a scope has no meaning without a policy: set `kubelet.config.topologyManagerPolicy` as well",
            )),
            _ => {}
        }
        if self.publish.api_version == ApiVersion::V1alpha1
            && self.fingerprint.view != Some(FingerprintView::None)
            && self.fingerprint.method != FingerprintMethod::All
        {
            let method =
                "v1alpha1 has a place for the fingerprint of all pods only: set `fingerprint.method: all`";
            conflicts.push(("publish.apiVersion", method));
        }
        conflicts.extend(self.conflicts_of_consumer());
        conflicts.extend(self.proxy.conflicts(self));
        conflicts.extend(self.pods_api.conflicts(self));
        if self.fingerprint.hold_after >= self.fingerprint.hold_limit {
            conflicts.push(("fingerprint.holdAfter", "it must be shorter than `fingerprint.holdLimit`"));
        }
        conflicts
    }

    fn conflicts_of_addresses(&self) -> Vec<(&'static str, &'static str)> {
        let Metrics { address, tls: Tls { cert_file, key_file, client_ca_file } } = &self.metrics;
        let shared = *address != Endpoint::Nowhere && *address == self.health.address;
        match (cert_file, key_file) {
            (Some(_), None) => vec![("metrics.tls.certFile", "TLS needs `metrics.tls.keyFile` as well")],
            (None, Some(_)) => vec![("metrics.tls.keyFile", "TLS needs `metrics.tls.certFile` as well")],
            (None, None) if client_ca_file.is_some() => {
                let both = "TLS needs `metrics.tls.certFile` and `metrics.tls.keyFile` as well";
                vec![("metrics.tls.clientCaFile", both)]
            }
            (Some(_), Some(_)) if shared => {
                let plain = "health is plain HTTP and cannot share the address of metrics with TLS; choose another one, \
                             or none";
                vec![("health.address", plain)]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the configuration with all derived keys filled in.
    #[must_use]
    pub fn resolved(mut self) -> Self {
        self.follow_consumer();
        let Paths { root, sys, proc, kubelet_dir, device_plugins, socket, pods_socket } = self.paths();
        (self.host.sys, self.host.proc) = (Some(sys), Some(proc));
        self.kubelet.dir = Some(kubelet_dir);
        self.kubelet.device_plugins = Some(device_plugins);
        self.kubelet.socket = Some(socket);
        self.kubelet.pods_socket = Some(pods_socket);
        self.proxy.resolve(&root);
        self.pods_api.resolve(&root);
        self
    }
}

impl FromStr for Nudge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::Every).map_err(|error| format!("{error}, nor auto or off")),
        }
    }
}

impl fmt::Display for Nudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Every(period) => write!(f, "{period}"),
        }
    }
}

impl Serialize for Nudge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nudge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Nudge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("auto, off, or a period such as 5s")
            }
            // YAML parses a bare `off` as a boolean.
            fn visit_bool<E: serde::de::Error>(self, on: bool) -> Result<Nudge, E> {
                Ok(if on { Nudge::Auto } else { Nudge::Off })
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Nudge, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A positive duration, written like `500ms`, `10s`, `5m` or `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(Duration);

/// Maximum period: no key has a use for a longer one.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl Period {
    const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns it as a [`Duration`].
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || format!("`{text}` is no length of time such as 500ms, 10s or 5m");
        let signed: jiff::SignedDuration = text.parse().map_err(|_| error())?;
        let duration = Duration::try_from(signed).map_err(|_| error())?;
        match duration {
            Duration::ZERO => Err(format!("`{text}` must be longer than 0")),
            _ if duration > LONGEST => Err(format!("`{text}` must not be longer than a day")),
            _ => Ok(Self(duration)),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::SignedDuration::try_from(self.0) {
            Ok(signed) => write!(f, "{signed:#}"),
            Err(_) => write!(f, "{}s", self.0.as_secs()),
        }
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_spelt_as_the_kubelet_spells_them() {
        let all = [
            (TopologyManagerPolicy::None.to_string(), "none"),
            (TopologyManagerPolicy::BestEffort.to_string(), "best-effort"),
            (TopologyManagerPolicy::Restricted.to_string(), "restricted"),
            (TopologyManagerPolicy::SingleNumaNode.to_string(), "single-numa-node"),
            (TopologyManagerScope::Container.to_string(), "container"),
            (TopologyManagerScope::Pod.to_string(), "pod"),
            (CpuManagerPolicy::None.to_string(), "none"),
            (CpuManagerPolicy::Static.to_string(), "static"),
            (MemoryManagerPolicy::None.to_string(), "None"),
            (MemoryManagerPolicy::Static.to_string(), "Static"),
        ];
        all.iter().for_each(|(text, spelt)| assert_eq!(text, spelt));
    }

    #[test]
    fn paths_move_with_the_hosts_root_unless_they_are_set() {
        let mut config = Config::default();
        config.host.root = "/host".into();
        config.host.proc = Some("/elsewhere".into());
        let config = config.resolved();
        assert_eq!(config.host.sys.unwrap(), PathBuf::from("/host/sys"));
        assert_eq!(config.host.proc.unwrap(), PathBuf::from("/elsewhere"));
        let socket = config.kubelet.socket.unwrap();
        assert_eq!(socket, PathBuf::from("/host/var/lib/kubelet/pod-resources/kubelet.sock"));
    }

    #[test]
    fn nudges_read_what_they_write() {
        for text in ["auto", "off", "5s", "10s"] {
            assert_eq!(text.parse::<Nudge>().unwrap().to_string(), text);
        }
        let read = |text: &str| serde_saphyr::from_str::<Nudge>(text).map_err(|error| error.to_string());
        assert_eq!(read("off"), Ok(Nudge::Off));
        assert_eq!(read("5s"), Ok(Nudge::Every(Period::seconds(5))));
        assert!(
            read("soon")
                .unwrap_err()
                .contains("`soon` is no length of time such as 500ms, 10s or 5m, nor auto")
        );
    }

    #[test]
    fn periods_read_what_they_write() {
        for (text, seconds) in
            [("10s", 10.0), ("500ms", 0.5), ("5m", 300.0), ("1h 30m", 5400.0), ("1m30s", 90.0)]
        {
            let period: Period = text.parse().unwrap();
            assert!((period.get().as_secs_f64() - seconds).abs() < 1e-9, "{text}");
            assert_eq!(period.to_string().parse::<Period>().unwrap(), period);
        }
        assert_eq!(Period::seconds(600).to_string(), "10m");
        for text in ["soon", "", "-1s", "0s", "10", "25h"] {
            assert!(text.parse::<Period>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }
}
