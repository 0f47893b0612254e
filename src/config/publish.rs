//! Keys of what is read, and of the object that is published.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Period;
use crate::agent::ConflictPolicy;
use crate::nrt::Version;
use crate::scheduler::{FingerprintMethod, FingerprintView, Informer, PluginRelease};
use crate::util::serialize_as_text;

/// Who reads the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Consumer {
    /// The plugin `NodeResourceTopologyMatch` of scheduler-plugins, with its overreserving cache.
    #[default]
    SchedulerPlugins,
    /// The same plugin without that cache: it reads the object for each pod.
    SchedulerPluginsDirect,
    /// KAI-Scheduler, which reads what pods have from their annotations.
    Kai,
    /// KAI-Scheduler with `reconstructAvailable: "false"`: it reads the object alone.
    KaiDirect,
    /// No scheduler.
    None,
}

/// When the node is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scan {
    /// How often the node is read if nothing happens, and the kubelet's `/pods` if it is a pod source.
    ///
    /// The jitter is 10 %. `/pods` is read less often if that takes more than a thousandth of a core.
    ///
    /// Changes of the kubelet's checkpoints, device plugins and pods are detected at once; polls find the
    /// rest. A shorter interval costs more calls to the kubelet.
    pub poll: Period,
    /// A file whose creation, write or touch triggers a scan.
    ///
    /// Its directory is watched, so the file need not exist. It is never read.
    pub notify_file: Option<PathBuf>,
}

/// Where pods are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pods {
    /// Where agent and proxy read pods: `apiServer`, `podsApi` (the kubelet's Pods API, 1.36 and later),
    /// `kubelet` (its `/pods`), `none`, or `auto`: the first that works, but only `apiServer` if
    /// `consumer` or `fingerprint.view` needs it.
    ///
    /// `apiServer` is a watch of this node's pods and requires `list` and `watch` of `pods`; `kubelet` is its
    /// HTTPS endpoint and requires `get` of `nodes/pods`.
    ///
    /// `apiServer`: allocations and releases show within milliseconds. Kubelets before 1.34 also list pods
    /// that have ended; the agent then ignores them (requires `get` of the Node). Without the permission to
    /// list and watch pods a warning is logged, and with `fingerprint.view: scheduler` the fingerprint is
    /// withheld.
    ///
    /// `podsApi`: works while the API server is away, and needs no permission. It reports pods at their
    /// admission, too late for the scheduler's view and reservations.
    ///
    /// `kubelet`: read at each `scan.poll`. It shows which pods have ended, and which are missing after a
    /// restart. The kubelet must be 1.33 or later, and its certificate verifiable (`kubelet.caFile`).
    ///
    /// `none`: allocations and releases are found by a List about once per second, less often if that costs
    /// more than a thousandth of a core. Before kubelet 1.34, pods that have ended keep their memory and
    /// devices until the next pod is admitted.
    ///
    /// While a source fails, its last known pods are used, and a warning is logged.
    pub source: PodSource,
}

/// Where pods are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PodSource {
    /// The first source that works; the API server if the object needs it.
    Auto,
    /// The API server.
    #[default]
    ApiServer,
    /// The kubelet's Pods API.
    PodsApi,
    /// The kubelet's `/pods`.
    Kubelet,
    /// Nowhere.
    None,
}

impl PodSource {
    /// Returns true if the API server may be the source.
    pub const fn may_be_api_server(self) -> bool {
        matches!(self, Self::Auto | Self::ApiServer)
    }
}

/// Where the object is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PublishTo {
    /// To the API server.
    #[default]
    ApiServer,
    /// Nowhere: the agent only serves its sockets.
    Nowhere,
    /// To this file.
    File(PathBuf),
}

impl FromStr for PublishTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "apiServer" => Ok(Self::ApiServer),
            "none" => Ok(Self::Nowhere),
            path if path.starts_with('/') && !path.ends_with('/') => Ok(Self::File(path.into())),
            _ => Err(format!("`{text}` is neither apiServer, nor none, nor the absolute path of a file")),
        }
    }
}

