//! One call, from its header to its status.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Status};

use super::answers::{PREFIX, Pin as Pinned, Slice};
use super::clients::Connection;
use super::connection::SEND_BUFFER;
use super::turns::Admitted;
use super::{Call, Feed, Inner, Message, Offence, Reply};

/// How long a client may take to send its message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a path: a service and a method.
const PATH: usize = 512;
/// How many bytes of client input a status quotes.
const QUOTE: usize = 128;
/// Maximum message size, that of the kubelet (grpc-go `defaultServerMaxReceiveMessageSize`).
const MESSAGE: usize = 4 << 20;
/// Messages up to this size are accepted without a reservation; longer ones share the budget of [`LONG`].
const SHORT: usize = 4 << 10;
/// Bytes of long messages of all clients: two of the maximum size. No RPC here needs any.
pub(super) const LONG: usize = 2 * MESSAGE;
const GRPC: &str = "application/grpc";

/// Serves one request. Ends early when the client cancels it. It extracts what it needs of the headers
/// immediately, since the returned future may not be polled for a while.
pub(super) fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Slice>,
    connection: Arc<Connection>,
    inner: Arc<Inner>,
) -> impl Future<Output = ()> {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let asked = Asked::new(parts, started);
    let admitted = inner.turns.enter(connection.peer.client);
    async move {
        let path = asked.as_ref().map(|asked| asked.path.clone()).unwrap_or_default();
        let mut ended = Ended { started, connection: &connection, inner: &inner, path, outcome: None };
        let work = Work { connection: &connection, inner: &inner };
        ended.outcome = Some(match (admitted, asked) {
            (Some(admitted), Ok(asked)) => work.run(asked, admitted, body, &mut respond).await,
            (Some(_admitted), Err(refusal)) => work.refuse(refusal, body, &mut respond).await,
            (None, _) => work.turn_away(&mut respond),
        });
    }
}

/// Reports a call to the observer when it ends, even if its connection ends.
struct Ended<'a> {
    started: Instant,
    connection: &'a Connection,
    inner: &'a Inner,
    path: String,
    /// The code that was sent to the client, and the bytes of messages; `None` if the client left.
    outcome: Option<(Code, usize)>,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let (code, bytes) = self.outcome.unwrap_or((Code::Cancelled, 0));
        self.inner.observer.finished(&self.path, &self.connection.peer, code, bytes, self.started.elapsed());
    }
}

/// What a request's headers contain.
struct Asked {
    path: String,
    encoding: Option<String>,
    deadline: Option<Instant>,
}

/// A request being served.
struct Work<'a> {
    connection: &'a Arc<Connection>,
    inner: &'a Inner,
}

/// The rejection of a request that is not a gRPC call: the HTTP status and the gRPC status.
struct Refusal(StatusCode, Status);

/// Why a response was not sent completely.
enum Stop {
    /// The client is sent a status.
    Status(Status),
    /// The client is sent nothing: it left, or its deadline expired.
    Gone(Code),
    /// The client was too slow and has part of a message, so the stream is reset.
    Slow,
}

impl From<h2::Error> for Stop {
    fn from(_: h2::Error) -> Self {
        Self::Gone(Code::Cancelled)
    }
}

impl Asked {
    /// Parses the headers; nothing else of the request is kept. Order, codes and texts are grpc-go's
    /// (`http2_server.go`, `operateHeaders`; `server.go`, `handleStream`), except that texts quote at most
    /// [`QUOTE`] bytes of client input.
    fn new(parts: Parts, started: Instant) -> Result<Self, Refusal> {
        let field = |name: &str| {
            let value = parts.headers.get(name)?.as_bytes();
            Some(start(value).into_owned())
        };
        let kind = field("content-type").unwrap_or_default();
        if !is_grpc(&kind) {
            let status = Status::invalid_argument(format!("invalid gRPC request content-type {kind:?}"));
            return Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, status));
        }
        let timeout = field("grpc-timeout").map(|text| decode_timeout(&text)).transpose();
        let timeout = timeout.map_err(|what| {
            let status = Status::internal(format!("malformed grpc-timeout: transport: timeout {what}"));
            Refusal(StatusCode::BAD_REQUEST, status)
        })?;
        if parts.method != Method::POST {
            let method = start(parts.method.as_str().as_bytes());
            let what = "Received a HEADERS frame with :method";
            let status = Status::internal(format!("{what} {method:?} which should be POST"));
            return Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, status));
        }
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        if path.len() > PATH || path.strip_prefix('/').is_none_or(|path| !path.contains('/')) {
            let path = start(path.as_bytes());
            let status = Status::unimplemented(format!("malformed method name: {path:?}"));
            return Err(Refusal(StatusCode::OK, status));
        }
        let encoding = field("grpc-encoding").filter(|encoding| !matches!(&**encoding, "" | "identity"));
        let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
        Ok(Self { path: path.to_owned(), encoding, deadline })
    }
}

