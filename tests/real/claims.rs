//! After every step of a seeded random walk with claims the published object equals an oracle that knows the claims, the
//! pods and the drivers' books. The agent has the chart's rights, under the chart's admission policies.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::chart;
use crate::support::dra::{Allocated, Claims, Driver, Pool, device, ids};
use crate::support::node::Stop;
use crate::support::nrt::{Figures, Zones};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, nrt, oracle, pod, seed};

const STEPS: usize = 36;
/// The CPUs of `two-by-eight` that are not reserved.
const CPUS: [(u16, &str); 2] = [(0, "1-7"), (1, "9-15")];
const ZONE_CPUS: u64 = 7;
const GPU: &str = "gpu.example.com";
const NIC: &str = "dra.net";

/// What a claim is allocated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    /// CPUs by count, of a NUMA node.
    Cpus(u16, u64),
    /// One of the CPUs that are not reserved, by its place among them.
    Cpu(usize),
    Device(&'static str, String),
    /// One of the shares of a device.
    Share(usize),
}

#[derive(Default)]
struct Claim {
    held: Vec<Held>,
    pods: BTreeSet<String>,
    /// Whether the API server still has its allocation.
    is_allocated: bool,
}

struct Walk {
    node: RealNode,
    cluster: Cluster,
    agent: Agent,
    random: Rng,
    api: Claims,
    claims: BTreeMap<String, Claim>,
    /// All pods, each with the devices that it has of a device plugin.
    pods: BTreeMap<String, u32>,
    cpus: Driver,
    /// Whether the driver gives out CPUs one by one, or by count.
    one_by_one: bool,
    gpus: Option<Driver>,
    nics: Driver,
    /// Devices of the GPU driver that are tainted, and those that are gone.
    tainted: BTreeSet<String>,
    gone: BTreeSet<String>,
    /// Those of the latter that pods have had ever since.
    kept: BTreeSet<String>,
    made: usize,
}

/// GPUs: one on each NUMA node, one whose NUMA node nobody knows, one in shares, and one in parts.
const GPUS: [(&str, Option<usize>); 3] = [("gpu-0", Some(0)), ("gpu-1", Some(1)), ("gpu-x", None)];
const SHARED: &str = "gpu-3";
const SHARES: usize = 3;
const PARTS: [&str; 3] = ["whole", "left", "right"];
/// A device plugin's resource, and how many devices it has.
const PLUGIN: (&str, u32) = ("example.com/nic", 4);

impl Walk {
    fn gpus(&self) -> Pool {
        let mut pool = Pool::of("gpus").counter("gpu-2", "memory", "80Gi").returns_shares();
        for (name, node) in GPUS.into_iter().filter(|(name, _)| !self.gone.contains(*name)) {
            let gpu = device(name);
            let gpu = if let Some(node) = node { gpu.int("numaNode", node as i64) } else { gpu };
            let tainted = self.tainted.contains(name);
            pool = pool.device(if tainted { gpu.taint("example.com/broken", "NoSchedule") } else { gpu });
        }
        pool = pool.device(device(SHARED).numa_node(0).capacity("memory", "60Gi").shareable());
        for (name, memory) in PARTS.into_iter().zip(["80Gi", "40Gi", "40Gi"]) {
            let part = device(name).numa_node(1).consumes("gpu-2", "memory", memory);
            pool = pool.device(part);
        }
        // Slices of two devices each, so that most changes make the pool incomplete for a moment.
        pool.devices_per_slice(2)
    }

    fn nics() -> Pool {
        Pool::of("nics").device(device("nic-0").int("dra.net/numaNode", 1)).returns_nothing()
    }

    /// Returns what claims with an allocation hold: nobody else is given it.
    fn allocated(&self) -> Vec<Held> {
        self.claims.values().filter(|claim| claim.is_allocated).flat_map(|claim| claim.held.clone()).collect()
    }

    /// Returns the GPUs of claims that pods have.
    fn used_gpus(&self) -> BTreeSet<String> {
        let held = self.claims.values().filter(|claim| !claim.pods.is_empty()).flat_map(|claim| &claim.held);
        held.filter_map(|held| match held {
            Held::Device(GPU, name) => Some(name.clone()),
            _ => None,
        })
        .collect()
    }

