//! Everything that one scan reads, in one file that can be attached to a bug report; and the scan computed
//! from it.
//!
//! A recording contains the hardware's files verbatim and the kubelet's responses in numacast's own form. Of
//! the kubelet's configuration it contains only what numacast uses: the file itself may contain secrets.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Settings;
use super::kubelet_config::problem_of;
use super::scan::{Inventory, Scan, ScanError};
use crate::cluster::Cluster;
use crate::kubelet::{
    Allocatable, Api, Client, Connection, KubeletConfig, ManagerState, StatePaths, Usage, read_state,
};
use crate::machine::{self, RecordedFiles, Recorder};
use crate::topology::{Exclude, Rules};

/// The format version that is written, and the newest that can be read.
const FORMAT: u32 = 1;

/// Recorded if the kubelet's configuration has no source.
const UNTOLD: &str = "nobody is to tell how the kubelet is configured (`kubelet.config.source: none`)";

/// All inputs of one scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recording {
    /// The format version of this file.
    pub format: u32,
    /// The version of numacast that wrote it.
    pub version: String,
    /// When it was written.
    pub recorded: jiff::Timestamp,
    /// The node's name.
    pub node: String,
    /// Whether empty zones for missing NUMA ids were requested.
    pub fillers: bool,
    /// What was excluded.
    #[serde(default, skip_serializing_if = "Exclude::is_empty")]
    pub exclude: Exclude,
    /// The hardware's files: path to content.
    pub files: RecordedFiles,
    /// The version of the podresources API that responded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<Api>,
    /// The kubelet's configuration, as far as numacast uses it.
    pub config: Answer<KubeletConfig>,
    /// Invalid keys of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_problems: Vec<String>,
    /// The response to GetAllocatableResources.
    pub allocatable: Answer<Allocatable>,
    /// The response to List.
    pub usage: Answer<Usage>,
    /// The managers' checkpoints, if they could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ManagerState>,
    /// Problems of the checkpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state_problems: Vec<String>,
    /// Terminated pods (namespace, name) in the List, as far as known.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub terminal: BTreeSet<(String, String)>,
}

/// A response, or the error in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer<T> {
    /// The response.
    Answer(T),
    /// The error, in one sentence.
    Error(String),
}

impl<T> Answer<T> {
    fn of<E: ToString>(result: Result<T, E>) -> Self {
        match result {
            Ok(answer) => Self::Answer(answer),
            Err(error) => Self::Error(error.to_string()),
        }
    }

    fn get(&self) -> Result<&T, &String> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Error(sentence) => Err(sentence),
        }
    }
}

/// Why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It cannot be read or written.
    #[error("cannot {verb} the recording {path}: {reason}")]
    File {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// It is from a newer numacast.
    #[error("the recording {path} has the form {format}; this numacast reads forms up to {FORMAT}")]
    Format {
        /// The file.
        path: String,
        /// Its format version.
        format: u32,
    },
    /// The kubelet or the hardware could not be read when it was made.
    #[error("{0}")]
    Failed(String),
}

