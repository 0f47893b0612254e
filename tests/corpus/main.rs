//! The fuzzer's corpus on the stable compiler: every file of `fuzz/corpus/<target>` is run through the same
//! function that `make fuzz` runs.

#![allow(clippy::unwrap_used)] // a failing test shows where

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::path::Path;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");

fn replay(name: &str, target: targets::Target) {
    let dir = Path::new(CORPUS).join(name);
    let mut files: Vec<_> = dir.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} has only {} files", dir.display(), files.len());
    for file in files {
        // Shown if the target panics.
        eprintln!("{}", file.display());
        target(&std::fs::read(file).unwrap());
    }
}

#[test]
fn every_target_has_a_corpus() {
    let dir = Path::new(CORPUS);
    let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut corpora: Vec<String> = entries.collect();
    corpora.sort();
    let mut names = targets::TARGETS.map(|(name, _)| name);
    names.sort_unstable();
    assert_eq!(corpora, names);
}

#[test]
fn every_file_of_every_target_is_accepted() {
    targets::TARGETS.iter().for_each(|(name, target)| replay(name, *target));
}
