//! The Lease for leader election.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Resource;
use kube::api::{GetParams, ObjectMeta, PostParams};
use kube::core::Request;
use kube::core::request::Error;

use super::{Built, Cluster, ClusterError, FIELD_MANAGER, Failure};

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
        self.in_time(what, self.read(request)).await
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
