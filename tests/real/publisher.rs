//! The agent's object in a real cluster with other writers: field managers, owner references, RBAC and
//! Events, which only a real API server can verify. The kubelet is simulated, since it is not under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use numacast::cluster::Cluster as Client;
use numacast::nrt::{NodeResourceTopology, NodeResourceTopologyFields};
use numacast::scheduler::{Fingerprint, pod_hash};
use serde_json::{Value, json};

use crate::refusals::{NO_PORTS, add_node, agent};
use crate::sim_node::Node as SimNode;
use crate::support::chart::{self, AGENT, Chart, RELEASE};
use crate::support::cluster::ApiServerOptions;
use crate::support::neighbours::{Kind, Neighbour};
use crate::support::process::Process;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, tokens};

/// A cluster, a node in it, and the agent with the token, the RBAC rules and the policies of the chart.
struct World {
    agent: Process,
    node: SimNode,
    cluster: Cluster,
    kubectl: PathBuf,
}

impl World {
    /// Starts the agent with `config`, which is also set in the chart's values, and the additional arguments
    /// `with`.
    async fn start(parts: &Parts, cluster: Cluster, config: &[(&str, &str)], with: &[&str]) -> Result<Self> {
        let kubectl = parts.program("kubectl");
        let node = SimNode::start();
        let mut values = json!({});
        let mut arguments: Vec<String> = with.iter().map(|argument| (*argument).to_owned()).collect();
        for (key, value) in config {
            let (section, name) = key.split_once('.').context("no key of two parts")?;
            values[section][name] = serde_saphyr::from_str(value)?;
            arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
        }
        let chart = Chart::render(parts, &json!({ "config": values }))?;
        let kubeconfig = chart::agent_of(&cluster, &chart, "worker").await?;
        let agent = Self::agent(&cluster, &node, &kubeconfig, &arguments)?;
        Ok(Self { agent, node, cluster, kubectl })
    }

    fn agent(
        cluster: &Cluster,
        node: &SimNode,
        kubeconfig: &Path,
        with: &[impl AsRef<str>],
    ) -> Result<Process> {
        let with = with.iter().map(AsRef::as_ref);
        let more: Vec<&str> = NO_PORTS.into_iter().chain(["--log-level", "debug"]).chain(with).collect();
        Process::start("agent", cluster.dir(), agent(node, kubeconfig, "worker", &more))
    }

    async fn object(&self) -> Result<Value> {
        Ok(serde_json::to_value(topologies(&self.cluster).get("worker").await?)?)
    }

    /// Waits until the object has the agent's zones, and `probe` succeeds.
    async fn until(&mut self, what: &str, probe: impl Fn(&Value) -> Result<()>) -> Result<Value> {
        let found = until(what, async || {
            self.agent.still_runs()?;
            let object = self.object().await?;
            let zones = object["zones"].as_array().map_or(0, Vec::len);
            ensure!(zones == 2, "it has {zones} zones");
            let names = |zone: &Value| zone["resources"].as_array().map_or(0, Vec::len);
            ensure!(names(&object["zones"][0]) > 2, "they list too little");
            ensure!(!object.to_string().contains("\"77\""), "an edit was kept: {object}");
            probe(&object)?;
            Ok(object)
        })
        .await;
        found.with_context(|| format!("the end of the agent's log:\n{}", self.agent.log_tail()))
    }

    /// Deletes this object with kubectl; returns the next one.
    async fn recreated(&mut self, object: &Value) -> Result<Value> {
        self.kubectl(&["delete", "noderesourcetopologies", "worker"]).await?;
        let uid = &object["metadata"]["uid"];
        self.until("the object is recreated", |next| {
            ensure!(next["metadata"]["uid"] != *uid, "it is the same");
            Ok(())
        })
        .await
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        run(&self.kubectl, &self.cluster, arguments, &[]).await
    }
}

