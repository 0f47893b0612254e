//! What `doctor` prints.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::facts::{Facts, Unchecked};
use crate::inspect::{Finding, Mend, Severity};
use crate::render::{Line, Style, page};

/// Maximum number of findings of each check in the report.
const MAX_FINDINGS: usize = 100;

/// The result of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// How many more findings each of these checks has.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub more: BTreeMap<&'static str, usize>,
    /// What could not be checked.
    pub unchecked: Vec<Unchecked>,
}

/// The size of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Nodes.
    pub nodes: usize,
    /// Those that should have an agent.
    pub covered_nodes: usize,
    /// Agents that are Ready.
    pub ready_agents: usize,
    /// Objects.
    pub objects: usize,
}

/// What a report means, for an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is wrong.
    Well,
    /// There are findings.
    Findings,
    /// Something essential could not be checked.
    Incomplete,
}

impl Report {
    pub(super) fn new(facts: &Facts, findings: Vec<Finding>) -> Self {
        let covered =
            facts.nodes.iter().flatten().filter(|(name, _)| super::agents::covering(facts, name).is_some());
        let agents = super::agents::by_node(facts);
        let summary = Summary {
            nodes: facts.nodes.as_ref().map_or(0, BTreeMap::len),
            covered_nodes: covered.count(),
            ready_agents: agents.values().flatten().filter(|agent| agent.ready).count(),
            objects: facts.objects.as_ref().map_or(0, Vec::len),
        };
        let mut report =
            Self { summary: Some(summary), unchecked: facts.unchecked.clone(), ..Self::default() };
        report.add(findings);
        report
    }

    /// Adds findings, up to the maximum for each check.
    pub fn add(&mut self, mut findings: Vec<Finding>) {
        findings.append(&mut self.findings);
        findings.sort();
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        for finding in findings {
            let count = counts.entry(finding.check).or_default();
            *count += 1;
            match *count <= MAX_FINDINGS {
                true => self.findings.push(finding),
                false => *self.more.entry(finding.check).or_default() += 1,
            }
        }
    }

    /// Removes the findings of these checks.
    pub fn ignore(&mut self, checks: &[String]) {
        let is_ignored = |check: &str| checks.iter().any(|ignored| ignored == check);
        self.findings.retain(|finding| !is_ignored(finding.check));
        self.more.retain(|check, _| !is_ignored(check));
    }

    /// Returns what it means.
    pub fn outcome(&self) -> Outcome {
        match self.unchecked.iter().any(|one| one.essential) {
            true => Outcome::Incomplete,
            false if self.findings.is_empty() => Outcome::Well,
            false => Outcome::Findings,
        }
    }

    fn count(&self, severity: Severity) -> usize {
        let of_check = |check: &str| self.findings.iter().find(|finding| finding.check == check);
        let more =
            self.more.iter().filter(|(check, _)| of_check(check).is_some_and(|one| one.severity == severity));
        self.findings.iter().filter(|finding| finding.severity == severity).count()
            + more.map(|(_, count)| *count).sum::<usize>()
    }

    /// Returns the first line: what was checked, and how many findings there are.
    fn headline(&self) -> String {
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        let result = match (errors, warnings) {
            (0, 0) if self.outcome() == Outcome::Incomplete => "not everything could be checked".to_owned(),
            (0, 0) => "nothing is wrong".to_owned(),
            (errors, 0) => counted(errors, "error"),
            (0, warnings) => counted(warnings, "warning"),
            (errors, warnings) => {
                format!("{}, {}", counted(errors, "error"), counted(warnings, "warning"))
            }
        };
        match &self.summary {
            Some(Summary { nodes, covered_nodes, ready_agents, objects }) => format!(
                "{}, {} desired, {ready_agents} Ready, {}: {result}",
                counted(*nodes, "Node"),
                counted(*covered_nodes, "agent"),
                counted(*objects, "object"),
            ),
            None => result,
        }
    }
}

