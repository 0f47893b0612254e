//! What a node's own sockets and files tell, or a recording of them.

use std::collections::BTreeSet;

use super::{Answer, Workload};
use crate::admission::{KubeletState, NodeAmounts};
use crate::agent::{Recorded, Recording};
use crate::core_v1::PlacedPod;
use crate::fit::NodeView;
use crate::machine;

/// Why a node's state is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LocalError(String);

/// One node with exact ids.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its state.
    pub view: NodeView,
    /// What could not be read, one sentence each.
    pub warnings: Vec<String>,
}

impl Local {
    /// Returns the node of a recording. `minor` is its kubelet's minor version; `api` what the API server says of it, if
    /// it was asked: what the Node can allocate, and its pods.
    ///
    /// # Errors
    /// If the kubelet or the hardware could not be read.
    pub fn new(
        recording: &Recording,
        minor: u32,
        api: Option<(NodeAmounts, Vec<PlacedPod>)>,
    ) -> Result<Self, LocalError> {
        let machine = machine::read(&recording.files).map_err(|error| LocalError(error.to_string()))?;
        let (cpus, errors) = machine::read_cpus(&recording.files, &machine);
        let mut warnings: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let config = response(&recording.config, "the kubelet's configuration")?;
        if cpus.is_empty() && config.cpu_manager_policy == "static" {
            let reason = "the recording does not tell where CPUs are: record again with this version";
            return Err(LocalError(reason.to_owned()));
        }
        warnings.extend(recording.checkpoint_errors.iter().cloned());
        let pods = api.as_ref().map(|(_, pods)| pods.as_slice());
        let view = NodeView::of_kubelet(
            recording.node.clone(),
            &KubeletState {
                minor,
                machine: &machine,
                cpus: &cpus,
                config,
                allocatable: response(&recording.allocatable, "the allocatable resources")?,
                usage: response(&recording.usage, "the pods' resources")?,
                checkpoints: recording.checkpoints.as_ref(),
                ended: &ended(recording, pods),
            },
            api.as_ref().map(|(allocatable, _)| allocatable.clone()),
            pods,
        );
        Ok(Self { view, warnings })
    }

    /// Returns the answer for a pod.
    #[must_use]
    pub fn answer(&self, workload: &Workload) -> Answer {
        Answer::of_view(&self.view, workload)
    }
}

/// Returns the UIDs in the checkpoints of pods that have ended: neither the List nor the API server has them. A static
/// pod has another UID in the API server.
fn ended(recording: &Recording, pods: Option<&[PlacedPod]>) -> BTreeSet<String> {
    let Some(checkpoints) = &recording.checkpoints else { return BTreeSet::new() };
    let running = pods.into_iter().flatten().filter(|placed| !placed.pod.phase.is_terminal());
    let running: BTreeSet<&str> = running.map(|placed| placed.pod.uid.as_str()).collect();
    let is_live = |uid: &&String| running.contains(uid.as_str()) || checkpoints.names.contains_key(*uid);
    let uids = checkpoints.pods.keys().chain(checkpoints.memory.uids());
    uids.filter(|uid| !is_live(uid)).cloned().collect()
}

fn response<'a, T>(recorded: &'a Recorded<T>, what: &str) -> Result<&'a T, LocalError> {
    match recorded {
        Recorded::Response(response) => Ok(response),
        Recorded::Error(error) => Err(LocalError(format!("cannot read {what}: {error}"))),
    }
}
