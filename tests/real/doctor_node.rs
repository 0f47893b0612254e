//! `numacast doctor node` beside a real kubelet: what keeps it from starting is found, does keep it from starting, and
//! is mended as the finding says. Nothing is found on a node that is well.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use numacast_sim::machine::Device;
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, Stop, pod};

const NODE: &str = "two-by-eight";
const NIC: &str = "example.com/nic";

/// Returns the findings.
async fn doctor(node: &RealNode, more: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
    command.args(["doctor", "node", "--output", "json", "--node-name", node.name()]);
    command.args(Agent::places(node)).args(more);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let findings = report["findings"].as_array().context("no findings")?.clone();
    let code = i32::from(!findings.is_empty());
    ensure!(output.status.code() == Some(code), "{report}");
    Ok(findings)
}

fn names(findings: &[Value]) -> Vec<&str> {
    findings.iter().filter_map(|finding| finding["check"].as_str()).collect()
}

/// Returns the finding of a check.
async fn finding(node: &RealNode, check: &str, more: &[&str]) -> Result<Value> {
    let findings = doctor(node, more).await?;
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.cloned().with_context(|| format!("{check} is not found: {findings:#?}"))
}

async fn is_well(node: &RealNode) -> Result<()> {
    let findings = doctor(node, &[]).await?;
    ensure!(findings.is_empty(), "{findings:#?}");
    Ok(())
}

