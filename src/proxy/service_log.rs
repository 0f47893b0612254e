//! The log of the proxy's service: each message is logged until what it is about changes.

use tracing::{info, warn};

use super::annotation_state::SourceFreshness;
use super::merge::WireError;
use crate::util::log_throttle::LastLogged;

/// Clients with gRPC's default limit accept no more bytes.
const CLIENT_LIMIT: usize = 4 << 20;
/// A response above this size is logged as large, which leaves an eighth for more pods.
const LARGE: usize = CLIENT_LIMIT / 8 * 7;
/// Below this size it no longer counts as large; the gap keeps a fluctuating size from flooding the log.
const NOT_LARGE: usize = CLIENT_LIMIT / 8 * 6;

#[derive(Debug, Default)]
pub(super) struct ServiceLog {
    large: LastLogged,
    freshness: LastLogged<SourceFreshness>,
    malformed: LastLogged,
}

impl ServiceLog {
    pub(super) fn size(&self, bytes: usize) {
        if self.is_newly_large(bytes) {
            warn!(
                "the List has {bytes} bytes; clients that accept at most {CLIENT_LIMIT} (gRPC's default, as in \
                 dcgm-exporter) fail when it grows above that"
            );
        }
    }

    fn is_newly_large(&self, bytes: usize) -> bool {
        if bytes < NOT_LARGE {
            self.large.reset();
        }
        bytes > LARGE && self.large.is_new(())
    }

    pub(super) fn freshness(&self, freshness: SourceFreshness, fail_closed: bool) {
        if !self.freshness.is_new(freshness) {
            return;
        }
        let consequence = match fail_closed {
            true => "requests are rejected meanwhile (proxy.failClosed)",
            false => "responses lack the devices from annotations meanwhile",
        };
        match freshness {
            SourceFreshness::Fresh => info!("devices from annotations are merged into responses"),
            SourceFreshness::Unsynced => warn!("pods and devices are not known yet: {consequence}"),
            SourceFreshness::Stale => warn!("no pod source has been synced for too long: {consequence}"),
        }
    }

    pub(super) fn malformed(&self, method: &str, error: &WireError) {
        if self.malformed.is_new(()) {
            warn!("cannot decode the kubelet's response to {method}, which is passed on as it is: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_response_is_logged_once_until_it_has_shrunk() {
        let log = ServiceLog::default();
        let sizes = [LARGE, LARGE + 1, LARGE + 1, NOT_LARGE, LARGE + 1, NOT_LARGE - 1, LARGE + 1];
        let logged = sizes.map(|bytes| log.is_newly_large(bytes));
        assert_eq!(logged, [false, true, false, false, false, false, true]);
    }
}
