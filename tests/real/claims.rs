//! After every step of a seeded random walk with claims the published object equals an oracle that knows the claims, the
//! pods and the drivers' books.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::dra::{Allocated, Claims, Driver, Pool, device, ids};
use crate::support::node::Stop;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, nrt, pod, seed};

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
    Device(&'static str, String),
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
    cpus: Driver,
    gpus: Option<Driver>,
    nics: Driver,
    /// Devices of the GPU driver that are tainted, and those that are gone.
    tainted: BTreeSet<String>,
    gone: BTreeSet<String>,
    made: usize,
}

/// GPUs: one on each NUMA node, one whose NUMA node nobody knows, and one in parts.
const GPUS: [(&str, Option<usize>); 3] = [("gpu-0", Some(0)), ("gpu-1", Some(1)), ("gpu-x", None)];
const PARTS: [&str; 3] = ["whole", "left", "right"];

impl Walk {
    fn gpus(&self) -> Pool {
        let mut pool = Pool::of("gpus").counter("gpu-2", "memory", "80Gi");
        for (name, node) in GPUS.into_iter().filter(|(name, _)| !self.gone.contains(*name)) {
            let gpu = device(name);
            let gpu = if let Some(node) = node { gpu.int("numaNode", node as i64) } else { gpu };
            let tainted = self.tainted.contains(name);
            pool = pool.device(if tainted { gpu.taint("example.com/broken", "NoSchedule") } else { gpu });
        }
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

    /// Returns something that can be allocated.
    fn choose(&mut self) -> Option<Held> {
        let allocated = self.allocated();
        let is_free = |held: &Held| !allocated.contains(held);
        let mut options = Vec::new();
        for node in 0..2_u16 {
            let used = allocated.iter().map(|held| match held {
                Held::Cpus(of, count) if *of == node => *count,
                _ => 0,
            });
            let free = ZONE_CPUS - used.sum::<u64>();
            options.extend((free > 0).then(|| Held::Cpus(node, self.random.u64(1..=free.min(3)))));
        }
        let gpus = GPUS.into_iter().map(|(name, _)| name);
        let gpus = gpus.filter(|name| !self.gone.contains(*name) && !self.tainted.contains(*name));
        options.extend(gpus.map(|name| Held::Device(GPU, name.to_owned())).filter(is_free));
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

    fn result(held: &Held) -> Allocated {
        match held {
            Held::Cpus(node, count) => Allocated::new("dra.cpu", "cpus", &format!("cpudevnuma{node:03}"))
                .consumes("dra.cpu/cpu", &count.to_string()),
            Held::Device(NIC, name) => Allocated::new(NIC, "nics", name),
            Held::Device(driver, name) => Allocated::new(driver, "gpus", name),
        }
    }

    fn pods(&self) -> BTreeSet<String> {
        self.claims.values().flat_map(|claim| claim.pods.clone()).collect()
    }

    async fn start_pod(&mut self) -> Result<String> {
        let shared: Vec<String> = self
            .claims
            .iter()
            .filter(|(_, claim)| claim.is_allocated)
            .map(|(name, _)| name.clone())
            .collect();
        let shares = !shared.is_empty() && self.random.u8(..4) == 0;
        let claim = match shares {
            true => shared[self.random.usize(..shared.len())].clone(),
            false => {
                self.made += 1;
                let name = format!("claim-{}", self.made);
                let mut held = Vec::new();
                let Some(first) = self.choose() else { return Ok("nothing is free".to_owned()) };
                held.push(first);
                let results = held.iter().map(Self::result).collect();
                self.api.create(&name, results).await?;
                self.claims.insert(name.clone(), Claim { held, is_allocated: true, ..Claim::default() });
                name
            }
        };
        self.made += 1;
        let name = format!("pod-{}", self.made);
        self.claims.get_mut(&claim).context("it exists")?.pods.insert(name.clone());
        let spec = pod(&name).claim(&claim);
        // Some pods have CPUs of the shared pool as well.
        let spec = if self.random.bool() { spec.cpus(1).memory("64Mi") } else { spec };
        self.api.run(&self.node, spec).await?;
        Ok(format!("{name} runs with {claim}: {:?}", self.claims[&claim].held))
    }

    async fn end_pod(&mut self) -> Result<String> {
        let pods: Vec<String> = self.pods().into_iter().collect();
        let Some(name) = (!pods.is_empty()).then(|| pods[self.random.usize(..pods.len())].clone()) else {
            return self.start_pod().await;
        };
        self.node.delete(&name).await?;
        self.claims.values_mut().for_each(|claim| _ = claim.pods.remove(&name));
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
        let used = self.allocated();
        self.tainted =
            GPUS.iter().filter(|_| self.random.u8(..3) == 0).map(|(name, _)| (*name).to_owned()).collect();
        let may_go = |name: &str| !used.contains(&Held::Device(GPU, name.to_owned()));
        let gone = GPUS.iter().map(|(name, _)| *name).filter(|name| may_go(name));
        let gone: Vec<String> = gone.map(str::to_owned).collect();
        self.gone = gone.into_iter().filter(|_| self.random.u8(..4) == 0).collect();
        let pool = self.gpus();
        self.gpus.as_ref().context("it runs")?.set(&[pool]).await?;
        Ok(format!("GPUs: {:?} are tainted, {:?} are gone", self.tainted, self.gone))
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
        match self.random.u8(..12) {
            0..5 => self.start_pod().await,
            5..8 => self.end_pod().await,
            8 | 9 => self.deallocate().await,
            10 => self.change_gpus().await,
            _ => self.restart_driver().await,
        }
    }

    /// Returns capacity, allocatable and available of both zones, by resource.
    async fn expected(&self) -> Result<BTreeMap<&'static str, [[u64; 3]; 2]>> {
        let book = self.cpus.book()?;
        let in_use: Vec<(&String, &Claim)> =
            self.claims.iter().filter(|(_, claim)| !claim.pods.is_empty()).collect();
        let mut free = [ZONE_CPUS; 2];
        let mut used = BTreeSet::new();
        for (name, claim) in in_use {
            for held in &claim.held {
                match held {
                    Held::Cpus(node, count) => {
                        // The driver's own book says which ones, and that they are as many.
                        let uid = self.api.uid(name).await?;
                        let prepared = book.get(&uid).with_context(|| format!("{name} is not prepared"))?;
                        let cpus: u64 = ids(&prepared.devices[0].cpus)?.len() as u64;
                        ensure!(cpus == *count, "{prepared:?}");
                        free[usize::from(*node)] -= count;
                    }
                    Held::Device(driver, device) => _ = used.insert((*driver, device.clone())),
                }
            }
        }
        let is_used = |driver: &'static str, name: &str| used.contains(&(driver, name.to_owned()));
        let mut gpus = [[0_u64; 3]; 2];
        let mut add = |node: usize, offered: bool, used: bool| {
            gpus[node][0] += 1;
            gpus[node][1] += u64::from(offered);
            gpus[node][2] += u64::from(offered && !used);
        };
        for (name, node) in GPUS {
            if let Some(node) = node.filter(|_| !self.gone.contains(name)) {
                add(node, !self.tainted.contains(name), is_used(GPU, name));
            }
        }
        add(1, true, PARTS.iter().any(|name| is_used(GPU, name)));
        let nic = [1, 1, u64::from(!is_used(NIC, "nic-0"))];
        let cpu = |node: usize| [8, ZONE_CPUS, free[node]];
        Ok([("cpu", [cpu(0), cpu(1)]), (GPU, gpus), (NIC, [[0; 3], nic])].into())
    }

    async fn matches(&mut self) -> Result<()> {
        let expected = self.expected().await?;
        until("the published object equals the oracle", async || {
            self.agent.still_runs()?;
            let published = nrt::read(&self.node.client(), self.node.name()).await?;
            for (resource, zones) in &expected {
                for (at, amounts) in zones.iter().enumerate() {
                    let zone = published.zones.get(&format!("node-{at}")).context("no such zone")?;
                    let found =
                        zone.get(*resource).map(|found| [found.capacity, found.allocatable, found.available]);
                    ensure!(
                        found == Some(*amounts),
                        "{resource} of zone {at}: {found:?} instead of {amounts:?}"
                    );
                }
            }
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn the_object_accounts_for_claims_after_every_step() -> Result<()> {
    let Some(parts) = Parts::with_dra_driver(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    // With dra.cpu the kubelet gives out no CPUs.
    let node = RealNode::on("two-by-eight")?.kubelet("cpuManagerPolicy", json!("none"));
    let node = node.start(&cluster).await?;
    let cpus = Driver::start(&cluster, &node, "dra.cpu", &[Pool::cpus_by_count("cpus", &CPUS)?]).await?;
    let nics = Driver::start(&cluster, &node, NIC, &[Walk::nics()]).await?;
    let root = format!("--set=host.root={}", node.dir().display());
    let agent = Agent::start(&node, &["--set=dra.source=auto", &root])?;
    let random = Rng::with_seed(seed("steps with claims"));
    let mut walk = Walk {
        api: Claims::of(&node),
        node,
        cluster,
        agent,
        random,
        claims: BTreeMap::new(),
        cpus,
        gpus: None,
        nics,
        tainted: BTreeSet::new(),
        gone: BTreeSet::new(),
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