async fn run(
    kubectl: &PathBuf,
    cluster: &Cluster,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<String> {
    let mut command = Command::new(kubectl);
    command.arg("--cache-dir").arg(cluster.dir().join("cache")).args(arguments);
    command.env("KUBECONFIG", cluster.admin_kubeconfig()).envs(environment.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(output.status.success(), "kubectl {arguments:?}: {out}{err}");
    Ok(out)
}

/// Starts a cluster with the Node `worker`.
async fn with_node(parts: &Parts) -> Result<Cluster> {
    let cluster = Cluster::start(parts).await?;
    add_node(&cluster).await?;
    Ok(cluster)
}

fn topologies(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology");
    Api::all_with(cluster.client(), &ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies"))
}

/// Creates an object as NFD leaves it: another manager's fields, the deprecated policies, and a Namespace as
/// the owner. It also has RTE's annotation.
async fn leave_behind(cluster: &Cluster) -> Result<()> {
    let namespace = Api::<Namespace>::all(cluster.client()).get("default").await?;
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": "worker",
            "annotations": {"topology.node.k8s.io/fingerprint": "pfp0v001ef46db3751d8e999", "note": "mine"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": namespace.metadata.uid},
            ],
        },
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [{"name": "node-0", "type": "Node", "resources": [
            {"name": "cpu", "capacity": "77", "allocatable": "77", "available": "77"},
        ]}],
    }))?;
    let params = PostParams { field_manager: Some("nfd".to_owned()), ..PostParams::default() };
    topologies(cluster).create(&params, &object).await?;
    Ok(())
}

fn is_taken_over(object: &Value) -> Result<()> {
    let metadata = &object["metadata"];
    ensure!(object.get("topologyPolicies").is_none(), "{}", object["topologyPolicies"]);
    ensure!(metadata["annotations"] == json!({"note": "mine"}), "{}", metadata["annotations"]);
    Ok(())
}

async fn owned_by_the_node(cluster: &Cluster, object: &Value) -> Result<()> {
    let node = Api::<Node>::all(cluster.client()).get("worker").await?;
    let expected = json!([{"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": node.metadata.uid}]);
    let owners = &object["metadata"]["ownerReferences"];
    ensure!(*owners == expected, "{owners} instead of {expected}");
    Ok(())
}

#[tokio::test]
async fn an_object_that_others_write_is_taken_over() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = with_node(&parts).await?;
    leave_behind(&cluster).await?;
    let mut world = World::start(&parts, cluster, &[], &[]).await?;

    let object = world.until("what NFD left is taken over", is_taken_over).await?;
    owned_by_the_node(&world.cluster, &object).await?;
    let managers: Vec<&Value> = object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| &entry["manager"])
        .collect();
    ensure!(
        managers.iter().filter(|manager| **manager == "nfd").count() == 1,
        "only the note is theirs: {managers:?}"
    );

    // Edited with an editor.
    let editor = [("KUBE_EDITOR", "sed -i 's/available: .*/available: \"77\"/'")];
    run(&world.kubectl, &world.cluster, &["edit", "noderesourcetopologies", "worker"], &editor).await?;
    let edited = world.until("the edit is overwritten", |_| Ok(())).await?;
    owned_by_the_node(&world.cluster, &edited).await?;

    // Deleted with kubectl.
    let again = world.recreated(&edited).await?;
    owned_by_the_node(&world.cluster, &again).await?;

    // `kubectl describe node` shows the Events.
    for part in ["`nfd` wrote", "a person with `kubectl-edit`"] {
        until("the node's description shows the Event", async || {
            let shown = world.kubectl(&["describe", "node", "worker"]).await?;
            let line = shown.lines().find(|line| line.contains("ObjectTakenOver") && line.contains(part));
            ensure!(line.is_some_and(|line| line.contains("numacast/agent")), "{shown}");
            Ok(())
        })
        .await?;
    }
    // The agent never needed a right that it lacks.
    let log = world.agent.log_tail();
    ensure!(!log.contains("RBAC denied") && !log.contains("forbidden"), "{log}");
    Ok(())
}

