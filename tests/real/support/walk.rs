//! A seeded random walk over everything that changes a node's available resources. After every step the
//! published object must match the kubelet's own state files.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use numacast_sim::machine::{Device, DeviceSpec, MachineSpec};

use super::agent::Agent;
use super::node::{PodOutcome, RealNode, Stop};
use super::oracle;
use super::pods::{PodSpec, pod};

/// A random walk over pods and devices, reproducible by its seed.
pub(crate) struct Walk {
    node: RealNode,
    agent: Agent,
    random: Rng,
    /// Pods that exist.
    pods: Vec<WalkPod>,
    /// The devices that the plugins list now.
    devices: Vec<DeviceSpec>,
    /// Resources whose plugin is stopped.
    stopped: BTreeSet<String>,
    /// Devices that a plugin lost and will list again, by the plugin's index in `devices`.
    lost: Vec<(usize, Device)>,
    /// From this number of pods on, pods are ended rather than started.
    max_pods: usize,
    /// Memory request of a wide pod, in percent of the largest node's memory.
    wide: u64,
    started: usize,
    steps: usize,
}

/// A pod of the walk.
struct WalkPod {
    spec: PodSpec,
    class: Class,
    runs: bool,
}

/// Decides whether a pod's CPUs and memory are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Whole,
    Fractional,
    Burstable,
    BestEffort,
}

#[allow(dead_code, reason = "not every test program uses everything")]
impl Walk {
    /// Creates a walk with up to `max_pods` pods at a time.
    pub(crate) fn new(node: RealNode, agent: Agent, max_pods: usize, seed: u64) -> Self {
        let devices = node.machine().devices.clone();
        Self {
            node,
            agent,
            random: Rng::with_seed(seed),
            pods: Vec::new(),
            devices,
            stopped: BTreeSet::new(),
            lost: Vec::new(),
            max_pods,
            // Two such pods request more memory than one node has, unless many pods are to fit.
            wide: if max_pods < 50 { 66 } else { 7 },
            started: 0,
            steps: 0,
        }
    }

    /// Returns the node.
    pub(crate) fn node(&self) -> &RealNode {
        &self.node
    }

    /// Returns the agent.
    pub(crate) fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// Returns the node and the agent.
    pub(crate) fn parts(&mut self) -> (&RealNode, &mut Agent) {
        (&self.node, &mut self.agent)
    }

    /// Returns the number of pods started so far.
    pub(crate) fn started(&self) -> usize {
        self.started
    }

    /// Starts `count` pods at once.
    pub(crate) async fn fill(&mut self, count: usize) -> Result<()> {
        let specs: Vec<(PodSpec, Class)> = (0..count).map(|_| self.next_pod()).collect();
        for (spec, _) in &specs {
            self.node.submit(spec).await?;
        }
        for (spec, class) in specs {
            let runs = self.node.wait_for_outcome(spec.name()).await? == PodOutcome::Running;
            self.pods.push(WalkPod { spec, class, runs });
        }
        let running = self.pods.iter().filter(|pod| pod.runs).count();
        ensure!(running >= count * 3 / 4, "only {running} of {count} pods run");
        self.matches_oracle().await.context("the machine is full")
    }

    /// Takes `steps` steps and compares after each.
    pub(crate) async fn run(mut self, steps: usize) -> Result<()> {
        self.matches_oracle().await.context("nothing has happened")?;
        for _ in 0..steps {
            let what = self.step().await?;
            self.matches_oracle().await.with_context(|| format!("after {what}"))?;
        }
        Ok(())
    }

    /// Takes one step and returns its description.
    pub(crate) async fn step(&mut self) -> Result<String> {
        self.steps += 1;
        let number = self.steps;
        let what = self.any_step().await.with_context(|| format!("step {number}"))?;
        Ok(format!("step {number}: {what}"))
    }

    /// Waits until the published object matches the kubelet's files.
    pub(crate) async fn matches_oracle(&mut self) -> Result<()> {
        self.agent.matches_oracle(&self.node).await
    }

    async fn any_step(&mut self) -> Result<String> {
        let roll = self.random.u8(..100);
        if roll < 22 && !self.devices.is_empty() {
            return self.change_a_plugin(roll);
        }
        match roll {
            22..32 => self.resize_one().await,
            32..35 => self.restart_the_kubelet().await,
            _ => self.start_or_end_one().await,
        }
    }

    // ---- pods

    async fn start_or_end_one(&mut self) -> Result<String> {
        let full = self.pods.len() >= self.max_pods || (self.pods.len() > 3 && self.random.u8(..100) < 35);
        if !full {
            return self.start_one().await;
        }
        let mut one = self.pods.swap_remove(self.random.usize(..self.pods.len()));
        let name = one.spec.name().to_owned();
        if one.runs && self.random.u8(..100) < 25 {
            let code = self.random.i32(0..2);
            let ended = self.node.finish(&name, code).await;
            // The kubelet may have ended it first, if it was restarted and did not readmit the pod.
            if let Err(error) = ended {
                ensure!(self.node.wait_for_outcome(&name).await? != PodOutcome::Running, error);
            }
            one.runs = false;
            self.pods.push(one);
            return Ok(format!("pod {name} ended with code {code}"));
        }
        self.node.delete(&name).await?;
        Ok(format!("pod {name} was deleted"))
    }

