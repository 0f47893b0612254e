//! The page that shows the fleet: `numacast ui`. Read only.
//!
//! The browser gets all nodes and then only what changes, from one watch of the objects. What it asks beyond that, such
//! as where a pod fits, is computed here by the models of `fit` and `show`.

mod access;
mod ask;
mod cluster_access;
mod details;
mod feed;
mod fleet;
mod local_access;
mod page;
mod request;
mod server;
mod tile;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use self::access::Access;
use self::ask::Reader;
use self::cluster_access::ClusterAccess;
use self::feed::Shared;
use self::local_access::LocalAccess;
use crate::cluster::Cluster;
use crate::telemetry::endpoint::Endpoint;
use crate::telemetry::server::listen_at;
use crate::telemetry::tls::{Tls, TlsFiles};
use crate::util::task::Task;

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum UiError {
    /// Others could connect.
    #[error(
        "{0} is not a loopback address: the page has no TLS and its token would be readable on the network"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be used.
    #[error("the page is not served: cannot listen on {0}: {1}; choose another address")]
    Listen(Endpoint, io::Error),
    /// The system has no random numbers.
    #[error("the system has no random numbers for a token")]
    NoRandom,
}

/// The served page. Dropping it ends everything.
#[derive(Debug)]
pub struct Ui {
    url: String,
    _tasks: [Task; 2],
}

impl Ui {
    /// Serves the page of a cluster at a loopback address; port 0 selects a free one. `group_by` are keys of labels by
    /// which nodes can be grouped, besides those that the page knows.
    ///
    /// # Errors
    /// See [`UiError`].
    pub async fn start(
        cluster: Cluster,
        address: SocketAddr,
        group_by: Vec<String>,
    ) -> Result<Self, UiError> {
        if !address.ip().is_loopback() {
            return Err(UiError::NotLoopback(address));
        }
        let explain = |error| UiError::Listen(Endpoint::At(address), error);
        let listener = TcpListener::bind(address).await.map_err(explain)?;
        let address = listener.local_addr().map_err(explain)?;
        let access = LocalAccess::new(address).ok_or(UiError::NoRandom)?;
        let url = format!("http://{address}/?token={}", access.token());
        let shared = Arc::new(Shared::new());
        let reader = Arc::new(Reader::new(cluster.clone(), Arc::clone(&shared)));
        let follow = Task::spawn(feed::follow(cluster, Arc::clone(&shared), group_by));
        let serve = Task::spawn(server::serve(listener, None, Access::Local(access), shared, reader));
        Ok(Self { url, _tasks: [follow, serve] })
    }

    /// Serves the page of a cluster in that cluster, with TLS, to people whose token may list what it shows. `None` for
    /// [`Endpoint::Nowhere`].
    ///
    /// # Errors
    /// See [`UiError`].
    pub fn start_in_cluster(
        cluster: Cluster,
        address: Endpoint,
        tls: TlsFiles,
    ) -> Result<Option<Self>, UiError> {
        let explain = |error| UiError::Listen(address, error);
        let Some(listener) = listen_at(address).map_err(explain)? else { return Ok(None) };
        let url = format!("https://{}/", listener.local_addr().map_err(explain)?);
        let access = Access::Cluster(ClusterAccess::new(cluster.clone()));
        let shared = Arc::new(Shared::new());
        let reader = Arc::new(Reader::new(cluster.clone(), Arc::clone(&shared)));
        let serve =
            server::serve(listener, Some(Tls::new(tls)), access, Arc::clone(&shared), Arc::clone(&reader));
        let follow = async move {
            loop {
                feed::follow_while_viewed(cluster.clone(), Arc::clone(&shared)).await;
                reader.forget().await;
            }
        };
        Ok(Some(Self { url, _tasks: [Task::spawn(follow), Task::spawn(serve)] }))
    }

    /// Returns the address to open, with the token if the page is that of a laptop.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}
