//! Keys of exclusions. Entries that could never have an effect are errors.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::names::{check_zone_resource, is_dns_name};
use crate::util::glob::PodPattern;

/// The key for every node, as in NFD and RTE.
pub const EVERY_NODE: &str = "*";

/// What zones leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Exclude {
    /// Resources that no zone lists, by node name, and `"*"` for every node.
    ///
    /// For example `{"*": [hugepages-1Gi], worker-1: [example.com/nic]}`, as NFD's `excludeList` and RTE's
    /// `resourceExclude`. A layer that sets the key replaces the whole map. The fingerprint does not change.
    ///
    /// Under the policy `single-numa-node`, the scheduler plugin rejects the node for pods that request
    /// `cpu`, `memory` or huge pages that no zone lists. It does not check unlisted devices, and a kubelet
    /// with the policy `restricted` or `single-numa-node` rejects pods that it cannot align
    /// (`TopologyAffinityError`).
    #[serde(deserialize_with = "resources")]
    pub resources: BTreeMap<String, BTreeSet<String>>,
    /// Pods whose resources count as free: a list of patterns of `namespace`, `name` or both.
    ///
    /// A pod must match both; one that is omitted matches every name.
    ///
    /// For example `[{namespace: "infra-*"}, {namespace: default, name: "debug-[0-9]"}]`. Patterns are those
    /// of RTE's `podExclude`: `*` is any number of characters, `?` one character, `[a-z]` one of these,
    /// `[^a-z]` one that is not among them, and a backslash escapes the next character. A layer that sets the
    /// key replaces the whole list.
    ///
    /// The zones then have more available than the kubelet. A kubelet with the policy `restricted` or
    /// `single-numa-node` rejects pods that are scheduled onto it (`TopologyAffinityError`). The fingerprint
    /// still includes these pods, since the scheduler plugin counts them; RTE's omits them, so it never
    /// matches while one of them runs.
    #[schemars(with = "Vec<RawPattern>")]
    pub pods: Vec<PodPattern>,
    /// Count only pods of this namespace. Default: all
    ///
    /// It is the watch-namespace of NFD and RTE, and shows what one namespace uses. Do not set it where a
    /// scheduler reads the object. `*` means every namespace.
    #[serde(deserialize_with = "namespace")]
    pub outside_namespace: Option<String>,
}

/// The form of [`PodPattern`] in a file.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "for its schema")]
struct RawPattern {
    namespace: Option<String>,
    name: Option<String>,
}

impl Exclude {
    /// Returns the resources excluded on `node`, from its own list and that of every node; may contain
    /// duplicates.
    pub fn resources_of(&self, node: &str) -> impl Iterator<Item = &String> {
        let lists = self.resources.iter().filter(move |(name, _)| *name == EVERY_NODE || *name == node);
        lists.flat_map(|(_, resources)| resources)
    }
}

fn resources<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, BTreeSet<String>>, D::Error> {
    let lists: BTreeMap<String, BTreeSet<String>> = BTreeMap::deserialize(deserializer)?;
    let nodes = lists.keys().map(|node| check_node(node));
    let names = lists.values().flatten().map(|name| check_zone_resource(name));
    nodes.chain(names).collect::<Result<(), String>>().map_err(serde::de::Error::custom)?;
    Ok(lists)
}

/// Parses a namespace. `*` and the empty string mean every namespace, as in NFD and RTE.
fn namespace<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name: Option<String> = Option::deserialize(deserializer)?;
    let Some(name) = name.filter(|name| !name.is_empty() && name != "*") else { return Ok(None) };
    if name.contains('.') || name.len() > 63 || !is_dns_name(&name) {
        let reason = format!("`{name}` is not a namespace; write the name of one, or `*` for all");
        return Err(serde::de::Error::custom(reason));
    }
    Ok(Some(name))
}

fn check_node(name: &str) -> Result<(), String> {
    if name == EVERY_NODE || is_dns_name(name) {
        return Ok(());
    }
    Err(format!("`{name}` is not a node name; write the name of one node, or `*` for every node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str) -> Result<Exclude, String> {
        let value: serde_json::Value = serde_saphyr::from_str(yaml).unwrap();
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn the_lists_of_the_node_and_of_every_node_are_united() {
        let exclude = read(
            "resources: {'*': [memory, hugepages-1Gi], worker-1.example: [cpu, memory, a.b/C_d.9], other: [x.y/z]}",
        )
        .unwrap();
        let of = |node| exclude.resources_of(node).map(String::as_str).collect::<BTreeSet<_>>();
        assert_eq!(of("worker-1.example"), ["a.b/C_d.9", "cpu", "hugepages-1Gi", "memory"].into());
        assert_eq!(of("worker-2"), ["hugepages-1Gi", "memory"].into());
        assert_eq!(of(""), of("worker-2"));
    }

    #[test]
    fn names_that_can_have_no_effect_are_errors() {
        for name in [
            "",
            "CPU",
            "hugepages",
            "hugepages-",
            "hugepages-0",
            "hugepages-Ki",
            "hugepages-big",
            "pods",
            "ephemeral-storage",
            "a/b/c",
            "/x",
        ] {
            let error = read(&format!("resources: {{'*': ['{name}']}}")).unwrap_err();
            assert!(
                error.starts_with(&format!("`{name}` is not a resource of a zone; zones have cpu,")),
                "{error}"
            );
        }
        let error = read("resources: {'*': [hugepages-2048Ki]}").unwrap_err();
        assert_eq!(error, "`hugepages-2048Ki` is not how zones name these pages; write `hugepages-2Mi`");
        for node in ["worker-*", "", "Worker", "-a"] {
            let error = read(&format!("resources: {{'{node}': [cpu]}}")).unwrap_err();
            assert!(
                error.starts_with(&format!("`{node}` is not a node name; write the name of one")),
                "{error}"
            );
        }
        let error = read("outsideNamespace: team-*").unwrap_err();
        assert_eq!(error, "`team-*` is not a namespace; write the name of one, or `*` for all");
    }

    #[test]
    fn every_namespace_is_written_as_in_nfd_and_rte() {
        for text in ["outsideNamespace: '*'", "outsideNamespace: ''", "outsideNamespace:", "pods: []"] {
            assert_eq!(read(text).unwrap(), Exclude::default(), "{text}");
        }
        assert_eq!(read("outsideNamespace: team").unwrap().outside_namespace.as_deref(), Some("team"));
    }
}