    /// Returns something that can be allocated beside `more`.
    fn choose(&mut self, more: &[Held]) -> Option<Held> {
        let allocated = [self.allocated(), more.to_vec()].concat();
        let is_free = |held: &Held| !allocated.contains(held);
        let mut options = Vec::new();
        for node in 0..2_u16 {
            let used = allocated.iter().map(|held| match held {
                Held::Cpus(of, count) if *of == node => *count,
                _ => 0,
            });
            let free = ZONE_CPUS - used.sum::<u64>();
            let is_offered = !self.one_by_one && free > 0;
            options.extend(is_offered.then(|| Held::Cpus(node, self.random.u64(1..=free.min(3)))));
        }
        let cpus = (0..2 * ZONE_CPUS as usize).map(Held::Cpu).filter(|_| self.one_by_one).filter(is_free);
        let cpus: Vec<Held> = cpus.collect();
        options.extend((!cpus.is_empty()).then(|| cpus[self.random.usize(..cpus.len())].clone()));
        let gpus = GPUS.into_iter().map(|(name, _)| name);
        let gpus = gpus.filter(|name| !self.gone.contains(*name) && !self.tainted.contains(*name));
        options.extend(gpus.map(|name| Held::Device(GPU, name.to_owned())).filter(is_free));
        options.extend((0..SHARES).map(Held::Share).find(is_free));
        let part = |name: &str| Held::Device(GPU, name.to_owned());
        let [whole, left, right] = PARTS.map(part);
        if is_free(&whole) {
            let parts = [left.clone(), right.clone()];
            if parts.iter().all(is_free) {
                options.push(whole);
            }
            options.extend(parts.into_iter().filter(is_free));
        }
        options.extend(Some(Held::Device(NIC, "nic-0".to_owned())).filter(is_free));
        (!options.is_empty()).then(|| options.swap_remove(self.random.usize(..options.len())))
    }

    fn result(&mut self, at: usize, held: &Held) -> Allocated {
        let result = match held {
            Held::Cpus(node, count) => Allocated::new("dra.cpu", "cpus", &format!("cpudevnuma{node:03}"))
                .consumes("dra.cpu/cpu", &count.to_string()),
            Held::Cpu(index) => Allocated::new("dra.cpu", "cpus", &format!("cpudev{index:03}")),
            Held::Device(NIC, name) => Allocated::new(NIC, "nics", name),
            Held::Device(driver, name) => Allocated::new(driver, "gpus", name),
            Held::Share(_) => Allocated::new(GPU, "gpus", SHARED).consumes("memory", "20Gi"),
        };
        let request = format!("r{at}");
        result.request(&if self.random.u8(..3) == 0 { format!("{request}/small") } else { request })
    }

    /// Creates a claim with one or two devices, and returns its name.
    async fn new_claim(&mut self) -> Result<Option<String>> {
        let Some(first) = self.choose(&[]) else { return Ok(None) };
        let mut held = vec![first];
        if self.random.u8(..3) == 0 {
            held.extend(self.choose(&held.clone()));
        }
        let results = held.iter().enumerate().map(|(at, held)| self.result(at, held)).collect();
        self.made += 1;
        let name = format!("claim-{}", self.made);
        self.api.create(&name, results).await?;
        self.claims.insert(name.clone(), Claim { held, is_allocated: true, ..Claim::default() });
        Ok(Some(name))
    }

