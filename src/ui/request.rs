//! What the checks of a request share: its headers, and why it is refused.

use hyper::header::{COOKIE, HeaderMap};

use crate::cluster::ClusterError;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// The name that the browser connected to is not that of the page.
    #[error("this address has another name: open the one that `numacast ui` printed")]
    Host,
    /// Another page made the request.
    #[error("another page may not read this one")]
    Origin,
    /// The page of a laptop: there is no token, or a wrong one.
    #[error("the token is missing or wrong: open the address that `numacast ui` printed")]
    Token,
    /// The page of a cluster: there is no token, or the API server does not accept it.
    #[error("{0}")]
    Login(&'static str),
    /// The user may not do this.
    #[error("you may not {0}: ask for a ClusterRoleBinding to the page's ClusterRole")]
    Forbidden(String),
    /// Too many tokens were checked.
    #[error("too many tokens are being checked: try again in a few seconds")]
    Busy,
    /// The API server could not be asked.
    #[error("your token could not be checked: {0}")]
    Cluster(#[from] ClusterError),
}

/// Returns a header; empty if it is no text.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Returns the values of a cookie.
pub(super) fn cookies<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
pub(super) mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    pub(in super::super) fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }
}
