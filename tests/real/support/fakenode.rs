//! The program `tests/parts/kubernetes/fakenode`: it keeps a described machine's namespaces, and acts as device
//! plugins and as container runtime.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::process::Process;

/// A running fakenode, driven by JSON lines.
pub(crate) struct FakeNode {
    process: Process,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl FakeNode {
    /// Starts it with this command and waits until it takes requests.
    pub(crate) fn start(logs: &Path, command: Command) -> Result<Self> {
        let (process, requests, output) = Process::start_with_pipes("fakenode", logs, command)?;
        let mut fakenode = Self { process, requests, responses: BufReader::new(output) };
        fakenode.response().with_context(|| fakenode.process.log_tail())?;
        Ok(fakenode)
    }

    /// Returns the process id, whose namespaces are the machine's.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a request and waits for its response.
    pub(crate) fn request(&mut self, request: &Value) -> Result<()> {
        writeln!(self.requests, "{request}")?;
        self.response().with_context(|| format!("fakenode, request {request}"))
    }

    fn response(&mut self) -> Result<()> {
        let mut line = String::new();
        self.responses.read_line(&mut line)?;
        let response: Value = serde_json::from_str(&line).context("fakenode does not respond")?;
        ensure!(response["ok"] == true, "{}", response["error"]);
        Ok(())
    }
}
