//! Leader election by a Lease, with the rules of client-go's `leaderelection`, which tolerate clock skew:
//! another replica's claim expires by our own clock, counted from when we saw it change. Times in the Lease
//! are never compared with ours.
//!
//! kube has no leader election. The crates that do (kube-leader-election, kubert) compare the Lease's times
//! with the local clock, so that two replicas lead if their clocks differ.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info};

use super::metrics::Metrics;
use crate::cluster::{Cluster, ClusterError};
use crate::util::backoff::jittered;
use crate::util::log_throttle::LogOnce;

/// How long a claim is valid without renewal.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long after the last renewal the holder stops leading, possibly with a call still in flight.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often the Lease is renewed or read.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// How long the holder tries to release the Lease on shutdown.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a deleted Lease is not recreated: uninstalling deletes the Lease shortly before this pod.
const RECREATE_AFTER: Duration = Duration::from_secs(60);

/// A claim, and when it was first observed in this state.
#[derive(Clone, Debug)]
struct Claim {
    spec: LeaseSpec,
    since: Instant,
}

impl Claim {
    /// Records a claim. If it changed in any way, its validity starts now, whatever times it contains.
    fn observe(before: Option<Self>, spec: LeaseSpec, now: Instant) -> Self {
        match before {
            Some(before) if before.spec == spec => before,
            _ => Self { spec, since: now },
        }
    }

    /// Returns true if another replica holds the Lease and its claim has not expired.
    fn is_of_other(&self, identity: &str, now: Instant) -> bool {
        let seconds = self.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(LEASE_DURATION, Duration::from_secs);
        let holder = self.spec.holder_identity.as_deref().unwrap_or_default();
        !holder.is_empty() && holder != identity && now < self.since + duration
    }
}

/// Returns true if a missing Lease may be created, given when it last existed.
fn may_create(last_seen: Option<Instant>, now: Instant) -> bool {
    last_seen.is_none_or(|seen| now.duration_since(seen) >= RECREATE_AFTER)
}

/// Returns our claim, following the previous one.
fn claim(before: &LeaseSpec, identity: &str, now: MicroTime) -> LeaseSpec {
    let is_renewal = before.holder_identity.as_deref() == Some(identity);
    let transitions = before.lease_transitions.unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(LEASE_DURATION.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: if is_renewal { before.acquire_time.clone() } else { Some(now.clone()) },
        renew_time: Some(now),
        lease_transitions: Some(if is_renewal { transitions } else { transitions.saturating_add(1) }),
        ..LeaseSpec::default()
    }
}

/// Returns the released claim, so that the next leader need not wait.
fn released(before: LeaseSpec, now: MicroTime) -> LeaseSpec {
    LeaseSpec { holder_identity: None, lease_duration_seconds: Some(1), renew_time: Some(now), ..before }
}

#[allow(clippy::disallowed_methods, reason = "for people only: it is never compared")]
fn wall_clock() -> MicroTime {
    MicroTime(jiff::Timestamp::now())
}

#[derive(Debug)]
pub(super) struct LeaderElection {
    cluster: Cluster,
    namespace: String,
    name: String,
    identity: String,
    claim: Option<Claim>,
    /// The Lease as we last wrote it, while we lead.
    written: Option<Lease>,
    last_seen: Option<Instant>,
    log: LogOnce,
}

impl LeaderElection {
    pub(super) fn new(cluster: Cluster, namespace: String, name: String, identity: String) -> Self {
        let log = LogOnce::default();
        Self { cluster, namespace, name, identity, claim: None, written: None, last_seen: None, log }
    }

