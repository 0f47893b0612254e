//! Other publishers beside the agent, in every order of writes. The kubelet is simulated, since it is not under test.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use serde_json::{Value, json};

use crate::refusals::{add_node, agent};
use crate::sim_node::Node as SimNode;
use crate::support::cluster::free_port;
use crate::support::neighbours::{Kind, Look, Neighbour};
use crate::support::operator::Operator;
use crate::support::process::Process;
use crate::support::wait::{until, until_every};
use crate::support::{Cluster, Needs, Parts, metrics, nrt, seed};

/// Steps of a random order.
const STEPS: usize = 40;
/// An agent recreates an object that is deleted more often with a delay.
const DELETIONS: usize = 3;

/// A node with its agent, and what was done to them.
struct World {
    agent: Option<Process>,
    metrics: String,
    node: SimNode,
    cluster: Cluster,
    operator: Operator,
    name: String,
    arguments: Vec<String>,
    /// The content that the object should have, by whether a device is healthy.
    content: [Value; 2],
    is_healthy: bool,
    /// How many writes the ended agents have counted.
    writes: f64,
    /// Agents, changes of the node's state, and deletions of the object: each may cause writes.
    starts: usize,
    changes: usize,
    deletions: usize,
}

impl World {
    async fn start(parts: &Parts, arguments: &[&str]) -> Result<Self> {
        let cluster = Cluster::shared(parts).await?;
        let name = add_node(&cluster).await?;
        let arguments =
            arguments.iter().copied().chain(["--set", "scan.poll=1s", "--health-address", "none"]);
        let mut world = Self {
            agent: None,
            metrics: String::new(),
            node: SimNode::start(),
            operator: Operator::of(parts, &cluster),
            cluster,
            name,
            arguments: arguments.map(str::to_owned).collect(),
            content: Default::default(),
            is_healthy: true,
            writes: 0.0,
            starts: 0,
            changes: 0,
            deletions: 0,
        };
        world.learn().await?;
        Ok(world)
    }

    /// Learns the content from an agent without neighbours, and removes the object.
    async fn learn(&mut self) -> Result<()> {
        self.start_agent()?;
        let first = until("the object is there", async || Self::content_of(&self.object().await?)).await?;
        self.change();
        let second = until("the object has changed", async || {
            let content = Self::content_of(&self.object().await?)?;
            ensure!(content != first, "it has not");
            Ok(content)
        })
        .await?;
        self.content = [second, first];
        self.end_agent().await?;
        self.objects().delete(&self.name, &DeleteParams::default()).await?;
        (self.writes, self.starts, self.changes) = (0.0, 0, 0);
        Ok(())
    }

    fn objects(&self) -> Api<DynamicObject> {
        nrt::api(&self.cluster.client())
    }

    async fn object(&self) -> Result<Value> {
        Ok(serde_json::to_value(self.objects().get(&self.name).await?)?)
    }

    /// Returns everything but the metadata.
    fn content_of(object: &Value) -> Result<Value> {
        let content = json!({
            "zones": object["zones"], "attributes": object["attributes"], "topologyPolicies": object["topologyPolicies"],
        });
        // A new agent withholds the fingerprint at first.
        let fingerprint = content["attributes"].as_array().into_iter().flatten();
        let mut fingerprint = fingerprint.filter(|one| one["name"] == "nodeTopologyPodsFingerprint");
        let fingerprint = fingerprint.next().context("no fingerprint")?;
        ensure!(fingerprint["value"] == "pfp0v001ef46db3751d8e999", "{fingerprint}: no pod is here");
        Ok(content)
    }

    // ---- the agent and its node

    fn start_agent(&mut self) -> Result<()> {
        self.metrics = format!("127.0.0.1:{}", free_port()?);
        let more: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let more = [&["--metrics-address", &self.metrics][..], &more].concat();
        let command = agent(&self.node, &self.cluster.admin_kubeconfig(), &self.name, &more);
        self.agent = Some(Process::start("agent", self.cluster.dir(), command)?);
        self.starts += 1;
        Ok(())
    }

    async fn end_agent(&mut self) -> Result<()> {
        self.writes = self.all_writes().await?;
        let mut agent = self.agent.take().context("no agent runs")?;
        agent.signal("TERM")?;
        tokio::task::spawn_blocking(move || agent.wait()).await??;
        Ok(())
    }

    async fn restart_agent(&mut self) -> Result<()> {
        self.end_agent().await?;
        self.start_agent()
    }

