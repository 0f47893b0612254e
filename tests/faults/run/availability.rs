//! Checks that the object never reports more available resources than there were.
//!
//! The simulated kubelet records its responses, each with the managers' state that it reported, and the
//! simulated API server records every version of the object. In a version that the agent wrote at an instant
//! `w`, the available amount of each zone and resource must not exceed what some responses to `List` and
//! `GetAllocatableResources` imply. These responses count:
//!
//! - For each method, the last correct and complete response that was at least [`MAX_WRITE_DELAY`] before `w`
//!   and outside any fault of the kubelet, and every later one. The agent must not use an older one any more:
//!   writing it that late means that writes were queued.
//! - During a fault of the kubelet (until [`RESTART_WAIT`] after the object is correct again), no response
//!   supersedes the one before it, since the agent may keep the last good object.
//! - A response of a restarted kubelet that does not know its pods yet, or lists only some of them, never
//!   counts, since the pods' resources stay allocated. An inventory that lacks CPUs or memory just after a
//!   restart counts as complete; one that lacks device plugins counts as it is.
//! - A partial or empty response of a kubelet that did not restart is authoritative and counts as it is.
//!
//! Available devices are those that one response offers minus those that another one lists, for each pair of
//! responses. If a memory block belongs to several nodes, the sum over all nodes is compared, since the List
//! does not report how a block is split.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use numacast::cluster::FIELD_MANAGER;
use numacast::nrt::NodeResourceTopology;
use numacast_sim::api_server::{Change, EventType, TOPOLOGIES};
use numacast_sim::kubelet::{Call, DeviceId, Expected, Fault, RecordedResponse, SimKubelet, Stage};
use tokio::sync::broadcast;

use super::RESTART_WAIT;

/// Maximum time from a response to the write that it leads to: the timeout of a write, and more than that
/// again for a busy machine.
const MAX_WRITE_DELAY: Duration = Duration::from_millis(1500);

/// The versions of the object and the kubelet's responses.
pub(super) struct AvailabilityCheck {
    changes: broadcast::Receiver<Arc<Change>>,
    responses: VecDeque<RecordedResponse>,
    /// Periods of faults of the kubelet; the last one may still be open.
    fault_periods: Vec<FaultPeriod>,
    /// Number of versions that were checked.
    pub(super) versions: u64,
}

struct FaultPeriod {
    start: Instant,
    end: Option<Instant>,
    /// Whether the kubelet restarted. If so, its partial responses are not authoritative.
    restart: bool,
}

impl FaultPeriod {
    fn is_apart(&self, from: Instant, to: Instant) -> bool {
        self.start > to || self.end.is_some_and(|end| end < from)
    }
}

/// Zone and resource to the amount reported as available.
type AvailableAmounts = BTreeMap<(String, String), u64>;

impl AvailabilityCheck {
    /// To be called before the agent starts.
    pub(super) fn new(kubelet: &SimKubelet, changes: broadcast::Receiver<Arc<Change>>) -> Self {
        drop(kubelet.take_responses());
        Self { changes, responses: VecDeque::new(), fault_periods: Vec::new(), versions: 0 }
    }

    /// Begins a period of faults of the kubelet; `restart`: whether the kubelet restarts during it.
    pub(super) fn start_fault(&mut self, restart: bool) {
        self.fault_periods.push(FaultPeriod { start: Instant::now(), end: None, restart });
    }

    /// Ends the period: the object is correct again. Drops what no later version needs.
    pub(super) fn end_fault(&mut self) {
        let now = Instant::now();
        if let Some(period) = self.fault_periods.last_mut() {
            period.end.get_or_insert(now);
        }
        let oldest = [Call::List, Call::Allocatable].map(|call| self.start_of_window(call, now));
        if let [Some(list), Some(allocatable)] = oldest {
            let oldest = list.min(allocatable);
            self.responses.retain(|response| response.at >= oldest);
            self.fault_periods.retain(|period| period.end.is_none_or(|end| end + RESTART_WAIT >= oldest));
        }
    }

