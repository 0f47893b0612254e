//! Checks that the object never reports more available resources than there were.
//!
//! The simulated kubelet records its responses, each with the managers' state that it reported, and the
//! simulated API server records every version of the object. In a version that the agent wrote at an instant
//! `w`, the available amount of each zone and resource must not exceed what some responses to `List` and
//! `GetAllocatableResources` imply. These responses count:
//!
//! - For each method, the last correct and complete response that was at least [`PIPELINE`] before `w` and
//!   outside any fault of the kubelet, and every later one. The agent cannot legitimately use an older one
//!   any more: writing it that late means that writes were queued.
//! - During a fault of the kubelet (until the object is correct again), no response supersedes the one before
//!   it, since the agent may keep the last good object.
//! - A restarted kubelet that does not know its pods yet, or lists only some of them, is no excuse: such a
//!   response never counts, since the pods' resources stay allocated. An inventory that lacks CPUs or memory
//!   just after a restart counts as complete; one that lacks device plugins counts as it is.
//! - A partial or empty response of a kubelet that did not restart is authoritative and counts as it is.
//!
//! Available devices are those that one response offers minus those that another one lists, for each pair of
//! responses. If memory blocks join nodes, the sum over all nodes is compared, since the List does not report
//! how a block is split.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use numacast::cluster::FIELD_MANAGER;
use numacast::nrt::NodeResourceTopology;
use numacast::sim::api_server::{Change, EventType, TOPOLOGIES};
use numacast::sim::kubelet::{Call, DeviceId, Expected, Fault, SimKubelet, RecordedResponse};
use tokio::sync::broadcast;

/// Maximum time from a response to the write that it leads to: the timeout of a write, and more than that
/// again for a busy machine.
pub(crate) const PIPELINE: Duration = Duration::from_millis(1500);

/// Follows the object and the kubelet's responses.
pub(crate) struct Judge {
    changes: broadcast::Receiver<Arc<Change>>,
    responses: VecDeque<RecordedResponse>,
    /// Periods of faults of the kubelet; the last one may still be open.
    fault_periods: Vec<FaultPeriod>,
    /// Number of versions that were judged.
    pub(crate) versions: u64,
}

struct FaultPeriod {
    start: Instant,
    end: Option<Instant>,
    /// Whether the kubelet or its socket was replaced. If so, its partial responses are not authoritative.
    restart: bool,
}

impl FaultPeriod {
    fn is_apart(&self, from: Instant, to: Instant) -> bool {
        self.start > to || self.end.is_some_and(|end| end < from)
    }
}

/// Zone and resource to the amount reported as available.
type AvailableAmounts = BTreeMap<(String, String), u64>;

impl Judge {
    /// Starts judging. To be called before the agent starts.
    pub(crate) fn new(kubelet: &SimKubelet, changes: broadcast::Receiver<Arc<Change>>) -> Self {
        drop(kubelet.take_responses());
        Self { changes, responses: VecDeque::new(), fault_periods: Vec::new(), versions: 0 }
    }

    /// Begins a period of faults of the kubelet; `restart`: whether the kubelet restarts during it.
    pub(crate) fn fault_begins(&mut self, restart: bool) {
        self.fault_periods.push(FaultPeriod { start: Instant::now(), end: None, restart });
    }

    /// Ends the period: the object is correct again. Drops what no later version needs.
    pub(crate) fn fault_is_over(&mut self) {
        let now = Instant::now();
        if let Some(period) = self.fault_periods.last_mut() {
            period.end.get_or_insert(now);
        }
        let oldest = [Call::List, Call::Allocatable].map(|call| self.superseding(call, now));
        if let [Some(list), Some(allocatable)] = oldest {
            let oldest = list.min(allocatable);
            self.responses.retain(|response| response.at >= oldest);
            self.fault_periods.retain(|period| period.end.is_none_or(|end| end >= oldest));
        }
    }

    /// Judges every version since the last call.
    ///
    /// # Errors
    /// The amounts that are too high, and the kubelet's responses before.
    pub(crate) fn look(&mut self, kubelet: &SimKubelet) -> Result<(), String> {
        let mut changes = Vec::new();
        loop {
            match self.changes.try_recv() {
                Ok(change) => changes.push(change),
                Err(broadcast::error::TryRecvError::Lagged(count)) => {
                    return Err(format!("{count} changes went by unseen: look more often"));
                }
                Err(_) => break,
            }
        }
        // The responses before these changes have all been recorded by now.
        self.responses.extend(kubelet.take_responses());
        let ours = |change: &&Arc<Change>| {
            change.kind == &TOPOLOGIES && change.event != EventType::Deleted && change.manager == FIELD_MANAGER
        };
        changes.iter().filter(ours).try_for_each(|change| self.judge(change))
    }