    async fn start_one(&mut self) -> Result<String> {
        let (spec, class) = self.next_pod();
        let outcome = self.node.try_to_run(spec.clone()).await?;
        let what = format!("{spec} was started: {outcome:?}");
        self.pods.push(WalkPod { spec, class, runs: outcome == PodOutcome::Running });
        Ok(what)
    }

    /// Returns a pod of a random class, with random resources of the machine.
    fn next_pod(&mut self) -> (PodSpec, Class) {
        self.started += 1;
        // The nodes of a cluster share a namespace.
        let one = pod(&format!("{}-{}", self.node.name(), self.started));
        let whole = self.random.u32(1..=3);
        let other = self.random.u32(1..=4);
        let small = memory(self.node.machine(), 2);
        let class = match self.random.u8(..20) {
            0 | 1 => return (one.cpus(whole).memory(&small), Class::Whole),
            2 => return (one.millicpus(whole * 300).memory(&small), Class::Fractional),
            3 => return (one.millicpus(whole * 100).memory(&small).burstable(), Class::Burstable),
            4 => return (one, Class::BestEffort),
            5 | 6 => return (self.with_device(one.cpus(whole).memory(&small)), Class::Whole),
            7 => return (self.with_device(one.millicpus(100).memory(&small).burstable()), Class::Burstable),
            8 | 9 => return (self.with_pages(one.cpus(1).memory(&small)), Class::Whole),
            10 => {
                return (
                    one.cpus(1).memory(&small).container("second").cpus(whole).memory(&small),
                    Class::Whole,
                );
            }
            11 | 12 => return (one.cpus(1).memory(&memory(self.node.machine(), self.wide)), Class::Whole),
            13 => Class::Fractional,
            _ => Class::Whole,
        };
        // The others have containers that start before the main one.
        let one = match class {
            Class::Fractional => one.millicpus(whole * 250).memory(&small),
            _ => one.cpus(whole).memory(&small),
        };
        let large = memory(self.node.machine(), 6);
        let one = match self.random.u8(..6) {
            // Smaller than the main container, larger, or equal.
            0 => one.init("first").cpus(other).memory(&small),
            1 => one.init("first").cpus(other).memory(&large),
            2 => one.init("first").cpus(other).memory(&small).init("second").cpus(whole).memory(&large),
            3 => {
                let one = self.with_device(one);
                self.with_device(one.init("first").cpus(1).memory(&small))
            }
            4 => one.sidecar("helper").cpus(1).memory(&small),
            _ => one.init("first").cpus(other).memory(&large).sidecar("helper").cpus(1).memory(&small),
        };
        (one, class)
    }

    fn with_device(&mut self, one: PodSpec) -> PodSpec {
        if self.devices.is_empty() {
            return one;
        }
        let resource = &self.devices[self.random.usize(..self.devices.len())].resource;
        one.device(resource, self.random.u32(1..=2))
    }

    /// Adds huge pages of one size or of every size. If a node has no memory, and so no huge pages, the
    /// Memory Manager panics on such a pod.
    fn with_pages(&mut self, one: PodSpec) -> PodSpec {
        if self.node.machine().nodes.iter().any(|node| node.memory.ceil() == 0) {
            return one;
        }
        let sizes: BTreeSet<&String> =
            self.node.machine().nodes.iter().flat_map(|node| node.hugepages.keys()).collect();
        let all = self.random.bool();
        let chosen = self.random.usize(..sizes.len().max(1));
        let wanted = sizes.into_iter().enumerate().filter(|(index, _)| all || *index == chosen);
        wanted.fold(one, |one, (_, size)| one.hugepages(size, size))
    }

    /// Requests other CPUs or memory for a running pod; the kubelet may reject it.
    async fn resize_one(&mut self) -> Result<String> {
        let can = |pod: &WalkPod| pod.runs && self.may_resize(&pod.spec);
        let running: Vec<usize> = (0..self.pods.len()).filter(|index| can(&self.pods[*index])).collect();
        if running.is_empty() {
            return self.start_one().await;
        }
        let WalkPod { spec, class, .. } = &self.pods[running[self.random.usize(..running.len())]];
        let name = spec.name().to_owned();
        if self.node.wait_for_outcome(&name).await? != PodOutcome::Running {
            return Ok(format!("pod {name} was to be resized and had ended"));
        }
        let memory = memory(self.node.machine(), if self.random.bool() { 2 } else { 3 });
        let to = match class {
            Class::Whole => pod(&name).cpus(self.random.u32(1..=4)).memory(&memory),
            Class::Fractional => pod(&name).millicpus(self.random.u32(1..=9) * 100).memory(&memory),
            Class::Burstable | Class::BestEffort => {
                pod(&name).millicpus(self.random.u32(1..=9) * 100).memory(&memory).burstable()
            }
        };
        let result = self.node.resize(&name, "main", &to).await?;
        Ok(format!("pod {name} was resized to {}: {result}", to.resources()))
    }

