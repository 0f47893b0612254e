//! `numacast doctor`: each fault is planted in a real cluster, found, and mended by the command that is printed, if there
//! is one. Nothing is found before and after.

mod plants;
mod world;

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::pictures;
use crate::support::cluster::ApiServerOptions;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, nrt};
use plants::{Plant, plants};
use world::{World, checks_of};

#[tokio::test]
async fn every_planted_fault_is_found_and_mended() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    world.is_well().await?;
    let mut failures = Vec::new();
    for plant in plants() {
        if let Err(error) = planted(&world, &plant).await {
            failures.push(format!("{} in {}: {error:#}", plant.check, plant.place));
            // The next ones need a cluster that is well.
            let restored = async { world.run(&plant.restore).await.and(world.is_well().await) };
            restored.await.with_context(|| failures.join("\n"))?;
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

async fn planted(world: &World, plant: &Plant) -> Result<()> {
    world.run(&plant.plant).await?;
    let report = until("the fault is found", async || {
        let (code, report) = world.doctor(&[]).await?;
        ensure!(code == Some(1) && checks_of(&report).contains(plant.check), "exit {code:?}: {report:#}");
        Ok(report)
    })
    .await?;
    let expected: BTreeSet<&str> = plant.also.iter().copied().chain([plant.check]).collect();
    let found = checks_of(&report);
    ensure!(found.is_subset(&expected), "also found: {:?}", found.difference(&expected));
    let mut findings = report["findings"].as_array().into_iter().flatten();
    let finding = findings.find(|finding| finding["check"] == plant.check).context("no finding")?;
    ensure!(finding["place"] == plant.place, "{finding:#}");
    ensure!(finding.to_string().to_lowercase().contains(&plant.order.to_lowercase()), "{finding:#}");
    match finding["mend"]["run"].as_str() {
        Some(command) => {
            ensure!(plant.has_command, "{command} is printed, and not known to the test");
            mended_by_command(world, plant, finding, command).await?;
        }
        None => ensure!(!plant.has_command, "no command is printed: {finding:#}"),
    }
    world.run(&plant.restore).await?;
    world.is_well().await
}

/// Runs the printed command; what it mends is not found any more.
async fn mended_by_command(world: &World, plant: &Plant, finding: &Value, command: &str) -> Result<()> {
    world.run(command).await?;
    // The rest is what a DaemonSet's controller, a kubelet or an agent would do.
    world.run(plant.follow_up).await?;
    until("the command has mended it", async || {
        let (_, report) = world.doctor(&[]).await?;
        let mut findings = report["findings"].as_array().into_iter().flatten();
        let is_same = |one: &Value| one["check"] == finding["check"] && one["place"] == finding["place"];
        ensure!(!findings.any(is_same), "{command}\n{report:#}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_pictures_show_some_of_them() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    world.is_well().await?;
    let shown = ["AgentNotReady", "ObjectsNewerThanScheduler", "PolicyNotDenied", "PoolDiffers"];
    for plant in plants().iter().filter(|plant| shown.contains(&plant.check)) {
        world.run(&plant.plant).await?;
    }
    until("all are found", async || {
        let (_, report) = world.doctor(&[]).await?;
        ensure!(checks_of(&report) == shown.into(), "{report:#}");
        Ok(())
    })
    .await?;
    pictures::compare(&world.kubeconfig(), "doctor", "doctor", str::to_owned).await
}

#[tokio::test]
async fn what_cannot_be_read_is_said_with_the_permission_it_needs() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    world.run("kubectl create clusterrole reader --verb list --resource nodes,pods,daemonsets.apps").await?;
    world.run("kubectl create clusterrolebinding reader --clusterrole reader --user reader").await?;
    let reader = world.kubeconfig_of("reader")?;
    let needs = |report: &Value| -> BTreeSet<String> {
        let unchecked = report["unchecked"].as_array().into_iter().flatten();
        unchecked.filter_map(|one| Some(one["needs"].as_str()?.to_owned())).collect()
    };
    let objects = "`list` of noderesourcetopologies.topology.node.k8s.io";
    let report = until("the permissions hold", async || {
        let (code, report) = world.doctor_as(&reader, &[]).await?;
        ensure!(code == Some(2) && needs(&report).contains(objects), "exit {code:?}: {report:#}");
        ensure!(!needs(&report).contains("`list` of nodes"), "{report:#}");
        Ok(report)
    })
    .await?;
    let expected = [
        "`get` of configmaps",
        "`get` of customresourcedefinitions.apiextensions.k8s.io",
        "`list` of validatingadmissionpolicies.admissionregistration.k8s.io",
        "`list` of validatingadmissionpolicybindings.admissionregistration.k8s.io",
        objects,
    ];
    ensure!(needs(&report) == expected.map(str::to_owned).into(), "{report:#}");
    ensure!(report["findings"] == json!([]), "{report:#}");

    // With the essential permissions, the rest changes no exit status.
    let rule = "kubectl create clusterrole objects --verb list --resource noderesourcetopologies.topology.node.k8s.io";
    world.run(rule).await?;
    world.run("kubectl create clusterrolebinding objects --clusterrole objects --user reader").await?;
    until("the exit status is 0", async || {
        let (code, report) = world.doctor_as(&reader, &[]).await?;
        ensure!(code == Some(0) && !needs(&report).contains(objects), "exit {code:?}: {report:#}");
        Ok(())
    })
    .await?;

    let nobody = world.dir().join("nobody.kubeconfig");
    let (code, _) = world.doctor_as(&nobody, &[]).await.unwrap_or((None, Value::Null));
    ensure!(code == Some(2), "without a kubeconfig: {code:?}");
    Ok(())
}

#[tokio::test]
async fn what_kubelets_run_with_is_compared_with_their_objects() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let arguments = &["--kubelet-preferred-address-types=InternalIP"];
    let cluster =
        Cluster::start_with(&parts, &ApiServerOptions { arguments, ..ApiServerOptions::default() }).await?;
    // The API server has no certificate for kubelets here.
    let node = RealNode::on("two-by-eight")?
        .kubelet("authentication", json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false}}))
        .kubelet("authorization", json!({"mode": "AlwaysAllow"}))
        .kubelet("address", json!("0.0.0.0"))
        .kubelet("memoryManagerPolicy", json!("None"))
        .kubelet("reservedMemory", json!([{"numaNode": 0, "limits": {"memory": "3Gi"}}]))
        .start(&cluster)
        .await?;
    let name = node.name();
    let published = async |memory_policy: &str| {
        let attribute = json!({"name": "memoryManagerPolicy", "value": memory_policy});
        let object = json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
                            "metadata": {"name": name}, "attributes": [attribute], "zones": []});
        let params = PatchParams::apply("numacast").force();
        nrt::api(&cluster.client()).patch(name, &params, &Patch::Apply(&object)).await?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command
            .args(["doctor", "--output", "json", "--kubelets", "1", "--kubeconfig"])
            .arg(cluster.admin_kubeconfig());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok::<Value, anyhow::Error>(serde_json::from_slice(&output.stdout)?)
    };
    let found = |report: &Value, check: &str, place: &str| {
        let mut findings = report["findings"].as_array().into_iter().flatten();
        findings.any(|finding| finding["check"] == check && finding["place"] == place)
    };
    let (object, node) = (format!("NodeResourceTopology {name}"), format!("Node {name}"));
    let report = published("Static").await?;
    ensure!(
        found(&report, "PoliciesStale", &object) && found(&report, "ReservedMemory", &node),
        "{report:#}"
    );
    let report = published("None").await?;
    ensure!(
        !found(&report, "PoliciesStale", &object) && found(&report, "ReservedMemory", &node),
        "{report:#}"
    );
    Ok(())
}
