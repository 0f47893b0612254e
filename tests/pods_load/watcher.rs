//! A minimal watch client with hand-written HTTP/2 and gRPC, so that a thousand of them take little of the
//! machine that the server runs on too. Their windows are 64 KiB, as with Go's clients, and they return what
//! they have read.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, field, frame, text};

const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;

/// Bytes after which the window is updated, as in grpc-go: a quarter of the window.
const GIVE_BACK: usize = 16 << 10;

/// A watch client.
pub(crate) struct Watcher {
    stream: UnixStream,
    /// Received bytes that are not a whole frame yet.
    read: Vec<u8>,
    /// Bytes of the response that are not a whole message yet.
    response: Vec<u8>,
    /// Bytes read that the window has not been updated for.
    taken: usize,
}

impl Watcher {
    /// Calls `WatchPods`.
    pub(crate) async fn call(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).await.with_context(|| socket.display().to_string())?;
        // POST, http, the path and the authority (RFC 7541).
        let fields = [
            &[0x83_u8, 0x86, 0x04][..],
            &text(b"/v1alpha1.Pods/WatchPods"),
            &[0x01],
            &text(b"localhost"),
            &field(b"content-type", b"application/grpc"),
            &field(b"te", b"trailers"),
        ]
        .concat();
        let request = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            &frame(SETTINGS, 0, 0, &[]),
            &frame(HEADERS, END_HEADERS, 1, &fields),
            &frame(DATA, END_STREAM, 1, &[0; 5]),
        ]
        .concat();
        stream.write_all(&request).await?;
        Ok(Self { stream, read: Vec::new(), response: Vec::new(), taken: 0 })
    }

    /// Reads once and calls `take` with each complete message. Returns false at the end of the response.
    pub(crate) async fn read(&mut self, take: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        self.read.reserve(32 << 10);
        if self.stream.read_buf(&mut self.read).await? == 0 {
            return Ok(false);
        }
        let mut at = 0;
        let mut reply = Vec::<u8>::new();
        while let Some(head) = self.read.get(at..at + 9) {
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags, end) = (head[3], head[4], at + 9 + length);
            let Some(content) = self.read.get(at + 9..end) else { break };
            match kind {
                DATA => {
                    self.response.extend_from_slice(content);
                    self.taken += length;
                    take_messages(&mut self.response, take)?;
                }
                SETTINGS if flags & ACK == 0 => reply.extend(frame(SETTINGS, ACK, 0, &[])),
                PING if flags & ACK == 0 => reply.extend(frame(PING, ACK, 0, content)),
                RST_STREAM | GOAWAY => return Ok(false),
                _ => {}
            }
            if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                return Ok(false);
            }
            at = end;
        }
        self.read.drain(..at);
        if self.taken >= GIVE_BACK {
            let more = u32::try_from(std::mem::take(&mut self.taken))?.to_be_bytes();
            reply.extend(frame(WINDOW_UPDATE, 0, 0, &more));
            reply.extend(frame(WINDOW_UPDATE, 0, 1, &more));
        }
        if !reply.is_empty() {
            self.stream.write_all(&reply).await?;
        }
        Ok(true)
    }

    /// Reads everything that the server wrote before it closed the connection.
    pub(crate) async fn read_to_the_end(mut self) -> Result<()> {
        while self.read(&mut |_| Ok(())).await? {}
        Ok(())
    }
}

/// Removes complete messages from the front of a response.
fn take_messages(response: &mut Vec<u8>, take: &mut impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut at = 0;
    while let Some(&[flag, a, b, c, d]) = response.get(at..at + 5) {
        ensure!(flag == 0, "a message is compressed");
        let end = at + 5 + u32::from_be_bytes([a, b, c, d]) as usize;
        let Some(message) = response.get(at + 5..end) else { break };
        take(message)?;
        at = end;
    }
    response.drain(..at);
    Ok(())
}
