//! The server's task: it accepts connections, and looks after the socket file and clients that do not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::warn;

use super::clients::Shutdown;
use super::shared::Shared;
use super::socket::{ServeError, Socket, SocketFile};
use super::{Limits, Peer, ServerMetrics, Service, Violation, connection};
use crate::util::backoff::back_off;
use crate::util::task::Task;
use crate::util::token_bucket::TokenBucket;

/// Interval between checks of the socket file and of responses that make no progress.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// If checks are further apart than this, the server itself was stopped and does not know which
/// clients stalled.
const LATE_CHECK: Duration = Duration::from_secs(3);
/// Rate limit and burst of accepted connections: accepting is expensive, and clients keep a connection for
/// long.
const ACCEPTED_PER_SECOND: f64 = 1000.0;
pub(super) const ACCEPT_BURST: f64 = 1024.0;
/// Pause after a failed accept, for example for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long running calls may continue when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of health checks.
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// Delay of the first retry if the socket cannot be served.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Maximum delay between two retries.
const MAX_RETRY: Duration = Duration::from_secs(30);

/// A running server. Dropping it closes the socket and all connections; the file stays, since clients take a
/// missing file for "not available on this node", and a dead socket for "retry later".
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    task: Task,
    is_in_place: Arc<AtomicBool>,
}

impl Server {
    /// Listens, and serves from a separate task.
    pub fn start(
        socket: Socket,
        limits: Limits,
        service: Arc<dyn Service>,
        metrics: ServerMetrics,
    ) -> Result<Self, ServeError> {
        let path = socket.path.clone();
        let file = SocketFile::bind(socket)?;
        let shared = Arc::new(Shared::new(path, limits, service, metrics));
        let (stop, stopped) = watch::channel(false);
        let is_in_place = Arc::new(AtomicBool::new(true));
        let task = Task::spawn(serve(file, shared, stopped, Arc::clone(&is_in_place)));
        Ok(Self { stop, task, is_in_place })
    }

    /// Returns true if the path leads to this server, as of a second ago at most: the file may have been
    /// removed and not restored yet, or replaced by another process.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.is_in_place.load(Ordering::Relaxed) && !self.task.is_finished()
    }

    /// Stops accepting connections, sends clients GOAWAY, and gives running calls two seconds.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

/// Keeps `server` running: if it is `None`, starts one, retrying until that succeeds. Calls `check` before
/// each attempt with `None`, and every 5 s from then on with whether the server is serving.
pub(crate) async fn keep_serving<F: Future<Output = ()>>(
    server: &mut Option<Server>,
    start: impl Fn() -> Result<Server, ServeError>,
    check: impl Fn(Option<bool>) -> F,
) {
    let mut failures = 0;
    while server.is_none() {
        check(None).await;
        match start() {
            Ok(started) => *server = Some(started),
            Err(error) => {
                if failures == 0 {
                    warn!("{error}; trying again");
                }
                sleep(back_off(&mut failures, FIRST_RETRY, MAX_RETRY)).await;
            }
        }
    }
    let mut interval = interval(HEALTH_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        check(server.as_ref().map(Server::is_serving)).await;
    }
}

async fn serve(
    mut file: SocketFile,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
    is_in_place: Arc<AtomicBool>,
) {
    let mut connections = JoinSet::new();
    let mut check = interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Connections that have to close take a moment.
    let limit = shared.limits.connections + shared.limits.connections / 4 + 1;
    let mut checked = Instant::now();
    let mut accepts = TokenBucket::new(ACCEPTED_PER_SECOND, ACCEPT_BURST, checked);
    loop {
        tokio::select! {
            accepted = file.listener.accept(), if connections.len() < limit => match accepted {
                Ok((stream, _)) => {
                    admit(stream, &shared, &mut connections);
                    let wait = accepts.take(Instant::now());
                    if !wait.is_zero() {
                        sleep(wait).await;
                    }
                }
                // Most likely out of file descriptors, which other connections will release.
                Err(error) => {
                    if shared.accept_errors.admit().is_some() {
                        warn!("cannot accept a connection of a gRPC client for now: {error}");
                    }
                    sleep(ACCEPT_RETRY).await;
                }
            },
            Some(_) = connections.join_next() => shared.metrics.connections(connections.len()),
            _ = check.tick() => {
                is_in_place.store(file.check(), Ordering::Relaxed);
                close_stalled(&shared, checked.elapsed() > LATE_CHECK);
                checked = Instant::now();
            }
            // The server was dropped or stopped.
            _ = stopped.changed() => break,
        }
    }
    drop(file);
    shared.clients.shut_down(Shutdown::Graceful);
    let _ = timeout(STOP_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
    shared.metrics.connections(0);
}

fn admit(stream: UnixStream, shared: &Arc<Shared>, connections: &mut JoinSet<()>) {
    match shared.clients.admit(Peer::of(&stream)) {
        Ok((admitted, closed)) => {
            if let Some(closed) = closed {
                let text =
                    || "had a connection closed to make room for a new one: too many connections".into();
                shared.report(Violation::Connections, &closed.peer, text);
            }
            connections.spawn(connection::serve(stream, admitted, Arc::clone(shared)));
            shared.metrics.connections(connections.len());
        }
        Err(peer) => {
            let text = || "cannot connect: it has too many connections already, all of them busy".into();
            shared.report(Violation::Connections, &peer, text);
        }
    }
}

/// Closes the connections of clients that do not read. If the check was late, all timeouts restart.
fn close_stalled(shared: &Shared, was_late: bool) {
    let unread = shared.clients.unread(shared.limits.read_timeout, was_late);
    for connection in shared.responses.stalled(was_late).into_iter().chain(unread) {
        let text = || "does not read its response: it was disconnected".into();
        shared.report(Violation::Stalled, &connection.peer, text);
        connection.shut_down(Shutdown::Abort);
    }
}
