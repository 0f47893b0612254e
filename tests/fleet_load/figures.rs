//! The counts of one phase, their extrapolation to a fleet of 5,000 nodes, and their bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Number of nodes of the extrapolated fleet.
pub(crate) const FLEET: f64 = 5000.0;
/// A node's Lease is renewed at this interval.
const LEASE_SECONDS: f64 = 10.0;
/// Pods per node of that fleet.
const FLEET_PODS: f64 = 100.0;
/// Their lifetime in seconds.
const FLEET_LIFE: f64 = 3600.0;
/// Minimum time between the 5th and the 95th percentile of the requests after a restart of the API server, in
/// seconds.
const SPREAD: f64 = 10.0;
/// Maximum number of watches per resource until an agent has recovered, including those rejected because
/// their version is too old.
const WATCHES: u64 = 2;
/// Maximum number of nudges per second in the whole cluster.
const NUDGES: f64 = 1.0;

/// The kind of client that sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// All agents.
    Agents,
    /// Both replicas of the controller.
    Controller,
    /// A client whose credentials the API server rejected.
    Unknown,
}

/// The kind of load in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    Calm,
    /// Pods are created and deleted.
    Churn,
    /// The same, with `fingerprint.method: with-exclusive-resources`.
    ChurnExclusive,
    /// Agents are replaced.
    Rollout,
    /// The API server is killed and started again.
    Restart,
    /// The kubelets are down.
    NoKubelet,
    /// Pods wait for the scheduler plugin.
    Pending,
}

/// The counts of one phase.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) nodes: usize,
    /// Pods per node.
    pub(crate) pods: usize,
    /// Pods that ended and were replaced.
    pub(crate) changes: usize,
    /// Started agents that were not ready after two minutes.
    pub(crate) late: usize,
    /// Number of requests by role, verb and resource.
    pub(crate) requests: BTreeMap<(Role, String, String), u64>,
    /// Bytes that the agents sent and received, including TLS.
    pub(crate) bytes: [u64; 2],
    /// Writes of agents that only repeat the unchanged object.
    pub(crate) refreshes: f64,
    /// Nudges by agents and by the controller.
    pub(crate) nudges: f64,
    /// Lists of pods by agents, and watches that start with all of them.
    pub(crate) pod_lists: u64,
    /// The same by controllers, which list the agents' pods, one per node.
    pub(crate) controller_lists: u64,
    /// Pods that the API server read from its cache for them.
    pub(crate) from_cache: f64,
    /// Pods that it read from etcd for them.
    pub(crate) from_etcd: f64,
    /// Get and list requests to etcd.
    pub(crate) etcd: [f64; 2],
    /// CPU time of the API server, in seconds.
    pub(crate) cpu: f64,
    /// Times of agents' requests, in seconds after the first one since the API server's restart, sorted.
    pub(crate) arrivals: Vec<f64>,
}

/// Verbs of writes.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];
/// Suffix of review resources, which are created but change nothing.
const REVIEWS: &str = "reviews";

impl Phase {
    /// Returns the number of a role's writes.
    pub(crate) fn writes(&self, of: Role) -> u64 {
        let writes = self.requests.iter().filter(|((role, verb, resource), _)| {
            *role == of && WRITES.contains(&verb.as_str()) && !resource.ends_with(REVIEWS)
        });
        writes.map(|(_, count)| count).sum()
    }

    /// Returns the watches of agents, by resource.
    fn watches(&self) -> impl Iterator<Item = (&(Role, String, String), &u64)> {
        self.requests.iter().filter(|((role, verb, _), _)| *role == Role::Agents && verb == "watch")
    }

    fn per_change(&self, count: f64) -> String {
        if self.changes == 0 { "-".to_owned() } else { format!("{:.2}", count / self.changes as f64) }
    }

    fn row(&self) -> String {
        let writes = self.writes(Role::Agents);
        let per_node = |bytes: u64| bytes as f64 / 1024.0 / self.nodes as f64;
        let evaluated = |pods: f64| match self.pod_lists {
            0 if pods == 0.0 => "-".to_owned(),
            lists => format!("{:.0}", pods / lists.max(1) as f64),
        };
        format!(
            "| {} | {:.0} | {} | {writes} | {} | {:.0} | {:.0} | {} | {:.1} / {:.1} | {} | {} | {} | {:.0} / {:.0} | {:.1} |",
            self.name,
            self.seconds,
            self.changes,
            self.per_change(writes as f64),
            self.refreshes,
            self.nudges,
            self.writes(Role::Controller),
            per_node(self.bytes[0]),
            per_node(self.bytes[1]),
            self.pod_lists,
            evaluated(self.from_cache),
            evaluated(self.from_etcd),
            self.etcd[0],
            self.etcd[1],
            self.cpu,
        )
    }

