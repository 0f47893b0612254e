//! `Status` objects with the messages of a real API server (compared with 1.36.3).

use serde_json::{Map, Value, json};

use super::kinds::Kind;

/// An unsuccessful response.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
}

/// One cause of a failure: reason, message, field.
pub(super) type Cause = (&'static str, String, String);

impl Failure {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: Value::Null }
    }

    fn about(kind: &Kind, name: &str, code: u16, reason: &'static str, message: String) -> Self {
        let mut details = Map::new();
        if !name.is_empty() {
            details.insert("name".into(), json!(name));
        }
        if !kind.group.is_empty() {
            details.insert("group".into(), json!(kind.group));
        }
        details.insert("kind".into(), json!(kind.plural));
        Self { code, reason, message, details: Value::Object(details) }
    }

    pub(super) fn to_object(&self) -> Value {
        let mut object = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            object["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            object["details"] = self.details.clone();
        }
        object
    }
}

fn causes(causes: &[Cause]) -> Value {
    let one =
        |(reason, message, field): &Cause| json!({"reason": reason, "message": message, "field": field});
    Value::Array(causes.iter().map(one).collect())
}

pub(super) fn not_found(kind: &Kind, name: &str) -> Failure {
    let message = format!("{} \"{name}\" not found", kind.resource());
    Failure::about(kind, name, 404, "NotFound", message)
}

pub(super) fn already_exists(kind: &Kind, name: &str) -> Failure {
    let message = format!("{} \"{name}\" already exists", kind.resource());
    Failure::about(kind, name, 409, "AlreadyExists", message)
}

pub(super) fn modified(kind: &Kind, name: &str) -> Failure {
    let message = format!(
        "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please apply your \
         changes to the latest version and try again",
        kind.resource()
    );
    Failure::about(kind, name, 409, "Conflict", message)
}

pub(super) fn precondition(kind: &Kind, name: &str, wanted: &str, found: &str) -> Failure {
    let message = format!(
        "Operation cannot be fulfilled on {} \"{name}\": Precondition failed: UID in precondition: {wanted}, \
         UID in object meta: {found}",
        kind.resource()
    );
    Failure::about(kind, name, 409, "Conflict", message)
}

/// For an apply with the uid of an object that does not exist.
pub(super) fn no_such_uid(kind: &Kind, name: &str, wanted: &str) -> Failure {
    let message = format!(
        "Operation cannot be fulfilled on {} \"{name}\": uid mismatch: the provided object specified uid {wanted}, \
         and no existing object was found",
        kind.resource()
    );
    Failure::about(kind, name, 409, "Conflict", message)
}

/// For an apply with another uid than that of the object.
pub(super) fn other_uid(kind: &Kind, name: &str, wanted: &str) -> Failure {
    let why = format!("Invalid value: \"{wanted}\": field is immutable");
    invalid(kind, name, &[("FieldValueInvalid", why, "metadata.uid".to_owned())])
}

pub(super) fn forbidden(kind: &Kind, namespace: &str, name: &str, verb: &str, user: &str) -> Failure {
    let subject = if name.is_empty() { kind.resource() } else { format!("{} \"{name}\"", kind.resource()) };
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let message = format!(
        "{subject} is forbidden: User \"{user}\" cannot {verb} resource \"{}\" in API group \"{}\" {place}",
        kind.plural, kind.group
    );
    Failure::about(kind, name, 403, "Forbidden", message)
}

pub(super) fn bad_request(message: String) -> Failure {
    Failure::new(400, "BadRequest", message)
}

/// For a patch that does not match the schema. A real server responds with 500 and no reason.
pub(super) fn untyped_patch(kind: &Kind, version: &str, name: &str, what: &str) -> Failure {
    let message = format!(
        "failed to create typed patch object (/{name}; {}/{version}, Kind={}): {what}",
        kind.group, kind.kind
    );
    Failure::new(500, "", message)
}

pub(super) fn invalid(kind: &Kind, name: &str, found: &[Cause]) -> Failure {
    let subject = format!("{}.{} \"{name}\"", kind.kind, kind.group);
    let details = json!({"name": name, "group": kind.group, "kind": kind.kind, "causes": causes(found)});
    Failure { details, ..Failure::new(422, "Invalid", sentence(&subject, found)) }
}

pub(super) fn needs_resource_version(kind: &Kind, name: &str) -> Failure {
    let cause = (
        "FieldValueInvalid",
        "Invalid value: 0: must be specified for an update".to_owned(),
        "metadata.resourceVersion".to_owned(),
    );
    let message = sentence(&format!("{} \"{name}\"", kind.resource()), std::slice::from_ref(&cause));
    let mut failure = Failure::about(kind, name, 422, "Invalid", message);
    failure.details["causes"] = causes(&[cause]);
    failure
}

