//! Dynamic resource allocation: the ResourceSlices of one node, and single ResourceClaims.
//!
//! Slices can be selected by node, claims only by name: whoever may read one claim may read all of the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use kube::api::{GetParams, ListParams, WatchParams};
use kube::client::Body;
use kube::core::Request;
use serde::Deserialize;
use tokio::time::Instant;

use super::list_watch::{Limit, ListWatchParams, PartialObject};
use super::{Cluster, ClusterError, Failure, ListWatchStream};
use crate::claims::{Claim, Device, Slice, SliceObject};
use crate::json_list::MAX_ITEM_BYTES;
use crate::names::is_dns_name;

const GROUP: &str = "/apis/resource.k8s.io";

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

impl WatchedSlice {
    /// The maximum [weight](Self::weight) of all slices of a node that are kept: some 10 MiB. A machine with 16 GPUs
    /// of 30 partitions each has a third of it.
    pub const MAX_WEIGHT: usize = 16_384;

    /// Returns the number of its devices and counters, as a measure of the memory that it takes. A slice without any
    /// counts as one.
    pub fn weight(&self) -> usize {
        let counters = |sets: &CounterSets| sets.values().map(|set| 1 + set.len()).sum::<usize>();
        let device =
            |(_, device): &(String, Device)| 1 + device.stands_for.len() + counters(&device.consumes);
        1 + counters(&self.slice.counters) + self.slice.devices.iter().map(device).sum::<usize>()
    }
}

impl PartialObject for WatchedSlice {
    fn version(&self) -> &str {
        &self.version
    }
}

