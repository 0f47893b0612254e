//! Reads the objects that `show` prints.

mod fleet;
mod shape;

use std::collections::BTreeSet;

use crate::cluster::{Cluster, ClusterError, OfNode};

pub use fleet::{Fleet, Row, SortBy};
pub use shape::{ChosenShape, WantedShape};

/// The nodes to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that have objects.
    All,
    /// These, because of their labels.
    Selected(BTreeSet<String>),
    /// These, by name.
    Named(Vec<String>),
}

impl Scope {
    /// Returns the Nodes with these labels.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn of_labels(cluster: &Cluster, selector: &str) -> Result<Self, ClusterError> {
        let mut names = BTreeSet::new();
        let nodes = cluster.node_details(Some(selector.to_owned()));
        nodes.for_each(|node| names.extend([node.slim.name])).await?;
        Ok(Self::Selected(names))
    }

    /// Returns true if this node is to be shown.
    #[must_use]
    pub fn contains(&self, node: &str) -> bool {
        match self {
            Self::All => true,
            Self::Selected(names) => names.contains(node),
            Self::Named(names) => names.iter().any(|name| name == node),
        }
    }
}

/// The objects of a [`Scope`], one page or one object at a time. Ascending by name, unless they were named.
#[derive(Debug)]
pub struct Objects<'a, T> {
    cluster: &'a Cluster,
    scope: &'a Scope,
    pages: Option<crate::cluster::Pages<T>>,
    /// How many of the named nodes were read.
    read: usize,
}

impl<'a, T: OfNode> Objects<'a, T> {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(cluster: &'a Cluster, scope: &'a Scope) -> Self {
        let pages = (!matches!(scope, Scope::Named(_))).then(|| cluster.objects());
        Self { cluster, scope, pages, read: 0 }
    }

    /// Returns the next objects; `None` after the last. A named node without an object is passed to `missing`.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn next(&mut self, mut missing: impl FnMut(&str)) -> Result<Option<Vec<T>>, ClusterError> {
        if let Some(pages) = &mut self.pages {
            let Some(mut page) = pages.next().await? else { return Ok(None) };
            page.retain(|object| self.scope.contains(object.node()));
            return Ok(Some(page));
        }
        let Scope::Named(names) = self.scope else { return Ok(None) };
        let Some(name) = names.get(self.read) else { return Ok(None) };
        self.read += 1;
        let object = self.cluster.object::<T>(name).await?;
        if object.is_none() {
            missing(name);
        }
        Ok(Some(object.into_iter().collect()))
    }
}
