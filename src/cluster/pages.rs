//! Lists that may be long, page by page: no more than one page is held at a time.

use std::marker::PhantomData;

use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Cluster, ClusterError, Failure};

/// One page, and how to ask for the next one.
#[derive(Debug, Deserialize)]
pub(super) struct Page<T> {
    #[serde(default)]
    metadata: PageMetadata,
    /// The API server writes null for a list of metadata that is empty.
    #[serde(default = "no_items")]
    items: Option<Vec<T>>,
}

/// A default that asks nothing of the items' type.
fn no_items<T>() -> Option<Vec<T>> {
    None
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    r#continue: String,
    remaining_item_count: Option<u64>,
}

/// What is listed.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    /// As in `list nodes`, for sentences.
    pub(super) what: String,
    /// The path of the resource.
    pub(super) path: String,
    /// Only this, if anything.
    pub(super) labels: Option<String>,
    /// Objects in a page.
    pub(super) page: u32,
    /// Only the metadata of each object.
    pub(super) metadata: bool,
}

/// The rest of a list. It is the list of one moment, whatever happens while it is read.
#[derive(Debug)]
pub struct Pages<T> {
    cluster: Cluster,
    listing: Listing,
    /// `None` when the last page was read.
    next: Option<String>,
    items: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Pages<T> {
    pub(super) fn new(cluster: Cluster, listing: Listing) -> Self {
        Self { cluster, listing, next: Some(String::new()), items: PhantomData }
    }

    /// The next page; `None` after the last one.
    ///
    /// # Errors
    /// See [`ClusterError`]. A list that takes minutes may expire (410); then begin anew.
    pub async fn next(&mut self) -> Result<Option<Vec<T>>, ClusterError> {
        let Some(next) = self.next.clone() else { return Ok(None) };
        let page = self.cluster.page::<T>(&self.listing, &next).await?;
        self.next = Some(page.metadata.r#continue).filter(|next| !next.is_empty());
        Ok(Some(page.items.unwrap_or_default()))
    }
}

impl Cluster {
    /// One page; the first one if `next` is empty.
    async fn page<T: DeserializeOwned>(
        &self,
        listing: &Listing,
        next: &str,
    ) -> Result<Page<T>, ClusterError> {
        let Listing { what, path, labels, page, metadata } = listing;
        let mut params = ListParams::default().limit(*page);
        params.label_selector.clone_from(labels);
        params.continue_token = Some(next.to_owned()).filter(|next| !next.is_empty());
        let request = Request::new(path.clone());
        let request = if *metadata { request.list_metadata(&params) } else { request.list(&params) };
        let request = request.map_err(kube::Error::BuildRequest);
        let call = async { self.client.request::<Page<T>>(request?).await };
        self.in_time(what, call).await.map_err(|failure| self.explain_list(failure, listing))
    }

    /// How many objects there are, without reading them.
    pub(super) async fn count(&self, listing: &Listing) -> Result<u64, ClusterError> {
        let one = Listing { page: 1, metadata: true, ..listing.clone() };
        let page = self.page::<serde::de::IgnoredAny>(&one, "").await?;
        Ok(page.items.map_or(0, |items| items.len() as u64)
            + page.metadata.remaining_item_count.unwrap_or_default())
    }

    /// Of a list of objects the resource itself may be unknown.
    fn explain_list(&self, failure: Failure, listing: &Listing) -> ClusterError {
        match listing.path.contains("/noderesourcetopologies") {
            true => self.explain_object(failure, &listing.what),
            false => failure.explain(&listing.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_nothing_may_be_null_or_missing() {
        for items in [r#","items":null"#, r#","items":[]"#, ""] {
            let page: Page<u8> = serde_json::from_str(&format!(r#"{{"metadata":{{}}{items}}}"#)).unwrap();
            assert!(page.items.unwrap_or_default().is_empty() && page.metadata.r#continue.is_empty());
        }
    }
}
