//! The binary as kubectl's plugin, and the help of both.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{Outcome, numacast};

/// Runs the binary under the name `kubectl-numacast`.
fn plugin(words: &[&str]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let link: PathBuf = dir.path().join("kubectl-numacast");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_numacast"), &link).unwrap();
    let output = Command::new(link).args(words).env_remove("KUBECONFIG").output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn usage_help_and_errors_have_the_name_that_was_called() {
    for (name, run) in [("numacast", numacast as fn(&[&str]) -> Outcome), ("kubectl numacast", plugin)] {
        let starts = |text: &str, start: &str| {
            let line = format!("{start}{name} ");
            assert!(text.lines().any(|found| found.starts_with(&line)), "{line} is not in {text}");
        };
        starts(run(&["--help"]).success(), "Usage: ");
        starts(run(&["config", "scheduler", "--help"]).success(), "Usage: ");
        starts(&run(&["purge", "--nonsense"]).stderr, "Usage: ");
        let invalid = run(&["agent", "--set", "scan.pol=2s", "--set", "scan.polls=2s"]);
        assert_eq!(invalid.stderr.lines().count(), 2, "{invalid:?}");
        assert!(invalid.stderr.lines().all(|line| line.starts_with(&format!("{name}: "))), "{invalid:?}");
        let version = format!("numacast {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(run(&["--version"]).success(), version);
    }
}

/// Returns the commands of a part of the help.
fn commands(help: &str, heading: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn the_help_has_commands_for_people_first() {
    let outcome = numacast(&["--help"]);
    let help = outcome.success();
    let people = ["show", "fit", "doctor", "ui", "snapshot", "pods", "config", "crd", "demo", "completion"];
    let found = commands(help, "Commands:");
    let known: Vec<&str> =
        people.into_iter().filter(|name| found.iter().any(|found| found == name)).collect();
    assert_eq!(found, known);
    assert!(found.len() >= 5, "{help}");
    let of_chart = ["agent", "controller", "proxy", "pods-api", "purge", "wait"];
    assert_eq!(commands(help, "Commands that the chart runs:"), of_chart);
    assert!(!help.contains("__complete"), "{help}");
    // The list is not wrapped.
    let list = help.lines().filter(|line| line.starts_with("  "));
    assert_eq!(list.filter(|line| line.chars().count() > 80).collect::<Vec<_>>(), [""; 0]);
}