    /// Returns the requests by role, verb and resource, one per line.
    pub(crate) fn requests(&self) -> String {
        let mut text = String::new();
        for ((role, verb, resource), count) in &self.requests {
            let count = *count as f64;
            let who = format!("{role:?}").to_lowercase();
            let per_node = count / self.nodes as f64 / self.seconds * 60.0;
            let _ = write!(text, "  {who} {verb} {resource}: {count:.0}, {per_node:.3} per node and minute");
            let _ = match self.changes {
                0 => writeln!(text),
                _ => writeln!(text, ", {} per change", self.per_change(count)),
            };
        }
        text
    }

    /// Returns a sentence for each bound that this phase violates.
    pub(crate) fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut must = |is_true: bool, sentence: String| {
            if !is_true {
                broken.push(format!("{}: {sentence}", self.name));
            }
        };
        let most = (self.pods as u64 * self.pod_lists + self.nodes as u64 * self.controller_lists) as f64;
        must(
            self.from_cache <= most,
            format!(
                "{} pod lists made the API server look at {:.0} pods in its cache; the nodes have {} each",
                self.pod_lists, self.from_cache, self.pods
            ),
        );
        must(
            self.from_etcd == 0.0,
            format!(
                "the API server read {:.0} pods from etcd for {} pod lists",
                self.from_etcd, self.pod_lists
            ),
        );
        must(self.late == 0, format!("{} agents were not ready after two minutes", self.late));
        match self.kind {
            Kind::Calm => {
                let others = self.writes(Role::Agents) as f64 - self.refreshes;
                must(others <= 0.0, format!("{others:.0} writes of agents that are no refreshes"));
                must(self.nudges == 0.0, format!("{:.0} nudges although no pod is pending", self.nudges));
            }
            Kind::Churn | Kind::ChurnExclusive => {
                must(self.nudges == 0.0, format!("{:.0} nudges although no pod is pending", self.nudges));
            }
            Kind::Restart => {
                let spread = spread(&self.arrivals);
                must(spread >= SPREAD, format!("90 % of the requests after it came within {spread:.1} s"));
                let most = WATCHES * self.nodes as u64;
                for ((_, _, resource), count) in self.watches().filter(|(_, count)| **count > most) {
                    must(false, format!("{count} watches of {resource}: agents begin them again and again"));
                }
            }
            Kind::Pending => {
                let rate = self.nudges / self.seconds;
                must(rate <= NUDGES, format!("{rate:.2} nudges per second"));
                must(self.nudges > 0.0, "no nudge although pods are pending".to_owned());
            }
            Kind::Rollout | Kind::NoKubelet => {}
        }
        broken
    }
}

/// Returns a percentile of sorted values; 0 if there are none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

/// Returns the difference between the 95th and the 5th percentile of sorted values.
pub(crate) fn spread(sorted: &[f64]) -> f64 {
    percentile(sorted, 0.95) - percentile(sorted, 0.05)
}

/// Returns the maximum number of values within one second.
pub(crate) fn fullest_second(sorted: &[f64]) -> usize {
    let within = |(at, from): (usize, &f64)| sorted[at..].partition_point(|value| value - from < 1.0);
    sorted.iter().enumerate().map(within).max().unwrap_or_default()
}

/// Writes per second by all of numacast in a fleet of 5,000 nodes, extrapolated from a phase in which pods
/// live for an hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extrapolation {
    pub(crate) agents: f64,
    pub(crate) controller: f64,
}

/// Returns the number of Lease writes per second of that fleet.
pub(crate) fn leases() -> f64 {
    FLEET / LEASE_SECONDS
}

