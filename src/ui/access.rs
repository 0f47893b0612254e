//! Who may read the page.

use hyper::header::{HOST, HeaderMap, ORIGIN};

use super::cluster_access::ClusterAccess;
use super::local_access::LocalAccess;
use super::request::{Refused, text};

/// What a request needs.
#[derive(Debug)]
pub(super) enum Access {
    /// The token that the command line printed.
    Local(LocalAccess),
    /// A bearer token of the cluster.
    Cluster(ClusterAccess),
}

impl Access {
    /// Checks a request for `path`.
    ///
    /// # Errors
    /// If it is refused.
    pub(super) async fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Refused> {
        self.check_names(path, headers)?;
        match self {
            Self::Local(local) => local.check_cookie(headers),
            Self::Cluster(cluster) => cluster.check(headers).await,
        }
    }

    /// Checks the names in a request for `path`: that of the page, and that of the page that made the request.
    ///
    /// # Errors
    /// If one is a stranger's.
    pub(super) fn check_names(&self, path: &str, headers: &HeaderMap) -> Result<(), Refused> {
        let host = text(headers, HOST.as_str());
        let host = host.filter(|_| headers.get_all(HOST).iter().count() == 1).ok_or(Refused::Host)?;
        let scheme = match self {
            Self::Local(local) => {
                local.check_host(host)?;
                "http"
            }
            // A browser does not send this page's cookie to another name, and TLS proves the name.
            Self::Cluster(_) => "https",
        };
        let is_own = |origin: &str| {
            origin.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")) == Some(host)
        };
        if text(headers, ORIGIN.as_str()).is_some_and(|origin| !is_own(origin)) {
            return Err(Refused::Origin);
        }
        match text(headers, "sec-fetch-site") {
            None | Some("same-origin" | "none") => Ok(()),
            // A link to the page, in another page.
            Some(_) if path == "/" && text(headers, "sec-fetch-dest") == Some("document") => Ok(()),
            Some(_) => Err(Refused::Origin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::headers;
    use super::*;

    #[test]
    fn only_the_served_names_are_accepted() {
        let access = Access::Local(LocalAccess::new("127.0.0.1:6862".parse().unwrap()).unwrap());
        let check =
            |path: &str, pairs: &[(&'static str, &str)]| match access.check_names(path, &headers(pairs)) {
                Ok(()) => "",
                Err(Refused::Host) => "host",
                Err(Refused::Origin) => "origin",
                Err(_) => "other",
            };
        assert_eq!(check("/", &[("host", "127.0.0.1:6862")]), "");
        assert_eq!(check("/", &[("host", "localhost:6862"), ("origin", "http://localhost:6862")]), "");
        for host in ["127.0.0.1", "127.0.0.1:80", "evil.example:6862", "localhost:6862.evil.example", ""] {
            assert_eq!(check("/", &[("host", host)]), "host", "{host}");
        }
        assert_eq!(check("/", &[]), "host");
        assert_eq!(check("/", &[("host", "127.0.0.1:6862"), ("host", "evil")]), "host");
        for origin in
            ["null", "https://localhost:6862", "http://evil.example", "http://localhost:1", "http127.0.0.1"]
        {
            assert_eq!(check("/", &[("host", "localhost:6862"), ("origin", origin)]), "origin", "{origin}");
        }
        for (site, expected) in
            [("same-origin", ""), ("none", ""), ("same-site", "origin"), ("cross-site", "origin")]
        {
            assert_eq!(
                check("/", &[("host", "localhost:6862"), ("sec-fetch-site", site)]),
                expected,
                "{site}"
            );
        }
        let link =
            [("host", "localhost:6862"), ("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "document")];
        assert_eq!((check("/", &link), check("/api/pending", &link)), ("", "origin"));
    }
}
