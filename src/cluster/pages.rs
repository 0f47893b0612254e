//! Paged lists: only one page is in memory at a time.

use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Cluster, ClusterError};

/// Page size of lists for people, who run a command rarely: fewer requests, some 15 MiB of large nodes' objects at a time.
pub(super) const PAGE_OF_PEOPLE: u32 = 500;

/// One page, and the token for the next one.
#[derive(Debug, Deserialize)]
pub(super) struct Page<T> {
    #[serde(default)]
    metadata: ListMeta,
    /// The API server encodes an empty list of metadata as null.
    items: Option<Vec<T>>,
}

/// The listed resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    /// The action for messages, such as `list nodes`.
    pub(super) what: String,
    pub(super) path: String,
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
    pub(super) page: u32,
    /// Request only the metadata of each object.
    pub(super) metadata: bool,
}

/// The remaining pages of a list. All pages are from the same snapshot.
#[derive(Debug)]
pub struct Pages<T> {
    cluster: Cluster,
    listing: Listing,
    /// The continue token, empty at the start; `None` after the last page.
    next: Option<String>,
    items: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Pages<T> {
    pub(super) fn new(cluster: Cluster, listing: Listing) -> Self {
        Self { cluster, listing, next: Some(String::new()), items: PhantomData }
    }

    /// Returns the next page; `None` after the last one.
    ///
    /// # Errors
    /// See [`ClusterError`]. A list that takes minutes may expire (410); then start a new one.
    pub async fn next(&mut self) -> Result<Option<Vec<T>>, ClusterError> {
        let Some(next) = self.next.clone() else { return Ok(None) };
        let page = self.cluster.page::<T>(&self.listing, &next).await?;
        self.next = page.metadata.continue_.filter(|next| !next.is_empty());
        Ok(Some(page.items.unwrap_or_default()))
    }

    /// Passes all objects to `act`.
    pub async fn for_each(mut self, mut act: impl FnMut(T)) -> Result<(), ClusterError> {
        while let Some(page) = self.next().await? {
            page.into_iter().for_each(&mut act);
        }
        Ok(())
    }
}

impl Cluster {
    /// Returns one page; the first one if `next` is empty.
    async fn page<T: DeserializeOwned>(
        &self,
        listing: &Listing,
        next: &str,
    ) -> Result<Page<T>, ClusterError> {
        let Listing { what, path, labels, fields, page, metadata } = listing;
        let mut params = ListParams::default().limit(*page);
        params.label_selector.clone_from(labels);
        params.field_selector.clone_from(fields);
        params.continue_token = Some(next.to_owned()).filter(|next| !next.is_empty());
        let request = Request::new(path.clone());
        let request = if *metadata { request.list_metadata(&params) } else { request.list(&params) };
        self.in_time(what, self.read::<Page<T>>(request))
            .await
            .map_err(|failure| self.explain_at(path, failure, what))
    }

    /// Returns the number of objects, without reading them.
    pub(super) async fn count(&self, listing: &Listing) -> Result<u64, ClusterError> {
        let one = Listing { page: 1, metadata: true, ..listing.clone() };
        let page = self.page::<serde::de::IgnoredAny>(&one, "").await?;
        let remaining = page.metadata.remaining_item_count.and_then(|count| u64::try_from(count).ok());
        Ok(page.items.map_or(0, |items| items.len() as u64) + remaining.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_may_be_null_or_missing() {
        for items in [r#","items":null"#, r#","items":[]"#, ""] {
            let page: Page<u8> = serde_json::from_str(&format!(r#"{{"metadata":{{}}{items}}}"#)).unwrap();
            assert!(page.items.unwrap_or_default().is_empty() && page.metadata.continue_.is_none());
        }
    }
}