    /// Changes the state of the node.
    fn change(&mut self) {
        self.is_healthy = !self.is_healthy;
        self.changes += 1;
        assert!(self.node.kubelet.set_device_health("example.com/nic", "nic-0", self.is_healthy));
    }

    /// Changes the state of the node until that is written: an agent does not see one that is changed back in time.
    async fn change_is_written(&mut self) -> Result<()> {
        let before = self.all_writes().await?;
        until_every("a change is written", Duration::from_secs(2), async || {
            if self.all_writes().await? > before {
                return Ok(());
            }
            self.change();
            bail!("it is not")
        })
        .await
    }

    async fn delete_object(&mut self) -> Result<()> {
        self.deletions += 1;
        match self.objects().delete(&self.name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    fn still_runs(&mut self) -> Result<()> {
        self.agent.as_mut().context("no agent runs")?.still_runs()
    }

    fn log(&self) -> Result<String> {
        let path: PathBuf = self.cluster.dir().join("agent.log");
        Ok(std::fs::read_to_string(path)?)
    }

    async fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        until("the agent's metrics are served", async || {
            let text = metrics::scrape(&self.metrics).await?;
            Ok(metrics::sum(&text, name, labels)?.unwrap_or_default())
        })
        .await
    }

    /// Returns how many writes all agents have counted.
    async fn all_writes(&self) -> Result<f64> {
        Ok(self.writes + self.metric("numacast_publishes_total", &[]).await?)
    }

    /// Waits until the object has had the agent's state once. An agent that finds it so writes nothing.
    async fn has_published(&self) -> Result<()> {
        until("the object has had the agent's state", async || {
            let when = self.metric("numacast_last_publish_timestamp_seconds", &[]).await?;
            ensure!(when > 0.0, "it has not");
            Ok(())
        })
        .await
        .with_context(|| self.log().unwrap_or_default())
    }

    // ---- what should be

    /// Waits until the object is the agent's, whole.
    async fn is_ours(&mut self) -> Result<Value> {
        let expected = self.content[usize::from(self.is_healthy)].clone();
        let uid = Api::<Node>::all(self.cluster.client()).get(&self.name).await?.metadata.uid;
        until("the object is ours", async || {
            self.still_runs()?;
            let object = self.object().await?;
            let content = Self::content_of(&object)?;
            ensure!(content == expected, "it is {content:#}\ninstead of {expected:#}");
            // An object that nri-plugins made has no owner; the controller deletes it with the Node.
            let mut found = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let is_right = found.all(|one| one["kind"] == "Node" && one["uid"] == json!(uid));
            ensure!(is_right, "{}", object["metadata"]);
            Ok(object)
        })
        .await
        .with_context(|| self.log().unwrap_or_default())
    }

    /// Each agent writes once, and overwrites a neighbour once; the rest follows changes and deletions.
    async fn writes_are_bounded(&self) -> Result<()> {
        let (writes, most) = (self.all_writes().await?, 2 * self.starts + self.changes + self.deletions);
        ensure!(writes <= most as f64, "{writes} writes, {most} at most");
        Ok(())
    }

    /// Waits until the conflict is named in the log, an Event and the metric.
    async fn is_named(&mut self, kind: Kind) -> Result<()> {
        let label = format!(r#"writer="{}""#, kind.label());
        let events: Api<Event> = Api::namespaced(self.cluster.client(), "default");
        until("the conflict is named", async || {
            self.still_runs()?;
            let log = self.log()?;
            let line =
                log.lines().rfind(|line| line.contains("keeps rewriting")).context("not in the log")?;
            ensure!(line.contains(kind.switch().trim_matches('`')), "{line}");
            let all = events.list(&ListParams::default()).await?.items;
            let is_own = |event: &&Event| {
                let about = event.regarding.as_ref().and_then(|about| about.name.as_ref());
                about == Some(&self.name) && event.reason.as_deref() == Some("CompetingPublisher")
            };
            let note = all.iter().find(is_own).and_then(|event| event.note.as_deref()).context("no Event")?;
            ensure!(note.contains(kind.switch()) && note.len() < 600, "{note}");
            let counted = self.metric("numacast_foreign_writes_total", &[&label]).await?;
            ensure!(counted >= 1.0, "{label} is {counted}");
            Ok(())
        })
        .await
        .with_context(|| self.log().unwrap_or_default())
    }

    /// Returns what `doctor` finds in the object.
    async fn doctor(&self) -> Result<Option<Value>> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command.args(["doctor", "--output", "json", "--kubeconfig"]).arg(self.cluster.admin_kubeconfig());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let place = format!("NodeResourceTopology {}", self.name);
        let findings = report["findings"].as_array().context("no findings")?;
        let is_foreign = |one: &&Value| one["check"] == "ForeignWriter" && one["place"] == json!(place);
        Ok(findings.iter().find(is_foreign).cloned())
    }

    /// Does what `doctor` says: the switch, then the command.
    async fn mend(&mut self, neighbour: &mut Neighbour, kind: Kind) -> Result<()> {
        let finding = self.doctor().await?.context("doctor finds nothing")?;
        let what = finding["what"].as_str().context("no sentence")?;
        ensure!(what.contains(kind.switch()), "{what}");
        neighbour.switch_off();
        let command = finding["mend"]["run"].as_str().context("no command")?;
        let (program, arguments) = command.split_once(' ').context("no arguments")?;
        self.operator.run(program, arguments)?;
        self.deletions += 1;
        Ok(())
    }
}

/// The neighbour writes again and again, and is left alone then.
async fn compete(world: &mut World, neighbour: &mut Neighbour, kind: Kind) -> Result<()> {
    // The second write shows that it was no leftover. The first of a new agent's life may still be overwritten.
    until("the agent leaves the neighbour's writes", async || {
        neighbour.event();
        neighbour.look().await?;
        ensure!(world.log()?.contains("keeps rewriting"), "it does not");
        Ok(())
    })
    .await?;
    for _ in 0..12 {
        neighbour.event();
        neighbour.write().await?;
    }
    world.is_named(kind).await?;
    world.writes_are_bounded().await
}

/// Returns a neighbour that has something to write to.
async fn neighbour(world: &World, kind: Kind) -> Result<Neighbour> {
    Neighbour::start(kind, &world.name, &world.cluster.admin_kubeconfig()).await
}

async fn every_order(kind: Kind) -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    // Without policies, koord-manager's writes are invalid.
    let arguments: &[&str] = match kind {
        Kind::KoordManager => &["--set", "publish.topologyPolicies=true"],
        _ => &[],
    };
    let mut world = World::start(&parts, arguments).await?;
    theirs_first(&mut world, kind).await.context("theirs first")?;
    ours_first(&mut world, kind).await.context("ours first")?;
    let seed = seed(&format!("orders of writes with {kind:?}"));
    interleaved(&mut world, kind, seed).await.with_context(|| format!("NUMACAST_SEED={seed}"))
}