    fn judge(&mut self, change: &Change) -> Result<(), String> {
        self.versions += 1;
        let object: NodeResourceTopology =
            serde_json::from_value((*change.object).clone()).map_err(|error| error.to_string())?;
        let lists = self.window(Call::List, change.at);
        let offers = self.window(Call::Allocatable, change.at);
        let blank = offers.iter().any(|response| response.fault == Some(Fault::Empty));
        let truths = truths(&lists, &offers);
        let joined = truths.iter().any(|truth| !truth.groups.is_empty());
        let most = truths.iter().map(|truth| available_of(truth, joined)).reduce(highest).unwrap_or_default();
        let mut too_much = String::new();
        for ((zone, resource), available) in published(&object, joined) {
            // Without an inventory, the agent knows only the hardware.
            if blank && !resource.contains('/') {
                continue;
            }
            let most = most.get(&(zone.clone(), resource.clone())).copied().unwrap_or(0);
            if available > most {
                let _ =
                    write!(too_much, "\n  {zone} {resource}: {available} available, never more than {most}");
            }
        }
        if too_much.is_empty() {
            return Ok(());
        }
        let version = change.resource_version;
        Err(format!("version {version} has too much available:{too_much}\n{}", self.account(change.at)))
    }

    /// The instant from which on responses count for a version written at `at`.
    fn superseding(&self, call: Call, at: Instant) -> Option<Instant> {
        let good = |response: &&RecordedResponse| {
            response.call == call
                && response.at + PIPELINE <= at
                && response.fault.is_none()
                && response.pods_known
                && response.managers_ready
                && self.is_calm(response.at)
        };
        self.responses.iter().rev().find(good).map(|response| response.at)
    }

    fn is_calm(&self, at: Instant) -> bool {
        self.fault_periods.iter().all(|period| period.is_apart(at, at + PIPELINE))
    }

    /// Returns true unless this is a partial response that is not authoritative.
    fn is_authoritative(&self, response: &RecordedResponse) -> bool {
        let partial = matches!(response.fault, Some(Fault::Partial(_) | Fault::Empty));
        let at = response.at;
        !partial || self.fault_periods.iter().all(|period| !period.restart || period.is_apart(at, at))
    }

    fn window(&self, call: Call, at: Instant) -> Vec<&RecordedResponse> {
        let start = self.superseding(call, at);
        let counts = |response: &&RecordedResponse| {
            let in_time = response.at <= at && start.is_none_or(|start| response.at >= start);
            let excuse = call == Call::Allocatable || response.pods_known;
            response.call == call && in_time && excuse && self.is_authoritative(response)
        };
        self.responses.iter().filter(counts).collect()
    }

    /// Formats the kubelet's last responses before an instant, the newest last.
    fn account(&self, at: Instant) -> String {
        let before: Vec<&RecordedResponse> =
            self.responses.iter().filter(|response| response.at <= at).collect();
        let mut text = "the kubelet's last responses:".to_owned();
        for response in &before[before.len().saturating_sub(12)..] {
            let RecordedResponse { call, pods_known, managers_ready, fault, .. } = response;
            let age = at.duration_since(response.at).as_millis();
            let calm = self.is_calm(response.at);
            let _ = write!(
                text,
                "\n  {age} ms before: {call:?}, pods known: {pods_known}, managers ready: {managers_ready}, calm: {calm}"
            );
            if let Some(fault) = fault {
                let _ = write!(text, ", {fault:?}");
            }
        }
        text
    }
}

/// The expected zones for every pair of these responses. Responses with the same amounts may differ in which
/// devices they name, and so in what they imply together with another one.
fn truths(lists: &[&RecordedResponse], offers: &[&RecordedResponse]) -> Vec<Expected> {
    let mut usages: Vec<((Expected, BTreeSet<DeviceId<'_>>), &RecordedResponse)> = Vec::new();
    for response in lists {
        let truth = (response.model.expected(), response.model.allocated_devices());
        if !usages.iter().any(|(known, _)| *known == truth) {
            usages.push((truth, response));
        }
    }
    let inventories: BTreeMap<BTreeSet<DeviceId<'_>>, &RecordedResponse> =
        offers.iter().map(|response| (response.model.offered_devices(), *response)).collect();
    let pairs = usages.iter().flat_map(|(_, list)| inventories.values().map(move |offer| (list, offer)));
    pairs.map(|(list, offer)| list.model.offering(&offer.model).expected()).collect()
}

fn highest(mut one: AvailableAmounts, other: AvailableAmounts) -> AvailableAmounts {
    for (key, available) in other {
        let most = one.entry(key).or_default();
        *most = (*most).max(available);
    }
    one
}

/// The key under which an amount is compared.
fn place(zone: String, resource: &str, joined: bool) -> (String, String) {
    let is_memory = resource == "memory" || resource.starts_with("hugepages-");
    let zone = if joined && is_memory { "all zones together".to_owned() } else { zone };
    (zone, resource.to_owned())
}

fn available_of(truth: &Expected, joined: bool) -> AvailableAmounts {
    let mut sums = AvailableAmounts::new();
    for (zone, resources) in &truth.zones {
        for (resource, amounts) in resources {
            *sums.entry(place(format!("node-{zone}"), resource, joined)).or_default() += amounts.available;
        }
    }
    sums
}

fn published(object: &NodeResourceTopology, joined: bool) -> AvailableAmounts {
    let mut sums = AvailableAmounts::new();
    for zone in &object.spec.zones {
        for resource in zone.resources.iter().flatten() {
            let key = place(zone.name.clone(), &resource.name, joined);
            *sums.entry(key).or_default() += resource.available.ceil();
        }
    }
    sums
}
