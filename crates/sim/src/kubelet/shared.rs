//! The kubelet's state, shared with its server, and its checkpoint files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use fastrand::Rng;
use serde_json::Value;

use super::faults::{Faults, RecordedResponse};
use super::limiter::Limiter;
use super::model::Model;
use super::traffic::Traffic;
use super::{Calls, Options, SimError, files};
use crate::serve::Control;
use crate::sync::lock;

/// What the kubelet and its server share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) root: PathBuf,
    pub(super) options: Options,
    pub(super) state: Mutex<State>,
    /// Controls the running server.
    pub(super) server: Mutex<Option<Control>>,
}

/// The kubelet's state.
#[derive(Debug)]
pub(super) struct State {
    pub(super) model: Model,
    pub(super) rng: Rng,
    pub(super) limiter: Limiter,
    pub(super) calls: Calls,
    pub(super) faults: Faults,
    pub(super) pods_are_known: bool,
    pub(super) managers_are_ready: bool,
    /// Number of temporary files so far, for unique names.
    pub(super) temporary_files: u64,
    /// The last content of each checkpoint, to skip writes that change nothing.
    pub(super) written: BTreeMap<PathBuf, String>,
    /// When the last change was complete.
    pub(super) changed: Instant,
    /// The responses since they were last taken; `None` if they are not recorded.
    pub(super) recorded: Option<Vec<RecordedResponse>>,
    /// The calls so far; `None` if they are not recorded.
    pub(super) traffic: Option<Traffic>,
}

impl Shared {
    /// Closes the connections that are open now.
    pub(super) fn cut_connections(&self) {
        if let Some(server) = &*lock(&self.server) {
            server.cut_connections();
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Writes every checkpoint that has changed, the CPU Manager's last.
    pub(super) fn write_checkpoints(&self, state: &mut State) -> Result<(), SimError> {
        let files = [
            ("device-plugins/kubelet_internal_checkpoint", Some(files::device_checkpoint(&state.model))),
            ("memory_manager_state", files::memory_checkpoint(&state.model)),
            ("cpu_manager_state", Some(files::cpu_checkpoint(&state.model))),
        ];
        for (name, content) in files {
            if let Some(content) = content {
                self.write(state, name, &content)?;
            }
        }
        Ok(())
    }

    /// Writes a temporary file in the same directory and renames it, like the kubelet, but without its fsync,
    /// since nothing here needs to survive a machine crash.
    pub(super) fn write(&self, state: &mut State, name: &str, content: &Value) -> Result<(), SimError> {
        let path = self.root.join(name);
        let text = content.to_string();
        if state.written.get(&path) == Some(&text) {
            return Ok(());
        }
        state.temporary_files += 1;
        let temporary = path.with_file_name(format!(".{}", state.temporary_files));
        let explain = |source| SimError { path: path.clone(), source };
        std::fs::write(&temporary, &text).map_err(explain)?;
        std::fs::rename(&temporary, &path).map_err(explain)?;
        state.written.insert(path, text);
        Ok(())
    }

    /// Runs the CPU Manager's reconciliation, which releases the CPUs of terminated pods.
    pub(super) fn reconcile(&self) {
        let state = &mut *self.lock();
        if !state.model.reconcile() {
            return;
        }
        let content = files::cpu_checkpoint(&state.model);
        if let Err(error) = self.write(state, "cpu_manager_state", &content) {
            tracing::warn!("{error}");
        }
    }

    pub(super) fn write_checkpoints_or_warn(&self, state: &mut State) {
        if let Err(error) = self.write_checkpoints(state) {
            tracing::warn!("{error}");
        }
    }
}
