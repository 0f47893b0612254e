//! The fingerprint that the scheduler plugin expects, computed by upstream's own library from the API
//! server's pods.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::nrt::ObjectVersion;
use super::parts::Parts;

/// Published while the fingerprint is withheld: a value that no set of pods has.
pub(crate) const WITHHELD: &str = "pfp0v0010000000000000000";

/// How a plugin selects the pods that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counting {
    /// `dedicated` or `shared`.
    pub(crate) informer: &'static str,
    /// `all` or `with-exclusive-resources`.
    pub(crate) method: &'static str,
    /// The plugin's release, as in the agent's configuration.
    pub(crate) plugin: &'static str,
}

/// The fingerprint and the pods that a plugin expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) fingerprint: String,
    /// `namespace/name` of the counted pods.
    pub(crate) pods: BTreeSet<String>,
}

/// Upstream's library, wrapped in a program.
#[derive(Debug)]
pub(crate) struct Upstream {
    program: PathBuf,
}

impl Upstream {
    pub(crate) fn of(parts: &Parts) -> Self {
        Self { program: parts.program("fingerprint") }
    }

    /// Returns what the plugin expects of a node with these pods, and zones with these resources.
    pub(crate) fn expects(
        &self,
        counting: Counting,
        pods: &[Pod],
        object: &ObjectVersion,
    ) -> Result<Expected> {
        let mut command = Command::new(&self.program);
        command.args(["--informer", counting.informer, "--method", counting.method]);
        if counting.plugin != "v0.34" {
            let named: BTreeSet<&str> =
                object.zones.values().flat_map(|zone| zone.keys()).map(String::as_str).collect();
            command.arg("--zones").arg(Vec::from_iter(named).join(","));
        }
        let output = run(command, &self.program, &json!({ "items": pods }))?;
        let names = output["pods"].as_array().context("no pods in the output")?;
        Ok(Expected {
            fingerprint: output["fingerprint"].as_str().context("no fingerprint in the output")?.to_owned(),
            pods: names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect(),
        })
    }
}

/// Runs a program with pods as its input and returns its JSON output.
pub(crate) fn output_of(program: &Path, arguments: &[&str], pods: &[Value]) -> Result<Value> {
    let mut command = Command::new(program);
    command.args(arguments);
    run(command, program, &json!({ "items": pods }))
}

fn run(mut command: Command, program: &Path, input: &Value) -> Result<Value> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| program.display().to_string())?;
    write!(child.stdin.take().context("no pipe")?, "{input}")?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{} ended with {}", program.display(), output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns an attribute of an object.
pub(crate) fn attribute<'a>(object: &'a ObjectVersion, name: &str) -> Option<&'a str> {
    let attributes = object.content["attributes"].as_array()?;
    attributes.iter().find(|attribute| attribute["name"] == name)?["value"].as_str()
}

/// Returns the fingerprint of an object.
pub(crate) fn published(object: &ObjectVersion) -> Option<&str> {
    attribute(object, "nodeTopologyPodsFingerprint")
}