impl Work<'_> {
    /// Serves a call and returns the code that was sent, and the bytes of messages.
    async fn run(
        &self,
        asked: Asked,
        admitted: Admitted,
        mut body: RecvStream,
        respond: &mut SendResponse<Slice>,
    ) -> (Code, usize) {
        let reply = tokio::select! {
            reply = self.reply(&asked, &mut body, &admitted) => reply,
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return (Code::Cancelled, 0),
        };
        match reply {
            Ok(reply) => {
                self.connection.answer();
                tokio::select! {
                    sent = self.send(respond, reply, asked.deadline) => sent,
                    never = drain(&mut body) => match never {},
                }
            }
            Err(status) => {
                refuse(respond, StatusCode::OK, &status);
                (status.code(), 0)
            }
        }
    }

    /// Responds to a request that is not a gRPC call.
    async fn refuse(
        &self,
        Refusal(http, status): Refusal,
        mut body: RecvStream,
        respond: &mut SendResponse<Slice>,
    ) -> (Code, usize) {
        tokio::select! {
            () = delay(self.connection, self.inner) => {}
            never = drain(&mut body) => match never {},
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return (Code::Cancelled, 0),
        }
        refuse(respond, http, &status);
        (status.code(), 0)
    }

    /// Refuses a call for lack of room, immediately: waiting takes room as well.
    fn turn_away(&self, respond: &mut SendResponse<Slice>) -> (Code, usize) {
        let what = || "has thousands of calls open: further ones are refused".into();
        self.inner.blame(Offence::Calls, self.connection, what);
        let status = Status::resource_exhausted("too many calls are open");
        refuse(respond, StatusCode::OK, &status);
        (status.code(), 0)
    }

    /// Returns the response, once it is this call's turn, within its deadline. If many calls fail, failed
    /// ones are delayed.
    async fn reply(
        &self,
        asked: &Asked,
        body: &mut RecvStream,
        admitted: &Admitted,
    ) -> Result<Reply, Status> {
        let reply = async {
            let message = self.message(asked, body).await;
            let reply = async {
                let reply = self.ask(asked, message, admitted).await;
                if reply.is_err() {
                    delay(self.connection, self.inner).await;
                }
                reply
            };
            tokio::select! {
                reply = reply => reply,
                never = drain(body) => match never {},
            }
        };
        let Some(deadline) = asked.deadline else { return reply.await };
        let late = |_| Err(Status::deadline_exceeded("context deadline exceeded"));
        timeout_at(deadline, reply).await.unwrap_or_else(late)
    }

    async fn ask(
        &self,
        asked: &Asked,
        message: Result<(Bytes, Option<SemaphorePermit<'_>>), Status>,
        admitted: &Admitted,
    ) -> Result<Reply, Status> {
        let (message, _room) = message?;
        let most = self.inner.limits.answer;
        let late = |_| Err(Status::unavailable(format!("numacast: no answer in {most:?}")));
        timeout(most, self.ask_in_turn(asked, message, admitted)).await.unwrap_or_else(late)
    }

    async fn ask_in_turn(&self, asked: &Asked, message: Bytes, admitted: &Admitted) -> Result<Reply, Status> {
        let client = self.connection.peer.client;
        let turn = async {
            loop {
                // Waiting for room must not occupy a turn.
                self.inner.answers.room(client).await;
                let turn = admitted.turn().await;
                if self.inner.answers.has_room(client) {
                    return turn;
                }
            }
        };
        let patience = self.inner.limits.patience;
        let Ok(_turn) = timeout(patience, turn).await else {
            let what = || format!("had a call wait {patience:?} for its turn: it is refused");
            self.inner.blame(Offence::Calls, self.connection, what);
            return Err(Status::resource_exhausted(format!("too many calls: none was free in {patience:?}")));
        };
        let (path, peer) = (asked.path.clone(), Arc::clone(&self.connection.peer));
        self.inner.service.call(Call { path, message, peer, deadline: asked.deadline }).await
    }

    /// Returns the request's message, and its share of the long-message budget if it is long.
    async fn message(
        &self,
        asked: &Asked,
        body: &mut RecvStream,
    ) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Status> {
        if let Some(encoding) = &asked.encoding {
            // As grpc-go does without a registered compressor.
            let what = format!("grpc: Decompressor is not installed for grpc-encoding {encoding:?}");
            return Err(Status::unimplemented(what));
        }
        let late = |_| Err(Status::deadline_exceeded(format!("no message came in {PATIENCE:?}")));
        timeout(PATIENCE, self.receive(body)).await.unwrap_or_else(late)
    }

    async fn receive(&self, body: &mut RecvStream) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Status> {
        let (mut received, mut room) = (Vec::new(), None);
        loop {
            if let Some(length) = length(&received)? {
                if let Some(message) = received.get(PREFIX..PREFIX + length) {
                    // Copied, because the buffer has room for all that came behind the message.
                    return Ok((Bytes::copy_from_slice(message), room));
                }
                if length > SHORT && room.is_none() {
                    room = Some(self.room(length)?);
                }
            }
            let Some(chunk) = body.data().await else {
                let what = match received.len() {
                    0 => "cardinality violation: received no request message from non-client-streaming RPC",
                    _ => "unexpected EOF",
                };
                return Err(Status::internal(what));
            };
            let chunk = chunk.map_err(|error| Status::cancelled(error.to_string()))?;
            let _ = body.flow_control().release_capacity(chunk.len());
            // Copied, because h2 hands out slices of its read buffer.
            received.extend_from_slice(&chunk);
        }
    }

    fn room(&self, length: usize) -> Result<SemaphorePermit<'_>, Status> {
        let room =
            u32::try_from(length).ok().and_then(|length| self.inner.long.try_acquire_many(length).ok());
        room.ok_or_else(|| Status::resource_exhausted("too many long messages at once"))
    }

    async fn send(
        &self,
        respond: &mut SendResponse<Slice>,
        reply: Reply,
        deadline: Option<Instant>,
    ) -> (Code, usize) {
        let mut response = Response::new(());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
        let Ok(mut stream) = respond.send_response(response, false) else { return (Code::Cancelled, 0) };
        let mut bytes = 0;
        let sending = async {
            match reply {
                Reply::One(answer) => self.send_one(&mut stream, answer, &mut bytes).await,
                Reply::Many(answers) => self.send_many(&mut stream, answers, &mut bytes).await,
            }
        };
        let sent = match deadline {
            Some(deadline) => timeout_at(deadline, sending).await,
            None => Ok(sending.await),
        };
        let status = match sent.unwrap_or(Err(Stop::Gone(Code::DeadlineExceeded))) {
            Ok(()) => Status::new(Code::Ok, ""),
            Err(Stop::Status(status)) => status,
            Err(Stop::Gone(code)) => {
                stream.send_reset(Reason::CANCEL);
                return (code, bytes);
            }
            Err(Stop::Slow) => {
                stream.send_reset(Reason::ENHANCE_YOUR_CALM);
                return (Code::ResourceExhausted, bytes);
            }
        };
        let _ = stream.send_trailers(trailers(&status));
        (status.code(), bytes)
    }

    async fn send_many(
        &self,
        stream: &mut SendStream<Slice>,
        mut answers: Pin<Box<dyn Feed>>,
        bytes: &mut usize,
    ) -> Result<(), Stop> {
        loop {
            // The next message is not polled before this one is on its way.
            let answer = tokio::select! {
                answer = answers.next() => answer,
                _ = poll_fn(|cx| stream.poll_reset(cx)) => return Err(Stop::Gone(Code::Cancelled)),
            };
            let message = match answer {
                Some(Ok(answer)) => self.outgoing(answer)?,
                Some(Err(status)) => return Err(Stop::Status(status)),
                None => return Ok(()),
            };
            let room = tokio::select! {
                biased;
                room = capacity(stream, message.size()) => room?,
                // The next item is the status.
                () = poll_fn(|cx| answers.as_mut().poll_over(cx)) => continue,
            };
            tokio::select! {
                biased;
                sent = message.send(stream, room, bytes) => sent?,
                () = poll_fn(|cx| answers.as_mut().poll_over(cx)) => return Err(Stop::Slow),
            }
        }
    }

    async fn send_one(
        &self,
        stream: &mut SendStream<Slice>,
        answer: Message,
        bytes: &mut usize,
    ) -> Result<(), Stop> {
        let message = self.outgoing(answer)?;
        let room = capacity(stream, message.size()).await?;
        message.send(stream, room, bytes).await
    }

    fn outgoing(&self, answer: Message) -> Result<Outgoing, Stop> {
        let Ok(length) = u32::try_from(answer.len()) else {
            let what = format!("trying to send message larger than max ({} vs. {})", answer.len(), u32::MAX);
            return Err(Stop::Status(Status::resource_exhausted(what)));
        };
        let pin = self.inner.answers.pin(&answer, self.connection);
        Ok(Outgoing { message: answer, length, pin })
    }
}

