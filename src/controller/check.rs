//! A one-time check of the whole fleet, for a person or `helm test`.

use std::collections::BTreeMap;
use std::fmt;

use super::coverage::Coverage;
use super::fleet::{Fleet, NEWER, NO_SCHEDULER};
use super::settings::Settings;
use super::silence::Lack;
use crate::cluster::{Brief, Cluster, ClusterError, pod_labels};

/// Maximum number of problems of each kind in the report.
const MOST: usize = 100;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    summary: String,
    problems: Vec<String>,
}

impl Report {
    /// Returns true if there are no problems.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// Adds the problems of one kind, up to the maximum.
    fn add(&mut self, problems: Vec<String>) {
        let more = problems.len().saturating_sub(MOST);
        self.problems.extend(problems.into_iter().take(MOST));
        if more > 0 {
            self.problems.push(format!("and {more} more like these"));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        for problem in &self.problems {
            writeln!(f, "- {problem}")?;
        }
        if self.is_good() { writeln!(f, "nothing is wrong") } else { Ok(()) }
    }
}

/// The state of a Node.
struct Seen {
    covered: bool,
    ready: bool,
}

/// The state of the fleet.
#[derive(Default)]
struct View {
    nodes: BTreeMap<String, Seen>,
    /// The agent's pod by Node: its name, and whether it is Ready.
    agents: BTreeMap<String, (String, bool)>,
    fleet: Fleet,
    /// Objects that should have a Node.
    named: Vec<String>,
    /// Objects with another writer, and its name.
    foreign: Vec<(String, String)>,
    /// Objects with an invalid quantity, and the error.
    unread: Vec<(String, String)>,
    /// The DaemonSet's namespace and name, if it does not exist.
    no_daemon_set: Option<String>,
    /// Namespace and labels of the scheduler's pods, if none is running.
    no_scheduler: Option<String>,
    /// Whether no DaemonSet is configured.
    no_agents: bool,
}

/// Checks the fleet once.
///
/// # Errors
/// If any part of it cannot be read.
pub async fn check(settings: &Settings, cluster: &Cluster) -> Result<Report, ClusterError> {
    let cluster = &cluster.clone().in_form(settings.form);
    let mut view = View::default();
    let coverage = read_agents(settings, cluster, &mut view).await?;
    if let Some(SchedulerPods { namespace, labels }) = &settings.scheduler {
        let started = cluster.scheduler_started(namespace, labels).await?;
        view.no_scheduler = started.is_none().then(|| format!("{namespace}/{labels}"));
        view.fleet = Fleet::new(started);
    }
    // Read before the Nodes, so that a Node added meanwhile does not make its object look orphaned.
    let mut pages = cluster.briefs();
    while let Some(briefs) = pages.next().await? {
        briefs.into_iter().for_each(|brief| view.add(brief));
    }
    let mut pages = cluster.node_pages();
    while let Some(nodes) = pages.next().await? {
        for node in nodes {
            let covered = coverage.as_ref().is_some_and(|coverage| coverage.covers(&node));
            view.nodes.insert(node.name, Seen { covered, ready: node.ready });
        }
    }
    Ok(view.report())
}

/// Reads the DaemonSet and its pods.
async fn read_agents(
    settings: &Settings,
    cluster: &Cluster,
    view: &mut View,
) -> Result<Option<Coverage>, ClusterError> {
    let Some(name) = &settings.daemon_set else {
        view.no_agents = true;
        return Ok(None);
    };
    let namespace = &settings.namespace;
    let Some(daemon_set) = cluster.daemon_set(namespace, name).await? else {
        view.no_daemon_set = Some(format!("{namespace}/{name}"));
        return Ok(None);
    };
    if let Some(labels) = pod_labels(&daemon_set) {
        let mut pages = cluster.agent_pages(namespace, &labels);
        while let Some(pods) = pages.next().await? {
            for pod in pods {
                let known = view.agents.entry(pod.node).or_insert_with(|| (pod.name.clone(), pod.ready));
                if pod.ready {
                    *known = (pod.name, true);
                }
            }
        }
    }
    Ok(Coverage::of(&daemon_set))
}

impl View {
    fn add(&mut self, brief: Brief) {
        let name = brief.mark.name.clone();
        if !brief.mark.kept && brief.of_numa {
            self.named.push(name.clone());
        }
        if let Some(what) = brief.unread.clone() {
            self.unread.push((name.clone(), what));
        }
        if let Some(other) = brief.mark.writers.other.clone() {
            self.foreign.push((name, other));
        }
        self.fleet.add(brief);
    }

