//! The proxy's log messages, each logged once.

use std::sync::{Mutex, PoisonError};

use tracing::{info, warn};

use super::knowledge::Standing;
use super::merge::WireError;

/// Clients with gRPC's default limit accept no more.
const CLIENTS_TAKE: usize = 4 << 20;
/// A response above this size is logged as large, which leaves an eighth for more pods.
const LARGE: usize = CLIENTS_TAKE / 8 * 7;
/// Below this size it no longer counts as large; the gap keeps a fluctuating size from flooding the log.
const NOT_LARGE: usize = CLIENTS_TAKE / 8 * 6;

/// What was logged and still applies.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    large: bool,
    standing: Option<Standing>,
    malformed: bool,
}

impl Notices {
    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the size of a `List` in bytes.
    pub(super) fn size(&self, bytes: usize) {
        let mut told = self.told();
        if bytes > LARGE && !told.large {
            told.large = true;
            warn!(
                "the List has {bytes} bytes; clients that take no more than {CLIENTS_TAKE} (gRPC's default, as in \
                 dcgm-exporter) fail when it grows above that"
            );
        } else if bytes < NOT_LARGE {
            told.large = false;
        }
    }

    /// Records whether what is known may be merged into responses.
    pub(super) fn standing(&self, standing: Standing, fail_closed: bool) {
        let mut told = self.told();
        if told.standing.replace(standing) == Some(standing) {
            return;
        }
        let consequence = match fail_closed {
            true => "requests are refused meanwhile (proxy.failClosed)",
            false => "answers go out without devices from annotations meanwhile",
        };
        match standing {
            Standing::Good => info!("devices from annotations are merged into answers"),
            Standing::Untold => warn!("nobody has told about the node's pods yet: {consequence}"),
            Standing::Stale => warn!(
                "nobody has told about the node's pods for longer than `proxy.lastKnown`: {consequence}"
            ),
        }
    }

    /// Records that a kubelet response could not be decoded.
    pub(super) fn malformed(&self, call: &str, error: &WireError) {
        let mut told = self.told();
        if !told.malformed {
            told.malformed = true;
            warn!("the kubelet's answer to {call} is not understood and is passed on as it is: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_answer_is_told_once_until_it_has_shrunk() {
        let notices = Notices::default();
        let large = |bytes| {
            notices.size(bytes);
            notices.told().large
        };
        assert!(!large(LARGE));
        assert!(large(LARGE + 1));
        assert!(large(NOT_LARGE), "it may come again at once");
        assert!(!large(NOT_LARGE - 1));
    }
}
