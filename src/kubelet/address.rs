//! The kubelet's address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::names::is_dns_name;
use crate::util::serialize_as_text;

/// An IP address or a host name with an optional port: `10.0.0.7`, `10.0.0.7:10250`, `fd00::7`,
/// `[fd00::7]:10250`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The host, without brackets.
    pub host: String,
    /// The port, if given.
    pub port: Option<u16>,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || {
            format!(
                "`{text}` is not a valid address; use for example 10.0.0.7, 10.0.0.7:10250, [fd00::7]:10250 or \
                 worker.example"
            )
        };
        let of = |host: &str, port: Option<u16>| Self { host: host.to_owned(), port };
        if text.parse::<IpAddr>().is_ok() {
            return Ok(of(text, None));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, Some(port.parse().map_err(|_| error())?)),
            _ => (text, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match bare {
            Some(host) if host.contains(':') && host.parse::<IpAddr>().is_ok() => Ok(of(host, port)),
            None if is_dns_name(&host.to_ascii_lowercase()) => Ok(of(host, port)),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.host),
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
        }
    }
}

serialize_as_text!(Address);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_parsed_from_what_it_prints() {
        for (text, host, port) in [
            ("10.0.0.7", "10.0.0.7", None),
            ("10.0.0.7:10250", "10.0.0.7", Some(10250)),
            ("fd00::7", "fd00::7", None),
            ("[fd00::7]:10250", "fd00::7", Some(10250)),
            ("worker-1.example", "worker-1.example", None),
            ("worker:1", "worker", Some(1)),
            ("Worker.example", "Worker.example", None),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port));
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("[fd00::7]".parse::<Address>().unwrap().to_string(), "fd00::7");
    }

    #[test]
    fn an_invalid_address_is_an_error_that_quotes_it() {
        for text in [
            "",
            ":1",
            "a:",
            "a:b",
            "a:70000",
            "https://a",
            "a/b",
            "[10.0.0.7]:1",
            "[a]:1",
            "a b",
            "-a",
            "a..b",
        ] {
            assert!(text.parse::<Address>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }
}
