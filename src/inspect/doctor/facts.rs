//! What the checks are about: read once, before they run.

use std::collections::{BTreeMap, BTreeSet};

use futures::join;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::installed::{AgentSet, ControllerSet, ObjectName, Runs, SchedulerPod, runs, words_of};
use crate::cluster::{
    BindingDetails, Cluster, ClusterError, CrdDetails, NodeDetails, NriPolicy, Pages, PolicyDetails,
    PublishedObject, SlimDaemonSet,
};
use crate::config::{Config, PublishTo};
use crate::core_v1::InspectedPod;
use crate::inspect::printable;
use crate::nrt::{Form, Version};
use crate::publishers::nri_configuration;

/// Maximum number of ConfigMaps that are read. An installation has about five.
const MAX_CONFIG_MAPS: usize = 50;

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// What it is, such as `Nodes`.
    pub what: String,
    /// Why it could not be read, in one sentence.
    pub reason: String,
    /// The rule that would permit it, if permission is missing: `list` of `nodes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<&'static str>,
    /// Whether the most important checks need it.
    pub essential: bool,
}

/// The policies of the API server and what binds them.
#[derive(Clone, Debug, Default)]
pub(super) struct Admission {
    pub(super) policies: Vec<PolicyDetails>,
    pub(super) bindings: Vec<BindingDetails>,
}

/// The cluster, as far as it can be read: what is `None` is in `unchecked`.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) now: Timestamp,
    /// `Some(None)`: there is no CRD.
    pub(super) crd: Option<Option<CrdDetails>>,
    pub(super) admission: Option<Admission>,
    pub(super) daemon_sets: Option<Vec<SlimDaemonSet>>,
    pub(super) nodes: Option<BTreeMap<String, NodeDetails>>,
    pub(super) objects: Option<Vec<PublishedObject>>,
    pub(super) pods: Option<Vec<InspectedPod>>,
    /// Those that exist, with their texts.
    pub(super) config_maps: BTreeMap<ObjectName, BTreeMap<String, String>>,
    /// The Leases of the controllers; `None` for one that does not exist.
    pub(super) leases: BTreeMap<ObjectName, Option<Lease>>,
    /// The configurations of nri-plugins that run, by resource; without those that could not be read.
    pub(super) nri_policies: BTreeMap<String, Vec<NriPolicy>>,
    /// The configurations of kubelets, in JSON.
    pub(super) kubelets: BTreeMap<String, Vec<u8>>,
    /// The DaemonSets that run agents which publish.
    pub(super) agents: Vec<AgentSet>,
    /// Whether there are agents, but none that publishes.
    pub(super) has_only_serving: bool,
    /// The controllers, by namespace.
    pub(super) controllers: Vec<ControllerSet>,
    /// Pods that may run the scheduler plugin.
    pub(super) schedulers: Vec<SchedulerPod>,
    /// Objects whose fingerprint differed from that of the pods in two readings.
    pub(super) mismatched: Vec<String>,
    pub(super) unchecked: Vec<Unchecked>,
}

/// What is read, the permission that it needs, and whether most checks depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    what: &'static str,
    needs: &'static str,
    essential: bool,
}

const CRD: Source = Source {
    what: "the CRD",
    needs: "`get` of customresourcedefinitions.apiextensions.k8s.io",
    essential: false,
};
const POLICIES: Source = Source {
    what: "the admission policies",
    needs: "`list` of validatingadmissionpolicies.admissionregistration.k8s.io",
    essential: false,
};
const BINDINGS: Source = Source {
    what: "the bindings of the admission policies",
    needs: "`list` of validatingadmissionpolicybindings.admissionregistration.k8s.io",
    essential: false,
};
const DAEMON_SETS: Source =
    Source { what: "the DaemonSets", needs: "`list` of daemonsets.apps", essential: true };
const NODES: Source = Source { what: "the Nodes", needs: "`list` of nodes", essential: true };
const OBJECTS: Source = Source {
    what: "the objects",
    needs: "`list` of noderesourcetopologies.topology.node.k8s.io",
    essential: true,
};
const PODS: Source = Source { what: "the pods", needs: "`list` of pods", essential: true };
const CONFIG_MAPS: Source = Source { what: "ConfigMaps", needs: "`get` of configmaps", essential: false };
const LEASES: Source =
    Source { what: "Leases", needs: "`get` of leases.coordination.k8s.io", essential: false };