    /// Waits until we lead. Returns since when the claim is valid: the start of the call that acquired it. An
    /// attempt that took too long does not count.
    pub(super) async fn acquire(&mut self, metrics: &Metrics) -> Instant {
        loop {
            let started = Instant::now();
            match timeout_at(started + RENEW_DEADLINE, self.try_acquire()).await {
                Ok(Ok(acquired)) => {
                    self.succeeded(metrics);
                    if acquired && started.elapsed() < RENEW_DEADLINE {
                        return started;
                    }
                }
                Ok(Err(error)) => self.failed(&error, metrics),
                Err(_) => {
                    debug!("cannot read or renew the Lease {}/{}: it timed out", self.namespace, self.name);
                }
            }
            sleep(jittered(RETRY_PERIOD)).await;
        }
    }

    /// Renews the claim made at `renewed`. Returns when we no longer lead.
    pub(super) async fn renew(&mut self, mut renewed: Instant, metrics: &Metrics) {
        loop {
            sleep(RETRY_PERIOD).await;
            // The claim is valid at least from the start of the call.
            let started = Instant::now();
            match timeout_at(renewed + RENEW_DEADLINE, self.try_acquire()).await {
                Ok(Ok(true)) => {
                    renewed = started;
                    self.succeeded(metrics);
                }
                Ok(Ok(false)) => {
                    break info!("no longer the leader: the Lease was taken over or deleted");
                }
                Ok(Err(error)) => self.failed(&error, metrics),
                Err(_) => debug!("a renewal of the Lease timed out"),
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                break info!("no longer the leader: the Lease could not be renewed");
            }
        }
        self.written = None;
    }

