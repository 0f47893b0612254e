//! All files that contain the version have the same one, so that a tag can be created at any time.

use std::process::Command;

use crate::{file, repository, text_of};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn run(script: &str, tag: &str) -> (bool, String) {
    let output = Command::new(repository().join("image").join(script)).arg(tag).output().unwrap();
    (output.status.success(), text_of(&output))
}

#[test]
fn the_version_can_be_released() {
    assert_eq!(run("version", &format!("v{VERSION}")), (true, String::new()));
    let (succeeded, notes) = run("notes", &format!("v{VERSION}"));
    assert!(succeeded && notes.contains("### Added") && notes.contains("docs/release.md"), "{notes}");
}

#[test]
fn another_version_cannot_be_released() {
    let (succeeded, error) = run("version", "v99.0.0");
    assert!(!succeeded);
    for file in [
        "Cargo.toml",
        "Chart.yaml has no line 'version",
        "Chart.yaml has no line 'appVersion",
        "CHANGELOG.md",
    ] {
        assert!(error.contains(file), "{file} is not in:\n{error}");
    }
    let (succeeded, error) = run("version", VERSION);
    assert!(!succeeded && error.contains("it takes a tag"), "{error}");
}

#[test]
fn a_version_without_changes_is_not_released() {
    let copy = tempfile::tempdir().unwrap();
    let files = ["image", "Cargo.toml", "CHANGELOG.md", "charts"].map(|name| repository().join(name));
    assert!(Command::new("cp").arg("-r").args(files).arg(copy.path()).status().unwrap().success());
    let changes = file("CHANGELOG.md").replace(&format!("\n## {VERSION} - "), "\n## Unreleased ");
    std::fs::write(copy.path().join("CHANGELOG.md"), changes).unwrap();
    let output = Command::new(copy.path().join("image/release"))
        .env("NUMACAST_REVISION", "0123456789")
        .output()
        .unwrap();
    let expected = format!("image/notes: CHANGELOG.md has no changes for {VERSION}\n");
    assert_eq!((output.status.success(), text_of(&output)), (false, expected));
}

#[test]
fn the_image_is_built_with_a_supported_rust() {
    let number =
        |text: &str| -> Vec<u32> { text.trim().split('.').map(|part| part.parse().unwrap()).collect() };
    let manifest = file("Cargo.toml");
    let oldest = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    assert!(number(&file("image/rust-version")) >= number(oldest.trim_matches('"')));
}
