//! The exit codes of all commands.

use std::process::ExitCode;

/// What an exit code says. `docs/tools.md` has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Done. Of a command that answers a question: nothing is wrong.
    Success = 0,
    /// Not done. Of a command that answers a question: something is wrong.
    Failure = 1,
    /// The command line is wrong, for which clap has this code. Of a command that answers a question: it could not
    /// find out.
    Unknown = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
