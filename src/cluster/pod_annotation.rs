//! The only change that an agent makes to pods: one annotation.

use hyper::header::{ACCEPT, HeaderValue};
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::json;

use super::metadata::OnlyMetadata;
use super::{Cluster, ClusterError, FIELD_MANAGER};
use crate::pod::Pod;

/// So the response has no spec and no status.
const ONLY_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

impl Cluster {
    /// Sets an annotation of a pod, or removes it. The pod must have the UID of `pod`:
    /// [`ClusterError::is_other_object_or_version`] otherwise.
    ///
    /// It is a merge patch of the pod's status, since the API server ignores changes of the spec there: the permission
    /// for it cannot change what runs.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn annotate_pod(&self, pod: &Pod, key: &str, value: Option<&str>) -> Result<(), ClusterError> {
        let Pod { namespace, name, uid, .. } = pod;
        let what = format!("patch status of pod {namespace}/{name}");
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": {key: value}}}));
        let request = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        let request = request.patch_subresource("status", name, &params, &patch).map(|mut request| {
            request.headers_mut().insert(ACCEPT, HeaderValue::from_static(ONLY_METADATA));
            request
        });
        let patched = self.in_time(&what, self.read::<OnlyMetadata>(request)).await;
        patched.map(drop).map_err(|failure| failure.explain(&what))
    }
}