async fn theirs_first(world: &mut World, kind: Kind) -> Result<()> {
    let mut neighbour = neighbour(world, kind).await?;
    if kind == Kind::KoordManager {
        // It makes no object.
        ensure!(neighbour.look().await? == Look::Nothing);
        let name = &world.name;
        Neighbour::start(Kind::Koordlet, name, &world.cluster.admin_kubeconfig()).await?.look().await?;
    }
    for _ in 0..2 {
        neighbour.event();
        ensure!(neighbour.look().await? == Look::Wrote);
    }
    world.start_agent()?;
    world.is_ours().await?;
    let note = "it is taken over";
    ensure!(world.log()?.contains(note), "{}", world.log()?);
    compete(world, &mut neighbour, kind).await?;
    world.mend(&mut neighbour, kind).await?;
    world.is_ours().await?;
    ensure!(neighbour.look().await? == Look::Nothing);
    ensure!(world.doctor().await?.is_none());
    world.writes_are_bounded().await?;
    world.end_agent().await
}

async fn ours_first(world: &mut World, kind: Kind) -> Result<()> {
    world.delete_object().await?;
    std::fs::remove_file(world.cluster.dir().join("agent.log"))?;
    world.start_agent()?;
    world.is_ours().await?;
    let mut neighbour = neighbour(world, kind).await?;
    neighbour.event();
    neighbour.write().await?;
    // It may be what an update left behind.
    let theirs = world.is_ours().await?["metadata"].clone();
    let (annotations, labels) = (&theirs["annotations"], &theirs["labels"]);
    match kind {
        Kind::Koordlet => ensure!(annotations["node.koordinator.sh/cpu-topology"].is_string(), "{theirs}"),
        Kind::RtePatch | Kind::RteUpdate => {
            ensure!(annotations["k8stopoawareschedwg/rte-update"].is_string(), "{theirs}");
        }
        _ => ensure!(annotations.is_null() && labels.is_null(), "{theirs}"),
    }
    compete(world, &mut neighbour, kind).await?;
    // A change of the node is written, and nothing else is.
    world.change();
    world.is_ours().await?;
    neighbour.event();
    neighbour.write().await?;
    world.writes_are_bounded().await?;
    neighbour.switch_off();
    world.change();
    world.is_ours().await?;
    world.end_agent().await
}

