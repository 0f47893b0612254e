use std::fmt::Debug;
use std::future::Future;

use kube::ResourceExt;
use kube::api::{DeleteParams, GetParams, ObjectMeta, Patch, PatchParams, Preconditions};
use kube::core::Request;
use serde::Serialize;
use serde_json::Value;

use super::error::Failure;
use super::metadata::OnlyMetadata;
use super::pages::{Listing, Pages};
use super::{Cluster, ClusterError, FIELD_MANAGER, NrtMeta, NrtSummary};
use crate::nrt::{Form, NodeResourceTopology, NodeResourceTopologyFields as Fields, describes_node};

/// Page size of metadata lists. An object's metadata takes some 2 KiB.
const METADATA_PAGE: u32 = 250;
/// Page size of object lists. The object of a large node takes some 50 KiB.
const OBJECT_PAGE: u32 = 50;

impl Cluster {
    /// Returns the object of a node; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`ClusterError`]; only calls for an object return [`ClusterError::NoCrd`].
    pub async fn topology(&self, name: &str) -> Result<Option<NodeResourceTopology>, ClusterError> {
        let call = async {
            let bytes = self.bytes(self.topologies().get(name, &GetParams::default())).await?;
            read_topology(&bytes).map_err(kube::Error::SerdeError)
        };
        Ok(self.call_for_topology("get", name, call).await?.map(|object| self.form.read(object)))
    }

    /// Returns the metadata of an object; `None` if it does not exist.
    pub async fn topology_meta(&self, name: &str) -> Result<Option<NrtMeta>, ClusterError> {
        let request = self.topologies().get_metadata(name, &GetParams::default());
        self.call_for_topology("get", name, self.read(request)).await
    }

    /// Runs a request for an object, or for a part of it; `None` if the object does not exist.
    pub(super) async fn call_for_topology<T>(
        &self,
        action: &str,
        name: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Option<T>, ClusterError> {
        let what = format!("{action} noderesourcetopology {name}");
        match self.in_time(&what, call).await {
            Ok(read) => Ok(Some(read)),
            // If the resource itself is unknown, the 404 has no reason.
            Err(Failure::Status(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
            Err(failure) => Err(self.explain_object(failure, &what)),
        }
    }

    /// Returns true if the object exists and a scheduler reads it as that of a Node.
    pub async fn topology_describes_node(&self, name: &str) -> Result<bool, ClusterError> {
        let Some(object) = self.topology(name).await? else { return Ok(false) };
        Ok(describes_node(object.spec.zones.iter().map(|zone| &*zone.kind)))
    }

    /// Lists the metadata of all objects.
    pub fn topology_metas(&self) -> Pages<NrtMeta> {
        Pages::new(self.clone(), self.topology_listing(METADATA_PAGE, true))
    }

    /// Lists all objects.
    pub fn topology_summaries(&self) -> Pages<NrtSummary> {
        Pages::new(self.clone(), self.topology_listing(OBJECT_PAGE, false))
    }

    pub(super) fn topology_listing(&self, page: u32, metadata: bool) -> Listing {
        Listing {
            what: "list noderesourcetopologies".to_owned(),
            path: self.topologies_path(),
            page,
            metadata,
            ..Listing::default()
        }
    }

    /// Applies `object` (server-side apply). If it has a UID, the object must exist with that UID
    /// ([`ClusterError::is_other_object_or_version`] otherwise); without one it is created if missing.
    /// Returns the object's metadata; its version is unchanged if the apply changed nothing.
    pub async fn apply(&self, object: &NodeResourceTopology) -> Result<ObjectMeta, ClusterError> {
        let name = object.name_any();
        let what = format!("apply noderesourcetopology {name}");
        // Force: fields that an earlier agent owns under another manager's name must not lock us out.
        let params = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
        if self.form == Form::default() {
            return self.patch(&what, &name, &params, &Patch::Apply(object)).await;
        }
        let object = self.form.json(object).map_err(|error| ClusterError::Rejected {
            what: what.clone(),
            code: 422,
            message: error.to_string(),
            retry_after: None,
        })?;
        self.patch(&what, &name, &params, &Patch::Apply(&object)).await
    }

    /// Changes an object by a JSON merge patch, which can also change fields of other managers. A patch with
    /// a `resourceVersion` fails if the object has another one
    /// ([`ClusterError::is_other_object_or_version`]). Returns the object's metadata.
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

    /// Deletes exactly this object, in the version that was read; returns false if it is gone. If it was
    /// written since, it is not deleted: [`ClusterError::is_other_object_or_version`].
    pub async fn delete_topology(&self, meta: &NrtMeta) -> Result<bool, ClusterError> {
        self.delete_if(meta, Some(meta.version.clone()).filter(|version| !version.is_empty())).await
    }

    /// Deletes the object with this UID, in any version; returns false if it is gone.
    pub async fn delete_topology_by_uid(&self, meta: &NrtMeta) -> Result<bool, ClusterError> {
        self.delete_if(meta, None).await
    }

    async fn delete_if(&self, meta: &NrtMeta, version: Option<String>) -> Result<bool, ClusterError> {
        let preconditions = Preconditions { uid: Some(meta.uid.clone()), resource_version: version };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        // The response may be the object itself.
        let call = self.bytes(self.topologies().delete(&meta.name, &params));
        Ok(self.call_for_topology("delete", &meta.name, call).await?.is_some())
    }

    pub(super) fn topologies(&self) -> Request {
        Request::new(self.topologies_path())
    }

    pub(super) fn topologies_path(&self) -> String {
        format!("/apis/topology.node.k8s.io/{}/noderesourcetopologies", self.form.version.name())
    }

    /// Maps a failed call for this path: of our objects, the resource itself may be unknown.
    pub(super) fn explain_at(&self, path: &str, failure: Failure, what: &str) -> ClusterError {
        match path.contains("/noderesourcetopologies") {
            true => self.explain_object(failure, what),
            false => failure.explain(what),
        }
    }

    fn explain_object(&self, failure: Failure, what: &str) -> ClusterError {
        match failure {
            Failure::Status(status) if status.code == 404 && status.reason != "NotFound" => {
                ClusterError::NoCrd(self.form.version.name())
            }
            failure => failure.explain(what),
        }
    }
}

/// Decodes an object. Unreadable content counts as empty: another writer must not lock us out.
fn read_topology(bytes: &[u8]) -> Result<NodeResourceTopology, serde_json::Error> {
    let OnlyMetadata { metadata } = serde_json::from_slice(bytes)?;
    let spec: Fields = serde_json::from_slice(bytes).unwrap_or_default();
    Ok(NodeResourceTopology { metadata, spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metadata::tests::nested;

    #[test]
    fn an_object_is_read_whatever_its_managed_fields_are() {
        for levels in [1, 130, 10_000] {
            let zones = r#"[{"name":"node-0","type":"Node"}]"#;
            let object = format!(r#"{{"metadata":{},"zones":{zones}}}"#, nested(levels));
            let object = read_topology(object.as_bytes()).unwrap();
            assert_eq!((object.name_any().as_str(), object.spec.zones.len()), ("w", 1));
        }
        let odd = read_topology(br#"{"metadata":{"name":"w"},"zones":7}"#).unwrap();
        assert_eq!(odd, NodeResourceTopology::new("w", Fields::default()));
        assert!(read_topology(b"<html>").is_err());
    }
}