impl Recording {
    /// Reads everything once. If something cannot be read, the reason is recorded. If the kubelet has to be
    /// asked for its configuration, that needs the credentials of a `cluster`.
    pub async fn take(settings: &Settings, cluster: Option<&Cluster>) -> Self {
        let mut client = Client::new(settings.socket.clone(), settings.kubelet_timeout);
        let usage = client.list().await;
        let books = StatePaths::new(&settings.kubelet_dir, &settings.device_plugins);
        let (state, state_problems) = read_state(&books);
        let api = usage.as_ref().ok().map(|(_, api, _)| *api);
        let allocatable = client.allocatable().await;
        let recorder = Recorder::new(settings.host.clone());
        // An error occurs again when the recording is evaluated.
        let _ = machine::read(&recorder);
        let (config, config_problems) = match settings.kubelet_config.read(cluster).await {
            Ok(Some((config, problems))) => (Answer::Answer(config), problems),
            Ok(None) => (Answer::Error(UNTOLD.to_owned()), Vec::new()),
            Err(problem) => (Answer::Error(problem), Vec::new()),
        };
        #[allow(clippy::disallowed_methods, reason = "a recording says when it was made")]
        let recorded = jiff::Timestamp::now();
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            recorded,
            node: settings.node.clone(),
            fillers: settings.rules.fillers,
            exclude: settings.rules.exclude.clone(),
            files: recorder.finish(),
            api,
            config,
            config_problems,
            allocatable: Answer::of(allocatable.map(|(allocatable, _)| allocatable)),
            usage: Answer::of(usage.map(|(usage, ..)| usage)),
            state,
            state_problems,
            terminal: BTreeSet::new(),
        }
    }

    /// Returns the rules that the topology was computed with.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules { fillers: self.fillers, exclude: self.exclude.clone() }
    }

    /// Returns the scan that results from these inputs.
    ///
    /// # Errors
    /// When the kubelet or the hardware could not be read.
    pub fn scan(&self) -> Result<Scan, RecordingError> {
        let failed = |sentence: &String| RecordingError::Failed(sentence.clone());
        let usage = Arc::new(self.usage.get().map_err(failed)?.clone());
        let allocatable = self.allocatable.get().map_err(failed)?.clone();
        let machine =
            machine::read(&self.files).map_err(|error| RecordingError::Failed(error.to_string()))?;
        let mut problems: Vec<String> = machine.problems.iter().map(ToString::to_string).collect();
        problems.extend(self.config_problems.iter().cloned());
        let config = match self.config.get() {
            Ok(config) => Some(config.clone()),
            Err(problem) => {
                problems.push(problem_of(problem, false));
                None
            }
        };
        if self.api.is_some_and(|api| api != Api::V1) {
            return Err(RecordingError::Failed(ScanError::DevicesOnly.to_string()));
        }
        let inventory = Arc::new(Inventory { machine: Arc::new(machine), allocatable, config, problems });
        let state = self.state.clone().map(Arc::new);
        let terminal = Arc::new(self.terminal.clone());
        let state_problems = self.state_problems.clone();
        let connection = Connection::default();
        // A recording is not checked for a recently started kubelet.
        let socket_age = Duration::MAX;
        // A recording is read once, so nothing waits for its checkpoints to change.
        let files_tell = false;
        Ok(Scan { usage, inventory, state, state_problems, files_tell, terminal, connection, socket_age })
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// When the file is missing, is not a recording, or is from a newer numacast.
    pub fn read(path: &Path) -> Result<Self, RecordingError> {
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        Self::parse(&text, path)
    }

    /// Parses a recording. `text` is the content of the file at `path`.
    ///
    /// # Errors
    /// When the text is not a recording, or is from a newer numacast.
    pub fn parse(text: &str, path: &Path) -> Result<Self, RecordingError> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let explain = |error: serde_json::Error| unreadable(path, &error);
        let Form { format } = serde_json::from_str(text).map_err(explain)?;
        if format > FORMAT {
            return Err(RecordingError::Format { path: path.display().to_string(), format });
        }
        serde_json::from_str(text).map_err(explain)
    }

    /// Writes the recording as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RecordingError> {
        let explain = |reason: String| {
            let path = path.display().to_string();
            RecordingError::File { verb: "write", path, reason }
        };
        let mut text = serde_json::to_string_pretty(self).map_err(|error| explain(error.to_string()))?;
        text.push('\n');
        std::fs::write(path, text).map_err(|error| explain(error.to_string()))
    }
}

fn unreadable(path: &Path, error: &dyn std::error::Error) -> RecordingError {
    RecordingError::File { verb: "read", path: path.display().to_string(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::{ClaimedDevice, ContainerUsage, PodUsage};

    #[test]
    fn devices_behind_claims_are_recorded() {
        let claimed = ClaimedDevice {
            claim: "ml/train-gpu".into(),
            driver: "gpu.example.com".into(),
            pool: "worker".into(),
            device: "gpu-0".into(),
            share: Some("1".into()),
        };
        let container = ContainerUsage { claimed: vec![claimed], ..ContainerUsage::default() };
        let pods = vec![PodUsage { containers: vec![container], ..PodUsage::default() }];
        let recording = Recording {
            format: FORMAT,
            version: String::new(),
            recorded: jiff::Timestamp::UNIX_EPOCH,
            node: "worker".into(),
            fillers: true,
            files: RecordedFiles::default(),
            api: Some(Api::V1),
            config: Answer::Error("none".into()),
            config_problems: vec![],
            allocatable: Answer::Answer(Allocatable::default()),
            usage: Answer::Answer(Usage { pods }),
            exclude: Exclude::default(),
            state: None,
            state_problems: vec![],
            terminal: BTreeSet::new(),
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        recording.write(file.path()).unwrap();
        assert!(std::fs::read_to_string(file.path()).unwrap().contains(r#""driver": "gpu.example.com""#));
        assert_eq!(Recording::read(file.path()).unwrap(), recording);
    }
}
