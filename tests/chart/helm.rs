//! Real Helm, and the objects that it renders.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::parts::{fetched, repository};

/// Helm, with a home of its own.
#[derive(Debug)]
pub(crate) struct Helm {
    dir: PathBuf,
    home: TempDir,
}

/// The chart's directory.
pub(crate) fn chart() -> PathBuf {
    repository().join("charts/numacast")
}

/// The values files that come with the chart.
pub(crate) fn presets() -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(chart())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("values-") && name.ends_with(".yaml") {
            files.push(path);
        }
    }
    files.sort();
    ensure!(files.len() >= 6, "the chart has only {files:?}");
    Ok(files)
}

impl Helm {
    /// Helm and kubernetes-validate, fetched where they are missing. `None`: they cannot be had here, which has been
    /// said, and is an error where `CI=true`.
    pub(crate) fn for_test() -> Result<Option<Self>> {
        let Some(dir) = fetched(&["helm", "kubernetes-validate"])? else { return Ok(None) };
        let home = tempfile::Builder::new().prefix("numacast-helm-").tempdir()?;
        Ok(Some(Self { dir, home }))
    }

    /// A directory that goes with it.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// A program beside it.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A command that touches nothing of the person's, and knows no cluster.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.program("helm"));
        for (name, dir) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(name, self.home().join(dir));
        }
        command.env("KUBECONFIG", "/nonexistent").env("HOME", self.home());
        command
    }

    /// Runs it, whatever comes of it.
    pub(crate) fn try_to(&self, words: &[&str]) -> Result<Output> {
        self.command().args(words).output().context("cannot run helm")
    }

    /// What it writes to standard output; an error has what it says to standard error.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.try_to(words)?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {}: {complaint}", words.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The objects that the chart makes of values, for a release called `numacast` in the namespace `numa`.
    pub(crate) fn render(&self, values: &[&str]) -> Result<Objects> {
        self.render_as("numacast", values)
    }

    /// As [`Helm::render`], for another release.
    pub(crate) fn render_as(&self, release: &str, values: &[&str]) -> Result<Objects> {
        let chart = chart();
        let words = ["template", release, &chart.to_string_lossy(), "--namespace", "numa"];
        Objects::parse(&self.run(&[&words, values].concat())?)
    }
}

/// Rendered objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Objects(pub(crate) Vec<Value>);

impl Objects {
    /// The documents of a YAML stream.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut objects = Vec::new();
        let documents = text.split("\n---\n").map(|document| document.trim_start_matches("---\n"));
        for document in documents {
            let object: Value = serde_saphyr::from_str(document).with_context(|| document.to_owned())?;
            if !object.is_null() {
                objects.push(object);
            }
        }
        Ok(Self(objects))
    }

    /// All of a kind.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        let kind = kind.to_owned();
        self.0.iter().filter(move |object| object["kind"] == kind.as_str())
    }

    /// The one of a kind and name.
    pub(crate) fn one(&self, kind: &str, name: &str) -> Result<&Value> {
        let mut found = self.all(kind).filter(|object| name_of(object) == name);
        let first = found.next().with_context(|| format!("there is no {kind} {name}"))?;
        ensure!(found.next().is_none(), "there are two {kind}s {name}");
        Ok(first)
    }

    /// Every object that has a pod in it, and that pod's `metadata` and `spec`.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.0.iter().filter_map(|object| match object["kind"].as_str()? {
            "Pod" => Some((object, object)),
            "DaemonSet" | "Deployment" | "Job" => Some((object, &object["spec"]["template"])),
            _ => None,
        })
    }

    /// The configuration file in a ConfigMap.
    pub(crate) fn configuration(&self, name: &str) -> Result<&str> {
        let text = self.one("ConfigMap", name)?["data"]["config.yaml"].as_str();
        text.with_context(|| format!("the ConfigMap {name} has no config.yaml"))
    }
}

/// `metadata.name`, or nothing.
pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The elements of a list, none where there is no list.
pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The texts in a list.
pub(crate) fn words(value: &Value) -> impl Iterator<Item = &str> {
    items(value).filter_map(Value::as_str)
}
