//! A seeded random walk. Each step changes a simulated node, the real code scans it over gRPC and computes
//! the object, and the object is compared with the simulated kubelet's own state. The walk ends at the first
//! difference.
//!
//! Uses no test harness, since `tests/matrix` runs walks too.

mod claims;
mod hardware;
mod pods;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use numacast::agent::{Account, Depth, NodeReader, Settings, object};
use numacast::config::Config;
use numacast::machine::Id;
use numacast::nrt::NodeResourceTopology;
use numacast_sim::kubelet::{KubeletVersion, Options, RestartTiming, SimKubelet, Split, Stage};
use numacast_sim::machine::{Device, MachineSpec};
use serde_json::json;
use tempfile::TempDir;

use self::claims::Dra;

const MIB: u64 = 1 << 20;
/// Number of actions that a failure lists.
const MAX_ACTIONS: usize = 10;
const NAMESPACE: &str = "default";

/// Returns the machines of `tests/machines/`, by name.
///
/// # Errors
/// A directory or file that cannot be read.
pub(crate) fn machines() -> Result<Vec<(String, MachineSpec)>, String> {
    MachineSpec::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines"))
}

/// Kubelet versions and policies. Each machine is paired with some of them; together they cover all of them.
pub(crate) fn variants() -> Vec<(KubeletVersion, Policies)> {
    let policies =
        |cpus, cpu_options, memory, topology, scope| Policies { cpus, cpu_options, memory, topology, scope };
    vec![
        (KubeletVersion::V1_34, policies("static", &[], "Static", "best-effort", "container")),
        (KubeletVersion::V1_29, policies("static", &[], "Static", "none", "container")),
        (
            KubeletVersion::V1_36,
            policies("static", &["full-pcpus-only"], "Static", "single-numa-node", "container"),
        ),
        (KubeletVersion::V1_37, policies("static", &[], "Static", "restricted", "pod")),
        (
            KubeletVersion::V1_37,
            policies("static", &["strict-cpu-reservation"], "Static", "best-effort", "pod"),
        ),
        (KubeletVersion::V1_23, policies("static", &[], "None", "best-effort", "container")),
        (KubeletVersion::V1_27, policies("none", &[], "Static", "restricted", "container")),
        (KubeletVersion::V1_35, policies("none", &[], "None", "none", "container")),
    ]
}

/// The parameters of one walk: a machine, and a kubelet with a version and policies.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// A description for output: `two-by-eight, V1_34, static/Static, best-effort by container`.
    pub(crate) label: String,
    /// The Memory Manager's policy; `None` where the kubelet supports no other.
    #[allow(dead_code, reason = "the matrix shows it")]
    pub(crate) memory: &'static str,
    machine: MachineSpec,
    version: KubeletVersion,
    pod_level: bool,
}

/// The managers' policies, as spelled in the kubelet's configuration.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    /// `none` or `static`.
    pub(crate) cpus: &'static str,
    /// Enabled options of the `static` policy.
    pub(crate) cpu_options: &'static [&'static str],
    /// `None` or `Static`.
    pub(crate) memory: &'static str,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    pub(crate) topology: &'static str,
    /// `container` or `pod`.
    pub(crate) scope: &'static str,
}

impl Cell {
    /// Creates a cell from a machine, with a kubelet of this version and these policies instead of the
    /// machine's own.
    pub(crate) fn new(
        name: &str,
        machine: &MachineSpec,
        version: KubeletVersion,
        policies: &Policies,
    ) -> Self {
        let mut machine = machine.clone();
        // Without NUMA nodes the kubelet cannot manage memory, and its masks end at node 63.
        let unmanaged = !machine.numa || machine.nodes.iter().any(|node| node.id > 63);
        let memory = if unmanaged { "None" } else { policies.memory };
        let options: BTreeMap<&str, &str> = policies.cpu_options.iter().map(|name| (*name, "true")).collect();
        let pod_level = version >= KubeletVersion::V1_37;
        for (key, value) in [
            ("cpuManagerPolicy", json!(policies.cpus)),
            ("cpuManagerPolicyOptions", json!(options)),
            ("memoryManagerPolicy", json!(memory)),
            ("topologyManagerPolicy", json!(policies.topology)),
            ("topologyManagerScope", json!(policies.scope)),
            ("featureGates", json!({"PodLevelResourceManagers": pod_level})),
        ] {
            machine.kubelet.insert(key.to_owned(), value);
        }
        let label = format!(
            "{name}, {version:?}, {}{:?}/{memory}, {} by {}",
            policies.cpus, policies.cpu_options, policies.topology, policies.scope
        );
        Self { label, memory, machine, version, pod_level }
    }
}

