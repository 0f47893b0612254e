//! Shell completion. The scripts ask the hidden command `__complete`, in the protocol of kubectl's own scripts, so
//! that kubectl can ask it too.
//!
//! The scripts of clap_complete are not used, only its engine: they offer every flag where a name is expected, and in
//! Bash they split the names of contexts at colons.

mod names;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;
use clap_complete::CompletionCandidate;
use clap_complete::engine;

use super::exit::Exit;
pub(super) use names::{context_completer, namespace_completer, node_name_completer, pod_name_completer};

/// The hidden command, named as in programs that use Cobra.
pub(super) const COMPLETE: &str = "__complete";
/// Cobra's directives: no completion of files by the shell, and no space after the word.
const NO_FILES: u8 = 4;
const NO_SPACE: u8 = 2;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    /// The executable kubectl_complete-numacast, for kubectl's own completion
    Kubectl,
}

impl Shell {
    const fn script(self) -> &'static str {
        match self {
            Self::Bash => include_str!("completion/numacast.bash"),
            Self::Zsh => include_str!("completion/numacast.zsh"),
            Self::Fish => include_str!("completion/numacast.fish"),
            Self::Kubectl => include_str!("completion/kubectl_complete-numacast"),
        }
    }
}

/// Prints how the last word can go on.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(super) struct CompleteArgs {
    /// The words after the program's name
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    super::print(args.shell.script())?;
    Ok(Exit::Success.into())
}

pub(super) fn complete(args: CompleteArgs) -> anyhow::Result<ExitCode> {
    let mut words = vec![OsString::from(super::program::name())];
    words.extend(args.words);
    if words.len() == 1 {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    let wants_flag = words[last].as_encoded_bytes().starts_with(b"-");
    let directory = std::env::current_dir().ok();
    // A line that cannot be completed has no candidates; an error would be printed over it.
    let candidates =
        engine::complete(&mut super::command(), words, last, directory.as_deref()).unwrap_or_default();
    super::print(&print_candidates(&candidates, wants_flag))?;
    Ok(Exit::Success.into())
}

/// Prints one candidate per line, with its help after a tab, and a directive.
fn print_candidates(candidates: &[CompletionCandidate], wants_flag: bool) -> String {
    let (mut text, mut directive) = (String::new(), NO_FILES);
    for candidate in candidates {
        let Some(value) = candidate.get_value().to_str() else { continue };
        if value.contains(char::is_control) || (value.starts_with('-') && !wants_flag) {
            continue;
        }
        // A directory, or a namespace that a pod follows.
        if value.ends_with('/') {
            directive = NO_FILES | NO_SPACE;
        }
        text += value;
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        if let Some(line) = help.lines().next().filter(|line| !line.is_empty()) {
            let _ = write!(text, "\t{line}");
        }
        text.push('\n');
    }
    let _ = writeln!(text, ":{directive}");
    text
}