    /// Checks every version since the last call.
    ///
    /// # Errors
    /// The amounts that are too high, and the kubelet's responses before.
    pub(super) fn check_new_versions(&mut self, kubelet: &SimKubelet) -> Result<(), String> {
        let mut changes = Vec::new();
        loop {
            match self.changes.try_recv() {
                Ok(change) => changes.push(change),
                Err(broadcast::error::TryRecvError::Lagged(count)) => {
                    return Err(format!("{count} changes were missed: check more often"));
                }
                Err(_) => break,
            }
        }
        // The responses before these changes have all been recorded by now.
        self.responses.extend(kubelet.take_responses());
        let is_of_agent = |change: &&Arc<Change>| {
            let is_written = change.kind == &TOPOLOGIES && change.event != EventType::Deleted;
            is_written && change.manager == FIELD_MANAGER
        };
        changes.iter().filter(is_of_agent).try_for_each(|change| self.check_version(change))
    }

    /// Returns true if the kubelet has listed its pods correctly since `start`.
    pub(super) fn has_list_since(&self, start: Instant) -> bool {
        let is_good = |response: &RecordedResponse| response.call == Call::List && response.fault.is_none();
        self.responses.iter().any(|response| is_good(response) && response.at > start)
    }

    fn check_version(&mut self, change: &Change) -> Result<(), String> {
        self.versions += 1;
        let object: NodeResourceTopology =
            serde_json::from_value((*change.object).clone()).map_err(|error| error.to_string())?;
        let lists = self.window(Call::List, change.at);
        let offers = self.window(Call::Allocatable, change.at);
        let has_empty_inventory = offers.iter().any(|response| response.fault == Some(Fault::Empty));
        let states = possible_states(&lists, &offers);
        let sum_memory = states.iter().any(|state| !state.groups.is_empty());
        let available = states.iter().map(|state| available_in(state, sum_memory));
        let limits = available.reduce(max).unwrap_or_default();
        let mut too_much = String::new();
        for ((zone, resource), available) in published(&object, sum_memory) {
            // Without an inventory, the agent knows only the hardware.
            if has_empty_inventory && !resource.contains('/') {
                continue;
            }
            let limit = limits.get(&(zone.clone(), resource.clone())).copied().unwrap_or(0);
            if available > limit {
                let _ = write!(too_much, "\n  {zone} {resource}: {available} instead of at most {limit}");
            }
        }
        if too_much.is_empty() {
            return Ok(());
        }
        let version = change.resource_version;
        let responses = self.describe_responses(change.at);
        Err(format!("version {version} has too much available:{too_much}\n{responses}"))
    }

    /// The instant from which on responses count for a version written at `at`.
    fn start_of_window(&self, call: Call, at: Instant) -> Option<Instant> {
        let is_good = |response: &&RecordedResponse| {
            response.call == call
                && response.at + MAX_WRITE_DELAY <= at
                && response.fault.is_none()
                && response.pods_known
                && response.managers_ready
                && self.is_undisturbed(response.at)
        };
        self.responses.iter().rev().find(is_good).map(|response| response.at)
    }

    fn is_undisturbed(&self, at: Instant) -> bool {
        // After a new connection the agent waits for missing devices, even if the object was already correct.
        let from = at.checked_sub(RESTART_WAIT).unwrap_or(at);
        self.fault_periods.iter().all(|period| period.is_apart(from, at + MAX_WRITE_DELAY))
    }

    /// Returns true unless this is a partial response that is not authoritative.
    fn is_authoritative(&self, response: &RecordedResponse) -> bool {
        let partial = matches!(response.fault, Some(Fault::Partial(_) | Fault::Empty));
        let at = response.at;
        !partial || self.fault_periods.iter().all(|period| !period.restart || period.is_apart(at, at))
    }

