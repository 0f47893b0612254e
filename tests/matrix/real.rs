//! Cells on real kubelets.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cell::{Cell, KubeletKind, Outcome, Policies};
use crate::support::agent::Agent;
use crate::support::node::NodeSetup;
use crate::support::walk::Walk;
use crate::support::{Cluster, RealNode, parts};

/// Maximum number of pods at a time.
const MAX_PODS: usize = 14;
/// A walk is aborted after this many differences, since most of them persist.
const MAX_DIFFERENCES: usize = 3;
/// The machine on which every combination of policies is tested.
const COMMON: &str = "two-by-eight";

/// Machines on which the kubelet cannot start, with a part of its error message. Any other error at its start
/// is a failure.
const CANNOT_START: [(&str, &str); 1] = [("memory-less-bare", "could not detect number of cpus")];

/// The error of a kubelet that rejects its own memory checkpoint at a restart: once pods shared memory of several
/// NUMA nodes, it may record groups of nodes that it does not compute again. It starts when the file is
/// removed.
const MEMORY_REJECTED: &str = "[memorymanager] the expected machine state is different from the real one";

/// The error of a kubelet that rejects its own CPU checkpoint at a restart, on `HYBRID` only: once it has assigned a
/// CPU to two pods (kubernetes/kubernetes#140495) and one of them ended, the CPU is also in the shared pool.
const CPUS_REJECTED: &str = "overlaps with default cpuset";
/// The machine with cores of two kinds.
const HYBRID: &str = "hybrid";

/// Machines on which a kubelet before 1.36 practically never finishes an admission: its device hints try every subset of the
/// NUMA nodes, here 2^34.
const NEWEST_ONLY: [&str; 1] = ["gb200"];

/// Returns every machine as described, on one version; and on one machine every combination of policies, on
/// the newest version and on an older one, so that each older version gets each policy.
pub(crate) fn cells() -> Result<Vec<Cell>> {
    let (newest, older) = (newest_version()?, names(&parts::script("kubelets"), "")?);
    let versions: Vec<&String> = older.iter().chain([&newest]).collect();
    let machines = machines()?;
    let cell = |machine: &str, version: &str, policies| Cell {
        kind: KubeletKind::Real,
        machine: machine.to_owned(),
        version: version.to_owned(),
        policies,
    };
    let described = machines.iter().map(|machine| {
        let newest_only = NEWEST_ONLY.contains(&machine.as_str());
        let version = if newest_only { &newest } else { versions[hash(machine) % versions.len()] };
        cell(machine, version, None)
    });
    // The older version advances with each combination, and once more after each block of one CPU and one
    // memory policy, so that each version gets each policy.
    let combined = combinations().into_iter().enumerate().flat_map(|(index, policies)| {
        let older = &older[(index + index / 4) % older.len()];
        [older, &newest].map(|version| cell(COMMON, version, Some(policies)))
    });
    Ok(described.chain(combined).collect())
}

/// Returns a hash of a machine's name (FNV-1a), which determines its version: a new machine does not change
/// the versions of the others.
fn hash(name: &str) -> usize {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    name.bytes().fold(2_166_136_261, step) as usize
}

fn combinations() -> Vec<Policies> {
    let mut all = Vec::new();
    for (block, (cpu, memory)) in
        [("none", "None"), ("none", "Static"), ("static", "None"), ("static", "Static")]
            .into_iter()
            .enumerate()
    {
        for (index, topology) in
            ["none", "best-effort", "restricted", "single-numa-node"].into_iter().enumerate()
        {
            // Each Topology Manager policy gets both scopes, both ways to reserve CPUs and both kinds of
            // resize.
            let scope = if (block + index / 2) % 2 == 0 { "container" } else { "pod" };
            let numeric = cpu == "static" && (block + index) % 2 == 0;
            let exclusive_resize = (block / 2 + index) % 2 == 0;
            all.push(Policies { cpu, memory, topology, scope, option: None, numeric, exclusive_resize });
        }
    }
    all
}

/// Returns the minor version of `tests/parts/kubernetes`, such as `1.37`.
fn newest_version() -> Result<String> {
    let module = std::fs::read_to_string(parts::script("kubernetes/go.mod"))?;
    let required = module.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    let minor = required.and_then(|version| version.rsplit_once('.'));
    Ok(minor.context("tests/parts/kubernetes/go.mod requires no Kubernetes")?.0.to_owned())
}

fn machines() -> Result<Vec<String>> {
    names(&parts::repository().join("tests/machines"), ".yaml")
}

/// Returns the sorted names in a directory that end in `ending`, without it.
fn names(dir: &Path, ending: &str) -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(ending).map(str::to_owned));
    }
    Ok(names.into_iter().collect())
}

/// Builds the kubelets of all cells up front.
pub(crate) fn build_kubelets(cells: &[Cell]) -> Result<()> {
    let versions: BTreeSet<&String> = cells.iter().map(|cell| &cell.version).collect();
    versions.into_iter().try_for_each(|version| parts::program_of(version, "kubelet").map(drop))
}