    fn report(self) -> Report {
        let covered = || self.nodes.iter().filter(|(_, node)| node.covered);
        let mut lacks = Vec::new();
        for (name, _) in covered().filter(|(_, node)| node.ready) {
            let lack = match self.agents.get(name) {
                None => Some(Lack::Pod),
                Some((pod, false)) => Some(Lack::Readiness(pod.as_str().into())),
                Some(_) if !self.fleet.has(name) => Some(Lack::Object),
                Some(_) => None,
            };
            lacks.extend(lack.map(|lack| format!("Node {name}: {lack}")));
        }
        let orphans = self.named.iter().filter(|name| !self.nodes.contains_key(*name));
        let agents = covered().filter(|(name, _)| self.agents.get(*name).is_some_and(|(_, ready)| *ready));
        let (nodes, objects) = (self.nodes.len(), self.fleet.objects());
        let (covered_nodes, agents) = (covered().count(), agents.count());
        let mut report = Report {
            summary: match self.no_agents {
                true => format!("{nodes} Nodes and {objects} objects; nobody looks for agents"),
                false => format!(
                    "{nodes} Nodes, {covered_nodes} of them covered by the DaemonSet, {agents} of these with a Ready \
                     agent; {objects} objects"
                ),
            },
            problems: Vec::new(),
        };
        if let Some(name) = &self.no_daemon_set {
            report.add(vec![format!("there is no DaemonSet {name}")]);
        } else if !self.no_agents && covered_nodes == 0 && nodes > 0 {
            report.add(vec!["the DaemonSet covers no Node".to_owned()]);
        }
        report.add(lacks);
        report.add(orphans.map(|name| format!("object {name}: there is no Node of this name")).collect());
        let foreign = |(name, other): &(String, String)| format!("object {name}: {other} wrote its zones");
        report.add(self.foreign.iter().map(foreign).collect());
        let newer = |name: &String| format!("object {name}: {NEWER}");
        report.add(self.fleet.newer.iter().map(newer).collect());
        report.add(self.no_scheduler.iter().map(|pods| format!("{NO_SCHEDULER} {pods}")).collect());
        report.add(self.unread.iter().map(|(name, what)| format!("object {name}: {what}")).collect());
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Mark, Writers};

    fn brief(name: &str, other: Option<&str>) -> Brief {
        let writers = Writers { ours: other.is_none(), other: other.map(str::to_owned) };
        Brief {
            mark: Mark {
                name: name.into(),
                uid: String::new(),
                version: String::new(),
                created: None,
                writers,
                kept: false,
                going: false,
            },
            policy: None,
            scope: None,
            resources: BTreeMap::new(),
            unread: None,
            of_numa: true,
        }
    }

    fn view(nodes: &[(&str, bool, bool)], agents: &[(&str, bool)]) -> View {
        let seen = |(name, covered, ready): &(&str, bool, bool)| {
            ((*name).to_owned(), Seen { covered: *covered, ready: *ready })
        };
        let agent = |(node, ready): &(&str, bool)| ((*node).to_owned(), (format!("agent-{node}"), *ready));
        View {
            nodes: nodes.iter().map(seen).collect(),
            agents: agents.iter().map(agent).collect(),
            ..View::default()
        }
    }

    #[test]
    fn what_is_right_is_no_problem() {
        let mut view = view(&[("a", true, true), ("b", false, true), ("c", true, false)], &[("a", true)]);
        view.add(brief("a", None));
        let report = view.report();
        assert!(report.is_good(), "{report}");
        let summary = "3 Nodes, 2 of them covered by the DaemonSet, 1 of these with a Ready agent; 1 objects\nnothing is wrong\n";
        assert_eq!(report.to_string(), summary);
    }

    #[test]
    fn everything_that_is_wrong_has_a_line() {
        let all = ["a", "b", "c", "d"].map(|name| (name, true, true));
        let mut view = view(&all, &[("a", true), ("b", false), ("d", true)]);
        view.add(brief("gone", None));
        view.add(brief("d", Some("nfd-topology-updater")));
        let mut kept = brief("kept", None);
        kept.mark.kept = true;
        view.add(kept);
        view.add(Brief { of_numa: false, ..brief("rack", None) });
        view.add(Brief { of_numa: false, unread: Some("cpu: `x` is nothing".into()), ..brief("odd", None) });
        let report = view.report();
        assert_eq!(
            report.problems,
            [
                "Node a: it has no NodeResourceTopology although its agent is Ready",
                "Node b: its agent agent-b is not Ready",
                "Node c: no agent runs on it",
                "object gone: there is no Node of this name",
                "object d: nfd-topology-updater wrote its zones",
                "object odd: cpu: `x` is nothing",
            ]
        );
    }

    #[test]
    fn a_fleet_that_nobody_covers_is_told_in_one_line_and_many_problems_are_cut() {
        assert_eq!(view(&[("a", false, true)], &[]).report().problems, ["the DaemonSet covers no Node"]);
        let no_daemon_set = Some("ns/agents".to_owned());
        let report = View { no_daemon_set, ..view(&[("a", false, true)], &[]) }.report();
        assert_eq!(report.problems, ["there is no DaemonSet ns/agents"]);
        let mut many = View { no_agents: true, ..View::default() };
        (0..105).for_each(|n| many.add(brief(&format!("{n:03}"), None)));
        let report = many.report();
        assert_eq!(report.problems.len(), MOST + 1);
        assert_eq!(report.problems[MOST], "and 5 more like these");
    }
}
