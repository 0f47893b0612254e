//! Answers on a socket that is left from a service that was switched off.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::time::sleep;
use tonic::Status;
use tracing::{info, warn};

use super::socket::is_left;
use super::{Call, Limits, Reply, Server, ServerMetrics, Service, Socket};
use crate::util::log_throttle::LogOnce;

/// How often a socket is looked at: the service may still be ending.
const INTERVAL: Duration = Duration::from_secs(5);

/// Responds to every call that the service is off. Clients take `Unimplemented` as final, and do not retry.
struct Off(&'static str);

impl Service for Off {
    fn call(&self, _: Call) -> BoxFuture<'static, Result<Reply, Status>> {
        ready(Err(Status::unimplemented(self.0))).boxed()
    }
}

/// Serves `why` on the socket as soon as its file is left there and nobody serves it.
pub(crate) async fn answer_off(socket: Socket, why: &'static str, metrics: ServerMetrics) {
    let (log, path) = (LogOnce::default(), socket.path.display().to_string());
    let mut server: Option<Server> = None;
    loop {
        if server.is_none() && is_left(&socket.path) {
            match Server::start(socket.clone(), Limits::default(), Arc::new(Off(why)), metrics.clone()) {
                Ok(started) => {
                    info!("the service at {path} is disabled: its clients get Unimplemented");
                    server = Some(started);
                }
                Err(error) => {
                    if log.is_new(error.to_string()) {
                        warn!("{error}; clients of the disabled service get no response");
                    }
                }
            }
        }
        sleep(INTERVAL).await;
    }
}
