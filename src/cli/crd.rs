use std::process::ExitCode;

use crate::nrt;

/// Prints the CRD, both versions, as YAML: `numacast crd | kubectl apply -f -`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args {} = args;
    super::print(nrt::CRD)?;
    Ok(ExitCode::SUCCESS)
}
