//! What the model says before a pod is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod};
use kube::{Api, ResourceExt};
use numacast::admission::{
    self, DeviceChoice, Guess, KubeletState, Node, NodeAmounts, Placement, PodRequest, Refusal,
};
use numacast::agent::{Recorded, Recording};
use numacast::kubelet::{Checkpoints, ContainerUsage};
use numacast::machine;
use numacast::quantity::Quantity;
use numacast::topology::{self, Inputs};

use crate::support::RealNode;
use crate::support::agent::Agent;

/// Everything that numacast reads of a node, and the API server's pods.
pub(crate) struct Snapshot {
    recording: Recording,
    minor: u32,
    /// UIDs of checkpoint entries whose pods have ended.
    ended: BTreeSet<String>,
    allocatable: NodeAmounts,
    used: NodeAmounts,
}

/// What the model says about one pod.
#[derive(Debug)]
pub(crate) struct Prediction {
    /// From the node's state, with ids.
    pub(crate) exact: Result<Vec<Placement>, String>,
    /// From the published amounts.
    pub(crate) zones: Result<(), Refusal>,
    /// What makes it a guess that the pod fits, from the published amounts.
    pub(crate) guesses: BTreeSet<Guess>,
    /// Whether ordinary resources exclude the node.
    pub(crate) insufficient: Option<String>,
}

impl Snapshot {
    /// Reads a node.
    pub(crate) async fn take(node: &RealNode) -> Result<Self> {
        let file = node.dir().join("recording.json");
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command
            .args(["snapshot", "--node-name", node.name(), "--record"])
            .arg(&file)
            .args(Agent::places(node));
        let output = command.output().context("cannot run numacast snapshot")?;
        ensure!(output.status.success(), "numacast snapshot: {}", String::from_utf8_lossy(&output.stderr));
        let recording = Recording::read(&file)?;
        let pods = node.pods().await?;
        let active: Vec<&Pod> = pods.iter().filter(|pod| is_active(pod)).collect();
        let uids: BTreeSet<String> = active.iter().filter_map(|pod| pod.uid()).collect();
        let checkpoints = recording.checkpoints.iter();
        let entries =
            checkpoints.flat_map(|checkpoints| checkpoints.pods.keys().chain(checkpoints.memory.uids()));
        let ended = entries.filter(|uid| !uids.contains(*uid)).cloned().collect();
        let mut used = NodeAmounts::new();
        for pod in active {
            for (name, amount) in request(pod)?.of_node() {
                *used.entry(name).or_default() += amount;
            }
        }
        let object = Api::<ApiNode>::all(node.client()).get(node.name()).await?;
        let amounts = object.status.unwrap_or_default().allocatable.unwrap_or_default();
        let mut allocatable = NodeAmounts::new();
        for (name, quantity) in amounts {
            let quantity: Quantity = quantity.0.parse().map_err(|_| anyhow::anyhow!("{}", quantity.0))?;
            let amount =
                if name == "cpu" { quantity.nano() / 1_000_000 } else { i128::from(quantity.ceil()) };
            allocatable.insert(name, u64::try_from(amount)?);
        }
        Ok(Self { recording, minor: node.minor(), ended, allocatable, used })
    }

    /// Predicts the fate of a pod.
    pub(crate) fn predict(&self, pod: &PodRequest) -> Result<Prediction> {
        let mut node = self.node()?;
        let exact = node.admit(pod);
        let insufficient = pod.insufficient(&self.allocatable, &self.used).into_iter().next();
        let exact = match (exact, &insufficient) {
            (Err(refusal), _) => Err(refusal.to_string()),
            (Ok(_), Some(resource)) => Err(format!("OutOf{resource}")),
            (Ok(placements), None) => Ok(placements),
        };
        let (zones, guesses) = self.by_amounts(pod)?;
        Ok(Prediction { exact, zones, guesses, insufficient })
    }

    /// Predicts again, with the devices that the kubelet chose where it had a choice.
    pub(crate) fn given(
        &self,
        pod: &PodRequest,
        chosen: &BTreeMap<&str, &ContainerUsage>,
    ) -> Result<Vec<Placement>> {
        let choose = |container: &str, resource: &str, choice: &DeviceChoice| {
            let groups = chosen.get(container).into_iter().flat_map(|entry| &entry.devices);
            let of_resource = groups.filter(|group| group.resource == resource);
            let ids: BTreeSet<String> = of_resource.flat_map(|group| group.ids.iter().cloned()).collect();
            if choice.allows(&ids) { ids } else { choice.ids() }
        };
        self.node()?.admit_choosing(pod, &choose).map_err(|refusal| anyhow::anyhow!("{refusal}"))
    }

    /// Returns the managers' state.
    pub(crate) fn node(&self) -> Result<Node> {
        let machine = machine::read(&self.recording.files)?;
        let (cpus, errors) = machine::read_cpus(&self.recording.files, &machine);
        ensure!(errors.is_empty(), "{errors:?}");
        Ok(Node::from(&KubeletState {
            minor: self.minor,
            machine: &machine,
            cpus: &cpus,
            config: response(&self.recording.config)?,
            allocatable: response(&self.recording.allocatable)?,
            usage: response(&self.recording.usage)?,
            checkpoints: self.recording.checkpoints.as_ref(),
            ended: &self.ended,
        }))
    }

    fn by_amounts(&self, pod: &PodRequest) -> Result<(Result<(), Refusal>, BTreeSet<Guess>)> {
        let machine = machine::read(&self.recording.files)?;
        let rules = self.recording.rules();
        // The agent knows the pods of the checkpoints, so it sees which have ended: they are no longer listed.
        let mut checkpoints = self.recording.checkpoints.clone();
        if let Some(checkpoints) = &mut checkpoints {
            let names = self.ended.iter().map(|uid| (uid.clone(), ("ended".to_owned(), uid.clone())));
            checkpoints.names.extend(names);
        }
        let account = topology::account(&Inputs {
            machine: &machine,
            allocatable: response(&self.recording.allocatable)?,
            usage: response(&self.recording.usage)?,
            terminated: &self.recording.terminated,
            claims: None,
            checkpoints: checkpoints.as_ref(),
            config: Some(response(&self.recording.config)?),
            policies: None,
            remembered: &BTreeSet::new(),
            rules: &rules,
        });
        let attributes: BTreeMap<String, String> = account.attributes.into_iter().collect();
        let mut node =
            admission::ZoneReader::default().node(&account.zones, &attributes, &self.allocatable, self.minor);
        let guesses = admission::guesses(&node, &account.zones, &attributes, pod);
        Ok((node.admit(pod).map(drop), guesses))
    }

    /// Returns what the checkpoints say about a pod's containers.
    pub(crate) fn entries(&self, uid: &str) -> BTreeMap<&str, &ContainerUsage> {
        let checkpoints: Option<&Checkpoints> = self.recording.checkpoints.as_ref();
        let containers = checkpoints.and_then(|checkpoints| checkpoints.pods.get(uid)).into_iter().flatten();
        containers.map(|container| (container.name.as_str(), container)).collect()
    }
}

/// Returns what a pod requests.
pub(crate) fn request(pod: &Pod) -> Result<PodRequest> {
    let pod = numacast::pod::Pod::from_json(&serde_json::to_vec(pod)?).map_err(anyhow::Error::msg)?;
    Ok(PodRequest::from(&pod))
}

fn is_active(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Failed" | "Succeeded"))
}

fn response<T>(recorded: &Recorded<T>) -> Result<&T> {
    match recorded {
        Recorded::Response(response) => Ok(response),
        Recorded::Error(error) => anyhow::bail!("{error}"),
    }
}
