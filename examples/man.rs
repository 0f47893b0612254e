//! Writes the man pages of all commands into a directory: `cargo run --example man -- DIRECTORY`.

use std::io::{Error, Result};

fn main() -> Result<()> {
    let directory = std::env::args_os().nth(1).ok_or_else(|| Error::other("name a directory"))?;
    clap_mangen::generate_to(numacast::cli::command(), directory)
}
