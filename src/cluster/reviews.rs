//! Whom a bearer token belongs to and what that user may do, as the API server says it.

use kube::api::PostParams;
use kube::core::Request;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Cluster, ClusterError, encoded};

/// A user, as the API server knows it from a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Review {
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    allowed: bool,
    user: User,
}

impl Cluster {
    /// Returns the user of a bearer token; `None` if the API server does not accept it.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn user_of_token(&self, token: &str) -> Result<Option<User>, ClusterError> {
        let (group, kind) = ("authentication.k8s.io", "TokenReview");
        let status = self.review(group, kind, "tokenreviews", json!({"token": token})).await?;
        Ok(status.authenticated.then_some(status.user))
    }

    /// Returns true if the user may do this with a resource of all namespaces.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn is_allowed(
        &self,
        user: &User,
        verb: &str,
        group: &str,
        resource: &str,
    ) -> Result<bool, ClusterError> {
        let spec = json!({
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "resourceAttributes": {"verb": verb, "group": group, "resource": resource},
        });
        let (of, kind) = ("authorization.k8s.io", "SubjectAccessReview");
        Ok(self.review(of, kind, "subjectaccessreviews", spec).await?.allowed)
    }

    async fn review(
        &self,
        group: &str,
        kind: &str,
        plural: &str,
        spec: Value,
    ) -> Result<ReviewStatus, ClusterError> {
        let what = format!("create {plural}");
        let review = json!({"apiVersion": format!("{group}/v1"), "kind": kind, "spec": spec});
        let requests = Request::new(format!("/apis/{group}/v1/{plural}"));
        let request = encoded(&review).and_then(|review| requests.create(&PostParams::default(), review));
        let review = self.in_time(&what, self.read::<Review>(request)).await;
        Ok(review.map_err(|failure| failure.explain(&what))?.status)
    }
}
