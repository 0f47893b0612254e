//! Configuration of what is done about competing publishers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to do about a publisher that keeps rewriting the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RivalsMode {
    /// Tell, and let its rewrites be.
    #[default]
    Report,
    /// Tell, and answer each rewrite, ever slower.
    Fight,
}