impl Extrapolation {
    /// Extrapolates from two phases. The agents' writes are proportional to the pods created and deleted. The
    /// controller's do not depend on the number of nodes; the worst case is that pods wait, which is the
    /// phase `waiting`.
    pub(crate) fn of(churn: &Phase, waiting: Option<&Phase>) -> Self {
        let per_change = churn.writes(Role::Agents) as f64 / churn.changes.max(1) as f64;
        let rate = |phase: &Phase| phase.writes(Role::Controller) as f64 / phase.seconds;
        let controller = rate(churn).max(waiting.map_or(0.0, rate));
        Self { agents: per_change * FLEET * FLEET_PODS / FLEET_LIFE, controller }
    }

    pub(crate) fn all(&self) -> f64 {
        self.agents + self.controller
    }

    /// Returns a sentence if the writes exceed this share of the Lease writes.
    pub(crate) fn broken(&self, name: &str, share: f64) -> Option<String> {
        let (all, bound) = (self.all(), leases() * share);
        (all >= bound)
            .then(|| format!("{name}: {all:.0} writes per second of {FLEET:.0} nodes, {bound:.0} at most"))
    }
}

/// The header of the table of phases.
pub(crate) const HEAD: &str = "\
| phase | s | changes | writes of agents | per change | of these refreshes | nudges | writes of the controller | KiB per node, sent / received | pod lists | pods looked at per list, in the cache | in etcd | etcd gets / lists | CPU of the API server, s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Returns a table with one row per phase.
pub(crate) fn table(phases: &[Phase]) -> String {
    phases.iter().fold(format!("{HEAD}\n"), |table, phase| table + &phase.row() + "\n")
}

