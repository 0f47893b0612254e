//! The API server client: a thin layer over [`kube::Client`] with the requests of agent and controller.
//!
//! Each call has a deadline and is tried once: the caller decides about retries, since only it knows what is
//! newest by then.

mod agents;
mod claims;
mod error;
mod events;
mod frames;
mod inspected;
mod koordinator_devices;
mod lease;
mod list_watch;
mod metadata;
mod node_match;
mod nodes;
mod nrt_meta;
mod nrt_summary;
mod object_names;
mod object_watch;
mod pages;
mod pod_annotation;
mod pods;
mod protobuf;
mod published;
mod raw_request;
mod reviews;
mod slim_pod;
mod stored;
mod timed_backoff;
mod topologies;
mod unscheduled;
mod watch;
mod watch_timer;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::request;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::nrt::Form;
use crate::util::error_chain::chain;

pub use crate::watch_event::WatchEvent;
pub use agents::{SlimContainer, SlimDaemonSet, SlimPodSpec, pod_labels, runs_agents};
pub use claims::{ClaimAllocation, ClaimStatus, DraVersion, WatchedSlice};
pub use error::{ClusterError, StartupDenials};
pub use events::{EVENTS_NAMESPACE, EventPoster, Regarding};
pub use frames::FrameSplitter;
pub use inspected::{BindingDetails, CRD_NAME, CrdDetails, NriPolicy, PolicyDetails};
pub use koordinator_devices::{Device, KoordinatorDevices};
pub use list_watch::{ListWatchEvent, ListWatchStream};
pub use node_match::is_tolerated;
pub use nodes::{KubeletEndpoint, NodeDetails, NodeMetadata, SlimNode};
pub use nrt_meta::{KEEP, NrtMeta, Writers};
pub use nrt_summary::{ByZone, NrtSummary, is_built_in};
pub use object_watch::{ObjectEvent, ObjectWatch};
pub use pages::Pages;
pub use pods::{PodFrame, PodListDecoder};
pub use protobuf::{DecodeError, decode_status};
pub use published::PublishedObject;
pub use reviews::User;
pub use slim_pod::SlimPod;
pub use stored::{OfNode, StoredObject};
pub use unscheduled::NUDGE;

use error::Failure;

/// Our field manager name in `managedFields`.
pub const FIELD_MANAGER: &str = "numacast";

/// Read timeout of kube's watcher. It is longer than the requested watch timeout, so a healthy connection
/// never reaches it.
const WATCHER_READ_TIMEOUT: Duration = Duration::from_secs(280);

/// An API server client with deadlines.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    server: String,
    timeout: Duration,
    config: Option<Arc<kube::Config>>,
    /// The API version and form of the objects.
    form: Form,
}

/// Returns the names of the contexts in a kubeconfig, by default in the user's; none if it cannot be read.
pub fn contexts(kubeconfig: Option<&Path>) -> Vec<String> {
    let file = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    file.map(|file| file.contexts.into_iter().map(|context| context.name).collect()).unwrap_or_default()
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
    pub async fn new(kubeconfig: Option<&Path>, timeout: Duration) -> Result<Self, ClusterError> {
        Self::in_context(kubeconfig, None, timeout).await
    }

    /// Like [`Cluster::new`], with this context of the kubeconfig instead of its current one.
    ///
    /// # Errors
    /// If there is no such file or context, or if it cannot be used.
    pub async fn in_context(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, ClusterError> {
        let no_config = |error: String| ClusterError::NoConfig(error);
        let mut config = match (kubeconfig, context) {
            (None, None) => kube::Config::infer().await.map_err(|error| no_config(error.to_string()))?,
            (path, context) => {
                let place = path.map(|path| format!("{}: ", path.display())).unwrap_or_default();
                let explain = |error: String| no_config(format!("{place}{error}"));
                let file = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
                let file = file.map_err(|error| explain(chain(&error)))?;
                let options =
                    KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
                kube::Config::from_custom_kubeconfig(file, &options)
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
    pub fn with_client(client: kube::Client, server: String, timeout: Duration) -> Self {
        Self { client, server, timeout, config: None, form: Form::default() }
    }

    /// Returns a client for kube's watcher, which has no deadlines of its own. Other requests have no read
    /// timeout: it sets an expired timer on every read and so wakes the runtime twice.
    fn client_for_watcher(&self) -> kube::Client {
        let Some(mut config) = self.config.as_deref().cloned() else { return self.client.clone() };
        config.read_timeout = Some(WATCHER_READ_TIMEOUT);
        // `self.client` was built from the same configuration.
        kube::Client::try_from(config).unwrap_or_else(|_| self.client.clone())
    }

    /// Sets the form in which objects are written and read.
    pub fn in_form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Returns the form in which objects are written and read.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns the credentials and the CA, for requests to the kubelet; `None` for a client from
    /// [`Cluster::with_client`].
    pub fn config(&self) -> Option<&kube::Config> {
        self.config.as_deref()
    }

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

    async fn bytes(&self, request: Built) -> Result<Bytes, kube::Error> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        Ok(self.send(request.map(Body::from)).await?.collect().await?.to_bytes())
    }

    /// Maps an error that is not a response of the API server.
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

    /// Runs a call with the client's deadline. `what` names it in messages.
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
            Ok(Ok(response)) => Ok(response),
            Ok(Err(kube::Error::Api(status))) => Err(Failure::Status(status)),
            Ok(Err(error)) => Err(Failure::Known(self.explain(what, &error))),
            Err(_) => {
                let what = what.to_owned();
                Err(Failure::Known(ClusterError::Deadline { what, after }))
            }
        }
    }
}

/// A request built by kube, unless that failed.
type Built = Result<hyper::Request<Vec<u8>>, request::Error>;

fn encoded(object: &impl Serialize) -> Result<Vec<u8>, request::Error> {
    serde_json::to_vec(object).map_err(request::Error::SerializeBody)
}
