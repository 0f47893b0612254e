//! All files that contain the version agree when a tag is created.

use std::process::Command;

use crate::{file, repository, said};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns a copy of the files that contain the version, with `Unreleased` replaced by a release.
fn about_to_be_released() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["image/version", "image/notes", "Cargo.toml", "charts/numacast/Chart.yaml", "CHANGELOG.md"] {
        let copy = dir.path().join(name);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(repository().join(name), copy).unwrap();
    }
    let heading = format!("## {VERSION} - 2026-12-01");
    let changes = file("CHANGELOG.md").replacen("## Unreleased", &heading, 1);
    assert!(changes.contains(&heading), "CHANGELOG.md has no part that is not released");
    std::fs::write(dir.path().join("CHANGELOG.md"), changes).unwrap();
    dir
}

fn run(dir: &tempfile::TempDir, script: &str, tag: &str) -> (bool, String) {
    let output = Command::new(dir.path().join("image").join(script)).arg(tag).output().unwrap();
    (output.status.success(), said(&output))
}

#[test]
fn the_version_can_be_released() {
    let dir = about_to_be_released();
    assert_eq!(run(&dir, "version", &format!("v{VERSION}")), (true, String::new()));
    let (good, notes) = run(&dir, "notes", &format!("v{VERSION}"));
    assert!(good && notes.contains("### Added") && notes.contains("docs/release.md"), "{notes}");
}

#[test]
fn another_version_cannot() {
    let dir = about_to_be_released();
    let (good, complaint) = run(&dir, "version", "v99.0.0");
    assert!(!good);
    for file in [
        "Cargo.toml",
        "Chart.yaml has no line 'version",
        "Chart.yaml has no line 'appVersion",
        "CHANGELOG.md",
    ] {
        assert!(complaint.contains(file), "{file} is not in:\n{complaint}");
    }
    let (good, complaint) = run(&dir, "version", VERSION);
    assert!(!good && complaint.contains("it takes a tag"), "{complaint}");
}

#[test]
fn the_release_has_a_rust_that_can_build_it() {
    let number =
        |text: &str| -> Vec<u32> { text.trim().split('.').map(|part| part.parse().unwrap()).collect() };
    let manifest = file("Cargo.toml");
    let oldest = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    assert!(number(&file("image/rust-version")) >= number(oldest.trim_matches('"')));
}
