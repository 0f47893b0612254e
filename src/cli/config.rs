mod scheduler;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use serde_json::Value;

use super::exit::Exit;
use super::flags::{AgentFlags, ConfigArgs, finish, lines};
use crate::config::{self, Config, EVERY_NODE, Effective, Key, Layers, Origin, SCHEMA, Shown, explain};
use crate::topology::NodeExclusions;

/// Width of an explanation, in characters.
const WIDTH: usize = 100;
const INDENT: &str = "    ";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print a configuration file with every key, its default and its meaning.
    Defaults,
    /// Print the JSON Schema of a configuration file, for editors.
    Schema,
    /// Check a configuration file; exit 0 if it is valid, 1 with a sentence per error if not, 2 if it cannot be read.
    Check {
        /// The file to check.
        file: PathBuf,
    },
    /// Print the configuration that the given file, environment and flags result in, and where each value
    /// came from.
    Show(Box<ConfigArgs<AgentFlags>>),
    /// Explain keys, and the effects of setting them.
    Explain {
        /// A key such as exclude.pods, or a section such as exclude; every key if it is left out
        key: Option<String>,
    },
    Scheduler(Box<scheduler::Args>),
}

impl Args {
    /// Returns the exit code of an error: a check that could not be done is no answer.
    pub(super) const fn exit_of_error(&self) -> Exit {
        match &self.verb {
            Verb::Check { .. } => Exit::Unknown,
            Verb::Scheduler(args) => args.exit_of_error(),
            _ => Exit::Failure,
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { verb } = args;
    match verb {
        Verb::Defaults => super::print(&defaults(&finish(Layers::default(), &lines())?))?,
        Verb::Schema => super::print(SCHEMA)?,
        Verb::Check { file } => {
            std::fs::File::open(&file).with_context(|| format!("cannot read {}", file.display()))?;
            match finish(Layers::default().file(&file), &lines()) {
                Ok(effective) => {
                    super::print(&format!("{} is valid\n", file.display()))?;
                    warn(&all_warnings(&effective.config));
                }
                Err(errors) => {
                    super::print_error(errors);
                    return Ok(Exit::Failure.into());
                }
            }
        }
        Verb::Show(args) => {
            let effective = args.given.effective()?;
            let exclude = effective.config.exclusions();
            super::print(&(show(&effective) + &exclusions(&effective.config, &exclude)))?;
            warn(&exclude.warnings());
        }
        Verb::Explain { key } => {
            let blocks: Vec<String> = explain(key.as_deref())?.into_iter().map(explanation).collect();
            super::print(&blocks.join("\n"))?;
        }
        Verb::Scheduler(args) => return scheduler::run(*args),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a file that can be edited. Derived values are commented out, so that they keep following other
/// keys.
fn defaults(effective: &Effective) -> String {
    let mut text = String::new();
    let mut open: Vec<&str> = Vec::new();
    for Shown { key, value, origin } in &effective.values {
        let mut sections: Vec<&str> = key.name.split('.').collect();
        let name = sections.pop().unwrap_or_default();
        let common = open.iter().zip(&sections).take_while(|(one, other)| one == other).count();
        for (depth, section) in sections.iter().enumerate().skip(common) {
            let _ = writeln!(text, "{:1$}{section}:", "", 2 * depth);
        }
        let indent = 2 * sections.len();
        let comment = if *origin == Origin::Derived || value.is_null() { "# " } else { "" };
        let _ = writeln!(text, "{:indent$}# {}", "", key.summary);
        let _ = writeln!(text, "{:indent$}{comment}{name}: {}", "", scalar(value));
        open = sections;
    }
    text
}

fn show(effective: &Effective) -> String {
    let line =
        |shown: &Shown| (format!("{}: {}", shown.key.name, scalar(&shown.value)), shown.origin.to_string());
    let lines: Vec<(String, String)> = effective.values.iter().map(line).collect();
    // Long values do not affect the alignment of the origins.
    let width = lines.iter().map(|(line, _)| line.len()).filter(|width| *width <= WIDTH / 4 * 3).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for (line, origin) in lines {
        let _ = writeln!(text, "{line:width$}  # {origin}");
    }
    text
}

/// Returns the exclusions on the configured node, as comments.
fn exclusions(config: &Config, exclude: &NodeExclusions) -> String {
    let mut text = String::new();
    if config.exclude == config::Exclude::default() {
        return text;
    }
    let node = match config.node_name.as_str() {
        "" => "a node that no list names (NODE_NAME is not set)",
        name => name,
    };
    let _ = writeln!(text, "# On {node}:");
    if exclude.is_empty() {
        let _ = writeln!(text, "# - nothing is excluded");
    }
    if !exclude.resources.is_empty() {
        let names: Vec<&str> = exclude.resources.iter().map(String::as_str).collect();
        let _ = writeln!(text, "# - no zone lists {}", names.join(", "));
    }
    for pods in &exclude.pods {
        let _ = writeln!(text, "# - the resources of pods {pods} count as free");
    }
    if let Some(namespace) = &exclude.outside_namespace {
        let _ = writeln!(text, "# - the resources of pods outside the namespace {namespace} count as free");
    }
    text
}

/// Returns the warnings about the exclusions of all nodes.
fn all_warnings(config: &Config) -> Vec<String> {
    let config::Exclude { resources, pods, outside_namespace } = config.exclude.clone();
    let mut warnings = Vec::new();
    for (node, resources) in resources {
        let place = if node == EVERY_NODE { "every node".to_owned() } else { format!("node {node}") };
        let of_node = NodeExclusions { resources, ..NodeExclusions::default() };
        warnings.extend(of_node.warnings().into_iter().map(|text| format!("{place}: {text}")));
    }
    warnings.extend(NodeExclusions { pods, outside_namespace, ..NodeExclusions::default() }.warnings());
    warnings
}

/// Prints warnings to standard error: they are not the requested output.
fn warn(warnings: &[String]) {
    for warning in warnings {
        // A closed standard error is ignored.
        let _ = writeln!(std::io::stderr(), "{}: warning: {warning}", super::program::name());
    }
}

fn explanation(key: &Key) -> String {
    let mut text = format!("{}\n", key.name);
    wrap(&mut text, &key.summary);
    if !key.default.is_null() {
        wrap(&mut text, &format!("Default: {}", scalar(&key.default)));
    }
    for paragraph in &key.details {
        text.push('\n');
        wrap(&mut text, paragraph);
    }
    text
}

/// Appends an indented paragraph, wrapped at [`WIDTH`].
fn wrap(text: &mut String, paragraph: &str) {
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            text.push('\n');
            column = 0;
        }
        text.push_str(if column == 0 { INDENT } else { " " });
        text.push_str(word);
        column += length + if column == 0 { INDENT.len() } else { 1 };
    }
    text.push('\n');
}

/// Formats a value so that YAML parses it back.
fn scalar(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        // Quoted if YAML would parse it as another type.
        Value::String(text) if serde_saphyr::from_str::<Value>(text).ok().as_ref() != Some(value) => {
            format!("{text:?}")
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
