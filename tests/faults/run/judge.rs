//! Did the object ever promise more than there was?
//!
//! The simulated kubelet keeps what it told, with the state of its managers that each answer told of, and the simulated
//! API server every version of the object. A version that the agent wrote at an instant `w` may promise, for each zone
//! and resource, what some answers to `List` and `GetAllocatableResources` promised, and these may be as old as this:
//!
//! - Of each method the last answer counts that was true, complete, and given [`PIPELINE`] before `w` or earlier while
//!   nothing was the matter with the kubelet; and every answer since. An older one the agent cannot have in its hands any
//!   more: whoever writes it after that has kept a queue.
//! - While something is the matter with the kubelet (from the fault until the object is true again) no answer supersedes
//!   the one before the fault, since the agent is right to hold the last good object.
//! - A kubelet that has started and does not know its pods yet gives no excuse, nor does one without CPUs, memory or device
//!   plugins, nor one that names some of its pods only: what it says then is never counted. What pods hold goes on being held.
//! - A partial or empty answer of a kubelet that has been running for long is the kubelet's own word and counts as what it says.
//!
//! Devices are what one answer offered without what another one listed, for each pair of them. Where memory blocks join
//! nodes, the sum over all nodes is compared, since the List does not tell how a block is split.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use numacast::cluster::FIELD_MANAGER;
use numacast::nrt::NodeResourceTopology;
use numacast::sim::api_server::{Change, ChangeKind, TOPOLOGIES};
use numacast::sim::kubelet::{Call, Expected, Fault, SimKubelet, Told};
use tokio::sync::broadcast;

/// From an answer to the write that it leads to: the deadline of a write, and as long again and more for a machine that is
/// busy with other things.
pub(crate) const PIPELINE: Duration = Duration::from_millis(1500);

/// Follows the object and what the kubelet tells.
pub(crate) struct Judge {
    changes: broadcast::Receiver<Arc<Change>>,
    told: VecDeque<Told>,
    /// When something was the matter with the kubelet; the last one may last.
    troubles: Vec<Trouble>,
    /// Versions that were judged.
    pub(crate) versions: u64,
}

struct Trouble {
    start: Instant,
    end: Option<Instant>,
    /// The kubelet or its socket is another: a partial answer is no word of its own then.
    restart: bool,
}

impl Trouble {
    fn is_apart(&self, from: Instant, to: Instant) -> bool {
        self.start > to || self.end.is_some_and(|end| end < from)
    }
}

/// Zone and resource to what is said to be available.
type Promise = BTreeMap<(String, String), u64>;

impl Judge {
    /// From now on; the agent has not started yet.
    pub(crate) fn new(kubelet: &SimKubelet, changes: broadcast::Receiver<Arc<Change>>) -> Self {
        drop(kubelet.take_told());
        Self { changes, told: VecDeque::new(), troubles: Vec::new(), versions: 0 }
    }

    /// Something is the matter with the kubelet; `restart`: it starts again in the course of it.
    pub(crate) fn trouble_begins(&mut self, restart: bool) {
        self.troubles.push(Trouble { start: Instant::now(), end: None, restart });
    }

    /// The object is true again. Forgets what no version can need any more.
    pub(crate) fn trouble_is_over(&mut self) {
        let now = Instant::now();
        if let Some(trouble) = self.troubles.last_mut() {
            trouble.end.get_or_insert(now);
        }
        let oldest = [Call::List, Call::Allocatable].map(|call| self.superseding(call, now));
        if let [Some(list), Some(allocatable)] = oldest {
            let oldest = list.min(allocatable);
            self.told.retain(|told| told.at >= oldest);
            self.troubles.retain(|trouble| trouble.end.is_none_or(|end| end >= oldest));
        }
    }

