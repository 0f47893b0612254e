//! HTTP: paths, verbs, content types and faults.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Query;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use futures::future::ready;
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use super::faults::Fault;
use super::fields::Writer;
use super::kinds::{Kind, TOPOLOGIES, discovery};
use super::shape::{Shape, failure, plain, reply, too_many_requests};
use super::status::{self, Failure};
use super::store::{Write, Written};
use super::target::{Parameters, Target};
use super::watches::watch;
use super::{Shared, now, schema};

/// Maximum size of a body, as on a real server.
const BODY_LIMIT: usize = 3 << 20;
/// How long a list waits for the watch cache to catch up.
const CACHE_TIMEOUT: Duration = Duration::from_secs(3);

/// Handles one request. An error closes the connection without a response.
pub(super) async fn handle(shared: Arc<Shared>, request: Request<Body>) -> io::Result<Response<Body>> {
    let cut = || io::Error::from(io::ErrorKind::ConnectionReset);
    shared.thawed().await;
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let parameters =
        Query::<Parameters>::try_from_uri(request.uri()).map(|query| query.0).unwrap_or_default();
    let target = Target::of(&segments);
    let verb = verb(request.method(), target.as_ref(), &parameters);
    let shape = Shape::of(request.headers(), target.as_ref());
    if let Some(target) = &target {
        shared.lock().record(verb, target.kind, request.uri().query().unwrap_or_default());
    }
    let fault = shared.lock().faults.take(verb, target.as_ref().map_or("", |target| target.kind.plural));
    match &fault {
        Some(Fault::Cut) => return Err(cut()),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Delay(delay)) => tokio::time::sleep(*delay).await,
        Some(Fault::Status(code)) => return Ok(failure(&status::error(*code), shape)),
        Some(Fault::RetryAfter { code, seconds }) => {
            return Ok(failure(&status::retry_after(*code, *seconds), shape));
        }
        Some(Fault::TooManyRequests { retry_after }) => return Ok(too_many_requests(*retry_after)),
        Some(Fault::Body(bytes)) => return Ok(shape.streaming(Body::from(bytes.clone()))),
        Some(Fault::CutAfterwards | Fault::CutWithin(_) | Fault::StallWithin(_)) | None => {}
    }
    let response = match target {
        Some(target) => respond(&shared, target, verb, &parameters, request).await,
        None => Ok(other_path(&shared, &segments)),
    };
    if fault == Some(Fault::CutAfterwards) {
        return Err(cut());
    }
    shared.thawed().await;
    let response = response.unwrap_or_else(|error| failure(&error, shape));
    Ok(match fault {
        Some(Fault::CutWithin(max)) => response.map(|body| up_to(body, max, stream::iter([Err(cut())]))),
        Some(Fault::StallWithin(max)) => response.map(|body| up_to(body, max, stream::pending())),
        _ => response,
    })
}

/// Truncates a body to a number of bytes, followed by another stream.
fn up_to(body: Body, mut max: usize, then: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    let pieces = body.into_data_stream().map(move |piece| {
        let mut piece = piece.map_err(io::Error::other)?;
        piece.truncate(max);
        max -= piece.len();
        Ok(piece)
    });
    Body::from_stream(
        pieces.take_while(|piece| ready(!matches!(piece, Ok(piece) if piece.is_empty()))).chain(then),
    )
}

