//! Client programs in Python. Each is started once for all its commands: the start takes more CPU time than
//! most commands.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

use super::process::tethered;

/// A program that runs the commands on its standard input and prints a line for each.
#[derive(Clone, Debug)]
pub(crate) struct Python {
    program: PathBuf,
    running: Arc<Mutex<Option<Running>>>,
}

#[derive(Debug)]
struct Running {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Killed when dropped.
    _child: Child,
}

impl Python {
    pub(crate) fn new(program: PathBuf) -> Self {
        Self { program, running: Arc::default() }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Runs a command and returns the line that it prints.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut place = self.running.lock().await;
        // Taken: if the caller gives up meanwhile, the program ends, and nobody else gets this line.
        let mut running = place.take().map_or_else(|| Running::start(&self.program), Ok)?;
        let command = format!("{}\n", serde_json::to_string(arguments)?);
        running.input.write_all(command.as_bytes()).await?;
        let line = running.output.next_line().await?;
        let line = line.with_context(|| format!("Python ended at {arguments:?}"))?;
        *place = Some(running);
        Ok(line)
    }
}

impl Running {
    fn start(program: &Path) -> Result<Self> {
        let mut command = Command::from(tethered(program));
        command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| program.display().to_string())?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { input, output, _child: child })
    }
}
