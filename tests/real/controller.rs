//! The controller against a real API server, with only the rights listed in docs/rbac.md.

mod fleet;
mod nudges;
mod proxy;
mod restarts;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use numacast::cluster::ClusterError;
use serde_json::json;

use crate::sim_node::get;
use crate::support::cluster::free_port;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, usage};
use fleet::{DAEMON_SET, Fleet, NAMESPACE, names, object, same};
use proxy::{Fault, Proxy};

const CRD: &str = "noderesourcetopologies.topology.node.k8s.io";

/// Number of Nodes in the large test; `make fleet` uses 5,000.
fn fleet_size() -> usize {
    std::env::var("NUMACAST_FLEET").ok().and_then(|size| size.parse().ok()).unwrap_or(300)
}

/// The program under test: the tests' debug build, or the one given by `make fleet`.
fn program() -> String {
    std::env::var("NUMACAST_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_numacast").to_owned())
}

fn command(kubeconfig: &Path, more: &[&str]) -> Command {
    verb("controller", kubeconfig, more)
}

fn verb(verb: &str, kubeconfig: &Path, more: &[&str]) -> Command {
    let mut command = tethered(program());
    command.args([verb, "--namespace", NAMESPACE, "--kubeconfig"]).arg(kubeconfig).args(more);
    command
}

/// A running controller.
struct Controller {
    process: Process,
    probes: SocketAddr,
}

/// Short intervals, so that a test sees the effects.
const QUICK: [&str; 2] = ["--set", "controller.garbage.interval=1s"];

impl Controller {
    fn start(name: &str, cluster: &Cluster, kubeconfig: &Path, more: &[&str]) -> Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let mut command = command(kubeconfig, &QUICK);
        command.args(["--metrics-address", &address, "--health-address", &address]).args(more);
        let process = Process::start(name, cluster.dir(), command)?;
        Ok(Self { process, probes: address.parse()? })
    }

    /// Returns the value of a sample, given its name with labels; fails if it does not exist.
    async fn metric(&mut self, name: &str) -> Result<f64> {
        self.process.still_runs()?;
        tokio::net::TcpStream::connect(self.probes).await.context("it does not listen yet")?;
        let response = get(self.probes, "/metrics").await;
        let line = response.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.with_context(|| format!("there is no {name}"))?;
        Ok(value.parse()?)
    }

    /// Waits until a sample has this value.
    async fn shows(&mut self, name: &str, expected: f64) -> Result<()> {
        until(&format!("{name} is {expected}"), async || {
            let value = self.metric(name).await?;
            ensure!(value == expected, "it is {value}");
            Ok(())
        })
        .await
        .with_context(|| self.process.log_tail())
    }

    /// Waits until `count` more passes over all objects were made.
    async fn passes(&mut self, count: usize) -> Result<()> {
        let last_pass = "numacast_controller_last_pass_timestamp_seconds{pass=\"garbage\"}";
        let mut before = self.metric(last_pass).await?;
        for _ in 0..count {
            before = until("another pass", async || {
                let now = self.metric(last_pass).await?;
                ensure!(now > before);
                Ok(now)
            })
            .await?;
        }
        Ok(())
    }

    async fn probe(&self, path: &str) -> Result<String> {
        let response = get(self.probes, path).await;
        Ok(response.split_once("\r\n\r\n").context("no HTTP response")?.1.to_owned())
    }

    /// Returns the process's peak memory in MiB.
    fn peak(&self) -> Result<f64> {
        Ok(usage::status(self.process.id(), "VmHWM")? as f64 / 1024.0)
    }
}

fn set(names: &[String]) -> BTreeSet<String> {
    names.iter().cloned().collect()
}

