//! Names of resources and nodes, as Kubernetes has them.

/// Refuses what is no resource of devices.
pub(super) fn check_device(name: &str) -> Result<(), String> {
    match is_device(name) {
        true => Ok(()),
        false => Err(format!("`{name}` is no device; write a resource such as example.com/nic")),
    }
}

/// Can devices have this name: a domain, and what is counted there?
pub(crate) fn is_device(name: &str) -> bool {
    let parts = name.split_once('/');
    parts.is_some_and(|(domain, rest)| is_dns_name(domain) && rest.len() <= 63 && is_qualified(rest))
}

/// A DNS subdomain: the form of node names and of the domains of resources.
pub(super) fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// What follows the `/` of a resource.
pub(super) fn is_qualified(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    text.bytes().all(inner) && edge(text.as_bytes().first()) && edge(text.as_bytes().last())
}
