use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Resource;
use kube::api::{GetParams, ObjectMeta, PostParams};
use kube::core::Request;
use serde::Deserialize;

use super::metadata::metadata;
use super::{Built, Cluster, ClusterError, FIELD_MANAGER, encoded};

/// A Lease whose `managedFields` may contain anything.
#[derive(Deserialize)]
struct RawLease {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: Option<LeaseSpec>,
}

impl Cluster {
    /// Returns a Lease; `None` if it does not exist.
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Option<Lease>, ClusterError> {
        let what = format!("get lease {namespace}/{name}");
        let request = leases(namespace).get(name, &GetParams::default());
        let lease = self.read_opt::<RawLease>(&what, request).await?;
        Ok(lease.map(|RawLease { metadata, spec }| Lease { metadata, spec }))
    }

    /// Creates a Lease; [`ClusterError::is_other_object_or_version`] if it exists already.
    pub async fn create_lease(
        &self,
        namespace: &str,
        name: &str,
        spec: LeaseSpec,
    ) -> Result<Lease, ClusterError> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let what = format!("create lease {namespace}/{name}");
        let lease = Lease { metadata, spec: Some(spec) };
        let request = encoded(&lease).and_then(|lease| leases(namespace).create(&params(), lease));
        self.write_lease(&what, request).await
    }

    /// Replaces a Lease that was read; [`ClusterError::is_other_object_or_version`] if it was written since.
    pub async fn replace_lease(&self, namespace: &str, mut lease: Lease) -> Result<Lease, ClusterError> {
        // The server maintains these.
        lease.metadata.managed_fields = None;
        let name = lease.metadata.name.clone().unwrap_or_default();
        let what = format!("update lease {namespace}/{name}");
        let request = encoded(&lease).and_then(|lease| leases(namespace).replace(&name, &params(), lease));
        self.write_lease(&what, request).await
    }

    async fn write_lease(&self, what: &str, request: Built) -> Result<Lease, ClusterError> {
        let written = self.in_time(what, self.read::<RawLease>(request)).await;
        let RawLease { metadata, spec } = written.map_err(|failure| failure.explain(what))?;
        Ok(Lease { metadata, spec })
    }
}

fn leases(namespace: &str) -> Request {
    Request::new(Lease::url_path(&(), Some(namespace)))
}

fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metadata::tests::nested;

    #[test]
    fn a_lease_is_read_whatever_its_managed_fields_are() {
        for levels in [1, 130, 10_000] {
            let lease = format!(r#"{{"metadata":{},"spec":{{"holderIdentity":"a"}}}}"#, nested(levels));
            let RawLease { metadata, spec } = serde_json::from_str(&lease).unwrap();
            assert_eq!(metadata.name.as_deref(), Some("w"));
            assert_eq!(spec.unwrap().holder_identity.as_deref(), Some("a"));
        }
    }
}
