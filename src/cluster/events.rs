//! Kubernetes Events about Nodes and about all our objects.
//!
//! kube-runtime's `Recorder` counts repetitions by patching Events, which needs one more permission, and its
//! calls have no deadline.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use kube::api::{ObjectMeta, PostParams};
use kube::core::Request;

use super::{Cluster, ClusterError, FIELD_MANAGER, encoded};
use crate::util::text::truncate;

/// Namespace of Events about cluster-scoped objects.
pub const EVENTS_NAMESPACE: &str = "default";

/// Name of our objects' CRD.
const CRD_NAME: &str = "noderesourcetopologies.topology.node.k8s.io";

/// Maximum size of a note that the API server accepts, in bytes.
const MAX_NOTE: usize = 1023;

/// The subject of an Event.
#[derive(Clone, Copy, Debug)]
pub enum Regarding<'a> {
    /// A Node.
    Node {
        /// The Node's name.
        name: &'a str,
        /// Its UID: `kubectl describe node` finds Events by it.
        uid: &'a str,
    },
    /// All objects together: their CustomResourceDefinition.
    Objects,
}

impl Regarding<'_> {
    fn reference(self) -> ObjectReference {
        // No namespace: both are cluster-scoped, and `kubectl describe node` searches for Events with exactly
        // this.
        let (version, kind, name, uid) = match self {
            Self::Node { name, uid } => ("v1", "Node", name, Some(uid.to_owned())),
            Self::Objects => ("apiextensions.k8s.io/v1", "CustomResourceDefinition", CRD_NAME, None),
        };
        ObjectReference {
            api_version: Some(version.to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            uid,
            ..ObjectReference::default()
        }
    }
}

/// Creates Events of one reporter.
#[derive(Clone, Debug)]
pub struct EventPoster {
    /// The cluster to create them in.
    pub cluster: Cluster,
    /// The reporting controller, a qualified name.
    pub reporter: &'static str,
    /// The reporting instance.
    pub instance: String,
    /// The action taken, in one word.
    pub action: &'static str,
}

impl EventPoster {
    /// Creates an Event. `reason` is one word; `note` is truncated if too long.
    pub async fn post(
        &self,
        regarding: Regarding<'_>,
        reason: &str,
        is_warning: bool,
        note: &str,
    ) -> Result<(), ClusterError> {
        let regarding = regarding.reference();
        let about = regarding.name.clone().unwrap_or_default();
        #[allow(clippy::disallowed_methods, reason = "an Event has the wall clock's time")]
        let now = jiff::Timestamp::now();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name_for(&about)),
                namespace: Some(EVENTS_NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            regarding: Some(regarding),
            event_time: Some(MicroTime(now)),
            type_: Some(if is_warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(reason.to_owned()),
            action: Some(self.action.to_owned()),
            note: Some(truncate(note, MAX_NOTE).to_owned()),
            reporting_controller: Some(self.reporter.to_owned()),
            reporting_instance: Some(truncate(&self.instance, 128).to_owned()),
            ..Event::default()
        };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let what = format!("create an event about {about}");
        let events = Request::new(Event::url_path(&(), Some(EVENTS_NAMESPACE)));
        let request = encoded(&event).and_then(|event| events.create(&params, event));
        let made = self.cluster.in_time(&what, self.cluster.bytes(request)).await;
        made.map(drop).map_err(|failure| failure.explain(&what))
    }
}

/// Returns a unique name in the usual form. The API server's `generateName` does not accept a prefix that
/// ends with a dot.
fn name_for(node: &str) -> String {
    // Names have at most 253 characters.
    let start = truncate(node, 230).trim_end_matches(['.', '-']);
    format!("{start}.{:016x}", fastrand::u64(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_events_are_unique() {
        let (one, other) = (name_for("worker"), name_for("worker"));
        assert!(one.starts_with("worker.") && one.len() == 23 && one != other, "{one} {other}");
        let long = format!("{}.example.com", "a".repeat(229));
        let name = name_for(&long);
        assert!(name.starts_with(&"a".repeat(229)) && !name.contains("..") && name.len() <= 253, "{name}");
    }

    #[test]
    fn a_long_note_is_truncated_between_characters() {
        assert_eq!(truncate("short", MAX_NOTE), "short");
        let long = "é".repeat(MAX_NOTE);
        assert_eq!(truncate(&long, MAX_NOTE).len(), MAX_NOTE - 1);
    }
}