    /// Judges every version since the last look.
    ///
    /// # Errors
    /// What was promised too much, and what the kubelet had said.
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
        // Whatever was told before these changes is there by now.
        self.told.extend(kubelet.take_told());
        let ours = |change: &&Arc<Change>| {
            change.of == &TOPOLOGIES && change.what != ChangeKind::Deleted && change.manager == FIELD_MANAGER
        };
        changes.iter().filter(ours).try_for_each(|change| self.judge(change))
    }

    fn judge(&mut self, change: &Change) -> Result<(), String> {
        self.versions += 1;
        let object: NodeResourceTopology =
            serde_json::from_value((*change.object).clone()).map_err(|error| error.to_string())?;
        let lists = self.window(Call::List, change.at);
        let offers = self.window(Call::Allocatable, change.at);
        let blank = offers.iter().any(|told| told.fault == Some(Fault::Empty));
        let truths = truths(&lists, &offers);
        let joined = truths.iter().any(|truth| !truth.groups.is_empty());
        let most = truths.iter().map(|truth| promised(truth, joined)).reduce(highest).unwrap_or_default();
        let mut too_much = String::new();
        for ((zone, resource), available) in said(&object, joined) {
            // Without an inventory the hardware is all that the agent knows.
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
        Err(format!("version {version} promises too much:{too_much}\n{}", self.account(change.at)))
    }

    /// Since when answers count for a version written at `at`.
    fn superseding(&self, call: Call, at: Instant) -> Option<Instant> {
        let good = |told: &&Told| {
            told.call == call
                && told.at + PIPELINE <= at
                && told.fault.is_none()
                && told.pods_known
                && told.managers_ready
                && self.is_calm(told.at)
        };
        self.told.iter().rev().find(good).map(|told| told.at)
    }

    fn is_calm(&self, at: Instant) -> bool {
        self.troubles.iter().all(|trouble| trouble.is_apart(at, at + PIPELINE))
    }

    /// Is what a partial answer says the kubelet's own word?
    fn is_own_word(&self, told: &Told) -> bool {
        let partial = matches!(told.fault, Some(Fault::Partial(_) | Fault::Empty));
        !partial || self.troubles.iter().all(|trouble| !trouble.restart || trouble.is_apart(told.at, told.at))
    }

    fn window(&self, call: Call, at: Instant) -> Vec<&Told> {
        let start = self.superseding(call, at);
        let counts = |told: &&Told| {
            let in_time = told.at <= at && start.is_none_or(|start| told.at >= start);
            let excuse = call == Call::Allocatable || told.pods_known;
            told.call == call && in_time && excuse && self.is_own_word(told)
        };
        self.told.iter().filter(counts).collect()
    }

    /// What the kubelet told before an instant, the newest last.
    fn account(&self, at: Instant) -> String {
        let before: Vec<&Told> = self.told.iter().filter(|told| told.at <= at).collect();
        let mut text = "the kubelet's last answers:".to_owned();
        for told in &before[before.len().saturating_sub(12)..] {
            let Told { call, pods_known, managers_ready, fault, .. } = told;
            let age = at.duration_since(told.at).as_millis();
            let calm = self.is_calm(told.at);
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

/// Every account that these answers can lead to.
fn truths(lists: &[&Told], offers: &[&Told]) -> Vec<Expected> {
    let mut usages: Vec<(Expected, &Told)> = Vec::new();
    for told in lists {
        let truth = told.model.expected();
        if !usages.iter().any(|(known, _)| *known == truth) {
            usages.push((truth, told));
        }
    }
    let Some((_, any)) = usages.first() else { return Vec::new() };
    let mut inventories: Vec<(Expected, &Told)> = Vec::new();
    for told in offers {
        let truth = any.model.offering(&told.model).expected();
        if !inventories.iter().any(|(known, _)| *known == truth) {
            inventories.push((truth, told));
        }
    }
    let pairs = usages.iter().flat_map(|(_, list)| inventories.iter().map(move |(_, offer)| (list, offer)));
    pairs.map(|(list, offer)| list.model.offering(&offer.model).expected()).collect()
}

fn highest(mut one: Promise, other: Promise) -> Promise {
    for (key, available) in other {
        let most = one.entry(key).or_default();
        *most = (*most).max(available);
    }
    one
}

/// Under which zone an amount is compared.
fn place(zone: String, resource: &str, joined: bool) -> (String, String) {
    let is_memory = resource == "memory" || resource.starts_with("hugepages-");
    let zone = if joined && is_memory { "all zones together".to_owned() } else { zone };
    (zone, resource.to_owned())
}

fn promised(truth: &Expected, joined: bool) -> Promise {
    let mut promise = Promise::new();
    for (zone, resources) in &truth.zones {
        for (resource, amounts) in resources {
            *promise.entry(place(format!("node-{zone}"), resource, joined)).or_default() += amounts.available;
        }
    }
    promise
}

fn said(object: &NodeResourceTopology, joined: bool) -> Promise {
    let mut promise = Promise::new();
    for zone in &object.spec.zones {
        for resource in zone.resources.iter().flatten() {
            let key = place(zone.name.clone(), &resource.name, joined);
            *promise.entry(key).or_default() += resource.available.ceil();
        }
    }
    promise
}
