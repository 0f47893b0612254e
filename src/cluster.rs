//! The API server client: our own Node's identity and the one object we write; for the controller all Nodes,
//! all objects, the agents and a Lease.
//!
//! Every call has a deadline and is tried once: the caller decides about retries, since only it knows what is
//! newest by then.

mod agents;
mod device;
mod devices;
mod events;
mod follow;
mod lease;
mod list_items;
mod list_watch;
mod metadata;
mod nodes;
mod objects;
mod pages;
mod pods;
mod rejected;
mod scheduler;
mod slim;
mod steady;
mod watch;

use std::fmt::{self, Debug};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::Node;
use kube::api::{GetParams, ObjectMeta, Patch, PatchParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{Request, Status, request};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::nrt::{Form, NodeResourceTopology, NodeResourceTopologyFields as Fields};
use crate::util::error_chain::chain;

pub use crate::seen::Seen;
pub use agents::{AgentPod, SlimDaemonSet, SlimPodSpec, pod_labels, runs_agents};
pub use device::{Device, Devices};
pub use events::{EVENTS_NAMESPACE, Regarding, Report};
pub use follow::{Follow, Glimpse};
pub use list_watch::{Tellings, Told};
use metadata::OnlyMetadata;
use nodes::KubeletNode;
pub use nodes::{KubeletEndpoint, SlimNode};
pub use objects::{Brief, KEEP, Mark, Sum, Writers, is_native};
pub use pages::Pages;
pub use pods::{Frames, News, Odd, PodList, refusal};
pub use rejected::{ChangedObject, NUDGE, UnscheduledPod};

/// Our field manager name in `managedFields`.
pub const FIELD_MANAGER: &str = "numacast";

/// Read timeout for kube's watcher. It is longer than the requested watch timeout, so a healthy connection
/// never reaches it.
const SILENCE: Duration = Duration::from_secs(280);

/// An API server client with deadlines.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    server: String,
    timeout: Duration,
    /// The configuration of the client.
    config: Option<Arc<kube::Config>>,
    /// The API version and form of the objects.
    form: Form,
}

/// An error of an API server call. Every variant is one sentence for the cluster's administrator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// There is no usable client configuration.
    #[error(
        "no way to reach the API server: {0}; set `publish.kubeconfig` or run in a pod with a service account"
    )]
    NoConfig(String),
    /// The connection failed.
    #[error("the API server at {server} cannot be reached: {reason}")]
    Unreachable {
        /// The API server's URL.
        server: String,
        /// The connection error.
        reason: String,
    },
    /// No response in time.
    #[error("the API server did not answer within {after:?} ({what})")]
    Deadline {
        /// The request.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// The response is not one of an API server.
    #[error("what {server} answered ({what}) is not understood: {reason}; is it an API server?")]
    NotUnderstood {
        /// The API server's URL.
        server: String,
        /// The request.
        what: String,
        /// What is wrong with the response.
        reason: String,
    },
    /// The CRD is not installed.
    #[error(
        "the API server does not know noderesourcetopologies.topology.node.k8s.io/{0}: install the CRD \
         (`numacast crd | kubectl apply -f -`)"
    )]
    NoCrd(&'static str),
    /// The API server rejected our credentials.
    #[error("the API server does not accept our credentials: {0}")]
    Unauthorized(String),
    /// RBAC denies the request.
    #[error("RBAC refuses: {0}")]
    Forbidden(String),
    /// The Node does not exist.
    #[error(
        "the cluster has no node `{0}`: is `nodeName` (NODE_NAME) right, and has the kubelet registered?"
    )]
    NoSuchNode(String),
    /// The API server rejected the request.
    #[error("the API server refused {what}: {message} ({code})")]
    Refused {
        /// The request.
        what: String,
        /// The HTTP status code.
        code: u16,
        /// The server's message.
        message: String,
        /// The delay before a retry that the server asks for.
        retry_after: Option<Duration>,
    },
}

impl ClusterError {
    /// All values of [`ClusterError::kind`].
    pub const KINDS: [&str; 13] = [
        "no_config",
        "unreachable",
        "deadline",
        "not_understood",
        "no_crd",
        "unauthorized",
        "forbidden",
        "no_such_node",
        "conflict",
        "too_many_requests",
        "invalid",
        "server_error",
        "refused",
    ];

