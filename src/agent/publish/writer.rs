//! Writes the object of one node, and tracks what the API server has.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::drift::Leftovers;
use crate::agent::object::{node_reference, object};
use crate::agent::standing::Standing;
use crate::cluster::{Cluster, ClusterError};
use crate::nrt::NodeResourceTopology;
use crate::topology::Topology;

/// How long a Node UID that was read may be used for a new object: the Node may be recreated.
const FRESH: Duration = Duration::from_secs(10);

/// The live object, as far as we know.
#[derive(Debug)]
enum Own {
    /// Not read yet, or we may not read it.
    Unknown,
    /// There is no object.
    Missing,
    /// An object with this metadata.
    Is(Box<ObjectMeta>),
}

/// Writes the object of one node.
#[derive(Debug)]
pub(in crate::agent) struct Writer {
    node: String,
    cluster: Cluster,
    /// Whether to make the Node the owner of an object that we create.
    owned: bool,
    own: Own,
    /// The Node's UID, and when it was read.
    uid: Option<(String, Instant)>,
    /// Whether it was logged that we may not read the object.
    told_unreadable: bool,
}

impl Writer {
    pub(in crate::agent) fn new(node: String, cluster: Cluster, owned: bool) -> Self {
        Self { node, cluster, owned, own: Own::Unknown, uid: None, told_unreadable: false }
    }

    /// Returns the object's metadata, if known.
    pub(super) fn own(&self) -> Option<&ObjectMeta> {
        match &self.own {
            Own::Is(metadata) => Some(metadata),
            Own::Unknown | Own::Missing => None,
        }
    }

    /// Records the object's metadata after another writer's change.
    pub(super) fn saw(&mut self, metadata: ObjectMeta) {
        self.own = Own::Is(Box::new(metadata));
    }

    /// Returns true if this version or a later one is already known. Resource versions are numbers that only
    /// grow.
    pub(super) fn knows(&self, metadata: &ObjectMeta) -> bool {
        let number = |metadata: &ObjectMeta| metadata.resource_version.as_deref()?.parse::<u64>().ok();
        let Some(own) = self.own().filter(|own| own.uid == metadata.uid) else { return false };
        number(metadata).zip(number(own)).is_some_and(|(theirs, ours)| theirs <= ours)
    }

    /// Removes what others left. If the Node should own the object, it replaces the Namespace that did.
    pub(super) async fn clean(&mut self, left: Leftovers) -> Result<(), ClusterError> {
        let Some(metadata) = self.own() else { return Ok(()) };
        let owner = match left.has_owner() && self.owned {
            true => Some(node_reference(&self.node, &self.cluster.node_uid(&self.node).await?)),
            false => None,
        };
        let patch = left.patch(metadata, owner.as_ref());
        let cleaned = self.cluster.merge(&self.node, &patch).await?;
        self.own = Own::Is(Box::new(cleaned));
        Ok(())
    }

    /// Returns the object's resource version; empty if unknown.
    pub(super) fn version(&self) -> &str {
        self.own().and_then(|metadata| metadata.resource_version.as_deref()).unwrap_or_default()
    }

    /// Reads the object and, concurrently, the Node: both are needed to create an object.
    pub(in crate::agent) async fn start(&mut self) -> Result<Standing, ClusterError> {
        let (cluster, node) = (self.cluster.clone(), self.node.clone());
        let read_uid = async {
            // An error is ignored: the UID is read again if it turns out to be needed.
            if self.owned { cluster.node_uid(&node).await.ok() } else { None }
        };
        let (read, uid) = tokio::join!(self.cluster.topology(&self.node), read_uid);
        self.uid = uid.map(|uid| (uid, Instant::now()));
        self.take(read)
    }

    /// Reads the object.
    pub(super) async fn read(&mut self) -> Result<Standing, ClusterError> {
        let read = self.cluster.topology(&self.node).await;
        self.take(read)
    }

    fn take(
        &mut self,
        read: Result<Option<NodeResourceTopology>, ClusterError>,
    ) -> Result<Standing, ClusterError> {
        match read {
            Ok(None) => {
                self.own = Own::Missing;
                Ok(Standing::Missing)
            }
            Ok(Some(object)) => {
                self.own = Own::Is(Box::new(object.metadata.clone()));
                Ok(Standing::Object(Box::new(object)))
            }
            Err(error) if error.is_forbidden() => {
                if !self.told_unreadable {
                    warn!("{error}; the object is written all the same, without knowing what it was");
                    self.told_unreadable = true;
                }
                // What an earlier write returned is still valid.
                Ok(Standing::Unreadable)
            }
            Err(error) => Err(error),
        }
    }

