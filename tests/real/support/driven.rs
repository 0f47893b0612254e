//! Programs that are driven by JSON lines: each request is a line on the standard input, each response a line
//! on the standard output. They end with their input.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::process::Process;

/// A running program.
pub(crate) struct Driven {
    name: String,
    process: Process,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl Driven {
    /// Starts it with this command and waits until it takes requests. Its log is `<logs>/<name>.log`.
    pub(crate) fn start(name: &str, logs: &Path, command: Command) -> Result<Self> {
        let (process, requests, output) = Process::start_with_pipes(name, logs, command)?;
        let responses = BufReader::new(output);
        let mut driven = Self { name: name.to_owned(), process, requests, responses };
        driven.response().with_context(|| driven.process.log_tail())?;
        Ok(driven)
    }

    /// Returns the process id, whose namespaces are the machine's if it is fakenode.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a request and waits for its response.
    pub(crate) fn request(&mut self, request: &Value) -> Result<()> {
        writeln!(self.requests, "{request}")?;
        self.response().with_context(|| format!("{}, request {request}", self.name))
    }

    /// Ends it and waits until it is gone.
    #[allow(dead_code, reason = "not every test program uses everything")]
    pub(crate) fn end(self) -> Result<()> {
        let Self { name, mut process, requests, .. } = self;
        drop(requests);
        let status = process.wait()?;
        ensure!(status.success(), "{name} ended with {status}: {}", process.log_tail());
        Ok(())
    }

    fn response(&mut self) -> Result<()> {
        let mut line = String::new();
        self.responses.read_line(&mut line)?;
        let response: Value =
            serde_json::from_str(&line).with_context(|| format!("{} does not respond", self.name))?;
        ensure!(response["ok"] == true, "{}", response["error"]);
        Ok(())
    }
}
