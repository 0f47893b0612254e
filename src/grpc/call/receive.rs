//! Receives a request's message.

use std::time::Duration;

use h2::RecvStream;
use hyper::body::Bytes;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;
use tonic::Status;

use super::headers::Headers;
use super::{Handler, Received};
use crate::grpc::limits::MESSAGE_LIMIT;
use crate::grpc::responses::PREFIX;

/// How long a client may take to send its message.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages up to this size are accepted without a reservation; longer ones share `Shared::long_messages`.
const SHORT_MESSAGE: usize = 4 << 10;

impl<'a> Handler<'a> {
    pub(super) async fn receive(&self, headers: &Headers, body: &mut RecvStream) -> Received<'a> {
        if let Some(encoding) = &headers.encoding {
            // As grpc-go does without a registered compressor.
            let text = format!("grpc: Decompressor is not installed for grpc-encoding {encoding:?}");
            return Err(Status::unimplemented(text));
        }
        let late = |_| Err(Status::deadline_exceeded(format!("no message received in {RECEIVE_TIMEOUT:?}")));
        timeout(RECEIVE_TIMEOUT, self.receive_message(body)).await.unwrap_or_else(late)
    }

    async fn receive_message(&self, body: &mut RecvStream) -> Received<'a> {
        let (mut received, mut reserved) = (Vec::new(), None);
        loop {
            if let Some(length) = message_length(&received)? {
                if let Some(message) = received.get(PREFIX..PREFIX + length) {
                    // Copied, because the buffer has room for all that came behind the message.
                    return Ok((Bytes::copy_from_slice(message), reserved));
                }
                if length > SHORT_MESSAGE && reserved.is_none() {
                    reserved = Some(self.reserve(length)?);
                }
            }
            let Some(chunk) = body.data().await else {
                let text = match received.len() {
                    0 => "cardinality violation: received no request message from non-client-streaming RPC",
                    _ => "unexpected EOF",
                };
                return Err(Status::internal(text));
            };
            let chunk = chunk.map_err(|error| Status::cancelled(error.to_string()))?;
            let _ = body.flow_control().release_capacity(chunk.len());
            // Copied, because h2 hands out slices of its read buffer.
            received.extend_from_slice(&chunk);
        }
    }

    fn reserve(&self, length: usize) -> Result<SemaphorePermit<'a>, Status> {
        let length = u32::try_from(length).ok();
        let reserved = length.and_then(|length| self.shared.long_messages.try_acquire_many(length).ok());
        reserved.ok_or_else(|| Status::resource_exhausted("too many long messages at once"))
    }
}

/// Returns the length of a message, once its prefix has arrived. Texts and codes are grpc-go's
/// (`rpc_util.go`, `recvMsg` and `checkRecvPayload`).
fn message_length(received: &[u8]) -> Result<Option<usize>, Status> {
    let [flag, a, b, c, d, ..] = *received else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MESSAGE_LIMIT {
        let text = format!("grpc: received message larger than max ({length} vs. {MESSAGE_LIMIT})");
        return Err(Status::resource_exhausted(text));
    }
    match flag {
        0 => Ok(Some(length)),
        1 => Err(Status::internal("grpc: compressed flag set with identity or empty encoding")),
        _ => Err(Status::internal(format!("grpc: received unexpected payload format {flag}"))),
    }
}
