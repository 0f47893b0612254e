//! Writes the object of one node, and keeps the metadata that the API server returned.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::drift::Leftovers;
use super::field_manager::POLICIES;
use super::object::{node_reference, object};
use crate::agent::live_object::LiveObject;
use crate::cluster::{Cluster, ClusterError, ObjectWatch};
use crate::nrt::{Form, NodeResourceTopology, Version};
use crate::scheduler::Publishable;

/// How long a Node UID that was read may be used for a new object: the Node may be recreated.
const UID_LIFETIME: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ObjectWriter {
    pub(super) node: String,
    cluster: Cluster,
    sets_owner: bool,
    /// The object's metadata; `None` if there is no object, or it is unknown.
    pub(super) metadata: Option<ObjectMeta>,
    /// The Node's UID, and when it was read.
    uid: Option<(String, Instant)>,
    /// Whether it was logged that we may not read the object.
    has_warned: bool,
}

impl ObjectWriter {
    pub(super) fn new(node: String, cluster: Cluster, sets_owner: bool) -> Self {
        Self { node, cluster, sets_owner, metadata: None, uid: None, has_warned: false }
    }

    /// Returns true if this version or a later one is already known. Resource versions are numbers that only
    /// grow.
    pub(super) fn is_known(&self, metadata: &ObjectMeta) -> bool {
        let version = |metadata: &ObjectMeta| metadata.resource_version.as_deref()?.parse::<u64>().ok();
        let known = self.metadata.as_ref().filter(|known| known.uid == metadata.uid);
        known.and_then(version).zip(version(metadata)).is_some_and(|(known, theirs)| theirs <= known)
    }

    pub(super) fn watch(&self) -> ObjectWatch {
        self.cluster.watch_topology(&self.node, self.version())
    }

    /// Removes what others left. If the Node should own the object, it replaces the Namespace that did.
    pub(super) async fn remove(&mut self, leftovers: Leftovers) -> Result<(), ClusterError> {
        let Some(metadata) = &self.metadata else { return Ok(()) };
        let owner = match leftovers.owner && self.sets_owner {
            true => Some(node_reference(&self.node, &self.cluster.node_uid(&self.node).await?)),
            false => None,
        };
        let patch = leftovers.patch(metadata, owner.as_ref());
        self.metadata = Some(self.cluster.merge(&self.node, &patch).await?);
        Ok(())
    }

    pub(super) fn version(&self) -> &str {
        self.metadata.as_ref().and_then(|metadata| metadata.resource_version.as_deref()).unwrap_or_default()
    }

    /// Reads the object and, concurrently, the Node: both are needed to create an object.
    pub(super) async fn start(&mut self) -> Result<LiveObject, ClusterError> {
        let (cluster, node) = (self.cluster.clone(), self.node.clone());
        let read_uid = async {
            // An error is ignored: the UID is read again if it turns out to be needed.
            if self.sets_owner { cluster.node_uid(&node).await.ok() } else { None }
        };
        let (read, uid) = tokio::join!(self.cluster.topology(&self.node), read_uid);
        self.uid = uid.map(|uid| (uid, Instant::now()));
        self.take(read)
    }

    pub(super) async fn read(&mut self) -> Result<LiveObject, ClusterError> {
        let read = self.cluster.topology(&self.node).await;
        self.take(read)
    }

    fn take(
        &mut self,
        read: Result<Option<NodeResourceTopology>, ClusterError>,
    ) -> Result<LiveObject, ClusterError> {
        match read {
            Ok(None) => {
                self.metadata = None;
                Ok(LiveObject::Missing)
            }
            Ok(Some(object)) => {
                self.metadata = Some(object.metadata.clone());
                Ok(LiveObject::Object(Box::new(object)))
            }
            Err(error) if error.is_forbidden() => {
                if !self.has_warned {
                    warn!("{error}; the object is written all the same, without knowing its former content");
                    self.has_warned = true;
                }
                // What an earlier write returned is still valid.
                Ok(LiveObject::Unreadable)
            }
            Err(error) => Err(error),
        }
    }

    /// Applies `state` to the known object. If that one does not exist any more (404 for the merge patch of
    /// [`Self::disown_old_version`]), reads the object that has its name now, if any, and applies once more; the
    /// first error is only logged.
    pub(super) async fn write(&mut self, state: &Publishable) -> Result<(), ClusterError> {
        match self.apply(state).await {
            Err(error)
                if error.is_other_object_or_version()
                    || error.is_of_other_version()
                    || error.is_not_found() =>
            {
                debug!("{error}; reading it again");
                self.metadata = None;
                self.read().await?;
                self.apply(state).await
            }
            applied => applied,
        }
    }

    /// Applies a live object of ours of which only the fingerprint was changed.
    pub(super) async fn write_withheld(&mut self, object: &NodeResourceTopology) -> Result<(), ClusterError> {
        if self.metadata.is_none() {
            return Ok(());
        }
        self.send(NodeResourceTopology::new(&self.node, object.spec.clone())).await
    }

    async fn apply(&mut self, state: &Publishable) -> Result<(), ClusterError> {
        let mut object = object(&self.node, None, state);
        // A field left out of an apply keeps the value that others gave it, and consumers would use that.
        object.spec.attributes.get_or_insert_default();
        self.send(object).await
    }

