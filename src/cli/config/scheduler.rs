use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::super::exit::Exit;
use super::super::flags::{ConfigArgs, Flag, Flags};
use crate::names::is_dns_name;
use crate::scheduler_config::{self, MAX_BYTES};

/// Prints a scheduler's configuration with the plugin NodeResourceTopologyMatch that fits, or compares an existing one.
///
/// The given configuration is that of the agents, with `controller.nudge` if that is set. Without --check the result is a
/// KubeSchedulerConfiguration for a second scheduler.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Compare this KubeSchedulerConfiguration (- for standard input): prints what disagrees and what it leads to; exit 0 if
    /// nothing does, 1 if something does, 2 if it cannot be compared
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    check: Option<PathBuf>,
    /// The scheduler's name, which pods have as schedulerName
    #[arg(long, default_value = "numa-scheduler")]
    name: String,
    #[command(flatten)]
    config: ConfigArgs<NoFlags>,
}

#[derive(Clone, Debug)]
struct NoFlags;

impl Flags for NoFlags {
    const FLAGS: &'static [&'static [Flag]] = &[];
}

impl Args {
    pub(super) const fn exit_of_error(&self) -> Exit {
        if self.check.is_some() { Exit::Unknown } else { Exit::Failure }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { check, name, config } = args;
    let config = config.given.effective()?.config;
    let Some(file) = check else {
        if !is_dns_name(&name) {
            bail!("--name {name}: a scheduler's name has lowercase letters, digits, `-` and `.`");
        }
        super::super::print(&scheduler_config::profile(&config, &name)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let text = super::super::input::read(&file, MAX_BYTES)?;
    let found =
        scheduler_config::disagreements(&config, &text).with_context(|| file.display().to_string())?;
    if found.is_empty() {
        super::super::print(&format!("{} fits the configuration\n", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    super::super::print(&found.iter().map(|sentence| format!("{sentence}\n")).collect::<String>())?;
    Ok(Exit::Failure.into())
}