/// A message to be sent.
struct Outgoing {
    message: Message,
    length: u32,
    pin: Arc<Pinned>,
}

impl Outgoing {
    /// Returns the size including the prefix.
    fn size(&self) -> usize {
        PREFIX + self.message.len()
    }

    /// Sends the message in slices, as fast as the client takes them; `room` is the capacity for the first.
    async fn send(
        mut self,
        stream: &mut SendStream<Slice>,
        room: usize,
        bytes: &mut usize,
    ) -> Result<(), Stop> {
        let Message { head, length: before, body: rest } = &mut self.message;
        let (head, pin) = (&head[..*before], &self.pin);
        let slice = rest.split_to(rest.len().min(room.saturating_sub(PREFIX + head.len())));
        *bytes += head.len() + slice.len();
        stream.send_data(Slice::first(self.length, head, slice, Arc::clone(pin)), false)?;
        while !rest.is_empty() {
            let slice = rest.split_to(capacity(stream, rest.len()).await?.min(rest.len()));
            *bytes += slice.len();
            stream.send_data(Slice::next(slice, Arc::clone(pin)), false)?;
        }
        Ok(())
    }
}

/// Waits until the client and the connection accept some of these bytes, and returns how many.
async fn capacity(stream: &mut SendStream<Slice>, bytes: usize) -> Result<usize, Stop> {
    stream.reserve_capacity(bytes.min(SEND_BUFFER));
    let mut capacity = stream.capacity();
    while capacity == 0 {
        let more = poll_fn(|cx| stream.poll_capacity(cx)).await;
        capacity = more.ok_or(Stop::Gone(Code::Cancelled))??;
    }
    Ok(capacity)
}

