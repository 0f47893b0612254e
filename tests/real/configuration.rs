//! The configuration of a real kubelet: numacast reads the same from its files, its command line and the
//! kubelet itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::chart::{AGENT, Chart, RELEASE, RIGHTS};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, Stop, nrt, pod, tokens};

const NODE: &str = "two-by-eight";

/// Creates the agent's service account with the chart's rights, with or without access to `nodes/configz`;
/// returns its kubeconfig.
async fn service_account(parts: &Parts, cluster: &Cluster, granted: bool) -> Result<PathBuf> {
    tokens::namespace(&cluster.client(), RELEASE).await?;
    grant(parts, cluster, granted).await?;
    cluster.kubeconfig_of("agent", &tokens::request(&cluster.client(), RELEASE, AGENT, None).await?)
}

async fn grant(parts: &Parts, cluster: &Cluster, granted: bool) -> Result<()> {
    let file = if granted { "" } else { "/var/lib/kubelet/config.yaml" };
    let chart = Chart::render(parts, &json!({"kubelet": {"configFile": file}}))?;
    chart.install(&cluster.client(), &RIGHTS).await
}

/// Makes the kubelet authorize each request again.
fn authorization() -> Value {
    json!({ "webhook": { "cacheAuthorizedTTL": "1ms", "cacheUnauthorizedTTL": "1ms" } })
}

/// Returns the settings for the kubelet's HTTPS port. Here it does not listen at its Node's address.
fn https(node: &RealNode) -> Result<Vec<String>> {
    let config: Value = serde_json::from_slice(&std::fs::read(node.kubelet_dir().join("config.yaml"))?)?;
    Ok(vec![
        "--kubelet-config-source=configz".to_owned(),
        format!("--set=kubelet.address=127.0.0.1:{}", config["port"]),
        format!("--set=kubelet.caFile={}", certificate(node).display()),
        format!("--set=kubelet.serverName={}", node.name()),
    ])
}

/// Returns the path of the kubelet's self-signed certificate.
fn certificate(node: &RealNode) -> PathBuf {
    node.dir().join("kubelet-certificates/kubelet.crt")
}

