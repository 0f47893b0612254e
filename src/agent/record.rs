//! Everything that one scan and `doctor node` read, in one file that can be attached to a bug report; and the scan
//! computed from it.
//!
//! A recording contains the hardware's files verbatim and the kubelet's responses in numacast's own format.
//! Of the kubelet's configuration it contains only what numacast uses: the file itself may contain secrets.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::agent::observe::{Inventory, NodeReader, Scan, ScanError, with_consequence};
use crate::agent::settings::Settings;
use crate::claims::{NodeClaims, claims_of};
use crate::cluster::Cluster;
use crate::kubelet::{Allocatable, Checkpoints, ClientError, KubeletConfig, KubeletInstance, Usage};
use crate::machine::{self, Details, RecordedFiles, Recorder};
use crate::topology::{NodeExclusions, ZoneRules};

const FORMAT: u32 = 1;

const NO_SOURCE: &str = "the kubelet's configuration has no source (`kubelet.configSource: none`)";

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
    #[serde(default, skip_serializing_if = "NodeExclusions::is_empty")]
    pub exclude: NodeExclusions,
    /// The hardware's files: path to content.
    pub files: RecordedFiles,
    /// The kubelet's configuration, as far as numacast uses it.
    pub config: Recorded<KubeletConfig>,
    /// Invalid keys of it.
    #[serde(rename = "configProblems", default, skip_serializing_if = "Vec::is_empty")]
    pub config_errors: Vec<String>,
    /// The response to GetAllocatableResources.
    pub allocatable: Recorded<Allocatable>,
    /// The response to List.
    pub usage: Recorded<Usage>,
    /// The managers' checkpoints, if they could be read.
    #[serde(rename = "state", default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// Errors of the checkpoints.
    #[serde(rename = "stateProblems", default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoint_errors: Vec<String>,
    /// The node's claims, if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<NodeClaims>,
    /// Why they were not read, although pods have some.
    #[serde(rename = "claimsProblem", default, skip_serializing_if = "Option::is_none")]
    pub claims_error: Option<String>,
    /// Terminated pods (namespace, name) in the List, as far as known.
    #[serde(rename = "terminal", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub terminated: BTreeSet<(String, String)>,
}

/// A response, or the error in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Recorded<T> {
    /// The response.
    #[serde(rename = "answer")]
    Response(T),
    /// The error, in one sentence.
    Error(String),
}

impl<T> Recorded<T> {
    fn of<E: ToString>(result: Result<T, E>) -> Self {
        match result {
            Ok(response) => Self::Response(response),
            Err(error) => Self::Error(error.to_string()),
        }
    }

    fn get(&self) -> Result<&T, RecordingError> {
        match self {
            Self::Response(response) => Ok(response),
            Self::Error(error) => Err(RecordingError(error.clone())),
        }
    }

    /// Returns the response, if there is one.
    pub fn response(&self) -> Option<&T> {
        self.get().ok()
    }
}

/// What a recording does not contain: why the kubelet did not respond, and what else only the node tells.
#[derive(Debug, Default)]
pub struct Observed {
    /// Why there is no List.
    pub list_error: Option<ClientError>,
    /// Why it is not known what the kubelet can allocate.
    pub allocatable_error: Option<ClientError>,
    /// A file of the kubelet's configuration that changed after the kubelet started.
    pub changed: Option<PathBuf>,
}

/// Why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RecordingError(String);

impl Recording {
    /// Reads everything once. If something cannot be read, the reason is recorded. If the kubelet's
    /// configuration has to be requested from the kubelet, that needs the credentials of a `cluster`.
    pub async fn take(settings: &Settings, cluster: Option<Cluster>) -> Self {
        Self::observe(settings, cluster).await.0
    }

