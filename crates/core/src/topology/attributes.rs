//! The kubelet's resource policies as attributes, with the names that noderesourcetopology-api documents.

use super::{Inputs, cpus};
use crate::kubelet::KubeletConfig;
use crate::machine::{Id, IdSet};
use crate::nrt::{L3_CACHES, POLICY, RESERVED_CPUS, SCOPE, SOCKETS};

/// The policy option whose attribute has a name of its own.
const MAX_NODES: &str = "max-allowable-numa-nodes";
/// The attribute of [`MAX_NODES`].
const MAX_NODES_ATTRIBUTE: &str = "topologyManagerMaxNUMANodes";
/// Prefix of the attributes of all other policy options.
const OPTION: &str = "topologyManagerOption";
/// Prefix of the attributes of the CPU Manager's options.
const CPU_OPTION: &str = "cpuManagerOption";
const CPU_POLICY: &str = "cpuManagerPolicy";
const MEMORY_POLICY: &str = "memoryManagerPolicy";

/// Whether this attribute comes from the kubelet's configuration.
#[must_use]
pub fn is_policy_attribute(name: &str) -> bool {
    let names = [POLICY, SCOPE, MAX_NODES_ATTRIBUTE, CPU_POLICY, MEMORY_POLICY, RESERVED_CPUS];
    names.contains(&name) || name.starts_with(OPTION) || name.starts_with(CPU_OPTION)
}

/// Returns all attributes, in a fixed order: the policies and reserved CPUs, then the CPUs of each kind of core. They
/// change when the kubelet starts or CPUs come and go.
pub(super) fn of(inputs: &Inputs<'_>) -> Vec<(String, String)> {
    let mut attributes = match inputs.policies {
        Some(policies) => policies.to_vec(),
        None => inputs.config.map(|config| policies(config, inputs)).unwrap_or_default(),
    };
    // Named as in NFD.
    let core_types = inputs.machine.core_types.iter();
    attributes.extend(core_types.map(|(kind, cpus)| (format!("cpu_{kind}"), cpus.to_string())));
    attributes
}

/// Returns the sockets and L3 caches of a zone: `0`, and `0-3,8-11;4-7,12-15`. They are attributes and not zones of
/// their own, since the scheduler plugin and KAI-Scheduler count zones. They change only with the hardware.
pub(super) fn of_zone(inputs: &Inputs<'_>, zone: Id) -> Vec<(String, String)> {
    let Some(layout) = inputs.machine.layout.get(&zone) else { return Vec::new() };
    let sockets: Vec<String> = layout.sockets.iter().map(Id::to_string).collect();
    let caches: Vec<String> = layout.caches.iter().map(IdSet::to_string).collect();
    let mut attributes = vec![(SOCKETS.to_owned(), sockets.join(","))];
    if caches.len() > 1 {
        attributes.push((L3_CACHES.to_owned(), caches.join(";")));
    }
    attributes.retain(|(_, value)| !value.is_empty());
    attributes
}

/// Returns the policies and the reserved CPUs. Policy and scope always come together: a policy without its scope is misread.
/// Unknown values are empty and omitted.
fn policies(config: &KubeletConfig, inputs: &Inputs<'_>) -> Vec<(String, String)> {
    let mut attributes = vec![
        (POLICY.to_owned(), config.topology_manager_policy.clone()),
        (SCOPE.to_owned(), config.topology_manager_scope.clone()),
    ];
    for (option, value) in &config.topology_manager_policy_options {
        let name =
            if option == MAX_NODES { MAX_NODES_ATTRIBUTE.to_owned() } else { camel_case(OPTION, option) };
        attributes.push((name, value.clone()));
    }
    attributes.push((CPU_POLICY.to_owned(), config.cpu_manager_policy.clone()));
    for (option, value) in &config.cpu_manager_policy_options {
        attributes.push((camel_case(CPU_OPTION, option), value.clone()));
    }
    attributes.push((MEMORY_POLICY.to_owned(), config.memory_manager_policy.clone()));
    attributes.push((RESERVED_CPUS.to_owned(), cpus::known_reserved(inputs, config).to_string()));
    attributes.retain(|(_, value)| !value.is_empty());
    attributes
}

/// Returns the attribute of an option: `topologyManagerOption` and `prefer-closest-numa-nodes` give
/// `topologyManagerOptionPreferClosestNumaNodes`.
pub(crate) fn camel_case(prefix: &str, option: &str) -> String {
    let mut name = prefix.to_owned();
    for word in option.split('-') {
        let mut letters = word.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.extend(letters);
    }
    name
}
