//! The kubelet's resource policies as attributes, in the documented spelling (nrt.md, known names).

use crate::kubelet::KubeletConfig;
use crate::machine::Machine;

/// The attribute for the Topology Manager policy.
pub(super) const POLICY: &str = "topologyManagerPolicy";

/// The policy option whose attribute has a name of its own.
const MAX_NODES: &str = "max-allowable-numa-nodes";

/// The attribute for the Topology Manager scope.
const SCOPE: &str = "topologyManagerScope";

/// Returns all attributes, in a fixed order.
pub(super) fn of(config: Option<&KubeletConfig>, machine: &Machine) -> Vec<(String, String)> {
    let mut attributes = config.map(policies).unwrap_or_default();
    // Named as in NFD.
    attributes
        .extend(machine.core_types.iter().map(|(kind, cpus)| (format!("cpu_{kind}"), cpus.to_string())));
    attributes
}

/// Returns the policies. Policy and scope always come together: a policy without its scope is misread.
/// Unknown values are empty and omitted.
fn policies(config: &KubeletConfig) -> Vec<(String, String)> {
    let mut attributes = vec![
        (POLICY.to_owned(), config.topology_manager_policy.clone()),
        (SCOPE.to_owned(), config.topology_manager_scope.clone()),
    ];
    for (option, value) in &config.topology_manager_policy_options {
        let name = if option == MAX_NODES { "topologyManagerMaxNUMANodes".to_owned() } else { camel(option) };
        attributes.push((name, value.clone()));
    }
    attributes.push(("cpuManagerPolicy".to_owned(), config.cpu_manager_policy.clone()));
    attributes.push(("memoryManagerPolicy".to_owned(), config.memory_manager_policy.clone()));
    attributes.retain(|(_, value)| !value.is_empty());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_documented_names_and_what_nobody_told_is_left_out() {
        let options = [("max-allowable-numa-nodes", "16"), ("prefer-closest-numa-nodes", "true")];
        let config = KubeletConfig {
            topology_manager_policy: "restricted".into(),
            topology_manager_policy_options: options.map(|(name, value)| (name.into(), value.into())).into(),
            memory_manager_policy: String::new(),
            ..KubeletConfig::default()
        };
        let core_types = [("core", "0-3"), ("atom", "4")];
        let core_types = core_types.map(|(kind, cpus)| (kind.to_owned(), cpus.parse().unwrap())).into();
        let machine = Machine { core_types, ..Machine::default() };
        let told: Vec<String> =
            of(Some(&config), &machine).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            told,
            [
                "topologyManagerPolicy=restricted",
                "topologyManagerScope=container",
                "topologyManagerMaxNUMANodes=16",
                "topologyManagerOptionPreferClosestNumaNodes=true",
                "cpuManagerPolicy=none",
                "cpu_atom=4",
                "cpu_core=0-3",
            ]
        );
        assert_eq!(of(None, &machine).len(), 2, "the hardware is known without the kubelet");
    }
}
