use std::fmt;
use std::str::FromStr;

use crate::names::{is_dns_name, is_name_part};
use crate::util::serialize_as_text;

/// The pods with these labels in this namespace: `kube-system/component=kube-scheduler`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerPods {
    /// Their namespace.
    pub namespace: String,
    /// Their labels as a selector: pairs of `key=value`, separated by commas.
    pub labels: String,
}

impl FromStr for SchedulerPods {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('/').filter(|(namespace, labels)| {
            is_dns_name(namespace) && !namespace.contains('.') && labels.split(',').all(is_pair)
        });
        let (namespace, labels) = parts.ok_or_else(|| {
            format!("`{text}` is not of the form NAMESPACE/KEY=VALUE, such as kube-system/component=kube-scheduler")
        })?;
        Ok(Self { namespace: namespace.to_owned(), labels: labels.to_owned() })
    }
}

/// Returns true for a label selector's `key=value`; the key may have a domain.
fn is_pair(text: &str) -> bool {
    let Some((key, value)) = text.split_once('=') else { return false };
    let is_key = match key.split_once('/') {
        Some((domain, name)) => is_dns_name(domain) && is_name_part(name),
        None => is_name_part(key),
    };
    is_key && (value.is_empty() || is_name_part(value))
}

impl fmt::Display for SchedulerPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.labels)
    }
}

serialize_as_text!(SchedulerPods);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_and_labels_are_read_and_nothing_else() {
        for text in [
            "kube-system/component=kube-scheduler",
            "a/app.kubernetes.io/name=x,tier=",
            "scheduler-plugins/component=scheduler",
        ] {
            assert_eq!(text.parse::<SchedulerPods>().unwrap().to_string(), text);
        }
        let bad = [
            "",
            "kube-system",
            "kube-system/",
            "/a=b",
            "A/a=b",
            "a.b/a=b",
            "a/b",
            "a/=b",
            "a/a=b,",
            "a/a=b c",
            "a/a in (b)",
            "a/a=b&limit=1",
        ];
        for text in bad {
            assert!(text.parse::<SchedulerPods>().is_err(), "{text}");
        }
    }
}