/// Counters of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Comparisons without a difference.
    pub(crate) compared: usize,
    /// Admitted pods.
    pub(crate) admitted: usize,
    /// Rejected pods.
    pub(crate) rejected: usize,
    /// Successful resizes.
    pub(crate) resized: usize,
    /// Hardware changes.
    pub(crate) hardware: usize,
    /// Kubelet restarts.
    pub(crate) restarts: usize,
    /// Claims of pods.
    pub(crate) claims: usize,
    /// Changes of slices and of claims that exist.
    pub(crate) slices: usize,
}

/// Walks `steps` steps in a cell.
///
/// # Errors
/// The seed, the step, the last actions and every difference.
pub(crate) async fn walk(cell: &Cell, steps: usize, seed: u64) -> Result<Outcome, String> {
    let mut walk = Walk::start(cell, seed)?;
    let mut actions = VecDeque::new();
    let explain = |step: usize, actions: &VecDeque<String>, what: String| {
        let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
        let actions = actions.join("\n  ");
        format!("{}\nNUMACAST_SEED={seed} step {step}, after\n  {actions}\n{what}", cell.label)
    };
    walk.compare(Depth::Usage).await.map_err(|what| explain(0, &actions, what))?;
    for step in 1..=steps {
        let (action, depth) = walk.step().map_err(|what| explain(step, &actions, what))?;
        actions.push_back(action);
        if actions.len() > MAX_ACTIONS {
            actions.pop_front();
        }
        walk.compare(depth).await.map_err(|what| explain(step, &actions, what))?;
    }
    Ok(walk.outcome)
}

struct Walk {
    cell: Cell,
    rng: Rng,
    kubelet: SimKubelet,
    reader: NodeReader,
    settings: Settings,
    /// The current hardware, and that at the kubelet's start.
    hardware: MachineSpec,
    at_start: MachineSpec,
    files: BTreeMap<String, String>,
    /// Device resources that the object has listed.
    remembered: BTreeSet<String>,
    /// Every plugin's devices, as described by the machine.
    described: BTreeMap<String, Vec<Device>>,
    pods: usize,
    /// In about half of the walks with kubelets that list claims.
    dra: Option<Dra>,
    outcome: Outcome,
    dir: TempDir,
}

/// The action, and how deep the agent's triggers make it scan afterwards.
type Step = Result<(String, Depth), String>;

