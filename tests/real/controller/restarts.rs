//! Restarts of the chart's scheduler, with only the rights that the chart grants.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::Controller;
use super::fleet::{Fleet, names};
use crate::support::chart::{Chart, RELEASE, RIGHTS};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, tokens};

const ACCOUNT: &str = "numacast-controller";
const POD: &str = "scheduler";
const SETTINGS: [&str; 6] = [
    "--set",
    "controller.daemonSets=[]",
    "--set",
    "controller.scheduler=numacast/component=kube-scheduler",
    "--set",
    "controller.restartScheduler=true",
];

#[tokio::test]
async fn the_scheduler_is_restarted_for_objects_that_it_does_not_know() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let chart = Chart::render(&parts, &json!({"scheduler": {"enabled": true}}))?;
    for kinds in [&RIGHTS[..], &["Lease"]] {
        chart.install(&cluster.client(), kinds).await?;
    }
    let all = names("worker", 2);
    fleet.add_nodes(&all).await?;
    fleet.add_objects(&all[..1], "numacast").await?;
    fleet.run_scheduler(RELEASE, fleet.created(&all[0]).await?).await?;
    let token = tokens::on_node(&cluster.client(), RELEASE, ACCOUNT, &all[0]).await?;
    let kubeconfig = cluster.kubeconfig_of(ACCOUNT, &token)?;
    let series = "numacast_fleet_objects_newer_than_scheduler";

    // Without kube-controller-manager, a budget allows no eviction.
    let budgets = fleet.namespaced::<PodDisruptionBudget>();
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "scheduler"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"component": "kube-scheduler"}}},
    }))?;
    budgets.create(&PostParams::default(), &budget).await?;
    let mut controller = Controller::start("controller", &cluster, &kubeconfig, &SETTINGS)?;
    controller.shows(series, 0.0).await?;
    fleet.add_later(&all[1], &all[0]).await?;
    controller.shows(series, 1.0).await?;
    controller.passes(2).await?;
    ensure!(runs(&fleet).await?, "it was evicted in spite of its PodDisruptionBudget");
    ensure!(controller.process.log_tail().contains("its PodDisruptionBudget does not allow it now"));

    budgets.delete("scheduler", &DeleteParams::default()).await?;
    until("the scheduler's pod is evicted", async || {
        ensure!(!runs(&fleet).await?, "it still runs");
        Ok(())
    })
    .await?;
    let evicted =
        format!("evicted the scheduler's pod numacast/{POD}: it does not know 1 objects: worker-00001");
    let log = controller.process.log_tail();
    ensure!(log.contains(&evicted), "{log}");

    // The next one has read the object.
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    fleet.namespaced::<Pod>().delete(POD, &now).await?;
    fleet.run_scheduler(RELEASE, fleet.created(&all[1]).await?).await?;
    controller.shows(series, 0.0).await?;
    controller.passes(2).await?;
    ensure!(runs(&fleet).await?, "it was evicted without a reason");
    Ok(())
}

/// Returns true if the scheduler's pod exists and is not being deleted.
async fn runs(fleet: &Fleet<'_>) -> Result<bool> {
    let pod = fleet.namespaced::<Pod>().get_opt(POD).await?;
    Ok(pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()))
}
