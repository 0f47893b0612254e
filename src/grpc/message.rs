//! Outgoing messages: one encoded message, or a stream of them.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::BoxStream;
use prost::bytes::Bytes;
use tonic::Status;

/// Capacity of a message's head: an event's type and the length of its pod, each with its field key.
pub(super) const HEAD: usize = 8;

/// A streamed response.
pub trait MessageStream: Stream<Item = Result<Message, Status>> + Send {
    /// Ready when the stream should end although the client has not read the current message; the next item
    /// is the status. If part of that message was sent, the stream is reset instead, which gRPC clients
    /// report as `ResourceExhausted`.
    fn poll_abort(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl MessageStream for BoxStream<'static, Result<Message, Status>> {}

/// An encoded message: its head, and the rest, which other messages may share.
#[derive(Clone, Debug, Default)]
pub struct Message {
    pub(super) head: [u8; HEAD],
    /// How many bytes of `head` are used.
    pub(super) head_length: usize,
    pub(super) body: Bytes,
}

impl Message {
    /// Returns a message that begins with `head`; if `head` is longer than a few bytes, both parts are copied
    /// into one buffer.
    #[must_use]
    pub fn new(head: &[u8], body: Bytes) -> Self {
        let mut message = Self { head_length: head.len(), body, ..Self::default() };
        match message.head.get_mut(..head.len()) {
            Some(own) => own.copy_from_slice(head),
            None => (message.head_length, message.body) = (0, [head, &message.body].concat().into()),
        }
        message
    }

    /// Returns its length in bytes.
    #[allow(clippy::len_without_is_empty)] // an empty message is valid
    #[must_use]
    pub fn len(&self) -> usize {
        self.head_length + self.body.len()
    }

    /// Returns the whole message in one buffer.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        [&self.head[..self.head_length], &self.body].concat()
    }
}

impl From<Bytes> for Message {
    fn from(body: Bytes) -> Self {
        Self { body, ..Self::default() }
    }
}