impl Walk {
    fn start(cell: &Cell, seed: u64) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let zero = Duration::ZERO;
        let options = Options {
            seed,
            release_lag: Duration::MAX,
            admission_lag: zero,
            restart: RestartTiming { down: zero, managers: zero, pods: zero, plugins: zero },
            version: cell.version,
            limited: false,
        };
        let root = dir.path().join("var/lib/kubelet");
        let kubelet = SimKubelet::start(&cell.machine, &root, options).map_err(|error| error.to_string())?;
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.root = dir.path().to_owned();
        let settings = config.agent_settings();
        let described = cell.machine.devices.iter().map(|of| (of.resource.clone(), of.devices.clone()));
        let mut walk = Self {
            reader: NodeReader::new(&settings, None),
            settings,
            rng: Rng::with_seed(seed),
            kubelet,
            hardware: cell.machine.clone(),
            at_start: cell.machine.clone(),
            files: BTreeMap::new(),
            remembered: BTreeSet::new(),
            described: described.collect(),
            pods: 0,
            dra: None,
            outcome: Outcome::default(),
            cell: cell.clone(),
            dir,
        };
        if cell.version >= KubeletVersion::V1_34 && walk.rng.bool() {
            let (seed, has_pods) = (walk.rng.u64(..), walk.rng.bool());
            walk.dra = Some(Dra::start(&cell.machine, seed, has_pods));
        }
        walk.write_tree()?;
        Ok(walk)
    }

    /// Scans the node and returns the object that the real code computes.
    async fn read(&mut self, depth: Depth) -> Result<NodeResourceTopology, String> {
        let terminated = Arc::new(self.terminated());
        let mut scan = self.reader.scan(depth, &terminated).await.map_err(|error| error.to_string())?;
        self.add_claims(&mut scan)?;
        let account = Account::new(scan, None, &self.remembered, &self.settings.rules);
        Ok(object("worker", None, &account.with_reservations(&[])))
    }

    async fn compare(&mut self, depth: Depth) -> Result<(), String> {
        let claimed = self.claimed();
        let object = self.read(depth).await?;
        let differences = self.kubelet.expected_with(&claimed).differences(&object, Split::PerNode);
        if !differences.is_empty() {
            let claims = self.dra.iter().map(Dra::claims);
            return Err(differences.into_iter().chain(claims).collect::<Vec<_>>().join("\n"));
        }
        let resources = object.spec.zones.iter().flat_map(|zone| zone.resources.iter().flatten());
        self.remembered.extend(resources.map(|of| of.name.clone()).filter(|name| name.contains(['/', '.'])));
        self.outcome.compared += 1;
        Ok(())
    }

    /// Returns the terminal pods; kubelets before 1.34 still list them.
    fn terminated(&self) -> BTreeSet<(String, String)> {
        let names = self.names(|stage| stage == Stage::Terminated);
        names.into_iter().map(|name| (NAMESPACE.to_owned(), name)).collect()
    }

    fn names(&self, wanted: impl Fn(Stage) -> bool) -> Vec<String> {
        self.kubelet.with_model(|model| {
            let pods = model.pods().values().filter(|pod| wanted(pod.stage));
            pods.map(|pod| pod.spec.name.clone()).collect()
        })
    }

    /// Writes the files that numacast reads, if they changed.
    fn write_tree(&mut self) -> Result<(), String> {
        let mut files = self.hardware.files().read;
        files.extend(self.files_of_devices());
        let explain = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        for (name, text) in files.iter().filter(|(name, text)| self.files.get(*name) != Some(*text)) {
            let path = self.dir.path().join(name);
            let parent = path.parent().unwrap_or(&path);
            std::fs::create_dir_all(parent).map_err(|error| explain(parent, error))?;
            std::fs::write(&path, text).map_err(|error| explain(&path, error))?;
        }
        for name in self.files.keys().filter(|name| !files.contains_key(*name)) {
            let path = self.dir.path().join(name);
            std::fs::remove_file(&path).map_err(|error| explain(&path, error))?;
        }
        self.files = files;
        Ok(())
    }

    fn step(&mut self) -> Step {
        let running = self.names(|stage| stage != Stage::Removed);
        // The fuller the node, the more often pods end.
        let full = self.rng.usize(0..16) < running.len();
        if self.dra.is_some() && self.chance(25) {
            return self.change_claims();
        }
        match self.rng.u8(0..100) {
            0..45 if !full => Ok(self.start_pod()),
            0..60 if !running.is_empty() => Ok(self.end_pod(&running)),
            60..68 if !running.is_empty() => Ok(self.resize(&running)),
            68..74 => Ok(self.terminate_init_containers()),
            74..79 => Ok(self.reconcile()),
            79..91 if !self.described.is_empty() => Ok(self.change_devices()),
            91..97 => self.change_hardware(),
            97..100 => self.restart(),
            _ => Ok(self.start_pod()),
        }
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.rng.usize(0..from.len())]
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    fn start_pod(&mut self) -> (String, Depth) {
        let pending = self.names(|stage| stage == Stage::Pending);
        let name = match pending.first() {
            Some(name) => name.clone(),
            None => {
                let pod = self.pod();
                let name = pod.name.clone();
                if let Err(rejection) = self.kubelet.add_pod(pod) {
                    return (format!("adding {name}: {rejection}"), Depth::Usage);
                }
                if self.chance(10) {
                    return (format!("adding {name}"), Depth::Usage);
                }
                name
            }
        };
        let action = match self.kubelet.admit_pod(&format!("uid-{name}")) {
            Ok(allocations) => {
                self.outcome.admitted += 1;
                format!("admitting {name}: {allocations:?}")
            }
            Err(rejection) => {
                self.outcome.rejected += 1;
                // Until the next release, containers allocated before the rejection stay in the checkpoints,
                // like a pod that was allocated CPUs only for an init container. The walk's reader has no
                // pod source, so it cannot tell these apart.
                self.kubelet.release_stale();
                format!("rejecting {name}: {rejection}")
            }
        };
        (action, Depth::Usage)
    }

    fn end_pod(&mut self, running: &[String]) -> (String, Depth) {
        let name = self.pick(running).clone();
        if self.chance(35) && self.names(|stage| stage == Stage::Active).contains(&name) {
            self.kubelet.terminate_pod(NAMESPACE, &name);
            return (format!("terminating {name}"), Depth::Usage);
        }
        self.kubelet.stop_pod(NAMESPACE, &name);
        (format!("deleting {name}"), Depth::Usage)
    }

    fn terminate_init_containers(&mut self) -> (String, Depth) {
        let names = self.names(|stage| stage == Stage::Active);
        for name in &names {
            self.kubelet.terminate_init_containers(NAMESPACE, name);
        }
        (format!("terminating the init containers of {names:?}"), Depth::Usage)
    }

    fn reconcile(&mut self) -> (String, Depth) {
        self.kubelet.reconcile();
        ("the CPU Manager's reconciliation".to_owned(), Depth::Usage)
    }

    fn resize(&mut self, running: &[String]) -> (String, Depth) {
        let name = self.pick(running).clone();
        let containers = self.kubelet.with_model(|model| {
            let pod = model.pod(NAMESPACE, &name);
            pod.map(|pod| pod.spec.containers.clone()).unwrap_or_default()
        });
        if containers.is_empty() {
            return ("nothing".to_owned(), Depth::Usage);
        }
        let container = self.pick(&containers).clone();
        let milli_cpu = *self.pick(&[1000, 2000, 2500, 3000, 5000]);
        let memory = if self.rng.bool() { container.memory } else { self.bytes() };
        let outcome = self.kubelet.resize_pod(NAMESPACE, &name, &container.name, milli_cpu, memory);
        self.outcome.resized += usize::from(outcome.is_ok());
        let outcome = outcome.map_or_else(|rejection| rejection.to_string(), |()| "done".to_owned());
        let action = format!("resizing {name}/{} to {milli_cpu}m, {memory} bytes: {outcome}", container.name);
        (action, Depth::Usage)
    }

    /// Unregisters or registers a plugin, changes a device's health, or registers other devices.
    fn change_devices(&mut self) -> (String, Depth) {
        let resources: Vec<String> = self.described.keys().cloned().collect();
        let resource = self.pick(&resources).clone();
        let mut devices = self.described[&resource].clone();
        let nodes: Vec<Id> = self.hardware.nodes.iter().map(|node| node.id).collect();
        let action = match self.rng.u8(0..8) {
            0 => {
                self.kubelet.register_plugin(&resource, false);
                return (format!("{resource} unregisters"), Depth::Allocatable);
            }
            1 => {
                self.kubelet.register_plugin(&resource, true);
                return (format!("{resource} registers"), Depth::Allocatable);
            }
            2 | 3 if !devices.is_empty() => {
                let id = self.pick(&devices).id.clone();
                let healthy = self.rng.bool();
                self.kubelet.set_device_health(&resource, &id, healthy);
                return (format!("{resource} {id} is healthy: {healthy}"), Depth::Allocatable);
            }
            4 => {
                devices.retain(|_| self.rng.u8(0..3) > 0);
                "with fewer devices"
            }
            5 => {
                devices.iter_mut().for_each(|device| device.id = format!("other-{}", device.id));
                "with other ids"
            }
            6 => {
                for device in &mut devices {
                    device.numa = vec![nodes[self.rng.usize(0..nodes.len())]];
                    device.unhealthy = self.rng.u8(0..5) == 0;
                }
                "on other nodes"
            }
            7 if self.rng.bool() => {
                devices.iter_mut().for_each(|device| device.numa.clear());
                "without topology"
            }
            _ => "as described",
        };
        self.kubelet.offer_devices(&resource, &devices);
        (format!("{resource} registers {action}: {devices:?}"), Depth::Allocatable)
    }

    /// Restarts the kubelet. If the hardware changed, its checkpoints and pods are removed first, since it
    /// would not start otherwise.
    fn restart(&mut self) -> Step {
        self.kubelet.stop();
        let unchanged = self.hardware.nodes == self.at_start.nodes;
        if !unchanged {
            self.kubelet.reset();
            self.at_start = self.hardware.clone();
        }
        self.kubelet.boot().map_err(|error| error.to_string())?;
        self.kubelet.set_ready(true, true);
        self.kubelet.register_plugins();
        self.dra.iter_mut().for_each(Dra::kubelet_starts);
        self.outcome.restarts += 1;
        let action = if unchanged { "a restart" } else { "a new start on changed hardware" };
        // The socket is a new one, which the reader has to detect by itself.
        Ok((action.to_owned(), Depth::Usage))
    }
}
