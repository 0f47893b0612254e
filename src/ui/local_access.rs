//! Access to the page of a laptop.
//!
//! Any program on the computer can connect to a loopback address, and any page in the browser can make it send
//! requests there. So a request needs a random token, which the address in the terminal has and a cookie keeps, and
//! its `Host` must be the served address: a stranger's name that resolves to the loopback address is refused.

use std::net::SocketAddr;

use hyper::header::HeaderMap;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use super::request::{Refused, cookies};

/// Bytes of a token.
const TOKEN_BYTES: usize = 24;

/// A random token, and where it is valid.
#[derive(Clone, Debug)]
pub(super) struct LocalAccess {
    hosts: [String; 2],
    token: String,
    cookie: String,
}

impl LocalAccess {
    /// Creates a random token for a page at this loopback address; `None` if the system has no random numbers.
    pub(super) fn new(address: SocketAddr) -> Option<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let port = address.port();
        Some(Self {
            hosts: [address.to_string(), format!("localhost:{port}")],
            token: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            // Browsers send the cookies of one host to all of its ports.
            cookie: format!("numacast-{port}"),
        })
    }

    /// Returns the token.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Returns the header that makes the browser keep the token: no script can read it, and other sites' requests do
    /// not have it, except links to the page.
    pub(super) fn set_cookie(&self) -> String {
        format!("{}={}; HttpOnly; SameSite=Lax; Path=/", self.cookie, self.token)
    }

    /// Checks the name of the page.
    ///
    /// # Errors
    /// If it is a stranger's.
    pub(super) fn check_host(&self, host: &str) -> Result<(), Refused> {
        if self.hosts.iter().any(|ours| ours == host) { Ok(()) } else { Err(Refused::Host) }
    }

    /// Returns true if this is the token.
    pub(super) fn is_token(&self, given: &str) -> bool {
        // Digests, so that the time of the comparison tells nothing.
        digest(&SHA256, given.as_bytes()).as_ref() == digest(&SHA256, self.token.as_bytes()).as_ref()
    }

    /// Checks the cookie.
    ///
    /// # Errors
    /// If the request has no cookie with the token.
    pub(super) fn check_cookie(&self, headers: &HeaderMap) -> Result<(), Refused> {
        match cookies(headers, &self.cookie).any(|value| self.is_token(value)) {
            true => Ok(()),
            false => Err(Refused::Token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::headers;
    use super::*;

    #[test]
    fn the_cookie_has_the_token() {
        let access = || LocalAccess::new("127.0.0.1:6862".parse().unwrap()).unwrap();
        let (access, other) = (access(), access());
        let cookie = access.set_cookie();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(attributes, "HttpOnly; SameSite=Lax; Path=/");
        let check = |of: &LocalAccess, cookie: &str| of.check_cookie(&headers(&[("cookie", cookie)])).is_ok();
        assert!(check(&access, pair) && check(&access, &format!("a=b; {pair}")));
        assert!(!check(&other, pair), "tokens are random");
        assert!(access.check_cookie(&headers(&[])).is_err());
        assert!(!access.is_token("") && access.is_token(access.token()));
    }
}
