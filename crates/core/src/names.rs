//! Validation of Kubernetes names: of nodes, resources, labels and annotations.

use crate::quantity::{Quantity, hugepages_name};

/// Checks the name of a device resource.
///
/// # Errors
/// If it is not one; the error is one sentence.
pub fn check_device(name: &str) -> Result<(), String> {
    match is_device_resource(name) {
        true => Ok(()),
        false => Err(format!("`{name}` is not a device resource such as example.com/nic")),
    }
}

/// Checks the name of a resource that zones may have.
///
/// # Errors
/// If it is not one; the error is one sentence.
pub fn check_zone_resource(name: &str) -> Result<(), String> {
    if let Some(size) = name.strip_prefix("hugepages-")
        && let Ok(size) = size.parse::<Quantity>()
        && size.ceil() > 0
    {
        return match hugepages_name(size.ceil()) {
            known if known == name => Ok(()),
            known => Err(format!("`{name}` is not how zones name these pages; write `{known}`")),
        };
    }
    if name == "cpu" || name == "memory" || is_device_resource(name) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is not a resource of a zone; zones have cpu, memory, hugepages-<size> such as hugepages-2Mi, and \
         devices such as example.com/nic"
    ))
}

/// Returns true if the name is valid for a device resource: a domain, a slash and a name.
pub fn is_device_resource(name: &str) -> bool {
    let parts = name.split_once('/');
    parts.is_some_and(|(domain, rest)| is_dns_name(domain) && is_name_part(rest))
}

/// Returns true if the name can be that of devices in a zone: of a device plugin's, or the driver of claimed ones. The
/// kubelet accepts no plugin for a native resource, such as Koordinator's `kubernetes.io/batch-cpu`.
pub fn is_device_or_driver(name: &str) -> bool {
    match name.contains('/') {
        true => is_device_resource(name) && !is_native_resource(name),
        false => name.contains('.') && is_dns_name(name),
    }
}

/// Returns true if Kubernetes treats the resource as native: no domain, or its own (`IsNativeResource` in
/// `pkg/apis/core/v1/helper`).
pub fn is_native_resource(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Returns true for a DNS subdomain (RFC 1123), the form of the names of nodes and pods and of the domains of
/// resources.
pub fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Returns true if the text is valid after the `/` of a resource or of a label's key, or as a label's value
/// that is not empty.
pub fn is_name_part(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    text.len() <= 63
        && text.bytes().all(inner)
        && edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_change_a_query_are_invalid() {
        for name in ["web-0", "a", "10", "web.example-1", &"a".repeat(253)] {
            assert!(is_dns_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in
            ["", ".", "..", "a/b", "a&limit=1", "a%2Cspec.nodeName!=x", "A", "a b", "a?b", "a#", "\n", &long]
        {
            assert!(!is_dns_name(name), "{name}");
        }
        assert!(!["a.", "a..b", "-a", "a-", "a-.b"].into_iter().any(is_dns_name));
    }

    #[test]
    fn the_part_after_a_slash_has_at_most_63_characters() {
        let (longest, long) = ("a".repeat(63), "a".repeat(64));
        assert!(["a", "A_b-c.9", &longest].into_iter().all(is_name_part));
        assert!(!["", "-a", "a.", "a/b", "a b", &long].into_iter().any(is_name_part));
        assert!(is_device_resource(&format!("example.com/{longest}")));
        assert!(!is_device_resource(&format!("example.com/{long}")));
    }
}