/// For an invalid prefix. A real server validates it like a name.
pub(super) fn generate_name(kind: &Kind, prefix: &str) -> Failure {
    let why = format!(
        "Invalid value: \"{prefix}\": a lowercase RFC 1123 subdomain must consist of lower case \
                       alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
    );
    let cause = ("FieldValueInvalid", why, "metadata.generateName".to_owned());
    let message = sentence(&format!("{} \"\"", kind.kind), std::slice::from_ref(&cause));
    let mut failure = Failure::about(kind, "", 422, "Invalid", message);
    failure.details["causes"] = causes(&[cause]);
    failure
}

pub(super) fn needs_manager() -> Failure {
    let cause = (
        "FieldValueRequired",
        "Required value: is required for apply patch".to_owned(),
        "fieldManager".to_owned(),
    );
    let message = sentence("PatchOptions.meta.k8s.io \"\"", std::slice::from_ref(&cause));
    let details = json!({"group": "meta.k8s.io", "kind": "PatchOptions", "causes": causes(&[cause])});
    Failure { details, ..Failure::new(422, "Invalid", message) }
}

fn sentence(subject: &str, causes: &[Cause]) -> String {
    let causes = causes.iter().map(|(_, message, field)| format!("{field}: {message}"));
    match causes.collect::<Vec<_>>().as_slice() {
        [one] => format!("{subject} is invalid: {one}"),
        many => format!("{subject} is invalid: [{}]", many.join(", ")),
    }
}

/// For an apply with conflicts, each given by a description of the other manager and the field.
pub(super) fn apply_conflict(conflicts: &[(String, String)]) -> Failure {
    let message = match conflicts {
        [(manager, field)] => format!("Apply failed with 1 conflict: conflict with {manager}: {field}"),
        many => format!("Apply failed with {} conflicts: {}", many.len(), by_manager(many)),
    };
    let causes: Vec<Cause> = conflicts
        .iter()
        .map(|(manager, field)| ("FieldManagerConflict", format!("conflict with {manager}"), field.clone()))
        .collect();
    let details = json!({"causes": self::causes(&causes)});
    Failure { details, ..Failure::new(409, "Conflict", message) }
}

fn by_manager(conflicts: &[(String, String)]) -> String {
    let mut managers: Vec<&String> = conflicts.iter().map(|(manager, _)| manager).collect();
    managers.sort();
    managers.dedup();
    let lines = managers.into_iter().flat_map(|manager| {
        let fields = conflicts.iter().filter(move |(of, _)| of == manager);
        let heading = format!("conflicts with {manager}:");
        std::iter::once(heading).chain(fields.map(|(_, field)| format!("- {field}")))
    });
    lines.collect::<Vec<_>>().join("\n")
}

pub(super) fn unsupported_media(kind: &Kind) -> Failure {
    let strategic = if kind.is_custom() { "" } else { "application/strategic-merge-patch+json, " };
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: \
         application/merge-patch+json, {strategic}application/apply-patch+yaml"
    );
    Failure::new(415, "UnsupportedMediaType", message)
}

pub(super) fn expired(wanted: u64, oldest: u64) -> Failure {
    Failure::new(410, "Expired", format!("too old resource version: {wanted} ({oldest})"))
}

/// For a list that must be newer than the watch cache.
pub(super) fn too_large_version(wanted: u64, current: u64) -> Failure {
    let message = format!("Timeout: Too large resource version: {wanted}, current: {current}");
    let causes = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
    let details = json!({"causes": causes, "retryAfterSeconds": 1});
    Failure { details, ..Failure::new(504, "Timeout", message) }
}

/// For the next page of a list that is no longer retained.
pub(super) fn too_old_to_continue() -> Failure {
    let message =
        "The provided continue parameter is too old to display a consistent list result.".to_owned();
    Failure::new(410, "Expired", message)
}

pub(super) fn method_not_allowed() -> Failure {
    let message = "the server does not allow this method on the requested resource".to_owned();
    Failure::new(405, "MethodNotAllowed", message)
}

/// A failure with a time to retry after.
pub(super) fn retry_after(code: u16, seconds: u32) -> Failure {
    Failure { details: json!({"retryAfterSeconds": seconds}), ..error(code) }
}

/// A failure of the server itself.
pub(super) fn error(code: u16) -> Failure {
    let (reason, message) = match code {
        401 => ("Unauthorized", "Unauthorized"),
        409 => ("Conflict", "Operation cannot be fulfilled: the object has been modified"),
        422 => ("Invalid", "the object is invalid"),
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later",
        ),
        500 => ("InternalError", "Internal error occurred: etcdserver: request timed out"),
        503 => ("ServiceUnavailable", "apiserver is shutting down"),
        504 => ("Timeout", "request did not complete within the allotted timeout"),
        _ => ("", "the server failed"),
    };
    Failure::new(code, reason, message.to_owned())
}
