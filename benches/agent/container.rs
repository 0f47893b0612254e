//! The agent as the chart's DaemonSet runs it: its mounts, its configuration and the permissions of its
//! service account.
//!
//! `tests/real/rendered.rs` runs the whole pod. Here only the process runs, without the proxies that a
//! container's network would need, which would add CPU time and latency.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::RealNode;
use crate::support::chart::{AGENT, Chart};

/// Where the chart mounts the host's directories.
const HOST: &str = "/host";

/// What an agent is started with.
pub(crate) struct Container {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// The kubeconfig of its service account.
    pub(crate) kubeconfig: PathBuf,
    /// Whether it can read the kubelet's checkpoints (state files of its managers).
    pub(crate) sees_state_files: bool,
}

/// Returns the chart values that every variant needs here: the kubelet listens on its own port and is its own
/// CA.
pub(crate) fn values_here(node: &RealNode) -> Result<Value> {
    let (port, certificate) = node.https_port()?;
    Ok(json!({"kubelet": {"address": port, "caFile": certificate, "serverName": node.name()}}))
}

/// Merges `over` into `values`, as Helm merges several values files.
pub(crate) fn merge_values(values: &mut Value, over: &Value) {
    match (values, over) {
        (Value::Object(values), Value::Object(over)) => {
            for (key, value) in over {
                merge_values(values.entry(key).or_insert(Value::Null), value);
            }
        }
        (values, over) => *values = over.clone(),
    }
}

impl Container {
    /// Creates `place`, a directory that stands for the container's root: it has exactly what the chart
    /// mounts.
    pub(crate) fn make(chart: &Chart, node: &RealNode, place: &Path, kubeconfig: &Path) -> Result<Self> {
        std::fs::create_dir_all(place)?;
        let spec = &chart.object("DaemonSet", AGENT)?.data["spec"]["template"]["spec"];
        for (inside, outside) in host_paths(spec)? {
            let at = place.join(inside.trim_start_matches('/'));
            let of_node = place_of(node, &outside)?;
            std::fs::create_dir_all(at.parent().context("a mount on the root")?)?;
            symlink(&of_node, &at).with_context(|| format!("{inside} -> {}", of_node.display()))?;
        }
        let map = &chart.object("ConfigMap", AGENT)?.data["data"]["config.yaml"];
        let mut config: Value = serde_saphyr::from_str(map.as_str().context("no configuration")?)?;
        move_paths(&mut config, place);
        // In a container, /proc does not show the kubelet; here it would.
        config["host"]["proc"] = json!(node.dir().join("proc"));
        let file = place.join("config.yaml");
        std::fs::write(&file, config.to_string())?;
        let sees_state_files = place.join("host/var/lib/kubelet/cpu_manager_state").exists();
        Ok(Self { config: file, kubeconfig: kubeconfig.to_owned(), sees_state_files })
    }
}

/// Returns each host directory and where it is mounted (container path first), parents before children.
fn host_paths(spec: &Value) -> Result<Vec<(String, String)>> {
    let volumes = spec["volumes"].as_array().context("no volumes")?;
    let mut paths = Vec::new();
    for mount in spec["containers"][0]["volumeMounts"].as_array().context("no mounts")? {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        let volume = volume.with_context(|| format!("there is no volume {}", mount["name"]))?;
        if let Some(outside) = volume["hostPath"]["path"].as_str() {
            let inside = mount["mountPath"].as_str().context("a mount without a path")?;
            paths.push((inside.to_owned(), outside.to_owned()));
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the described machine's stand-in for a host directory.
fn place_of(node: &RealNode, path: &str) -> Result<PathBuf> {
    let place = match path.strip_prefix("/var/lib/kubelet") {
        Some(below) => node.kubelet_dir().join(below.trim_start_matches('/')),
        None => node.dir().join(path.trim_start_matches('/')),
    };
    if path.ends_with("/pods-api") || path.ends_with("/cdi") {
        // The volume's type is DirectoryOrCreate.
        std::fs::create_dir_all(&place)?;
    }
    ensure!(place.is_dir(), "the described machine has no {path}");
    Ok(place)
}

/// Moves paths below the chart's mounts to below `place`.
fn move_paths(config: &mut Value, place: &Path) {
    match config {
        Value::Object(map) => map.values_mut().for_each(|value| move_paths(value, place)),
        Value::Array(list) => list.iter_mut().for_each(|value| move_paths(value, place)),
        Value::String(text) if text == HOST || text.starts_with("/host/") => {
            *text = format!("{}{text}", place.display());
        }
        _ => {}
    }
}
