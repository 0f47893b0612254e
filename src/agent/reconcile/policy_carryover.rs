//! The policies to publish while the kubelet's configuration cannot be read.

use std::time::Duration;

use tokio::time::Instant;

use super::plan::Check;
use crate::agent::live_object::LiveObject;
use crate::agent::observe::{ConfigConfidence, ConfigStatus};

/// How long the configuration must have been unreadable before that is reported, if there are no policies: about
/// three attempts.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// If policies are carried over, that is reported after this many times the limit.
const REPORT_FACTOR: u32 = 10;

/// Who needs the policies, and where they come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Whether the object's consumer needs them.
    pub(super) is_needed: bool,
    /// Whether the kubelet's configuration has a source.
    pub(super) has_source: bool,
}

/// Carries the live object's policies over. Only a configuration that was read replaces them, however long
/// that takes: without them the scheduler plugin would align nothing on the node.
#[derive(Debug)]
pub(super) struct PolicyCarryover {
    demand: Demand,
    policies: Vec<(String, String)>,
    /// How long to wait for the configuration if there are no policies to carry over.
    limit: Duration,
    /// When that wait began, and since when the configuration cannot be read.
    waiting_since: Option<Instant>,
    failing_since: Option<Instant>,
    report_at: Instant,
    is_reported: bool,
    /// Whether the configuration was read once; the reader keeps it.
    is_read: bool,
}

