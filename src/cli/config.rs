//! `numacast config`

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::settings::{SettingsArgs, finish};
use crate::config::{DOCS, Effective, Layers};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print a configuration file with every key, its default and its meaning.
    Defaults,
    /// Check a configuration file; exit 0 if it is right, 1 with a sentence per mistake if not.
    Check {
        /// The file to check.
        file: PathBuf,
    },
    /// Print the configuration that the given file, environment and flags result in, and where each value
    /// came from.
    Show(Box<SettingsArgs>),
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { verb } = args;
    match verb {
        Verb::Defaults => super::print(&defaults(&finish(Layers::default())?))?,
        Verb::Check { file } => {
            finish(Layers::default().file(&file))?;
            super::print(&format!("{} is right\n", file.display()))?;
        }
        Verb::Show(settings) => super::print(&show(&settings.effective()?))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A file that can be edited: derived paths are commented out, so that they go on following the others.
fn defaults(effective: &Effective) -> String {
    let mut text = String::new();
    let mut section = "";
    for ((key, value, origin), (_, meaning)) in effective.values.iter().zip(DOCS) {
        let (parent, name) = key.rsplit_once('.').unwrap_or(("", key));
        if parent != section {
            section = parent;
            let _ = writeln!(text, "{section}:");
        }
        let indent = if parent.is_empty() { "" } else { "  " };
        let _ = writeln!(text, "{indent}# {meaning}");
        let comment = if *origin == crate::config::Origin::Derived || value.is_null() { "# " } else { "" };
        let _ = writeln!(text, "{indent}{comment}{name}: {}", scalar(value));
    }
    text
}

fn show(effective: &Effective) -> String {
    let lines: Vec<(String, String)> = effective
        .values
        .iter()
        .map(|(key, value, origin)| (format!("{key}: {}", scalar(value)), origin.to_string()))
        .collect();
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (line, origin) in lines {
        let _ = writeln!(text, "{line:width$}  # {origin}");
    }
    text
}

/// A scalar as YAML reads it back.
fn scalar(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