    /// Returns whether a resize is safe. The kubelet admits a resized pod again, and retries later if the
    /// resize is deferred: it panics if a device's plugin no longer lists the device. And what it allocates
    /// to init containers a second time it counts only in part: its totals are then below its entries, and it
    /// is unclear which is right.
    fn may_resize(&self, spec: &PodSpec) -> bool {
        let again = self.node.has_gate("InPlacePodVerticalScalingExclusiveCPUs") && spec.has_init();
        self.node.can_resize() && !spec.has_devices() && !again
    }

    // ---- devices

    fn change_a_plugin(&mut self, roll: u8) -> Result<String> {
        let which = self.random.usize(..self.devices.len());
        match roll {
            0..8 => self.change_a_devices_health(which),
            8..12 => self.stop_or_start(which),
            12..15 => self.restart_plugin(which),
            15..19 => self.remove_or_restore_a_device(which),
            _ => self.rename_devices(which),
        }
    }

    fn change_a_devices_health(&mut self, which: usize) -> Result<String> {
        let DeviceSpec { resource, devices } = &mut self.devices[which];
        if devices.is_empty() {
            return self.remove_or_restore_a_device(which);
        }
        let device = self.random.usize(..devices.len());
        let device = &mut devices[device];
        device.unhealthy = !device.unhealthy;
        let what = format!("{} of {resource}: unhealthy is {}", device.id, device.unhealthy);
        self.node.set_devices(resource, devices)?;
        Ok(what)
    }

    fn stop_or_start(&mut self, which: usize) -> Result<String> {
        let resource = self.devices[which].resource.clone();
        if self.stopped.remove(&resource) {
            self.node.start_plugin(&resource)?;
            return Ok(format!("the plugin of {resource} was started"));
        }
        self.node.stop_plugin(&resource)?;
        let what = format!("the plugin of {resource} was ended");
        self.stopped.insert(resource);
        Ok(what)
    }

    fn restart_plugin(&mut self, which: usize) -> Result<String> {
        let resource = self.devices[which].resource.clone();
        self.node.stop_plugin(&resource)?;
        self.node.start_plugin(&resource)?;
        self.stopped.remove(&resource);
        Ok(format!("the plugin of {resource} was restarted"))
    }

    /// Removes a device from a plugin's list, or restores a removed one.
    fn remove_or_restore_a_device(&mut self, which: usize) -> Result<String> {
        if let Some(found) = self.lost.iter().position(|(plugin, _)| *plugin == which) {
            let (_, device) = self.lost.swap_remove(found);
            let what = format!("{} lists {} again", self.devices[which].resource, device.id);
            self.devices[which].devices.push(device);
            self.set_devices(which)?;
            return Ok(what);
        }
        let devices = &mut self.devices[which].devices;
        if devices.is_empty() {
            bail!("a plugin without devices");
        }
        let device = devices.swap_remove(self.random.usize(..devices.len()));
        let what = format!("{} lists {} no more", self.devices[which].resource, device.id);
        self.lost.push((which, device));
        self.set_devices(which)?;
        Ok(what)
    }

    /// Re-registers the plugin with renamed devices; pods keep the old ones.
    fn rename_devices(&mut self, which: usize) -> Result<String> {
        let resource = self.devices[which].resource.clone();
        self.node.stop_plugin(&resource)?;
        let other = |id: &str| id.strip_suffix("-new").map_or_else(|| format!("{id}-new"), str::to_owned);
        self.devices[which].devices.iter_mut().for_each(|device| device.id = other(&device.id));
        self.set_devices(which)?;
        self.node.start_plugin(&resource)?;
        self.stopped.remove(&resource);
        Ok(format!("the plugin of {resource} was restarted with other ids"))
    }

    fn set_devices(&mut self, which: usize) -> Result<()> {
        let DeviceSpec { resource, devices } = &self.devices[which];
        self.node.set_devices(resource, devices)
    }

    // ---- the kubelet

    async fn restart_the_kubelet(&mut self) -> Result<String> {
        let in_use = oracle::devices_in_use(&self.node).await?;
        if let Some((resource, id)) =
            in_use.iter().find(|(resource, id)| !self.node.lists_device(resource, id))
        {
            // It would panic when it readmits the pod.
            return Ok(format!("nothing: {id} of {resource} is allocated and no plugin lists it"));
        }
        let how = if self.random.bool() { Stop::Kill } else { Stop::Term };
        self.node.restart_kubelet(how).await?;
        // It readmits its pods one by one, by age: once it has decided about a new one it has readmitted all.
        let then = self.start_one().await?;
        Ok(format!("the kubelet was restarted ({how:?}), and {then}"))
    }
}

/// Returns a percentage of the largest node's memory without huge pages.
fn memory(machine: &MachineSpec, percent: u64) -> String {
    let plain = machine.nodes.iter().map(|node| node.memory.ceil() - node.hugepage_bytes()).max();
    format!("{}Mi", ((plain.unwrap_or(0) >> 20) * percent / 100).max(1))
}
