//! The kubelet's HTTPS port: its address, and how its certificate is verified.

use std::path::PathBuf;
use std::time::Duration;

use tracing::debug;

use crate::cluster::{Cluster, KubeletEndpoint};
use crate::kubelet::{Address, CertificateFingerprint, HTTPS_PORT, HttpsClient, HttpsTarget};

/// How to reach the kubelet's HTTPS port.
#[derive(Clone, Debug, Default)]
pub struct KubeletPort {
    /// The node's name.
    pub node: String,
    /// Its address. Taken from the Node if not set; so is the port if the address has none.
    pub address: Option<Address>,
    /// The CA that signs its certificate; the cluster's CA if not set.
    pub ca_file: Option<PathBuf>,
    /// The name in its certificate; the address if not set.
    pub server_name: Option<String>,
    /// The fingerprints of certificates that are accepted whoever signed them.
    pub fingerprints: Vec<CertificateFingerprint>,
    /// The deadline of one call.
    pub timeout: Duration,
}

impl KubeletPort {
    /// Returns a client with the credentials of `cluster`. The address is read from the Node if none is
    /// configured.
    pub async fn connect(&self, cluster: &Cluster) -> Result<HttpsClient, String> {
        let config = cluster.config().ok_or("there are no credentials for requests to the kubelet")?;
        let (host, port) = match &self.address {
            Some(Address { host, port: Some(port) }) => (host.clone(), *port),
            Some(Address { host, port: None }) => (host.clone(), self.port(cluster).await),
            None => self.endpoint(cluster).await?,
        };
        let target = HttpsTarget {
            host,
            port,
            ca_file: self.ca_file.clone(),
            server_name: self.server_name.clone(),
            fingerprints: self.fingerprints.clone(),
            timeout: self.timeout,
        };
        HttpsClient::new(config, &target)
    }

    async fn endpoint(&self, cluster: &Cluster) -> Result<(String, u16), String> {
        let explain = |reason: String| {
            format!("the kubelet's address is unknown ({reason}): set `kubelet.address` (NODE_ADDRESS)")
        };
        let endpoint = cluster.kubelet_endpoint(&self.node).await;
        let KubeletEndpoint { host, port } = endpoint.map_err(|error| explain(error.to_string()))?;
        let host = host.ok_or_else(|| explain("the Node has no InternalIP yet".to_owned()))?;
        Ok((host, port.unwrap_or(HTTPS_PORT)))
    }

    /// Returns the port that the Node reports, or the kubelet's default port.
    async fn port(&self, cluster: &Cluster) -> u16 {
        match cluster.kubelet_endpoint(&self.node).await {
            Ok(KubeletEndpoint { port, .. }) => port.unwrap_or(HTTPS_PORT),
            Err(error) => {
                debug!("using the kubelet's default port {HTTPS_PORT}: {error}");
                HTTPS_PORT
            }
        }
    }
}
