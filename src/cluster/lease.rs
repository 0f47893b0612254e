//! The Lease for leader election.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::{Cluster, ClusterError, FIELD_MANAGER};

impl Cluster {
    /// Returns a Lease; `None` if there is none.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Option<Lease>, ClusterError> {
        let what = format!("get lease {namespace}/{name}");
        let api = self.leases(namespace);
        self.in_time(&what, api.get_opt(name)).await.map_err(|failure| failure.explain(&what))
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
        let api = self.leases(namespace);
        let made = self.in_time(&what, api.create(&by_us(), &lease)).await;
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
        let api = self.leases(namespace);
        let replaced = self.in_time(&what, api.replace(&name, &by_us(), &lease)).await;
        replaced.map_err(|failure| failure.explain(&what))
    }

    fn leases(&self, namespace: &str) -> Api<Lease> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

fn by_us() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