    /// Starts a pod with a claim of its own, with one that other pods have or had, or without one.
    async fn start_pod(&mut self) -> Result<String> {
        let is_gone = |held: &Held| matches!(held, Held::Device(GPU, name) if self.gone.contains(name));
        let may_start = |claim: &Claim| claim.is_allocated && !claim.held.iter().any(is_gone);
        let allocated = self.claims.iter().filter(|(_, claim)| may_start(claim));
        let allocated: Vec<String> = allocated.map(|(name, _)| name.clone()).collect();
        let claim = match self.random.u8(..6) {
            0 => None,
            1 if !allocated.is_empty() => Some(allocated[self.random.usize(..allocated.len())].clone()),
            _ => self.new_claim().await?,
        };
        self.made += 1;
        let name = format!("pod-{}", self.made);
        let mut spec = pod(&name);
        // Some pods have CPUs of the shared pool as well, memory of a NUMA node, and devices of a device plugin.
        if claim.is_none() || self.random.bool() {
            spec = spec.cpus(1).memory("64Mi");
        }
        let free = PLUGIN.1 - self.pods.values().sum::<u32>();
        let devices = if self.random.u8(..3) == 0 { free.min(1) } else { 0 };
        if devices > 0 {
            spec = spec.device(PLUGIN.0, devices);
        }
        self.pods.insert(name.clone(), devices);
        let Some(claim) = claim else {
            self.node.run(spec).await?;
            return Ok(format!("{name} runs without a claim, with {devices} devices"));
        };
        let of = self.claims.get_mut(&claim).context("it exists")?;
        of.pods.insert(name.clone());
        let held = of.held.clone();
        self.api.run(&self.node, spec.claim(&claim)).await?;
        Ok(format!("{name} runs with {claim}: {held:?}, and {devices} devices"))
    }

    async fn end_pod(&mut self) -> Result<String> {
        let pods: Vec<String> = self.pods.keys().cloned().collect();
        let Some(name) = (!pods.is_empty()).then(|| pods[self.random.usize(..pods.len())].clone()) else {
            return self.start_pod().await;
        };
        self.node.delete(&name).await?;
        self.pods.remove(&name);
        self.claims.values_mut().for_each(|claim| _ = claim.pods.remove(&name));
        let used = self.used_gpus();
        self.kept.retain(|name| used.contains(name));
        Ok(format!("{name} is deleted"))
    }

    /// As the controller does some time after the last pod is gone.
    async fn deallocate(&mut self) -> Result<String> {
        let unused = |claim: &Claim| claim.is_allocated && claim.pods.is_empty();
        let names: Vec<String> =
            self.claims.iter().filter(|(_, claim)| unused(claim)).map(|(name, _)| name.clone()).collect();
        for name in &names {
            self.api.deallocate(name).await?;
            self.claims.get_mut(name).context("it exists")?.is_allocated = false;
        }
        Ok(format!("{names:?} are deallocated"))
    }

    async fn change_gpus(&mut self) -> Result<String> {
        self.tainted =
            GPUS.iter().filter(|_| self.random.u8(..3) == 0).map(|(name, _)| (*name).to_owned()).collect();
        let (before, used) = (std::mem::take(&mut self.gone), self.used_gpus());
        let names = GPUS.iter().map(|(name, _)| (*name).to_owned());
        self.gone = names.filter(|_| self.random.u8(..4) == 0).collect();
        let is_kept = |name: &&String| {
            if before.contains(*name) { self.kept.contains(*name) } else { used.contains(*name) }
        };
        self.kept = self.gone.iter().filter(is_kept).cloned().collect();
        let pool = self.gpus();
        self.gpus.as_ref().context("it runs")?.set(&[pool]).await?;
        Ok(format!(
            "GPUs: {:?} are tainted, {:?} are gone, of which pods have {:?}",
            self.tainted, self.gone, self.kept
        ))
    }

    async fn restart_driver(&mut self) -> Result<String> {
        self.gpus.take().context("it runs")?.stop()?;
        self.gpus = Some(Driver::start(&self.cluster, &self.node, GPU, &[self.gpus()]).await?);
        Ok("the GPU driver restarts".to_owned())
    }

    async fn step(&mut self, step: usize) -> Result<String> {
        if step == STEPS / 2 {
            // It deletes all slices, which their drivers bring back half a minute later.
            self.node.restart_kubelet(Stop::Term).await?;
            return Ok("the kubelet restarts".to_owned());
        }
        match self.random.u8(..13) {
            0..5 => self.start_pod().await,
            5..8 => self.end_pod().await,
            8 | 9 => self.deallocate().await,
            10 | 11 => self.change_gpus().await,
            _ => self.restart_driver().await,
        }
    }

