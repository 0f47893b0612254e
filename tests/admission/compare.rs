//! Compares the predictions with what a kubelet does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use numacast::admission::{Placement, PodRequest};
use numacast::kubelet::ContainerUsage;
use numacast::machine::IdSet;
use numacast::pod::ContainerKind;

use crate::cell::Cell;
use crate::pods;
use crate::predict::{Prediction, Snapshot, request};
use crate::support::node::PodOutcome;
use crate::support::{Cluster, RealNode};

/// Pods that run at a time.
const MAX_PODS: usize = 12;

/// The comparisons of one cell or of all.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pods: usize,
    /// Pods by outcome: `admitted` or the kubelet's reason.
    outcomes: BTreeMap<String, usize>,
    /// Pods whose exclusive CPUs, memory or devices were compared.
    placements: usize,
    /// Pods of which a container's choice of devices decided what the next one got.
    choices: usize,
    /// From the amounts alone: "fits" for pods that were admitted, "fits" as a guess for pods that were admitted
    /// and that were refused, and "does not fit" for pods that were refused and that were admitted.
    fits: usize,
    guessed_right: usize,
    guessed_wrong: usize,
    refused: usize,
    wrongly_refused: usize,
    /// "Fits" without being a guess, for a pod that was refused.
    wrongly_fits: usize,
    pub(crate) differences: Vec<String>,
    /// Guesses that were wrong.
    pub(crate) notes: Vec<String>,
    pub(crate) aborted: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.pods += other.pods;
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.placements += other.placements;
        self.choices += other.choices;
        self.fits += other.fits;
        self.guessed_right += other.guessed_right;
        self.guessed_wrong += other.guessed_wrong;
        self.refused += other.refused;
        self.wrongly_refused += other.wrongly_refused;
        self.wrongly_fits += other.wrongly_fits;
        self.differences.extend(other.differences);
        self.notes.extend(other.notes);
        self.aborted += other.aborted;
    }

    /// Returns true if no prediction was wrong, apart from guesses.
    pub(crate) fn is_good(&self) -> bool {
        self.differences.is_empty() && self.wrongly_fits == 0 && self.aborted == 0
    }

    /// One line.
    pub(crate) fn summary(&self) -> String {
        let Self { pods, differences, wrongly_fits, wrongly_refused, .. } = self;
        let differences = differences.len();
        format!(
            "{pods} pods, {differences} differences, from amounts {wrongly_fits} too many and {wrongly_refused} too few"
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pods                          {}", self.pods)?;
        for (outcome, count) in &self.outcomes {
            writeln!(f, "  {outcome:<28}{count}")?;
        }
        writeln!(f, "placements compared           {}", self.placements)?;
        writeln!(f, "  given the choice of devices {}", self.choices)?;
        writeln!(f, "differences with ids          {}", self.differences.len())?;
        let guesses = self.guessed_right + self.guessed_wrong;
        writeln!(f, "from the amounts alone:")?;
        writeln!(f, "  fits, admitted              {}", self.fits)?;
        writeln!(f, "  fits, refused               {}", self.wrongly_fits)?;
        writeln!(f, "  may fit, admitted           {}", self.guessed_right)?;
        writeln!(f, "  may fit, refused            {}", self.guessed_wrong)?;
        writeln!(f, "  does not fit, refused       {}", self.refused)?;
        writeln!(f, "  does not fit, admitted      {}", self.wrongly_refused)?;
        writeln!(f, "  share of guesses            {} %", guesses * 100 / self.pods.max(1))?;
        writeln!(f, "cells aborted                 {}", self.aborted)
    }
}

