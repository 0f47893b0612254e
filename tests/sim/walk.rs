//! A seeded random walk. Each step changes a simulated node, the real code scans it over gRPC and computes
//! the object, and the object is compared with the simulated kubelet's own state. The walk ends at the first
//! difference.
//!
//! Uses no test harness, since `tests/matrix` runs walks too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use numacast::agent::{Account, Depth, NodeReader, Settings, object};
use numacast::config::Config;
use numacast::machine::{Id, IdSet};
use numacast::nrt::NodeResourceTopology;
use numacast::quantity::Quantity;
use numacast::sim::kubelet::{
    KubeletVersion, ClaimedDevice, ContainerSpec, Options, PodLevel, PodSpec, RestartTiming, Role, SimKubelet, Split, Stage,
};
use numacast::sim::machine::{Device, MachineSpec, NodeSpec};
use serde_json::json;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Number of steps listed before a difference.
const TOLD: usize = 10;
const NAMESPACE: &str = "default";

/// Containers of a rejected pod that were allocated before another of its containers was rejected stay in the
/// checkpoints until the next release, under a UID that no List has shown. From the checkpoints alone they
/// look like a pod that was allocated CPUs only for an init container, so too little is reported as available for a
/// moment. Enable once the agent knows the pods' UIDs.
const REFUSED_PODS_LEAVE_ENTRIES: bool = false;

/// Init containers are allocated devices of pods for which the List shows nothing that the checkpoints could
/// be matched with. Enable once the agent knows the pods' UIDs.
const NOTHING_BUT_HIDDEN_DEVICES: bool = false;

/// Returns the machines of `tests/machines/`, by name.
///
/// # Errors
/// A directory or file that cannot be read.
pub(crate) fn machines() -> Result<Vec<(String, MachineSpec)>, String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines");
    let entries = std::fs::read_dir(dir).map_err(|error| error.to_string())?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    files.iter().map(|path| Ok((name(path), MachineSpec::read(path)?))).collect()
}

/// Kubelet ages and policies. Each machine is paired with some of them; together they cover all of them.
pub(crate) fn variants() -> Vec<(KubeletVersion, Policies)> {
    let policies =
        |cpus, cpu_options, memory, topology, scope| Policies { cpus, cpu_options, memory, topology, scope };
    vec![
        (KubeletVersion::V1_34, policies("static", &[], "Static", "best-effort", "container")),
        (KubeletVersion::V1_29, policies("static", &[], "Static", "none", "container")),
        (KubeletVersion::V1_36, policies("static", &["full-pcpus-only"], "Static", "single-numa-node", "container")),
        (KubeletVersion::V1_37, policies("static", &[], "Static", "restricted", "pod")),
        (KubeletVersion::V1_37, policies("static", &["strict-cpu-reservation"], "Static", "best-effort", "pod")),
        (KubeletVersion::V1_23, policies("static", &[], "None", "best-effort", "container")),
        (KubeletVersion::V1_27, policies("none", &[], "Static", "restricted", "container")),
        (KubeletVersion::V1_35, policies("none", &[], "None", "none", "container")),
    ]
}

/// The parameters of one walk: a machine, and a kubelet with an age and policies.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// A description for output: `two-by-eight, V1_34, static/Static, best-effort by container`.
    pub(crate) label: String,
    /// The Memory Manager's policy; `None` where the kubelet supports no other.
    #[allow(dead_code, reason = "the matrix shows it")]
    pub(crate) memory: &'static str,
    machine: MachineSpec,
    age: KubeletVersion,
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
    /// Creates a cell from a machine, with a kubelet of this age and these policies in place of the machine's
    /// own.
    pub(crate) fn new(name: &str, machine: &MachineSpec, age: KubeletVersion, policies: &Policies) -> Self {
        let mut machine = machine.clone();
        // Without NUMA nodes the kubelet cannot manage memory, and its masks end at node 63.
        let unmanaged = !machine.numa || machine.nodes.iter().any(|node| node.id > 63);
        let memory = if unmanaged { "None" } else { policies.memory };
        let options: BTreeMap<&str, &str> = policies.cpu_options.iter().map(|name| (*name, "true")).collect();
        let pod_level = age >= KubeletVersion::V1_37;
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
            "{name}, {age:?}, {}{:?}/{memory}, {} by {}",
            policies.cpus, policies.cpu_options, policies.topology, policies.scope
        );
        Self { label, memory, machine, age, pod_level }
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
    pub(crate) refused: usize,
    /// Successful resizes.
    pub(crate) resized: usize,
    /// Hardware changes.
    pub(crate) hardware: usize,
    /// Kubelet restarts.
    pub(crate) restarts: usize,
}

