//! The API server's audit log.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Result;
use jiff::Timestamp;
use serde::Deserialize;

use crate::figures::Role;

/// An audited request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// When the API server received it.
    pub(crate) at: Timestamp,
    pub(crate) role: Role,
    pub(crate) verb: String,
    /// With its subresource, such as `pods/status`; the path for non-resource requests.
    pub(crate) resource: String,
    pub(crate) uri: String,
    pub(crate) code: u16,
}

impl Request {
    /// Returns true if the API server has to read pods for it. A watch does if it starts with the existing
    /// objects.
    pub(crate) fn lists_pods(&self) -> bool {
        let from_the_start =
            || self.uri.contains("sendInitialEvents=true") || !self.uri.contains("resourceVersion=");
        self.resource == "pods"
            && self.code < 400
            && (self.verb == "list" || (self.verb == "watch" && from_the_start()))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    audit_id: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
    request_received_timestamp: Timestamp,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct ObjectRef {
    resource: Option<String>,
    subresource: Option<String>,
}

#[derive(Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

/// The audit log, read incrementally.
pub(crate) struct AuditLog {
    path: PathBuf,
    offset: u64,
    /// An incomplete last line.
    rest: String,
    /// IDs seen so far: a watch is logged at its start and at its end.
    known: HashSet<String>,
}

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, rest: String::new(), known: HashSet::new() }
    }

    /// Returns the requests logged since the last call.
    pub(crate) fn read(&mut self) -> Result<Vec<Request>> {
        // The file does not exist before the first request.
        let Ok(mut file) = File::open(&self.path) else { return Ok(Vec::new()) };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = std::mem::take(&mut self.rest);
        self.offset += file.read_to_string(&mut text)? as u64;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.rest = text.split_off(whole);
        let mut requests = Vec::new();
        for line in text.lines() {
            // A killed API server may leave an incomplete line.
            let Ok(event) = serde_json::from_str::<Event>(line) else { continue };
            if self.known.insert(event.audit_id.clone()) {
                requests.push(request(event));
            }
        }
        Ok(requests)
    }
}

fn request(event: Event) -> Request {
    let Event { verb, request_uri, user, object_ref, response_status, request_received_timestamp, .. } =
        event;
    let path = || request_uri.split('?').next().unwrap_or_default().to_owned();
    let named = object_ref.and_then(|object| {
        let ObjectRef { resource, subresource } = object;
        resource.map(|resource| match subresource {
            Some(subresource) => format!("{resource}/{subresource}"),
            None => resource,
        })
    });
    Request {
        at: request_received_timestamp,
        role: role(&user.username),
        verb,
        resource: named.unwrap_or_else(path),
        uri: request_uri,
        code: response_status.map_or(0, |status| status.code),
    }
}

fn role(user: &str) -> Role {
    match user.rsplit(':').next() {
        Some("numacast-agent") => Role::Agents,
        Some("numacast-controller") => Role::Controller,
        _ => Role::Unknown,
    }
}
