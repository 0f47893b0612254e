//! Builds a [`Pod`] from the API's fields.

use std::collections::BTreeSet;

use super::api::{Amounts, ApiContainer, ApiPod, Resources, Spec, Status};
use super::{ClaimNames, Container, ContainerKind, Phase, Pod, Termination};
use crate::quantity::is_huge_pages;

/// The most claims of a pod: the API server accepts 32 in its specification, and one for extended resources.
const MAX_CLAIMS: usize = 33;

/// The QoS class of pods whose requests equal their limits.
const GUARANTEED: &str = "Guaranteed";
/// The resources that determine the QoS class.
const CLASSIFYING: [&str; 2] = ["cpu", "memory"];

impl From<ApiPod> for Pod {
    fn from(pod: ApiPod) -> Self {
        let ApiPod { metadata, mut spec, mut status } = pod;
        let claims = claims(&mut spec, &mut status);
        let deleted = metadata.deletion_timestamp.is_some();
        spec.fill_requests();
        let guaranteed = spec.is_guaranteed();
        Self {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            phase: status.phase(),
            deleted,
            termination: status.termination(deleted),
            guaranteed,
            qos_guaranteed: match &*status.qos_class {
                "" => guaranteed,
                class => class == GUARANTEED,
            },
            pod_level: spec.pod_level(),
            claims,
            containers: spec.into_containers(),
            annotations: metadata.annotations.0.into_iter().collect(),
            raw: None,
        }
    }
}

/// Returns the names of the pod's claims, sorted.
fn claims(spec: &mut Spec, status: &mut Status) -> Option<Box<ClaimNames>> {
    let references = std::mem::take(&mut spec.resource_claims).into_iter();
    let made = std::mem::take(&mut status.resource_claim_statuses).into_iter();
    let all = references.chain(made).chain(status.extended_resource_claim_status.take());
    let names: BTreeSet<Box<str>> = all.filter_map(|of| of.resource_claim_name).collect();
    let names: Box<[Box<str>]> = names.into_iter().filter(|name| !name.is_empty()).take(MAX_CLAIMS).collect();
    (!names.is_empty()).then(|| Box::new(ClaimNames(names)))
}

impl Spec {
    /// Sets missing requests to the limit. The API server does so, and so does a kubelet that reads a
    /// manifest; other sources may not.
    fn fill_requests(&mut self) {
        let containers = self.init_containers.iter_mut().chain(&mut self.containers);
        let of_containers = containers.map(|container| &mut container.resources);
        for Resources { requests, limits } in of_containers.chain(&mut self.resources) {
            for (name, limit) in limits {
                requests.entry(name.clone()).or_insert(*limit);
            }
        }
    }

    fn pod_level(&self) -> Option<Box<Container>> {
        let resources = self.resources.as_ref().filter(|resources| resources.is_pod_level())?;
        let mut amounts = Container::default();
        amounts.set_requests(resources.requests.clone());
        Some(Box::new(amounts))
    }

    /// Computes the QoS class as the kubelet does (`ComputePodQOS`). Since 1.34 pod-level resources decide if
    /// set; API servers and kubelets that do not know them drop them.
    fn is_guaranteed(&self) -> bool {
        if let Some(resources) = &self.resources {
            return is_guaranteed(std::iter::once(resources));
        }
        is_guaranteed(
            self.init_containers.iter().chain(&self.containers).map(|container| &container.resources),
        )
    }

    /// Returns init containers first, as in the podresources List.
    fn into_containers(self) -> Box<[Container]> {
        let init = self.init_containers.into_iter().map(|container| {
            let kind = if &*container.restart_policy == "Always" {
                ContainerKind::Sidecar
            } else {
                ContainerKind::Init
            };
            container.into_container(kind)
        });
        let apps = self.containers.into_iter().map(|container| container.into_container(ContainerKind::App));
        Container::bounded(init.chain(apps))
    }
}

/// Returns true if every part has CPU and memory limits, and the summed requests equal the summed limits.
fn is_guaranteed<'a>(parts: impl Iterator<Item = &'a Resources>) -> bool {
    let (mut requested, mut limited, mut any) = ([0_i128; 2], [0_i128; 2], false);
    for part in parts {
        any = true;
        for (index, name) in CLASSIFYING.iter().enumerate() {
            let amount = |amounts: &Amounts| amounts.get(*name).map_or(0, |amount| amount.nano());
            let limit = amount(&part.limits);
            if limit == 0 {
                return false;
            }
            limited[index] = limited[index].saturating_add(limit);
            requested[index] = requested[index].saturating_add(amount(&part.requests));
        }
    }
    any && requested == limited
}

impl Resources {
    fn is_pod_level(&self) -> bool {
        let is_pod_level = |name: &str| CLASSIFYING.contains(&name) || is_huge_pages(name);
        self.requests.keys().chain(self.limits.keys()).any(|name| is_pod_level(name))
    }
}

impl ApiContainer {
    fn into_container(self, kind: ContainerKind) -> Container {
        let guaranteed = is_guaranteed(std::iter::once(&self.resources));
        let mut container = Container { name: self.name, kind, guaranteed, ..Container::default() };
        container.set_requests(self.resources.requests);
        container
    }
}

impl Container {
    fn set_requests(&mut self, requests: Amounts) {
        let mut others = Vec::new();
        for (name, amount) in requests {
            match &*name {
                "cpu" => self.cpu_milli = amount.cpu_milli(),
                "memory" => self.memory = amount.whole(),
                other if other.contains('/') => others.push((name, amount.whole())),
                other if is_huge_pages(other) && amount.whole() > 0 => {
                    others.push((name, amount.whole()));
                }
                _ => {}
            }
        }
        self.others = others.into();
    }
}

impl Status {
    fn phase(&self) -> Phase {
        match &*self.phase {
            "Pending" | "" => Phase::Pending,
            "Running" => Phase::Running,
            "Succeeded" => Phase::Succeeded,
            "Failed" => Phase::Failed,
            _ => Phase::Unknown,
        }
    }

    fn termination(&self, deleted: bool) -> Termination {
        if self.phase().is_terminal() {
            return Termination::Terminated;
        }
        let mut containers = self.init_container_statuses.iter().chain(&self.container_statuses);
        let any_is_running = containers.any(|container| container.state.running.is_some());
        if deleted && !any_is_running { Termination::Stopped } else { Termination::Live }
    }
}

#[cfg(test)]
mod tests;
