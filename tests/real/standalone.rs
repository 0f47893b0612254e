//! A kubelet without an API server: its node can be read, its sockets served, and its object written to a file. And a node
//! with another publisher, where an agent serves its sockets and writes nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::support::podresources::{ClientKind, Clients, Rpc};
use crate::support::pods_clients;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, Stop, nrt, pod};

/// Returns `numacast` with this subcommand for the node, without a kubeconfig.
fn numacast(node: &RealNode, verb: &str, settings: &[&str]) -> Command {
    let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent");
    command.arg(verb);
    let at = |key: &str, path: PathBuf| format!("{key}={}", path.display());
    for place in [
        at("host.sys", node.dir().join("sys")),
        at("host.proc", node.dir().join("proc")),
        at("kubelet.dir", node.kubelet_dir()),
    ] {
        command.args(["--set", &place]);
    }
    if verb != "snapshot" {
        command.args(["--metrics-address", "none", "--health-address", "none"]);
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

async fn snapshot(node: &RealNode) -> Result<Value> {
    let mut command = numacast(node, "snapshot", &["consumer=none"]);
    command.args(["--output", "json", "--node-name", node.name()]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns how many CPUs all zones have available.
fn available_cpus(object: &Value) -> Option<u64> {
    let zones = object["zones"].as_array()?.iter();
    let resources = zones.flat_map(|zone| zone["resources"].as_array().into_iter().flatten());
    let cpus = resources.filter(|resource| resource["name"] == "cpu");
    cpus.map(|cpu| cpu["available"].as_str()?.parse::<u64>().ok()).sum()
}

/// Waits until the file has the node's object, with this number of CPUs available.
async fn file_is_right(node: &RealNode, agent: &mut Process, file: &Path, cpus: u64) -> Result<()> {
    until(&format!("the file has {cpus} CPUs available"), async || {
        agent.still_runs()?;
        let text = std::fs::read_to_string(file)?;
        let written: Value = serde_saphyr::from_str(&text)?;
        ensure!(available_cpus(&written) == Some(cpus), "{text}");
        ensure!(written == snapshot(node).await?, "it is not what `snapshot` prints:\n{text}");
        Ok(())
    })
    .await
}

/// Returns a value with the elements of all its arrays in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(sorted).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), sorted(value))).collect(),
        other => other.clone(),
    }
}

async fn serves(process: &mut Process, socket: &Path) -> Result<()> {
    until(&format!("{} is served", socket.display()), async || {
        process.still_runs()?;
        ensure!(std::os::unix::net::UnixStream::connect(socket).is_ok());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_kubelet_without_an_api_server() -> Result<()> {
    let Some(parts) = Parts::with_pods_clients(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let setup = RealNode::on("two-by-eight")?.static_pods(&cluster)?;
    let setup = setup
        .kubelet("authorization", json!({"mode": "AlwaysAllow"}))
        .kubelet("authentication", json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}}));
    let mut node = setup.start(&cluster).await?;
    node.stop_kubelet(Stop::Term)?;
    node.leave_cluster();
    node.launch_kubelet()?;
    let whole = until("the kubelet offers CPUs", async || {
        node.kubelet_still_runs()?;
        available_cpus(&snapshot(&node).await?).filter(|cpus| *cpus > 0).context("there are none")
    })
    .await?;

    let file = node.dir().join("topology.yaml");
    let to_file = format!("publish.to={}", file.display());
    let mut agent = numacast(&node, "agent", &[&to_file]);
    agent.args(["--node-name", node.name()]);
    let mut agent = Process::start("agent", node.dir(), agent)?;
    let manifest = cluster.dir().join("manifests/static.json");
    file_is_right(&node, &mut agent, &file, whole).await?;
    std::fs::write(&manifest, node.manifest(&pod("static").cpus(3).memory("64Mi"))?)?;
    file_is_right(&node, &mut agent, &file, whole - 3).await?;

    let dir = node.dir().join("ours");
    let of_pods = format!("podsApi.dir={}", dir.join("pods").display());
    let mut server = numacast(&node, "pods-api", &[&of_pods, "podsApi.source=podsApi"]);
    server.args(["--node-name", node.name()]);
    let mut server = Process::start("pods-api", node.dir(), server)?;
    let socket = dir.join("pods/pods-api.sock");
    serves(&mut server, &socket).await?;
    let clients = pods_clients::Clients::of(&parts);
    let static_name = node.mirror("static");
    until("the Pods API has the static pod", async || {
        let listed = clients.list(pods_clients::ClientKind::Go, &socket).await?.pods()?;
        ensure!(listed.iter().any(|pod| pod.pod["metadata"]["name"] == static_name), "{listed:?}");
        Ok(())
    })
    .await?;

    let of_proxy = format!("proxy.dir={}", dir.join("proxy").display());
    let proxy = numacast(&node, "proxy", &[&of_proxy, "proxy.annotations.koordinator=[]"]);
    let mut proxy = Process::start("proxy", node.dir(), proxy)?;
    let socket = dir.join("proxy/kubelet.sock");
    serves(&mut proxy, &socket).await?;
    let clients = Clients::of(&parts);
    let ours = clients.request(ClientKind::Go, &socket, &Rpc::List).await?;
    let theirs = clients.request(ClientKind::Go, &node.socket(), &Rpc::List).await?;
    // The kubelet lists CPUs in any order.
    let (ours, theirs) = (sorted(&ours.message), sorted(&theirs.message));
    ensure!(ours == theirs && ours.to_string().contains("static"), "{ours} instead of {theirs}");

    std::fs::remove_file(&manifest)?;
    file_is_right(&node, &mut agent, &file, whole).await?;
    for process in [&mut agent, &mut server, &mut proxy] {
        process.still_runs()?;
    }
    ensure!(file.exists(), "the file stays");
    Ok(())
}

/// The agent serves both sockets, and changes and reads nothing of another publisher's object.
#[tokio::test]
async fn an_agent_that_publishes_nothing_serves_its_sockets() -> Result<()> {
    let Some(parts) = Parts::with_pods_clients(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    let dir = |name: &str| node.dir().join("ours").join(name);
    let (proxy, pods_api, info) =
        (dir("proxy/kubelet.sock"), dir("pods/pods-api.sock"), dir("info/pod-info.sock"));
    let own = [
        "publish.to=none".to_owned(),
        format!("proxy.dir={}", dir("proxy").display()),
        format!("podsApi.dir={}", dir("pods").display()),
        format!("podsApi.podInfo={{dir: {}}}", dir("info").display()),
    ];
    let start = |more: [&str; 2]| {
        let settings: Vec<&str> = own.iter().map(String::as_str).chain(more).collect();
        let mut command = numacast(&node, "agent", &settings);
        command.args(["--node-name", node.name(), "--kubeconfig"]).arg(node.agent_kubeconfig());
        Process::start("agent", node.dir(), command)
    };
    let mut agent = start(["proxy.enabled=true", "podsApi.enabled=true"])?;
    node.run(pod("a").cpus(1).memory("64Mi")).await?;
    for socket in [&proxy, &pods_api, &info] {
        serves(&mut agent, socket).await?;
    }
    let clients = pods_clients::Clients::of(&parts);
    let of_pods = Clients::of(&parts);
    until("all sockets have the pod", async || {
        let listed = clients.list(pods_clients::ClientKind::Go, &pods_api).await?.pods()?;
        ensure!(listed.iter().any(|pod| pod.pod["metadata"]["name"] == "a"), "the Pods API has {listed:?}");
        let conditions = clients.conditions(&info, "list", &[]).await?.pods()?;
        ensure!(
            conditions.iter().any(|pod| pod.pod["metadata"]["name"] == "a"),
            "PodInfo has {conditions:?}"
        );
        let listed = of_pods.request(ClientKind::Go, &proxy, &Rpc::List).await?.ok()?;
        ensure!(listed.message.to_string().contains("\"a\""), "the proxy has {}", listed.message);
        Ok(())
    })
    .await?;
    let refused = clients.list(pods_clients::ClientKind::Go, &info).await?;
    ensure!(refused.status() == ("Unimplemented", "unknown service v1alpha1.Pods"), "{refused:?}");
    agent.still_runs()?;

    // Switched off, the socket that is left says so; the others are served.
    agent.signal("TERM")?;
    agent.wait()?;
    let mut agent = start(["proxy.enabled=false", "podsApi.enabled=true"])?;
    serves(&mut agent, &pods_api).await?;
    until("the proxy's socket says that it is off", async || {
        let off = of_pods.request(ClientKind::Go, &proxy, &Rpc::List).await?;
        ensure!(off.code == "Unimplemented" && off.text.contains("proxy.enabled"), "{off:?}");
        Ok(())
    })
    .await?;
    let objects = nrt::api(&cluster.client()).list(&ListParams::default()).await?.items;
    ensure!(objects.is_empty(), "an object was written: {objects:?}");
    Ok(())
}
