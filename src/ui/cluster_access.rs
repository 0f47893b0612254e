//! Access to the page of a cluster: with a bearer token of somebody who may list objects, Nodes and pods.
//!
//! A browser gets the token from its user once and keeps it in a cookie; a proxy that logs people in sends it in the
//! header `Authorization`.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap};
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

use super::request::{Refused, cookies};
use crate::cluster::Cluster;
use crate::util::sync::lock;
use crate::util::token_bucket::TokenBucket;

/// A browser sends it only to this name, over TLS.
const COOKIE: &str = "__Host-numacast";
/// How long the API server's answer about a token is used again.
const REUSE: Duration = Duration::from_secs(60);
/// The most tokens that are remembered.
const MAX_KNOWN: usize = 1000;
/// The most bytes of a token. Browsers store no longer cookies.
pub(super) const MAX_TOKEN_BYTES: usize = 3900;
/// Tokens that are checked per second, and at once: anybody who can connect can send some.
const CHECKS: [f64; 2] = [5.0, 20.0];
/// What the page reads, with its API group.
const READS: [(&str, &str); 3] =
    [("topology.node.k8s.io", "noderesourcetopologies"), ("", "nodes"), ("", "pods")];

/// Checks bearer tokens.
#[derive(Debug)]
pub(super) struct ClusterAccess {
    cluster: Cluster,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By the token's digest: when it was checked, and what the user may not read.
    known: HashMap<[u8; 32], (Instant, Option<&'static str>)>,
    checks: TokenBucket,
}

impl ClusterAccess {
    pub(super) fn new(cluster: Cluster) -> Self {
        let [per_second, burst] = CHECKS;
        let checks = TokenBucket::new(per_second, burst, Instant::now());
        Self { cluster, state: Mutex::new(State { known: HashMap::new(), checks }) }
    }

    /// Returns the header that makes the browser keep a token.
    pub(super) fn set_cookie(token: &str) -> String {
        format!("{COOKIE}={token}; HttpOnly; Secure; SameSite=Lax; Path=/")
    }

    /// Checks the token of a request.
    ///
    /// # Errors
    /// If the request has no token, or the token is not accepted.
    pub(super) async fn check(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = authorization.and_then(|value| value.strip_prefix("Bearer "));
        let token = bearer.or_else(|| cookies(headers, COOKIE).next());
        self.check_token(token.ok_or(Refused::Login("a token is needed"))?).await
    }

    /// Checks a token.
    ///
    /// # Errors
    /// If it is not accepted.
    pub(super) async fn check_token(&self, token: &str) -> Result<(), Refused> {
        let is_usual = token.len() <= MAX_TOKEN_BYTES
            && token.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';');
        if !is_usual || token.is_empty() {
            return Err(Refused::Login("this is no bearer token"));
        }
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        if let Some(known) = self.known(&key)? {
            return known.map_or(Ok(()), |what| Err(Refused::Forbidden(format!("list {what}"))));
        }
        let user = self.cluster.user_of_token(token).await?;
        let user = user.ok_or(Refused::Login("the API server does not accept this token"))?;
        let mut denied = None;
        for (group, resource) in READS {
            if !self.cluster.is_allowed(&user, "list", group, resource).await? {
                denied = Some(resource);
                break;
            }
        }
        let mut state = lock(&self.state);
        if state.known.len() >= MAX_KNOWN {
            state.known.clear();
        }
        state.known.insert(key, (Instant::now(), denied));
        denied.map_or(Ok(()), |what| Err(Refused::Forbidden(format!("list {what}"))))
    }

    /// Returns the last answer about a token, if it is new enough. If not, the token may be checked.
    fn known(&self, key: &[u8; 32]) -> Result<Option<Option<&'static str>>, Refused> {
        let mut state = lock(&self.state);
        let known = state.known.get(key).filter(|(at, _)| at.elapsed() < REUSE).map(|(_, denied)| *denied);
        if known.is_none() && !state.checks.take_now(Instant::now()) {
            return Err(Refused::Busy);
        }
        Ok(known)
    }
}