    /// Releases the Lease. It is read again first, since a renewal may have been in flight.
    pub(super) async fn release(&mut self) {
        let release = async {
            let Some(mut lease) = self.cluster.lease(&self.namespace, &self.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.take().unwrap_or_default();
            if spec.holder_identity.as_deref() == Some(&self.identity) {
                lease.spec = Some(released(spec, wall_clock()));
                self.cluster.replace_lease(&self.namespace, lease).await?;
            }
            Ok::<(), ClusterError>(())
        };
        match timeout(RELEASE_TIMEOUT, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!("the Lease was not released: {error}"),
            Err(_) => debug!("the Lease was not released: the API server did not respond"),
        }
    }

    fn succeeded(&mut self, metrics: &Metrics) {
        metrics.health.lease.confirm();
        self.log.recovered("the Lease can be used again");
    }

    fn failed(&mut self, error: &ClusterError, metrics: &Metrics) {
        metrics.request_failed(error);
        self.log.warn(&format!("cannot read or renew the Lease {}/{}: {error}", self.namespace, self.name));
    }

    /// Tries to acquire or renew the Lease. Returns whether we hold it.
    async fn try_acquire(&mut self) -> Result<bool, ClusterError> {
        // The Lease is still as we last wrote it, unless another replica took it.
        if let Some(lease) = self.written.take()
            && self.write(lease).await?
        {
            return Ok(true);
        }
        let Some(lease) = self.cluster.lease(&self.namespace, &self.name).await? else {
            if !may_create(self.last_seen, Instant::now()) {
                debug!("the Lease is gone");
                return Ok(false);
            }
            let spec = claim(&LeaseSpec::default(), &self.identity, wall_clock());
            let created = self.cluster.create_lease(&self.namespace, &self.name, spec).await;
            return self.wrote(created);
        };
        let now = Instant::now();
        self.last_seen = Some(now);
        let claim = Claim::observe(self.claim.take(), lease.spec.clone().unwrap_or_default(), now);
        let is_of_other = claim.is_of_other(&self.identity, now);
        self.claim = Some(claim);
        if is_of_other { Ok(false) } else { self.write(lease).await }
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
                (self.written, self.last_seen) = (Some(lease), Some(Instant::now()));
                Ok(true)
            }
            // Another replica was faster.
            Err(error) if error.is_other_object_or_version() => Ok(false),
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

    fn claim_of(holder: &str, renewed: &str) -> LeaseSpec {
        claim(&LeaseSpec::default(), holder, time(renewed))
    }

    #[test]
    fn a_claim_is_valid_from_when_it_was_seen_to_change() {
        let start = Instant::now();
        // The holder's clock is ten years behind.
        let old = claim_of("b", "2016-01-01T00:00:00Z");
        let seen = Claim::observe(None, old.clone(), start);
        assert!(seen.is_of_other("a", start));
        assert!(seen.is_of_other("a", start + LEASE_DURATION - Duration::from_millis(1)));
        assert!(!seen.is_of_other("a", start + LEASE_DURATION));
        let again = Claim::observe(Some(seen.clone()), old, start + LEASE_DURATION / 2);
        assert!(!again.is_of_other("a", start + LEASE_DURATION), "it was not renewed");
        let renewed =
            Claim::observe(Some(seen), claim_of("b", "2016-01-01T00:00:02Z"), start + LEASE_DURATION / 2);
        assert!(renewed.is_of_other("a", start + LEASE_DURATION));
        assert!(!renewed.is_of_other("b", start + LEASE_DURATION), "it is ours");
    }

    #[test]
    fn a_lease_without_a_holder_is_free() {
        let now = Instant::now();
        let bare = Claim::observe(None, LeaseSpec::default(), now);
        assert!(!bare.is_of_other("a", now));
        let spec = released(claim_of("b", "2026-01-01T00:00:00Z"), time("2026-01-01T00:00:05Z"));
        assert!(!Claim::observe(None, spec, now).is_of_other("a", now));
    }

    #[test]
    fn the_holders_own_duration_counts() {
        let now = Instant::now();
        let long = LeaseSpec { lease_duration_seconds: Some(60), ..claim_of("b", "2026-01-01T00:00:00Z") };
        let long = Claim::observe(None, long, now);
        assert!(long.is_of_other("a", now + LEASE_DURATION * 2));
        assert!(!long.is_of_other("a", now + LEASE_DURATION * 4));
    }

    #[test]
    fn a_deleted_lease_is_not_recreated_at_once() {
        let now = Instant::now();
        assert!(may_create(None, now), "it never existed");
        assert!(!may_create(Some(now), now + RECREATE_AFTER / 2));
        assert!(may_create(Some(now), now + RECREATE_AFTER));
    }

    #[test]
    fn a_renewal_keeps_the_acquire_time_and_a_takeover_is_counted() {
        let (first, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z");
        let ours = claim_of("a", first);
        assert_eq!(ours.lease_transitions, Some(1));
        let renewed = claim(&ours, "a", time(later));
        assert_eq!((renewed.acquire_time, renewed.renew_time), (Some(time(first)), Some(time(later))));
        assert_eq!(renewed.lease_transitions, Some(1));
        let theirs = claim(&ours, "b", time(later));
        assert_eq!((theirs.acquire_time, theirs.lease_transitions), (Some(time(later)), Some(2)));
    }

    /// Returns an election with a free Lease and a slow API server: seconds per response for the first call,
    /// the second, and all others.
    fn slow(calls: [u64; 3]) -> LeaderElection {
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
        LeaderElection::new(cluster, "n".to_owned(), "l".to_owned(), "a".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn our_claim_is_valid_from_the_start_of_the_call() {
        let (start, metrics) = (Instant::now(), fake::metrics());
        let mut election = slow([0, 9, 1000]);
        let since = election.acquire(&metrics).await;
        assert!(start.elapsed() >= Duration::from_secs(9) && since < start + Duration::from_secs(1));
        election.renew(since, &metrics).await;
        assert!(start.elapsed() < LEASE_DURATION, "{:?}: another one may lead", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_took_too_long_does_not_count() {
        let (start, metrics) = (Instant::now(), fake::metrics());
        let mut election = slow([0, 12, 0]);
        let since = election.acquire(&metrics).await;
        assert!(since >= start + RENEW_DEADLINE, "{:?}", since - start);
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_does_not_wait_for_an_api_server_that_hangs() {
        let start = Instant::now();
        slow([20, 20, 20]).release().await;
        assert!(start.elapsed() < RELEASE_TIMEOUT * 2);
    }
}
