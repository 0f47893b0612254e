//! Listen addresses.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::util::serialize_as_text;

/// A listen address, written like `127.0.0.1:9742`, `[::1]:9742` or `:9742`; or `none`, because YAML parses a
/// bare `off` as a boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Do not listen.
    Nowhere,
    /// This address; port 0 selects a free port.
    At(SocketAddr),
    /// This port on all addresses, of both families if available: a pod's address family is not known in
    /// advance.
    Everywhere(u16),
}

impl Endpoint {
    /// Returns an endpoint that is not reachable from outside the host or pod.
    #[must_use]
    pub fn loopback(port: u16) -> Self {
        Self::At(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = text.strip_prefix(':').filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        let parsed = match (text, port) {
            ("none", _) => Some(Self::Nowhere),
            (_, Some(port)) => port.parse().ok().map(Self::Everywhere),
            _ => text.parse().ok().map(Self::At),
        };
        parsed.ok_or_else(|| {
            format!(
                "`{text}` is neither an IP address with a port, such as 127.0.0.1:9742, nor a port on all \
                 addresses, such as :9742, nor none"
            )
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("none"),
            Self::At(address) => write!(f, "{address}"),
            Self::Everywhere(port) => write!(f, ":{port}"),
        }
    }
}

serialize_as_text!(
    Endpoint,
    "an IP address with a port, such as 127.0.0.1:9742, a port such as \":9742\", or none"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_address_is_parsed_from_what_it_prints() {
        for text in ["127.0.0.1:9742", "0.0.0.0:0", "[::1]:80", ":9742", ":0", "none"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!(":9742".parse(), Ok(Endpoint::Everywhere(9742)));
        for text in
            ["", ":", ":+1", ":70000", "9742", "localhost:9742", "127.0.0.1", "127.0.0.1:70000", "off"]
        {
            assert!(text.parse::<Endpoint>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }
}
