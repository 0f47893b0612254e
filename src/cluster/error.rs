use std::time::Duration;

use kube::core::Status;
use kube::core::response::StatusDetails;
use tokio::time::Instant;

/// An API server that has just started has read all roles and bindings after this time.
const ROLES_ARE_READ: Duration = Duration::from_secs(10);

/// The longest delay that the API server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// An error of an API server call. Each message is one sentence for the cluster's administrator.
#[allow(missing_docs, reason = "each variant's message describes it")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    #[error("no way to reach the API server: {0}; set --kubeconfig or run in a pod with a service account")]
    NoConfig(String),
    #[error("the API server at {server} cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    #[error("the API server did not respond within {after:?} ({what})")]
    Deadline { what: String, after: Duration },
    #[error("cannot parse the response of {server} ({what}): {reason}; is this an API server?")]
    NotUnderstood { server: String, what: String, reason: String },
    #[error(
        "the API server does not know noderesourcetopologies.topology.node.k8s.io/{0}: install the CRD \
         (`numacast crd | kubectl apply -f -`)"
    )]
    NoCrd(&'static str),
    #[error("the API server does not accept our credentials: {0}")]
    Unauthorized(String),
    #[error("RBAC denied the request: {0}")]
    Forbidden(String),
    #[error("the cluster has no node `{0}`: is NODE_NAME right, and has the kubelet registered?")]
    NoSuchNode(String),
    #[error("the API server rejected the request ({what}): {message} ({code})")]
    Rejected {
        what: String,
        code: u16,
        message: String,
        /// The delay before a retry that the server requests.
        retry_after: Option<Duration>,
    },
}

impl ClusterError {
    /// Returns the kind of error, for a metric label. Rejected requests differ by status code: `conflict`
    /// is a 409, and a 422 about the UID is `invalid`, unlike in [`Self::is_other_object_or_version`].
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NoConfig(_) => "no_config",
            Self::Unreachable { .. } => "unreachable",
            Self::Deadline { .. } => "deadline",
            Self::NotUnderstood { .. } => "not_understood",
            Self::NoCrd(_) => "no_crd",
            Self::Unauthorized(_) => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::NoSuchNode(_) => "no_such_node",
            Self::Rejected { code: 409, .. } => "conflict",
            Self::Rejected { code: 429, .. } => "too_many_requests",
            Self::Rejected { code: 400 | 422, .. } => "invalid",
            Self::Rejected { code: 500.., .. } => "server_error",
            Self::Rejected { .. } => "rejected",
        }
    }

    /// Returns true if the API server does not respond at all.
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Deadline { .. })
    }

    /// Returns true if permission is missing, whether RBAC or an admission plugin denies it.
    pub const fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::Rejected { code: 403, .. })
    }

    /// Returns true if the API server denied a request and did not find a role that is bound to the account. It has no
    /// such role, or has just started and not read it yet (Kubernetes, `plugin/pkg/auth/authorizer/rbac/rbac.go`,
    /// `Authorize`).
    fn is_unknown_role(&self) -> bool {
        matches!(self, Self::Forbidden(message) if message.contains(": RBAC: "))
    }

    /// Returns true if an admission plugin denied what RBAC allows.
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::Rejected { code: 403, .. })
    }

    /// Returns true if the object has another UID or version than the request names, or exists although it
    /// was to be created: a 409, or a 422 about the UID. The API server rejects an apply that names a UID
    /// with 409 if there is no object, and with 422 if there is another one.
    pub fn is_other_object_or_version(&self) -> bool {
        match self {
            Self::Rejected { code: 409, .. } => true,
            Self::Rejected { code: 422, message, .. } => message.contains("metadata.uid"),
            _ => false,
        }
    }

    /// Returns true if an apply failed because another manager wrote fields in another version, which does not have all
    /// fields of the object. The API server converts the object to it (structured-merge-diff, `merge/update.go`).
    pub fn is_of_other_version(&self) -> bool {
        matches!(self, Self::Rejected { code: 500, message, .. } if message.contains("field not declared in schema"))
    }

    /// Returns true if the object does not exist.
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::Rejected { code: 404, .. })
    }

    /// Returns true if the API server, or a proxy in between, does not know the path of a resource or of its version,
    /// as far as the call returns `None` for an object that does not exist.
    pub const fn is_missing_api(&self) -> bool {
        matches!(self, Self::NoCrd(_) | Self::Rejected { code: 404, .. })
    }

    /// Returns true if the response was received, but is too large or invalid: other objects can still be read.
    pub const fn is_about_object(&self) -> bool {
        matches!(self, Self::NotUnderstood { .. })
    }

    /// Returns true if the error persists until its cause is fixed.
    pub const fn is_permanent(&self) -> bool {
        match self {
            Self::NoConfig(_) | Self::NoCrd(_) | Self::Unauthorized(_) | Self::Forbidden(_) => true,
            Self::Rejected { code, .. } => matches!(code, 400..=499) && !matches!(code, 408 | 409 | 429),
            _ => false,
        }
    }

    /// Returns true if every other call would fail too. A 403 may concern a single object: RBAC and an
    /// admission policy cannot be distinguished.
    pub const fn affects_every_call(&self) -> bool {
        match self {
            Self::Rejected { code, .. } => *code == 429,
            Self::Forbidden(_) | Self::NoSuchNode(_) | Self::NotUnderstood { .. } => false,
            _ => true,
        }
    }

    /// Returns the delay before a retry that the server requests, at most five minutes.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rejected { retry_after, .. } => retry_after.map(|delay| delay.min(MAX_RETRY_AFTER)),
            _ => None,
        }
    }
}

