//! Leader election by a Lease, with the rules of client-go's `leaderelection`, which tolerate clock skew:
//! another replica's claim expires by our own clock, counted from when we saw it change. The times in the
//! Lease are never compared with ours.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info};

use super::said::Said;
use crate::backoff::jittered;
use crate::cluster::{Cluster, ClusterError};
use crate::telemetry::controller::Metrics;

/// How long a claim is valid without renewal.
const VALID: Duration = Duration::from_secs(15);
/// How long after the last renewal the holder stops leading, possibly with a call still in flight.
const RENEW_WITHIN: Duration = Duration::from_secs(10);
/// How long the holder tries to release the Lease on shutdown.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(3);
/// How often the Lease is renewed or read.
const EVERY: Duration = Duration::from_secs(2);
/// How long a deleted Lease is not recreated: uninstalling deletes the Lease shortly before this pod.
const GONE: Duration = Duration::from_secs(60);

/// A claim, and when it was first observed in this state.
#[derive(Clone, Debug)]
struct Observed {
    spec: LeaseSpec,
    at: Instant,
}

/// Who holds the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// We do.
    Ours,
    /// Nobody does, or the claim has expired.
    Free,
    /// Another replica does.
    Theirs,
}

/// Records a claim. If it changed in any way, its validity starts now, whatever times it contains.
fn observe(before: Option<Observed>, spec: LeaseSpec, now: Instant) -> Observed {
    match before {
        Some(before) if before.spec == spec => before,
        _ => Observed { spec, at: now },
    }
}

fn turn(observed: &Observed, identity: &str, now: Instant) -> Turn {
    let holder = observed.spec.holder_identity.as_deref().unwrap_or_default();
    let seconds = observed.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let valid = seconds.map_or(VALID, Duration::from_secs);
    match holder {
        "" => Turn::Free,
        holder if holder == identity => Turn::Ours,
        _ if observed.at + valid <= now => Turn::Free,
        _ => Turn::Theirs,
    }
}

/// Returns true if a claim renewed at this time still allows its holder to lead.
fn is_valid(renewed: Instant, now: Instant) -> bool {
    now < renewed + RENEW_WITHIN
}

/// Returns true if a missing Lease may be created, given when it last existed.
fn may_make(seen: Option<Instant>, now: Instant) -> bool {
    seen.is_none_or(|seen| now.duration_since(seen) >= GONE)
}

/// Returns our claim, following the previous one.
fn claim(before: &LeaseSpec, identity: &str, now: MicroTime) -> LeaseSpec {
    let ours = before.holder_identity.as_deref() == Some(identity);
    let transitions = before.lease_transitions.unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(VALID.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: if ours { before.acquire_time.clone() } else { Some(now.clone()) },
        renew_time: Some(now),
        lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
        ..LeaseSpec::default()
    }
}

/// Returns the released claim, so that the next leader need not wait.
fn release(before: &LeaseSpec, now: MicroTime) -> LeaseSpec {
    LeaseSpec {
        holder_identity: None,
        lease_duration_seconds: Some(1),
        renew_time: Some(now),
        ..before.clone()
    }
}

#[allow(clippy::disallowed_methods, reason = "people read it; nobody compares it")]
fn wall_clock() -> MicroTime {
    MicroTime(jiff::Timestamp::now())
}

/// This replica's part in the election.
#[derive(Debug)]
pub(super) struct Election {
    cluster: Cluster,
    namespace: String,
    name: String,
    identity: String,
    observed: Option<Observed>,
    /// The Lease as we last wrote it, while we lead.
    held: Option<Lease>,
    /// When the Lease last existed.
    seen: Option<Instant>,
    said: Said,
}

impl Election {
    pub(super) fn new(cluster: Cluster, namespace: String, name: String, identity: String) -> Self {
        Self {
            cluster,
            namespace,
            name,
            identity,
            observed: None,
            held: None,
            seen: None,
            said: Said::default(),
        }
    }

    /// Waits until we lead. Returns since when the claim is valid: the start of the call that acquired it. An
    /// attempt that took too long does not count.
    pub(super) async fn win(&mut self, metrics: &Metrics) -> Instant {
        loop {
            let started = Instant::now();
            match timeout_at(started + RENEW_WITHIN, self.attempt()).await {
                Ok(Ok(won)) => {
                    metrics.health().lease_seen();
                    self.said.well("the Lease can be used again");
                    if won && is_valid(started, Instant::now()) {
                        return started;
                    }
                }
                Ok(Err(error)) => self.failed(&error, metrics),
                Err(_) => {
                    debug!("an attempt at the Lease was given up");
                }
            }
            sleep(jittered(EVERY)).await;
        }
    }

