//! A cluster that is well: the chart, three Nodes, and what controllers, kubelets and agents would have made of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use numacast::scheduler::{Fingerprint, pod_hash};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::operator::Operator;
use crate::support::wait::until;
use crate::support::{Cluster, Parts};

pub(super) const NODES: [&str; 3] = ["worker-0", "worker-1", "worker-2"];
const NAMESPACE: &str = "numacast";
/// Later than any test: for what has to be newer than everything.
const LATER: &str = "2090-01-01T00:00:00Z";

/// Functions for the scripts of the plants. `$DIR` has the files.
const FUNCTIONS: &str = r#"
quietly() { "$@" >/dev/null; }
status() { quietly kubectl patch pod $1 --namespace numacast --subresource status --type merge --patch "$2"; }
start() {
    quietly kubectl create --filename $DIR/$1.json
    quietly kubectl patch pod $1 --namespace numacast --subresource status --type merge --patch-file $DIR/$1-status.json
}
stop() { quietly kubectl delete pod $1 --namespace numacast --grace-period 0 --force --wait=false; }
restart() { stop $1; start $1; }
publish() {
    quietly kubectl apply --server-side --field-manager ${2:-numacast} --force-conflicts --filename $DIR/object-$1.json
}
republish() { quietly kubectl delete noderesourcetopology $1 --ignore-not-found; publish $1; }
change() {
    quietly kubectl patch noderesourcetopology $1 --field-manager numacast --type json --patch "$2"
}
owns() {
    FIELDS='{"f:zones": {}}'
    change $1 '[{"op": "replace", "path": "/metadata/managedFields", "value": [{"manager": "'$2'", "operation": "Update",
      "apiVersion": "topology.node.k8s.io/'$3'", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": '"$FIELDS"'}]}]'
}
attribute() { change $1 '[{"op": "add", "path": "/attributes/-", "value": {"name": "'$2'", "value": "'$3'"}}]'; }
"#;

pub(super) struct World {
    cluster: Cluster,
    path: String,
    kubelet: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

impl World {
    pub(super) async fn start(parts: &Parts) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        let operator = Operator::of(parts, &cluster);
        let bin = cluster.dir().join("bin");
        std::fs::create_dir(&bin)?;
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_numacast"), bin.join("numacast"))?;
        for program in ["kubectl", "helm"] {
            std::os::unix::fs::symlink(parts.program(program), bin.join(program))?;
        }
        let path = format!("{}:{}", bin.display(), std::env::var("PATH")?);
        let kubelet = tokio::spawn(delete_ended_pods(cluster.client()));
        let world = Self { cluster, path, kubelet };
        let install = "install numacast charts/numacast --namespace numacast --create-namespace --set scheduler.enabled=true";
        operator.run("helm", install)?;
        world.add_nodes().await?;
        for node in NODES {
            world.add_pod(&format!("agent-{node}"), "daemonset", "numacast-agent", node).await?;
        }
        world.add_pod("controller", "deployment", "numacast-controller", "control-plane").await?;
        world.add_pod("scheduler", "deployment", "numacast-scheduler", "control-plane").await?;
        let lease =
            json!({"spec": {"holderIdentity": "controller", "renewTime": "2090-01-01T00:00:00.000000Z"}});
        let lease = format!(
            "kubectl patch lease numacast-controller --namespace numacast --type merge --patch '{lease}'"
        );
        world.run(&lease).await?;
        Ok(world)
    }

    pub(super) fn dir(&self) -> &Path {
        self.cluster.dir()
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.cluster.admin_kubeconfig()
    }

    pub(super) fn kubeconfig_of(&self, user: &str) -> Result<PathBuf> {
        self.cluster.kubeconfig_as(user, &[])
    }

