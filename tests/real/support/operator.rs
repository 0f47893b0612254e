//! The cluster operator: Helm and kubectl with an administrator's rights.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use super::parts::{Parts, repository};

/// Helm and kubectl for a cluster, as an administrator.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    helm: PathBuf,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

#[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
impl Operator {
    /// Creates the operator of a cluster.
    pub(crate) fn of(parts: &Parts, cluster: &Cluster) -> Self {
        let (helm, kubectl) = (parts.program("helm"), parts.program("kubectl"));
        Self { helm, kubectl, kubeconfig: cluster.admin_kubeconfig(), home: cluster.dir().to_owned() }
    }

    /// Runs `helm` or `kubectl` with the words of `line` in the repository's directory; returns standard
    /// output.
    pub(crate) fn run(&self, program: &str, line: &str) -> Result<String> {
        Ok(self.run_and_hear(program, line)?.0)
    }

    /// Like [`Operator::run`]; returns standard output and standard error.
    pub(crate) fn run_and_hear(&self, program: &str, line: &str) -> Result<(String, String)> {
        let output = self.try_to(program, line)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{program} {line}: {said}{error}");
        Ok((said, error))
    }

    /// Runs the program and returns its output even if it fails.
    pub(crate) fn try_to(&self, program: &str, line: &str) -> Result<Output> {
        let path = if program == "helm" { &self.helm } else { &self.kubectl };
        let mut command = Command::new(path);
        command.args(line.split_whitespace()).current_dir(repository());
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        for (name, dir) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(name, self.home.join("helm").join(dir));
        }
        command.output().with_context(|| format!("cannot run {program}"))
    }
}
