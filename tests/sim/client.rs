//! A podresources client for a single caller, which makes a call for every request.

use std::path::PathBuf;
use std::time::Duration;

use numacast::kubelet::proto::v1alpha1;
use numacast::kubelet::{
    Allocatable, Api, ClientError, Connection, Connector, ContainerUsage, DeviceGroup, PodUsage, Request,
    RequestError, Usage, decode_allocatable, decode_list,
};
use numacast::machine::IdSet;
use prost::Message as _;
use prost::bytes::Bytes;

/// A client of the kubelet's podresources socket.
///
/// The kubelet replaces the socket when it restarts, so every call checks the path first and reconnects if
/// the socket there is another. A call on a broken connection is retried once on a new one.
#[derive(Debug)]
pub(crate) struct Client {
    connector: Connector,
    /// Number of the connection whose kubelet does not serve v1.
    without_v1: Option<u64>,
}

impl Client {
    /// Returns a client for `socket` whose calls time out after `timeout`. It does not connect yet.
    pub(crate) fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { connector: Connector::new(socket, timeout), without_v1: None }
    }

    /// Returns the resources allocated to every active pod, the API version that was used, and the
    /// connection.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(crate) async fn list(&mut self) -> Result<(Usage, Api, Connection), ClientError> {
        let number = self.connector.open().await?.number;
        if self.without_v1 != Some(number) {
            match self.request(&Request::List).await {
                Ok((bytes, connection)) => return Ok((decode_list(bytes)?, Api::V1, connection)),
                Err(RequestError { error: ClientError::Unsupported { .. }, .. }) => {
                    self.without_v1 = self.connector.number();
                }
                Err(failed) => return Err(failed.error),
            }
        }
        let (bytes, connection) =
            self.request(&Request::ListV1alpha1).await.map_err(|failed| failed.error)?;
        let list = v1alpha1::ListPodResourcesResponse::decode(bytes).map_err(|error| {
            ClientError::Status { call: "List", code: "Internal".to_owned(), message: error.to_string() }
        })?;
        Ok((usage(list), Api::V1alpha1, connection))
    }

    /// Returns the allocatable resources and the connection.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Unsupported`] from a kubelet that is too old.
    pub(crate) async fn allocatable(&mut self) -> Result<(Allocatable, Connection), ClientError> {
        let (bytes, connection) = self.request(&Request::Allocatable).await.map_err(|failed| failed.error)?;
        Ok((decode_allocatable(bytes)?, connection))
    }

    /// Makes one call with its deadline, retried on a new connection if the old one is dead. Returns the
    /// encoded response and the connection.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub(crate) async fn request(&mut self, request: &Request) -> Result<(Bytes, Connection), RequestError> {
        match self.attempt(request).await {
            Err(failed) if failed.error.is_lost() => self.attempt(request).await,
            response => response,
        }
    }

    async fn attempt(&mut self, request: &Request) -> Result<(Bytes, Connection), RequestError> {
        let open = self.connector.open().await?;
        let outcome = open.call(request).await;
        Ok((self.connector.finish(&open, request, outcome)?, open.connection))
    }
}

fn usage(response: v1alpha1::ListPodResourcesResponse) -> Usage {
    let container = |container: v1alpha1::ContainerResources| ContainerUsage {
        name: container.name,
        devices: container
            .devices
            .into_iter()
            .map(|group| DeviceGroup {
                resource: group.resource_name,
                ids: group.device_ids,
                nodes: IdSet::new(),
            })
            .collect(),
        ..ContainerUsage::default()
    };
    let pods = response.pod_resources.into_iter().map(|pod| PodUsage {
        namespace: pod.namespace,
        name: pod.name,
        containers: pod.containers.into_iter().map(container).collect(),
        ..PodUsage::default()
    });
    Usage { pods: pods.collect() }
}
