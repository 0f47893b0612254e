//! The server's configurable limits, and constants that several modules use.

use std::time::Duration;

/// Maximum message size, that of the kubelet (grpc-go `defaultServerMaxReceiveMessageSize`).
pub(super) const MESSAGE_LIMIT: usize = 4 << 20;
/// Bytes of long messages of all clients: two of the maximum size. No RPC here needs any.
pub(super) const LONG_MESSAGES: usize = 2 * MESSAGE_LIMIT;
/// How much of each response h2 buffers beyond what its connection takes. It is a slice of a shared buffer
/// and costs nothing itself.
pub(super) const SEND_BUFFER: usize = 64 << 10;
/// Buffers that the HPACK tables of all connections together may keep beyond those of each. A client that calls
/// three methods with deadlines keeps about eight.
pub(super) const SHARED_BUFFERS: usize = 1024;

/// Limits on connections, calls and responses.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum connections of all clients. An idle one takes some 10 KiB, one that had 128 calls at once 100
    /// KiB; a client that tries to make it keep more reaches 300 KiB at most, and all connections together 64
    /// MiB (`tests/grpc_memory`).
    pub connections: usize,
    /// Maximum connections of one client.
    pub connections_per_client: usize,
    /// `SETTINGS_MAX_CONCURRENT_STREAMS` of HTTP/2: a client waits before it makes more calls on a
    /// connection.
    pub concurrent_streams: u32,
    /// Maximum running calls of all clients; more wait.
    pub running_calls: usize,
    /// Maximum running calls of one client.
    pub running_calls_per_client: usize,
    /// Maximum calls of all clients that wait, run or are being sent, including [`super::Reply::Many`]; more
    /// are rejected, except for a few of each client. Each takes some 2 KiB, whatever its client sends
    /// (`tests/grpc_memory`).
    pub open_calls: usize,
    /// Maximum such calls of one client.
    pub open_calls_per_client: usize,
    /// How long a call waits to run before it is rejected.
    pub queue_timeout: Duration,
    /// How long a call may take until its response begins, including the wait to run; the client's deadline
    /// may be shorter.
    pub response_timeout: Duration,
    /// Bytes of distinct responses that are being sent. Above it, calls wait before they begin, and so do
    /// those of a client that is being sent half of it. Calls already running still get their response: with
    /// one response each of two RPCs under way, the maximum is this limit plus two responses.
    pub response_bytes: usize,
    /// How long a client may leave available data unread before it is disconnected. While responses use up
    /// their budget, it is two seconds.
    pub read_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A node has about a dozen clients, most with one connection, but 200 from one process have to
            // work.
            connections: 512,
            connections_per_client: 256,
            // RFC 9113 (6.5.2) recommends at least 100; Python clients may make more calls before they know
            // the limit.
            concurrent_streams: 128,
            // Calls that arrive together are answered together, so a low limit would mean a low rate.
            running_calls: 1024,
            running_calls_per_client: 256,
            open_calls: 4096,
            open_calls_per_client: 2048,
            // Clients' own deadlines are 5 s and 10 s.
            queue_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(8),
            // Three responses of 5 MiB, the largest known: one being sent, the next one, and one for a slow
            // client.
            response_bytes: 16 << 20,
            read_timeout: Duration::from_secs(10),
        }
    }
}