    /// Returns the kind of error, for a metric label.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoConfig(_) => "no_config",
            Self::Unreachable { .. } => "unreachable",
            Self::Deadline { .. } => "deadline",
            Self::NotUnderstood { .. } => "not_understood",
            Self::NoCrd(_) => "no_crd",
            Self::Unauthorized(_) => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::NoSuchNode(_) => "no_such_node",
            Self::Refused { code: 409, .. } => "conflict",
            Self::Refused { code: 429, .. } => "too_many_requests",
            Self::Refused { code: 400 | 422, .. } => "invalid",
            Self::Refused { code: 500.., .. } => "server_error",
            Self::Refused { .. } => "refused",
        }
    }

    /// Returns true if permission is missing, whether RBAC or an admission plugin denies it.
    #[must_use]
    pub const fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::Refused { code: 403, .. })
    }

    /// Returns true if an admission plugin denied what RBAC allows.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::Refused { code: 403, .. })
    }

    /// Returns true if the object was written since it was read, or is not the one with the expected UID.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Refused { code: 409, .. } => true,
            // The API server rejects an apply whose UID differs from the object's.
            Self::Refused { code: 422, message, .. } => message.contains("metadata.uid"),
            _ => false,
        }
    }

    /// Returns true if the object does not exist.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// Returns true if the error persists until somebody fixes its cause.
    #[must_use]
    pub const fn needs_a_person(&self) -> bool {
        match self {
            Self::NoConfig(_) | Self::NoCrd(_) | Self::Unauthorized(_) | Self::Forbidden(_) => true,
            Self::Refused { code, .. } => matches!(code, 400..=499) && !matches!(code, 408 | 409 | 429),
            _ => false,
        }
    }

    /// Returns true if every other call would fail too. A 403 may concern a single object: RBAC and an
    /// admission policy cannot be told apart.
    #[must_use]
    pub const fn concerns_all(&self) -> bool {
        match self {
            Self::Refused { code, .. } => *code == 429,
            Self::Forbidden(_) | Self::NoSuchNode(_) | Self::NotUnderstood { .. } => false,
            _ => true,
        }
    }

    /// Returns the delay before a retry that the server asks for.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl fmt::Debug for Cluster {
    /// Omits the client, which holds a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Creates a client from a kubeconfig file, or from the environment if none is given. Does not connect
    /// yet.
    ///
    /// # Errors
    /// [`ClusterError::NoConfig`].
    pub async fn new(kubeconfig: Option<&Path>, timeout: Duration) -> Result<Self, ClusterError> {
        let no_config = |error: String| ClusterError::NoConfig(error);
        let mut config = match kubeconfig {
            None => kube::Config::infer().await.map_err(|error| no_config(error.to_string()))?,
            Some(path) => {
                let explain = |error: String| no_config(format!("{}: {error}", path.display()));
                let file = Kubeconfig::read_from(path).map_err(|error| explain(chain(&error)))?;
                kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(|error| explain(chain(&error)))?
            }
        };
        // kube's retries could write a stale object minutes late.
        config.default_retry = false;
        config.connect_timeout = Some(timeout);
        let server = config.cluster_url.to_string();
        let client = kube::Client::try_from(config.clone()).map_err(|error| no_config(chain(&error)))?;
        Ok(Self { client, server, timeout, config: Some(Arc::new(config)), form: Form::default() })
    }

    /// Wraps an existing client; `server` names the API server in messages.
    #[must_use]
    pub fn with_client(client: kube::Client, server: String, timeout: Duration) -> Self {
        Self { client, server, timeout, config: None, form: Form::default() }
    }

    /// Returns a client for kube's watcher, which has no timeout of its own. Other requests have deadlines
    /// and no read timeout: that sets an expired timer on every read and so wakes the runtime twice.
    fn client_for_watcher(&self) -> kube::Client {
        let Some(mut config) = self.config.as_deref().cloned() else { return self.client.clone() };
        config.read_timeout = Some(SILENCE);
        // `self.client` was built from the same configuration.
        kube::Client::try_from(config).unwrap_or_else(|_| self.client.clone())
    }

    /// Sets the form in which objects are written and read.
    #[must_use]
    pub fn in_form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Returns the form in which objects are written and read.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns the credentials and the CA, for requests to the kubelet; `None` for a client from
    /// [`Cluster::with_client`].
    #[must_use]
    pub fn config(&self) -> Option<&kube::Config> {
        self.config.as_deref()
    }

    /// Returns the UID of a Node, for the owner reference of its object.
    ///
    /// # Errors
    /// See [`ClusterError`]; only calls for a Node return [`ClusterError::NoSuchNode`].
    pub async fn node_uid(&self, name: &str) -> Result<String, ClusterError> {
        let request = nodes().get_metadata(name, &GetParams::default());
        let node = self.get_node(name, self.read::<OnlyMetadata>(request)).await?;
        Ok(node.metadata.uid.unwrap_or_default())
    }

    /// Returns the version that a node's kubelet reported, such as `v1.36.3`; empty if it has not yet.
    ///
    /// # Errors
    /// As [`Cluster::node_uid`].
    pub async fn kubelet_version(&self, name: &str) -> Result<String, ClusterError> {
        Ok(self.get_node(name, self.kubelet_node(name)).await?.version())
    }

    /// Returns the address of a kubelet's HTTPS port, as it reported it.
    ///
    /// # Errors
    /// As [`Cluster::node_uid`].
    pub async fn kubelet_endpoint(&self, name: &str) -> Result<KubeletEndpoint, ClusterError> {
        Ok(self.get_node(name, self.kubelet_node(name)).await?.endpoint())
    }

    async fn kubelet_node(&self, name: &str) -> Result<KubeletNode, kube::Error> {
        self.read(nodes().get(name, &GetParams::default())).await
    }

    /// Runs a request for a Node, or for a part of it.
    async fn get_node<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ClusterError> {
        let what = format!("get node {name}");
        self.in_time(&what, call).await.map_err(|failure| match failure {
            Failure::Status(status) if status.code == 404 => ClusterError::NoSuchNode(name.to_owned()),
            failure => failure.explain(&what),
        })
    }

    /// Returns the object of a node; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`ClusterError`]; only calls for an object return [`ClusterError::NoCrd`].
    pub async fn topology(&self, name: &str) -> Result<Option<NodeResourceTopology>, ClusterError> {
        let call = async {
            let bytes = self.bytes(self.topologies().get(name, &GetParams::default())).await?;
            read_topology(&bytes).map_err(kube::Error::SerdeError)
        };
        Ok(self.get_topology(name, call).await?.map(|object| self.form.read(object)))
    }

    /// Runs a request for an object, or for a part of it; `None` if the object does not exist.
    async fn get_topology<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Option<T>, ClusterError> {
        let what = format!("get noderesourcetopology {name}");
        match self.in_time(&what, call).await {
            Ok(read) => Ok(Some(read)),
            // If the resource itself is unknown, the 404 has no reason.
            Err(Failure::Status(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
            Err(failure) => Err(self.explain_object(failure, &what)),
        }
    }

    /// Applies `object` (server-side apply). If it has a UID, the object must exist with that UID
    /// ([`ClusterError::is_conflict`] otherwise); without one it is created if missing. Returns the object's
    /// metadata; its version is unchanged if the apply changed nothing.
    ///
    /// # Errors
    /// As [`Cluster::topology`].
    pub async fn apply(&self, object: &NodeResourceTopology) -> Result<ObjectMeta, ClusterError> {
        let name = object.name_any();
        let what = format!("apply noderesourcetopology {name}");
        // Force: fields that an earlier agent owns under another manager's name must not lock us out.
        let params = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
        if self.form == Form::default() {
            return self.patch(&what, &name, &params, &Patch::Apply(object)).await;
        }
        let object = self.form.json(object).map_err(|error| ClusterError::Refused {
            what: what.clone(),
            code: 422,
            message: error.to_string(),
            retry_after: None,
        })?;
        self.patch(&what, &name, &params, &Patch::Apply(&object)).await
    }

    /// Changes an object by a JSON merge patch, which can also change fields of other managers. A patch with
    /// a `resourceVersion` fails if the object has another one ([`ClusterError::is_conflict`]). Returns the
    /// object's metadata.
    ///
    /// # Errors
    /// As [`Cluster::topology`].
    pub async fn merge(&self, name: &str, patch: &Value) -> Result<ObjectMeta, ClusterError> {
        let what = format!("patch noderesourcetopology {name}");
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.patch(&what, name, &params, &Patch::Merge(patch)).await
    }

    async fn patch<P: Serialize + Debug>(
        &self,
        what: &str,
        name: &str,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<ObjectMeta, ClusterError> {
        let request = self.topologies().patch_metadata(name, params, patch);
        let patched = self.in_time(what, self.read::<OnlyMetadata>(request)).await;
        patched.map(|object| object.metadata).map_err(|failure| self.explain_object(failure, what))
    }

    fn topologies(&self) -> Request {
        Request::new(self.topologies_path())
    }

    /// Runs a request and decodes the response.
    async fn read<T: DeserializeOwned>(&self, request: Built) -> Result<T, kube::Error> {
        serde_json::from_slice(&self.bytes(request).await?).map_err(kube::Error::SerdeError)
    }

    /// As [`Cluster::read`]; `None` if the object does not exist.
    async fn read_opt<T: DeserializeOwned>(
        &self,
        what: &str,
        request: Built,
    ) -> Result<Option<T>, ClusterError> {
        match self.in_time(what, self.read(request)).await {
            Ok(object) => Ok(Some(object)),
            Err(Failure::Status(status)) if status.is_not_found() => Ok(None),
            Err(failure) => Err(failure.explain(what)),
        }
    }

    /// Runs a request and returns the response.
    async fn bytes(&self, request: Built) -> Result<Bytes, kube::Error> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        Ok(self.send(request.map(Body::from)).await?.collect().await?.to_bytes())
    }

    /// Maps a failed call for an object: the resource itself may be unknown.
    fn explain_object(&self, failure: Failure, what: &str) -> ClusterError {
        match failure {
            Failure::Status(status) if status.code == 404 && status.reason != "NotFound" => {
                ClusterError::NoCrd(self.form.version.name())
            }
            failure => failure.explain(what),
        }
    }

    /// Maps errors that are not a response of the API server.
    fn explain(&self, what: &str, error: &kube::Error) -> ClusterError {
        let (server, reason) = (self.server.clone(), chain(error));
        match error {
            kube::Error::HyperError(_) | kube::Error::Service(_) => {
                ClusterError::Unreachable { server, reason }
            }
            kube::Error::Auth(_) => ClusterError::Unauthorized(reason),
            _ => ClusterError::NotUnderstood { server, what: what.to_owned(), reason },
        }
    }

    async fn in_time<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        self.within(self.timeout, what, call).await
    }

    async fn within<T>(
        &self,
        after: Duration,
        what: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(after, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(Failure::Status(status)),
            Ok(Err(error)) => Err(Failure::Known(self.explain(what, &error))),
            Err(_) => {
                let what = what.to_owned();
                Err(Failure::Known(ClusterError::Deadline { what, after }))
            }
        }
    }
}