/// Sends pods to one kubelet and compares.
pub(crate) async fn run(
    cell: &Cell,
    index: usize,
    cluster: &Cluster,
    count: usize,
    seed: u64,
) -> Result<Tally> {
    let node = cell.setup(&format!("{}-{index}", cell.machine))?.start(cluster).await?;
    let mut walk = Walk { node, random: Rng::with_seed(seed), running: Vec::new(), tally: Tally::default() };
    for number in 0..count {
        let name = format!("{}-{number}", walk.node.name());
        walk.step(cell, &name).await.with_context(|| format!("pod {number}"))?;
    }
    Ok(walk.tally)
}

struct Walk {
    node: RealNode,
    random: Rng,
    /// Names of running pods.
    running: Vec<String>,
    tally: Tally,
}

impl Walk {
    async fn step(&mut self, cell: &Cell, name: &str) -> Result<()> {
        while self.running.len() >= MAX_PODS || (self.running.len() > 2 && self.random.u8(..100) < 30) {
            let ended = self.running.swap_remove(self.random.usize(..self.running.len()));
            self.node.delete(&ended).await?;
        }
        let spec = pods::random(name, self.node.machine(), cell.pod_level, &mut self.random);
        let request = request(&spec.bound_to("")?)?;
        let before = Snapshot::take(&self.node).await?;
        let prediction = before.predict(&request)?;
        let outcome = match self.node.try_to_run(spec.clone()).await {
            Ok(outcome) => outcome,
            // Some combinations of pod-level and container requests are invalid.
            Err(error) if is_invalid(&error) => return Ok(()),
            Err(error) => return Err(error.context(spec.to_string())),
        };
        self.tally.pods += 1;
        let object = Api::<Pod>::namespaced(self.node.client(), self.node.namespace()).get(name).await?;
        let actual = match outcome {
            PodOutcome::Running => None,
            PodOutcome::Ended(_) => Some(refusal(&object)),
        };
        if let (None, Err(refusal)) = (&actual, &prediction.zones) {
            self.tally.notes.push(format!(
                "{cell}: {spec}: admitted, and from the amounts {refusal} {:?}",
                refusal.resources
            ));
        }
        if let (Some(actual), true, true) =
            (&actual, prediction.zones.is_ok(), prediction.insufficient.is_none())
        {
            self.tally.notes.push(format!(
                "{cell}: {spec}: {actual}, and from the amounts it fits {:?}",
                prediction.guesses
            ));
        }
        self.compare_amounts(&prediction, actual.is_none());
        let differences = match &actual {
            None => self.placed(&before, &prediction, &object, &request).await?,
            Some(refusal) => refused(&prediction, refusal),
        };
        let outcome =
            actual.as_deref().map_or("admitted", |refusal| refusal.split(':').next().unwrap_or_default());
        *self.tally.outcomes.entry(outcome.to_owned()).or_default() += 1;
        self.tally.differences.extend(differences.into_iter().map(|what| format!("{cell}: {spec}: {what}")));
        match actual {
            None => self.running.push(name.to_owned()),
            Some(_) => self.node.delete(name).await?,
        }
        Ok(())
    }

    fn compare_amounts(&mut self, prediction: &Prediction, admitted: bool) {
        let fits = prediction.zones.is_ok() && prediction.insufficient.is_none();
        let tally = &mut self.tally;
        let counter = match (fits, prediction.guesses.is_empty(), admitted) {
            (true, true, true) => &mut tally.fits,
            (true, true, false) => &mut tally.wrongly_fits,
            (true, false, true) => &mut tally.guessed_right,
            (true, false, false) => &mut tally.guessed_wrong,
            (false, _, false) => &mut tally.refused,
            (false, _, true) => &mut tally.wrongly_refused,
        };
        *counter += 1;
    }