#[tokio::test]
async fn objects_of_removed_nodes_are_deleted_and_nothing_else() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    fleet.add_lease().await?;
    let size = fleet_size();
    let all = names("worker", size);
    let made = Instant::now();
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all, "numacast").await?;
    let made = made.elapsed();

    // Without a Node from the start: one that is deleted, though another manager wrote it, and three that
    // stay.
    fleet.add_objects(&["left-by-nfd".to_owned()], "nfd-topology-updater").await?;
    let mut kept = object("kept");
    kept["metadata"]["annotations"] = json!({"numacast.io/keep": "true"});
    let mut owned = object("owned");
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}]);
    let mut rack = object("rack");
    rack["zones"] = json!([{"name": "rack-1", "type": "Rack"}]);
    for object in [kept, owned, rack] {
        fleet.add_object(object, "another").await?;
    }
    let stay = ["kept", "owned", "rack"].map(str::to_owned);

    // A tenth of the Nodes is deleted while the controller runs, a tenth while it does not.
    let (first, rest) = all.split_at(size / 10);
    let (second, rest) = rest.split_at(size / 10);
    let kubeconfig = fleet.kubeconfig()?;
    let mut controller = Controller::start("controller", &cluster, &kubeconfig, &[])?;
    controller.shows("numacast_controller_leader", 1.0).await?;
    until("NFD's leftover is gone", async || {
        ensure!(!fleet.object_names().await?.contains("left-by-nfd"));
        Ok(())
    })
    .await
    .with_context(|| controller.process.log_tail())?;
    let expected: BTreeSet<String> = all.iter().chain(&stay).cloned().collect();
    same(&fleet.object_names().await?, &expected)?;

    let started = Instant::now();
    fleet.delete_nodes(first).await?;
    let expected: BTreeSet<String> = second.iter().chain(rest).chain(&stay).cloned().collect();
    until("the objects of the first are gone", async || same(&fleet.object_names().await?, &expected))
        .await?;
    let running = started.elapsed();
    controller.shows("numacast_garbage_deleted_total", (first.len() + 1) as f64).await?;
    let peak = controller.peak()?;
    controller.process.signal("TERM")?;
    ensure!(controller.process.wait()?.success());

    fleet.delete_nodes(second).await?;
    let started = Instant::now();
    let shapes = "controller.shapes={large: 'cpu=20,example.com/nic=1'}";
    let mut controller = Controller::start("controller", &cluster, &kubeconfig, &["--set", shapes])?;
    let expected: BTreeSet<String> = rest.iter().chain(&stay).cloned().collect();
    until("the objects of the second are gone", async || same(&fleet.object_names().await?, &expected))
        .await?;
    let down = started.elapsed();
    controller.shows("numacast_garbage_deleted_total", second.len() as f64).await?;
    controller.shows("numacast_garbage_objects", 0.0).await?;
    controller.passes(2).await?;
    same(&fleet.object_names().await?, &expected)?;

    // The sums are those of the remaining objects.
    let cpus = 64.0 * (rest.len() + 2) as f64;
    controller.shows("numacast_fleet_resources{resource=\"cpu\",type=\"capacity\"}", cpus).await?;
    controller.shows("numacast_fleet_foreign_objects", 3.0).await?;
    // Each has 16 free CPUs and 4 devices in either zone.
    let nodes = (rest.len() + 2) as f64;
    for (placement, pods) in [("aligned", 0.0), ("any", nodes)] {
        let series = format!("numacast_fleet_shape_pods{{shape=\"large\",placement=\"{placement}\"}}");
        controller.shows(&series, pods).await?;
    }
    let stranded = "numacast_fleet_shape_stranded{shape=\"large\",resource=\"cpu\"}";
    controller.shows(stranded, 32.0 * nodes).await?;
    let policy = "numacast_fleet_objects{policy=\"single-numa-node\",scope=\"pod\"}";
    controller.shows(policy, (rest.len() + 3) as f64).await?;
    eprintln!(
        "{size} Nodes and objects (made in {made:?}): {} deleted while it ran in {running:?}, {} at the start in {down:?} \
         (both with a grace period of 1 s); peak {peak:.1} and {:.1} MiB",
        first.len(),
        second.len(),
        controller.peak()?,
    );
    Ok(())
}

