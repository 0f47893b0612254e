//! Compares a recently started kubelet with the live object: it may not know its pods yet, and without them
//! the node would look freer than it is.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::plan::{Check, Retry};
use super::restart_guard::EMPTY_FACTOR;
use crate::agent::live_object::LiveObject;
use crate::agent::observe::{Depth, Scan};
use crate::nrt::zone_name;
use crate::topology::{Amounts, Topology};

/// How long the first responses of kubelet, API server and pod source may take. If the API server takes
/// longer to return our object, it was unavailable.
const FIRST_RESPONSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct StartupGuard {
    started: Instant,
    /// How long a kubelet that started lately is compared; [`EMPTY_FACTOR`] times that if it lists no
    /// allocations.
    limit: Duration,
    /// Allocatable and available amounts by zone and resource, from the live object.
    amounts: BTreeMap<(String, String), (u64, u64)>,
    /// Since when the kubelet could know its pods; `None` before the live object is known, and once the
    /// kubelet is trusted.
    since: Option<Instant>,
}

/// What the pod source knows of the pods that the List should contain.
pub(super) enum PodListCheck {
    Complete,
    /// The List lacks some, or the source has not synced yet. The text is the reason.
    Incomplete(String),
    /// No pod source is configured, or it does not work.
    Unavailable,
}

impl StartupGuard {
    pub(super) fn new(started: Instant, limit: Duration) -> Self {
        Self { started, limit, amounts: BTreeMap::new(), since: None }
    }

    /// Starts the comparison with the live object. The kubelet created its socket `socket_age` ago.
    pub(super) fn adopt(&mut self, live_object: &LiveObject, socket_age: Duration, now: Instant) {
        for zone in live_object.zones() {
            for resource in zone.resources.iter().flatten() {
                let key = (zone.name.clone(), resource.name.clone());
                self.amounts.insert(key, (resource.allocatable.ceil(), resource.available.ceil()));
            }
        }
        // If we waited for the API server, the kubelet did too.
        let has_waited = now.duration_since(self.started) > FIRST_RESPONSE;
        let age = if has_waited { Duration::ZERO } else { socket_age };
        // If the subtraction fails, the wait starts now.
        self.since = Some(now.checked_sub(age).unwrap_or(now));
    }

    pub(super) const fn is_active(&self) -> bool {
        self.since.is_some()
    }

    pub(super) fn is_first_moment(&self, now: Instant) -> bool {
        now.duration_since(self.started) < FIRST_RESPONSE
    }

    /// Waits for the response to the first request for the kubelet's configuration. Without it, reserved CPUs
    /// would look free for a moment.
    pub(super) fn check_config(&self, scan: &Scan, now: Instant) -> Check {
        if scan.inventory.config.is_none() && scan.config.is_requested && self.is_first_moment(now) {
            // The response starts the next scan.
            let retry = Retry::At(self.started + FIRST_RESPONSE, Depth::Everything);
            return Check::Wait { why: "the kubelet's configuration was requested".to_owned(), retry };
        }
        Check::Pass
    }

    /// Compares a topology with the object; once one is accepted, the guard is off. If the pod source knows
    /// which pods exist, available amounts may have grown, since pods may be gone; allocatable ones may not.
    pub(super) fn check(
        &mut self,
        topology: &Topology,
        has_allocations: bool,
        pods: impl FnOnce() -> PodListCheck,
        now: Instant,
    ) -> Check {
        let Some(since) = self.since else { return Check::Pass };
        let limit = self.limit * if has_allocations { 1 } else { EMPTY_FACTOR };
        let doubt = match now.duration_since(since) < limit {
            false => None,
            true => match pods() {
                PodListCheck::Complete => self.growth(topology, |now, (then, _)| (now.allocatable, then)),
                PodListCheck::Incomplete(why) => Some(why),
                PodListCheck::Unavailable => self.growth(topology, |now, (_, then)| (now.available, then)),
            },
        };
        match doubt {
            Some(why) => Check::not_ready(format!(
                "the kubelet started recently and {why}: its state may be incomplete"
            )),
            None => {
                self.since = None;
                self.amounts.clear();
                Check::Pass
            }
        }
    }

