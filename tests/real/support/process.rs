//! Programs that a test starts and that never outlive it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

use super::wait::Hopeless;

/// A running program; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

/// Returns a command that the kernel kills when this thread ends: the safety net for [`Process`] if the test
/// process dies without dropping anything. So start processes from the test's own thread.
pub(crate) fn tethered(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program.as_ref());
    command
}

impl Process {
    /// Starts a command; its output is appended to `<logs>/<name>.log`.
    pub(crate) fn start(name: &str, logs: &Path, mut command: Command) -> Result<Self> {
        let path = logs.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&path)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), log: path, child })
    }

    /// Starts a command with pipes to its standard input and output.
    pub(crate) fn start_to_talk(
        name: &str,
        logs: &Path,
        mut command: Command,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        let path = logs.join(format!("{name}.log"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&path)?);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let ends = child.stdin.take().zip(child.stdout.take());
        let (input, output) = ends.context("a child without pipes")?;
        Ok((Self { name: name.to_owned(), log: path, child }, input, output))
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error with the end of the log if the program has exited.
    pub(crate) fn still_runs(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let end = format!("{} ended with {status}; its last words:\n{}", self.name, self.last_words());
            return Err(Hopeless(end).into());
        }
        Ok(())
    }

    /// Sends a signal: `TERM`, `STOP`, `CONT`, `HUP`.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", self.id())).status()?;
        ensure!(sent.success(), "cannot send SIG{name} to {}", self.name);
        Ok(())
    }

    /// Kills the program and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Returns the exit status if the program has exited.
    pub(crate) fn has_ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until the program exits by itself.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Returns the last lines of the program's output.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
