//! Names of objects, for shell completion. They are read as `kubectl get` reads them, as a table without the objects,
//! which are a hundred times as large.

use hyper::Request;
use hyper::header::ACCEPT;
use serde::Deserialize;
use serde_json::Value;

use super::agents::pods_path;
use super::{Cluster, ClusterError};
use crate::names::is_dns_name;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
/// More names are of no use to a person.
const MAX_NAMES: u32 = 10_000;

#[derive(Deserialize)]
struct Table {
    rows: Option<Vec<TableRow>>,
}

/// Of nodes, namespaces and pods the first cell is the name.
#[derive(Deserialize)]
struct TableRow {
    cells: Vec<Value>,
}

impl Cluster {
    /// Returns the names of Nodes, at most 10,000.
    pub async fn node_names(&self) -> Result<Vec<String>, ClusterError> {
        self.object_names("nodes", "/api/v1/nodes").await
    }

    /// Returns the names of namespaces, at most 10,000.
    pub async fn namespace_names(&self) -> Result<Vec<String>, ClusterError> {
        self.object_names("namespaces", "/api/v1/namespaces").await
    }

    /// Returns the names of a namespace's pods, at most 10,000.
    pub async fn pod_names(&self, namespace: &str) -> Result<Vec<String>, ClusterError> {
        self.object_names("pods", &pods_path(namespace)).await
    }

    async fn object_names(&self, kind: &str, path: &str) -> Result<Vec<String>, ClusterError> {
        let what = format!("list {kind}");
        let request = Request::get(format!("{path}?includeObject=None&limit={MAX_NAMES}"));
        let request = request.header(ACCEPT, TABLE).body(Vec::new());
        let request = request.map_err(kube::core::request::Error::BuildRequest);
        let table: Table = self
            .in_time(&what, self.read(request))
            .await
            .map_err(|failure| self.explain_at(path, failure, &what))?;
        let rows = table.rows.unwrap_or_default().into_iter();
        let name = |row: TableRow| match row.cells.into_iter().next()? {
            Value::String(name) if is_dns_name(&name) => Some(name),
            _ => None,
        };
        Ok(rows.filter_map(name).collect())
    }
}