/// Returns what numacast reads of the kubelet's configuration, or its error message.
async fn read_config(node: &RealNode, kubeconfig: &Path, arguments: &[String]) -> Result<Value> {
    let record = node.dir().join("recording.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
    command.args(["snapshot", "--node-name", node.name(), "--record"]).arg(&record);
    command.arg("--kubeconfig").arg(kubeconfig).args(Agent::places(node)).args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let recording: Value = serde_json::from_slice(&std::fs::read(record)?)?;
    ensure!(recording.get("configProblems").is_none(), "{}", recording["configProblems"]);
    Ok(recording["config"].clone())
}

/// Returns the error message; fails if the configuration was read.
async fn config_error(node: &RealNode, kubeconfig: &Path, arguments: &[String]) -> Result<String> {
    let config = read_config(node, kubeconfig, arguments).await?;
    Ok(config["error"].as_str().with_context(|| format!("it was read: {config}"))?.to_owned())
}

/// Starts a node whose kubelet has a file, drop-ins in nested directories, and flags that override both.
async fn layered(cluster: &Cluster) -> Result<RealNode> {
    let drop_ins = cluster.dir().join(NODE).join("kubelet/conf.d");
    std::fs::create_dir_all(drop_ins.join("15"))?;
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    for (file, text) in [
        ("10-first.conf", "topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n"),
        ("15/last.conf", "topologyManagerPolicy: single-numa-node\nkubeReserved: {cpu: 500m}\n"),
        ("20-options.conf", "topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"16\"}\n"),
        ("30-more.conf", "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}\n"),
        ("40-gone.conf", "topologyManagerScope: null\nreservedSystemCPUs: null\n"),
        ("50-unused.yaml", "topologyManagerPolicy: none\n"),
    ] {
        std::fs::write(drop_ins.join(file), format!("{head}{text}"))?;
    }
    let setup = RealNode::on(NODE)?.kubelet("authorization", authorization());
    setup
        .flag("--config-dir=/var/lib/kubelet/conf.d")
        // Replaces the files' map, so it repeats the machine's memory reservation.
        .flag("--system-reserved=cpu=1200m,memory=924Mi")
        .flag("--topology_manager_scope")
        .flag("pod")
        .start(cluster)
        .await
}

/// Creates a `/proc` with only this node's kubelet, since tests run concurrently.
fn proc_of(node: &RealNode) -> Result<PathBuf> {
    let proc = node.dir().join("processes");
    std::fs::create_dir_all(&proc)?;
    let pid = node.kubelet_pid()?.to_string();
    std::os::unix::fs::symlink(Path::new("/proc").join(&pid), proc.join(&pid))?;
    Ok(proc)
}

#[tokio::test]
async fn every_source_gives_the_same_configuration() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = layered(&cluster).await?;
    let agent = service_account(&parts, &cluster, true).await?;
    let expected = until("the kubelet returns its configuration", async || {
        let expected = read_config(&node, &agent, &https(&node)?).await?;
        ensure!(expected["answer"].is_object(), "{expected}");
        Ok(expected)
    })
    .await?;
    ensure!(expected["answer"]["topologyManagerPolicy"] == "single-numa-node", "{expected}");
    ensure!(expected["answer"]["topologyManagerScope"] == "pod", "{expected}");
    let options = json!({"max-allowable-numa-nodes": "16", "prefer-closest-numa-nodes": "true"});
    ensure!(expected["answer"]["topologyManagerPolicyOptions"] == options, "{expected}");
    ensure!(expected["answer"]["reservedCpuCount"] == 2, "500m and 1200m: {expected}");

    // The kubelet's port is not the default one; it is read from the Node.
    let address = ["--set=kubelet.address=127.0.0.1".to_owned()];
    let of_node = read_config(&node, &agent, &[&https(&node)?[..], &address].concat()).await?;
    ensure!(of_node == expected, "{of_node}\n{expected}");

    // From the files that the kubelet's command line refers to.
    let proc = format!("--set=host.proc={}", proc_of(&node)?.display());
    let strings = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    let read = read_config(&node, &agent, &strings(&["--kubelet-config-source=file", &proc])).await?;
    ensure!(read == expected, "{read}\n{expected}");
    let auto = read_config(&node, &agent, &strings(&[&proc])).await?;
    ensure!(auto == expected, "{auto}\n{expected}");

    // Without the command line: the directory and the flags' values are configured by hand.
    let dir = format!("--set=kubelet.configDir={}", node.kubelet_dir().join("conf.d").display());
    let mut rest = read_config(&node, &agent, &strings(&["--kubelet-config-source=file", &dir])).await?;
    ensure!(rest["answer"]["topologyManagerScope"] == "container", "no flag is known: {rest}");
    let by_hand = ["--topology-manager-policy=single-numa-node", "--topology-manager-scope=pod"];
    let arguments = strings(&["--kubelet-config-source=file", &dir, by_hand[0], by_hand[1]]);
    rest = read_config(&node, &agent, &arguments).await?;
    ensure!(rest["answer"]["reservedCpuCount"] == 1, "{rest}");
    rest["answer"]["reservedCpuCount"] = json!(2);
    ensure!(rest == expected, "{rest}\n{expected}");

    // Keys and feature gates of a future kubelet. This one would not start with them.
    let mut newer: Value = serde_json::from_slice(&std::fs::read(node.kubelet_dir().join("config.yaml"))?)?;
    newer["featureGates"]["FromTheFuture"] = json!(true);
    newer["newKey"] = json!([{"a": null}]);
    newer["systemReserved"]["cpu"] = json!("1200m");
    let file = node.dir().join("newer.yaml");
    std::fs::write(&file, newer.to_string())?;
    let file = format!("--kubelet-config={}", file.display());
    let arguments = strings(&["--kubelet-config-source=file", &file, &dir, by_hand[0], by_hand[1]]);
    let read = read_config(&node, &agent, &arguments).await?;
    ensure!(read == expected, "{read}\n{expected}");

    // Without the files, the kubelet is queried.
    let nowhere = "--kubelet-config=/nowhere/config.yaml".to_owned();
    let auto = read_config(&node, &agent, &[vec![nowhere], https(&node)?[1..].to_vec()].concat()).await?;
    ensure!(auto == expected, "{auto}\n{expected}");
    Ok(())
}

#[tokio::test]
async fn errors_of_the_kubelets_port_say_what_to_do() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on(NODE)?.kubelet("authorization", authorization()).start(&cluster).await?;
    let agent = service_account(&parts, &cluster, false).await?;
    let arguments = https(&node)?;
    let without = |key: &str| -> Vec<String> {
        arguments.iter().filter(|argument| !argument.contains(key)).cloned().collect()
    };

    let error = config_error(&node, &agent, &arguments).await?;
    ensure!(
        error.contains("rejects GET /configz (Forbidden (user=system:serviceaccount:numacast:numacast-agent"),
        "{error}"
    );
    ensure!(error.contains("RBAC must allow `get` on nodes/configz; kubelets before 1.33"), "{error}");
    let error = config_error(&node, &agent, &without("caFile")).await?;
    let (fault, fingerprint) = error.split_once("SHA-256 fingerprint ").context(error.clone())?;
    ensure!(fault.contains("is self-signed: set `kubelet.caFile`"), "{error}");
    // With the fingerprint from the error, the certificate needs neither its CA nor its name.
    let fingerprint = fingerprint.split(' ').next().unwrap_or_default();
    let accept = |fingerprint: &str| {
        let pin = format!("--set=kubelet.certificateFingerprints=['{fingerprint}']");
        let rest = arguments.iter().filter(|it| !it.contains("caFile") && !it.contains("serverName"));
        rest.cloned().chain([pin]).collect::<Vec<_>>()
    };
    let pinned = config_error(&node, &agent, &accept(fingerprint)).await?;
    ensure!(pinned.contains("rejects GET /configz (Forbidden"), "the certificate is accepted: {pinned}");
    let wrong = config_error(&node, &agent, &accept(&"00".repeat(32))).await?;
    ensure!(wrong.contains("which has only others") && wrong.contains(fingerprint), "{wrong}");
    let error = config_error(&node, &agent, &without("serverName")).await?;
    ensure!(error.contains("has another name") && error.contains("set `kubelet.serverName`"), "{error}");
    let stranger = cluster.kubeconfig_of("stranger", "no-token-of-anybody")?;
    let error = config_error(&node, &stranger, &arguments).await?;
    ensure!(error.contains("does not accept our credentials (401)"), "{error}");
    // At the Node's address nothing listens on this machine, or another kubelet does.
    let error = config_error(&node, &agent, &without("address")).await?;
    ensure!(error.contains(&format!(":{}", port(&node)?)), "the Node's own port: {error}");
    Ok(())
}