/// Walks `steps` steps in a cell.
///
/// # Errors
/// The seed, the step, the last actions and every difference.
pub(crate) async fn walk(cell: &Cell, steps: usize, seed: u64) -> Result<Outcome, String> {
    let mut walk = Walk::start(cell, seed)?;
    let mut deeds = VecDeque::new();
    let explain = |step: usize, deeds: &VecDeque<String>, what: String| {
        let deeds: Vec<&str> = deeds.iter().map(String::as_str).collect();
        let deeds = deeds.join("\n  ");
        format!("{}\nNUMACAST_SEED={seed} step {step}, after\n  {deeds}\n{what}", cell.label)
    };
    walk.compare(Depth::Usage).await.map_err(|what| explain(0, &deeds, what))?;
    for step in 1..=steps {
        let (deed, depth) = walk.step().map_err(|what| explain(step, &deeds, what))?;
        deeds.push_back(deed);
        if deeds.len() > TOLD {
            deeds.pop_front();
        }
        walk.compare(depth).await.map_err(|what| explain(step, &deeds, what))?;
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
    known: BTreeSet<String>,
    /// Every plugin's devices, as described by the machine.
    described: BTreeMap<String, Vec<Device>>,
    pods: usize,
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
            age: cell.age,
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
            known: BTreeSet::new(),
            described: described.collect(),
            pods: 0,
            outcome: Outcome::default(),
            cell: cell.clone(),
            dir,
        };
        walk.write_tree()?;
        Ok(walk)
    }

    /// Scans the node and returns the object that the real code computes.
    async fn read(&mut self, depth: Depth) -> Result<NodeResourceTopology, String> {
        let terminated = Arc::new(self.ended());
        let scan = self.reader.scan(depth, &terminated).await.map_err(|error| error.to_string())?;
        let account = Account::new(scan, None, &self.known, &self.settings.rules);
        Ok(object("worker", None, &account.with_reservations(&[])))
    }

    async fn compare(&mut self, depth: Depth) -> Result<(), String> {
        let object = self.read(depth).await?;
        let differences = self.kubelet.expected().differences(&object, Split::PerNode);
        if !differences.is_empty() {
            return Err(differences.join("\n"));
        }
        let resources = object.spec.zones.iter().flat_map(|zone| zone.resources.iter().flatten());
        self.known.extend(resources.map(|of| of.name.clone()).filter(|name| name.contains('/')));
        self.outcome.compared += 1;
        Ok(())
    }

    /// Returns the terminal pods; kubelets before 1.34 still list them.
    fn ended(&self) -> BTreeSet<(String, String)> {
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
        let files = self.hardware.files().read;
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
        let waiting = self.names(|stage| stage == Stage::Pending);
        let name = match waiting.first() {
            Some(name) => name.clone(),
            None => {
                let pod = self.pod();
                let name = pod.name.clone();
                if let Err(refusal) = self.kubelet.add_pod(pod) {
                    return (format!("announcing {name}: {refusal}"), Depth::Usage);
                }
                if self.chance(10) {
                    return (format!("announcing {name}"), Depth::Usage);
                }
                name
            }
        };
        let deed = match self.kubelet.admit_pod(&format!("uid-{name}")) {
            Ok(given) => {
                self.outcome.admitted += 1;
                format!("admitting {name}: {given:?}")
            }
            Err(refusal) => {
                self.outcome.refused += 1;
                if !REFUSED_PODS_LEAVE_ENTRIES {
                    self.kubelet.release_stale();
                }
                format!("refusing {name}: {refusal}")
            }
        };
        (deed, Depth::Usage)
    }

    /// Returns a pod that fits the machine or is slightly too large. There are few sizes, so that pods look
    /// alike as replicas do.
    fn pod(&mut self) -> PodSpec {
        self.pods += 1;
        let guaranteed = self.chance(70);
        let mut pod =
            PodSpec { guaranteed, containers: Vec::new(), ..PodSpec::new(&format!("p{}", self.pods)) };
        let best_effort = !guaranteed && self.chance(50);
        let fractions = guaranteed && self.chance(20);
        let (init, apps) = (self.rng.usize(0..10).saturating_sub(7), self.rng.usize(1..4));
        let sidecars = usize::from(self.cell.age >= KubeletVersion::V1_29 && self.chance(25));
        let roles = [(Role::Init, init), (Role::Sidecar, sidecars), (Role::App, apps)];
        for (role, count) in roles {
            for number in 0..count {
                let mut container = self.container(&format!("{role:?}-{number}").to_lowercase(), best_effort);
                container.role = role;
                if fractions {
                    container.milli_cpu += 500;
                }
                pod.containers.push(container);
            }
        }
        if guaranteed && self.cell.pod_level && self.chance(40) {
            self.make_pod_level(&mut pod);
        } else if guaranteed && self.chance(8) && self.hardware.nodes.len() > 1 {
            let nodes: Vec<Id> = self.at_start.nodes.iter().map(|node| node.id).collect();
            pod.affinity = Some([*self.pick(&nodes), *self.pick(&nodes)].into_iter().collect());
        }
        let shows = pod.containers.iter().any(|of| of.role != Role::Init && !of.devices.is_empty());
        if !shows && !NOTHING_BUT_HIDDEN_DEVICES {
            pod.containers.iter_mut().for_each(|container| container.devices.clear());
        }
        if self.chance(15) {
            let claims = self.claims();
            let last = pod.containers.len() - 1;
            pod.containers[last].claims = claims;
        }
        pod
    }

    fn container(&mut self, name: &str, best_effort: bool) -> ContainerSpec {
        let mut container = ContainerSpec { name: name.to_owned(), ..ContainerSpec::default() };
        if self.chance(30) && !self.described.is_empty() {
            let resources: Vec<String> = self.described.keys().cloned().collect();
            let resource = self.pick(&resources).clone();
            container.devices.insert(resource, self.rng.u64(1..4));
        }
        if best_effort {
            return container;
        }
        container.milli_cpu = 1000 * *self.pick(&[1, 1, 2, 2, 3, 4, 8]);
        container.memory = self.bytes();
        let sizes: Vec<u64> = self.at_start.page_sizes().into_iter().collect();
        if !sizes.is_empty() && self.chance(30) {
            let size = *self.pick(&sizes);
            let name = numacast::quantity::hugepages_name(size);
            container.hugepages.insert(name, size * self.rng.u64(1..5));
        }
        container
    }

    /// Returns between one eighth and one and a half of a random node's memory.
    fn bytes(&mut self) -> u64 {
        let nodes: Vec<u64> = self.at_start.nodes.iter().map(|node| node.memory.ceil()).collect();
        let memory = *self.pick(&nodes);
        let eighths = *self.pick(&[1, 1, 1, 2, 2, 3, 5, 12]);
        (memory / 8 / MIB * MIB * eighths).max(64 * MIB)
    }

    /// Sets pod-level resources: the sum of the containers other than init containers, sometimes with room
    /// for one container without requests.
    fn make_pod_level(&mut self, pod: &mut PodSpec) {
        let lasting = |pod: &PodSpec| {
            let containers = pod.containers.iter().filter(|container| container.role != Role::Init);
            containers.fold(PodLevel::default(), |mut sum, container| {
                sum.milli_cpu += container.milli_cpu;
                sum.memory += container.memory;
                for (size, bytes) in &container.hugepages {
                    *sum.hugepages.entry(size.clone()).or_default() += bytes;
                }
                sum
            })
        };
        let mut whole = lasting(pod);
        if self.chance(60) {
            pod.containers.push(ContainerSpec { name: "sharing".into(), ..ContainerSpec::default() });
            whole.milli_cpu += 2000;
            whole.memory += 256 * MIB;
            whole.hugepages.clear();
            pod.containers.iter_mut().for_each(|container| container.hugepages.clear());
        }
        for init in pod.containers.iter().filter(|container| container.role == Role::Init) {
            whole.milli_cpu = whole.milli_cpu.max(init.milli_cpu);
            whole.memory = whole.memory.max(init.memory);
            for (size, bytes) in &init.hugepages {
                let most = whole.hugepages.entry(size.clone()).or_default();
                *most = (*most).max(*bytes);
            }
        }
        pod.pod_level = Some(whole);
    }

    fn claims(&mut self) -> Vec<ClaimedDevice> {
        let count = self.rng.usize(1..4);
        let one = |number: usize, share: bool| ClaimedDevice {
            claim: format!("claim-{}", number / 2),
            driver: "gpu.example.com".into(),
            pool: "worker".into(),
            device: format!("gpu-{number}"),
            share: share.then(|| "half".to_owned()),
        };
        (0..count).map(|number| one(number, self.rng.bool())).collect()
    }

    fn end_pod(&mut self, running: &[String]) -> (String, Depth) {
        let name = self.pick(running).clone();
        if self.chance(35) && self.names(|stage| stage == Stage::Active).contains(&name) {
            self.kubelet.terminate_pod(NAMESPACE, &name);
            return (format!("the end of {name}"), Depth::Usage);
        }
        self.kubelet.stop_pod(NAMESPACE, &name);
        (format!("deleting {name}"), Depth::Usage)
    }

    fn terminate_init_containers(&mut self) -> (String, Depth) {
        let names = self.names(|stage| stage == Stage::Active);
        for name in &names {
            self.kubelet.terminate_init_containers(NAMESPACE, name);
        }
        (format!("the end of the init containers of {names:?}"), Depth::Usage)
    }

    fn reconcile(&mut self) -> (String, Depth) {
        self.kubelet.reconcile();
        ("the CPU Manager's period".to_owned(), Depth::Usage)
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
        let outcome = outcome.map_or_else(|refusal| refusal.to_string(), |()| "done".to_owned());
        let deed = format!("resizing {name}/{} to {milli_cpu}m, {memory} bytes: {outcome}", container.name);
        (deed, Depth::Usage)
    }

    /// Unregisters or registers a plugin, changes a device's health, or registers other devices.
    fn change_devices(&mut self) -> (String, Depth) {
        let resources: Vec<String> = self.described.keys().cloned().collect();
        let resource = self.pick(&resources).clone();
        let mut devices = self.described[&resource].clone();
        let nodes: Vec<Id> = self.hardware.nodes.iter().map(|node| node.id).collect();
        let deed = match self.rng.u8(0..8) {
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
                return (format!("{resource} {id} is well: {healthy}"), Depth::Allocatable);
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
        (format!("{resource} registers {deed}: {devices:?}"), Depth::Allocatable)
    }

    fn change_hardware(&mut self) -> Step {
        let at = self.rng.usize(0..self.hardware.nodes.len());
        let Some(deed) = self.change_node(at) else { return Ok(("nothing".to_owned(), Depth::Usage)) };
        self.write_tree()?;
        self.kubelet.set_hardware(&self.hardware);
        self.outcome.hardware += 1;
        Ok((deed, Depth::Everything))
    }

    fn change_node(&mut self, at: usize) -> Option<String> {
        let id = self.hardware.nodes[at].id;
        match self.rng.u8(0..12) {
            0..3 => {
                let cpu = self.cpu_to_switch_off(at)?;
                let off = IdSet::from_iter([cpu]);
                for node in &mut self.hardware.nodes {
                    node.repeated_cpus = node.repeated_cpus.difference(&off);
                }
                let node = &mut self.hardware.nodes[at];
                node.cpus = node.cpus.difference(&off);
                node.offline_cpus.insert(cpu);
                Some(format!("CPU {cpu} of node {id} goes offline"))
            }
            3..6 => {
                let node = &mut self.hardware.nodes[at];
                let cpu = node.offline_cpus.last()?;
                node.offline_cpus = node.offline_cpus.difference(&IdSet::from_iter([cpu]));
                node.cpus.insert(cpu);
                Some(format!("CPU {cpu} of node {id} comes online"))
            }
            6 | 7 => {
                let before = self.hardware.nodes[at].memory.ceil();
                let after = before + (before / 8).div_ceil(MIB) * MIB;
                // One terabyte is enough.
                (before > 0 && after < 1 << 40).then(|| self.set_memory(at, after))
            }
            8 | 9 => self.drift(at),
            10 => self.late_node(),
            _ => {
                let later = self.hardware.later()?;
                // Memory was added since this kubelet started, and no real machine loses that much again.
                let shrinks = |node: &NodeSpec| {
                    let (now, started) = (node.memory.ceil(), self.at_start.node(node.id));
                    started.is_some_and(|started| now + now / 32 < started.memory.ceil())
                };
                if later.nodes.iter().any(shrinks) {
                    return None;
                }
                // The machine's own later state: undo the earlier changes.
                self.hardware = MachineSpec { later: None, ..later };
                Some(format!("later: {}", self.hardware.description))
            }
        }
    }

    /// Returns a CPU to switch off: not the boot CPU, a CPU reserved by the kubelet, or the last one of a
    /// node.
    fn cpu_to_switch_off(&mut self, at: usize) -> Option<Id> {
        let kept = self.hardware.kubelet.get("reservedSystemCPUs").and_then(|value| value.as_str());
        let mut kept: IdSet = kept.unwrap_or_default().parse().unwrap_or_default();
        kept.insert(0);
        let node = &self.hardware.nodes[at];
        let cpus: Vec<Id> = node.cpus.difference(&kept).iter().collect();
        if cpus.is_empty() || node.cpus.len() < 2 {
            return None;
        }
        Some(*self.pick(&cpus))
    }

    /// Changes a node's memory by a few pages, relative to the kubelet's start.
    fn drift(&mut self, at: usize) -> Option<String> {
        let NodeSpec { id, memory, .. } = &self.hardware.nodes[at];
        let started = self.at_start.node(*id)?.memory.ceil();
        let pages = self.rng.u64(0..32) * 4096;
        if memory.ceil() > started + 32 * 4096 || started < 64 * MIB {
            return None;
        }
        let after = if self.rng.bool() { started + pages } else { started - pages };
        (after >= self.hardware.nodes[at].hugepage_bytes()).then(|| self.set_memory(at, after))
    }

    fn set_memory(&mut self, at: usize, bytes: u64) -> String {
        let node = &mut self.hardware.nodes[at];
        let before = std::mem::replace(&mut node.memory, Quantity::whole(bytes)).ceil();
        format!("node {} has {bytes} bytes instead of {before}", node.id)
    }

    /// Brings a memory-only node online, possibly leaving a gap in the node IDs.
    fn late_node(&mut self) -> Option<String> {
        let last = self.hardware.nodes.last()?.id;
        if !self.hardware.numa || self.hardware.nodes.len() >= self.at_start.nodes.len() + 2 {
            return None;
        }
        let id = last + self.rng.u16(1..4);
        let told = self.hardware.nodes.iter().all(|node| !node.distances.is_empty());
        let mut node = NodeSpec { id, memory: Quantity::whole(4096 * MIB), ..NodeSpec::default() };
        if told {
            for peer in &mut self.hardware.nodes {
                peer.distances.insert(id, 80);
                node.distances.insert(peer.id, 80);
            }
            node.distances.insert(id, 10);
        }
        self.hardware.nodes.push(node);
        Some(format!("node {id} comes online with memory alone"))
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
        self.outcome.restarts += 1;
        let deed = if unchanged { "a restart" } else { "a new start on other hardware" };
        // The socket is a new one, which the reader has to detect by itself.
        Ok((deed.to_owned(), Depth::Usage))
    }
}
