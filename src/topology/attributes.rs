//! How the kubelet places pods, in the documented spelling (nrt.md, known names).

use crate::kubelet::KubeletConfig;
use crate::machine::Machine;

/// How strictly pods are aligned.
pub(super) const POLICY: &str = "topologyManagerPolicy";

/// The option that becomes an attribute of its own name.
const MAX_NODES: &str = "max-allowable-numa-nodes";

/// What of a pod is aligned together.
const SCOPE: &str = "topologyManagerScope";

/// All of them, in a fixed order.
pub(super) fn of(config: Option<&KubeletConfig>, machine: &Machine) -> Vec<(String, String)> {
    let mut attributes = config.map(policies).unwrap_or_default();
    // As NFD has it.
    attributes
        .extend(machine.core_types.iter().map(|(kind, cpus)| (format!("cpu_{kind}"), cpus.to_string())));
    attributes
}

/// Policy and scope always come together: a policy without its scope is misread. What nobody told is empty.
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

/// The scopes' places in the names of deprecated policies.
const SCOPES: [(&str, &str); 2] = [("container", "ContainerLevel"), ("pod", "PodLevel")];
/// The policies' places.
const POLICIES: [(&str, &str); 3] =
    [("single-numa-node", "SingleNUMANode"), ("restricted", "Restricted"), ("best-effort", "BestEffort")];
/// No alignment, whatever the scope.
const NONE: &str = "None";

/// The deprecated name of the policy and scope among `attributes`, as NFD spells it; `None` if they are unknown.
#[must_use]
pub fn deprecated(attributes: &[(String, String)]) -> Option<String> {
    let value =
        |name: &str| attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let (policy, scope) = (value(POLICY)?, value(SCOPE)?);
    let level = SCOPES.iter().find(|(name, _)| *name == scope);
    Some(match POLICIES.iter().find(|(name, _)| *name == policy).zip(level) {
        Some(((_, policy), (_, level))) => format!("{policy}{level}"),
        None => NONE.to_owned(),
    })
}

/// Policy and scope as attributes, from the deprecated name; none for a name that says only half.
#[must_use]
pub fn from_deprecated(name: &str) -> Vec<(String, String)> {
    let of = |policy: &str, scope: &str| {
        vec![(POLICY.to_owned(), policy.to_owned()), (SCOPE.to_owned(), scope.to_owned())]
    };
    if name == NONE {
        return of("none", "container");
    }
    let known = POLICIES.iter().find_map(|(policy, start)| {
        let level = name.strip_prefix(start)?;
        SCOPES.iter().find(|(_, word)| *word == level).map(|(scope, _)| of(policy, scope))
    });
    known.unwrap_or_default()
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

    #[test]
    fn deprecated_names_are_nfds_and_can_be_read_back() {
        for (policy, scope, name) in [
            ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
            ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
            ("restricted", "container", "RestrictedContainerLevel"),
            ("restricted", "pod", "RestrictedPodLevel"),
            ("best-effort", "container", "BestEffortContainerLevel"),
            ("best-effort", "pod", "BestEffortPodLevel"),
            ("none", "container", "None"),
        ] {
            let config = KubeletConfig {
                topology_manager_policy: policy.into(),
                topology_manager_scope: scope.into(),
                ..KubeletConfig::default()
            };
            let attributes = of(Some(&config), &Machine::default());
            assert_eq!(deprecated(&attributes).as_deref(), Some(name));
            assert_eq!(from_deprecated(name), attributes[..2]);
        }
        let attribute = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            deprecated(&[attribute(POLICY, "none"), attribute(SCOPE, "pod")]).as_deref(),
            Some("None")
        );
        assert_eq!(deprecated(&[attribute(POLICY, "restricted")]), None, "never without its scope");
        assert_eq!(from_deprecated("Restricted"), [], "half of it");
    }
}