#[tokio::test]
async fn a_wrong_list_of_nodes_deletes_nothing() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let all = names("worker", 60);
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all, "numacast").await?;
    // Its Node is gone, so it is deleted once the list is correct.
    fleet.add_objects(&["gone".to_owned()], "numacast").await?;
    let everything: BTreeSet<String> = all.iter().cloned().chain(["gone".to_owned()]).collect();
    let alone = ["--set", "controller.lease=", "--set", "controller.daemonSets=[]"];
    let mut faulty = Vec::new();
    for fault in [Fault::Forbidden, Fault::Failure, Fault::Empty, Fault::Half, Fault::HalfListed] {
        let proxy = Proxy::start(cluster.client(), cluster.dir(), fault).await?;
        let name = format!("controller-{fault:?}");
        let controller = Controller::start(&name, &cluster, &proxy.kubeconfig, &alone)?;
        faulty.push((fault, proxy, controller));
    }
    for (fault, _, controller) in &mut faulty {
        controller.shows("numacast_garbage_held_back", 1.0).await.with_context(|| format!("{fault:?}"))?;
        match fault {
            // Without a list there is no pass.
            Fault::Forbidden | Fault::Failure => {
                let kind = "numacast_controller_errors_total{operation=\"request\",kind=\"watch\"}";
                let before = controller.metric(kind).await?;
                until("it has tried again", async || {
                    ensure!(controller.metric(kind).await? > before);
                    Ok(())
                })
                .await?;
            }
            _ => controller.passes(3).await?,
        }
        ensure!(controller.metric("numacast_garbage_deleted_total").await? == 0.0, "{fault:?}");
    }
    same(&fleet.object_names().await?, &everything)?;
    let notes = fleet.events("GarbageHeldBack", CRD).await?;
    for text in [
        "the list of Nodes is not known",
        "the list of Nodes is empty while there are 61 objects",
        "31 of 61 objects have no Node, more than the 20 %",
        "30 Nodes are known while the API server counts 60",
    ] {
        ensure!(notes.iter().any(|note| note.contains(text)), "{text}: {notes:#?}");
    }

    // The controller whose list failed receives the correct list, and resumes by itself.
    let (_, proxy, controller) =
        faulty.iter_mut().find(|(fault, ..)| *fault == Fault::Failure).context("no such fault")?;
    proxy.set(Fault::None);
    until("the object without a Node is gone", async || same(&fleet.object_names().await?, &set(&all)))
        .await?;
    controller.shows("numacast_garbage_held_back", 0.0).await
}

#[tokio::test]
async fn a_deletion_applies_to_one_version_of_an_object() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let one = names("worker", 1);
    fleet.add_objects(&one, "numacast").await?;
    let api = numacast::cluster::Cluster::new(Some(&fleet.kubeconfig()?), Duration::from_secs(5)).await?;
    let look = async || {
        let page = api.topology_metas().next().await?.context("no page")?;
        page.into_iter().next().context("no object")
    };
    let first = look().await?;
    // First the object is changed, then replaced by another one of the same name.
    fleet.add_objects(&one, "another").await?;
    let written = api.delete_topology(&first).await;
    ensure!(written.as_ref().is_err_and(ClusterError::is_other_object_or_version), "{written:?}");
    fleet.delete_object(&one[0]).await?;
    fleet.add_objects(&one, "numacast").await?;
    for result in [api.delete_topology(&first).await, api.delete_topology_by_uid(&first).await] {
        ensure!(result.as_ref().is_err_and(ClusterError::is_other_object_or_version), "{result:?}");
    }
    let second = look().await?;
    ensure!(api.delete_topology(&second).await?, "it is the one");
    ensure!(!api.delete_topology(&second).await?, "it is gone");

    // Only the API server's own NotFound means that there is no Node.
    fleet.add_nodes(&one).await?;
    ensure!(!api.has_no_node(&one[0]).await? && api.has_no_node("nobody").await?);
    let proxy = Proxy::start(cluster.client(), cluster.dir(), Fault::Nowhere).await?;
    let api = numacast::cluster::Cluster::new(Some(&proxy.kubeconfig), Duration::from_secs(5)).await?;
    let result = api.has_no_node("nobody").await;
    ensure!(result.is_err(), "{result:?}");
    Ok(())
}