/// Serves discovery, health checks, and 404 for everything else.
fn other_path(shared: &Shared, segments: &[&str]) -> Response<Body> {
    if matches!(segments, ["healthz" | "readyz" | "livez", ..]) {
        return plain(StatusCode::OK, "ok");
    }
    let state = shared.lock();
    match discovery(segments, |kind| state.serves(kind)) {
        Some(document) => reply(StatusCode::OK, &document),
        None => plain(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// The RBAC verb.
fn verb(method: &Method, target: Option<&Target>, parameters: &Parameters) -> &'static str {
    let watching = parameters.get("watch").is_some_and(|value| value == "true" || value == "1");
    let named = target.is_some_and(|target| !target.name.is_empty());
    match method.as_str() {
        "GET" if watching => "watch",
        "GET" if named => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

async fn respond(
    shared: &Arc<Shared>,
    mut target: Target,
    verb: &'static str,
    parameters: &Parameters,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    {
        let state = shared.lock();
        if !state.serves(target.kind) {
            return Ok(plain(StatusCode::NOT_FOUND, "404 page not found\n"));
        }
        if state.denied.contains(&(verb, target.kind.plural)) {
            let Target { kind, namespace, name, .. } = &target;
            return Err(status::forbidden(kind, namespace, name, verb, &state.user));
        }
    }
    let (parts, body) = request.into_parts();
    let shape = Shape::of(&parts.headers, Some(&target));
    match verb {
        "get" => {
            let object = shared.lock().store.get(&target.key())?;
            Ok(shape.reply(StatusCode::OK, &shape.object(&target, &object)))
        }
        "list" => list(shared, &target, parameters, shape).await,
        "watch" => watch(shared, target, parameters, shape),
        "delete" => delete(shared, &target, parameters, &parts.headers, body).await,
        "create" | "update" | "patch" => {
            let body = body_of(body).await?;
            let written = write(shared, &mut target, verb, parameters, &parts.headers, &body)?;
            let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
            Ok(reply(code, &shape.object(&target, &written.object)))
        }
        _ => Err(status::method_not_allowed()),
    }
}

async fn body_of(body: Body) -> Result<Bytes, Failure> {
    let too_large = |_| status::bad_request(format!("limit is {BODY_LIMIT}"));
    to_bytes(body, BODY_LIMIT).await.map_err(too_large)
}

async fn list(
    shared: &Shared,
    target: &Target,
    parameters: &Parameters,
    shape: Shape,
) -> Result<Response<Body>, Failure> {
    let selector = target.selector(parameters)?;
    let text = |name: &str| parameters.get(name).map_or("", String::as_str);
    let limit = text("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let page = match (text("continue"), text("resourceVersion")) {
        ("", "") => {
            let state = &mut *shared.lock();
            let mut objects = state.store.list(target.kind, &target.namespace);
            objects.retain(|object| selector.matches(object));
            state.pages.first(objects, state.store.version(), limit)
        }
        // Served from the watch cache. The limit is ignored if any version is acceptable.
        ("", wanted) => {
            let wanted = wanted.parse().map_err(|_| status::bad_request("no resource version".into()))?;
            let (mut objects, version) = cached(shared, target, wanted).await?;
            objects.retain(|object| selector.matches(object));
            let limit = if wanted == 0 { usize::MAX } else { limit };
            shared.lock().pages.first(objects, version, limit)
        }
        (next, _) => shared.lock().pages.next(next, limit)?,
    };
    let (api_version, kind) = match shape.metadata_only {
        true => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned()),
        false => (target.kind.api_version(&target.version), format!("{}List", target.kind.kind)),
    };
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if let Some(next) = page.next {
        metadata["continue"] = json!(next);
        // A real server does not count the rest of a filtered list either.
        if selector.is_empty() {
            metadata["remainingItemCount"] = json!(page.rest);
        }
    }
    let items: Vec<Value> = page.objects.iter().map(|object| shape.object(target, object)).collect();
    let list = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "items": items});
    Ok(shape.reply(StatusCode::OK, &list))
}

/// The objects and version of the watch cache, which must be at least at `wanted`.
async fn cached(shared: &Shared, target: &Target, wanted: u64) -> Result<(Vec<Arc<Value>>, u64), Failure> {
    let now = || shared.lock().store.cached(target.kind, &target.namespace);
    if now().1 < wanted {
        tokio::time::sleep(CACHE_TIMEOUT).await;
    }
    let (objects, version) = now();
    match version < wanted {
        true => Err(status::too_large_version(wanted, version)),
        false => Ok((objects, version)),
    }
}

fn write(
    shared: &Shared,
    target: &mut Target,
    verb: &str,
    parameters: &Parameters,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Written, Failure> {
    let mut object = parse(body)?;
    let patch = Patch::of(verb, target.kind, headers)?;
    let is_object = patch != Some(Patch::Merge);
    if is_object {
        name_of(target, &object)?;
    }
    check_fields(target, &mut object, patch, parameters)?;
    let manager = manager(parameters, headers, patch)?;
    if is_object {
        object["apiVersion"] = json!(target.kind.api_version(target.kind.versions[0]));
        object["kind"] = json!(target.kind.kind);
    }
    let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default().to_owned();
    let write = match patch {
        Some(Patch::Apply) => Write::Apply {
            config: object,
            force: parameters.get("force").is_some_and(|force| force == "true"),
        },
        Some(Patch::Merge) => Write::Merge(object),
        None if verb == "create" => Write::Create(object),
        None => Write::Replace(object),
    };
    let api_version = target.kind.api_version(&target.version);
    let time = now();
    let writer = Writer { manager: &manager, api_version: &api_version, time: &time };
    let state = &mut *shared.lock();
    if target.name.is_empty() {
        target.name = state.generated_name(&prefix);
    }
    let written = state.store.write(&target.key(), write, &writer);
    state.count(target.kind, written.as_ref().ok());
    written
}

fn parse(body: &[u8]) -> Result<Value, Failure> {
    if let Ok(object) = serde_json::from_slice(body) {
        return Ok(object);
    }
    let text = String::from_utf8_lossy(body);
    serde_saphyr::from_str(&text).map_err(|error| {
        let what = error.to_string();
        status::bad_request(format!("error decoding YAML: {}", what.lines().next().unwrap_or_default()))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patch {
    Apply,
    Merge,
}

impl Patch {
    /// The patch type; `None` for verbs that send a whole object.
    fn of(verb: &str, kind: &Kind, headers: &HeaderMap) -> Result<Option<Self>, Failure> {
        if verb != "patch" {
            return Ok(None);
        }
        let content = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        match content.unwrap_or_default().split(';').next().unwrap_or_default() {
            "application/apply-patch+yaml" => Ok(Some(Self::Apply)),
            "application/merge-patch+json" => Ok(Some(Self::Merge)),
            // Close enough for the labels, annotations and statuses that are patched so.
            "application/strategic-merge-patch+json" if !kind.is_custom() => Ok(Some(Self::Merge)),
            _ => Err(status::unsupported_media(kind)),
        }
    }
}

/// Checks that the name in the body matches the path. A create request has the name in the body only.
fn name_of(target: &mut Target, object: &Value) -> Result<(), Failure> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    if target.name.is_empty() {
        name.clone_into(&mut target.name);
        if name.is_empty() {
            // The suffix is generated later.
            return match metadata["generateName"].as_str() {
                Some(prefix) if prefix.ends_with('.') => Err(status::generate_name(target.kind, prefix)),
                Some(_) => Ok(()),
                None => Err(status::bad_request("name or generateName is required".into())),
            };
        }
        return Ok(());
    }
    if !name.is_empty() && name != target.name {
        return Err(status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    Ok(())
}

/// Rejects unknown fields in server-side apply and strict validation, and drops them otherwise.
fn check_fields(
    target: &Target,
    object: &mut Value,
    patch: Option<Patch>,
    parameters: &Parameters,
) -> Result<(), Failure> {
    let managed = &object["metadata"]["managedFields"];
    if patch == Some(Patch::Apply) && managed.as_array().is_some_and(|entries| !entries.is_empty()) {
        return Err(status::bad_request("metadata.managedFields must be nil".into()));
    }
    if target.kind != &TOPOLOGIES {
        return Ok(());
    }
    let schema = schema::of_version(&target.version);
    let unknown = schema::unknown_fields(schema, object);
    if patch == Some(Patch::Apply) {
        let untyped = schema::untyped(schema, object);
        let first = unknown.first().map(|path| format!(".{path}: field not declared in schema")).or(untyped);
        let error = |what: String| status::untyped_patch(target.kind, &target.version, &target.name, &what);
        return first.map_or(Ok(()), |what| Err(error(what)));
    }
    let strict = parameters.get("fieldValidation").is_some_and(|value| value == "Strict");
    if strict && !unknown.is_empty() {
        let Kind { kind, .. } = target.kind;
        let fields: Vec<String> = unknown.iter().map(|path| format!("unknown field \"{path}\"")).collect();
        return Err(status::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {kind}: strict decoding error: {}",
            target.version,
            fields.join(", ")
        )));
    }
    schema::prune(schema, object);
    Ok(())
}

/// The field manager: the parameter, else the product name of the user agent.
fn manager(parameters: &Parameters, headers: &HeaderMap, patch: Option<Patch>) -> Result<String, Failure> {
    if let Some(manager) = parameters.get("fieldManager").filter(|manager| !manager.is_empty()) {
        return Ok(manager.clone());
    }
    if patch == Some(Patch::Apply) {
        return Err(status::needs_manager());
    }
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("unknown");
    Ok(agent.split('/').next().unwrap_or(agent).to_owned())
}

async fn delete(
    shared: &Shared,
    target: &Target,
    parameters: &Parameters,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response<Body>, Failure> {
    if target.name.is_empty() {
        return Err(status::method_not_allowed());
    }
    let body = body_of(body).await?;
    let options = if body.is_empty() { Value::Null } else { parse(&body)? };
    let uid = options["preconditions"]["uid"].as_str();
    let manager = manager(parameters, headers, None)?;
    let deleted = shared.lock().store.delete(&target.key(), uid, &manager)?;
    let mut details =
        json!({"name": target.name, "kind": target.kind.plural, "uid": deleted["metadata"]["uid"]});
    if !target.kind.group.is_empty() {
        details["group"] = json!(target.kind.group);
    }
    Ok(reply(
        StatusCode::OK,
        &json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }),
    ))
}
