//! The release process, without a release build: the scripts that build and check a release with fake cargo and
//! buildah, the workflows, and the version that many files contain.

#![allow(clippy::unwrap_used)] // a failing test shows where

mod complete;
mod recipe;
mod version;
mod workflows;

use std::path::Path;
use std::process::{Command, Output};

/// Returns the repository's root.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Reads a file of the repository.
#[track_caller]
fn file(name: &str) -> String {
    std::fs::read_to_string(repository().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns a command's standard output, followed by its standard error.
fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns a program that `tests/parts/build` provides; `None` if it is not available here, which is an error
/// with `CI=true`.
fn part(name: &str) -> Option<Command> {
    let output =
        Command::new(repository().join("tests/parts/build")).args(["--only", name]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(69) {
        assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "CI=true, but {error}");
        eprintln!("skipped for lack of {name}: {error}");
        return None;
    }
    assert!(output.status.success(), "{error}");
    let directory = String::from_utf8(output.stdout).unwrap();
    Some(Command::new(Path::new(directory.trim()).join(name)))
}
