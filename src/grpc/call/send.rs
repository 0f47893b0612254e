//! Sends a call's response.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures::StreamExt as _;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use super::{GRPC, Handler};
use crate::grpc::limits::SEND_BUFFER;
use crate::grpc::responses::{PREFIX, ResponseGuard, Slice};
use crate::grpc::{Message, MessageStream, Reply};

/// Why a response was not sent completely.
enum Stop {
    /// The client is sent a status.
    Status(Status),
    /// The client is sent nothing: it left, or its deadline expired.
    Gone(Code),
    /// The client was too slow and has part of a message, so the stream is reset.
    TooSlow,
}

impl From<h2::Error> for Stop {
    fn from(_: h2::Error) -> Self {
        Self::Gone(Code::Cancelled)
    }
}

impl Handler<'_> {
    pub(super) async fn send(
        &self,
        respond: &mut SendResponse<Slice>,
        reply: Reply,
        deadline: Option<Instant>,
    ) -> Code {
        let mut response = Response::new(());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
        let Ok(mut stream) = respond.send_response(response, false) else { return Code::Cancelled };
        let sending = async {
            match reply {
                Reply::One(message) => self.send_one(&mut stream, message).await,
                Reply::Many(messages) => self.send_many(&mut stream, messages).await,
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
                return code;
            }
            Err(Stop::TooSlow) => {
                stream.send_reset(Reason::ENHANCE_YOUR_CALM);
                return Code::ResourceExhausted;
            }
        };
        let _ = stream.send_trailers(status_headers(&status));
        status.code()
    }

    async fn send_many(
        &self,
        stream: &mut SendStream<Slice>,
        mut messages: Pin<Box<dyn MessageStream>>,
    ) -> Result<(), Stop> {
        loop {
            // The next message is not polled before this one is on its way.
            let message = tokio::select! {
                message = messages.next() => message,
                _ = poll_fn(|cx| stream.poll_reset(cx)) => return Err(Stop::Gone(Code::Cancelled)),
            };
            let message = match message {
                Some(Ok(message)) => self.outgoing(message)?,
                Some(Err(status)) => return Err(Stop::Status(status)),
                None => return Ok(()),
            };
            let room = tokio::select! {
                biased;
                room = capacity(stream, message.size()) => room?,
                // The next item is the status.
                () = poll_fn(|cx| messages.as_mut().poll_abort(cx)) => continue,
            };
            tokio::select! {
                biased;
                sent = message.send(stream, room) => sent?,
                () = poll_fn(|cx| messages.as_mut().poll_abort(cx)) => return Err(Stop::TooSlow),
            }
        }
    }

    async fn send_one(&self, stream: &mut SendStream<Slice>, message: Message) -> Result<(), Stop> {
        let message = self.outgoing(message)?;
        let room = capacity(stream, message.size()).await?;
        message.send(stream, room).await
    }

    fn outgoing(&self, message: Message) -> Result<Outgoing, Stop> {
        let Ok(length) = u32::try_from(message.len()) else {
            let text = format!("trying to send message larger than max ({} vs. {})", message.len(), u32::MAX);
            return Err(Stop::Status(Status::resource_exhausted(text)));
        };
        let guard = self.shared.responses.add(&message, self.connection);
        Ok(Outgoing { message, length, guard })
    }
}

struct Outgoing {
    message: Message,
    length: u32,
    guard: Arc<ResponseGuard>,
}

impl Outgoing {
    /// Returns the size including the prefix.
    fn size(&self) -> usize {
        PREFIX + self.message.len()
    }

    /// Sends the message in slices, as fast as the client takes them; `room` is the capacity for the first.
    async fn send(mut self, stream: &mut SendStream<Slice>, room: usize) -> Result<(), Stop> {
        let Message { head, head_length, body: rest } = &mut self.message;
        let (head, guard) = (&head[..*head_length], &self.guard);
        let slice = rest.split_to(rest.len().min(room.saturating_sub(PREFIX + head.len())));
        stream.send_data(Slice::first(self.length, head, slice, Arc::clone(guard)), false)?;
        while !rest.is_empty() {
            let slice = rest.split_to(capacity(stream, rest.len()).await?.min(rest.len()));
            stream.send_data(Slice::next(slice, Arc::clone(guard)), false)?;
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

/// Responds with only a status, and returns its code.
pub(super) fn send_status(respond: &mut SendResponse<Slice>, http: StatusCode, status: &Status) -> Code {
    let mut response = Response::new(());
    *response.status_mut() = http;
    *response.headers_mut() = status_headers(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    let _ = respond.send_response(response, true);
    status.code()
}

fn status_headers(status: &Status) -> HeaderMap {
    let mut fields = HeaderMap::new();
    if status.add_header(&mut fields).is_err() {
        // The rest of the status cannot be encoded as headers.
        fields.insert("grpc-status", HeaderValue::from(status.code() as i32));
    }
    fields
}