    /// Returns the zones as the kubelet's own state says, changed by what the claims hold according to the drivers.
    async fn expected(&self) -> Result<Zones> {
        let mut zones = oracle::expected(&self.node).await?.into_zones();
        let book = self.cpus.book()?;
        let mut free = [ZONE_CPUS; 2];
        let mut used = BTreeSet::new();
        for (name, claim) in self.claims.iter().filter(|(_, claim)| !claim.pods.is_empty()) {
            for held in &claim.held {
                match held {
                    Held::Cpus(node, count) => {
                        // The driver's own book says which ones, and that they are as many.
                        let uid = self.api.uid(name).await?;
                        let prepared = book.get(&uid).with_context(|| format!("{name} is not prepared"))?;
                        let lists = prepared.devices.iter().map(|device| ids(&device.cpus));
                        let cpus: u64 = lists.map(|list| Ok(list?.len() as u64)).sum::<Result<u64>>()?;
                        let counts = claim.held.iter().map(|held| match held {
                            Held::Cpus(_, count) => *count,
                            _ => 0,
                        });
                        ensure!(cpus == counts.sum::<u64>(), "{prepared:?}");
                        free[usize::from(*node)] -= count;
                    }
                    Held::Cpu(index) => free[index / ZONE_CPUS as usize] -= 1,
                    Held::Device(driver, device) => _ = used.insert((*driver, device.as_str())),
                    Held::Share(_) => _ = used.insert((GPU, SHARED)),
                }
            }
        }
        let mut gpus = [Figures::default(); 2];
        let mut add = |node: usize, offered: bool, used: bool| {
            gpus[node].capacity += 1;
            gpus[node].allocatable += u64::from(offered);
            gpus[node].available += u64::from(offered && !used);
        };
        for (name, node) in GPUS {
            let (is_gone, is_kept) = (self.gone.contains(name), self.kept.contains(name));
            if let Some(node) = node.filter(|_| !is_gone || is_kept) {
                add(node, !is_gone && !self.tainted.contains(name), used.contains(&(GPU, name)));
            }
        }
        add(0, true, used.contains(&(GPU, SHARED)));
        add(1, true, PARTS.iter().any(|name| used.contains(&(GPU, *name))));
        let nic = u64::from(!used.contains(&(NIC, "nic-0")));
        let nics = [Figures::default(), Figures { capacity: 1, allocatable: 1, available: nic }];
        for (at, zone) in zones.values_mut().enumerate() {
            zone.get_mut("cpu").context("no CPUs")?.available = free[at];
            zone.insert(GPU.to_owned(), gpus[at]);
            zone.insert(NIC.to_owned(), nics[at]);
        }
        Ok(zones)
    }

