//! Every command in the documentation runs as it is shown, against a real API server.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use numacast_sim::pods_api::SimPodsApi;
use serde_json::json;

use crate::sim_node::Node as SimNode;
use crate::support::parts::repository;
use crate::support::{Cluster, Needs, Parts};

/// Minimum number of commands found, to detect a change of format that would hide them.
const LEAST: usize = 40;

/// Returns all documents with commands, in a working order: the first one creates the object that others
/// read.
fn documents() -> Result<Vec<PathBuf>> {
    let mut docs = Vec::new();
    for directory in ["docs", "docs/internals"].map(Path::new) {
        for entry in std::fs::read_dir(repository().join(directory))? {
            docs.push(directory.join(entry?.file_name()));
        }
    }
    docs.retain(|file| file.extension().is_some_and(|extension| extension == "md"));
    docs.sort();
    let others = ["README.md", "CONTRIBUTING.md", "charts/numacast/README.md"].map(PathBuf::from);
    Ok(others.into_iter().chain(docs).collect())
}

/// Uninstalls the release that documents install. No Jobs run here, so hooks would never complete.
const NOTHING_INSTALLED: &str = "helm uninstall numacast --namespace numacast --no-hooks --ignore-not-found";

/// Returns the lines of a document's `sh` blocks.
fn commands(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.trim() {
            "```sh" => inside = true,
            "```" => inside = false,
            "" => {}
            line if inside => lines.push(line.to_owned()),
            _ => {}
        }
    }
    lines
}

/// Checks that a `make` target exists. It is not run: the large ones run this very test.
fn check_make(target: &str) -> Result<()> {
    let makefile = std::fs::read_to_string(repository().join("Makefile"))?;
    let known = makefile.lines().any(|line| line.split(':').next() == Some(target));
    ensure!(known, "the Makefile has no target {target}");
    Ok(())
}

/// Installs the binary under the documents' name for it, on the simulated host.
fn install(dir: &Path, host: &Path, parts: &Parts) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let script = format!(
        "#!/bin/sh\ncase $1 in\nagent|pods|snapshot) exec {binary} \"$@\" --host-root {host} ;;\n*) exec {binary} \"$@\" ;;\nesac\n",
        binary = env!("CARGO_BIN_EXE_numacast"),
        host = host.display(),
    );
    let numacast = dir.join("numacast");
    std::fs::write(&numacast, script)?;
    std::fs::set_permissions(&numacast, std::fs::Permissions::from_mode(0o755))?;
    for program in ["kubectl", "helm"] {
        std::os::unix::fs::symlink(parts.program(program), dir.join(program))?;
    }
    Ok(())
}

#[tokio::test]
async fn every_command_in_the_documents_runs() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "worker"}}))?;
    Api::<Node>::all(cluster.client()).create(&PostParams::default(), &node).await?;
    let host = SimNode::start();
    let pods = host.root().join("var/lib/kubelet/pods-api/pods-api.sock");
    std::fs::create_dir_all(pods.parent().context("no directory")?)?;
    let _pods = SimPodsApi::start(pods)?;
    let dir = tempfile::tempdir()?;
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin)?;
    install(&bin, host.root(), &parts)?;
    std::os::unix::fs::symlink(repository().join("charts"), dir.path().join("charts"))?;
    let path = format!("{}:{}", bin.display(), std::env::var("PATH")?);

    let run = async |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", line]).current_dir(dir.path());
        command.env("PATH", &path).env("KUBECONFIG", cluster.admin_kubeconfig()).env("HOME", dir.path());
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{line}\n{stderr}");
        Ok(())
    };
    let mut shown = 0;
    for file in documents()? {
        let commands = commands(&std::fs::read_to_string(repository().join(&file))?);
        let file = file.display();
        shown += commands.len();
        // A document that installs starts without a release, one that upgrades with one.
        run(NOTHING_INSTALLED).await?;
        if commands.iter().any(|line| line.starts_with("helm upgrade numacast")) {
            run("helm install numacast charts/numacast --namespace numacast --create-namespace").await?;
        }
        for line in commands {
            if let Some(target) = line.strip_prefix("make ").or(line.rsplit_once(" && make ").map(|(_, t)| t))
            {
                check_make(target).with_context(|| format!("{file}: {line}"))?;
                continue;
            }
            run(&line).await.with_context(|| file.to_string())?;
        }
    }
    ensure!(shown >= LEAST, "the documents show only {shown} commands");
    Ok(())
}
