//! The Lease for leader election.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Resource;
use kube::api::{GetParams, ObjectMeta, PostParams};
use kube::core::Request;
use kube::core::request::Error;
use serde::Deserialize;

use super::metadata::metadata;
use super::{Built, Cluster, ClusterError, FIELD_MANAGER, Failure};

/// A Lease whose `managedFields` may contain anything.
#[derive(Deserialize)]
struct RawLease {
    #[serde(default, deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: Option<LeaseSpec>,
}

impl Cluster {
    /// Returns a Lease; `None` if there is none.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Option<Lease>, ClusterError> {
        let what = format!("get lease {namespace}/{name}");
        match self.read_lease(&what, leases(namespace).get(name, &GetParams::default())).await {
            Ok(lease) => Ok(Some(lease)),
            Err(Failure::Status(status)) if status.is_not_found() => Ok(None),
            Err(failure) => Err(failure.explain(&what)),
        }
    }

    /// Creates a Lease.
    ///
    /// # Errors
    /// See [`ClusterError`]; [`ClusterError::is_conflict`] if it exists already.
    pub async fn create_lease(
        &self,
        namespace: &str,
        name: &str,
        spec: LeaseSpec,
    ) -> Result<Lease, ClusterError> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let what = format!("create lease {namespace}/{name}");
        let lease = Lease { metadata, spec: Some(spec) };
        let request = encoded(&lease).and_then(|lease| leases(namespace).create(&by_us(), lease));
        let made = self.read_lease(&what, request).await;
        made.map_err(|failure| failure.explain(&what))
    }

    /// Replaces a Lease that was read.
    ///
    /// # Errors
    /// See [`ClusterError`]; [`ClusterError::is_conflict`] if it was written since.
    pub async fn replace_lease(&self, namespace: &str, mut lease: Lease) -> Result<Lease, ClusterError> {
        // The server maintains these.
        lease.metadata.managed_fields = None;
        let name = lease.metadata.name.clone().unwrap_or_default();
        let what = format!("update lease {namespace}/{name}");
        let request = encoded(&lease).and_then(|lease| leases(namespace).replace(&name, &by_us(), lease));
        let replaced = self.read_lease(&what, request).await;
        replaced.map_err(|failure| failure.explain(&what))
    }

    async fn read_lease(&self, what: &str, request: Built) -> Result<Lease, Failure> {
        let RawLease { metadata, spec } = self.in_time(what, self.read(request)).await?;
        Ok(Lease { metadata, spec })
    }
}

fn leases(namespace: &str) -> Request {
    Request::new(Lease::url_path(&(), Some(namespace)))
}

fn encoded(lease: &Lease) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(lease).map_err(Error::SerializeBody)
}

fn by_us() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metadata::nested;

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