#[tokio::test]
async fn objects_that_cannot_be_deleted_keep_no_others() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let all = names("worker", 40);
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all, "numacast").await?;
    // One whose deletion a policy denies, one kept by a finalizer, and after them one that can be deleted.
    let [denied, kept, gone] = ["a-denied", "b-kept", "z-gone"].map(str::to_owned);
    fleet.add_objects(&[denied.clone(), kept.clone(), gone.clone()], "numacast").await?;
    let finalizer = json!({"metadata": {"finalizers": ["example.com/kept"]}});
    let objects = fleet::objects(&cluster.client());
    objects.patch(&kept, &PatchParams::default(), &Patch::Merge(&finalizer)).await?;
    deny_deletion(&cluster, &denied).await?;
    // More than a fifth of all objects belong to no Node.
    let racks = names("rack", 20);
    for name in &racks {
        let mut rack = object(name);
        rack["zones"] = json!([{"name": "rack-1", "type": "Rack"}]);
        fleet.add_object(rack, "another").await?;
    }
    // And the list omits some Nodes that exist.
    let proxy = Proxy::start(cluster.client(), cluster.dir(), Fault::Hidden).await?;
    let alone = ["--set", "controller.lease=", "--set", "controller.daemonSets=[]"];
    let mut controller = Controller::start("controller", &cluster, &proxy.kubeconfig, &alone)?;
    let stay: BTreeSet<String> = all.iter().chain(&racks).chain([&denied, &kept]).cloned().collect();
    until("the one that may go is gone", async || same(&fleet.object_names().await?, &stay))
        .await
        .with_context(|| controller.process.log_tail())?;
    controller.passes(3).await?;
    same(&fleet.object_names().await?, &stay)?;
    ensure!(controller.metric("numacast_garbage_held_back").await? == 0.0);
    let deleted = controller.metric("numacast_garbage_deleted_total").await?;
    ensure!(deleted == 2.0, "{deleted}: the object with the finalizer was deleted once");
    ensure!(objects.get_metadata(&kept).await?.metadata.deletion_timestamp.is_some());
    let log = controller.process.log_tail();
    let message = "objects of deleted Nodes cannot be deleted (a-denied): the API server rejected";
    ensure!(log.matches(message).count() == 1 && log.contains("it stays"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_dry_run_logs_what_would_be_deleted() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let all = names("worker", 3);
    fleet.add_nodes(&all[..2]).await?;
    fleet.add_objects(&all, "numacast").await?;
    let dry = ["--dry-run", "--set", "controller.lease=", "--set", "controller.daemonSets=[]"];
    let mut controller = Controller::start("controller", &cluster, &fleet.kubeconfig()?, &dry)?;
    controller.shows("numacast_garbage_objects", 1.0).await?;
    let message = "dry run: the object worker-00002 would be deleted, its Node is gone";
    until("it is logged", async || {
        ensure!(controller.process.log_tail().contains(message), "{}", controller.process.log_tail());
        Ok(())
    })
    .await?;
    controller.passes(2).await?;
    ensure!(controller.process.log_tail().matches(message).count() == 1, "once");
    same(&fleet.object_names().await?, &set(&all))
}

#[tokio::test]
async fn another_replica_takes_over() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    fleet.add_lease().await?;
    let all = names("worker", 30);
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all, "numacast").await?;
    let kubeconfig = fleet.kubeconfig()?;
    let mut leader = Controller::start("first", &cluster, &kubeconfig, &[])?;
    leader.shows("numacast_controller_leader", 1.0).await?;
    let first = fleet.holder().await?;
    let mut other = Controller::start("second", &cluster, &kubeconfig, &[])?;
    // It serves HTTP.
    other.shows("numacast_controller_leader", 0.0).await?;
    for path in ["/livez", "/readyz", "/startupz"] {
        until("the other one is ready to lead", async || {
            let response = other.probe(path).await?;
            ensure!(response == "ok\n", "{path}: {response}");
            Ok(())
        })
        .await?;
    }
    // It is ready, so it has checked the Lease.
    ensure!(other.metric("numacast_controller_leader").await? == 0.0, "two lead");
    fleet.delete_nodes(&all[..3]).await?;
    until("the leader deletes the objects", async || same(&fleet.object_names().await?, &set(&all[3..])))
        .await?;
    leader.shows("numacast_garbage_deleted_total", 3.0).await?;
    ensure!(other.metric("numacast_garbage_deleted_total").await? == 0.0, "both delete objects");
    ensure!(other.metric("numacast_fleet_foreign_objects").await.is_err(), "it counts what it does not see");

    // It is killed without releasing the Lease, and Nodes are deleted while no replica leads.
    leader.process.kill()?;
    fleet.delete_nodes(&all[3..5]).await?;
    other.shows("numacast_controller_leader", 1.0).await?;
    ensure!(fleet.holder().await? != first);
    fleet.delete_nodes(&all[5..6]).await?;
    until("the other one deletes the objects", async || same(&fleet.object_names().await?, &set(&all[6..])))
        .await?;
    other.shows("numacast_garbage_deleted_total", 3.0).await?;

    // This one releases the Lease, so that another can lead at once.
    other.process.signal("TERM")?;
    ensure!(other.process.wait()?.success());
    ensure!(fleet.holder().await?.is_none(), "the Lease was not released");
    Ok(())
}

