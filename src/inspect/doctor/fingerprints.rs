//! The fingerprints, computed once more from the API server's pods.

use std::collections::BTreeMap;
use std::time::Duration;

use super::agents::covering;
use super::facts::Facts;
use super::objects::place;
use crate::cluster::{Cluster, PublishedObject};
use crate::config::Config;
use crate::inspect::{Check, Finding, Mend, Severity, shell_word};
use crate::nrt::{FINGERPRINT, FINGERPRINT_METHOD};
use crate::pod::{Phase, Pod, Wanted};
use crate::scheduler::{Fingerprint, FingerprintMethod, FingerprintView, Informer, is_exclusive, pod_hash};

pub(super) static FINGERPRINT_WITHHELD: Check = Check {
    name: "FingerprintWithheld",
    severity: Severity::Warning,
    looks_for: "a fingerprint has been withheld for five minutes or more",
    why: "The scheduler plugin does not read the object again, and works with what it knew before.",
};
pub(super) static FINGERPRINT_DIFFERS: Check = Check {
    name: "FingerprintDiffers",
    severity: Severity::Error,
    looks_for: "a fingerprint is not that of the node's pods, in two readings",
    why: "The scheduler plugin does not read the object again, and works with what it knew before.",
};

pub(super) const CHECKS: &[&Check] = &[&FINGERPRINT_WITHHELD, &FINGERPRINT_DIFFERS];

/// For how many seconds a fingerprint may be withheld.
const WITHHELD_FOR: i64 = 300;
/// The wait before the second reading. An agent needs some milliseconds.
const BETWEEN: Duration = Duration::from_secs(2);
/// How many Nodes are read a second time.
const READ_TWICE: usize = 20;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let withheld = Fingerprint::WITHHELD.to_string();
    let mut found = Vec::new();
    for object in facts.objects.iter().flatten() {
        let Some(fingerprint) = object.attributes.get(FINGERPRINT) else { continue };
        if *fingerprint == withheld {
            found.extend(object.changed.and_then(|since| {
                let seconds = facts.now.as_second().saturating_sub(since.as_second());
                (seconds >= WITHHELD_FOR).then(|| {
                    let mend =
                        "See the reasons in docs/troubleshooting.md, NumacastFingerprintWithheld.".to_owned();
                    FINGERPRINT_WITHHELD.finding(
                        place(object),
                        format!("it is withheld since {since}"),
                        Mend::Do(mend),
                    )
                })
            }));
        } else if facts.mismatched.contains(&object.meta.name) {
            let what = format!("its fingerprint {fingerprint} is not that of the pods");
            found.push(FINGERPRINT_DIFFERS.finding(place(object), what, restart(facts, &object.meta.name)));
        }
    }
    found
}

/// Returns how to restart the agent of a node.
fn restart(facts: &Facts, node: &str) -> Mend {
    let agents = super::agents::by_node(facts);
    match agents.get(node).and_then(|agents| agents.first()) {
        Some(agent) => {
            let pod = &agent.pod.placed.pod;
            let (namespace, name) = (shell_word(&pod.namespace), shell_word(&pod.name));
            Mend::Run(format!("kubectl delete pod --namespace {namespace} {name}"))
        }
        None => Mend::Do("Start the agent on the node.".to_owned()),
    }
}

/// Reads the objects once more whose fingerprint is not that of the pods, and notes those that were not a moment later
/// either, while neither changed.
pub(super) async fn read_again(facts: &mut Facts, cluster: &Cluster) {
    let suspects = suspects(facts);
    if suspects.is_empty() {
        return;
    }
    let cluster = &cluster.clone().in_form(facts.form());
    tokio::time::sleep(BETWEEN).await;
    for suspect in suspects.iter().take(READ_TWICE) {
        if suspect.is_confirmed(facts, cluster).await == Some(true) {
            facts.mismatched.push(suspect.node.clone());
        }
    }
    let more = suspects.len().saturating_sub(READ_TWICE);
    if more > 0 {
        let what = format!("the fingerprints of {more} more Nodes, which differed in one reading");
        facts.skip(what, "only some are read twice");
    }
}

/// A Node whose fingerprint differed in the first reading.
struct Suspect {
    node: String,
    fingerprint: String,
    /// UID and phase of each pod.
    pods: Vec<(String, Phase)>,
}