pub(super) fn counted(count: usize, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

impl Report {
    /// Returns the report for a terminal with this many columns. Commands are not wrapped, so that they can be copied.
    pub fn lines(&self, width: usize) -> Vec<Line> {
        let mut lines = wrapped("", &self.headline(), Style::Bold, width);
        for findings in self.findings.chunk_by(|one, other| one.check == other.check) {
            lines.push(Line::default());
            of_check(findings, width, &mut lines);
            if let Some(more) = self.more.get(findings[0].check) {
                lines.push(Line::new(format!("  and {more} more"), Style::Dim));
            }
        }
        if !self.unchecked.is_empty() {
            lines.extend([Line::default(), Line::new("Not checked", Style::Bold)]);
        }
        for Unchecked { what, reason, needs, .. } in &self.unchecked {
            lines.extend(wrapped("  ", &format!("{what}: {reason}"), Style::Plain, width));
            lines.extend(needs.map(|needs| Line::new(format!("    permission needed: {needs}"), Style::Dim)));
        }
        lines
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", page(&self.lines(usize::MAX), usize::MAX, false))
    }
}

/// Adds the findings of one check. How to mend them follows the last of those that it is the same for.
fn of_check(findings: &[Finding], width: usize, lines: &mut Vec<Line>) {
    let first = &findings[0];
    let (severity, style) = match first.severity {
        Severity::Error => ("ERROR", Style::Bad),
        Severity::Warning => ("WARNING", Style::Warning),
    };
    lines.extend(wrapped("", &format!("{severity} {}: {}", first.check, first.why), style, width));
    for same in findings.chunk_by(|one, other| one.mend == other.mend) {
        for Finding { place, what, .. } in same {
            lines.extend(wrapped("  ", &format!("{place}: {what}"), Style::Plain, width));
        }
        match &same[0].mend {
            Mend::Run(command) => lines.push(Line::new(format!("    $ {command}"), Style::Good)),
            Mend::Do(text) => lines.extend(wrapped("    ", text, Style::Good, width)),
        }
    }
}

fn wrapped(indent: &str, text: &str, style: Style, width: usize) -> Vec<Line> {
    Line::new(format!("{indent}{text}"), style).wrapped(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Check;

    static ODD: Check =
        Check { name: "Odd", severity: Severity::Error, looks_for: "an oddity", why: "It is odd." };
    static SLOW: Check =
        Check { name: "Slow", severity: Severity::Warning, looks_for: "slowness", why: "It takes long." };

    fn unchecked(essential: bool) -> Unchecked {
        let needs = Some("`list` of nodes");
        Unchecked { what: "the Nodes".to_owned(), reason: "denied".to_owned(), needs, essential }
    }

    #[test]
    fn findings_are_grouped_by_check_the_worst_first() {
        let mut report = Report { unchecked: vec![unchecked(false)], ..Report::default() };
        let wait = Mend::Do("Wait.".to_owned());
        report.add(vec![
            SLOW.finding("Node c", "it is slow", wait.clone()),
            ODD.finding("Node b", "it is odd", Mend::Run("x b".to_owned())),
            ODD.finding("Node a", "it is odd", Mend::Run("x a".to_owned())),
            SLOW.finding("Node a", "it is slow", wait),
        ]);
        let expected = "2 errors, 2 warnings\n\nERROR Odd: It is odd.\n  Node a: it is odd\n    $ x a\n  Node b: it is odd\n    $ x b\n\n\
                        WARNING Slow: It takes long.\n  Node a: it is slow\n  Node c: it is slow\n    Wait.\n\nNot checked\n  \
                        the Nodes: denied\n    permission needed: `list` of nodes\n";
        assert_eq!(report.to_string(), expected);
        assert_eq!(report.outcome(), Outcome::Findings);
        report.ignore(&["Odd".to_owned(), "Slow".to_owned()]);
        assert_eq!((report.outcome(), report.findings.len()), (Outcome::Well, 0));
        report.unchecked.push(unchecked(true));
        assert_eq!(report.outcome(), Outcome::Incomplete);
    }

    #[test]
    fn sentences_are_wrapped_and_commands_are_not() {
        let mut report = Report::default();
        report.add(vec![ODD.finding("Node a", "it is very odd", Mend::Run("kubectl get node a".to_owned()))]);
        let text = page(&report.lines(18), usize::MAX, false);
        assert_eq!(
            text,
            "1 error\n\nERROR Odd: It is\n  odd.\n  Node a: it is\n    very odd\n    $ kubectl get node a"
        );
    }

    #[test]
    fn findings_of_one_check_are_limited() {
        let mut report = Report::default();
        let many = (0..MAX_FINDINGS + 5)
            .map(|n| ODD.finding(format!("Node {n:03}"), "odd", Mend::Do("x".to_owned())));
        report.add(many.collect());
        assert_eq!((report.findings.len(), report.more["Odd"]), (MAX_FINDINGS, 5));
        assert!(
            report.to_string().starts_with("105 errors\n") && report.to_string().ends_with("  and 5 more\n")
        );
    }
}