const NRI_POLICIES: Source = Source {
    what: "the configuration of nri-plugins",
    needs: "`list` of balloonspolicies, templatepolicies and topologyawarepolicies of config.nri",
    essential: false,
};
const KUBELETS: Source =
    Source { what: "the configuration of kubelets", needs: "`get` of nodes/proxy", essential: false };

impl Facts {
    /// Reads the cluster, and the configuration of this many kubelets.
    pub(super) async fn read(cluster: &Cluster, kubelets: usize) -> Self {
        let mut facts = Self { now: now(), ..Self::default() };
        let (crd, policies, bindings, daemon_sets) = join!(
            cluster.crd(),
            all(cluster.admission_policies()),
            all(cluster.admission_bindings()),
            all(cluster.all_daemon_sets()),
        );
        facts.crd = facts.note(CRD, crd);
        let policies = facts.note(POLICIES, policies);
        let bindings = facts.note(BINDINGS, bindings);
        facts.admission = policies.zip(bindings).map(|(policies, bindings)| Admission { policies, bindings });
        facts.daemon_sets = facts.note(DAEMON_SETS, daemon_sets);
        let cluster = &cluster.clone().in_form(facts.form());
        facts.read_fleet(cluster).await;
        let pods = facts.pods.as_deref().unwrap_or_default();
        facts.agents = AgentSet::all(facts.daemon_sets.as_deref().unwrap_or_default(), pods);
        facts.controllers = ControllerSet::all(pods);
        facts.schedulers = SchedulerPod::all(pods);
        facts.read_config_maps(cluster).await;
        facts.read_nri_policies(cluster).await;
        facts.read_leases(cluster).await;
        facts.read_kubelets(cluster, kubelets).await;
        facts
    }

    /// Returns the value; an error is noted.
    pub(super) fn note<T>(&mut self, source: Source, read: Result<T, ClusterError>) -> Option<T> {
        read.map_err(|error| self.fail(source, &error)).ok()
    }

    fn fail(&mut self, source: Source, error: &ClusterError) {
        let needs = error.is_forbidden().then_some(source.needs);
        let (what, reason) = (source.what.to_owned(), printable(&error.to_string()));
        let one = Unchecked { what, reason, needs, essential: source.essential };
        // One denied request of a kind is enough to know.
        if !self.unchecked.iter().any(|known| known.what == one.what && known.needs == one.needs) {
            self.unchecked.push(one);
        }
    }

    /// Says that something is not checked although nothing failed.
    pub(super) fn skip(&mut self, what: String, reason: &str) {
        self.unchecked.push(Unchecked { what, reason: reason.to_owned(), needs: None, essential: false });
    }

    /// Returns the version in which objects are read: the newest that is served.
    pub(super) fn form(&self) -> Form {
        let served = |crd: &CrdDetails, version: Version| {
            crd.spec.versions.iter().any(|one| one.served && one.name == version.name())
        };
        let only_old = |crd: &CrdDetails| !served(crd, Version::V1alpha2) && served(crd, Version::V1alpha1);
        match self.crd.iter().flatten().any(only_old) {
            true => Form { version: Version::V1alpha1, policies: true },
            false => Form::default(),
        }
    }