    /// Returns the responses that count for a version written at `at`.
    fn window(&self, call: Call, at: Instant) -> Vec<&RecordedResponse> {
        let start = self.start_of_window(call, at);
        let counts = |response: &&RecordedResponse| {
            let in_time = response.at <= at && start.is_none_or(|start| response.at >= start);
            let is_complete = call == Call::Allocatable || response.pods_known;
            response.call == call && in_time && is_complete && self.is_authoritative(response)
        };
        self.responses.iter().filter(counts).collect()
    }

    /// Formats the kubelet's last responses before an instant, the newest last.
    fn describe_responses(&self, at: Instant) -> String {
        let before: Vec<&RecordedResponse> =
            self.responses.iter().filter(|response| response.at <= at).collect();
        let mut text = "the kubelet's last responses:".to_owned();
        for response in &before[before.len().saturating_sub(12)..] {
            let RecordedResponse { call, pods_known, managers_ready, fault, .. } = response;
            let age = at.duration_since(response.at).as_millis();
            let undisturbed = self.is_undisturbed(response.at);
            let _ = write!(text, "\n  {age} ms before: {call:?}, pods known: {pods_known}, ");
            let _ = write!(text, "managers ready: {managers_ready}, undisturbed: {undisturbed}");
            if let Some(fault) = fault {
                let _ = write!(text, ", {fault:?}");
            }
            if *call == Call::List {
                let pods = response.model.pods().values().filter(|pod| pod.stage == Stage::Active);
                let names: Vec<&str> = pods.map(|pod| pod.spec.name.as_str()).collect();
                let _ = write!(text, ", active: {}", names.join(" "));
            }
        }
        text
    }
}

/// The expected zones for every pair of these responses. Responses with the same amounts may differ in which
/// devices they name, and so in what they imply together with another one.
fn possible_states(lists: &[&RecordedResponse], offers: &[&RecordedResponse]) -> Vec<Expected> {
    let mut usages: Vec<((Expected, BTreeSet<DeviceId<'_>>), &RecordedResponse)> = Vec::new();
    for response in lists {
        let state = (response.model.expected(), response.model.allocated_devices());
        if !usages.iter().any(|(known, _)| *known == state) {
            usages.push((state, response));
        }
    }
    let inventories: BTreeMap<BTreeSet<DeviceId<'_>>, &RecordedResponse> =
        offers.iter().map(|response| (response.model.offered_devices(), *response)).collect();
    let pairs = usages.iter().flat_map(|(_, list)| inventories.values().map(move |offer| (list, offer)));
    pairs.map(|(list, offer)| list.model.with_plugins_of(&offer.model).expected()).collect()
}

fn max(mut one: AvailableAmounts, other: AvailableAmounts) -> AvailableAmounts {
    for (key, available) in other {
        let amount = one.entry(key).or_default();
        *amount = (*amount).max(available);
    }
    one
}

/// The key under which an amount is compared.
fn key(zone: String, resource: &str, sum_memory: bool) -> (String, String) {
    let is_memory = resource == "memory" || resource.starts_with("hugepages-");
    let zone = if sum_memory && is_memory { "all zones".to_owned() } else { zone };
    (zone, resource.to_owned())
}

fn available_in(state: &Expected, sum_memory: bool) -> AvailableAmounts {
    let mut sums = AvailableAmounts::new();
    for (zone, resources) in &state.zones {
        for (resource, amounts) in resources {
            *sums.entry(key(format!("node-{zone}"), resource, sum_memory)).or_default() += amounts.available;
        }
    }
    sums
}

fn published(object: &NodeResourceTopology, sum_memory: bool) -> AvailableAmounts {
    let mut sums = AvailableAmounts::new();
    for zone in &object.spec.zones {
        for resource in zone.resources.iter().flatten() {
            let key = key(zone.name.clone(), &resource.name, sum_memory);
            *sums.entry(key).or_default() += resource.available.ceil();
        }
    }
    sums
}
