//! A proxy between a client and the API server, over plain HTTP on loopback, that falsifies Nodes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use kube::Client;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// How responses about Nodes are falsified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not at all.
    None,
    /// Requests are forbidden.
    Forbidden,
    /// The server fails.
    Failure,
    /// There are no Nodes.
    Empty,
    /// Only half of the Nodes exist, for every request.
    Half,
    /// Half of the Nodes are listed, but all are counted.
    HalfListed,
    /// Nodes whose names end in 7 are not listed, but a Get finds them.
    Hidden,
    /// A proxy in between returns 404 for the path of a single Node.
    Nowhere,
}

/// A running proxy; dropping it closes its socket.
pub(crate) struct Proxy {
    fault: Arc<Mutex<Fault>>,
    pub(crate) kubeconfig: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Shared {
    client: Client,
    fault: Arc<Mutex<Fault>>,
}

impl Proxy {
    pub(crate) async fn start(client: Client, dir: &Path, fault: Fault) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let kubeconfig = dir.join(format!("proxy-{fault:?}.kubeconfig"));
        let fault = Arc::new(Mutex::new(fault));
        let shared = Shared { client, fault: Arc::clone(&fault) };
        let app = Router::new().fallback(pass).with_state(shared);
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {}}],
        });
        std::fs::write(&kubeconfig, config.to_string())?;
        Ok(Self { fault, kubeconfig, task })
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }
}

async fn pass(State(shared): State<Shared>, request: Request) -> Response<Body> {
    let fault = *shared.fault.lock().unwrap_or_else(PoisonError::into_inner);
    let uri = request.uri().clone();
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let lists = path == "/api/v1/nodes" && !query.contains("watch=");
    let counts = lists && (query.contains("limit=1&") || query.ends_with("limit=1"));
    let node = path.strip_prefix("/api/v1/nodes/");
    match (fault, node) {
        (Fault::Forbidden, _) if path.starts_with("/api/v1/nodes") => {
            return status(403, "Forbidden", "nodes is forbidden: User \"u\" cannot list resource \"nodes\"");
        }
        (Fault::Failure, _) if path.starts_with("/api/v1/nodes") => {
            return status(500, "InternalError", "etcdserver: request timed out");
        }
        (Fault::Empty, Some(name)) => return not_found(name),
        (Fault::Half, Some(name)) if !is_of_half(name) => return not_found(name),
        (Fault::Nowhere, Some(_)) => return status(404, "NotFound", "page not found"),
        _ => {}
    }
    let response = match forward(&shared.client, request).await {
        Ok(response) => response,
        Err(error) => return status(502, "BadGateway", &error.to_string()),
    };
    match fault {
        Fault::Empty if lists => cut(response, 0, |_| false).await,
        Fault::Half if lists => cut(response, 2, is_of_half).await,
        Fault::HalfListed if lists && !counts => cut(response, 2, is_of_half).await,
        Fault::Hidden if lists && !counts => cut(response, 1, |name| !name.ends_with('7')).await,
        _ => response,
    }
}

/// Returns true for every second name.
fn is_of_half(name: &str) -> bool {
    name.bytes().last().is_some_and(|byte| byte % 2 == 0)
}

async fn forward(client: &Client, request: Request) -> Result<Response<Body>> {
    let (mut parts, body) = request.into_parts();
    // Hop-by-hop headers; and a body that will be cut must not be compressed.
    for header in ["host", "connection", "accept-encoding"] {
        parts.headers.remove(header);
    }
    let body = to_bytes(body, usize::MAX).await?;
    let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    let (mut parts, body) = client.send(request).await?.into_parts();
    for header in ["transfer-encoding", "connection", "content-length"] {
        parts.headers.remove(header);
    }
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Keeps a list's items that satisfy `stays`, and reduces `remainingItemCount` in the ratio `one_in`.
async fn cut(response: Response<Body>, one_in: u64, stays: impl Fn(&str) -> bool) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let Ok(mut list) = serde_json::from_slice::<Value>(&bytes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    let Some(items) = list["items"].as_array_mut() else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    items.retain(|item| item["metadata"]["name"].as_str().is_some_and(&stays));
    if let Some(left) = list["metadata"]["remainingItemCount"].as_u64() {
        list["metadata"]["remainingItemCount"] = json!(left / one_in.max(1) * u64::from(one_in > 0));
    }
    Response::from_parts(parts, Body::from(list.to_string()))
}

fn not_found(name: &str) -> Response<Body> {
    let text = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
        "reason": "NotFound", "message": format!("nodes \"{name}\" not found"),
        "details": {"name": name, "kind": "nodes"},
    });
    response(404, &text)
}

fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    response(
        code,
        &json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "reason": reason, "message": message,
        }),
    )
}

fn response(code: u16, status: &Value) -> Response<Body> {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY);
    (code, [("content-type", "application/json")], status.to_string()).into_response()
}
