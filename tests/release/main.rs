//! What a release is made by, without a release build: the recipe of binary and image with stand-ins for cargo and
//! buildah, the workflows, and the version that many files carry.

#![allow(clippy::unwrap_used)] // a test that fails says where

mod recipe;
mod version;
mod workflows;

use std::path::Path;
use std::process::{Command, Output};

/// The directory of the repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
#[track_caller]
fn file(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What a command said: on both streams, in the order of the streams.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What `tests/parts/build` has of a program. `None`: it cannot be had here, which has been said, and is an error where
/// `CI=true`.
fn part(name: &str) -> Option<Command> {
    let output =
        Command::new(repository().join("tests/parts/build")).args(["--only", name]).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(69) {
        assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "CI=true, but {why}");
        eprintln!("skipped, passing: what needs {name}: {why}");
        return None;
    }
    assert!(output.status.success(), "{why}");
    let said = String::from_utf8(output.stdout).unwrap();
    Some(Command::new(Path::new(said.trim()).join(name)))
}