/// Tells the denials of an API server that has just started, and has not read all roles and bindings yet, from others. Its
/// message names a role that it did not find, or, before it has read the bindings, nothing: then what it denies was allowed
/// before.
#[derive(Debug, Default)]
pub struct StartupDenials {
    since: Option<Instant>,
    was_allowed: bool,
}

impl StartupDenials {
    /// Returns true if the error need not be reported yet.
    pub fn include(&mut self, error: &ClusterError) -> bool {
        let was_allowed = self.was_allowed && matches!(error, ClusterError::Forbidden(_));
        if !was_allowed && !error.is_unknown_role() {
            self.since = None;
            return false;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() < ROLES_ARE_READ
    }

    /// Forgets earlier denials, after a request that succeeded.
    pub const fn reset(&mut self) {
        *self = Self { since: None, was_allowed: true };
    }
}

/// Why a call failed: the API server's response, whose meaning depends on the call, or anything else.
pub(super) enum Failure {
    Status(Box<Status>),
    Known(ClusterError),
}

impl Failure {
    /// Returns true if the API server reports that there is no such object. Any other 404 is about the path: an
    /// API server that does not serve this version, or a proxy in between, does not know it.
    pub(super) fn is_missing(&self, plural: &str, name: &str) -> bool {
        let Self::Status(status) = self else { return false };
        let is_named = |details: &StatusDetails| details.kind == plural && details.name == name;
        status.code == 404 && status.reason == "NotFound" && status.details.as_ref().is_some_and(is_named)
    }

