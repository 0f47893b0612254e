//! Exit codes: the table in `docs/tools.md`, each of its codes by a command that ends with it.

use std::collections::BTreeSet;

use crate::support::numacast;

/// A command of the table, its arguments, and its exit code. `$` stands for a directory with the files of [`FILES`].
const CASES: &[(&str, &str, i32)] = &[
    ("all others", "crd", 0),
    ("all others", "agent", 1),
    ("all others", "config explain nonsense", 1),
    ("all others", "pods list --socket $/nothing", 1),
    ("all others", "purge --kubeconfig $/nothing -n numacast", 1),
    ("all others", "nonsense", 2),
    ("all others", "crd --nonsense", 2),
    ("all others", "", 2),
    ("config check", "config check $/valid.yaml", 0),
    ("config check", "config check $/invalid.yaml", 1),
    ("config check", "config check $/nothing", 2),
    ("config scheduler --check", "config scheduler --check $/fits.yaml", 0),
    ("config scheduler --check", "config scheduler --check $/differs.yaml", 1),
    ("config scheduler --check", "config scheduler --check $/nothing", 2),
    ("fit", "fit --cpu 1 --memory 1Gi --kubeconfig $/kubeconfig", 2),
    ("all others", "show --kubeconfig $/kubeconfig", 1),
    ("doctor", "doctor --kubeconfig $/kubeconfig", 2),
    ("wait", "wait -n numacast --kubeconfig $/kubeconfig --timeout 1ms", 2),
    ("wait", "wait -n numacast --kubeconfig $/kubeconfig --timeout 1ms --exit-zero", 0),
    ("wait", "wait -n numacast --kubeconfig $/nothing --exit-zero", 2),
];

/// Codes that need a cluster: in `doctor.rs`, `fit.rs` and `controller.rs` of `tests/real`.
const ELSEWHERE: &[(&str, i32)] = &[("doctor", 0), ("doctor", 1), ("fit", 0), ("fit", 1), ("wait", 1)];

const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "a",
"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "a", "user": {}}],
"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}"#;

#[test]
fn every_command_ends_with_its_codes() {
    let dir = tempfile::tempdir().unwrap();
    let scheduler = numacast(&["config", "scheduler"]).success().to_owned();
    let other = scheduler.replace("foreignPodsDetect", "foreignPods");
    for (name, text) in [
        ("valid.yaml", "scan: {poll: 2s}\n"),
        ("invalid.yaml", "scan: {pol: 2s}\n"),
        ("fits.yaml", &scheduler),
        ("differs.yaml", &other),
        ("kubeconfig", KUBECONFIG),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    for (_, line, code) in CASES {
        let line = line.replace('$', dir.path().to_str().unwrap());
        let outcome = numacast(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(outcome.code, Some(*code), "{line}: {outcome:?}");
    }
}

/// Returns the rows of the document's table: a command, and its codes with a meaning.
fn documented() -> BTreeSet<(String, i32)> {
    let text = include_str!("../../docs/tools.md");
    let section = text.split("\n## ").find(|section| section.starts_with("Exit codes\n")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let row = |row: &str| -> Vec<(String, i32)> {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let codes = (0..).zip(&cells[1..]).filter(|(_, meaning)| !meaning.is_empty());
        codes.map(|(code, _)| (cells[0].replace('`', ""), code)).collect()
    };
    rows.flat_map(row).collect()
}

#[test]
fn the_document_has_the_codes_of_every_command() {
    let tested: BTreeSet<(String, i32)> = CASES
        .iter()
        .map(|(command, _, code)| (*command, *code))
        .chain(ELSEWHERE.iter().copied())
        .map(|(command, code)| (command.to_owned(), code))
        .collect();
    assert_eq!(documented(), tested);
}
