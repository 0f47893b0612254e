//! All checks together. `tests/real/doctor.rs` plants what they find in a real API server.

use std::collections::BTreeSet;

use super::*;
use crate::generated;

#[test]
fn names_are_unique() {
    let names: BTreeSet<&str> = cluster_checks().map(|check| check.name).collect();
    assert_eq!(names.len(), cluster_checks().count());
}

/// Returns the documentation of checks.
pub(in crate::inspect) fn table<'a>(checks: impl IntoIterator<Item = &'a Check>) -> String {
    let mut table = "| check | looks for | severity | leads to |\n|---|---|---|---|\n".to_owned();
    for check in checks {
        let severity = format!("{:?}", check.severity).to_lowercase();
        table += &format!("| `{}` | {} | {severity} | {} |\n", check.name, check.looks_for, check.why);
    }
    table
}

#[test]
fn nothing_is_found_in_what_could_not_be_read() {
    assert_eq!(findings(&Facts::default()), []);
}

#[test]
fn the_document_lists_every_check() {
    generated::section("docs/doctor.md", "checks of a cluster", &table(cluster_checks()));
}