fn port(node: &RealNode) -> Result<Value> {
    let config: Value = serde_json::from_slice(&std::fs::read(node.kubelet_dir().join("config.yaml"))?)?;
    Ok(config["port"].clone())
}

/// Returns an attribute of the published object.
async fn attribute(node: &RealNode, name: &str) -> Result<String> {
    let content = nrt::read(&node.client(), node.name()).await?.content;
    let all = content["attributes"].as_array().into_iter().flatten();
    let found = all.into_iter().find(|attribute| attribute["name"] == name);
    let value = found.and_then(|attribute| attribute["value"].as_str());
    Ok(value.with_context(|| format!("{name} is not there: {}", content["attributes"]))?.to_owned())
}

#[tokio::test]
async fn the_first_object_waits_for_its_policies() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let mut node = RealNode::on(NODE)?.kubelet("authorization", authorization()).start(&cluster).await?;
    let kubeconfig = service_account(&parts, &cluster, false).await?;
    node.set_agent_kubeconfig(kubeconfig);
    let arguments = https(&node)?;
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.push("--set=fingerprint.view=none");
    let mut agent = Agent::start(&node, &arguments)?;
    until("the agent logs what it waits for", async || {
        agent.still_runs()?;
        let log = std::fs::read_to_string(node.dir().join("agent.log"))?;
        ensure!(log.contains("the object waits for its policies"), "{log}");
        ensure!(log.contains("nodes/configz"), "{log}");
        Ok(())
    })
    .await?;
    ensure!(nrt::read(&node.client(), node.name()).await.is_err(), "it did not wait");
    grant(&parts, &cluster, true).await?;
    agent.matches_oracle(&node).await?;
    let first = attribute(&node, "topologyManagerPolicy").await;
    // On a slow machine 30 s have passed; then it is published without policies, and the agent logs that.
    let log = std::fs::read_to_string(node.dir().join("agent.log"))?;
    ensure!(first.is_ok() || log.contains("so the object has none"), "{first:?}: {log}");
    until("the policies are there", async || {
        ensure!(attribute(&node, "topologyManagerPolicy").await? == "best-effort");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_changed_file_is_used_once_the_kubelet_restarts() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on(NODE)?.start(&cluster).await?;
    let mut agent = Agent::start(&node, &["--poll", "200ms", "--log-level", "debug"])?;
    agent.matches_oracle(&node).await?;
    ensure!(attribute(&node, "topologyManagerPolicy").await? == "best-effort");

    let file = node.kubelet_dir().join("config.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    config["topologyManagerPolicy"] = json!("restricted");
    std::fs::write(&file, config.to_string())?;
    let scans = || -> Result<usize> {
        let log = std::fs::read_to_string(node.dir().join("agent.log"))?;
        Ok(log.matches("read Everything in").count())
    };
    let before = scans()?;
    until("the agent has scanned everything again", async || {
        agent.still_runs()?;
        let scans = scans()?;
        ensure!(scans > before + 2, "{scans} scans");
        Ok(())
    })
    .await?;
    node.run(pod("a").cpus(2).memory("1Gi")).await?;
    agent.matches_oracle(&node).await?;
    ensure!(
        attribute(&node, "topologyManagerPolicy").await? == "best-effort",
        "the kubelet has not read it yet"
    );

    // A restarted agent does not use it either: it cannot know what the kubelet read, but the object has the
    // old policy.
    drop(agent);
    let mut agent = Agent::start(&node, &["--poll", "200ms", "--log-level", "debug"])?;
    until("the agent logs that the file changed", async || {
        agent.still_runs()?;
        let log = std::fs::read_to_string(node.dir().join("agent.log"))?;
        ensure!(log.contains("config.yaml changed after the kubelet started"), "{log}");
        Ok(())
    })
    .await?;
    node.delete("a").await?;
    agent.matches_oracle(&node).await?;
    ensure!(attribute(&node, "topologyManagerPolicy").await? == "best-effort", "the agent uses the file");

    node.restart_kubelet(Stop::Term).await?;
    until("the new policy is published", async || {
        agent.still_runs()?;
        let policy = attribute(&node, "topologyManagerPolicy").await?;
        ensure!(policy == "restricted", "it is {policy}");
        Ok(())
    })
    .await?;
    agent.matches_oracle(&node).await
}