/// Returns the agents' requests by verb and resource: per node and minute, and per change if there are
/// changes.
pub(crate) fn requests_table(phases: &[Phase]) -> String {
    let of_agents = |phase: &Phase| {
        let agents = phase.requests.iter().filter(|((role, ..), _)| *role == Role::Agents);
        agents
            .map(|((_, verb, resource), count)| (format!("{verb} {resource}"), *count))
            .collect::<BTreeMap<_, _>>()
    };
    let kinds: BTreeSet<String> = phases.iter().flat_map(|phase| of_agents(phase).into_keys()).collect();
    let mut table = kinds.iter().fold("| requests of agents".to_owned(), |head, kind| head + " | " + kind);
    table += " |\n|---|";
    table += &"---|".repeat(kinds.len());
    for phase in phases {
        let _ = write!(table, "\n| {} |", phase.name);
        let counts = of_agents(phase);
        for kind in &kinds {
            let Some(count) = counts.get(kind).map(|count| *count as f64) else {
                table += " - |";
                continue;
            };
            let per_node = count / phase.nodes as f64 / phase.seconds * 60.0;
            let _ = match phase.changes {
                0 => write!(table, " {per_node:.2} |"),
                _ => write!(table, " {per_node:.2}, {} per change |", phase.per_change(count)),
            };
        }
    }
    table + "\n"
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the program has no test harness
mod tests {
    use super::*;

    fn phase(kind: Kind) -> Phase {
        Phase {
            kind,
            name: "it".to_owned(),
            seconds: 60.0,
            nodes: 200,
            pods: 100,
            changes: 300,
            late: 0,
            requests: BTreeMap::new(),
            bytes: [0, 0],
            refreshes: 0.0,
            nudges: 0.0,
            pod_lists: 0,
            controller_lists: 0,
            from_cache: 0.0,
            from_etcd: 0.0,
            etcd: [0.0, 0.0],
            cpu: 0.0,
            arrivals: Vec::new(),
        }
    }

    fn request(role: Role, verb: &str, resource: &str) -> (Role, String, String) {
        (role, verb.to_owned(), resource.to_owned())
    }

    #[test]
    fn percentiles_are_values_that_occur() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.05, 0.5, 0.95, 1.0].map(|share| percentile(&values, share)), [5.0, 50.0, 95.0, 100.0]);
        assert_eq!(spread(&values), 90.0);
        assert_eq!((percentile(&[], 0.5), percentile(&[7.0], 0.05)), (0.0, 7.0));
    }

    #[test]
    fn the_fullest_second_begins_anywhere() {
        assert_eq!(fullest_second(&[0.0, 0.9, 1.2, 1.8, 2.1]), 3);
        assert_eq!(fullest_second(&[]), 0);
    }

    #[test]
    fn a_review_is_no_write() {
        let mut it = phase(Kind::Calm);
        it.requests.insert(request(Role::Agents, "create", "tokenreviews"), 5);
        it.requests.insert(request(Role::Agents, "patch", "noderesourcetopologies"), 3);
        it.requests.insert(request(Role::Agents, "watch", "pods"), 9);
        it.requests.insert(request(Role::Controller, "update", "leases"), 4);
        assert_eq!((it.writes(Role::Agents), it.writes(Role::Controller)), (3, 4));
    }

    #[test]
    fn a_calm_fleet_writes_refreshes_only() {
        let mut it = phase(Kind::Calm);
        it.requests.insert(request(Role::Agents, "patch", "noderesourcetopologies"), 3);
        it.refreshes = 3.0;
        assert!(it.broken().is_empty());
        it.refreshes = 2.0;
        assert_eq!(it.broken(), ["it: 1 writes of agents that are no refreshes"]);
    }

    #[test]
    fn a_list_costs_the_pods_of_its_node() {
        let mut it = phase(Kind::Rollout);
        (it.pod_lists, it.from_cache) = (10, 1000.0);
        assert!(it.broken().is_empty());
        (it.from_cache, it.from_etcd) = (1001.0, 1.0);
        assert_eq!(it.broken().len(), 2);
        (it.from_cache, it.from_etcd, it.controller_lists) = (1200.0, 0.0, 1);
        assert!(it.broken().is_empty());
    }

    #[test]
    fn nudges_come_only_for_pending_pods_and_seldom() {
        let mut it = phase(Kind::Pending);
        assert_eq!(it.broken(), ["it: no nudge although pods are pending"]);
        it.nudges = 60.0;
        assert!(it.broken().is_empty());
        it.nudges = 61.0;
        assert_eq!(it.broken(), ["it: 1.02 nudges per second"]);
        it.kind = Kind::Churn;
        assert_eq!(it.broken(), ["it: 61 nudges although no pod is pending"]);
    }

    #[test]
    fn requests_after_a_restart_are_spread() {
        let mut it = phase(Kind::Restart);
        it.arrivals = vec![1.0; 100];
        assert_eq!(it.broken(), ["it: 90 % of the requests after it came within 0.0 s"]);
        it.arrivals = (0..200).map(|number| f64::from(number) / 10.0).collect();
        assert!(it.broken().is_empty());
        it.requests.insert(request(Role::Agents, "watch", "pods"), 401);
        assert_eq!(it.broken(), ["it: 401 watches of pods: agents begin them again and again"]);
    }

    #[test]
    fn writes_are_extrapolated_by_pods_and_not_by_controllers() {
        let mut it = phase(Kind::Churn);
        it.requests.insert(request(Role::Agents, "patch", "noderesourcetopologies"), 600);
        it.requests.insert(request(Role::Controller, "update", "leases"), 30);
        let found = Extrapolation::of(&it, None);
        // Two writes for each of the 138.9 pods that end per second.
        assert!((found.agents - 277.8).abs() < 0.1 && found.controller == 0.5);
        assert_eq!(found.broken("it", 2.0 / 3.0), None);
        let bound = "it: 278 writes per second of 5000 nodes, 125 at most";
        assert_eq!(found.broken("it", 0.25).as_deref(), Some(bound));
        let mut waiting = phase(Kind::Pending);
        waiting.requests.insert(request(Role::Controller, "patch", "noderesourcetopologies"), 120);
        assert_eq!(Extrapolation::of(&it, Some(&waiting)).controller, 2.0);
    }

    #[test]
    fn a_table_has_a_row_of_as_many_columns_for_each_phase() {
        let table = table(&[phase(Kind::Calm), phase(Kind::Churn)]);
        let columns: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(columns, [15, 15, 15, 15]);
    }

    #[test]
    fn requests_are_listed_per_node_and_minute_and_per_change() {
        let (mut churn, mut calm) = (phase(Kind::Churn), phase(Kind::Calm));
        churn.requests.insert(request(Role::Agents, "patch", "noderesourcetopologies"), 600);
        calm.changes = 0;
        calm.requests.insert(request(Role::Agents, "watch", "pods"), 100);
        calm.requests.insert(request(Role::Controller, "update", "leases"), 7);
        let right = "\
            | requests of agents | patch noderesourcetopologies | watch pods |\n\
            |---|---|---|\n\
            | it | 3.00, 2.00 per change | - |\n\
            | it | - | 0.50 |\n";
        assert_eq!(requests_table(&[churn, calm]), right);
    }
}