#[tokio::test]
async fn nodes_without_a_ready_agent_are_reported() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    fleet.add_lease().await?;
    let all = names("worker", 5);
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all[..4], "numacast").await?;
    fleet.add_daemon_set(json!({})).await?;
    for node in [0, 1, 3, 4] {
        fleet.add_agent(&all[node], node != 1).await?;
    }
    let mut controller = Controller::start("controller", &cluster, &fleet.kubeconfig()?, &[])?;
    controller.shows("numacast_fleet_covered_nodes", 5.0).await?;
    controller.shows("numacast_fleet_nodes_without_ready_agent", 2.0).await?;
    controller.shows("numacast_fleet_missing_objects", 1.0).await?;
    for (reason, node, end) in [
        ("AgentNotReady", 1, "its agent agent-worker-00001 is not Ready"),
        ("AgentNotReady", 2, "no agent runs on it"),
        ("ObjectMissing", 4, "it has no NodeResourceTopology although its agent is Ready"),
    ] {
        until("the Event is there", async || {
            let notes = fleet.events(reason, &all[node]).await?;
            ensure!(notes.len() == 1 && notes[0].ends_with(end), "{reason} {node}: {notes:?}");
            Ok(())
        })
        .await?;
    }
    ensure!(fleet.events("AgentNotReady", &all[0]).await?.is_empty());

    // Everything recovers, then an agent is lost.
    fleet.agent_is(&all[1], true).await?;
    fleet.add_agent(&all[2], true).await?;
    fleet.add_objects(&all[4..], "numacast").await?;
    controller.shows("numacast_fleet_nodes_without_ready_agent", 0.0).await?;
    controller.shows("numacast_fleet_missing_objects", 0.0).await?;
    fleet.delete_agent(&all[0]).await?;
    controller.shows("numacast_fleet_nodes_without_ready_agent", 1.0).await?;
    // Without the DaemonSet it is unknown which Nodes should have an agent.
    controller.shows("numacast_fleet_daemonset", 1.0).await?;
    fleet.namespaced::<DaemonSet>().delete(DAEMON_SET, &DeleteParams::default()).await?;
    controller.shows("numacast_fleet_daemonset", 0.0).await?;
    until("Nodes without a Ready agent are not counted any more", async || {
        ensure!(controller.metric("numacast_fleet_nodes_without_ready_agent").await.is_err());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_leader_that_was_frozen_loses_the_lead() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    fleet.add_lease().await?;
    let all = names("worker", 3);
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all, "numacast").await?;
    let kubeconfig = fleet.kubeconfig()?;
    let mut leader = Controller::start("first", &cluster, &kubeconfig, &[])?;
    leader.shows("numacast_controller_leader", 1.0).await?;
    let mut other = Controller::start("second", &cluster, &kubeconfig, &[])?;
    leader.process.signal("STOP")?;
    other.shows("numacast_controller_leader", 1.0).await?;
    let holder = fleet.holder().await?;
    leader.process.signal("CONT")?;
    leader.shows("numacast_controller_leader", 0.0).await?;
    fleet.delete_nodes(&all[..1]).await?;
    until("the other one deletes the object", async || same(&fleet.object_names().await?, &set(&all[1..])))
        .await?;
    other.shows("numacast_garbage_deleted_total", 1.0).await?;
    ensure!(leader.metric("numacast_garbage_deleted_total").await? == 0.0, "both delete objects");
    ensure!(fleet.holder().await? == holder);
    Ok(())
}