    /// Maps the failure of the call `what`.
    pub(super) fn explain(self, what: &str) -> ClusterError {
        let status = match self {
            Self::Known(error) => return error,
            Self::Status(status) => status,
        };
        match status.code {
            401 => ClusterError::Unauthorized(status.message),
            // Admission plugins respond with 403 as well; only RBAC's message contains `User "x" cannot`.
            403 if status.message.contains("\" cannot ") => ClusterError::Forbidden(status.message),
            code => {
                let seconds = status.details.map_or(0, |details| details.retry_after_seconds);
                let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
                ClusterError::Rejected { what: what.to_owned(), code, message: status.message, retry_after }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rbacs_message_names_the_user_who_cannot() {
        let explain = |message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(403);
            Failure::Status(Box::new(status)).explain("apply noderesourcetopology w")
        };
        let rbac = r#"noderesourcetopologies.topology.node.k8s.io "w" is forbidden: User "system:serviceaccount:numacast:agent" cannot patch resource "noderesourcetopologies" in API group "topology.node.k8s.io" at the cluster scope"#;
        assert_eq!(explain(rbac), ClusterError::Forbidden(rbac.to_owned()));
        // OwnerReferencesPermissionEnforcement.
        let plugin = r#"noderesourcetopologies.topology.node.k8s.io "w" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>"#;
        assert!(explain(plugin).is_denied(), "{plugin}");
    }

    #[test]
    fn a_failed_conversion_to_another_version_is_known() {
        let is = |code, message: &str| {
            let (what, message) = ("apply x".to_owned(), message.to_owned());
            ClusterError::Rejected { what, code, message, retry_after: None }.is_of_other_version()
        };
        // Responses of 1.36.
        assert!(is(500, "failed to convert new object: .attributes: field not declared in schema"));
        assert!(is(
            500,
            "failed to prune fields: failed add back owned items: failed to convert merged object at version \
             topology.node.k8s.io/v1alpha1: .attributes: field not declared in schema"
        ));
        assert!(
            !is(422, "strict decoding error: field not declared in schema")
                && !is(500, "etcdserver: timeout")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn denials_for_a_role_that_is_unknown_are_reported_if_they_last() {
        let denied = |roles: &str| {
            let user = r#"User "agent" cannot list resource "pods" in API group "" at the cluster scope"#;
            ClusterError::Forbidden(format!("pods is forbidden: {user}{roles}"))
        };
        let unknown = denied(r#": RBAC: clusterrole.rbac.authorization.k8s.io "numacast-agent" not found"#);
        let mut denials = StartupDenials::default();
        assert!(!denials.include(&denied("")));
        assert!(denials.include(&unknown) && denials.include(&unknown));
        tokio::time::advance(ROLES_ARE_READ).await;
        assert!(!denials.include(&unknown));
        assert!(!denials.include(&denied("")) && denials.include(&unknown));
        tokio::time::advance(ROLES_ARE_READ).await;
        assert!(!denials.include(&unknown));
        denials.reset();
        assert!(denials.include(&unknown), "of the next API server");
    }

    #[tokio::test(start_paused = true)]
    async fn denials_of_what_was_allowed_before_are_reported_if_they_last() {
        // As an API server responds that has read no binding yet.
        let user = r#"User "agent" cannot list resource "pods" in API group "" at the cluster scope"#;
        let denied = ClusterError::Forbidden(format!("pods is forbidden: {user}"));
        let unreachable = ClusterError::Deadline { what: String::new(), after: ROLES_ARE_READ };
        let mut denials = StartupDenials::default();
        assert!(!denials.include(&denied), "it was never allowed");
        denials.reset();
        assert!(!denials.include(&unreachable));
        assert!(denials.include(&denied));
        tokio::time::advance(ROLES_ARE_READ).await;
        assert!(!denials.include(&denied), "the right was taken away");
        denials.reset();
        assert!(denials.include(&denied), "of the next API server");
    }

    #[test]
    fn an_api_server_that_responds_is_reachable() {
        let (server, what, reason) = ("https://api".to_owned(), "get node w".to_owned(), "no".to_owned());
        let unreachable = ClusterError::Unreachable { server, reason };
        let late = ClusterError::Deadline { what, after: Duration::from_secs(1) };
        assert!(unreachable.is_unreachable() && late.is_unreachable());
        let denied = ClusterError::Forbidden("no".to_owned());
        assert!(!denied.is_unreachable() && !ClusterError::NoCrd("v1alpha2").is_unreachable());
    }
}
