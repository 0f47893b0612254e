//! Decodes the metadata of objects.

use kube::api::ObjectMeta;
use serde::Deserialize;

/// An object of which only the metadata is decoded.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OnlyMetadata {
    pub(super) metadata: ObjectMeta,
}
