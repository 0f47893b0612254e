//! Objects in the forms that commands for people need: as they are stored, and watched.

use kube::api::{GetParams, ListParams, ObjectMeta, WatchParams};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::list_watch::{ListWatchParams, ListWatchStream, PartialObject};
use super::metadata::metadata;
use super::pages::{PAGE_OF_PEOPLE, Pages};
use super::{Cluster, ClusterError, PublishedObject};

/// Something that is read from the object of a node.
pub trait OfNode: DeserializeOwned {
    /// Returns the node's name.
    fn node(&self) -> &str;
}

/// An object as the API server has it, without its `managedFields`.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredObject {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl StoredObject {
    /// Returns the object with its fields in the order of their names, as kubectl prints them.
    ///
    /// # Errors
    /// If it cannot be encoded.
    pub fn json(mut self) -> Result<Value, serde_json::Error> {
        self.metadata.managed_fields = None;
        self.fields.insert("metadata".to_owned(), serde_json::to_value(&self.metadata)?);
        Ok(Value::Object(self.fields))
    }
}

impl OfNode for StoredObject {
    fn node(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
}

impl OfNode for PublishedObject {
    fn node(&self) -> &str {
        &self.meta.name
    }
}

impl PartialObject for PublishedObject {
    fn version(&self) -> &str {
        &self.meta.version
    }
}

impl Cluster {
    /// Lists all objects, ascending by name.
    pub fn objects<T: OfNode>(&self) -> Pages<T> {
        Pages::new(self.clone(), self.topology_listing(PAGE_OF_PEOPLE, false))
    }

    /// Returns the object of a node; `None` if it does not exist.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn object<T: OfNode>(&self, name: &str) -> Result<Option<T>, ClusterError> {
        let request = self.topologies().get(name, &GetParams::default());
        self.call_for_topology("get", name, self.read(request)).await
    }

    /// Lists and watches all objects, or that of one node.
    pub fn watch_objects(&self, node: Option<&str>) -> ListWatchStream<PublishedObject> {
        let (mut list, mut watch) = (ListParams::default(), WatchParams::default());
        if let Some(node) = node {
            let of_node = format!("metadata.name={node}");
            (list, watch) = (list.fields(&of_node), watch.fields(&of_node));
        }
        let params = ListWatchParams {
            what: "noderesourcetopologies",
            path: self.topologies_path(),
            list,
            watch,
            metadata: false,
            keep: |_: &PublishedObject| true,
            limit: None,
        };
        self.list_watch(params, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metadata::tests::nested;

    #[test]
    fn an_object_is_stored_without_its_managed_fields() {
        for levels in [1, 10_000] {
            let zones = r#"[{"metadata":7}]"#;
            let object = format!(r#"{{"kind":"N","metadata":{},"zones":{zones},"a":1}}"#, nested(levels));
            let object: StoredObject = serde_json::from_str(&object).unwrap();
            assert_eq!(object.node(), "w");
            let text = object.json().unwrap().to_string();
            assert!(text.starts_with(r#"{"a":1,"kind":"N","metadata":{"#), "{text}");
            assert!(
                text.ends_with(r#"},"zones":[{"metadata":7}]}"#) && !text.contains("managedFields"),
                "{text}"
            );
        }
    }
}
