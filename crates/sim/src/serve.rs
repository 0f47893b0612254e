//! Serves HTTP connections that can all be closed at once, as when a process ends. Neither tonic nor axum can
//! close theirs.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower::ServiceExt;

/// Accepts connections: a bound socket, or connections within this process.
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

/// The server's halves of connections within this process.
pub(crate) type Connections = Mutex<mpsc::UnboundedReceiver<DuplexStream>>;

impl Listener for Connections {
    type Stream = DuplexStream;
    async fn next(&self) -> io::Result<DuplexStream> {
        match self.lock().await.recv().await {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
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
    pub(crate) control: Control,
}

/// Stops a server and closes its connections. The value is true while the server is stopped; every
/// notification closes the open connections.
#[derive(Clone, Debug)]
pub(crate) struct Control(Arc<watch::Sender<bool>>);

impl Control {
    /// Closes the connections that are open now.
    pub(crate) fn cut_connections(&self) {
        self.0.send_modify(|_| ());
    }

    /// Closes all connections, and new ones at once until it is called with false. The socket stays open: a
    /// newly forked child might still hold a closed socket, and its address could not be bound again.
    pub(crate) fn set_stopped(&self, stopped: bool) {
        self.0.send_replace(stopped);
    }
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
        let control = Control(Arc::new(watch::Sender::new(false)));
        let task = tokio::spawn(accept(listener, service, control.0.subscribe()));
        Self { task, control }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept<L, S, E>(listener: L, service: S, mut stopped: watch::Receiver<bool>)
where
    L: Listener,
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = E> + Clone + Send + 'static,
    S::Future: Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            stream = listener.next() => {
                // Out of descriptors, or a peer that left early: try the next connection.
                let Ok(stream) = stream else { tokio::task::yield_now().await; continue };
                if *stopped.borrow() {
                    continue;
                }
                let service = service.clone().map_request(|request: Request<_>| request.map(Body::new));
                let service = TowerToHyperService::new(service);
                connections.spawn(async move {
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
            Some(_) = connections.join_next() => {}
            Ok(()) = stopped.changed() => connections.shutdown().await,
        }
    }
}