impl Suspect {
    /// Reads Node and pods once more; `None` if that fails.
    async fn is_confirmed(&self, facts: &Facts, cluster: &Cluster) -> Option<bool> {
        let object = cluster.object::<PublishedObject>(&self.node).await.ok()??;
        let pods = cluster.placed_pods(Some(&self.node), &Wanted::default()).await.ok()?;
        let pods: Vec<&Pod> = pods.iter().map(|placed| &placed.pod).collect();
        let config = covering(facts, &self.node)?.config.as_ref()?;
        let is_same =
            object.attributes.get(FINGERPRINT) == Some(&self.fingerprint) && states(&pods) == self.pods;
        Some(is_same && !agrees(&object, &pods, config))
    }
}

fn states(pods: &[&Pod]) -> Vec<(String, Phase)> {
    let mut states: Vec<_> = pods.iter().map(|pod| (pod.uid.clone(), pod.phase)).collect();
    states.sort();
    states
}

fn suspects(facts: &Facts) -> Vec<Suspect> {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in facts.pods.iter().flatten().filter(|pod| !pod.placed.node.is_empty()) {
        by_node.entry(&pod.placed.node).or_default().push(&pod.placed.pod);
    }
    if facts.pods.is_none() {
        return Vec::new();
    }
    let suspect = |object: &PublishedObject| {
        let node = object.meta.name.as_str();
        let config = covering(facts, node)?.config.as_ref()?;
        let pods = by_node.get(node).map(Vec::as_slice).unwrap_or_default();
        let fingerprint = object.attributes.get(FINGERPRINT)?.clone();
        let is_checked = config.view() == FingerprintView::Scheduler && object.meta.writers.other.is_none();
        (is_checked && !agrees(object, pods, config)).then(|| Suspect {
            node: node.to_owned(),
            fingerprint,
            pods: states(pods),
        })
    };
    facts.objects.iter().flatten().filter_map(suspect).collect()
}

/// Returns true if the fingerprint is that of the pods as the scheduler plugin counts them, or if that cannot be told.
fn agrees(object: &PublishedObject, pods: &[&Pod], config: &Config) -> bool {
    let Some(fingerprint) = object.attributes.get(FINGERPRINT) else { return true };
    if *fingerprint == Fingerprint::WITHHELD.to_string() {
        return true;
    }
    let exclusive = FingerprintMethod::WithExclusiveResources;
    let only_exclusive =
        object.attributes.get(FINGERPRINT_METHOD).is_some_and(|method| method == exclusive.name());
    let lists = |name: &str| object.zones.iter().any(|zone| zone.resources.contains_key(name));
    let is_covered =
        |pod: &&&Pod| !only_exclusive || is_exclusive(pod, &lists, config.fingerprint.plugin_release);
    let covered: Vec<&&Pod> = pods.iter().filter(is_covered).collect();
    // The agent counts a pending pod that is about to run, which only it knows.
    if covered.iter().any(|pod| pod.phase == Phase::Pending) {
        return true;
    }
    let is_cached = |pod: &&&&Pod| match config.fingerprint.informer_mode {
        Informer::Dedicated => true,
        Informer::Shared => pod.phase == Phase::Running,
    };
    let hashes = covered.iter().filter(is_cached).map(|pod| pod_hash(&pod.namespace, &pod.name));
    Fingerprint::of(hashes).to_string() == *fingerprint
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fingerprint_is_reported_if_it_has_been_withheld_for_five_minutes() {
        let found = |fingerprint: &str, now: &str| {
            let managed =
                json!({"manager": "numacast", "time": "2026-11-29T08:00:00Z", "fieldsV1": {"f:zones": {}}});
            let object = json!({"metadata": {"name": "w", "managedFields": [managed]},
                                "attributes": [{"name": FINGERPRINT, "value": fingerprint}]});
            let objects = Some(vec![serde_json::from_value(object).unwrap()]);
            let facts = Facts { now: now.parse().unwrap(), objects, ..Facts::default() };
            check(&facts).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        let withheld = Fingerprint::WITHHELD.to_string();
        assert_eq!(found(&withheld, "2026-11-29T08:04:59Z"), [""; 0]);
        assert_eq!(found(&withheld, "2026-11-29T08:05:00Z"), ["it is withheld since 2026-11-29T08:00:00Z"]);
        assert_eq!(found(&Fingerprint::of([1]).to_string(), "2026-11-29T09:00:00Z"), [""; 0]);
    }
}
