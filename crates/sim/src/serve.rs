//! Serves HTTP connections that can all be closed at once, as when a process ends. Neither tonic nor axum can
//! close theirs.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tower::ServiceExt;

/// A bound socket of either kind.
pub(crate) trait Listener: Send + 'static {
    /// Its connections.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The next connection.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    async fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Otherwise, small responses wait for the peer's delayed acknowledgement.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// The server task. Dropping it closes the socket and every connection.
#[derive(Debug)]
pub(crate) struct Serving {
    task: JoinHandle<()>,
    cut: Arc<watch::Sender<u64>>,
}

impl Serving {
    /// Serves `service` on `listener`. An error of the service closes the connection without a response.
    pub(crate) fn start<L, S, E>(listener: L, service: S) -> Self
    where
        L: Listener,
        S: tower::Service<Request<Body>, Response = Response<Body>, Error = E> + Clone + Send + 'static,
        S::Future: Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    {
        let cut = Arc::new(watch::Sender::new(0));
        let task = tokio::spawn(accept(listener, service, cut.clone()));
        Self { task, cut }
    }

    /// Stops accepting and closes all connections, when its task runs next.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }

    /// Stops it, and waits until its listener is closed.
    pub(crate) async fn ended(mut self) {
        self.stop();
        // An error: it was aborted.
        let _ = (&mut self.task).await;
    }

    /// Closes the connections that are open now; new ones are accepted.
    pub(crate) fn cut_connections(&self) {
        self.cut.send_modify(|generation| *generation += 1);
    }

    /// The sender that closes the connections, for use by the service itself.
    pub(crate) fn cut(&self) -> Arc<watch::Sender<u64>> {
        Arc::clone(&self.cut)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn accept<L, S, E>(listener: L, service: S, cut: Arc<watch::Sender<u64>>)
where
    L: Listener,
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = E> + Clone + Send + 'static,
    S::Future: Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let mut connections = JoinSet::new();
    let mut cuts = cut.subscribe();
    loop {
        tokio::select! {
            stream = listener.next() => {
                // Out of descriptors, or a peer that left early: try the next connection.
                let Ok(stream) = stream else { tokio::task::yield_now().await; continue };
                let service = service.clone().map_request(|request: Request<_>| request.map(Body::new));
                let service = TowerToHyperService::new(service);
                connections.spawn(async move {
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
            Some(_) = connections.join_next() => {}
            _ = cuts.changed() => connections.shutdown().await,
        }
    }
}