fn configure(node: &RealNode, keys: &Value) -> Result<()> {
    let file = node.kubelet_dir().join("config.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let keys = keys.as_object().context("no keys")?.clone();
    config.as_object_mut().context("no configuration")?.extend(keys);
    Ok(std::fs::write(file, config.to_string())?)
}

/// Does what a finding says. The kubelet is stopped and started by the caller, so `systemctl` does nothing.
fn mend(node: &RealNode, finding: &Value) -> Result<()> {
    if let Some(command) = finding["mend"]["run"].as_str() {
        let output =
            Command::new("sh").args(["-ec", &format!("systemctl() {{ :; }}; {command}")]).output()?;
        ensure!(output.status.success(), "{command}: {output:?}");
        return Ok(());
    }
    let text = finding["mend"]["do"].as_str().context("neither a command nor a text")?;
    if let Some((_, rest)) = text.split_once("Set `") {
        let setting = rest.split('`').next().unwrap_or_default();
        return configure(node, &serde_saphyr::from_str(setting)?);
    }
    let words: Vec<&str> = text.split(' ').collect();
    let ["Remove", option, "from", options, ..] = words[..] else { bail!("what to do? {text}") };
    let file = node.kubelet_dir().join("config.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    config[options].as_object_mut().context("no options")?.remove(option);
    Ok(std::fs::write(file, config.to_string())?)
}

/// Starts the kubelet and waits until it has ended.
async fn does_not_start(node: &mut RealNode) -> Result<()> {
    node.launch_kubelet()?;
    until("the kubelet has ended", async || {
        ensure!(node.kubelet_still_runs().is_err(), "it runs");
        Ok(())
    })
    .await?;
    node.stop_kubelet(Stop::Term).or(Ok(()))
}

/// The kubelet is stopped: expects a finding and that the kubelet does not start, and mends what is found until it does.
async fn mended(node: &mut RealNode, check: &str) -> Result<()> {
    finding(node, check, &[]).await?;
    does_not_start(node).await.with_context(|| check.to_owned())?;
    for _ in 0..4 {
        let findings = doctor(node, &[]).await?;
        // The kubelet is not to run yet.
        let others =
            findings.iter().find(|it| it["check"] != "SocketMissing" && it["check"] != "KubeletDown");
        let Some(next) = others else { break };
        mend(node, next)?;
    }
    node.start_kubelet().await.with_context(|| check.to_owned())?;
    is_well(node).await.with_context(|| check.to_owned())
}

#[tokio::test]
async fn nothing_is_found_beside_a_real_kubelet() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on(NODE)?.start(&cluster).await?;
    is_well(&node).await?;
    node.run(pod("a").cpus(2).memory("1Gi").hugepages("2Mi", "64Mi").device(NIC, 1)).await?;
    is_well(&node).await?;
    node.delete("a").await
}

#[tokio::test]
async fn configurations_that_keep_a_kubelet_from_starting_are_found() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on(NODE)?.start(&cluster).await?;
    let file = node.kubelet_dir().join("config.yaml");
    let good = std::fs::read(&file)?;
    let memory = |entries: Value| json!({"reservedMemory": entries});
    let options = |options: Value| json!({"cpuManagerPolicyOptions": options, "reservedSystemCPUs": "0,4"});
    for (check, keys) in [
        ("ReservedMemorySum", memory(json!([{"numaNode": 0, "limits": {"memory": "512Mi"}}]))),
        (
            "ReservedMemorySum",
            memory(json!([{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}}])),
        ),
        ("ReservedMemorySum", json!({"evictionHard": {"memory.available": "1%"}})),
        ("ReservedMemoryNode", memory(json!([{"numaNode": 2, "limits": {"memory": "1Gi"}}]))),
        ("ReservedCpusOffline", json!({"reservedSystemCPUs": "0,99"})),
        ("ReservedCpusMissing", json!({"reservedSystemCPUs": ""})),
        ("PolicyUnknown", json!({"topologyManagerPolicy": "single-numa"})),
        ("PolicyUnknown", json!({"topologyManagerScope": "node"})),
        ("OptionsInvalid", options(json!({"full-pcpu-only": "true"}))),
        ("OptionsInvalid", options(json!({"full-pcpus-only": "yes"}))),
        (
            "OptionsInvalid",
            options(
                json!({"prefer-align-cpus-by-uncorecache": "true", "distribute-cpus-across-numa": "true"}),
            ),
        ),
        ("OptionsInvalid", json!({"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "4"}})),
        ("CheckpointOfOtherPolicy", json!({"cpuManagerPolicy": "none"})),
        (
            "OptionsInvalid",
            json!({"cpuManagerPolicy": "none", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
        ),
        ("CheckpointOfOtherPolicy", json!({"memoryManagerPolicy": "None"})),
        ("MemoryCheckpointOutdated", memory(json!([{"numaNode": 1, "limits": {"memory": "1Gi"}}]))),
    ] {
        node.stop_kubelet(Stop::Term)?;
        configure(&node, &keys)?;
        mended(&mut node, check).await.with_context(|| keys.to_string())?;
        // The next fault is planted in what was good at first.
        node.stop_kubelet(Stop::Term)?;
        std::fs::write(&file, &good)?;
        node.remove_checkpoints()?;
        node.start_kubelet().await?;
    }
    Ok(())
}

#[tokio::test]
async fn checkpoints_that_keep_a_kubelet_from_starting_are_found() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on(NODE)?.start(&cluster).await?;
    for file in ["cpu_manager_state", "memory_manager_state"] {
        node.stop_kubelet(Stop::Term)?;
        std::fs::write(node.kubelet_dir().join(file), "{\"policyName\":")?;
        mended(&mut node, "CheckpointInvalid").await?;
    }

    // As after a boot with a little less memory.
    node.stop_kubelet(Stop::Term)?;
    let mut machine = node.machine().clone();
    machine.nodes[0].memory = (machine.nodes[0].memory.ceil() - 40 * 1024).into();
    machine.write_tree(node.dir())?;
    mended(&mut node, "MemoryCheckpointOutdated").await?;

    // A CPU went offline while the kubelet was down.
    node.stop_kubelet(Stop::Term)?;
    machine.nodes[1].cpus = machine.nodes[1].cpus.difference(&"15".parse()?);
    machine.write_tree(node.dir())?;
    mended(&mut node, "CpuCheckpointOutdated").await?;

    // A pod has a CPU that is to be reserved.
    node.run(pod("a").cpus(2).memory("1Gi")).await?;
    let state: Value = serde_json::from_slice(&std::fs::read(node.kubelet_dir().join("cpu_manager_state"))?)?;
    let entries = state["entries"].as_object().and_then(|all| all.values().next()).context("no entries")?;
    let cpus =
        entries.as_object().and_then(|all| all.values().next()).and_then(Value::as_str).context("no CPUs")?;
    node.stop_kubelet(Stop::Term)?;
    configure(&node, &json!({"reservedSystemCPUs": format!("0,8,{cpus}")}))?;
    mended(&mut node, "CpuCheckpointOutdated").await?;
    node.delete("a").await
}

#[tokio::test]
async fn more_numa_nodes_than_a_kubelet_accepts_are_found() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on("gb200")?.start(&cluster).await?;
    is_well(&node).await?;
    node.stop_kubelet(Stop::Term)?;
    configure(&node, &json!({"topologyManagerPolicyOptions": {}}))?;
    mended(&mut node, "TooManyNumaNodes").await
}

#[tokio::test]
async fn what_changes_beside_a_running_kubelet_is_found() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on(NODE)?.start(&cluster).await?;

    // Huge pages, and a CPU that comes back.
    let mut machine = node.machine().clone();
    for size in ["2Mi", "1Gi"] {
        machine.nodes[0].hugepages.entry(size.to_owned()).and_modify(|pages| *pages += 2);
        machine.write_tree(node.dir())?;
        let found = finding(&node, "HugePagesChanged", &[]).await?;
        node.stop_kubelet(Stop::Term)?;
        mend(&node, &found)?;
        node.start_kubelet().await?;
        is_well(&node).await?;
    }
    let cpus = machine.nodes[1].cpus.clone();
    machine.nodes[1].cpus = cpus.difference(&"15".parse()?);
    machine.write_tree(node.dir())?;
    let found = finding(&node, "HardwareChanged", &[]).await?;
    ensure!(
        found["what"].as_str().is_some_and(|what| what.starts_with("the kubelet offers CPUs 15, ")),
        "{found}"
    );
    node.stop_kubelet(Stop::Term)?;
    mend(&node, &found)?;
    node.start_kubelet().await?;
    is_well(&node).await?;

    // The configuration.
    let file = node.kubelet_dir().join("config.yaml");
    configure(&node, &json!({"topologyManagerPolicy": "restricted"}))?;
    ensure!(names(&doctor(&node, &[]).await?) == ["ConfigNotInEffect"]);
    let overrides = ["--topology-manager-policy=restricted", "--topology-manager-scope=pod"];
    finding(&node, "OverrideDiffers", &overrides).await?;
    node.restart_kubelet(Stop::Term).await?;
    is_well(&node).await?;
    std::fs::rename(&file, node.dir().join("elsewhere"))?;
    finding(&node, "ConfigUnreadable", &[]).await?;
    std::fs::rename(node.dir().join("elsewhere"), &file)?;
    is_well(&node).await
}

#[tokio::test]
async fn a_kubelet_that_does_not_respond_is_found() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on(NODE)?.start(&cluster).await?;
    node.signal_kubelet("STOP")?;
    finding(&node, "KubeletSilent", &["--set=kubelet.timeout=500ms"]).await?;
    node.signal_kubelet("CONT")?;
    is_well(&node).await?;

    node.stop_kubelet(Stop::Kill)?;
    finding(&node, "KubeletDown", &[]).await?;
    std::fs::remove_file(node.socket())?;
    finding(&node, "SocketMissing", &[]).await?;
    std::fs::write(node.socket(), "")?;
    let found = finding(&node, "SocketInvalid", &[]).await?;
    mend(&node, &found)?;
    node.start_kubelet().await?;
    is_well(&node).await?;

    let registration = node.kubelet_dir().join("device-plugins/kubelet.sock");
    let other = format!("--kubelet-socket={}", registration.display());
    ensure!(names(&doctor(&node, &[&other]).await?) == ["KubeletTooOld"], "another gRPC server");
    Ok(())
}

