//! The podresources client for a single caller. [`super::SharedClient`] serves many.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::client_error::ClientError;
use super::connector::Connector;
use super::request::{Request, RequestError, decode_allocatable, decode_list, decode_list_v1alpha1};
use super::types::{Allocatable, Connection, Usage};

/// The version of the podresources API that responded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// CPUs, memory and devices.
    V1,
    /// Devices only; kubelets before 1.20.
    V1alpha1,
}

/// A client of the kubelet's podresources socket.
///
/// The kubelet replaces the socket when it restarts, so every call checks the path first and reconnects if
/// the socket there is another. A call on a broken connection is retried once on a new one.
#[derive(Debug)]
pub struct Client {
    connector: Connector,
    /// Number of the connection whose kubelet does not serve v1.
    without_v1: Option<u64>,
}

impl Client {
    /// Returns a client for `socket` whose calls time out after `timeout`. It does not connect yet.
    #[must_use]
    pub fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { connector: Connector::new(socket, timeout), without_v1: None }
    }

    /// Returns the resources allocated to every active pod, the API version that was used, and the
    /// connection.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn list(&mut self) -> Result<(Usage, Api, Connection), ClientError> {
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
        let (bytes, connection) = self.request(&Request::ListV1alpha1).await.map_err(|failed| failed.error)?;
        Ok((decode_list_v1alpha1(bytes)?, Api::V1alpha1, connection))
    }

    /// Returns the allocatable resources and the connection.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Unsupported`] from a kubelet that is too old.
    pub async fn allocatable(&mut self) -> Result<(Allocatable, Connection), ClientError> {
        let (bytes, connection) = self.request(&Request::Allocatable).await.map_err(|failed| failed.error)?;
        Ok((decode_allocatable(bytes)?, connection))
    }

    /// Makes one call with its deadline, retried on a new connection if the old one is dead. Returns the
    /// encoded response and the connection.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn request(&mut self, request: &Request) -> Result<(Bytes, Connection), RequestError> {
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

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V1alpha1 => "v1alpha1",
        })
    }
}
