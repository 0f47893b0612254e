//! Responses in the form that the client accepts.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, StatusCode, header};
use serde_json::{Value, json};

use super::kinds::PODS;
use super::status::Failure;
use super::target::Target;
use super::{protobuf, schema};

/// The form of objects that the client accepts.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) metadata_only: bool,
    protobuf: bool,
}

impl Shape {
    pub(super) fn of(headers: &HeaderMap, target: Option<&Target>) -> Self {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let pods = target.is_some_and(|target| target.kind == &PODS);
        let metadata_only = accept.contains("as=PartialObjectMetadata");
        let protobuf = pods && !metadata_only && accept.starts_with(protobuf::CONTENT);
        Self { metadata_only, protobuf }
    }

    /// A response. Anything but pods is JSON, whatever the client accepts.
    pub(super) fn reply(self, code: StatusCode, object: &Value) -> Response<Body> {
        let bytes = if self.protobuf { protobuf::enveloped(object) } else { None };
        match bytes {
            Some(bytes) => respond_with(code, protobuf::CONTENT, Body::from(bytes)),
            None => reply(code, object),
        }
    }

    /// A watch event.
    pub(super) fn event(self, event: &str, object: &Value) -> Bytes {
        let frame = if self.protobuf { protobuf::frame(event, object) } else { None };
        frame.map_or_else(|| line(event, object), Bytes::from)
    }

    pub(super) fn streaming(self, body: Body) -> Response<Body> {
        let content = if self.protobuf {
            "application/vnd.kubernetes.protobuf;stream=watch"
        } else {
            "application/json"
        };
        respond_with(StatusCode::OK, content, body)
    }

    /// The object in the version and form that the client requested.
    pub(super) fn object(self, target: &Target, object: &Value) -> Value {
        if self.metadata_only {
            return json!({
                "apiVersion": "meta.k8s.io/v1",
                "kind": "PartialObjectMetadata",
                "metadata": object["metadata"],
            });
        }
        let mut object = object.clone();
        if target.version != target.kind.versions[0] {
            // There is no conversion: change the version's name and prune unknown fields.
            object["apiVersion"] = json!(target.kind.api_version(&target.version));
            schema::prune(schema::of_version(&target.version), &mut object);
        }
        object
    }

    pub(super) fn bookmark(self, target: &Target, version: u64, ends_list: bool) -> Value {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_list {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({
            "apiVersion": target.kind.api_version(&target.version),
            "kind": target.kind.kind,
            "metadata": metadata,
        });
        if self.metadata_only { self.object(target, &object) } else { object }
    }
}

fn respond_with(code: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

pub(super) fn reply(code: StatusCode, object: &Value) -> Response<Body> {
    respond_with(code, "application/json", Body::from(object.to_string()))
}

pub(super) fn plain(code: StatusCode, text: &'static str) -> Response<Body> {
    respond_with(code, "text/plain; charset=utf-8", Body::from(text))
}

pub(super) fn failure(failure: &Failure, shape: Shape) -> Response<Body> {
    let code = StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    shape.reply(code, &failure.to_object())
}

/// API priority and fairness responds in plain text.
pub(super) fn too_many_requests(retry_after: u32) -> Response<Body> {
    let text = "Too many requests, please try again later.\n";
    let mut response = plain(StatusCode::TOO_MANY_REQUESTS, text);
    response.headers_mut().insert(header::RETRY_AFTER, retry_after.into());
    response
}

fn line(event: &str, object: &Value) -> Bytes {
    // In the order of a real server: kube buffers an object that comes before its type.
    Bytes::from(format!("{{\"type\":{},\"object\":{object}}}\n", json!(event)))
}
