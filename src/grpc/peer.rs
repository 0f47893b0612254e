//! The processes that connect.

use std::fmt::{self, Display};
use std::sync::Arc;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerPidfd;
use rustix::fs::{fstat, fstatfs};
use tokio::net::UnixStream;

/// `PID_FS_MAGIC` of `linux/magic.h`.
const PID_FS_MAGIC: u64 = 0x5049_4446;

/// The client's process, as reported by the kernel.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The process ID when it connected; `None` if that is in a PID namespace we cannot see.
    pub pid: Option<i32>,
    /// The user ID.
    pub uid: u32,
    /// The process's name if `/proc` shows it, else `uid <n>`. Untrusted, for display only.
    pub name: Arc<str>,
    /// The same for all connections of one process, and only for these. If the kernel cannot distinguish
    /// processes (before Linux 6.9, one of another PID namespace), each connection has its own.
    pub client: u64,
}

impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{:?} (process {pid})", self.name),
            None => write!(f, "a client of {}", self.name),
        }
    }
}

impl Peer {
    /// Returns the peer of a connection, as recorded by the kernel at connect time. Its `client` is 0 if the
    /// kernel does not identify the process.
    pub(super) fn of(stream: &UnixStream) -> Self {
        let credentials = stream.peer_cred().ok();
        // The PID of a process outside our namespace is 0.
        let pid = credentials.and_then(|credentials| credentials.pid()).filter(|pid| *pid > 0);
        let uid = credentials.map_or(u32::MAX, |credentials| credentials.uid());
        let name = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
        let name = name.map(|name| name.trim_end().to_owned()).filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| format!("uid {uid}")).into();
        let client = match process_inode(stream) {
            Some(inode) => inode | 1 << 62,
            // Process IDs are below 2^22.
            None => pid.map_or(0, |pid| u64::from(pid.unsigned_abs())),
        };
        Self { pid, uid, name, client }
    }
}

/// Returns the inode of the peer's process in the kernel's pidfs: unique, and visible across PID namespaces.
/// `SO_PEERPIDFD` exists since Linux 6.5, an inode for each process since 6.9; before that, all pidfds shared
/// one.
fn process_inode(stream: &UnixStream) -> Option<u64> {
    let process = getsockopt(stream, PeerPidfd).ok()?;
    let is_pidfs = fstatfs(&process).is_ok_and(|place| place.f_type as u64 == PID_FS_MAGIC);
    is_pidfs.then(|| fstat(&process).ok()).flatten().map(|found| found.st_ino)
}
