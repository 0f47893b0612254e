//! How the kubelet places pods, in the documented spelling (nrt.md, known names).

use crate::kubelet::KubeletConfig;

/// How strictly pods are aligned.
pub(super) const POLICY: &str = "topologyManagerPolicy";

/// The option that becomes an attribute of its own name.
const MAX_NODES: &str = "max-allowable-numa-nodes";

/// Policy and scope always come together: a policy without its scope is misread.
pub(super) fn of(config: &KubeletConfig) -> Vec<(String, String)> {
    let mut attributes = vec![
        (POLICY.to_owned(), config.topology_manager_policy.clone()),
        ("topologyManagerScope".to_owned(), config.topology_manager_scope.clone()),
    ];
    for (option, value) in &config.topology_manager_policy_options {
        let name = if option == MAX_NODES { "topologyManagerMaxNUMANodes".to_owned() } else { camel(option) };
        attributes.push((name, value.clone()));
    }
    attributes.push(("cpuManagerPolicy".to_owned(), config.cpu_manager_policy.clone()));
    attributes.push(("memoryManagerPolicy".to_owned(), config.memory_manager_policy.clone()));
    attributes
}

/// `prefer-closest-numa-nodes` -> `topologyManagerOptionPreferClosestNumaNodes`.
fn camel(option: &str) -> String {
    let mut name = "topologyManagerOption".to_owned();
    for word in option.split('-') {
        let mut letters = word.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.extend(letters);
    }
    name
}
