//! Errors in a configuration.

use std::path::PathBuf;

/// An error in a configuration. Each message is one sentence with the location.
#[allow(missing_docs, reason = "each variant's message describes it")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("the configuration {} is not a YAML mapping: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
    #[error("unknown key `{key}` in {origin}{}", suggest(.suggestion.as_deref()))]
    UnknownKey { key: String, origin: String, suggestion: Option<String> },
    #[error("`{key}` in {origin}: {reason}")]
    BadValue { key: String, origin: String, reason: String },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(
        || "; `numacast config defaults` lists the keys".to_owned(),
        |key| format!("; did you mean `{key}`?"),
    )
}