#[tokio::test]
async fn an_object_that_koordlet_wrote_in_the_old_version_is_taken_over() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = with_node(&parts).await?;
    Neighbour::start(Kind::Koordlet, "worker", &cluster.admin_kubeconfig()).await?.look().await?;
    let mut world = World::start(&parts, cluster, &[], &[]).await?;
    let object = world
        .until("what koordlet left is taken over", |object| {
            ensure!(object.get("topologyPolicies").is_none(), "{}", object["topologyPolicies"]);
            ensure!(object["attributes"].is_array(), "no attributes");
            Ok(())
        })
        .await?;
    let annotations = &object["metadata"]["annotations"];
    ensure!(annotations["node.koordinator.sh/cpu-topology"].is_string(), "{annotations}");
    let log = world.agent.log_tail();
    ensure!(!log.contains("RBAC denied") && !log.contains("forbidden"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_recreated_node_owns_the_next_object_once_the_token_names_it() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = with_node(&parts).await?;
    let with = ["--set", "publish.refresh=1s"];
    let mut world = World::start(&parts, cluster, &[], &with).await?;
    let first = world.until("the object is there", |_| Ok(())).await?;
    owned_by_the_node(&world.cluster, &first).await?;

    // No garbage collector runs here, as if it were slow.
    let nodes = Api::<Node>::all(world.cluster.client());
    nodes.delete("worker", &DeleteParams::default()).await?;
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "worker"}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    until("the node's description shows the Event", async || {
        let shown = world.kubectl(&["describe", "node", "worker"]).await?;
        ensure!(shown.contains("StaleOwner") && shown.contains("belongs to an earlier Node"), "{shown}");
        Ok(())
    })
    .await?;
    let kept = world.object().await?;
    ensure!(
        kept["metadata"]["ownerReferences"] == first["metadata"]["ownerReferences"],
        "the owner was changed"
    );

    // The agent's token is bound to the earlier Node, and the policy allows no other owner.
    let next = world.recreated(&first).await?;
    ensure!(next["metadata"].get("ownerReferences").is_none(), "{}", next["metadata"]);
    // It is logged after the API server's response.
    until("the agent logs why", async || {
        world.agent.still_runs()?;
        let log = world.agent.log_tail();
        ensure!(
            log.contains("with the UID in its token") && log.contains("created without an owner"),
            "{log}"
        );
        Ok(())
    })
    .await?;

    // The kubelet renews tokens.
    let admin = world.cluster.client();
    let pod = Api::<Pod>::namespaced(admin.clone(), RELEASE).get(&format!("{AGENT}-on-worker")).await?;
    let token = tokens::request(&admin, RELEASE, AGENT, Some(tokens::to_pod(&pod))).await?;
    let renewed = world.cluster.kubeconfig_of("renewed", &token)?;
    world.agent.kill()?;
    world.agent = World::agent(&world.cluster, &world.node, &renewed, &with)?;
    let last = world.recreated(&next).await?;
    owned_by_the_node(&world.cluster, &last).await
}

#[tokio::test]
async fn an_owner_that_may_not_be_changed_stays_and_is_reported() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    // As on OpenShift.
    let admission = &["OwnerReferencesPermissionEnforcement"];
    let options = ApiServerOptions { admission, ..ApiServerOptions::default() };
    let cluster = Cluster::start_with(&parts, &options).await?;
    add_node(&cluster).await?;
    leave_behind(&cluster).await?;
    let mut world = World::start(&parts, cluster, &[], &[]).await?;
    let object = world.until("all but the owner is taken over", is_taken_over).await?;
    ensure!(object["metadata"]["ownerReferences"][0]["kind"] == "Namespace", "{}", object["metadata"]);
    until("the node's description shows the Event", async || {
        let shown = world.kubectl(&["describe", "node", "worker"]).await?;
        ensure!(shown.contains("StaleOwner") && shown.contains("stays owned by a Namespace"), "{shown}");
        Ok(())
    })
    .await?;
    // The agent keeps writing, and an object that it creates has the right owner.
    let again = world.recreated(&object).await?;
    owned_by_the_node(&world.cluster, &again).await
}

