//! Programs that a test starts. They never outlive the test program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result, ensure};

use super::wait::Fatal;

/// A running program; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

/// Returns a command that the kernel kills when the thread that started it ends: the safety net for
/// [`Process`] if the test program dies without dropping anything.
pub(crate) fn tethered(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program.as_ref());
    command
}

/// A command to start, and where to send the result.
type Job = (Command, Sender<std::io::Result<Child>>);

/// Starts every [`Process`] on one thread that lives as long as the test program. A test's own thread ends
/// with the test, and a control plane is used by several.
static STARTER: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = channel::<Job>();
    std::thread::spawn(move || {
        for (mut command, result) in jobs {
            // The receiver waits for it.
            let _ = result.send(command.spawn());
        }
    });
    sender
});

fn spawn(name: &str, command: Command) -> Result<Child> {
    let (sender, result) = channel();
    STARTER.send((command, sender)).ok().context("no thread starts programs")?;
    result.recv()?.with_context(|| format!("cannot start {name}"))
}

impl Process {
    /// Starts a command; its output is appended to `<logs>/<name>.log`.
    pub(crate) fn start(name: &str, logs: &Path, mut command: Command) -> Result<Self> {
        let path = logs.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&path)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self { name: name.to_owned(), log: path, child: spawn(name, command)? })
    }

    /// Starts a command with pipes to its standard input and output.
    pub(crate) fn start_with_pipes(
        name: &str,
        logs: &Path,
        mut command: Command,
    ) -> Result<(Self, ChildStdin, ChildStdout)> {
        let path = logs.join(format!("{name}.log"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&path)?);
        let mut child = spawn(name, command)?;
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
            let end = format!("{} ended with {status}; the end of its log:\n{}", self.name, self.log_tail());
            return Err(Fatal(end).into());
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

    /// Kills the program and all that it has started, if it was started as the leader of a process group.
    pub(crate) fn kill_group(&mut self) -> Result<()> {
        let id = self.id();
        let sent = Command::new("sh").arg("-c").arg(format!("kill -s KILL -- -{id}")).status()?;
        ensure!(sent.success(), "cannot kill the process group of {}", self.name);
        self.child.wait()?;
        Ok(())
    }

    /// Returns the exit status if the program has exited.
    pub(crate) fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until the program exits by itself.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }

    /// Returns the last lines of the program's output.
    pub(crate) fn log_tail(&self) -> String {
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
