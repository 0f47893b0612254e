//! Programs that run to their end.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs a shell script that stops at the first error.
pub(crate) fn shell(script: &str) -> Result<()> {
    output_of(Command::new("sh").arg("-euc").arg(script)).map(drop)
}

/// Runs a command and returns its standard output; an error has the standard error.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?} ended with {}: {error}\n{text}", output.status);
    Ok(text)
}

/// kubectl and Helm with a kubeconfig.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    programs: PathBuf,
    kubeconfig: PathBuf,
    /// Where Helm keeps what it keeps.
    home: PathBuf,
}

impl Tools {
    pub(crate) fn new(programs: &Path, kubeconfig: &Path, home: &Path) -> Self {
        Self { programs: programs.into(), kubeconfig: kubeconfig.into(), home: home.into() }
    }

    /// Runs `helm` and returns its output.
    pub(crate) async fn helm(&self, arguments: &[&str]) -> Result<String> {
        self.run("helm", arguments).await
    }

    /// Runs `kubectl` and returns its output.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.run("kubectl", arguments).await
    }

    /// Runs a shell command in a directory, with kubectl in its path, and returns its output.
    pub(crate) async fn shell(&self, script: &str, dir: &Path) -> Result<String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-euc", script]).env("PATH", format!("{}:{path}", self.programs.display()));
        self.finish(command.current_dir(dir)).await
    }

    /// Writes what can explain a failure to a file.
    pub(crate) async fn describe(&self, file: &Path) -> Result<()> {
        let commands = [
            "get pods --all-namespaces --output=wide",
            "describe pods --all-namespaces",
            "get events --all-namespaces",
        ];
        let mut text = String::new();
        for command in commands {
            let arguments: Vec<&str> = command.split(' ').collect();
            text += &format!(
                "$ kubectl {command}\n{}\n",
                self.kubectl(&arguments).await.unwrap_or_else(|error| error.to_string())
            );
        }
        let pods =
            self.kubectl(&["get", "pods", "--all-namespaces", "--no-headers"]).await.unwrap_or_default();
        for mut words in pods.lines().map(str::split_whitespace) {
            let (Some(namespace), Some(pod)) = (words.next(), words.next()) else { continue };
            let logs = self.kubectl(&["logs", "--namespace", namespace, pod, "--all-containers"]).await;
            text += &format!(
                "$ kubectl logs --namespace {namespace} {pod}\n{}\n",
                logs.unwrap_or_else(|error| error.to_string())
            );
        }
        Ok(std::fs::write(file, text)?)
    }

    async fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.finish(Command::new(self.programs.join(program)).args(arguments)).await
    }

    async fn finish(&self, command: &mut Command) -> Result<String> {
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        let mut command = std::mem::replace(command, Command::new(""));
        tokio::task::spawn_blocking(move || output_of(&mut command)).await?
    }
}