    /// Compares what an admitted pod's containers were allocated.
    async fn placed(
        &mut self,
        before: &Snapshot,
        prediction: &Prediction,
        pod: &Pod,
        request: &PodRequest,
    ) -> Result<Vec<String>> {
        let placements = match &prediction.exact {
            Ok(placements) => placements,
            Err(refusal) => return Ok(vec![format!("admitted, and predicted was {refusal}")]),
        };
        let after = Snapshot::take(&self.node).await?;
        let entries = after.entries(&pod.uid().unwrap_or_default());
        let differences = differences(placements, &entries, request);
        self.tally.placements += placements.len();
        if differences.is_empty() || !has_a_choice(placements) {
            return Ok(differences);
        }
        // Which devices a container gets decides what is left for the next.
        self.tally.choices += 1;
        Ok(self::differences(&before.given(request, &entries)?, &entries, request))
    }
}

fn has_a_choice(placements: &[Placement]) -> bool {
    placements.iter().flat_map(|placement| placement.devices.values()).any(|choice| !choice.others.is_empty())
}

fn differences(
    placements: &[Placement],
    entries: &BTreeMap<&str, &ContainerUsage>,
    request: &PodRequest,
) -> Vec<String> {
    let is_init = |name: &str| {
        let mut containers = request.containers.iter();
        containers.any(|container| container.name == name && container.kind == ContainerKind::Init)
    };
    let mut found = Vec::new();
    for placement in placements {
        let (name, nothing) = (placement.container.as_str(), ContainerUsage::default());
        let entry = entries.get(name);
        // What an init container was allocated may have been released again.
        if entry.is_none() && is_init(name) {
            continue;
        }
        let what = differs(placement, entry.unwrap_or(&&nothing), is_init(name));
        found.extend(what.map(|what| format!("container {name}: {what}")));
    }
    found
}

fn refused(prediction: &Prediction, actual: &str) -> Vec<String> {
    match &prediction.exact {
        Err(predicted) if predicted == actual => Vec::new(),
        // Only the resource is predicted.
        Err(predicted) if predicted.starts_with("OutOf") && actual.starts_with(&format!("{predicted}:")) => {
            Vec::new()
        }
        Err(predicted) => vec![format!("refused with {actual}, and predicted was {predicted}")],
        Ok(placements) => vec![format!("refused with {actual}, and predicted were {placements:?}")],
    }
}

fn differs(predicted: &Placement, actual: &ContainerUsage, is_init: bool) -> Option<String> {
    if predicted.cpus != actual.cpus && !(is_init && actual.cpus.is_empty()) {
        return Some(format!("CPUs {}, and predicted were {}", actual.cpus, predicted.cpus));
    }
    let nodes: BTreeSet<IdSet> = actual.memory.iter().map(|block| block.nodes.clone()).collect();
    let blocks = predicted.memory.as_ref().filter(|blocks| !blocks.bytes.is_empty());
    let expected: Option<IdSet> = blocks.map(|blocks| blocks.nodes.iter().collect());
    // The pod's own entry has only its CPUs.
    let is_skipped = predicted.container.is_empty() || (is_init && nodes.is_empty());
    if !is_skipped && nodes != expected.clone().into_iter().collect() {
        return Some(format!("memory on {nodes:?}, and predicted was {expected:?}"));
    }
    let mut devices: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for group in &actual.devices {
        devices.entry(&group.resource).or_default().extend(group.ids.iter().cloned());
    }
    for (resource, choice) in &predicted.devices {
        let actual = devices.remove(resource.as_str()).unwrap_or_default();
        let is_released = is_init && actual.is_empty();
        if !is_released && !choice.allows(&actual) {
            return Some(format!("{resource} {actual:?}, and predicted was {choice:?}"));
        }
    }
    (!devices.is_empty()).then(|| format!("{devices:?}, and none was predicted"))
}

/// The reason and message of a pod that the kubelet refused.
fn refusal(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let message = status.message.unwrap_or_default();
    let message = message.strip_prefix("Pod was rejected: ").unwrap_or(&message).to_owned();
    format!("{}: {message}", status.reason.unwrap_or_default())
}

fn is_invalid(error: &anyhow::Error) -> bool {
    let invalid = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 422);
    error.downcast_ref::<kube::Error>().is_some_and(invalid)
}