/// A request that kube has built, unless that failed.
type Built = Result<hyper::Request<Vec<u8>>, request::Error>;

/// Encodes the body of a request.
fn encoded(object: &impl Serialize) -> Result<Vec<u8>, request::Error> {
    serde_json::to_vec(object).map_err(request::Error::SerializeBody)
}

fn nodes() -> Request {
    Request::new(Node::url_path(&(), None))
}

/// Decodes an object of ours. Unreadable content counts as empty: a foreign writer must not lock us out.
fn read_topology(bytes: &[u8]) -> Result<NodeResourceTopology, serde_json::Error> {
    let OnlyMetadata { metadata } = serde_json::from_slice(bytes)?;
    let spec: Fields = serde_json::from_slice(bytes).unwrap_or_default();
    Ok(NodeResourceTopology { metadata, spec })
}

enum Failure {
    Status(Box<Status>),
    Known(ClusterError),
}

impl Failure {
    fn explain(self, what: &str) -> ClusterError {
        let status = match self {
            Self::Known(error) => return error,
            Self::Status(status) => status,
        };
        match status.code {
            401 => ClusterError::Unauthorized(status.message),
            // Admission plugins respond with 403 as well; only RBAC's message contains "cannot".
            403 if status.message.contains(" cannot ") => ClusterError::Forbidden(status.message),
            code => {
                let seconds = status.details.map_or(0, |details| details.retry_after_seconds);
                let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                ClusterError::Refused { what: what.to_owned(), code, message: status.message, retry_after }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_read_whatever_its_managed_fields_are() {
        for levels in [1, 130, 10_000] {
            let zones = r#"[{"name":"node-0","type":"Node"}]"#;
            let object = format!(r#"{{"metadata":{},"zones":{zones}}}"#, metadata::nested(levels));
            let object = read_topology(object.as_bytes()).unwrap();
            assert_eq!((object.name_any().as_str(), object.spec.zones.len()), ("w", 1));
        }
        let odd = read_topology(br#"{"metadata":{"name":"w"},"zones":7}"#).unwrap();
        assert_eq!(odd, NodeResourceTopology::new("w", Fields::default()));
        assert!(read_topology(b"<html>").is_err());
    }
}
