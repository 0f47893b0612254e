//! Nudges, with only the rights that the chart grants and under its admission policies.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::Controller;
use super::fleet::{Fleet, names, object, objects};
use crate::support::chart::{Chart, POLICIES, RELEASE, RIGHTS};
use crate::support::wait::{pause, until};
use crate::support::{Cluster, Needs, Parts, tokens};

const ACCOUNT: &str = "numacast-controller";
const NUDGE: &str = "numacast.io/nudge";
/// The first object by name, a large one, since the policy compares all of it.
const FIRST: &str = "a-large-one";

#[tokio::test]
async fn rejected_pods_cause_nudges_of_one_object() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let fleet = Fleet::new(&cluster).await?;
    let nodes = names("worker", 3);
    fleet.add_nodes(&[&nodes[..], &[FIRST.to_owned()]].concat()).await?;
    fleet.add_objects(&nodes, "numacast").await?;
    fleet.add_object(large(), "numacast").await?;
    let admin = cluster.client();
    let chart = Chart::render(&parts, &json!({}))?;
    for kinds in [&RIGHTS[..], &POLICIES, &["Lease"]] {
        chart.install(&admin, kinds).await?;
    }
    let token = tokens::on_node(&admin, RELEASE, ACCOUNT, &nodes[0]).await?;
    until_policies_hold(&cluster.client_of("policy", &token).await?).await?;
    let before = all(&admin).await?;
    let event = objects(&admin).get_metadata(FIRST).await?;
    eprintln!(
        "the event of a change of an object has {} bytes of metadata",
        serde_json::to_vec(&event)?.len()
    );
    let mut controller =
        Controller::start("controller", &cluster, &cluster.kubeconfig_of(ACCOUNT, &token)?, &[])?;

    // A pod that waits for another reason causes no nudge.
    add_pod(&fleet, "large", "0/3 nodes are available: 3 Insufficient cpu.").await?;
    controller.shows("numacast_rejected_pods", 0.0).await?;
    ensure!(controller.metric("numacast_nudges_total").await? == 0.0);

    add_pod(&fleet, "db", "0/3 nodes are available: 3 cannot align pod.").await?;
    controller.shows("numacast_rejected_pods", 1.0).await?;
    controller.shows("numacast_nudges_total", 2.0).await?;
    let mut now = all(&admin).await?;
    let first = now.get_mut(FIRST).context("the first object is gone")?;
    let nudge = first["metadata"]["annotations"].as_object_mut().and_then(|all| all.remove(NUDGE));
    ensure!(nudge.is_some(), "{first}");
    for (name, object) in &mut now {
        // The nudge changed the managed fields, and annotated an object without annotations.
        for key in ["annotations", "managedFields", "resourceVersion"] {
            let metadata = object["metadata"].as_object_mut().context("no metadata")?;
            let (is, was) = (metadata.remove(key), before[name]["metadata"].get(key));
            ensure!(name == FIRST || is.as_ref() == was, "{name}: {key}");
        }
        let mut old = before[name].clone();
        let metadata = old["metadata"].as_object_mut().context("no metadata")?;
        metadata.retain(|key, _| !["annotations", "managedFields", "resourceVersion"].contains(&&**key));
        ensure!(*object == old, "{object} is not {old}");
    }

    // Once the pod is bound, no pod is left to nudge for.
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "db"},
                         "target": {"apiVersion": "v1", "kind": "Node", "name": nodes[0]}});
    let pods = fleet.namespaced::<Pod>();
    let _: Value = pods.create_subresource("binding", "db", &PostParams::default(), &binding).await?;
    controller.shows("numacast_rejected_pods", 0.0).await?;
    let nudges = controller.metric("numacast_nudges_total").await?;
    pause("no further nudge", Duration::from_secs(3)).await;
    ensure!(controller.metric("numacast_nudges_total").await? == nudges);
    ensure!(
        controller
            .metric("numacast_controller_errors_total{operation=\"nudge\",kind=\"rejected\"}")
            .await
            .is_err()
    );
    let errors =
        controller.metric("numacast_controller_errors_total{operation=\"request\",kind=\"forbidden\"}").await;
    ensure!(errors.is_err(), "{}", controller.process.log_tail());
    by_the_index(&admin).await
}

/// An object of 8 zones with 60 resources each.
fn large() -> Value {
    let resource = |n: usize| json!({"name": format!("example.com/device-{n:02}"), "capacity": "8", "allocatable": "8", "available": "4"});
    let resources: Vec<Value> = (0..60).map(resource).collect();
    let zone =
        |id: usize| json!({"name": format!("node-{id}"), "type": "Node", "resources": resources.clone()});
    let mut large = object(FIRST);
    large["zones"] = (0..8).map(zone).collect();
    large
}

/// Creates a pod without a node that the scheduler rejected with this message.
async fn add_pod(fleet: &Fleet<'_>, name: &str, message: &str) -> Result<()> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "pause:latest"}]},
    }))?;
    let pods = fleet.namespaced::<Pod>();
    pods.create(&PostParams::default(), &pod).await?;
    let status = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message},
    ]}});
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}

async fn until_policies_hold(controller: &Client) -> Result<()> {
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    until("the policy is in force", async || {
        let result = objects(controller).patch(FIRST, &dry, &label).await;
        let error = result.err().context("the controller may set a label")?;
        ensure!(error.to_string().contains("ValidatingAdmissionPolicy"), "{error}");
        Ok(())
    })
    .await
}

async fn all(client: &Client) -> Result<BTreeMap<String, Value>> {
    let all = objects(client).list(&ListParams::default()).await?.items.into_iter();
    let named = |object: DynamicObject| {
        let name = object.metadata.name.clone().unwrap_or_default();
        Ok((name, serde_json::to_value(object)?))
    };
    all.map(named).collect()
}

/// Checks that the API server listed the unbound pods by index from its cache.
async fn by_the_index(client: &Client) -> Result<()> {
    let request = tonic::codegen::http::Request::get("/metrics").body(Vec::new())?;
    let metrics = client.request_text(request).await?;
    // Up to 1.36, and from 1.37 on.
    let names = ["apiserver_cache_list_total{", "apiserver_storage_list_total{"];
    let lists: Vec<&str> =
        metrics.lines().filter(|line| names.iter().any(|name| line.starts_with(name))).collect();
    let of_pods = |line: &&&str| line.contains("pods\"") && line.contains("spec.nodeName");
    ensure!(lists.iter().find(of_pods).is_some(), "{lists:#?}");
    Ok(())
}
