//! `numacast show` against a real API server, with the objects of several machines.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use numacast::nrt::Version;
use numacast::scheduler::Fingerprint;
use serde_json::{Value, json};

use crate::support::process::tethered;
use crate::support::{Cluster, Needs, Parts};

/// The name of a node, and the recording of its machine.
const NODES: [(&str, &str); 5] = [
    ("epyc-snc", "machine-snc-two-sockets"),
    ("grace", "machine-gb200"),
    ("plain", "machine-no-numa"),
    ("power9", "machine-power9"),
    ("xeon", "machine-two-by-eight"),
];

/// A cluster with these nodes' objects.
struct Fleet {
    cluster: Cluster,
    client: Client,
}

impl Fleet {
    async fn start(parts: &Parts) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        let fleet = Self { client: cluster.client(), cluster };
        for (name, recording) in NODES {
            fleet.apply(&object_of(name, recording)?, "numacast").await?;
        }
        Ok(fleet)
    }

    fn objects(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &Version::V1alpha2.resource())
    }

    async fn apply(&self, object: &Value, manager: &str) -> Result<()> {
        let name = object["metadata"]["name"].as_str().context("it has a name")?;
        let params = PatchParams::apply(manager).force();
        self.objects().patch(name, &params, &Patch::Apply(object)).await?;
        Ok(())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
        command.arg("show").args(args).arg("--kubeconfig").arg(self.cluster.admin_kubeconfig());
        command
    }

    /// Runs `numacast show`. Returns the exit code, standard output and standard error.
    async fn show(&self, args: &[&str]) -> Result<(Option<i32>, String, String)> {
        let mut command = self.command(args);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }
}

/// Returns the object that `numacast snapshot` computes from a recording.
fn object_of(name: &str, recording: &str) -> Result<Value> {
    let file = format!("{}/tests/replays/{recording}.json", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(env!("CARGO_BIN_EXE_numacast"))
        .args(["snapshot", "-o", "json", "--replay", &file])
        .output()?;
    let mut object: Value = serde_json::from_slice(&output.stdout)?;
    object["metadata"] = json!({"name": name});
    Ok(object)
}

#[tokio::test]
async fn look() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let fleet = Fleet::start(&parts).await?;
    println!("{}", fleet.cluster.admin_kubeconfig().display());
    while !std::path::Path::new("/tmp/show-done").exists() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    Ok(())
}
