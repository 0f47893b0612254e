//! `numacast doctor`: each fault is planted in a real cluster, found, and mended by the command that is printed, if there
//! is one. Nothing is found before and after.

mod plants;
mod world;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::wait::until;
use crate::support::{Needs, Parts};
use plants::{Plant, plants};
use world::{World, checks_of};

#[tokio::test]
async fn every_planted_fault_is_found_and_mended() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    world.is_well().await?;
    for plant in plants() {
        let check = plant.check;
        planted(&world, &plant).await.with_context(|| format!("{check} in {}", plant.place))?;
    }
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
    ensure!(report["findings"] == serde_json::json!([]), "{report:#}");

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