    async fn read_fleet(&mut self, cluster: &Cluster) {
        let has_crd = !matches!(self.crd, Some(None));
        let daemon_sets = self.daemon_sets.iter().flatten();
        let agents: BTreeSet<ObjectName> = daemon_sets
            .filter(|one| crate::cluster::runs_agents(one))
            .map(|one| (one.namespace().to_owned(), one.name().to_owned()))
            .collect();
        // Objects before Nodes, so that a Node added meanwhile does not make its object look orphaned.
        let fleet = async {
            let objects = if has_crd { all(cluster.objects()).await } else { Ok(Vec::new()) };
            (objects, all(cluster.node_details(None)).await)
        };
        let pods = cluster.inspected_pods(|pod, words| {
            let owned = pod.owner.as_ref().is_some_and(|(kind, name)| {
                kind == "DaemonSet" && agents.contains(&(pod.pod.namespace.clone(), name.clone()))
            });
            owned || runs(words) != Runs::Other
        });
        let ((objects, nodes), pods) = join!(fleet, pods);
        // Without the CRD there is nothing to list, and that is a finding.
        self.objects = match objects {
            Err(ClusterError::NoCrd(_)) => {
                self.crd = Some(None);
                Some(Vec::new())
            }
            objects => self.note(OBJECTS, objects),
        };
        let nodes = self.note(NODES, nodes);
        self.nodes = nodes.map(|all| all.into_iter().map(|node| (node.slim.name.clone(), node)).collect());
        self.pods = self.note(PODS, pods);
    }

    async fn read_config_maps(&mut self, cluster: &Cluster) {
        let agents = self.agents.iter().flat_map(|set| set.config_maps.iter());
        let controllers = self.controllers.iter().flat_map(|set| set.config_maps.iter());
        let schedulers = self.schedulers.iter().flat_map(|pod| pod.config_maps.iter());
        let wanted: BTreeSet<ObjectName> = agents.chain(controllers).chain(schedulers).cloned().collect();
        for (namespace, name) in wanted.into_iter().take(MAX_CONFIG_MAPS) {
            let map = cluster.config_map(&namespace, &name).await;
            if let Some(texts) = self.note(CONFIG_MAPS, map).flatten() {
                self.config_maps.insert((namespace, name), texts);
            }
        }
        let maps = &self.config_maps;
        self.agents.iter_mut().for_each(|set| set.configure(maps));
        // Of those that only serve, no object is expected.
        let publishes = |config: &Config| config.publish.to == PublishTo::ApiServer;
        let count = self.agents.len();
        self.agents.retain(|set| set.config.as_ref().is_none_or(publishes));
        self.has_only_serving = self.agents.is_empty() && count > 0;
        if self.has_only_serving {
            // They are another publisher's.
            self.objects = self.objects.take().map(|_| Vec::new());
        }
        self.controllers.iter_mut().for_each(|set| set.configure(maps));
        self.schedulers.iter_mut().for_each(|pod| pod.configure(maps));
    }

    async fn read_leases(&mut self, cluster: &Cluster) {
        for (namespace, name) in self.controllers.iter().filter_map(ControllerSet::lease).collect::<Vec<_>>()
        {
            let lease = cluster.lease(&namespace, &name).await;
            if let Some(lease) = self.note(LEASES, lease) {
                self.leases.insert((namespace, name), lease);
            }
        }
    }

    async fn read_nri_policies(&mut self, cluster: &Cluster) {
        let sets = self.daemon_sets.iter().flatten();
        let resources: BTreeSet<String> =
            sets.filter_map(|set| nri_configuration(words_of(set).into_iter())).collect();
        for resource in resources {
            let read = match all(cluster.nri_policies(&resource)).await {
                Err(error) if error.is_not_found() => Ok(Vec::new()),
                read => read,
            };
            if let Some(policies) = self.note(NRI_POLICIES, read) {
                self.nri_policies.insert(resource, policies);
            }
        }
    }

    async fn read_kubelets(&mut self, cluster: &Cluster, count: usize) {
        let nodes = self.nodes.iter().flatten().filter(|(_, node)| node.slim.ready);
        for name in nodes.map(|(name, _)| name.clone()).take(count).collect::<Vec<_>>() {
            let configz = cluster.kubelet_configz(&name).await;
            let is_denied = configz.as_ref().is_err_and(ClusterError::is_forbidden);
            if let Some(configz) = self.note(KUBELETS, configz) {
                self.kubelets.insert(name, configz);
            }
            if is_denied {
                return;
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "objects have their times by the wall clock")]
fn now() -> Timestamp {
    Timestamp::now()
}

async fn all<T: DeserializeOwned>(mut pages: Pages<T>) -> Result<Vec<T>, ClusterError> {
    let mut items = Vec::new();
    while let Some(page) = pages.next().await? {
        items.extend(page);
    }
    Ok(items)
}
