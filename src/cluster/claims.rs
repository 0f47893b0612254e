//! Dynamic resource allocation: the ResourceSlices of one node, and single ResourceClaims.
//!
//! Slices can be selected by node, claims only by name: whoever may read one claim may read all of the cluster.

use k8s_openapi::api::core::v1::NodeSelector;
use kube::api::{GetParams, ListParams, WatchParams};
use kube::client::Body;
use kube::core::Request;
use serde::Deserialize;
use tokio::time::Instant;

use super::list_watch::{ListWatchParams, PartialObject};
use super::{Cluster, ClusterError, Failure, ListWatchStream};
use crate::claims::{Claim, Slice, SliceObject};
use crate::names::is_dns_name;

const GROUP: &str = "/apis/resource.k8s.io";

/// Maximum size of a response in bytes: that of an object in etcd, by default.
const MAX_BYTES: usize = 3 << 19;

/// A served version of `resource.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraVersion(&'static str);

/// Newest first.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];

/// A ResourceSlice and its version.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "SliceObject")]
pub struct WatchedSlice {
    version: String,
    /// The slice.
    pub slice: Slice,
}

impl From<SliceObject> for WatchedSlice {
    fn from(object: SliceObject) -> Self {
        Self { version: object.version().to_owned(), slice: object.into() }
    }
}

impl PartialObject for WatchedSlice {
    fn version(&self) -> &str {
        &self.version
    }
}

/// The status of a claim, as far as it decides where its pods can go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    /// What the scheduler has allocated.
    pub allocation: Option<ClaimAllocation>,
}

/// The nodes of an allocation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimAllocation {
    /// The nodes on which the devices can be used; `None` is all.
    pub node_selector: Option<NodeSelector>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimObject {
    status: ClaimStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiGroup {
    versions: Vec<GroupVersion>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupVersion {
    version: String,
}

impl Cluster {
    /// Returns the newest version of `resource.k8s.io` that is known and served; `None` without one.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn dra_version(&self) -> Result<Option<DraVersion>, ClusterError> {
        let what = "get the API group resource.k8s.io";
        let call = async {
            let request = hyper::Request::get(GROUP).body(Body::empty()).map_err(kube::Error::HttpError)?;
            let body = self.read_limited(request, MAX_BYTES).await?;
            serde_json::from_slice(&body).map_err(kube::Error::SerdeError)
        };
        let group: ApiGroup = match self.in_time(what, call).await {
            Ok(group) => group,
            Err(Failure::Status(status)) if status.code == 404 => return Ok(None),
            Err(failure) => return Err(failure.explain(what)),
        };
        let is_served = |version: &&str| group.versions.iter().any(|served| served.version == **version);
        Ok(VERSIONS.into_iter().find(is_served).map(DraVersion))
    }

    /// Lists and watches the slices of one node.
    pub fn watch_slices(&self, version: DraVersion, node: &str) -> ListWatchStream<WatchedSlice> {
        let selector = format!("spec.nodeName={node}");
        let params = ListWatchParams {
            what: "resourceslices",
            path: format!("{GROUP}/{}/resourceslices", version.0),
            // From the watch cache, which has an index of the nodes.
            list: ListParams { resource_version: Some("0".to_owned()), ..ListParams::default() }
                .fields(&selector),
            watch: WatchParams::default().fields(&selector),
            metadata: false,
            keep: |_| true,
        };
        self.list_watch(params, Instant::now())
    }

    /// Reads a claim; `None` if there is none.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn claim(
        &self,
        version: DraVersion,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Claim>, ClusterError> {
        self.read_claim(version, namespace, name, Claim::from_json).await
    }

    /// Reads the status of a claim; `None` if there is no such claim.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn claim_status(
        &self,
        version: DraVersion,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ClaimStatus>, ClusterError> {
        // The name may be from a manifest, which nobody has checked.
        if !is_dns_name(namespace) || !is_dns_name(name) {
            return Ok(None);
        }
        let parse = |json: &[u8]| serde_json::from_slice(json).map(|ClaimObject { status }| status);
        self.read_claim(version, namespace, name, parse).await
    }

    async fn read_claim<T>(
        &self,
        version: DraVersion,
        namespace: &str,
        name: &str,
        parse: impl Fn(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<Option<T>, ClusterError> {
        let what = format!("get resourceclaim {namespace}/{name}");
        let path = format!("{GROUP}/{}/namespaces/{namespace}/resourceclaims", version.0);
        let call = async {
            let request = Request::new(path).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            let body = self.read_limited(request.map(Body::from), MAX_BYTES).await?;
            parse(&body).map_err(kube::Error::SerdeError)
        };
        match self.in_time(&what, call).await {
            Ok(claim) => Ok(Some(claim)),
            Err(Failure::Status(status)) if status.code == 404 => Ok(None),
            Err(failure) => Err(failure.explain(&what)),
        }
    }
}
