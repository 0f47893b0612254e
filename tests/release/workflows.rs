//! The workflows: their actions are pinned, and linters find nothing.

use std::path::PathBuf;

use crate::{part, repository, text_of};

fn workflows() -> Vec<PathBuf> {
    let dir = std::fs::read_dir(repository().join(".github/workflows")).unwrap();
    let files: Vec<_> = dir.map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 2, "{files:?}");
    files
}

/// Returns every value of a key in a workflow, with the comment after it.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let line = line.trim().trim_start_matches("- ");
        line.strip_prefix(key)?.strip_prefix(": ")
    })
}

/// Returns why an action is not pinned; `None` if it is.
fn unpinned(used: &str) -> Option<&'static str> {
    let (name, comment) = used.split_once(" # ").unwrap_or((used, ""));
    if name.starts_with("./") {
        return None;
    }
    let Some((_, commit)) = name.split_once('@') else { return Some("no commit") };
    if commit.len() != 40 || !commit.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')) {
        return Some("no full commit hash");
    }
    let version =
        comment.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    (!version).then_some("no version in a comment")
}

#[test]
fn every_action_is_pinned() {
    let mut uses = 0;
    for file in workflows() {
        let text = std::fs::read_to_string(&file).unwrap();
        for used in values(&text, "uses") {
            assert_eq!(unpinned(used), None, "{}: {used}", file.display());
            uses += 1;
        }
    }
    assert!(uses >= 8, "only {uses} uses were found");
}

#[test]
fn unpinned_actions_are_detected() {
    let commit = "9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0";
    assert_eq!(unpinned(&format!("actions/checkout@{commit} # v7.0.0")), None);
    assert_eq!(unpinned("actions/checkout"), Some("no commit"));
    assert_eq!(unpinned("actions/checkout@v7 # v7.0.0"), Some("no full commit hash"));
    let short = &commit[..12];
    assert_eq!(unpinned(&format!("actions/checkout@{short} # v7.0.0")), Some("no full commit hash"));
    assert_eq!(unpinned(&format!("actions/checkout@{commit}")), Some("no version in a comment"));
    assert_eq!(
        values("    steps:\n      - uses: a@b # v1\n        uses: c\n", "uses").collect::<Vec<_>>(),
        ["a@b # v1", "c"]
    );
}

/// A workflow has no permissions except those given to its jobs.
#[test]
fn only_jobs_have_permissions() {
    for file in workflows() {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.lines().any(|line| line == "permissions: {}"), "{}", file.display());
    }
}

#[test]
fn actionlint_finds_nothing() {
    let Some(mut linter) = part("actionlint") else { return };
    let output = linter.arg("-no-color").args(workflows()).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn zizmor_finds_nothing() {
    let Some(mut linter) = part("zizmor") else { return };
    let output = linter.args(["--offline", "--no-progress"]).args(workflows()).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}

/// The workflow publishes what `make release` makes: both run the same scripts.
#[test]
fn a_tag_publishes_what_make_release_makes() {
    let makefile = crate::file("Makefile");
    let recipe = makefile.split("\nrelease:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let workflow = crate::file(".github/workflows/release.yaml");
    let mut commands: Vec<_> = recipe.lines().map(str::trim).filter(|line| !line.starts_with('@')).collect();
    assert_eq!(commands.pop(), Some("image/release"));
    for command in commands {
        let runs = |line: &str| line.trim().trim_start_matches("run: ") == command;
        assert!(workflow.lines().any(runs), "release.yaml does not run {command}");
    }
    assert!(workflow.contains("$(image/release amd64 arm64 "));
    assert!(workflow.contains("gh release create") && workflow.contains(r#" "$DIRECTORY"/*"#));
}