    /// Applies an object with this content to the one that we know.
    async fn send(&mut self, mut object: NodeResourceTopology) -> Result<(), ClusterError> {
        let mut has_new_owner = false;
        object.metadata.owner_references = match &self.metadata {
            Some(metadata) => {
                // Only update this object: if it is gone, a new one must be created, with another owner.
                object.metadata.uid.clone_from(&metadata.uid);
                Some(self.own_references(metadata)).filter(|references| !references.is_empty())
            }
            None => {
                let owner = self.first_reference().await?;
                has_new_owner = owner.is_some();
                owner.map(|reference| vec![reference])
            }
        };
        self.disown_old_version(&object).await?;
        let metadata = match self.cluster.apply(&object).await {
            Err(error) if has_new_owner && error.is_denied() => {
                self.create_without_owner(object, &error).await?
            }
            applied => applied?,
        };
        self.metadata = Some(metadata);
        Ok(())
    }

    /// Makes nobody the owner of what was written in v1alpha1, as koordlet does: the API server converts an applied
    /// object to the version of every other manager, and fails if that version does not have all of its fields.
    async fn disown_old_version(&mut self, object: &NodeResourceTopology) -> Result<(), ClusterError> {
        let Some(metadata) = &self.metadata else { return Ok(()) };
        let Some(managed) = without_old_version(metadata, self.cluster.form()) else { return Ok(()) };
        // A policy may not admit the content of others.
        let mut patch = json!({
            "metadata": {"resourceVersion": metadata.resource_version, "managedFields": managed},
            "zones": object.spec.zones,
            "attributes": object.spec.attributes,
        });
        if !self.cluster.form().has_policies() {
            patch[POLICIES] = Value::Null;
        }
        self.metadata = Some(self.cluster.merge(&self.node, &patch).await?);
        Ok(())
    }

    /// Creates the object without an owner. A policy may reject the owner alone: the chart's does if the Node
    /// was recreated, until the kubelet has requested a token that names the new one. An object without an
    /// owner is better than none: the controller deletes it with the Node.
    async fn create_without_owner(
        &self,
        mut object: NodeResourceTopology,
        error: &ClusterError,
    ) -> Result<ObjectMeta, ClusterError> {
        object.metadata.owner_references = None;
        let metadata = self.cluster.apply(&object).await?;
        warn!("{error}; the NodeResourceTopology {} is created without an owner", self.node);
        Ok(metadata)
    }

    /// Returns the references to this node's Node, unchanged: an owner is set at creation and never changed,
    /// and a reference left out of an apply is removed.
    fn own_references(&self, metadata: &ObjectMeta) -> Vec<OwnerReference> {
        let all = metadata.owner_references.iter().flatten();
        let is_node =
            |of: &&OwnerReference| of.kind == "Node" && of.api_version == "v1" && of.name == self.node;
        all.filter(is_node).cloned().collect()
    }

    async fn first_reference(&mut self) -> Result<Option<OwnerReference>, ClusterError> {
        if !self.sets_owner {
            return Ok(None);
        }
        let fresh = self.uid.take().filter(|(_, read)| read.elapsed() < UID_LIFETIME);
        let uid = match fresh {
            Some((uid, _)) => uid,
            None => self.cluster.node_uid(&self.node).await?,
        };
        Ok(Some(node_reference(&self.node, &uid)))
    }

    pub(super) fn deleted(&mut self) {
        self.metadata = None;
        self.uid = None;
    }

    /// Returns true if the object is owned by another Node than the current one. Reads the Node.
    pub(super) async fn owner_is_stale(&self) -> Result<bool, ClusterError> {
        if !self.sets_owner || !self.has_owner() {
            return Ok(false);
        }
        let uid = self.cluster.node_uid(&self.node).await?;
        Ok(self.has_other_owner(&uid))
    }

    /// Like [`ObjectWriter::owner_is_stale`], by what was read of the Node at startup.
    pub(super) fn owner_seems_stale(&self) -> bool {
        self.has_owner() && self.uid.as_ref().is_some_and(|(uid, _)| self.has_other_owner(uid))
    }

    fn has_owner(&self) -> bool {
        self.metadata.as_ref().is_some_and(|metadata| !self.own_references(metadata).is_empty())
    }

    fn has_other_owner(&self, uid: &str) -> bool {
        let is_other = |owner: &OwnerReference| owner.uid != uid;
        self.metadata.as_ref().is_some_and(|metadata| self.own_references(metadata).iter().all(is_other))
    }
}

/// Returns the managed fields without those of v1alpha1; `None` if there are none, or we write that version ourselves.
fn without_old_version(metadata: &ObjectMeta, form: Form) -> Option<Value> {
    let is_old = |entry: &&ManagedFieldsEntry| {
        entry.api_version.as_deref().is_some_and(|version| version.ends_with(Version::V1alpha1.name()))
    };
    let all = || metadata.managed_fields.iter().flatten();
    if form.version == Version::V1alpha1 || !all().any(|entry| is_old(&entry)) {
        return None;
    }
    let kept: Vec<&ManagedFieldsEntry> = all().filter(|entry| !is_old(entry)).collect();
    // An empty list would be ignored.
    Some(if kept.is_empty() { json!([{}]) } else { json!(kept) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::publish::field_manager::tests::metadata;

    #[test]
    fn only_what_was_written_in_the_old_version_is_disowned() {
        let entry = |manager: &str, version: &str| json!({"manager": manager, "operation": "Update", "apiVersion": format!("topology.node.k8s.io/{version}")});
        let of = |entries: Vec<Value>, form: Form| {
            without_old_version(&metadata(json!({"managedFields": entries})), form)
        };
        let (nfd, koordlet) = (entry("nfd", "v1alpha2"), entry("koordlet", "v1alpha1"));
        assert_eq!(of(vec![nfd.clone()], Form::default()), None);
        assert_eq!(of(vec![koordlet.clone(), nfd.clone()], Form::default()), Some(json!([nfd])));
        assert_eq!(of(vec![koordlet.clone()], Form::default()), Some(json!([{}])));
        let old = Form { version: Version::V1alpha1, policies: true };
        assert_eq!(of(vec![koordlet, nfd], old), None);
    }
}