    async fn add_nodes(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.cluster.client());
        for name in NODES {
            let amounts = |cpus: &str| json!({"cpu": cpus, "memory": "32Gi", "hugepages-2Mi": "1Gi", "example.com/nic": "2"});
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "numa", "kubernetes.io/os": "linux"}},
                "status": {
                    "capacity": amounts("16"), "allocatable": amounts("14"),
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.3", "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
                                 "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux",
                                 "osImage": "", "systemUUID": ""},
                },
            }))?;
            // The API server taints new Nodes.
            let mut made = nodes.create(&PostParams::default(), &node).await?;
            made.spec.get_or_insert_default().taints = None;
            made.metadata.managed_fields = None;
            let made = nodes.replace(name, &PostParams::default(), &made).await?;
            let uid = made.uid().context("no UID")?;
            std::fs::write(self.file(&format!("object-{name}")), object(name, Some(&uid)).to_string())?;
            self.run(&format!("publish {name}")).await?;
        }
        std::fs::write(self.file("object-gone"), object("gone", None).to_string())?;
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir().join(format!("{name}.json"))
    }

    /// Adds the pod of a workload as its controller would, and its status as a kubelet would.
    async fn add_pod(&self, name: &str, kind: &str, workload: &str, node: &str) -> Result<()> {
        let workload =
            self.run(&format!("kubectl get {kind} {workload} --namespace {NAMESPACE} --output json")).await?;
        let workload: Value = serde_json::from_str(&workload)?;
        let mut pod = workload["spec"]["template"].clone();
        let owner = &workload["metadata"];
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!(NAMESPACE);
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": workload["kind"], "name": owner["name"],
                                                     "uid": owner["uid"]}]);
        pod["spec"]["nodeName"] = json!(node);
        let container = &pod["spec"]["containers"][0];
        let status = json!({"status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": container["name"], "image": container["image"], "imageID": "numacast@sha256:1",
                                   "ready": true, "restartCount": 0, "state": {"running": {"startedAt": LATER}}}],
        }});
        std::fs::write(self.file(name), pod.to_string())?;
        std::fs::write(self.file(&format!("{name}-status")), status.to_string())?;
        self.run(&format!("start {name}")).await?;
        Ok(())
    }

    /// Runs a script as the cluster's administrator; returns its output.
    pub(super) async fn run(&self, script: &str) -> Result<String> {
        let mut command = Command::new("sh");
        command.args(["-ec", &format!("{FUNCTIONS}\n{script}")]).env("DIR", self.dir());
        let output = self.output(command, &self.cluster.admin_kubeconfig()).await?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script}\n{stderr}");
        Ok(String::from_utf8(output.stdout)?)
    }

    async fn output(&self, mut command: Command, kubeconfig: &Path) -> Result<std::process::Output> {
        command.env("PATH", &self.path).env("HOME", self.dir()).env("KUBECONFIG", kubeconfig);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        Ok(tokio::task::spawn_blocking(move || command.output()).await??)
    }

    /// Returns the exit status and the report.
    pub(super) async fn doctor(&self, more: &[&str]) -> Result<(Option<i32>, Value)> {
        self.doctor_as(&self.cluster.admin_kubeconfig(), more).await
    }

    pub(super) async fn doctor_as(&self, kubeconfig: &Path, more: &[&str]) -> Result<(Option<i32>, Value)> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command.args(["doctor", "--output", "json"]).args(more);
        let output = self.output(command, kubeconfig).await?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| json!({"stderr": stderr}));
        Ok((output.status.code(), report))
    }

    pub(super) async fn is_well(&self) -> Result<()> {
        until("nothing is found", async || {
            let (code, report) = self.doctor(&[]).await?;
            let found = &report["findings"];
            ensure!(
                code == Some(0) && *found == json!([]) && report["unchecked"] == json!([]),
                "exit {code:?}: {report:#}"
            );
            Ok(())
        })
        .await
    }
}

/// Returns the checks that found something.
pub(super) fn checks_of(report: &Value) -> BTreeSet<&str> {
    let findings = report["findings"].as_array().into_iter().flatten();
    findings.filter_map(|finding| finding["check"].as_str()).collect()
}

/// What kubelets do at the end of a pod that was deleted.
async fn delete_ended_pods(client: Client) {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    loop {
        for pod in pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            if pod.metadata.deletion_timestamp.is_some() {
                let _ = pods.delete(&pod.name_any(), &now).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Returns a Node's object as its agent writes it.
fn object(name: &str, owner: Option<&str>) -> Value {
    let resource = |name: &str, amount: &str| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
    let zone = |id: usize| {
        json!({"name": format!("node-{id}"), "type": "Node",
               "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 20}],
               "resources": [resource("cpu", "8"), resource("example.com/nic", "1"), resource("hugepages-2Mi", "536870912"),
                             resource("memory", "17179869184")]})
    };
    let attribute = |name: &str, value: &str| json!({"name": name, "value": value});
    let fingerprint = Fingerprint::of([pod_hash(NAMESPACE, &format!("agent-{name}"))]).to_string();
    let mut object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [attribute("topologyManagerPolicy", "single-numa-node"), attribute("topologyManagerScope", "pod"),
                       attribute("cpuManagerPolicy", "static"), attribute("memoryManagerPolicy", "Static"),
                       attribute("nodeTopologyPodsFingerprint", &fingerprint),
                       attribute("nodeTopologyPodsFingerprintMethod", "all")],
        "zones": [zone(0), zone(1)],
    });
    if let Some(uid) = owner {
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]);
    }
    object
}