async fn purge(kubeconfig: &Path, more: &[&str]) -> Result<(Option<i32>, String, String)> {
    outcome(verb("purge", kubeconfig, more)).await
}

/// Returns exit code, standard output and standard error.
async fn outcome(mut command: Command) -> Result<(Option<i32>, String, String)> {
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

#[tokio::test]
async fn objects_that_are_newer_than_the_scheduler_are_reported() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let kubeconfig = fleet.kubeconfig()?;
    let all = names("worker", 3);
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all, "numacast").await?;
    let scheduler = "controller.scheduler=kube-system/component=kube-scheduler";
    let settings = ["--set", "controller.lease=", "--set", "controller.daemonSets=[]", "--set", scheduler];
    let series = "numacast_fleet_objects_newer_than_scheduler";
    let mut controller = Controller::start("controller", &cluster, &kubeconfig, &settings)?;

    controller.shows("numacast_fleet_objects{policy=\"single-numa-node\",scope=\"pod\"}", 3.0).await?;
    ensure!(controller.metric(series).await.is_err(), "it is not known yet");

    fleet.delete_object(&all[2]).await?;
    fleet.run_scheduler("kube-system", fleet.created(&all[1]).await?).await?;
    fleet.add_later(&all[2], &all[1]).await?;
    controller.shows(series, 1.0).await?;

    fleet.run_scheduler("kube-system", fleet.created(&all[2]).await?).await?;
    controller.shows(series, 0.0).await?;
    Ok(())
}

#[tokio::test]
async fn a_wait_ends_once_every_node_has_its_object() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let kubeconfig = fleet.kubeconfig()?;
    let wait = |more: &[&str]| outcome(verb("wait", &kubeconfig, more));
    let (code, stdout, stderr) = wait(&["--timeout", "1ms"]).await?;
    let unknown =
        "it is not known which Nodes should have an object: there is no DaemonSet numacast/numacast-agent\n";
    ensure!((code, stdout.as_str()) == (Some(2), unknown), "{stdout}{stderr}");

    let all = names("worker", 2);
    fleet.add_nodes(&all).await?;
    fleet.add_daemon_set(json!({})).await?;
    fleet.add_objects(&all[..1], "numacast").await?;
    for (more, expected) in [(&["--timeout", "1ms"] as &[&str], 1), (&["--timeout", "1ms", "--exit-zero"], 0)]
    {
        let (code, stdout, stderr) = wait(more).await?;
        let missing = format!("Nodes without an object: {}\n", all[1]);
        ensure!((code, stdout) == (Some(expected), missing), "{stderr}");
    }
    let mut waiting = Process::start("wait", cluster.dir(), verb("wait", &kubeconfig, &["--timeout", "5m"]))?;
    until("it says what is missing", async || {
        ensure!(waiting.log_tail().contains("Nodes without an object"), "{}", waiting.log_tail());
        Ok(())
    })
    .await?;
    waiting.still_runs()?;
    fleet.add_objects(&all[1..], "numacast").await?;
    let status = tokio::task::spawn_blocking(move || (waiting.wait(), waiting.log_tail())).await?;
    ensure!(status.0?.success(), "{}", status.1);
    ensure!(status.1.contains("all Nodes that should have an object have one: 2"), "{}", status.1);
    Ok(())
}

