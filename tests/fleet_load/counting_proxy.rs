//! A TCP proxy in front of the API server that counts bytes: the traffic is encrypted, and no metric of the
//! API server reports how much a watch has sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::support::cluster::free_port;

/// How often to check whether the API server listens again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A TCP proxy. Its port is closed while the API server's is.
pub(crate) struct CountingProxy {
    address: SocketAddr,
    counts: Arc<Counts>,
    cut: watch::Sender<u64>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    connections: AtomicU64,
}

impl CountingProxy {
    /// Starts a proxy to `upstream`.
    pub(crate) async fn start(upstream: SocketAddr) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let listener = TcpListener::bind(address).await?;
        let (counts, cut) = (Arc::<Counts>::default(), watch::Sender::new(0));
        let task = tokio::spawn(forward(listener, upstream, Arc::clone(&counts), cut.subscribe()));
        Ok(Self { address, counts, cut, task })
    }

    /// Returns the address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the bytes that clients have sent and received.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [&self.counts.sent, &self.counts.received].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the number of connections that clients have opened.
    pub(crate) fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// Closes all connections and the port until the API server listens again. Called when it is killed.
    pub(crate) fn cut(&self) {
        self.cut.send_modify(|times| *times += 1);
    }
}

impl Drop for CountingProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(
    mut listener: TcpListener,
    upstream: SocketAddr,
    counts: Arc<Counts>,
    mut cut: watch::Receiver<u64>,
) {
    let Ok(address) = listener.local_addr() else { return };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                counts.connections.fetch_add(1, Ordering::Relaxed);
                connections.spawn(pass(stream, upstream, Arc::clone(&counts)));
            }
            Some(_) = connections.join_next() => {}
            changed = cut.changed() => {
                if changed.is_err() {
                    return;
                }
                drop(listener);
                connections.shutdown().await;
                listener = listen_again(address, upstream).await;
            }
        }
    }
}

/// Waits until the API server listens, and listens again too.
async fn listen_again(address: SocketAddr, upstream: SocketAddr) -> TcpListener {
    loop {
        sleep(LOOK_EVERY).await;
        if TcpStream::connect(upstream).await.is_ok()
            && let Ok(listener) = TcpListener::bind(address).await
        {
            return listener;
        }
    }
}

async fn pass(client: TcpStream, upstream: SocketAddr, counts: Arc<Counts>) {
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    // Small segments must not be delayed.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    // When one direction of a TLS connection is closed, the other one follows.
    tokio::select! {
        () = copy(client_in, server_out, &counts.sent) => {}
        () = copy(server_in, client_out, &counts.received) => {}
    }
}

async fn copy(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, count: &AtomicU64) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
        count.fetch_add(length as u64, Ordering::Relaxed);
    }
}
