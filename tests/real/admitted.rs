//! The policies that the chart installs admit everything that an agent publishes. The kubelets are simulated,
//! on every described machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use numacast_sim::kubelet::{Options, PodSpec};
use numacast_sim::machine::MachineSpec;
use numacast_sim::scenario;
use serde_json::{Value, json};

use crate::refusals::{NO_PORTS, agent};
use crate::sim_node::Node as SimNode;
use crate::support::chart::{self, AGENT, Chart, POLICIES, RELEASE};
use crate::support::fingerprint::WITHHELD;
use crate::support::parts::repository;
use crate::support::process::Process;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, nrt, tokens};

/// Memory request of each busy pod, in bytes.
const MEMORY: &str = "67108864";
/// Maximum number of busy pods on each machine.
const PODS: usize = 3;

/// Returns every described machine, and one with the maximum number of zones of the scheduler plugin.
fn machines() -> Result<Vec<(String, MachineSpec)>> {
    let mut machines = vec![("sixty-four-zones".to_owned(), scenario::machine(64))];
    for entry in std::fs::read_dir(repository().join("tests/machines"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        machines.push((name, MachineSpec::read(&path).map_err(anyhow::Error::msg)?));
    }
    machines.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(machines)
}

/// Creates a Node and returns the kubeconfig of its agent.
async fn join(cluster: &Cluster, name: &str) -> Result<PathBuf> {
    let admin = cluster.client();
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Node>::all(admin.clone()).create(&PostParams::default(), &node).await?;
    let token = tokens::on_node(&admin, RELEASE, AGENT, name).await?;
    cluster.kubeconfig_of(&format!("agent-on-{name}"), &token)
}

/// Starts Guaranteed pods alternately on the first NUMA nodes, as far as the kubelet admits them, and creates
/// them in the API server; returns their number.
async fn fill(cluster: &Cluster, name: &str, spec: &MachineSpec, node: &SimNode) -> Result<usize> {
    let pods = Api::<Pod>::namespaced(cluster.client(), "default");
    let mut running = 0;
    for number in 0..PODS {
        let pod = format!("{name}-{number}");
        let home = spec.nodes[number % 2 % spec.nodes.len()].id;
        let spec = PodSpec::guaranteed(&pod, 1, MEMORY.parse()?).on([home]);
        if node.kubelet.start_pod(spec).await.is_err() {
            continue;
        }
        let resources = json!({"cpu": "1", "memory": MEMORY});
        let object: Pod = serde_json::from_value(json!({
            "metadata": {"name": pod},
            "spec": {"nodeName": name, "containers": [{
                "name": "main", "image": "pause:latest",
                "resources": {"requests": resources, "limits": resources},
            }]},
        }))?;
        pods.create(&PostParams::default(), &object).await?;
        let status = json!({"status": {"phase": "Running"}});
        pods.patch_status(&pod, &PatchParams::default(), &Patch::Merge(status)).await?;
        running += 1;
    }
    Ok(running)
}

fn value<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    let mut attributes = object["attributes"].as_array().into_iter().flatten();
    attributes.find(|attribute| attribute["name"] == name).and_then(|attribute| attribute["value"].as_str())
}

/// Runs an agent until it has published all these pods, and returns the object.
async fn published(
    cluster: &Cluster,
    kubeconfig: &Path,
    name: &str,
    node: &SimNode,
    pods: usize,
) -> Result<Value> {
    let command = agent(node, kubeconfig, name, &NO_PORTS);
    let mut process = Process::start(&format!("agent-on-{name}"), cluster.dir(), command)?;
    let what = format!("the object of {name} is there");
    let object = until(&what, async || {
        process.still_runs()?;
        let object = nrt::read(&cluster.client(), name).await?.content;
        let fingerprint = value(&object, "nodeTopologyPodsFingerprint").context("no fingerprint")?;
        ensure!(fingerprint != WITHHELD, "it is withheld");
        if value(&object, "topologyManagerPolicy") == Some("single-numa-node") {
            let placed = value(&object, "topology.node.k8s.io/numaplacement-metadata");
            let placed = placed.context("no placement")?;
            ensure!(placed.contains(&format!("::cc={pods}::")), "{placed}");
        }
        Ok(object)
    });
    object.await.with_context(|| process.log_tail())
}

#[tokio::test]
async fn the_object_of_every_machine_is_admitted() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let admin = cluster.client();
    // Nine zones, of which seven are fillers.
    let first = "power9";
    let node: Node = serde_json::from_value(json!({"metadata": {"name": first}}))?;
    Api::<Node>::all(admin.clone()).create(&PostParams::default(), &node).await?;
    let chart = Chart::render(&parts, &json!({}))?;
    let kubeconfig = chart::agent_of(&cluster, &chart, first).await?;
    let (_, spec) = machines()?.into_iter().find(|(name, _)| name == first).context(first)?;
    let machine = SimNode::with_machine(&spec, options());
    let once = async || {
        let mut command = agent(&machine, &kubeconfig, first, &["--once", "--log-level", "error"]);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        anyhow::Ok((output.status.success(), String::from_utf8(output.stderr)?))
    };
    let (accepted, log) = once().await?;
    let message = "the object has 9 zones, and agents may write 8: for nodes with more, set admissionPolicy.maxZones of the chart";
    ensure!(!accepted && log.contains(message), "{log}");

    Chart::render(&parts, &json!({"admissionPolicy": {"maxZones": 64}}))?.install(&admin, &POLICIES).await?;
    until("nine zones are accepted", async || {
        let (accepted, log) = once().await?;
        ensure!(accepted, "{log}");
        Ok(())
    })
    .await?;
    let mut names = BTreeSet::new();
    for (name, spec) in machines()? {
        let node = SimNode::with_machine(&spec, options());
        let config = if name == first { kubeconfig.clone() } else { join(&cluster, &name).await? };
        let pods = fill(&cluster, &name, &spec, &node).await?;
        let object = published(&cluster, &config, &name, &node, pods).await?;
        let zones = object["zones"].as_array().context("no zones")?;
        let of_zones = zones.iter().flat_map(|zone| zone["attributes"].as_array().into_iter().flatten());
        let attributes = object["attributes"].as_array().into_iter().flatten().chain(of_zones);
        names.extend(attributes.filter_map(|attribute| attribute["name"].as_str()).map(str::to_owned));
    }
    // Everything that can be published was published by some machine.
    for name in [
        "cpu_core",
        "topologyManagerMaxNUMANodes",
        "topologyManagerOptionPreferClosestNumaNodes",
        "cpuManagerOptionFullPcpusOnly",
        "reservedCPUs",
        "sockets",
        "l3Caches",
        "topology.node.k8s.io/numaplacement-vector",
    ] {
        ensure!(names.contains(name), "no machine had {name}: {names:?}");
    }
    Ok(())
}

fn options() -> Options {
    Options { limited: false, ..Options::default() }
}
