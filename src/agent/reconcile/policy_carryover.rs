//! The policies to publish while the kubelet's configuration cannot be read.

use std::time::Duration;

use tokio::time::Instant;

use super::plan::Check;
use crate::agent::live_object::LiveObject;
use crate::agent::observe::{ConfigConfidence, ConfigStatus};
use crate::agent::report::Reason;

/// After this many times the limit it is reported that policies are carried over.
const REPORT_FACTOR: u32 = 10;

/// Carries the live object's policies over. Only a configuration that was read replaces them, however long
/// that takes: without them the scheduler plugin would align nothing on the node.
#[derive(Debug)]
pub(super) struct PolicyCarryover {
    policies: Vec<(String, String)>,
    /// How long to wait for the configuration if there are no policies to carry over.
    limit: Duration,
    /// When that wait began.
    waiting_since: Option<Instant>,
    report_at: Instant,
    is_reported: bool,
    /// Whether the configuration was read once (the reader keeps it), or has no source.
    is_over: bool,
}

impl PolicyCarryover {
    /// Returns a carryover without policies. `is_configured`: the kubelet's configuration has a source.
    pub(super) fn new(is_configured: bool, limit: Duration, now: Instant) -> Self {
        Self {
            policies: Vec::new(),
            limit,
            waiting_since: None,
            report_at: now + limit * REPORT_FACTOR,
            is_reported: false,
            is_over: !is_configured,
        }
    }

    pub(super) fn adopt(&mut self, live_object: &LiveObject) {
        self.policies = live_object.policies();
    }

    /// Returns the policies to publish in place of the configuration's. Waits if there would be none, and
    /// they may be known soon.
    pub(super) fn check(
        &mut self,
        config: &ConfigStatus,
        now: Instant,
    ) -> Check<Option<Vec<(String, String)>>> {
        if self.is_over || config.confidence == ConfigConfidence::Certain {
            return Check::Pass;
        }
        if !self.policies.is_empty() {
            return Check::Amend(Some(self.policies.clone()), None);
        }
        if config.confidence == ConfigConfidence::Unknown {
            let since = *self.waiting_since.get_or_insert(now);
            if now.duration_since(since) < self.limit {
                let why = config.error.as_deref();
                let why = why.unwrap_or("the kubelet's configuration was requested");
                return Check::not_ready(format!("{why}; the object waits for its policies"));
            }
        }
        Check::Pass
    }

    /// Records that a scan is accepted. Reports, once, if the configuration could not be read in time.
    pub(super) fn accept(&mut self, confidence: ConfigConfidence, now: Instant) -> Check {
        self.is_over |= confidence == ConfigConfidence::Certain;
        if self.is_over || confidence == ConfigConfidence::Doubtful {
            return Check::Pass;
        }
        let is_early = !self.policies.is_empty() && now < self.report_at;
        if is_early || self.is_reported {
            return Check::Pass;
        }
        self.is_reported = true;
        let consequence = match self.policies.is_empty() {
            true => "has no policies",
            false => "keeps the policies that it had before, until the configuration can be read",
        };
        let note = format!(
            "the kubelet's configuration has not been readable since the agent started, so the object {consequence}: \
             let its file be read (`kubelet.configFile`), let the agent request it (`kubelet.configSource`), or set \
             the policies (`kubelet.configOverrides`)"
        );
        Check::GiveUp(Reason::PoliciesUnknown, note)
    }
}

#[cfg(test)]
mod tests {
    use ConfigConfidence::{Certain, Doubtful, Unknown};

    use super::*;
    use crate::agent::live_object::tests::live_object;

    const LIMIT: Duration = Duration::from_secs(30);

    fn with_policies(start: Instant) -> (PolicyCarryover, Vec<(String, String)>) {
        let object = live_object(&[("topologyManagerPolicy", "none"), ("topologyManagerScope", "pod")], &[]);
        let mut carryover = PolicyCarryover::new(true, LIMIT, start);
        carryover.adopt(&object);
        (carryover, object.policies())
    }

    fn status(confidence: ConfigConfidence) -> ConfigStatus {
        ConfigStatus { confidence, ..ConfigStatus::default() }
    }

    fn reports(check: Check, words: &str) -> bool {
        matches!(check, Check::GiveUp(Reason::PoliciesUnknown, note) if note.contains(words))
    }

    #[test]
    fn policies_are_carried_over_until_they_are_read() {
        let start = Instant::now();
        let (mut carryover, policies) = with_policies(start);
        let mut check = |confidence, seconds| {
            let now = start + Duration::from_secs(seconds);
            (carryover.check(&status(confidence), now), carryover.accept(confidence, now))
        };
        let carried = || Check::Amend(Some(policies.clone()), None);
        assert_eq!(check(Unknown, 0), (carried(), Check::Pass));
        let (kept, report) = check(Unknown, 300);
        assert_eq!(kept, carried());
        assert!(reports(report, "keeps the policies"));
        assert_eq!(check(Unknown, 3600), (carried(), Check::Pass), "it is reported once");
        assert_eq!(check(Certain, 3600), (Check::Pass, Check::Pass));
        assert_eq!(check(Certain, 3601), (Check::Pass, Check::Pass));
        assert_eq!(check(Doubtful, 3600), (Check::Pass, Check::Pass), "what was read once is used");
    }

    #[test]
    fn policies_replace_a_doubtful_configuration() {
        let start = Instant::now();
        let (mut carryover, policies) = with_policies(start);
        let later = start + LIMIT * 20;
        assert_eq!(carryover.check(&status(Doubtful), later), Check::Amend(Some(policies), None));
        assert_eq!(carryover.accept(Doubtful, later), Check::Pass, "that is no reason for a report");
    }

    #[test]
    fn a_certain_configuration_counts_once_its_scan_is_accepted() {
        let (mut carryover, policies) = with_policies(Instant::now());
        let now = Instant::now();
        assert_eq!(carryover.check(&status(Certain), now), Check::Pass);
        assert_eq!(carryover.check(&status(Doubtful), now), Check::Amend(Some(policies), None));
    }

    #[test]
    fn an_object_without_policies_waits_for_them_for_a_limited_time() {
        let start = Instant::now();
        let mut carryover = PolicyCarryover::new(true, LIMIT, start);
        let after = |seconds| start + Duration::from_secs(seconds);
        let waits = |check: Check<Option<Vec<(String, String)>>>| matches!(check, Check::Wait { .. });
        assert_eq!(carryover.check(&status(Certain), start), Check::Pass);
        assert_eq!(carryover.check(&status(Doubtful), start), Check::Pass, "better than none");
        assert!(waits(carryover.check(&status(Unknown), after(100))), "from the first time on");
        assert!(waits(carryover.check(&status(Unknown), after(129))));
        assert_eq!(carryover.check(&status(Unknown), after(130)), Check::Pass);
        assert!(reports(carryover.accept(Unknown, after(130)), "has no policies"));
        assert_eq!(carryover.check(&status(Unknown), after(131)), Check::Pass, "it does not wait again");
        assert_eq!(carryover.accept(Unknown, after(131)), Check::Pass, "it is reported once");
    }

    #[test]
    fn nothing_is_waited_for_or_reported_without_a_source() {
        let start = Instant::now();
        let mut carryover = PolicyCarryover::new(false, LIMIT, start);
        assert_eq!(carryover.check(&status(Unknown), start), Check::Pass);
        assert_eq!(carryover.accept(Unknown, start + LIMIT * 20), Check::Pass);
    }
}
