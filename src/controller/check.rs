//! A one-time check of the whole fleet, for a person or `helm test`.

use std::collections::BTreeMap;
use std::fmt;

use super::coverage::{Coverage, coverage_and_labels, is_covered};
use super::fleet::{Fleet, NEWER, NO_SCHEDULER};
use super::node_problems::{CoveredNodes, Problem};
use super::scheduler_pods::SchedulerPods;
use super::settings::Settings;
use crate::cluster::{Cluster, ClusterError, NrtSummary, SlimNode, SlimPod};

/// The problem of an object without policies.
const NO_POLICY: &str = "it has no policies, so schedulers ignore its zones: the agent cannot read the kubelet's \
                         configuration; the Event PoliciesUnknown on the Node has the cause and what to set";

/// Maximum number of problems of each kind in the report.
const MAX_PROBLEMS: usize = 100;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    summary: String,
    problems: Vec<String>,
}

impl Report {
    /// Returns true if there are no problems.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }

    /// Adds the problems of one kind, up to the maximum.
    fn add(&mut self, problems: Vec<String>) {
        let more = problems.len().saturating_sub(MAX_PROBLEMS);
        self.problems.extend(problems.into_iter().take(MAX_PROBLEMS));
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

struct Node {
    covered: bool,
    ready: bool,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, Node>,
    /// The agents' pods: the Node, the name, and whether it is Ready.
    agents: Vec<(String, String, bool)>,
    fleet: Fleet,
    /// Objects that should have a Node.
    of_nodes: Vec<String>,
    /// Objects with another writer, and its name.
    foreign: Vec<(String, String)>,
    /// Objects with an invalid quantity, and the error.
    invalid: Vec<(String, String)>,
    /// Objects of ours that name no policy of the Topology Manager.
    without_policy: Vec<String>,
    /// Why the DaemonSets cannot be used.
    daemon_set_problem: Option<String>,
    /// Namespace and labels of the scheduler's pods, if none is running.
    missing_scheduler: Option<String>,
    no_daemon_set: bool,
}

/// Checks the fleet once.
pub async fn check(settings: &Settings, cluster: &Cluster) -> Result<Report, ClusterError> {
    let cluster = &cluster.clone().in_form(settings.form);
    let mut state = State::default();
    let coverage = read_agents(settings, cluster, &mut state).await?;
    if let Some(SchedulerPods { namespace, labels }) = &settings.scheduler {
        let pods = cluster.running_pods(namespace, labels).await?;
        let started = pods.into_iter().map(|(_, started)| started).min();
        state.missing_scheduler = started.is_none().then(|| format!("{namespace}/{labels}"));
        state.fleet = Fleet::new(started);
    }
    // Read before the Nodes, so that a Node added meanwhile does not make its object look orphaned.
    cluster.topology_summaries().for_each(|summary| state.add(summary)).await?;
    let add_node = |node: SlimNode| {
        let covered = is_covered(&coverage, &node);
        state.nodes.insert(node.name, Node { covered, ready: node.ready });
    };
    cluster.node_pages().for_each(add_node).await?;
    Ok(state.report())
}

async fn read_agents(
    settings: &Settings,
    cluster: &Cluster,
    state: &mut State,
) -> Result<Vec<Coverage>, ClusterError> {
    let (namespace, names) = (&settings.namespace, &settings.daemon_sets);
    if names.is_empty() {
        state.no_daemon_set = true;
        return Ok(Vec::new());
    }
    match coverage_and_labels(namespace, cluster.daemon_sets(namespace, names).await?) {
        Ok((coverage, labels)) => {
            let add = |pod: SlimPod| state.agents.push((pod.node, pod.name, pod.ready));
            cluster.labelled_pods(namespace, &labels).for_each(add).await?;
            Ok(coverage)
        }
        Err(problem) => {
            state.daemon_set_problem = Some(problem);
            Ok(Vec::new())
        }
    }
}

impl State {
    fn add(&mut self, summary: NrtSummary) {
        let name = &summary.meta.name;
        if !summary.meta.is_kept && summary.describes_node {
            self.of_nodes.push(name.clone());
        }
        self.invalid.extend(summary.invalid.clone().map(|error| (name.clone(), error)));
        let is_ours = summary.describes_node && !summary.meta.is_kept && summary.meta.writers.other.is_none();
        self.without_policy.extend((is_ours && summary.policy.is_none()).then(|| name.clone()));
        self.foreign.extend(summary.meta.writers.other.clone().map(|other| (name.clone(), other)));
        self.fleet.add(summary);
    }

    fn report(self) -> Report {
        let nodes = self.nodes.iter().filter(|(_, node)| node.covered);
        let covered = CoveredNodes::new(
            nodes.map(|(name, node)| (name.as_str(), node.ready)),
            self.agents.iter().map(|(node, pod, ready)| (node.as_str(), pod.as_str(), *ready)),
        );
        let mut node_problems = covered.without_ready_agent;
        let without_object = covered.healthy.into_iter().filter(|name| !self.fleet.names.contains(name));
        node_problems.extend(without_object.map(|name| (name, Problem::NoObject)));
        let orphans = self.of_nodes.iter().filter(|name| !self.nodes.contains_key(*name));
        let (nodes, objects) = (self.nodes.len(), self.fleet.names.len());
        let (covered_nodes, agents) = (covered.count, covered.with_agent);
        let mut report = Report {
            summary: match self.no_daemon_set {
                true => format!("{nodes} Nodes and {objects} objects; agents are not checked"),
                false => format!(
                    "{nodes} Nodes, {covered_nodes} of them covered by DaemonSets, {agents} of these with a Ready \
                     agent; {objects} objects"
                ),
            },
            problems: Vec::new(),
        };
        if let Some(problem) = self.daemon_set_problem {
            report.add(vec![problem]);
        } else if !self.no_daemon_set && covered_nodes == 0 && nodes > 0 {
            report.add(vec!["no DaemonSet covers a Node".to_owned()]);
        }
        report.add(node_problems.iter().map(|(name, problem)| format!("Node {name}: {problem}")).collect());
        report.add(orphans.map(|name| format!("object {name}: there is no Node of this name")).collect());
        let foreign = |(name, other): &(String, String)| format!("object {name}: {other} wrote its zones");
        report.add(self.foreign.iter().map(foreign).collect());
        report.add(self.without_policy.iter().map(|name| format!("object {name}: {NO_POLICY}")).collect());
        report.add(self.fleet.newer.iter().map(|name| format!("object {name}: {NEWER}")).collect());
        report.add(self.missing_scheduler.iter().map(|pods| format!("{NO_SCHEDULER} {pods}")).collect());
        report.add(self.invalid.iter().map(|(name, error)| format!("object {name}: {error}")).collect());
        report
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fake::{self, Parts};
    use super::*;
    use crate::cluster::NrtMeta;

    fn summary(name: &str) -> NrtSummary {
        NrtSummary { policy: Some("none".to_owned()), ..NrtSummary::new(NrtMeta::ours(name)) }
    }

    fn state(nodes: &[(&str, bool, bool)], agents: &[(&str, bool)]) -> State {
        let node = |(name, covered, ready): &(&str, bool, bool)| {
            ((*name).to_owned(), Node { covered: *covered, ready: *ready })
        };
        let agent = |(node, ready): &(&str, bool)| ((*node).to_owned(), format!("agent-{node}"), *ready);
        State {
            nodes: nodes.iter().map(node).collect(),
            agents: agents.iter().map(agent).collect(),
            ..State::default()
        }
    }

    #[test]
    fn a_healthy_fleet_has_no_problems() {
        let mut state = state(&[("a", true, true), ("b", false, true), ("c", true, false)], &[("a", true)]);
        state.add(summary("a"));
        let report = state.report();
        assert!(report.is_good(), "{report}");
        let text = "3 Nodes, 2 of them covered by DaemonSets, 1 of these with a Ready agent; 1 objects\nnothing is wrong\n";
        assert_eq!(report.to_string(), text);
    }

    #[test]
    fn each_problem_has_a_line() {
        let all = ["a", "b", "c", "d"].map(|name| (name, true, true));
        let mut state = state(&all, &[("a", true), ("b", false), ("d", true)]);
        state.add(summary("gone"));
        state.add(NrtSummary::new(NrtMeta::of_other("d", "nfd-topology-updater")));
        state.add(NrtSummary::new(NrtMeta { is_kept: true, ..NrtMeta::ours("kept") }));
        state.add(NrtSummary { describes_node: false, ..summary("rack") });
        let invalid = Some("cpu: `x` is nothing".into());
        state.add(NrtSummary { describes_node: false, invalid, ..summary("odd") });
        state.add(NrtSummary { policy: None, ..summary("b") });
        let report = state.report();
        assert_eq!(
            report.problems,
            [
                "Node a: it has no NodeResourceTopology although its agent is Ready",
                "Node b: its agent agent-b is not Ready",
                "Node c: no agent runs on it",
                "object gone: there is no Node of this name",
                "object d: nfd-topology-updater wrote its zones",
                &format!("object b: {NO_POLICY}"),
                "object odd: cpu: `x` is nothing",
            ]
        );
    }

    #[test]
    fn a_daemon_set_that_covers_no_node_is_one_problem() {
        assert_eq!(state(&[("a", false, true)], &[]).report().problems, ["no DaemonSet covers a Node"]);
    }

    #[tokio::test]
    async fn a_daemon_set_that_cannot_be_used_is_one_problem() {
        let labels = json!({"matchLabels": {"app": "agent"}});
        let of = |metadata: Value, selector: Value| {
            let template = json!({"spec": {"containers": []}});
            (200, json!({"metadata": metadata, "spec": {"selector": selector, "template": template}}))
        };
        for (daemon_set, problem) in [
            (
                (404, json!({"status": "Failure", "code": 404, "reason": "NotFound"})),
                "there is no DaemonSet ns/agents",
            ),
            (
                of(json!({"deletionTimestamp": "2026-11-21T20:00:00Z"}), labels),
                "DaemonSet ns/agents is being deleted",
            ),
            (
                of(json!({}), json!({})),
                "the selector of DaemonSet ns/agents cannot be used, since it is empty or invalid",
            ),
        ] {
            let cluster = fake::cluster(move |call| {
                let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
                let node = json!({"metadata": {"name": "a", "uid": "a"}, "status": ready});
                let response = match call {
                    call if call.contains("/daemonsets/") => daemon_set.clone(),
                    call if call.contains("/nodes") => (200, json!({"metadata": {}, "items": [node]})),
                    _ => (200, json!({"metadata": {}, "items": []})),
                };
                async move { response }
            });
            let mut settings = Parts::new(cluster.clone()).settings;
            (settings.namespace, settings.daemon_sets) = ("ns".to_owned(), vec!["agents".to_owned()]);
            assert_eq!(check(&settings, &cluster).await.unwrap().problems, [problem]);
        }
    }

    #[test]
    fn problems_of_one_kind_are_limited() {
        let mut many = State { no_daemon_set: true, ..State::default() };
        (0..MAX_PROBLEMS + 5).for_each(|n| many.add(summary(&format!("{n:03}"))));
        let report = many.report();
        assert_eq!(report.problems.len(), MAX_PROBLEMS + 1);
        assert_eq!(report.problems[MAX_PROBLEMS], "and 5 more like these");
    }
}
