//! Field and label selectors.

use serde_json::Value;

use super::status::{Failure, bad_request};

/// Both selectors of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    fields: Vec<Term>,
    labels: Vec<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    key: String,
    /// `None` if the key only has to exist.
    value: Option<String>,
    negated: bool,
}

impl Selector {
    /// Parses `spec.nodeName=a,status.phase!=Failed` and `app=x,!canary`. Set-based expressions are not
    /// supported.
    pub(super) fn new(fields: &str, labels: &str) -> Result<Self, Failure> {
        Ok(Self { fields: terms(fields)?, labels: terms(labels)? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let field = |key: &str| {
            let found = key.split('.').try_fold(object, |value, name| value.get(name));
            // An unset field is an empty string.
            Some(found.and_then(Value::as_str).unwrap_or_default().to_owned())
        };
        let label = |key: &str| object["metadata"]["labels"][key].as_str().map(str::to_owned);
        self.fields.iter().all(|term| term.matches(field(&term.key)))
            && self.labels.iter().all(|term| term.matches(label(&term.key)))
    }
}

impl Term {
    fn matches(&self, found: Option<String>) -> bool {
        let equal = match &self.value {
            Some(value) => found.as_ref() == Some(value),
            None => found.is_some(),
        };
        equal != self.negated
    }
}

fn terms(text: &str) -> Result<Vec<Term>, Failure> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(term).collect()
}

fn term(text: &str) -> Result<Term, Failure> {
    if text.contains(['(', ' ']) {
        return Err(bad_request(format!("unable to parse requirement: {text}")));
    }
    let term = |key: &str, value: Option<&str>, negated| Term {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        negated,
    };
    if let Some((key, value)) = text.split_once("!=") {
        return Ok(term(key, Some(value), true));
    }
    if let Some((key, value)) = text.split_once('=') {
        return Ok(term(key, Some(value.trim_start_matches('=')), false));
    }
    Ok(match text.strip_prefix('!') {
        Some(key) => term(key, None, true),
        None => term(text, None, false),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(fields: &str, labels: &str) -> bool {
        let pod = json!({"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {"nodeName": "a"}});
        Selector::new(fields, labels).unwrap().matches(&pod)
    }

    #[test]
    fn fields_and_labels_select() {
        assert!(matches("", ""));
        assert!(matches("spec.nodeName=a,status.phase!=Failed", "app=x,!canary,app"));
        assert!(matches("metadata.name==p", "app!=y"));
        assert!(!matches("spec.nodeName=b", ""));
        assert!(!matches("", "canary"));
        assert!(matches("status.phase=", ""), "an unset field is empty");
    }

    #[test]
    fn set_based_expressions_are_rejected() {
        assert!(Selector::new("", "app in (x,y)").is_err());
    }
}
