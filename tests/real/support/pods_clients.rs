//! Clients of the Pods API in Go and Python, from upstream's own definitions, and their responses.
//!
//! Shares no code with the server or with numacast's client.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin};

use super::parts::Parts;
use super::process::tethered;
use super::python::Python;
use super::wait::until;

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    /// grpc-go, upstream's generated code, `k8s.io/api`.
    Go,
    /// grpcio with stubs that grpcio-tools generates from upstream's definitions.
    Python,
}

/// A pod as a client received it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Pod {
    /// Hash of the encoded pod as received.
    pub(crate) hash: String,
    pub(crate) bytes: usize,
    /// Whether re-encoding the decoded pod gives the received bytes; unknown to the Python client.
    #[serde(default)]
    pub(crate) exact: Option<bool>,
    /// The Pod as JSON, as printed by Kubernetes' own library; Python formats times and quantities
    /// differently.
    pub(crate) pod: Value,
}

impl Pod {
    pub(crate) fn uid(&self) -> &str {
        self.pod["metadata"]["uid"].as_str().unwrap_or_default()
    }

    /// Returns `namespace/name`.
    pub(crate) fn name(&self) -> String {
        let metadata = &self.pod["metadata"];
        format!(
            "{}/{}",
            metadata["namespace"].as_str().unwrap_or_default(),
            metadata["name"].as_str().unwrap_or_default()
        )
    }
}

/// A response.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Response {
    /// The status code in grpc-go's spelling: `OK`, `NotFound`.
    pub(crate) code: String,
    pub(crate) text: String,
    pub(crate) pods: Vec<Value>,
}

impl Response {
    /// Returns the pods, or an error unless the status is `OK`.
    pub(crate) fn pods(self) -> Result<Vec<Pod>> {
        ensure!(self.code == "OK", "{}: {}", self.code, self.text);
        self.pods.into_iter().map(|pod| Ok(serde_json::from_value(pod)?)).collect()
    }

    /// Returns code and message.
    pub(crate) fn status(&self) -> (&str, &str) {
        (&self.code, &self.text)
    }
}

/// An event of a watch.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Event {
    /// `ADDED` and so on; `ENDED` is the client's own, with code and message.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) hash: String,
    #[serde(default)]
    pub(crate) bytes: usize,
    #[serde(default)]
    pub(crate) exact: Option<bool>,
    #[serde(default)]
    pub(crate) pod: Value,
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) text: String,
}

impl Event {
    fn into_pod(self) -> Pod {
        Pod { hash: self.hash, bytes: self.bytes, exact: self.exact, pod: self.pod }
    }
}

/// The paths of the client programs.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    go: PathBuf,
    python: Python,
}

impl Clients {
    pub(crate) fn of(parts: &Parts) -> Self {
        Self { go: parts.program("pods"), python: Python::new(parts.program("grpcio-pods")) }
    }

    fn program(&self, kind: ClientKind) -> &Path {
        match kind {
            ClientKind::Go => &self.go,
            ClientKind::Python => self.python.program(),
        }
    }

    /// Runs a client and returns its responses, one for each line of output.
    pub(crate) async fn request(
        &self,
        kind: ClientKind,
        socket: &Path,
        arguments: &[&str],
    ) -> Result<Vec<Response>> {
        let (verb, more) = arguments.split_first().context("no arguments")?;
        if kind == ClientKind::Python {
            let socket = socket.to_str().context("the path of the socket is no text")?;
            let line = self.python.run(&[&[verb, "--socket", socket], more].concat()).await?;
            return Ok(vec![serde_json::from_str(&line).with_context(|| line.clone())?]);
        }
        let mut command = tokio::process::Command::new(&self.go);
        command.arg(verb).arg("--socket").arg(socket).args(more);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{kind:?} {arguments:?} ends with {}: {error}", output.status);
        let text = String::from_utf8(output.stdout)?;
        text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }

    async fn one(&self, kind: ClientKind, socket: &Path, arguments: &[&str]) -> Result<Response> {
        let mut responses = self.request(kind, socket, arguments).await?;
        responses.pop().with_context(|| format!("{kind:?} {arguments:?} prints nothing"))
    }

    pub(crate) async fn list(&self, kind: ClientKind, socket: &Path) -> Result<Response> {
        self.one(kind, socket, &["list"]).await
    }

    pub(crate) async fn get(&self, kind: ClientKind, socket: &Path, uid: &str) -> Result<Response> {
        self.one(kind, socket, &["get", "--uid", uid]).await
    }

