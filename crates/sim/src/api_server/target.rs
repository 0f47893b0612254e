//! What a request addresses.

use std::collections::HashMap;

use super::kinds::{KINDS, Kind};
use super::selector::Selector;
use super::status::Failure;
use super::store::Key;

/// The query parameters.
pub(super) type Parameters = HashMap<String, String>;

/// The object or collection that a request addresses.
pub(super) struct Target {
    pub(super) kind: &'static Kind,
    pub(super) version: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Target {
    /// The object or collection of a path; `None` for discovery and unknown paths.
    pub(super) fn of(segments: &[&str]) -> Option<Self> {
        let (group, version, rest) = match segments {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, plural, name) = match rest {
            // The status subresource is treated as the object itself.
            ["namespaces", namespace, plural, name] | ["namespaces", namespace, plural, name, "status"] => {
                (*namespace, *plural, *name)
            }
            ["namespaces", namespace, plural] => (*namespace, *plural, ""),
            [plural, name] | [plural, name, "status"] => ("", *plural, *name),
            [plural] => ("", *plural, ""),
            _ => return None,
        };
        let kind = KINDS
            .iter()
            .find(|kind| kind.group == group && kind.plural == plural && kind.versions.contains(&version))?;
        let fits = namespace.is_empty() || kind.namespaced;
        let is_complete = name.is_empty() || !namespace.is_empty() || !kind.namespaced;
        (fits && is_complete).then(|| Self {
            kind,
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The selectors. A watch on the path of one object is a watch with a field selector.
    pub(super) fn selector(&self, parameters: &Parameters) -> Result<Selector, Failure> {
        let text = |name: &str| parameters.get(name).cloned().unwrap_or_default();
        let mut fields = text("fieldSelector");
        if !self.name.is_empty() {
            fields = format!("{fields},metadata.name={}", self.name);
        }
        Selector::new(&fields, &text("labelSelector"))
    }

    pub(super) fn key(&self) -> Key {
        Key { kind: self.kind, namespace: self.namespace.clone(), name: self.name.clone() }
    }
}