/// Discards, forever, what follows the message: otherwise h2 keeps it until the call ends.
async fn drain(body: &mut RecvStream) -> Infallible {
    while let Some(Ok(chunk)) = body.data().await {
        let _ = body.flow_control().release_capacity(chunk.len());
    }
    drop(body.trailers().await);
    std::future::pending().await
}

/// Delays the responses to a client's failed calls if it makes hundreds per second, so that garbage does not
/// keep us busy.
async fn delay(connection: &Connection, inner: &Inner) {
    let wait = inner.clients.failed(connection.peer.client).min(inner.limits.patience);
    if wait.is_zero() {
        return;
    }
    let what = || "makes calls that fail, by the hundred in a second: they are answered later".into();
    inner.blame(Offence::Failures, connection, what);
    sleep(wait).await;
}

/// Responds with only a status.
fn refuse(respond: &mut SendResponse<Slice>, http: StatusCode, status: &Status) {
    let mut response = Response::new(());
    *response.status_mut() = http;
    *response.headers_mut() = trailers(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    let _ = respond.send_response(response, true);
}

fn trailers(status: &Status) -> HeaderMap {
    let mut fields = HeaderMap::new();
    if status.add_header(&mut fields).is_err() {
        // The rest of the status cannot be encoded as headers.
        fields.insert("grpc-status", HeaderValue::from(status.code() as i32));
    }
    fields
}

/// Returns the start of client input; a truncated character becomes U+FFFD.
fn start(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text.get(..QUOTE).unwrap_or(text))
}

fn is_grpc(kind: &str) -> bool {
    let rest = kind.strip_prefix(GRPC);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

/// Returns the length of a message, once its prefix has arrived. Texts and codes are grpc-go's
/// (`rpc_util.go`, `recvMsg` and `checkRecvPayload`).
fn length(received: &[u8]) -> Result<Option<usize>, Status> {
    let [flag, a, b, c, d, ..] = *received else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MESSAGE {
        let what = format!("grpc: received message larger than max ({length} vs. {MESSAGE})");
        return Err(Status::resource_exhausted(what));
    }
    match flag {
        0 => Ok(Some(length)),
        1 => Err(Status::internal("grpc: compressed flag set with identity or empty encoding")),
        _ => Err(Status::internal(format!("grpc: received unexpected payload format {flag}"))),
    }
}

/// Parses the value of `grpc-timeout`: at most 8 digits and a unit.
pub(super) fn decode_timeout(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.len() {
        0 | 1 => return Err(format!("string is too short: {text:?}")),
        2..=9 => text.split_at_checked(text.len() - 1).unwrap_or((text, "")),
        _ => return Err(format!("string is too long: {text:?}")),
    };
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return Err(format!("unit is not recognized: {text:?}")),
    };
    let digits = number.bytes().all(|digit| digit.is_ascii_digit());
    let number = digits.then(|| number.parse().ok()).flatten();
    number.map(|number: u32| unit * number).ok_or_else(|| format!("is no number: {text:?}"))
}