    /// Renews the claim made at `renewed`. Returns when we no longer lead.
    pub(super) async fn keep(&mut self, mut renewed: Instant, metrics: &Metrics) {
        loop {
            sleep(EVERY).await;
            // The claim is valid at least from the start of the call.
            let now = Instant::now();
            match timeout_at(renewed + RENEW_WITHIN, self.attempt()).await {
                Ok(Ok(true)) => {
                    renewed = now;
                    metrics.health().lease_seen();
                    self.said.well("the Lease can be used again");
                }
                Ok(Ok(false)) => {
                    break info!("this controller leads no longer: the Lease is another one's, or gone");
                }
                Ok(Err(error)) => self.failed(&error, metrics),
                Err(_) => {
                    debug!("a renewal of the Lease was given up");
                }
            }
            if !is_valid(renewed, Instant::now()) {
                break info!("the Lease could not be renewed: this controller leads no longer");
            }
        }
        self.held = None;
    }

    /// Releases the Lease. It is read again first, since a renewal may have been in flight.
    pub(super) async fn give_up(&mut self) {
        let released = async {
            let Some(mut lease) = self.cluster.lease(&self.namespace, &self.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.take().unwrap_or_default();
            if spec.holder_identity.as_deref() == Some(&self.identity) {
                lease.spec = Some(release(&spec, wall_clock()));
                self.cluster.replace_lease(&self.namespace, lease).await?;
            }
            Ok::<(), ClusterError>(())
        };
        match timeout(GIVE_UP_WITHIN, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!("the Lease was not released: {error}"),
            Err(_) => debug!("the Lease was not released: the API server did not answer"),
        }
    }

    fn failed(&mut self, error: &ClusterError, metrics: &Metrics) {
        metrics.call_failed(error);
        self.said.trouble(&error.to_string());
    }

    /// Tries to acquire or renew the Lease.
    async fn attempt(&mut self) -> Result<bool, ClusterError> {
        // The Lease is still as we last wrote it, unless another replica took it.
        if let Some(lease) = self.held.take()
            && self.write(lease).await?
        {
            return Ok(true);
        }
        let found = self.cluster.lease(&self.namespace, &self.name).await?;
        let Some(lease) = found else {
            if !may_make(self.seen, Instant::now()) {
                debug!("the Lease is gone");
                return Ok(false);
            }
            let spec = claim(&LeaseSpec::default(), &self.identity, wall_clock());
            let made = self.cluster.create_lease(&self.namespace, &self.name, spec).await;
            return self.wrote(made);
        };
        let now = Instant::now();
        self.seen = Some(now);
        let observed = observe(self.observed.take(), lease.spec.clone().unwrap_or_default(), now);
        let turn = turn(&observed, &self.identity, now);
        self.observed = Some(observed);
        match turn {
            Turn::Ours | Turn::Free => self.write(lease).await,
            Turn::Theirs => Ok(false),
        }
    }

    async fn write(&mut self, mut lease: Lease) -> Result<bool, ClusterError> {
        let before = lease.spec.take().unwrap_or_default();
        lease.spec = Some(claim(&before, &self.identity, wall_clock()));
        let written = self.cluster.replace_lease(&self.namespace, lease).await;
        self.wrote(written)
    }

    fn wrote(&mut self, written: Result<Lease, ClusterError>) -> Result<bool, ClusterError> {
        match written {
            Ok(lease) => {
                (self.held, self.seen) = (Some(lease), Some(Instant::now()));
                Ok(true)
            }
            // Another replica was faster.
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::super::fake;
    use super::*;

    fn time(text: &str) -> MicroTime {
        MicroTime(text.parse().unwrap())
    }

    fn held_by(holder: &str, renewed: &str) -> LeaseSpec {
        claim(&LeaseSpec::default(), holder, time(renewed))
    }

    #[test]
    fn a_claim_is_valid_from_when_it_was_seen_to_change_whatever_its_clock_says() {
        let start = Instant::now();
        // The holder's clock is ten years behind.
        let old = held_by("b", "2016-01-01T00:00:00Z");
        let seen = observe(None, old.clone(), start);
        assert_eq!(turn(&seen, "a", start), Turn::Theirs);
        assert_eq!(turn(&seen, "a", start + VALID - Duration::from_millis(1)), Turn::Theirs);
        assert_eq!(turn(&seen, "a", start + VALID), Turn::Free);
        let again = observe(Some(seen.clone()), old, start + VALID / 2);
        assert_eq!(turn(&again, "a", start + VALID), Turn::Free, "it was not renewed");
        let renewed = observe(Some(seen), held_by("b", "2016-01-01T00:00:02Z"), start + VALID / 2);
        assert_eq!(turn(&renewed, "a", start + VALID), Turn::Theirs);
        assert_eq!(turn(&renewed, "b", start + VALID * 9), Turn::Ours);
    }

    #[test]
    fn a_lease_without_a_holder_is_free() {
        let now = Instant::now();
        let bare = observe(None, LeaseSpec::default(), now);
        assert_eq!(turn(&bare, "a", now), Turn::Free);
        let held = held_by("b", "2026-01-01T00:00:00Z");
        let released = observe(None, release(&held, time("2026-01-01T00:00:05Z")), now);
        assert_eq!(turn(&released, "a", now), Turn::Free);
    }

    #[test]
    fn a_lease_that_somebody_removed_is_not_made_again_at_once() {
        let now = Instant::now();
        assert!(may_make(None, now), "there never was one");
        assert!(!may_make(Some(now), now + GONE / 2));
        assert!(may_make(Some(now), now + GONE));
    }

    /// Returns an election with a free Lease and a slow API server: seconds per response for the first call,
    /// the second, and all others.
    fn slow(calls: [u64; 3]) -> Election {
        let (count, lease) =
            (AtomicUsize::new(0), json!({"metadata": {"name": "l", "resourceVersion": "1"}, "spec": {}}));
        let cluster = fake::cluster(move |_| {
            let call = count.fetch_add(1, Ordering::Relaxed).min(2);
            let (seconds, lease) = (calls[call], lease.clone());
            async move {
                sleep(Duration::from_secs(seconds)).await;
                (200, lease)
            }
        });
        Election::new(cluster, "n".to_owned(), "l".to_owned(), "a".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_valid_from_before_the_call_that_made_it() {
        let (start, metrics) = (Instant::now(), fake::metrics());
        let mut election = slow([0, 9, 1000]);
        let since = election.win(&metrics).await;
        assert!(start.elapsed() >= Duration::from_secs(9) && since < start + Duration::from_secs(1));
        election.keep(since, &metrics).await;
        assert!(start.elapsed() < VALID, "{:?}: another one may lead", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_comes_too_late_wins_nothing() {
        let (start, metrics) = (Instant::now(), fake::metrics());
        let mut election = slow([0, 12, 0]);
        let since = election.win(&metrics).await;
        assert!(since >= start + RENEW_WITHIN, "{:?}", since - start);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_told_to_stop_does_not_wait_for_an_api_server_that_hangs() {
        let start = Instant::now();
        slow([20, 20, 20]).give_up().await;
        assert!(start.elapsed() < GIVE_UP_WITHIN * 2);
    }

    #[test]
    fn the_holders_own_duration_counts() {
        let now = Instant::now();
        let long = LeaseSpec { lease_duration_seconds: Some(60), ..held_by("b", "2026-01-01T00:00:00Z") };
        let long = observe(None, long, now);
        assert_eq!(turn(&long, "a", now + VALID * 2), Turn::Theirs);
        assert_eq!(turn(&long, "a", now + VALID * 4), Turn::Free);
    }

    #[test]
    fn renewals_keep_what_was_acquired_and_a_takeover_is_counted() {
        let (first, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z");
        let ours = held_by("a", first);
        assert_eq!(ours.lease_transitions, Some(1));
        let renewed = claim(&ours, "a", time(later));
        assert_eq!((renewed.acquire_time, renewed.renew_time), (Some(time(first)), Some(time(later))));
        assert_eq!(renewed.lease_transitions, Some(1));
        let theirs = claim(&ours, "b", time(later));
        assert_eq!((theirs.acquire_time, theirs.lease_transitions), (Some(time(later)), Some(2)));
    }
}