#[tokio::test]
async fn devices_of_a_real_kubelet_are_checked() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut node = RealNode::on(NODE)?.start(&cluster).await?;
    let devices =
        node.machine().devices.iter().find(|of| of.resource == NIC).context("no NICs")?.devices.clone();
    let unhealthy: Vec<Device> = devices.iter().map(|it| Device { unhealthy: true, ..it.clone() }).collect();
    node.set_devices(NIC, &unhealthy)?;
    until("no device is healthy", async || finding(&node, "PluginWithoutDevices", &[]).await).await?;
    node.set_devices(NIC, &devices)?;
    until("all devices are healthy", async || is_well(&node).await).await?;
    let lost: Vec<Device> = devices.iter().map(|it| Device { numa: vec![7], ..it.clone() }).collect();
    node.set_devices(NIC, &lost)?;
    until("the devices have moved", async || finding(&node, "DevicesOnUnknownNodes", &[]).await).await?;
    node.set_devices(NIC, &devices)?;
    until("the devices are back", async || is_well(&node).await).await
}

/// In a user namespace that has none left.
#[tokio::test]
async fn a_host_without_inotify_instances_is_found() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on(NODE)?.start(&cluster).await?;
    let none_left = "echo 0 > /proc/sys/user/max_inotify_instances; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "sh", "-ec", none_left])
        .arg(Path::new(env!("CARGO_BIN_EXE_numacast")));
    command.args(["doctor", "node", "--output", "json"]).args(Agent::places(&node));
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let found = report["findings"].as_array().context("no findings")?;
    ensure!(names(found) == ["InotifyExhausted"], "{report}");
    Ok(())
}
