use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use kube::api::{GetParams, ObjectMeta, WatchEvent};

use super::frames::FrameSplitter;
use super::metadata::OnlyMetadata;
use super::protobuf::DecodeError;
use super::watch::{Frame, Interruption, Watch, WatchItem, WatchTarget};
use super::{Cluster, ClusterError};

/// A watch from this version starts with the object as it is in the watch cache. One from the object's own
/// version fails with 410 if the API server has restarted since the object was last written.
const FROM_CACHE: &str = "0";
/// Only the metadata, one event per line.
const CONTENT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// An event about the object.
#[derive(Clone, Debug)]
pub enum ObjectEvent {
    /// The object's current metadata.
    Applied(Box<ObjectMeta>),
    /// The object was deleted. Its last metadata, unless its deletion was missed.
    Deleted(Option<Box<ObjectMeta>>),
}

/// A watch on the object of one node, an endless stream. After an error it continues by itself, after a
/// backoff.
pub type ObjectWatch = BoxStream<'static, Result<ObjectEvent, ClusterError>>;

impl Cluster {
    /// Watches the object of a node, starting after `version`.
    pub fn watch_topology(&self, name: &str, version: &str) -> ObjectWatch {
        let target = ObjectOfNode { name: name.to_owned(), path: self.topologies_path() };
        let watch = Watch::new(self.clone(), target, version.to_owned());
        let watcher = ObjectWatcher { watch, is_stale: version.is_empty() };
        unfold(watcher, |mut watcher| async { Some((watcher.next().await, watcher)) }).boxed()
    }
}

struct ObjectOfNode {
    name: String,
    path: String,
}

impl WatchTarget for ObjectOfNode {
    type Event = ObjectEvent;

    fn what(&self) -> String {
        format!("watch noderesourcetopology {}", self.name)
    }

    fn request(&self) -> (String, &'static str, FrameSplitter) {
        let path = format!("{}?fieldSelector=metadata.name%3D{}", self.path, self.name);
        (path, CONTENT, FrameSplitter::lines())
    }

    fn decode(&self, frame: &[u8]) -> Result<Frame<ObjectEvent>, DecodeError> {
        let event: WatchEvent<OnlyMetadata> =
            serde_json::from_slice(frame).map_err(|error| DecodeError::Line(error.to_string()))?;
        let version = |metadata: &ObjectMeta| metadata.resource_version.clone().ok_or(DecodeError::NoVersion);
        Ok(match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let version = version(&object.metadata)?;
                Frame::Event(ObjectEvent::Applied(Box::new(object.metadata)), version)
            }
            WatchEvent::Deleted(object) => {
                let version = version(&object.metadata)?;
                Frame::Event(ObjectEvent::Deleted(Some(Box::new(object.metadata))), version)
            }
            WatchEvent::Bookmark(bookmark) => Frame::Bookmark(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => Frame::Error(status),
        })
    }
}

struct ObjectWatcher {
    watch: Watch<ObjectOfNode>,
    /// Events may have been missed: the object has to be read.
    is_stale: bool,
}

impl ObjectWatcher {
    async fn next(&mut self) -> Result<ObjectEvent, ClusterError> {
        loop {
            if self.is_stale {
                self.watch.wait().await;
                if let Some(event) = self.read().await? {
                    return Ok(event);
                }
            }
            match self.watch.next().await {
                Ok(WatchItem::Event(event)) => return Ok(event),
                Ok(WatchItem::Resumed) => {}
                Err(Interruption::Failed(error)) => return Err(error),
                // Mostly 410: the version is too old to resume from.
                Err(Interruption::MustRelist(_)) => self.is_stale = true,
            }
        }
    }

    /// Reads the object; `None` if RBAC does not allow it.
    async fn read(&mut self) -> Result<Option<ObjectEvent>, ClusterError> {
        let (cluster, name) = (&self.watch.cluster, &self.watch.target.name);
        let request = cluster.topologies().get_metadata(name, &GetParams::default());
        let read = cluster.call_for_topology("get", name, cluster.read::<OnlyMetadata>(request)).await;
        let event = match read {
            Ok(Some(object)) => Some(ObjectEvent::Applied(Box::new(object.metadata))),
            Ok(None) => Some(ObjectEvent::Deleted(None)),
            // Then the watch alone has to suffice.
            Err(error) if error.is_forbidden() => None,
            Err(error) => {
                self.watch.fail(Some(&error));
                return Err(error);
            }
        };
        self.watch.resume_from(FROM_CACHE.to_owned());
        self.is_stale = false;
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metadata::tests::nested;

    #[test]
    fn managed_fields_of_any_depth_are_decoded() {
        let target = ObjectOfNode { name: "w".to_owned(), path: String::new() };
        for levels in [1, 130, 10_000] {
            for kind in ["ADDED", "MODIFIED", "DELETED"] {
                let event = format!(r#"{{"type":"{kind}","object":{{"metadata":{}}}}}"#, nested(levels));
                let frame = target.decode(event.as_bytes()).map_err(|error| error.to_string());
                assert!(matches!(frame, Ok(Frame::Event(_, version)) if version == "7"), "{kind}, {levels}");
            }
        }
    }
}