async fn interleaved(world: &mut World, kind: Kind, seed: u64) -> Result<()> {
    let mut random = Rng::with_seed(seed);
    let mut neighbour = neighbour(world, kind).await?;
    let mut left = DELETIONS;
    world.start_agent()?;
    let mut done = Vec::new();
    let mut step = async |world: &mut World, neighbour: &mut Neighbour| -> Result<()> {
        let what = match random.u8(..16) {
            0..6 => {
                neighbour.event();
                format!("{:?}", neighbour.look().await?)
            }
            6..9 => format!("late {:?}", neighbour.look_late().await?),
            9..12 => {
                // The kubelet is young: a new agent waits if that has more than the object.
                world.has_published().await?;
                world.change();
                "change".to_owned()
            }
            12 if !world.is_healthy => {
                world.restart_agent().await?;
                "restart".to_owned()
            }
            13 if left > 0 => {
                left -= 1;
                world.delete_object().await?;
                "deletion".to_owned()
            }
            _ => {
                tokio::time::sleep(Duration::from_millis(random.u64(..400))).await;
                "pause".to_owned()
            }
        };
        done.push(what);
        world.still_runs()
    };
    for _ in 0..STEPS {
        step(world, &mut neighbour).await?;
    }
    let mut rest = async || -> Result<()> {
        neighbour.switch_off();
        world.has_published().await?;
        // What it wrote last stays until something changes.
        match random.u8(..3) {
            0 => world.change_is_written().await?,
            1 if !world.is_healthy => world.restart_agent().await?,
            _ => world.delete_object().await?,
        }
        world.is_ours().await?;
        world.writes_are_bounded().await
    };
    rest().await.with_context(|| done.join(", "))
}

#[tokio::test]
async fn koordlet() -> Result<()> {
    every_order(Kind::Koordlet).await
}

#[tokio::test]
async fn koord_manager() -> Result<()> {
    every_order(Kind::KoordManager).await
}

#[tokio::test]
async fn nri_plugins_topology_aware() -> Result<()> {
    every_order(Kind::TopologyAware).await
}

#[tokio::test]
async fn nri_plugins_balloons() -> Result<()> {
    every_order(Kind::Balloons).await
}

#[tokio::test]
async fn nfd_that_applies() -> Result<()> {
    every_order(Kind::NfdApply).await
}

#[tokio::test]
async fn nfd_that_updates() -> Result<()> {
    every_order(Kind::NfdUpdate).await
}

#[tokio::test]
async fn rte_that_patches() -> Result<()> {
    every_order(Kind::RtePatch).await
}

#[tokio::test]
async fn rte_that_updates() -> Result<()> {
    every_order(Kind::RteUpdate).await
}

#[tokio::test]
async fn koord_manager_cannot_write_an_object_without_policies() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let mut world = World::start(&parts, &[]).await?;
    world.start_agent()?;
    let before = world.is_ours().await?;
    let mut neighbour = neighbour(&world, Kind::KoordManager).await?;
    match neighbour.look().await? {
        Look::Rejected(message) => ensure!(message.contains("topologyPolicies"), "{message}"),
        other => bail!("{other:?}"),
    }
    ensure!(world.object().await? == before);
    Ok(())
}

#[tokio::test]
async fn a_program_of_another_name_is_known_by_what_it_writes() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    for kind in [Kind::Balloons, Kind::Koordlet] {
        let mut world = World::start(&parts, &[]).await?;
        world.start_agent()?;
        world.is_ours().await?;
        let kubeconfig = world.cluster.admin_kubeconfig();
        let mut neighbour = Neighbour::start_as(kind, "app/v1", &world.name, &kubeconfig).await?;
        compete(&mut world, &mut neighbour, kind).await?;
        let log = world.log()?;
        ensure!(log.contains(&format!("`app` ({}) keeps", kind.label())), "{log}");
        world.mend(&mut neighbour, kind).await?;
        world.is_ours().await?;
    }
    Ok(())
}