    /// Sends an encoded request to any method and returns the first message.
    pub(crate) async fn call(&self, socket: &Path, rpc: &str, request: &[u8]) -> Result<Response> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(request)?;
        let path = file.path().to_string_lossy().into_owned();
        self.one(ClientKind::Go, socket, &["call", "--rpc", rpc, "--request", &path]).await
    }

    /// Requests conditions by PodInfo: `list`, or `get` with `--uid`.
    pub(crate) async fn conditions(&self, socket: &Path, verb: &str, more: &[&str]) -> Result<Response> {
        let verb = format!("conditions-{verb}");
        self.one(ClientKind::Python, socket, &[&[verb.as_str()], more].concat()).await
    }

    /// Starts a watch on a socket.
    pub(crate) fn watch(&self, kind: ClientKind, socket: &Path, more: &[&str]) -> Result<Watcher> {
        Watcher::start(self.program(kind), "watch", socket, more)
    }

    /// Starts a watch of conditions on a socket.
    pub(crate) fn watch_conditions(&self, socket: &Path) -> Result<Watcher> {
        Watcher::start(self.python.program(), "conditions-watch", socket, &[])
    }
}

/// The state of a client that trusts the watch.
#[derive(Debug, Default)]
pub(crate) struct WatchState {
    /// Pods by UID.
    pub(crate) pods: BTreeMap<String, Pod>,
    /// Every event so far.
    pub(crate) events: Vec<Event>,
    /// Number of `INITIAL_SYNC_COMPLETE` events.
    pub(crate) synced: usize,
    /// Code and message of the watch's end.
    pub(crate) ended: Option<(String, String)>,
    /// Events that violate the protocol.
    pub(crate) violations: Vec<String>,
    /// Pods with redundant events: the same content twice in a row, or the deletion of an unknown pod.
    pub(crate) redundant: Vec<String>,
}

impl WatchState {
    fn apply(&mut self, event: Event) {
        self.events.push(event.clone());
        match event.kind.as_str() {
            "ENDED" => self.ended = Some((event.code, event.text)),
            "INITIAL_SYNC_COMPLETE" => {
                self.synced += 1;
                if event.bytes > 0 || self.synced > 1 {
                    self.violations.push(format!("the end of a list, number {}: {event:?}", self.synced));
                }
            }
            kind => {
                let pod = event.clone().into_pod();
                let uid = pod.uid().to_owned();
                if uid.is_empty() || pod.name().len() < 3 {
                    self.violations.push(format!("{kind} of a pod without a name or UID: {}", pod.pod));
                }
                // The pod of a DELETED event has few fields, and may be encoded in more than one way.
                if pod.exact == Some(false) && kind != "DELETED" {
                    self.violations.push(format!("{kind} of {} is not what is encoded again", pod.name()));
                }
                match kind {
                    "ADDED" if self.synced == 0 && self.pods.contains_key(&uid) => {
                        self.violations.push(format!("{} twice in the initial list", pod.name()));
                    }
                    "MODIFIED" | "DELETED" if self.synced == 0 => {
                        self.violations.push(format!("{kind} of {} in the initial list", pod.name()));
                    }
                    _ => {}
                }
                if kind != "DELETED" && self.pods.get(&uid).is_some_and(|known| known.hash == pod.hash) {
                    self.redundant.push(pod.name());
                }
                if kind == "DELETED" && !self.pods.contains_key(&uid) {
                    self.redundant.push(pod.name());
                }
                match kind {
                    "ADDED" | "MODIFIED" => drop(self.pods.insert(uid, pod)),
                    "DELETED" => drop(self.pods.remove(&uid)),
                    other => self.violations.push(format!("an event {other}")),
                }
            }
        }
    }
}

/// A running watch client; killed when dropped.
pub(crate) struct Watcher {
    state: Arc<Mutex<WatchState>>,
    input: Option<ChildStdin>,
    child: Child,
}

impl Watcher {
    fn start(program: &Path, verb: &str, socket: &Path, more: &[&str]) -> Result<Self> {
        let mut command = tokio::process::Command::from(tethered(program));
        command.arg(verb).arg("--socket").arg(socket).args(more).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().with_context(|| program.display().to_string())?;
        let state = Arc::<Mutex<WatchState>>::default();
        let shared = Arc::clone(&state);
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(event) => lock(&shared).apply(event),
                    Err(error) => lock(&shared).violations.push(format!("{error}: {line}")),
                }
            }
        });
        Ok(Self { state, input: child.stdin.take(), child })
    }

    /// Returns what the client knows now.
    pub(crate) fn state(&self) -> MutexGuard<'_, WatchState> {
        lock(&self.state)
    }

    /// Waits until the initial list is complete.
    pub(crate) async fn wait_until_synced(&self) -> Result<()> {
        until("the initial list is complete", async || {
            let state = self.state();
            ensure!(state.synced > 0, "{:?}, {} events", state.ended, state.events.len());
            Ok(())
        })
        .await
    }

    /// Waits until the watch has ended; returns code and message.
    pub(crate) async fn wait_until_ended(&self) -> Result<(String, String)> {
        until("the watch has ended", async || self.state().ended.clone().context("it continues")).await
    }

    /// Resumes a client that was started with `--stall`.
    pub(crate) async fn resume(&mut self) -> Result<()> {
        let Some(input) = &mut self.input else { bail!("it has no input") };
        Ok(input.write_all(b"\n").await?)
    }

    /// Kills the client.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

fn lock(state: &Mutex<WatchState>) -> MutexGuard<'_, WatchState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