/// As read by koord-scheduler and similar schedulers.
#[tokio::test]
async fn an_object_of_v1alpha1_stays_one_and_is_kept_correct() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = with_node(&parts).await?;
    leave_behind(&cluster).await?;
    let config = [("publish.apiVersion", "v1alpha1"), ("publish.refresh", "1s")];
    let mut world = World::start(&parts, cluster, &config, &[]).await?;
    let only_its_pod = Fingerprint::of([pod_hash(RELEASE, "numacast-agent-on-worker")]).to_string();
    // The machine's kubelet is configured for best-effort per container.
    let is_right = |object: &Value| {
        let fingerprint = &object["metadata"]["annotations"]["topology.node.k8s.io/fingerprint"];
        let fingerprint = fingerprint.as_str().unwrap_or_default();
        ensure!(object["topologyPolicies"] == json!(["BestEffortContainerLevel"]), "{object}");
        ensure!(object.get("attributes").is_none(), "{}", object["attributes"]);
        ensure!(fingerprint == only_its_pod, "{fingerprint}, and there is no other pod");
        ensure!(object["metadata"]["annotations"]["note"] == "mine", "{}", object["metadata"]);
        // Another manager's leftovers are removed by a separate write.
        ensure!(object["metadata"]["ownerReferences"][0]["kind"] == "Node", "{}", object["metadata"]);
        Ok(())
    };
    let object = world.until("the object is of the old version", is_right).await?;
    owned_by_the_node(&world.cluster, &object).await?;
    let kind = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha1", "NodeResourceTopology");
    let resource = ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies");
    let old = Api::<DynamicObject>::all_with(world.cluster.client(), &resource).get("worker").await?;
    ensure!(old.data["topologyPolicies"] == json!(["BestEffortContainerLevel"]), "{}", old.data);

    // Refreshes find the agent's own content, and no other manager's.
    let log = until("it was refreshed", async || {
        let log = world.agent.log_tail();
        ensure!(log.matches("(Refresh)").count() > 2, "{log}");
        Ok(log)
    })
    .await?;
    ensure!(!log.contains("(Repair)") && !log.contains("overwritten"), "{log}");

    // Manual changes are repaired, in v1alpha1.
    let patch = r#"{"topologyPolicies": ["None"], "metadata": {"annotations": {"topology.node.k8s.io/fingerprint": "x"}}}"#;
    world.kubectl(&["patch", "noderesourcetopologies", "worker", "--type=merge", "-p", patch]).await?;
    world.until("the edit is overwritten", is_right).await?;
    Ok(())
}

#[tokio::test]
async fn deprecated_policies_are_written_with_the_attributes_on_request() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = with_node(&parts).await?;
    leave_behind(&cluster).await?;
    let mut world = World::start(&parts, cluster, &[("publish.topologyPolicies", "true")], &[]).await?;
    let object = world
        .until("both are there", |object| {
            ensure!(object["topologyPolicies"] == json!(["BestEffortContainerLevel"]), "{object}");
            ensure!(object["attributes"][0]["value"] == "best-effort", "{object}");
            ensure!(object["metadata"]["annotations"] == json!({"note": "mine"}), "{}", object["metadata"]);
            Ok(())
        })
        .await?;
    owned_by_the_node(&world.cluster, &object).await
}

/// The simulated API server behaves the same: its own tests compare with these results.
#[tokio::test]
async fn an_apply_with_a_uid_applies_to_that_object_only() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let name = cluster.node_name("worker");
    let client = Client::new(Some(&cluster.admin_kubeconfig()), std::time::Duration::from_secs(10)).await?;
    ensure!(client.topology(&name).await?.is_none());
    let mut object = NodeResourceTopology::new(&name, NodeResourceTopologyFields::default());
    object.metadata.uid = Some("b6a1d1a0-0000-4000-8000-000000000000".to_owned());
    let missing = client.apply(&object).await.err().context("there is no such object")?;
    ensure!(missing.is_other_object_or_version(), "{missing}");
    ensure!(missing.to_string().contains("uid mismatch"), "{missing}");
    object.metadata.uid = None;
    let made = client.apply(&object).await?;
    object.metadata.uid = Some("b6a1d1a0-0000-4000-8000-000000000000".to_owned());
    let other = client.apply(&object).await.err().context("it is another object")?;
    ensure!(other.is_other_object_or_version(), "{other}");
    ensure!(other.to_string().contains("metadata.uid: Invalid value"), "{other}");
    object.metadata.uid.clone_from(&made.uid);
    let same = client.apply(&object).await?;
    ensure!(same.resource_version == made.resource_version, "nothing changed");
    // A merge patch with a resourceVersion applies to that version only.
    let stale = json!({"metadata": {"resourceVersion": "1"}, "topologyPolicies": null});
    let stale = client.merge(&name, &stale).await.err().context("that is long ago")?;
    ensure!(stale.is_other_object_or_version(), "{stale}");
    Ok(())
}
