//! The manifests of docs/proxy.md, on a real API server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::released::version;
use crate::support::parts::repository;
use crate::support::{Cluster, Needs, Parts, tokens};

const DOCUMENT: &str = "docs/proxy.md";
/// The proxy's default directory.
const DIRECTORY: &str = "/run/numacast/pod-resources";

/// Returns the document's YAML blocks that are manifests.
fn manifests() -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(repository().join(DOCUMENT))?;
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let blocks = blocks.map(|(block, _)| serde_saphyr::from_str::<Value>(block).context(block.to_owned()));
    let blocks: Vec<Value> = blocks.collect::<Result<_>>()?;
    Ok(blocks.into_iter().filter(|block| block["apiVersion"].is_string()).collect())
}

/// Replaces the address of a project's manifests by their copy beside its program. The version must be that
/// of the program.
fn local(parts: &Parts, resource: &str) -> Result<PathBuf> {
    let beside = |name: &str| parts.program(name).with_file_name(format!(".{name}"));
    let multus = version("clients", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4")?;
    let prefix =
        format!("https://raw.githubusercontent.com/k8snetworkplumbingwg/multus-cni/{multus}/deployments/");
    if let Some(path) = resource.strip_prefix(&prefix) {
        return Ok(beside("multus").join(path));
    }
    let nfd = version("clients", "sigs.k8s.io/node-feature-discovery")?;
    let path = resource.strip_prefix("https://github.com/kubernetes-sigs/node-feature-discovery/deployment/");
    let path = path.and_then(|path| path.strip_suffix(&format!("?ref={nfd}")));
    Ok(beside("nfd-topology-updater").join(path.with_context(|| format!("{resource} is not tested"))?))
}

async fn run(mut command: Command, input: String) -> Result<String> {
    use std::io::Write;
    tokio::task::spawn_blocking(move || {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    })
    .await?
}

/// Returns what `kubectl kustomize` makes of a Kustomization.
async fn kustomized(parts: &Parts, mut manifest: Value, dir: &Path) -> Result<String> {
    // It takes no absolute paths.
    for (number, resource) in
        manifest["resources"].as_array_mut().context("no resources")?.iter_mut().enumerate()
    {
        let copy = dir.join(number.to_string());
        std::fs::create_dir(&copy)?;
        let path = local(parts, resource.as_str().context("no text")?)?;
        // A directory refers to others beside it.
        let top = path
            .ancestors()
            .find(|one| one.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')));
        let top = top.context("no copy")?;
        let mut command = Command::new("cp");
        command.arg("-r").arg(top).arg(copy.join("copy"));
        run(command, String::new()).await?;
        *resource = Path::new(&number.to_string())
            .join("copy")
            .join(path.strip_prefix(top)?)
            .to_string_lossy()
            .into();
    }
    std::fs::write(dir.join("kustomization.yaml"), serde_json::to_vec(&manifest)?)?;
    let mut command = Command::new(parts.program("kubectl"));
    command.arg("kustomize").arg(dir);
    run(command, String::new()).await
}

/// Checks that a DaemonSet has the proxy's directory where its program expects the kubelet's.
fn mounts_the_directory(set: &Value) -> Result<()> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let pod = &set["spec"]["template"]["spec"];
    let volumes = list(&pod["volumes"]);
    let mut ours = volumes.iter().filter(|volume| volume["hostPath"]["path"] == DIRECTORY);
    let volume = ours.next().with_context(|| format!("no volume: {volumes:?}"))?;
    ensure!(volume["hostPath"]["type"] == "DirectoryOrCreate", "{volume}");
    let mounts = list(&pod["containers"][0]["volumeMounts"]);
    let mut its = mounts.iter().filter(|mount| mount["name"] == volume["name"]);
    let mount = its.next().with_context(|| format!("no mount: {mounts:?}"))?;
    let path = mount["mountPath"].as_str().unwrap_or_default();
    ensure!(path.ends_with("var/lib/kubelet/pod-resources"), "{mount}");
    ensure!(mount["mountPropagation"].is_null() && mount["readOnly"] == true, "{mount}");
    Ok(())
}

#[tokio::test]
async fn manifests_of_the_document_are_accepted() -> Result<()> {
    let Some(parts) = Parts::with_released_clients(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    for namespace in ["monitoring", "node-feature-discovery"] {
        tokens::namespace(&cluster.client(), namespace).await?;
    }
    let mut sets = 0;
    for manifest in manifests()? {
        let text = match manifest["kind"].as_str() {
            Some("Kustomization") => {
                kustomized(&parts, manifest.clone(), tempfile::tempdir()?.path()).await?
            }
            _ => manifest.to_string(),
        };
        let mut command = Command::new(parts.program("kubectl"));
        command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        command.args([
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--validate=strict",
        ]);
        command.args(["--output=json", "--filename=-"]);
        let accepted = run(command, text.clone()).await.with_context(|| manifest.to_string())?;
        let accepted = serde_json::Deserializer::from_str(&accepted).into_iter::<Value>();
        let accepted = accepted.collect::<Result<Vec<_>, _>>()?;
        let items =
            accepted.iter().flat_map(|one| one["items"].as_array().into_iter().flatten().chain([one]));
        for set in items.filter(|one| one["kind"] == "DaemonSet") {
            mounts_the_directory(set).with_context(|| set["metadata"]["name"].to_string())?;
            sets += 1;
        }
    }
    ensure!(sets == 3, "{sets} DaemonSets, not those of DCGM-exporter, Multus and NFD");
    Ok(())
}
