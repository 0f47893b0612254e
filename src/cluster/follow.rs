//! Watches the metadata of a node's object.

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use kube::api::{GetParams, ObjectMeta, WatchEvent};

use super::metadata::OnlyMetadata;
use super::pods::{Frames, Odd};
use super::watch::{Heard, Lost, Told, Watch, Watched};
use super::{Cluster, ClusterError, Failure};

/// A watch from this version starts with the object as it is in the watch cache. One from the object's own
/// version fails with 410 if the API server has restarted since the object was last written.
const FROM_CACHE: &str = "0";
/// Only the metadata, one event per line.
const ACCEPTED: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// An event about the object.
#[derive(Clone, Debug)]
pub enum ObjectEvent {
    /// The object's current metadata.
    Applied(Box<ObjectMeta>),
    /// The object was deleted. Its last metadata, unless its deletion was missed.
    Deleted(Option<Box<ObjectMeta>>),
}

/// A watch on the object of one node.
pub struct ObjectWatch(BoxStream<'static, Result<ObjectEvent, ClusterError>>);

impl ObjectWatch {
    /// Returns the next event. After an error it continues by itself, after a backoff. Cancel-safe.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn next(&mut self) -> Result<ObjectEvent, ClusterError> {
        match self.0.next().await {
            Some(news) => news,
            // The stream never ends.
            None => std::future::pending().await,
        }
    }
}

impl Cluster {
    /// Watches the object of a node, starting after `version`.
    #[must_use]
    pub fn watch_topology(&self, name: &str, version: &str) -> ObjectWatch {
        let object = Object { name: name.to_owned(), path: self.topologies_path() };
        let following = Following {
            name: name.to_owned(),
            missed: version.is_empty(),
            watch: Watch::new(self.clone(), object, version.to_owned()),
        };
        let events = unfold(following, |mut following| async { Some((following.next().await, following)) });
        ObjectWatch(events.boxed())
    }
}

/// The watch's selection.
struct Object {
    name: String,
    /// The path of all objects.
    path: String,
}

impl Watched for Object {
    type Event = ObjectEvent;

    fn what(&self) -> String {
        format!("watch noderesourcetopology {}", self.name)
    }

    fn request(&self) -> (String, &'static str) {
        (format!("{}?fieldSelector=metadata.name%3D{}", self.path, self.name), ACCEPTED)
    }

    fn frames(&self) -> Frames {
        Frames::lines()
    }

    fn read(&self, frame: &[u8]) -> Result<Told<ObjectEvent>, Odd> {
        let event: WatchEvent<OnlyMetadata> =
            serde_json::from_slice(frame).map_err(|error| Odd::Line(error.to_string()))?;
        let version = |metadata: &ObjectMeta| metadata.resource_version.clone().ok_or(Odd::NoVersion);
        Ok(match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let version = version(&object.metadata)?;
                Told::Event(ObjectEvent::Applied(Box::new(object.metadata)), version)
            }
            WatchEvent::Deleted(object) => {
                let version = version(&object.metadata)?;
                Told::Event(ObjectEvent::Deleted(Some(Box::new(object.metadata))), version)
            }
            WatchEvent::Bookmark(bookmark) => Told::Until(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => Told::Failed(status),
        })
    }

    fn explain(&self, cluster: &Cluster, failure: Failure) -> ClusterError {
        cluster.explain_object(failure, &self.what())
    }
}

/// The object and its watch.
struct Following {
    name: String,
    watch: Watch<Object>,
    /// Events may have been missed: the object has to be read.
    missed: bool,
}

impl Following {
    async fn next(&mut self) -> Result<ObjectEvent, ClusterError> {
        loop {
            if self.missed {
                self.watch.pace.wait().await;
                if let Some(event) = self.look().await? {
                    return Ok(event);
                }
            }
            match self.watch.next().await {
                Ok(Heard::Event(event)) => return Ok(event),
                Ok(Heard::Again) => {}
                Err(Lost::Failed(error)) => return Err(error),
                // Mostly 410: the version is too old to resume from.
                Err(Lost::Stale(_)) => self.missed = true,
            }
        }
    }

    /// Reads the object; `None` if RBAC does not allow it.
    async fn look(&mut self) -> Result<Option<ObjectEvent>, ClusterError> {
        let cluster = self.watch.cluster.clone();
        let what = format!("get noderesourcetopology {}", self.name);
        let request = cluster.topologies().get_metadata(&self.name, &GetParams::default());
        let event = match cluster.in_time(&what, cluster.read::<OnlyMetadata>(request)).await {
            Ok(object) => Some(ObjectEvent::Applied(Box::new(object.metadata))),
            Err(Failure::Status(status)) if status.is_not_found() => Some(ObjectEvent::Deleted(None)),
            Err(failure) => match cluster.explain_object(failure, &what) {
                // Then the watch alone has to suffice.
                error if error.is_forbidden() => None,
                error => {
                    self.watch.fail(Some(&error));
                    return Err(error);
                }
            },
        };
        self.watch.go_on_from(FROM_CACHE.to_owned());
        self.missed = false;
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metadata::nested;

    #[test]
    fn an_event_is_read_whatever_the_managed_fields_are() {
        let object = Object { name: "w".to_owned(), path: String::new() };
        for levels in [1, 130, 10_000] {
            for kind in ["ADDED", "MODIFIED", "DELETED"] {
                let event = format!(r#"{{"type":"{kind}","object":{{"metadata":{}}}}}"#, nested(levels));
                let told = object.read(event.as_bytes()).map_err(|odd| odd.to_string());
                assert!(matches!(told, Ok(Told::Event(_, version)) if version == "7"), "{kind}, {levels}");
            }
        }
    }
}