impl fmt::Display for PublishTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer => f.write_str("apiServer"),
            Self::Nowhere => f.write_str("none"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

serialize_as_text!(PublishTo, "apiServer, none, or the absolute path of a file");

/// The object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Publish {
    /// Where the object is written: `apiServer`, `none` (the agent only serves its sockets), or the absolute
    /// path of a file.
    ///
    /// `none` is for a node with another publisher: the agent serves the proxy and the Pods API, as far as they
    /// are enabled, and writes nothing. `consumer` and the other keys of the object have no effect.
    ///
    /// A file, in YAML, is for a kubelet without an API server. Then no kubeconfig is needed: pods are read from
    /// the kubelet's Pods API, if it has one. `consumer` has no effect. The file is replaced as a whole, and stays
    /// when the agent stops.
    #[schemars(with = "String", regex(pattern = "^(apiServer|none|/.*[^/])$"))]
    pub to: PublishTo,
    /// How often the object is applied again although nothing changed.
    ///
    /// Node and object are read first, so a recreated Node and changes by others are found at the latest
    /// then.
    pub refresh: Period,
    /// Make the Node the owner of the object, so that it is deleted with the Node.
    ///
    /// The owner is set when the object is created, which requires `get` of the Node, and never changed: if
    /// the Node is recreated, Kubernetes' garbage collector deletes the object and the agent creates another.
    /// With false, the object of a deleted Node stays until something deletes it.
    pub owner_reference: bool,
    /// What to do about changes by another publisher: `report` or also `overwrite` them.
    ///
    /// A person's edits are overwritten a few times in ten minutes, and what another publisher left is
    /// overwritten once. A writer that changes the object again after that is reported in the log, in an
    /// Event (`CompetingPublisher`) and in the count of foreign writes. With `report` its changes stay until
    /// the node changes; after an hour without a change by it, the object is taken over. With `overwrite`,
    /// each is overwritten after 0.2 to 10 s, however often.
    pub conflicts: ConflictPolicy,
    /// Post Kubernetes Events about conditions that need an operator.
    ///
    /// Those of the agent are about its Node, those of the controller about Nodes and the CRD.
    ///
    /// docs/troubleshooting.md has the rates. Requires `create` of `events` (`events.k8s.io`) in the namespace
    /// `default`.
    pub events: bool,
    /// The object's API version: `v1alpha2` or `v1alpha1`.
    ///
    /// `v1alpha1` is for consumers and CRDs that support no other version. It has no attributes: policy and
    /// scope are in `topologyPolicies`, the fingerprint is in RTE's annotation, and other attributes are
    /// omitted. That is not enough for koord-scheduler, which also needs annotations of koordlet.
    pub api_version: Version,
    /// Write the deprecated field `topologyPolicies` as well.
    ///
    /// It has NFD's names of policy and scope.
    ///
    /// The scheduler plugin and KAI-Scheduler use the attributes; the plugin logs two lines per node and pod
    /// if the field exists. With false, it is removed where NFD left it.
    pub topology_policies: bool,
}

/// The pod fingerprint. The scheduler plugin uses an object only if its fingerprint is that of the pods that
/// the plugin counts itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Fingerprint {
    /// Whose pods the fingerprint covers: those that the `scheduler` plugin counts, those that the `kubelet`
    /// lists, or `none` (no fingerprint). Default: `scheduler` with `consumer: schedulerPlugins`, else `none`
    ///
    /// `scheduler`: it matches only while the zones account for every pod bound to the node; otherwise it is
    /// withheld, by a value that matches no set of pods. It needs the API server as `pods.source`, and is
    /// withheld until pods were listed once.
    ///
    /// `kubelet`: as with NFD and resource-topology-exporter. One pod that has ended, or cannot pull its
    /// image, stops the plugin from placing pods on the node.
    ///
    /// `none`: the plugin's overreserving cache never refreshes.
    pub view: Option<FingerprintView>,
    /// Which pods the fingerprint counts: `all` or `with-exclusive-resources`.
    ///
    /// The plugin reads it from the object.
    ///
    /// With `with-exclusive-resources` fewer pods count, so the fingerprints differ less often. The rule
    /// depends on `fingerprint.pluginRelease`.
    pub method: FingerprintMethod,
    /// The plugin's `cache.informerMode`: `dedicated` or `shared`.
    ///
    /// The two must be equal.
    ///
    /// The plugin's default is `Dedicated`. A wrong one stops the plugin from placing pods: `dedicated` counts
    /// pods that have ended for as long as they exist, `shared` does not.
    pub informer_mode: Informer,
    /// The release of scheduler-plugins: `v0.34` or `v0.35`. See docs/scheduler.md.
    ///
    /// `v0.34` is for tags up to v0.34.7, and v0.35.4-devel; `v0.35` for v0.35.7 and later.
    ///
    /// Its rule for exclusive resources applies.
    pub plugin_release: PluginRelease,
    /// How long a bound pod may be missing in the zones before the fingerprint is withheld; less than a
    /// minute.
    ///
    /// A kubelet usually admits a pod 10 to 40 ms after its binding. Shorter: the fingerprint is withheld for
    /// each admission, which costs one more write per pod. Longer: the plugin may use zones without the pod
    /// for that long. After a minute in which the kubelet responds, the pod is ignored, with an Event.
    pub withhold_after: Period,
    /// A file for the fingerprint and its pods, as JSON.
    ///
    /// The format is that of resource-topology-exporter.
    pub status_file: Option<PathBuf>,
}

impl Default for Scan {
    fn default() -> Self {
        Self { poll: Period::seconds(5), notify_file: None }
    }
}

impl Default for Publish {
    fn default() -> Self {
        Self {
            to: PublishTo::default(),
            refresh: Period::seconds(600),
            owner_reference: true,
            conflicts: ConflictPolicy::default(),
            events: true,
            api_version: Version::default(),
            topology_policies: false,
        }
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self {
            view: None,
            method: FingerprintMethod::default(),
            informer_mode: Informer::default(),
            plugin_release: PluginRelease::default(),
            withhold_after: Period::new(Duration::from_millis(50)),
            status_file: None,
        }
    }
}