/// Runs one cell on its own node.
pub(crate) async fn run(cell: &Cell, index: usize, cluster: &Cluster, steps: usize, seed: u64) -> Outcome {
    let mut outcome = Outcome::new(seed);
    let name = format!("{}-{index}", cell.machine);
    let started = match setup(cell, &name) {
        Ok(setup) => setup.start(cluster).await,
        Err(error) => Err(error),
    };
    match started {
        Ok(node) => {
            if let Err(error) = walk(node, cell, steps, &mut outcome).await {
                let error = format!("{error:#}");
                match rejected_checkpoint(&cell.machine, &error) {
                    Some(known) => outcome.kubelet_error = Some(known.to_owned()),
                    None => outcome.aborted = Some(error),
                }
            }
        }
        Err(error) => {
            let logged = last_error(&cluster.dir().join(&name).join("kubelet.log"));
            let is_known =
                CANNOT_START.iter().any(|(machine, text)| *machine == cell.machine && logged.contains(text));
            if is_known {
                outcome.kubelet_error = Some(logged);
            } else {
                outcome.aborted =
                    Some(format!("the node does not start; the kubelet's error: {logged}\n{error:#}"));
            }
        }
    }
    outcome
}

/// Returns the known error by which a kubelet on this machine rejected its own checkpoint, if it is one.
fn rejected_checkpoint(machine: &str, error: &str) -> Option<&'static str> {
    let known = [(MEMORY_REJECTED, true), (CPUS_REJECTED, machine == HYBRID)];
    known.into_iter().find_map(|(text, expected)| (expected && error.contains(text)).then_some(text))
}

fn setup(cell: &Cell, name: &str) -> Result<NodeSetup> {
    // An option of `split-caches` is alpha before Kubernetes 1.34.
    let setup = RealNode::on(&cell.machine)?.named(name).version(&cell.version);
    let setup = setup.gate("CPUManagerPolicyAlphaOptions");
    Ok(match &cell.policies {
        Some(policies) => with_policies(setup, policies),
        None => setup,
    })
}

fn with_policies(setup: NodeSetup, policies: &Policies) -> NodeSetup {
    let mut setup = setup
        .kubelet("cpuManagerPolicy", policies.cpu.into())
        .kubelet("memoryManagerPolicy", policies.memory.into())
        .kubelet("topologyManagerPolicy", policies.topology.into())
        .kubelet("topologyManagerScope", policies.scope.into());
    if policies.numeric {
        // The kubelet rounds 1.5 CPUs up to two.
        setup = setup
            .kubelet("reservedSystemCPUs", Value::Null)
            .kubelet("systemReserved", json!({ "cpu": "1500m", "memory": "924Mi" }));
    }
    if policies.exclusive_resize {
        setup = setup
            .gate("InPlacePodVerticalScalingExclusiveCPUs")
            .gate("InPlacePodVerticalScalingExclusiveMemory");
    }
    setup
}

async fn walk(node: RealNode, cell: &Cell, steps: usize, outcome: &mut Outcome) -> Result<()> {
    let agent = Agent::start(&node, &[])?;
    let mut walk = Walk::new(node, agent, MAX_PODS, outcome.seed);
    let mut action = "the start".to_owned();
    for _ in 0..=steps {
        if let Err(error) = walk.matches_oracle().await {
            // Without its kubelet there is nothing to compare with.
            walk.node().kubelet_still_runs().with_context(|| action.clone())?;
            let files = keep_files(walk.node(), cell, outcome)?;
            outcome.differences.push(format!("after {action}: {error:#}\n(files: {})", files.display()));
        }
        if outcome.steps == steps || outcome.differences.len() == MAX_DIFFERENCES {
            break;
        }
        action = walk.step().await?;
        outcome.steps += 1;
        outcome.pods = walk.started();
    }
    Ok(())
}

/// Copies the files that explain a difference: the kubelet's checkpoints, a recording of the agent's inputs,
/// the logs.
fn keep_files(node: &RealNode, cell: &Cell, outcome: &Outcome) -> Result<PathBuf> {
    let row = cell.to_string().replace(' ', "-");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("matrix").join(row).join(outcome.steps.to_string());
    std::fs::create_dir_all(&dir)?;
    let files = ["cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint"];
    let sources = files.map(|file| node.kubelet_dir().join(file)).into_iter();
    for source in sources.chain([node.dir().join("agent.log"), node.dir().join("kubelet.log")]) {
        // Not every policy writes every file.
        if source.is_file() {
            std::fs::copy(&source, dir.join(source.file_name().context("a file without a name")?))?;
        }
    }
    let recorded = Command::new(env!("CARGO_BIN_EXE_numacast"))
        .args(["snapshot", "--node-name", node.name()])
        .args(Agent::places(node))
        .arg("--record")
        .arg(dir.join("recording.json"))
        .output()?;
    std::fs::write(dir.join("snapshot.yaml"), recorded.stdout)?;
    std::fs::write(dir.join("snapshot.log"), recorded.stderr)?;
    Ok(dir)
}

/// Returns the error in the log of a kubelet that exited.
fn last_error(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = || text.lines().rev();
    let found = lines().find_map(|line| line.split("\"command failed\" err=").nth(1));
    let found = found.or_else(|| lines().find(|line| line.starts_with('E') || line.starts_with("panic")));
    found.unwrap_or("its log does not say why").trim_matches('"').to_owned()
}
