//! The cluster operator: Helm and kubectl with an administrator's rights.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use super::parts::{Parts, repository};
use super::wait::record;

/// Helm and kubectl for a cluster, as an administrator.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    helm: PathBuf,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

#[allow(dead_code, reason = "not every test program uses everything")]
impl Operator {
    /// Creates the operator of a cluster.
    pub(crate) fn of(parts: &Parts, cluster: &Cluster) -> Self {
        let (helm, kubectl) = (parts.program("helm"), parts.program("kubectl"));
        Self { helm, kubectl, kubeconfig: cluster.admin_kubeconfig(), home: cluster.dir().to_owned() }
    }

    /// Runs `helm` or `kubectl` with the arguments in `line` in the repository's directory; returns standard
    /// output.
    pub(crate) fn run(&self, program: &str, line: &str) -> Result<String> {
        Ok(self.run_with_stderr(program, line)?.0)
    }

    /// Like [`Operator::run`]; returns standard output and standard error.
    pub(crate) fn run_with_stderr(&self, program: &str, line: &str) -> Result<(String, String)> {
        let output = self.output(program, line)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{program} {line}: {stdout}{stderr}");
        Ok((stdout, stderr))
    }

    /// Runs the program and returns its output even if it fails.
    pub(crate) fn output(&self, program: &str, line: &str) -> Result<Output> {
        let path = if program == "helm" { &self.helm } else { &self.kubectl };
        let mut command = Command::new(path);
        command.args(line.split_whitespace()).current_dir(repository());
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        for (name, dir) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(name, self.home.join("helm").join(dir));
        }
        let started = Instant::now();
        let output = command.output().with_context(|| format!("cannot run {program}"));
        record(program, started.elapsed());
        output
    }
}