type CounterSets = BTreeMap<String, BTreeMap<String, u64>>;

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
            let body = self.read_limited(request, MAX_ITEM_BYTES).await?;
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

    /// Lists and watches the slices of one node; a list has at most [`WatchedSlice::MAX_WEIGHT`] of them. If the
    /// version is not served, the error is [`ClusterError::is_missing_api`].
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
            limit: Some(Limit {
                weigh: WatchedSlice::weight,
                max: WatchedSlice::MAX_WEIGHT,
                unit: "devices and counters",
            }),
        };
        self.list_watch(params, Instant::now())
    }

    /// Reads a claim; `None` if there is no such claim.
    ///
    /// # Errors
    /// See [`ClusterError`]; [`ClusterError::is_missing_api`] if this version is not served, and
    /// [`ClusterError::is_about_object`] if the claim is too large or invalid.
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
    /// See [`ClusterError`]; [`ClusterError::is_missing_api`] if this version is not served.
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
            let body = self.read_limited(request.map(Body::from), MAX_ITEM_BYTES).await?;
            parse(&body).map_err(kube::Error::SerdeError)
        };
        match self.in_time(&what, call).await {
            Ok(claim) => Ok(Some(claim)),
            Err(failure) if failure.is_missing("resourceclaims", name) => Ok(None),
            Err(failure) => Err(failure.explain(&what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use futures::StreamExt;
    use http::{Request, Response};
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::ListWatchEvent;

    const V1: DraVersion = DraVersion("v1");

    /// Returns a cluster whose API server responds to every request with this.
    fn cluster(code: u16, body: &str) -> Cluster {
        let body = body.as_bytes().to_vec();
        let service = tower::service_fn(move |_: Request<Body>| {
            let response = Response::builder().status(code).body(Body::from(body.clone()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        let client = kube::Client::new(service, "default");
        Cluster::with_client(client, "fake".to_owned(), Duration::from_secs(30))
    }

    async fn claim(code: u16, body: &str) -> Result<Option<Claim>, ClusterError> {
        cluster(code, body).claim(V1, "ns", "gpu").await
    }

    /// During an upgrade, one of several API servers may not serve the version.
    #[tokio::test]
    async fn only_a_404_that_names_the_claim_means_that_there_is_none() {
        let not_found = |reason: &str, details: Value| {
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": reason, "details": details,
                   "message": "no"})
            .to_string()
        };
        let of = |kind: &str, name: &str| json!({"name": name, "group": "resource.k8s.io", "kind": kind});
        let missing = not_found("NotFound", of("resourceclaims", "gpu"));
        assert_eq!(claim(404, &missing).await, Ok(None));
        let status = cluster(404, &missing).claim_status(V1, "ns", "gpu").await;
        assert!(matches!(status, Ok(None)), "{status:?}");
        for body in [
            "404 page not found\n".to_owned(),
            "<html>".to_owned(),
            not_found("NotFound", json!({})),
            not_found("NotFound", Value::Null),
            not_found("", of("resourceclaims", "gpu")),
            not_found("NotFound", of("resourceclaims", "other")),
            not_found("NotFound", of("namespaces", "gpu")),
        ] {
            let error = claim(404, &body).await.unwrap_err();
            assert!(error.is_missing_api(), "{body}: {error}");
        }
        for code in [403, 500, 503] {
            let error = claim(code, &missing.replace("404", &code.to_string())).await.unwrap_err();
            assert!(!error.is_missing_api() && !error.is_about_object(), "{error}");
        }
    }

    /// Returns a slice with this many devices, each of which consumes so many counters of one set.
    fn slice(name: &str, devices: usize, counters: usize) -> Value {
        let counters: BTreeMap<_, _> =
            (0..counters).map(|at| (at.to_string(), json!({"value": "1"}))).collect();
        let consumed = json!([{"counterSet": "set", "counters": counters}]);
        let device = |at: usize| json!({"name": format!("d{at}"), "consumesCounters": consumed});
        let devices: Vec<_> = (0..devices).map(device).collect();
        json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"devices": devices}})
    }

    #[test]
    fn a_slice_weighs_as_much_as_it_has_devices_and_counters() {
        let weight = |slice: Value| serde_json::from_value::<WatchedSlice>(slice).unwrap().weight();
        assert_eq!(weight(slice("none", 0, 0)), 1);
        assert_eq!(weight(slice("some", 3, 2)), 1 + 3 * (1 + 1 + 2));
        let counters = json!({"a": {"value": "1"}, "b": {"value": "2"}});
        let shared = json!([{"name": "set", "counters": counters}]);
        let shared = json!({"metadata": {}, "spec": {"sharedCounters": shared, "devices": []}});
        assert_eq!(weight(shared), 1 + 1 + 2);
        let mapping = json!({"cpu": {"mapping": {"deviceMultiplier": "1"}}});
        let device = json!({"name": "d", "nodeAllocatableResources": mapping});
        assert_eq!(weight(json!({"metadata": {}, "spec": {"devices": [device]}})), 1 + 1 + 1);
    }

    #[tokio::test]
    async fn a_list_keeps_a_limited_number_of_devices_and_counters() {
        let mut slices: Vec<_> = (0..20).map(|at| slice(&format!("s{at:02}"), 128, 6)).collect();
        slices.push(slice("small", 1, 0));
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": slices}).to_string();
        let listed = cluster(200, &list).watch_slices(V1, "w").next().await.unwrap();
        let Ok(ListWatchEvent::Listed(kept)) = listed else { panic!("{listed:?}") };
        let names: Vec<_> = kept.iter().map(|of| of.slice.name.as_str()).collect();
        assert_eq!(
            (names.len(), names[..2].to_vec(), names[14..].to_vec()),
            (16, vec!["s00", "s01"], vec!["s14", "small"])
        );
        let weights = kept.iter().map(WatchedSlice::weight);
        assert!(weights.sum::<usize>() <= WatchedSlice::MAX_WEIGHT);
    }

    /// Go writes `<` as six bytes.
    #[tokio::test]
    async fn a_claim_may_be_as_large_in_json_as_etcd_accepts() {
        let with_value = |value: &str| {
            format!(
                r#"{{"metadata":{{"uid":"u","annotations":{{"a":"{value}"}}}},"status":{{"allocation":{{}}}}}}"#
            )
        };
        let read = claim(200, &with_value(&r"\u003c".repeat(3 << 19))).await;
        assert!(matches!(&read, Ok(Some(claim)) if claim.is_allocated && claim.uid == "u"), "{read:?}");
        let large = with_value(&"x".repeat(MAX_ITEM_BYTES));
        for (body, reason) in [(&*large, "more than 10485760 bytes"), ("{\"status\":[", "EOF while parsing")]
        {
            let error = claim(200, body).await.unwrap_err();
            assert!(error.is_about_object() && error.to_string().contains(reason), "{error}");
        }
    }
}
