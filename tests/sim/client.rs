//! A podresources client for a single caller, which makes a call for every request.

use std::path::PathBuf;
use std::time::Duration;

use numacast::kubelet::{
    Allocatable, ClientError, Connector, KubeletInstance, Request, RequestError, Usage, decode_allocatable,
    decode_list,
};
use prost::bytes::Bytes;

/// A client of the kubelet's podresources socket.
///
/// The kubelet replaces the socket when it restarts, so every call checks the path first and reconnects if
/// the socket there is another. A call on a broken connection is retried once on a new one.
#[derive(Debug)]
pub(crate) struct Client {
    connector: Connector,
}

impl Client {
    /// Returns a client for `socket` whose calls time out after `timeout`. It does not connect yet.
    pub(crate) fn new(socket: PathBuf, timeout: Duration) -> Self {
        Self { connector: Connector::new(socket, timeout) }
    }

    /// Returns the resources allocated to every active pod, and the kubelet instance.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(crate) async fn list(&mut self) -> Result<(Usage, KubeletInstance), ClientError> {
        let (bytes, instance) = self.request(&Request::List).await.map_err(|failed| failed.error)?;
        Ok((decode_list(bytes)?, instance))
    }

    /// Returns the allocatable resources and the kubelet instance.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Unsupported`] from a kubelet that is too old.
    pub(crate) async fn allocatable(&mut self) -> Result<(Allocatable, KubeletInstance), ClientError> {
        let (bytes, instance) = self.request(&Request::Allocatable).await.map_err(|failed| failed.error)?;
        Ok((decode_allocatable(bytes)?, instance))
    }

    /// Makes one call with its deadline, retried on a new connection if the old one is dead. Returns the
    /// encoded response and the kubelet instance.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub(crate) async fn request(
        &mut self,
        request: &Request,
    ) -> Result<(Bytes, KubeletInstance), RequestError> {
        match self.attempt(request).await {
            Err(failed) if failed.error.is_lost() => self.attempt(request).await,
            response => response,
        }
    }

    async fn attempt(&mut self, request: &Request) -> Result<(Bytes, KubeletInstance), RequestError> {
        let open = self.connector.open().await?;
        let outcome = open.call(request).await;
        Ok((self.connector.finish(&open, request, outcome)?, open.instance))
    }
}