    /// As [`Recording::take`], with what a recording does not contain.
    pub async fn observe(settings: &Settings, cluster: Option<Cluster>) -> (Self, Observed) {
        let mut reader = NodeReader::new(settings, cluster);
        let usage = reader.kubelet.list().await;
        let checkpoints = reader.checkpoints.read().map(|checkpoints| Checkpoints::clone(checkpoints));
        let allocatable = reader.kubelet.allocatable().await;
        let recorder = Recorder::new(settings.host.clone());
        // An error occurs again when the recording is evaluated.
        if let Ok(machine) = machine::read(&recorder) {
            let _ = machine::read_cpus(&recorder, &machine);
            let _ = Details::read(&recorder, &machine);
        }
        let (config, config_errors) = read_config(&mut reader).await;
        let claims = match &usage {
            Ok((usage, _)) if settings.reads_claims => {
                reader.claims_in_time(usage, settings.kubelet_timeout).await
            }
            _ => Ok(None),
        };
        // Without an API server, but also without claims, nothing is missing.
        let has_claims = usage.as_ref().is_ok_and(|(usage, _)| !claims_of(&usage.pods).is_empty());
        let claims_error = claims.as_ref().err().filter(|_| has_claims).map(ToString::to_string);
        let created = usage.as_ref().ok().and_then(|(_, response)| response.socket.created());
        let observed = Observed {
            list_error: usage.as_ref().err().and_then(client_error),
            allocatable_error: allocatable.as_ref().err().and_then(client_error),
            changed: created.and_then(|created| changed_since(settings, created)),
        };
        #[allow(clippy::disallowed_methods, reason = "a recording says when it was made")]
        let recorded = jiff::Timestamp::now();
        let recording = Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            recorded,
            node: settings.node.clone(),
            fillers: settings.rules.fillers,
            exclude: settings.rules.exclude.clone(),
            files: recorder.finish(),
            config,
            config_errors,
            allocatable: Recorded::of(allocatable.map(|(allocatable, _)| allocatable)),
            usage: Recorded::of(usage.map(|(usage, _)| usage)),
            checkpoints,
            checkpoint_errors: reader.checkpoints.errors().to_vec(),
            claims: claims.ok().flatten(),
            claims_error,
            terminated: BTreeSet::new(),
        };
        (recording, observed)
    }

    /// Returns true if the kubelet's configuration was not to be read.
    #[must_use]
    pub fn has_no_config_source(&self) -> bool {
        matches!(&self.config, Recorded::Error(error) if error == NO_SOURCE)
    }

    /// Returns the rules that the topology was computed with.
    #[must_use]
    pub fn rules(&self) -> ZoneRules {
        ZoneRules { fillers: self.fillers, exclude: self.exclude.clone() }
    }

    /// Returns the scan that results from these inputs.
    ///
    /// # Errors
    /// When the kubelet or the hardware could not be read.
    pub fn scan(&self) -> Result<Scan, RecordingError> {
        let usage = self.usage.get()?.clone();
        let allocatable = self.allocatable.get()?.clone();
        let machine = machine::read(&self.files).map_err(|error| RecordingError(error.to_string()))?;
        let mut config_errors = self.config_errors.clone();
        let lost = |error| format!("{error}; what claims hold looks available");
        config_errors.extend(self.claims_error.as_ref().map(lost));
        let config = match &self.config {
            Recorded::Response(config) => Some(config.clone()),
            Recorded::Error(error) => {
                config_errors.push(with_consequence(error, false));
                None
            }
        };
        Ok(Scan {
            usage: Arc::new(usage),
            inventory: Arc::new(Inventory::new(machine, allocatable, config, config_errors)),
            checkpoints: self.checkpoints.clone().map(Arc::new),
            checkpoint_errors: self.checkpoint_errors.clone(),
            claims: self.claims.clone().map(Arc::new),
            // A recording is read once, so nothing waits for its checkpoints to change.
            has_cpu_checkpoint: false,
            terminated: Arc::new(self.terminated.clone()),
            // A recording is not checked for a recently started kubelet.
            socket_age: Duration::MAX,
            ..Scan::default()
        })
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// When the file is missing, is not a recording, or is from a newer numacast.
    pub fn read(path: &Path) -> Result<Self, RecordingError> {
        let text = std::fs::read_to_string(path).map_err(|error| failed("read", path, &error))?;
        Self::parse(&text, path)
    }

    /// Parses a recording. `text` is the content of the file at `path`.
    ///
    /// # Errors
    /// When the text is not a recording, or is from a newer numacast.
    pub fn parse(text: &str, path: &Path) -> Result<Self, RecordingError> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let explain = |error: serde_json::Error| failed("read", path, &error);
        let Version { format } = serde_json::from_str(text).map_err(explain)?;
        if format > FORMAT {
            return Err(RecordingError(format!(
                "the recording {} has the format {format}; this numacast reads formats up to {FORMAT}",
                path.display()
            )));
        }
        serde_json::from_str(text).map_err(explain)
    }

    /// Writes the recording as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RecordingError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| failed("write", path, &error))?;
        std::fs::write(path, text + "\n").map_err(|error| failed("write", path, &error))
    }
}

fn failed(verb: &str, path: &Path, error: &dyn std::error::Error) -> RecordingError {
    RecordingError(format!("cannot {verb} the recording {}: {error}", path.display()))
}

fn client_error(error: &ScanError) -> Option<ClientError> {
    match error {
        ScanError::Kubelet(error) => Some(error.clone()),
        _ => None,
    }
}

fn changed_since(settings: &Settings, start: SystemTime) -> Option<PathBuf> {
    settings.kubelet_config.used_files()?.changed_since(start)
}

/// Reads the kubelet's configuration, and waits for the kubelet's response if it was requested. Also returns
/// its invalid keys.
async fn read_config(reader: &mut NodeReader) -> (Recorded<KubeletConfig>, Vec<String>) {
    let instance = KubeletInstance::default();
    let mut errors = reader.config.read(instance, None, Instant::now());
    if reader.config.is_requested() {
        reader.config.received().await;
        errors = reader.config.read(instance, None, Instant::now());
    }
    match reader.config.config() {
        Some(config) => (Recorded::Response(config.clone()), errors),
        None => (Recorded::Error(reader.config.error.as_deref().unwrap_or(NO_SOURCE).to_owned()), Vec::new()),
    }
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
            config: Recorded::Error("none".into()),
            config_errors: vec![],
            allocatable: Recorded::Response(Allocatable::default()),
            usage: Recorded::Response(Usage { pods }),
            exclude: NodeExclusions::default(),
            checkpoints: None,
            checkpoint_errors: vec![],
            claims: None,
            claims_error: None,
            terminated: BTreeSet::new(),
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        recording.write(file.path()).unwrap();
        assert!(std::fs::read_to_string(file.path()).unwrap().contains(r#""driver": "gpu.example.com""#));
        assert_eq!(Recording::read(file.path()).unwrap(), recording);
    }
}