    /// Applies `topology` to the object. If the object was deleted or recreated since it was last seen, reads
    /// it and tries once more.
    pub(in crate::agent) async fn write(&mut self, topology: &Topology) -> Result<(), ClusterError> {
        match self.apply(topology).await {
            Err(error) if error.is_conflict() => {
                debug!("{error}; looking again");
                self.own = Own::Unknown;
                self.read().await?;
                self.apply(topology).await
            }
            applied => applied,
        }
    }

    /// Applies a live object of ours of which only the fingerprint was changed.
    pub(super) async fn hold(&mut self, object: &NodeResourceTopology) -> Result<(), ClusterError> {
        if self.own().is_none() {
            return Ok(());
        }
        self.send(NodeResourceTopology::new(&self.node, object.spec.clone())).await
    }

    async fn apply(&mut self, topology: &Topology) -> Result<(), ClusterError> {
        let mut object = object(&self.node, None, topology);
        // A field left out of an apply keeps the value that others gave it, and consumers would use that.
        object.spec.attributes.get_or_insert_default();
        self.send(object).await
    }

    /// Applies an object with this content to the one that we know.
    async fn send(&mut self, mut object: NodeResourceTopology) -> Result<(), ClusterError> {
        let mut made = false;
        object.metadata.owner_references = match &self.own {
            Own::Is(metadata) => {
                // Only update this object: if it is gone, a new one must be created, with another owner.
                object.metadata.uid.clone_from(&metadata.uid);
                Some(self.repeated(metadata)).filter(|references| !references.is_empty())
            }
            Own::Unknown | Own::Missing => {
                let owner = self.first_reference().await?;
                made = owner.is_some();
                owner.map(|reference| vec![reference])
            }
        };
        let metadata = match self.cluster.apply(&object).await {
            Err(error) if made && error.is_denied() => self.make_without_owner(object, &error).await?,
            applied => applied?,
        };
        self.own = Own::Is(Box::new(metadata));
        Ok(())
    }

    /// Creates the object without an owner. A policy may reject the owner alone: the chart's does if the Node
    /// was recreated, until the kubelet has requested a token that names the new one. An object without an
    /// owner is better than none: the controller deletes it with the Node.
    async fn make_without_owner(
        &self,
        mut object: NodeResourceTopology,
        refusal: &ClusterError,
    ) -> Result<ObjectMeta, ClusterError> {
        object.metadata.owner_references = None;
        let metadata = self.cluster.apply(&object).await?;
        warn!("{refusal}; the NodeResourceTopology {} is made without an owner", self.node);
        Ok(metadata)
    }

    /// Returns the references to this node's Node, unchanged: an owner is set at creation and never changed,
    /// and a reference left out of an apply is removed.
    fn repeated(&self, metadata: &ObjectMeta) -> Vec<OwnerReference> {
        let all = metadata.owner_references.iter().flatten();
        all.filter(|reference| self.is_node(reference)).cloned().collect()
    }

    fn is_node(&self, reference: &OwnerReference) -> bool {
        reference.kind == "Node" && reference.api_version == "v1" && reference.name == self.node
    }

    /// Returns the owner reference of an object that is created now.
    async fn first_reference(&mut self) -> Result<Option<OwnerReference>, ClusterError> {
        if !self.owned {
            return Ok(None);
        }
        let fresh = self.uid.take().filter(|(_, read)| read.elapsed() < FRESH);
        let uid = match fresh {
            Some((uid, _)) => uid,
            None => self.cluster.node_uid(&self.node).await?,
        };
        Ok(Some(node_reference(&self.node, &uid)))
    }

    /// Records that the object was deleted.
    pub(super) fn lost(&mut self) {
        self.own = Own::Missing;
        self.uid = None;
    }

    /// Returns true if the object is owned by another Node than the current one. Reads the Node.
    pub(super) async fn owner_is_stale(&self) -> Result<bool, ClusterError> {
        if !self.owned || !self.is_owned() {
            return Ok(false);
        }
        let uid = self.cluster.node_uid(&self.node).await?;
        Ok(self.is_owned_by_another_than(&uid))
    }

    /// Like [`Writer::owner_is_stale`], by what was read of the Node at startup.
    pub(super) fn owner_seems_stale(&self) -> bool {
        self.is_owned() && self.uid.as_ref().is_some_and(|(uid, _)| self.is_owned_by_another_than(uid))
    }

    fn is_owned(&self) -> bool {
        self.own().is_some_and(|metadata| !self.repeated(metadata).is_empty())
    }

    fn is_owned_by_another_than(&self, uid: &str) -> bool {
        self.own().is_some_and(|metadata| self.repeated(metadata).iter().all(|owner| owner.uid != uid))
    }
}
