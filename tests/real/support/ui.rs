//! A running `numacast ui`, or `numacast demo --ui`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};

use super::process::tethered;

/// Serves the page until it is dropped.
pub(crate) struct Ui {
    child: std::process::Child,
    /// The address with the token.
    pub(crate) url: String,
}

impl Ui {
    /// Runs the binary with these arguments, and returns once it has printed its address.
    pub(crate) fn start(binary: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = tethered(binary);
        let mut child = command.args(arguments).arg("--no-open").stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let url = lines.find_map(|line| line.ok().filter(|line| line.starts_with("http://127.0.0.1:")));
        Ok(Self { child, url: url.context("it printed no address")? })
    }

    /// Shows the cluster of a kubeconfig.
    pub(crate) fn of(binary: &Path, kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let kubeconfig = kubeconfig.to_str().context("the path is not UTF-8")?;
        let fixed = ["ui", "--addr", "127.0.0.1:0", "--kubeconfig", kubeconfig];
        Self::start(binary, &[&fixed, arguments].concat())
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
