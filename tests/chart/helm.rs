//! The real Helm, and the objects that it renders.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use numacast::config::{Config, Layers};
use serde_json::Value;
use tempfile::TempDir;

use crate::parts::{fetched, repository};

/// Helm, with a home directory of its own.
#[derive(Debug)]
pub(crate) struct Helm {
    dir: PathBuf,
    home: TempDir,
}

/// Returns the chart's directory.
pub(crate) fn chart() -> PathBuf {
    repository().join("charts/numacast")
}

/// Returns the values files shipped with the chart.
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
    ensure!(files.len() >= 2, "the chart has only {files:?}");
    Ok(files)
}

impl Helm {
    /// Returns Helm and kubernetes-validate, after fetching them if necessary. `None` if they are not
    /// available here: this has been logged, and is an error with `CI=true`.
    pub(crate) fn for_test() -> Result<Option<Self>> {
        let Some(dir) = fetched(&["helm", "kubernetes-validate"])? else { return Ok(None) };
        let home = tempfile::Builder::new().prefix("numacast-helm-").tempdir()?;
        Ok(Some(Self { dir, home }))
    }

    /// Returns a directory that is removed with this.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns the path of a program in Helm's directory.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns a command that uses neither the user's files nor a cluster.
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

    /// Runs Helm without checking its exit status.
    pub(crate) fn try_to(&self, words: &[&str]) -> Result<Output> {
        self.command().args(words).output().context("cannot run helm")
    }

    /// Runs Helm and returns its standard output; an error contains its standard error.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.try_to(words)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {}: {stderr}", words.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Renders the chart with these arguments, for a release called `numacast` in the namespace `numa`.
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
    /// Parses the documents of a YAML stream.
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

    /// Returns all objects of a kind.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        let kind = kind.to_owned();
        self.0.iter().filter(move |object| object["kind"] == kind.as_str())
    }

    /// Returns the only object of a kind and name.
    pub(crate) fn one(&self, kind: &str, name: &str) -> Result<&Value> {
        let mut found = self.all(kind).filter(|object| name_of(object) == name);
        let first = found.next().with_context(|| format!("there is no {kind} {name}"))?;
        ensure!(found.next().is_none(), "there are two {kind}s {name}");
        Ok(first)
    }

    /// Returns every object that contains a pod, with that pod's `metadata` and `spec`.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.0.iter().filter_map(|object| match object["kind"].as_str()? {
            "Pod" => Some((object, object)),
            "DaemonSet" | "Deployment" | "Job" => Some((object, &object["spec"]["template"])),
            _ => None,
        })
    }

    /// Returns the configuration file in a ConfigMap.
    pub(crate) fn configuration(&self, name: &str) -> Result<&str> {
        let text = self.one("ConfigMap", name)?["data"]["config.yaml"].as_str();
        text.with_context(|| format!("the ConfigMap {name} has no config.yaml"))
    }

    /// Returns the configuration of one component, as the binary reads it.
    pub(crate) fn config(&self, name: &str) -> Result<Config> {
        let effective = Layers::default().text(self.configuration(name)?, Path::new(name)).finish();
        Ok(effective.map_err(|errors| anyhow::anyhow!("{name}: {errors:?}"))?.config)
    }
}

/// Returns `metadata.name`, or an empty string.
pub(crate) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns the elements of a list; none if it is missing.
pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the strings in a list.
pub(crate) fn words(value: &Value) -> impl Iterator<Item = &str> {
    items(value).filter_map(Value::as_str)
}