    async fn matches(&mut self) -> Result<()> {
        until("the published object equals the oracle", async || {
            self.agent.still_runs()?;
            let expected = self.expected().await?;
            let published = nrt::read(&self.node.client(), self.node.name()).await?.zones;
            ensure!(published == expected, "published {published:#?}, expected {expected:#?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn the_object_accounts_for_claims_after_every_step() -> Result<()> {
    walk("1.37").await
}

#[tokio::test]
async fn the_object_accounts_for_claims_after_every_step_of_kubelet_1_36() -> Result<()> {
    walk("1.36").await
}

async fn walk(version: &str) -> Result<()> {
    let Some(parts) = Parts::with_dra_driver(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut random = Rng::with_seed(seed("steps with claims"));
    let one_by_one = random.bool();
    // With dra.cpu the kubelet gives out no CPUs.
    let node = RealNode::on("two-by-eight")?.version(version).kubelet("cpuManagerPolicy", json!("none"));
    let mut node = node.start(&cluster).await?;
    node.set_agent_kubeconfig(chart::agent_without_a_pod(&cluster, &parts).await?);
    let pool = if one_by_one { Pool::single_cpus } else { Pool::cpus_by_count };
    let cpus = Driver::start(&cluster, &node, "dra.cpu", &[pool("cpus", &CPUS)?]).await?;
    let nics = Driver::start(&cluster, &node, NIC, &[Walk::nics()]).await?;
    let root = format!("--set=host.root={}", node.dir().display());
    let agent = Agent::start(&node, &["--set=dra.source=auto", &root])?;
    let mut walk = Walk {
        api: Claims::of(&node),
        node,
        cluster,
        agent,
        random,
        claims: BTreeMap::new(),
        pods: BTreeMap::new(),
        cpus,
        one_by_one,
        gpus: None,
        nics,
        tainted: BTreeSet::new(),
        gone: BTreeSet::new(),
        kept: BTreeSet::new(),
        made: 0,
    };
    walk.gpus = Some(Driver::start(&walk.cluster, &walk.node, GPU, &[walk.gpus()]).await?);
    walk.matches().await?;
    let mut actions = Vec::new();
    for step in 1..=STEPS {
        actions.push(walk.step(step).await.with_context(|| format!("step {step}, after {actions:#?}"))?);
        walk.matches().await.with_context(|| format!("step {step}, after {actions:#?}"))?;
    }
    walk.nics.stop()
}

#[tokio::test]
async fn snapshot_shows_the_pods_of_claims_and_fit_where_they_are_allocated() -> Result<()> {
    let Some(parts) = Parts::with_dra_driver(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.kubelet("cpuManagerPolicy", json!("none"));
    let node = node.start(&cluster).await?;
    let cpus = Driver::start(&cluster, &node, "dra.cpu", &[Pool::cpus_by_count("cpus", &CPUS)?]).await?;
    let claims = Claims::of(&node);
    let share = || cpus.allocated("cpus", "cpudevnuma001").consumes("dra.cpu/cpu", "3");
    claims.create("three", vec![share()]).await?;
    claims.create("later", vec![share()]).await?;
    claims.run(&node, pod("user").claim("three")).await?;

    let recording = node.dir().join("claims.json").display().to_string();
    let picture = |arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        let output = command.args(["snapshot", "-o", "picture"]).args(arguments).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let kubeconfig = node.agent_kubeconfig().display().to_string();
    let root = format!("--set=host.root={}", node.dir().display());
    let places = Agent::places(&node).map(|place| place.to_string_lossy().into_owned());
    let live = ["--node-name", node.name(), "--kubeconfig", &kubeconfig, "--set=dra.source=auto", &root];
    let live = live.into_iter().chain(["--record", &recording]).chain(places.iter().map(String::as_str));
    let drawn = picture(&live.collect::<Vec<_>>())?;
    let prepared = &cpus.book()?[&claims.uid("three").await?];
    let row = format!("1 {}/user (claim three) {} - -", node.namespace(), prepared.devices[0].cpus);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(drawn.lines().any(|line| words(line) == row), "{row}\n{drawn}");
    ensure!(picture(&["--replay", &recording])? == drawn);

    let mut agent = Agent::start(&node, &["--set=dra.source=auto", &root])?;
    until("there is an object", async || {
        agent.still_runs()?;
        nrt::read(&node.client(), node.name()).await.map(drop)
    })
    .await?;
    let pods: Api<Pod> = Api::namespaced(node.client(), node.namespace());
    for (claim, expected) in [
        ("three", json!(null)),
        (
            "later",
            json!(["whether the devices of its claim later are free (the scheduler has not allocated it)"]),
        ),
        // As the API server itself says, in a 404 that names the claim.
        (
            "missing",
            json!([format!(
                "whether the devices of its claim missing are free (there is no ResourceClaim {}/missing)",
                node.namespace()
            )]),
        ),
    ] {
        let waits = format!("waits-{claim}");
        let mut object = pod(&waits).claim(claim).scheduled_by("none")?;
        object.metadata.namespace = Some(node.namespace().to_owned());
        pods.create(&PostParams::default(), &object).await?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command.args([
            "fit",
            "pod",
            &format!("{}/{waits}", node.namespace()),
            "--node",
            node.name(),
            "-o",
            "json",
        ]);
        let output = command.arg("--kubeconfig").arg(cluster.admin_kubeconfig()).output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let answer = &answer[0]["nodes"][0];
        ensure!(answer["fits"] == "yes" && answer["guesses"] == expected, "{answer}");
    }
    Ok(())
}
