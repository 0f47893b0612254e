//! Logs client misbehavior, at most one line per minute for each kind.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::{Offence, Peer};

pub(super) const PERIOD: Duration = Duration::from_secs(60);

/// When a line of each kind was last logged, and how many have been suppressed since.
#[derive(Debug)]
pub(super) struct Notices {
    socket: PathBuf,
    kinds: [Mutex<Kind>; Offence::ALL.len()],
}

#[derive(Debug, Default)]
struct Kind {
    written: Option<Instant>,
    kept: u64,
}

impl Notices {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, kinds: Default::default() }
    }

    /// Logs a line, unless there was one of this kind within the last minute. `what` continues a sentence
    /// whose subject is the client.
    pub(super) fn tell(&self, kind: Offence, peer: &Peer, what: impl FnOnce() -> String) {
        let now = Instant::now();
        let mut state = self.kinds[kind as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if state.written.is_some_and(|written| now - written < PERIOD) {
            state.kept += 1;
            return;
        }
        let others = match std::mem::take(&mut state.kept) {
            0 => String::new(),
            kept => format!(" ({kept} more like it since the last of these lines)"),
        };
        state.written = Some(now);
        drop(state);
        warn!("{}: {peer} {}{others}", self.socket.display(), what());
    }
}