    /// Returns where the topology has more than the object, by the amounts that `select` returns.
    fn growth(
        &self,
        topology: &Topology,
        select: impl Fn(&Amounts, (u64, u64)) -> (u64, u64),
    ) -> Option<String> {
        topology.zones.iter().find_map(|zone| {
            let name = zone_name(zone.id);
            zone.resources.iter().find_map(|(resource, amounts)| {
                let (now, then) = select(amounts, *self.amounts.get(&(name.clone(), resource.clone()))?);
                (now > then).then(|| format!("reports {now} {resource} on {name}, not the object's {then}"))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::live_object::tests::live_object;
    use crate::agent::observe::ConfigStatus;
    use crate::topology::Zone;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Returns `node-0` with four of each, of which so many are available; the object has one of each.
    fn topology(available: u64) -> Topology {
        let amounts = Amounts { capacity: 4, allocatable: 4, available };
        let resources = [("cpu".to_owned(), amounts), ("new".to_owned(), amounts)].into();
        Topology { zones: vec![Zone { id: 0, resources, ..Zone::default() }], ..Topology::default() }
    }

    fn reason(check: Check) -> String {
        match check {
            Check::Wait { why, retry: Retry::Backoff } => why,
            other => format!("{other:?}"),
        }
    }

    fn unavailable() -> PodListCheck {
        PodListCheck::Unavailable
    }

    fn incomplete() -> PodListCheck {
        PodListCheck::Incomplete("does not list 2 pods".to_owned())
    }

    struct Start(Instant);

    impl Start {
        fn now() -> Self {
            // An hour later, so that ages can be subtracted.
            Self(Instant::now() + Duration::from_secs(3600))
        }

        fn after(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }

        /// Returns a guard with a kubelet of that age.
        fn guard(&self, live_object: &LiveObject, age: u64) -> StartupGuard {
            let mut guard = StartupGuard::new(self.0, LIMIT);
            guard.adopt(live_object, Duration::from_secs(age), self.0);
            guard
        }
    }

    #[test]
    fn a_young_kubelet_is_not_accepted_while_the_node_looks_freer_than_the_object() {
        let (start, object) = (Start::now(), live_object(&[], &["cpu", "example.com/nic"]));
        let mut guard = start.guard(&object, 10);
        let why = reason(guard.check(&topology(4), true, unavailable, start.after(1)));
        assert!(why.contains("4 cpu on node-0, not the object's 1"), "{why}");
        assert!(guard.is_active());
        assert_ne!(guard.check(&topology(4), true, unavailable, start.after(19)), Check::Pass);
        assert_eq!(guard.check(&topology(1), true, unavailable, start.after(19)), Check::Pass);
        assert!(!guard.is_active());
        let later = guard.check(&topology(4), true, unavailable, start.after(19));
        assert_eq!(later, Check::Pass, "it is trusted from then on");
    }

    #[test]
    fn the_comparison_ends_in_time() {
        let (start, object) = (Start::now(), live_object(&[], &["cpu"]));
        let check = |age, has_allocations, after| {
            let mut guard = start.guard(&object, age);
            guard.check(&topology(4), has_allocations, unavailable, start.after(after))
        };
        assert_eq!(check(10, true, 20), Check::Pass);
        assert_eq!(check(7200, true, 0), Check::Pass, "it started long ago");
        assert_ne!(check(10, false, 289), Check::Pass, "an empty List is doubted longer");
        assert_eq!(check(10, false, 290), Check::Pass);
        let mut without_object = start.guard(&LiveObject::Missing, 0);
        assert_eq!(without_object.check(&topology(4), true, unavailable, start.after(0)), Check::Pass);
    }

    #[test]
    fn the_kubelet_counts_as_young_if_we_waited_for_the_api_server() {
        let (start, object) = (Start::now(), live_object(&[], &["cpu"]));
        let mut guard = StartupGuard::new(start.0, LIMIT);
        guard.adopt(&object, Duration::from_secs(7200), start.after(3));
        assert_ne!(guard.check(&topology(4), true, unavailable, start.after(32)), Check::Pass);
        assert_eq!(guard.check(&topology(4), true, unavailable, start.after(33)), Check::Pass);
        let mut guard = StartupGuard::new(start.0, LIMIT);
        guard.adopt(&object, Duration::from_secs(7200), start.after(2));
        let check = guard.check(&topology(4), true, unavailable, start.after(2));
        assert_eq!(check, Check::Pass, "the API server responded in time");
    }

    #[test]
    fn a_pod_source_explains_what_became_available() {
        let (start, object) = (Start::now(), live_object(&[], &["cpu"]));
        let complete = || PodListCheck::Complete;
        let why = reason(start.guard(&object, 0).check(&topology(4), true, complete, start.after(0)));
        assert!(why.contains("4 cpu on node-0, not"), "more is allocatable than before: {why}");
        let mut same = topology(4);
        same.zones[0].resources.values_mut().for_each(|amounts| amounts.allocatable = 1);
        let check = start.guard(&object, 0).check(&same, true, complete, start.after(0));
        assert_eq!(check, Check::Pass, "pods have ended meanwhile");
        let mut guard = start.guard(&LiveObject::Missing, 0);
        let why = reason(guard.check(&topology(4), true, incomplete, start.after(0)));
        assert!(why.contains("does not list 2 pods"), "{why}");
        assert_eq!(guard.check(&topology(4), true, incomplete, start.after(30)), Check::Pass);
    }

    #[test]
    fn the_first_response_about_the_configuration_is_waited_for() {
        let start = Start::now();
        let guard = StartupGuard::new(start.0, LIMIT);
        let requested = ConfigStatus { is_requested: true, ..ConfigStatus::default() };
        let scan = Scan { config: requested, ..Scan::default() };
        let check = guard.check_config(&scan, start.after(1));
        let Check::Wait { retry, .. } = check else { panic!("{check:?}") };
        assert_eq!(retry, Retry::At(start.after(2), Depth::Everything));
        assert_eq!(guard.check_config(&scan, start.after(2)), Check::Pass);
        assert_eq!(guard.check_config(&Scan::default(), start.after(1)), Check::Pass);
    }
}
