//! The configuration, the same for file, environment and flags.
//!
//! The doc comment of a field is the only text of its key: help, documents, JSON Schema and chart are
//! generated from it. Its first paragraph is a summary. Layers (defaults, file, environment, flags) are
//! merged key by key, the later wins, and every value remembers where it came from. Unknown keys fail, with a
//! suggestion.
//!
//! The settings of agent, controller and servers are types of their own; `settings` converts to them.

mod conflicts;
mod controller;
mod dra;
mod error;
mod exclude;
mod keys;
mod kubelet;
mod layers;
mod period;
mod publish;
mod resolved;
mod served;
mod settings;
mod switch;
mod telemetry;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use controller::{Controller, Garbage, Nudge};
pub use dra::{Dra, DraSource};
pub use error::ConfigError;
pub use exclude::{EVERY_NODE, Exclude};
pub(crate) use keys::summary;
pub use keys::{Key, SCHEMA, explain, keys};
pub use kubelet::{Host, Kubelet};
pub use layers::{Effective, Layers, Origin, Shown};
pub use period::Period;
pub use publish::{Consumer, Fingerprint, PodSource, Pods, Publish, PublishTo, Scan};
pub use resolved::Paths;
pub use served::{PodInfo, PodsApi, PodsApiSource, Proxy};
pub use settings::API_TIMEOUT;
pub use telemetry::{Health, Log, Metrics};

pub use crate::telemetry::endpoint::Endpoint;
pub use crate::telemetry::tls::TlsFiles;

/// The configuration of every command. The fields that are not keys are set by flags and the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// The node's name in the cluster; empty if unknown.
    #[serde(skip)]
    pub node_name: String,
    /// A kubeconfig file; `$KUBECONFIG`, `~/.kube/config` or the pod's service account if not set.
    #[serde(skip)]
    pub kubeconfig: Option<PathBuf>,
    /// Who reads the objects: `schedulerPlugins`, `schedulerPluginsDirect` (without the plugin's
    /// overreserving cache), `kai` (KAI-Scheduler), `kaiDirect` (with `reconstructAvailable: "false"`) or
    /// `none`. See docs/scheduler.md.
    ///
    /// `schedulerPlugins` is the plugin NodeResourceTopologyMatch with its overreserving cache
    /// (`cacheResyncPeriodSeconds` above 0), `schedulerPluginsDirect` the same plugin without that cache
    /// (`discardReservedNodes: true`, or `cacheResyncPeriodSeconds: 0`). The consumer determines the default
    /// of `fingerprint.view`.
    ///
    /// `schedulerPlugins`: the plugin subtracts what it places from every zone of its cache, and reads the
    /// object again at a resync if the fingerprint matches. The object has the fingerprint in the scheduler's
    /// view, which is withheld while a pod is not accounted for, and the NUMA node of each container for the
    /// plugin's preemption.
    ///
    /// `schedulerPluginsDirect`: the plugin reads the object for each pod and node, and uses no fingerprint.
    /// The zones reserve what a bound pod will get exclusively, until the kubelet's List shows it, the pod ends,
    /// or a minute has passed. Which zone it will be is not known yet, so all are reduced, with one more write
    /// per pod. Only the API server reports a pod as soon as it is bound: other values of `pods.source` have no
    /// reservations, and the plugin may place a second pod before the first is admitted.
    ///
    /// `kai`: KAI's plugin reads what the zones have allocatable, and what each pod has from an annotation,
    /// which the agent writes. That requires `patch` of `pods/status`. No fingerprint and no reservations.
    ///
    /// `kaiDirect`: KAI's plugin reads what the zones have available. The zones reserve as with
    /// `schedulerPluginsDirect`, and no pod is annotated.
    ///
    /// `none`: no fingerprint and no reservations.
    pub consumer: Consumer,
    /// The host's files.
    pub host: Host,
    /// The kubelet.
    pub kubelet: Kubelet,
    /// When the node is read.
    pub scan: Scan,
    /// Where pods are read.
    pub pods: Pods,
    /// The object.
    pub publish: Publish,
    /// The pod fingerprint.
    pub fingerprint: Fingerprint,
    /// Dynamic resource allocation.
    pub dra: Dra,
    /// What the zones leave out.
    pub exclude: Exclude,
    /// The podresources proxy.
    pub proxy: Proxy,
    /// The Pods API server.
    pub pods_api: PodsApi,
    /// The controller; the agent reads nothing of it.
    pub controller: Controller,
    /// The log.
    pub log: Log,
    /// The metrics endpoint.
    pub metrics: Metrics,
    /// The health endpoint.
    pub health: Health,
}
