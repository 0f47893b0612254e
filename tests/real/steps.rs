//! After every step of a seeded walk the published object says what the kubelet's own files say.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use numacast::sim::machine::DeviceSpec;
use serde_json::Value;

use crate::support::agent::Agent;
use crate::support::node::Fate;
use crate::support::{Cluster, Needs, Parts, PodSpec, RealNode, pod};

/// Steps of one walk.
const STEPS: usize = 36;

#[tokio::test]
async fn two_zones_are_true_after_every_step() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet).await? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let agent = Agent::start(&node, &[])?;

    Walk::new(node, agent, 12).go(STEPS).await
}

#[tokio::test]
async fn eight_zones_with_a_hundred_pods_are_true_after_every_step() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet).await? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("eight-by-sixty-four")?.start(&cluster).await?;
    let agent = Agent::start(&node, &[])?;

    let mut walk = Walk::new(node, agent, 110);
    walk.fill(100).await?;
    walk.go(STEPS).await
}

#[tokio::test]
async fn a_kubelet_without_static_policies_has_every_cpu_for_everyone() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet).await? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?
        .kubelet("cpuManagerPolicy", "none".into())
        .kubelet("memoryManagerPolicy", "None".into())
        .kubelet("topologyManagerPolicy", "none".into())
        .kubelet("reservedSystemCPUs", Value::Null)
        .kubelet("reservedMemory", Value::Null)
        .start(&cluster)
        .await?;
    let agent = Agent::start(&node, &[])?;

    Walk::new(node, agent, 12).go(12).await
}

/// A walk over pods and devices that is the same again for the same seed.
struct Walk {
    node: RealNode,
    agent: Agent,
    random: Rng,
    /// Names of the pods that exist, and whether they run.
    pods: Vec<(String, bool)>,
    /// What the plugins say now.
    devices: Vec<DeviceSpec>,
    /// Resources whose plugin was ended.
    stopped: BTreeSet<String>,
    /// Deleting becomes as likely as starting from this many pods on.
    crowd: usize,
    started: usize,
}

impl Walk {
    fn new(node: RealNode, agent: Agent, crowd: usize) -> Self {
        let given = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        // Past the test harness, which keeps what passing tests print to itself.
        let _ = writeln!(std::io::stderr(), "walk on {}: NUMACAST_SEED={seed}", node.name());
        let devices = node.machine().devices.clone();
        let random = Rng::with_seed(seed);
        Self { node, agent, random, pods: Vec::new(), devices, stopped: BTreeSet::new(), crowd, started: 0 }
    }

    /// Starts many pods at once.
    async fn fill(&mut self, count: usize) -> Result<()> {
        let specs: Vec<PodSpec> = (0..count).map(|_| self.next_pod()).collect();
        for spec in &specs {
            self.node.submit(spec).await?;
        }
        for spec in specs {
            let runs = self.node.fate_of(spec.name()).await? == Fate::Running;
            self.pods.push((spec.name().to_owned(), runs));
        }
        let running = self.pods.iter().filter(|(_, runs)| *runs).count();
        ensure!(running >= count * 9 / 10, "only {running} of {count} pods run");
        self.is_true("the machine is full").await
    }

    /// Takes steps, and after each compares.
    async fn go(mut self, steps: usize) -> Result<()> {
        self.is_true("nothing has happened").await?;
        for number in 1..=steps {
            let what = self.step().await.with_context(|| format!("step {number}"))?;
            self.is_true(&format!("step {number}: {what}")).await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<String> {
        match self.random.u8(..100) {
            0..8 => return self.change_a_devices_health(),
            8..12 => return self.stop_or_start_a_plugin(),
            _ => {}
        }
        let crowded = self.pods.len() >= self.crowd || (self.pods.len() > 3 && self.random.u8(..100) < 35);
        if !crowded {
            return self.start_one().await;
        }
        let (name, runs) = self.pods.swap_remove(self.random.usize(..self.pods.len()));
        if runs && self.random.u8(..100) < 25 {
            let code = self.random.i32(..2);
            self.node.finish(&name, code).await?;
            self.pods.push((name.clone(), false));
            return Ok(format!("pod {name} ended with code {code}"));
        }
        self.node.delete(&name).await?;
        Ok(format!("pod {name} was deleted"))
    }

    fn change_a_devices_health(&mut self) -> Result<String> {
        let which = self.random.usize(..self.devices.len());
        let DeviceSpec { resource, devices } = &mut self.devices[which];
        let device = self.random.usize(..devices.len());
        let device = &mut devices[device];
        device.unhealthy = !device.unhealthy;
        let what = format!("{} of {resource}: unhealthy is {}", device.id, device.unhealthy);
        self.node.set_devices(resource, devices)?;
        Ok(what)
    }

    fn stop_or_start_a_plugin(&mut self) -> Result<String> {
        let which = self.random.usize(..self.devices.len());
        let resource = &self.devices[which].resource;
        if self.stopped.remove(resource) {
            self.node.start_plugin(resource)?;
            return Ok(format!("the plugin of {resource} is back"));
        }
        self.node.stop_plugin(resource)?;
        self.stopped.insert(resource.clone());
        Ok(format!("the plugin of {resource} was ended"))
    }

    async fn start_one(&mut self) -> Result<String> {
        let spec = self.next_pod();
        let fate = self.node.try_to_run(spec.clone()).await?;
        self.pods.push((spec.name().to_owned(), fate == Fate::Running));
        Ok(format!("{spec:?} was started: {fate:?}"))
    }

    /// A pod of any class, with anything the machine has.
    fn next_pod(&mut self) -> PodSpec {
        self.started += 1;
        let one = pod(&format!("p{}", self.started));
        let whole = self.random.u32(1..=3);
        let count = self.random.u32(1..=2);
        match self.random.u8(..11) {
            0 | 1 => one.cpus(whole).memory("512Mi"),
            2 => one.millicpus(whole * 300).memory("256Mi"),
            3 => one.millicpus(whole * 100).memory("128Mi").burstable(),
            4 => one,
            5 => one.cpus(whole).memory("512Mi").device("example.com/nic", count),
            6 => one.cpus(1).memory("256Mi").hugepages("2Mi", &format!("{}Mi", 64 * count)),
            7 => one.cpus(whole).memory("256Mi").hugepages("1Gi", "1Gi").hugepages("2Mi", "32Mi"),
            8 => one.millicpus(100).memory("64Mi").burstable().device("example.com/bridge", 1),
            9 => one.cpus(1).memory("256Mi").container("second").cpus(whole).memory("128Mi"),
            // More than one zone of the small machine can give after a while.
            _ => one.cpus(1).memory("9Gi"),
        }
    }

    async fn is_true(&mut self, after: &str) -> Result<()> {
        self.agent.tells_the_truth(&self.node).await.with_context(|| format!("after {after}"))
    }
}