async fn delete_crd(cluster: &Cluster) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client());
    crds.delete(CRD, &DeleteParams::default()).await?;
    until("the CRD is gone", async || {
        ensure!(crds.get_opt(CRD).await?.is_none());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_purge_removes_our_objects_once_the_agents_are_gone() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let kubeconfig = fleet.kubeconfig()?;
    let all = names("worker", 620);
    fleet.add_nodes(&all[..2]).await?;
    fleet.add_objects(&all, "numacast").await?;
    fleet.add_objects(&["theirs".to_owned()], "nfd-topology-updater").await?;
    fleet.add_daemon_set(json!({})).await?;
    fleet.add_agent(&all[0], true).await?;

    let (code, stdout, stderr) = purge(&kubeconfig, &["--dry-run"]).await?;
    let objects: String = all.iter().map(|name| format!("NodeResourceTopology {name}\n")).collect();
    let would = format!(
        "DaemonSet numacast/{DAEMON_SET}\n{objects}the agents' DaemonSet and 620 objects would be removed\n"
    );
    ensure!((code, stdout) == (Some(0), would), "{stderr}");

    // While an agent runs, its object would be recreated: nothing is removed before it is gone.
    let mut process = Process::start("purge", cluster.dir(), verb("purge", &kubeconfig, &[]))?;
    until("the DaemonSet is gone", async || {
        ensure!(fleet.namespaced::<DaemonSet>().get_opt(DAEMON_SET).await?.is_none());
        Ok(())
    })
    .await
    .with_context(|| process.log_tail())?;
    ensure!(fleet.namespaced::<Pod>().get_opt("agent-worker-00000").await?.is_some());
    ensure!(fleet.object_names().await?.len() == 621);
    process.still_runs()?;
    // As garbage collection and the kubelet would.
    fleet.delete_agent(&all[0]).await?;
    let status = tokio::task::spawn_blocking(move || (process.wait(), process.log_tail())).await?;
    ensure!(status.0?.success(), "{}", status.1);
    ensure!(status.1.contains("the agents' DaemonSet and 620 objects removed"), "{}", status.1);
    same(&fleet.object_names().await?, &set(&["theirs".to_owned()]))?;

    let (code, stdout, stderr) = purge(&kubeconfig, &[]).await?;
    ensure!((code, stdout.as_str()) == (Some(0), "0 objects removed\n"), "{stdout}{stderr}");
    fleet.delete_object("theirs").await?;
    let (code, stdout, stderr) = purge(&kubeconfig, &[]).await?;
    ensure!(
        (code, stdout.as_str()) == (Some(0), "0 objects removed\n"),
        "there is none at all: {stdout}{stderr}"
    );
    delete_crd(&cluster).await?;
    let (code, stdout, stderr) = purge(&kubeconfig, &[]).await?;
    let nothing = "no object removed: the CRD of NodeResourceTopology is not installed\n";
    ensure!((code, stdout.as_str()) == (Some(0), nothing), "{stdout}{stderr}");
    let without_rights = cluster.kubeconfig_as("system:serviceaccount:numacast:nobody", &[])?;
    let (code, _, stderr) = purge(&without_rights, &[]).await?;
    ensure!(
        code == Some(1) && stderr.starts_with("numacast: RBAC denied the request: daemonsets.apps"),
        "{stderr}"
    );
    Ok(())
}

/// Installs an admission policy that denies the deletion of one object, as other people's policies may.
async fn deny_deletion(cluster: &Cluster, name: &str) -> Result<()> {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "stays"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["topology.node.k8s.io"], "apiVersions": ["*"], "operations": ["DELETE"],
                "resources": ["noderesourcetopologies"],
            }]},
            "validations": [{"expression": format!("request.name != '{name}'"), "message": "it stays"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "stays"}, "spec": {"policyName": "stays", "validationActions": ["Deny"]},
    });
    let made = PostParams::default();
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(policy)?;
    Api::all(cluster.client()).create(&made, &policy).await?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(binding)?;
    Api::all(cluster.client()).create(&made, &binding).await?;
    let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
    until("the policy is in force", async || {
        let result = fleet::objects(&cluster.client()).delete(name, &dry).await;
        ensure!(result.is_err(), "the deletion is allowed");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_purge_skips_what_cannot_be_deleted_and_other_daemon_sets() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let kubeconfig = cluster.admin_kubeconfig();
    let theirs: DaemonSet = serde_json::from_value(json!({"metadata": {"name": "kube-proxy"}, "spec": {
        "selector": {"matchLabels": {"app": "proxy"}},
        "template": {"metadata": {"labels": {"app": "proxy"}}, "spec": {"containers": [
            {"name": "proxy", "image": "proxy", "command": ["kube-proxy"]},
        ]}},
    }}))?;
    let sets = fleet.namespaced::<DaemonSet>();
    sets.create(&PostParams::default(), &theirs).await?;
    let all = names("worker", 12);
    fleet.add_objects(&all, "numacast").await?;
    let (code, _, stderr) = purge(&kubeconfig, &["--set", "controller.daemonSets=[kube-proxy]"]).await?;
    let not_ours = "numacast: the DaemonSet numacast/kube-proxy runs no agents of numacast, so nothing was deleted: name \
                    those of the agents in --set controller.daemonSets=[NAME], or use [] if there are none\n";
    ensure!((code, stderr.as_str()) == (Some(1), not_ours), "{stderr}");
    ensure!(sets.get_opt("kube-proxy").await?.is_some() && fleet.object_names().await?.len() == 12);

    // The first is kept by a finalizer, the second by another policy.
    let kept = json!({"metadata": {"finalizers": ["example.com/kept"]}});
    let objects = fleet::objects(&cluster.client());
    objects.patch(&all[0], &PatchParams::default(), &Patch::Merge(&kept)).await?;
    deny_deletion(&cluster, &all[1]).await?;
    let (code, _, stderr) = purge(&kubeconfig, &[]).await?;
    ensure!(code == Some(1) && stderr.contains("it stays"), "{stderr}");
    same(&fleet.object_names().await?, &set(&all[..2]))?;
    // Once finalizer and policy are removed, the objects are deleted.
    let free = json!({"metadata": {"finalizers": null}});
    objects.patch(&all[0], &PatchParams::default(), &Patch::Merge(&free)).await?;
    Api::<ValidatingAdmissionPolicyBinding>::all(cluster.client())
        .delete("stays", &DeleteParams::default())
        .await?;
    let (code, stdout, stderr) = until_purged(&kubeconfig).await?;
    ensure!(code == Some(0) && stdout.ends_with("objects removed\n"), "{stdout}{stderr}");
    ensure!(fleet.object_names().await?.is_empty(), "{:?}", fleet.object_names().await?);
    Ok(())
}

/// Repeats the purge: a removed policy stays in force for a moment.
async fn until_purged(kubeconfig: &Path) -> Result<(Option<i32>, String, String)> {
    let mut outcome = purge(kubeconfig, &[]).await?;
    until("the purge ends well", async || {
        if outcome.0 != Some(0) {
            outcome = purge(kubeconfig, &[]).await?;
        }
        ensure!(outcome.0 == Some(0), "{}", outcome.2);
        Ok(())
    })
    .await?;
    Ok(outcome)
}