impl PolicyCarryover {
    /// Returns a carryover without policies.
    pub(super) fn new(demand: Demand, limit: Duration, now: Instant) -> Self {
        Self {
            demand,
            policies: Vec::new(),
            limit,
            waiting_since: None,
            failing_since: None,
            report_at: now + limit * REPORT_FACTOR,
            is_reported: false,
            is_read: false,
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
        let is_certain = config.confidence == ConfigConfidence::Certain;
        if !self.demand.has_source || self.is_read || is_certain {
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

    /// Records that a scan is accepted.
    pub(super) fn accept(&mut self, confidence: ConfigConfidence) {
        self.is_read |= confidence == ConfigConfidence::Certain;
    }

    /// Returns why the object has no policies although its consumer needs them. Once it has some, it keeps them.
    pub(super) fn missing(&self, config: &ConfigStatus) -> Option<String> {
        let has_some = !self.policies.is_empty() || self.is_known(config);
        (self.demand.is_needed && !has_some).then(|| self.note(config))
    }

    /// Returns what to report, once, if the configuration cannot be read.
    pub(super) fn report(&mut self, config: &ConfigStatus, now: Instant) -> Option<String> {
        if self.is_reported || self.is_known(config) || !self.is_due(config, now) {
            return None;
        }
        self.is_reported = true;
        Some(self.note(config))
    }

    fn is_known(&self, config: &ConfigStatus) -> bool {
        self.is_read || config.confidence != ConfigConfidence::Unknown
    }

    fn is_due(&mut self, config: &ConfigStatus, now: Instant) -> bool {
        if !self.demand.has_source {
            return self.demand.is_needed;
        }
        if !self.policies.is_empty() {
            return now >= self.report_at;
        }
        self.failing_since = config.error.is_some().then_some(self.failing_since.unwrap_or(now));
        let has_passed =
            |since: Option<Instant>, limit| since.is_some_and(|since| now.duration_since(since) >= limit);
        has_passed(self.failing_since, REPORT_AFTER) || has_passed(self.waiting_since, self.limit)
    }

    /// Describes that the policies are unknown: the consequence, what to set, and the cause.
    fn note(&self, config: &ConfigStatus) -> String {
        let consequence = match self.policies.is_empty() {
            true => "the object has none and schedulers ignore its zones",
            false => "the object keeps those that it had before",
        };
        let cause = match &config.error {
            Some(error) => error,
            None if self.demand.has_source => "the kubelet has not responded yet",
            None => {
                "`kubelet.configSource` is `none`, and `kubelet.configOverrides` does not set the policies"
            }
        };
        format!(
            "the kubelet's policies are unknown, so {consequence}: set `kubelet.configFile` to the kubelet's \
             configuration file or, in the Helm chart, `platform`, or do what the cause says: {cause}"
        )
    }
}

#[cfg(test)]
mod tests {
    use ConfigConfidence::{Certain, Doubtful, Unknown};

    use super::*;
    use crate::agent::live_object::tests::live_object;

    const LIMIT: Duration = Duration::from_secs(30);
    const NEEDED: Demand = Demand { is_needed: true, has_source: true };

    fn with_policies(start: Instant) -> (PolicyCarryover, Vec<(String, String)>) {
        let object = live_object(&[("topologyManagerPolicy", "none"), ("topologyManagerScope", "pod")], &[]);
        let mut carryover = PolicyCarryover::new(NEEDED, LIMIT, start);
        carryover.adopt(&object);
        (carryover, object.policies())
    }

    fn status(confidence: ConfigConfidence) -> ConfigStatus {
        ConfigStatus { confidence, ..ConfigStatus::default() }
    }

    fn failed() -> ConfigStatus {
        ConfigStatus { error: Some("the certificate is self-signed".to_owned()), ..status(Unknown) }
    }

    #[test]
    fn policies_are_carried_over_until_they_are_read() {
        let start = Instant::now();
        let (mut carryover, policies) = with_policies(start);
        let mut check = |config: &ConfigStatus, seconds| {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(carryover.missing(config), None, "the object has them");
            let report = carryover.report(config, now);
            let check = carryover.check(config, now);
            carryover.accept(config.confidence);
            (check, report)
        };
        let carried = || Check::Amend(Some(policies.clone()), None);
        assert_eq!(check(&failed(), 0), (carried(), None));
        assert_eq!(check(&failed(), 299), (carried(), None));
        let (kept, report) = check(&failed(), 300);
        assert_eq!(kept, carried());
        let report = report.unwrap();
        assert!(report.contains("keeps those that it had before: set"), "{report}");
        assert!(report.ends_with("the certificate is self-signed"), "{report}");
        assert_eq!(check(&failed(), 3600), (carried(), None), "it is reported once");
        assert_eq!(check(&status(Certain), 3600), (Check::Pass, None));
        assert_eq!(check(&status(Certain), 3601), (Check::Pass, None));
        assert_eq!(check(&status(Doubtful), 3600), (Check::Pass, None), "what was read once is used");
    }

    #[test]
    fn policies_replace_a_doubtful_configuration() {
        let start = Instant::now();
        let (mut carryover, policies) = with_policies(start);
        let later = start + LIMIT * 20;
        assert_eq!(carryover.check(&status(Doubtful), later), Check::Amend(Some(policies), None));
        assert_eq!(carryover.report(&status(Doubtful), later), None, "that is no reason for a report");
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
        let mut carryover = PolicyCarryover::new(NEEDED, LIMIT, start);
        let after = |seconds| start + Duration::from_secs(seconds);
        let waits = |check: Check<Option<Vec<(String, String)>>>| matches!(check, Check::Wait { .. });
        assert_eq!(carryover.check(&status(Certain), start), Check::Pass);
        assert_eq!(carryover.check(&status(Doubtful), start), Check::Pass, "better than none");
        assert!(waits(carryover.check(&status(Unknown), after(100))), "from the first time on");
        assert!(waits(carryover.check(&status(Unknown), after(129))));
        assert_eq!(carryover.report(&status(Unknown), after(129)), None);
        assert_eq!(carryover.check(&status(Unknown), after(130)), Check::Pass);
        assert!(carryover.report(&status(Unknown), after(130)).is_some(), "without an error, too");
        assert_eq!(carryover.check(&status(Unknown), after(131)), Check::Pass, "it does not wait again");
        assert_eq!(carryover.report(&status(Unknown), after(131)), None, "it is reported once");
    }

    #[test]
    fn a_lasting_error_is_reported_before_the_wait_is_over() {
        let start = Instant::now();
        let mut carryover = PolicyCarryover::new(NEEDED, LIMIT, start);
        let mut report =
            |config: &ConfigStatus, seconds| carryover.report(config, start + Duration::from_secs(seconds));
        assert_eq!(report(&failed(), 0), None);
        assert_eq!(report(&failed(), 4), None);
        assert_eq!(report(&status(Unknown), 5), None, "the error is over");
        assert_eq!(report(&failed(), 6), None);
        let note = report(&failed(), 11).unwrap();
        assert_eq!(
            note,
            "the kubelet's policies are unknown, so the object has none and schedulers ignore its zones: set \
             `kubelet.configFile` to the kubelet's configuration file or, in the Helm chart, `platform`, or do what the \
             cause says: the certificate is self-signed"
        );
    }

    #[test]
    fn policies_are_missing_until_they_are_known_once() {
        let start = Instant::now();
        let carryover = |demand| PolicyCarryover::new(demand, LIMIT, start);
        let mut needed = carryover(NEEDED);
        assert!(needed.missing(&failed()).unwrap().ends_with("self-signed"));
        assert!(needed.missing(&status(Unknown)).unwrap().ends_with("the kubelet has not responded yet"));
        assert_eq!(needed.missing(&status(Doubtful)), None);
        assert_eq!(needed.missing(&status(Certain)), None);
        needed.accept(Certain);
        assert_eq!(needed.missing(&failed()), None, "what was read once is used");
        assert_eq!(carryover(Demand { is_needed: false, ..NEEDED }).missing(&failed()), None);
    }

    #[test]
    fn without_a_source_policies_are_not_waited_for_but_missing_if_they_are_needed() {
        let start = Instant::now();
        let mut needed = PolicyCarryover::new(Demand { has_source: false, ..NEEDED }, LIMIT, start);
        assert_eq!(needed.check(&status(Unknown), start), Check::Pass);
        let cause =
            "`kubelet.configSource` is `none`, and `kubelet.configOverrides` does not set the policies";
        assert!(needed.missing(&status(Unknown)).unwrap().ends_with(cause));
        assert!(needed.report(&status(Unknown), start).unwrap().ends_with(cause));
        assert_eq!(needed.missing(&status(Certain)), None, "with overrides");
        let nobody = Demand { is_needed: false, has_source: false };
        let mut unneeded = PolicyCarryover::new(nobody, LIMIT, start);
        assert_eq!(unneeded.missing(&status(Unknown)), None);
        assert_eq!(unneeded.report(&status(Unknown), start + LIMIT * 20), None);
    }
}
