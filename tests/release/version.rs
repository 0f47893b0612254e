//! All files that contain the version have the same one when a tag is created.

use std::process::Command;

use crate::{file, repository, text_of};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns a copy of the files that contain the version, with `Unreleased` replaced by a release.
fn release_candidate() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["image/version", "image/notes", "Cargo.toml", "charts/numacast/Chart.yaml", "CHANGELOG.md"] {
        let copy = dir.path().join(name);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(repository().join(name), copy).unwrap();
    }
    let heading = format!("## {VERSION} - 2026-12-01");
    let changes = file("CHANGELOG.md").replacen("## Unreleased", &heading, 1);
    assert!(changes.contains(&heading), "CHANGELOG.md has no section `Unreleased`");
    std::fs::write(dir.path().join("CHANGELOG.md"), changes).unwrap();
    dir
}

fn run(dir: &tempfile::TempDir, script: &str, tag: &str) -> (bool, String) {
    let output = Command::new(dir.path().join("image").join(script)).arg(tag).output().unwrap();
    (output.status.success(), text_of(&output))
}

#[test]
fn the_version_can_be_released() {
    let dir = release_candidate();
    assert_eq!(run(&dir, "version", &format!("v{VERSION}")), (true, String::new()));
    let (succeeded, notes) = run(&dir, "notes", &format!("v{VERSION}"));
    assert!(succeeded && notes.contains("### Added") && notes.contains("docs/release.md"), "{notes}");
}

#[test]
fn another_version_cannot_be_released() {
    let dir = release_candidate();
    let (succeeded, error) = run(&dir, "version", "v99.0.0");
    assert!(!succeeded);
    for file in [
        "Cargo.toml",
        "Chart.yaml has no line 'version",
        "Chart.yaml has no line 'appVersion",
        "CHANGELOG.md",
    ] {
        assert!(error.contains(file), "{file} is not in:\n{error}");
    }
    let (succeeded, error) = run(&dir, "version", VERSION);
    assert!(!succeeded && error.contains("it takes a tag"), "{error}");
}

#[test]
fn the_image_is_built_with_a_supported_rust() {
    let number =
        |text: &str| -> Vec<u32> { text.trim().split('.').map(|part| part.parse().unwrap()).collect() };
    let manifest = file("Cargo.toml");
    let oldest = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    assert!(number(&file("image/rust-version")) >= number(oldest.trim_matches('"')));
}
