//! One call, from its headers to its status.

mod headers;
mod receive;
mod send;

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;

use h2::RecvStream;
use h2::server::SendResponse;
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Status};

use super::clients::Connection;
use super::fair_queue::OpenCall;
use super::responses::Slice;
use super::shared::Shared;
use super::{Call, Reply, Violation};
use headers::{Headers, InvalidHeaders};
use send::send_status;

#[cfg(test)]
pub(super) use headers::parse_timeout;

/// The content type.
const GRPC: &str = "application/grpc";

/// Serves one request. Ends early when the client cancels it. It extracts what it needs of the headers
/// immediately, since the returned future may not be polled for a while.
pub(super) fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Slice>,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
) -> impl Future<Output = ()> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let headers = Headers::parse(parts, started);
    let open = shared.queue.open(connection.peer.client);
    async move {
        let path = headers.as_ref().map(|headers| headers.path.clone()).unwrap_or_default();
        let code = Code::Cancelled;
        let mut report = Report { started, connection: &connection, shared: &shared, path, code };
        let handler = Handler { connection: &connection, shared: &shared };
        report.code = match (open, headers) {
            (Some(open), Ok(headers)) => handler.run(headers, open, body, &mut respond).await,
            (Some(_open), Err(invalid)) => handler.reject_headers(invalid, body, &mut respond).await,
            (None, _) => handler.reject_call(&mut respond),
        };
    }
}

/// Reports a call to the service when it ends, even if its connection ends.
struct Report<'a> {
    started: Instant,
    connection: &'a Connection,
    shared: &'a Shared,
    path: String,
    /// The code that was sent to the client; `Cancelled` if the client left.
    code: Code,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.shared.service.finished(&self.path, &self.connection.peer, self.code, self.started.elapsed());
    }
}

struct Handler<'a> {
    connection: &'a Arc<Connection>,
    shared: &'a Shared,
}

/// A request's message, and its share of the budget of long messages if it is long.
type Received<'a> = Result<(Bytes, Option<SemaphorePermit<'a>>), Status>;

impl Handler<'_> {
    /// Serves a call and returns the code that was sent.
    async fn run(
        &self,
        headers: Headers,
        open: OpenCall,
        mut body: RecvStream,
        respond: &mut SendResponse<Slice>,
    ) -> Code {
        let reply = tokio::select! {
            reply = self.reply(&headers, &mut body, &open) => reply,
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return Code::Cancelled,
        };
        match reply {
            Ok(reply) => {
                self.connection.set_succeeded();
                tokio::select! {
                    sent = self.send(respond, reply, headers.deadline) => sent,
                    never = drain(&mut body) => match never {},
                }
            }
            Err(status) => send_status(respond, StatusCode::OK, &status),
        }
    }

    async fn reject_headers(
        &self,
        InvalidHeaders(http, status): InvalidHeaders,
        mut body: RecvStream,
        respond: &mut SendResponse<Slice>,
    ) -> Code {
        tokio::select! {
            () = self.delay_failure() => {}
            never = drain(&mut body) => match never {},
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return Code::Cancelled,
        }
        send_status(respond, http, &status)
    }

    /// Rejects a call because too many are open, immediately: waiting takes memory as well.
    fn reject_call(&self, respond: &mut SendResponse<Slice>) -> Code {
        self.report(Violation::Calls, || {
            "had a call rejected: this client or all clients together have too many calls open".into()
        });
        send_status(respond, StatusCode::OK, &Status::resource_exhausted("too many calls are open"))
    }

    /// Returns the response, once the call may run, within its deadline. If many calls fail, failed ones are
    /// delayed.
    async fn reply(
        &self,
        headers: &Headers,
        body: &mut RecvStream,
        open: &OpenCall,
    ) -> Result<Reply, Status> {
        let reply = async {
            let message = self.receive(headers, body).await;
            let reply = async {
                let reply = self.call(headers, message, open).await;
                if reply.is_err() {
                    self.delay_failure().await;
                }
                reply
            };
            tokio::select! {
                reply = reply => reply,
                never = drain(body) => match never {},
            }
        };
        let Some(deadline) = headers.deadline else { return reply.await };
        let late = |_| Err(Status::deadline_exceeded("context deadline exceeded"));
        timeout_at(deadline, reply).await.unwrap_or_else(late)
    }

    async fn call(&self, headers: &Headers, message: Received<'_>, open: &OpenCall) -> Result<Reply, Status> {
        let (message, _reserved) = message?;
        let limit = self.shared.limits.response_timeout;
        let late = |_| Err(Status::unavailable(format!("numacast: no response within {limit:?}")));
        timeout(limit, self.call_when_permitted(headers, message, open)).await.unwrap_or_else(late)
    }

    async fn call_when_permitted(
        &self,
        headers: &Headers,
        message: Bytes,
        open: &OpenCall,
    ) -> Result<Reply, Status> {
        let client = self.connection.peer.client;
        let permit = async {
            loop {
                // Waiting for room must not occupy a permit.
                self.shared.responses.wait_for_room(client).await;
                let permit = open.acquire().await;
                if self.shared.responses.has_room(client) {
                    return permit;
                }
            }
        };
        let limit = self.shared.limits.queue_timeout;
        let Ok(_permit) = timeout(limit, permit).await else {
            self.report(Violation::Calls, || format!("had a call wait {limit:?} to run: it is rejected"));
            return Err(Status::resource_exhausted(format!("too many calls: this one waited for {limit:?}")));
        };
        let (path, peer) = (headers.path.clone(), Arc::clone(&self.connection.peer));
        self.shared.service.call(Call { path, message, peer }).await
    }

    /// Delays the responses to a client's failed calls if it makes hundreds per second, so that invalid calls
    /// do not keep us busy.
    async fn delay_failure(&self) {
        let delay = self.shared.clients.failed(self.connection.peer.client);
        let delay = delay.min(self.shared.limits.queue_timeout);
        if !delay.is_zero() {
            let text = "makes hundreds of calls per second that fail: their responses are delayed";
            self.report(Violation::Failures, || text.into());
            sleep(delay).await;
        }
    }

    fn report(&self, violation: Violation, text: impl FnOnce() -> String) {
        self.shared.report(violation, &self.connection.peer, text);
    }
}

/// Discards, forever, what follows the message: otherwise h2 keeps it until the call ends.
async fn drain(body: &mut RecvStream) -> Infallible {
    while let Some(Ok(chunk)) = body.data().await {
        let _ = body.flow_control().release_capacity(chunk.len());
    }
    drop(body.trailers().await);
    std::future::pending().await
}
