//! What the checks of a node are based on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::agent::{Observed, Recorded, Recording, Settings};
use crate::cluster::Cluster;
use crate::inspect::doctor::Unchecked;
use crate::inspect::{Check, Finding, Mend, shell_word};
use crate::kubelet::{Allocatable, Checkpoints, ClientError, KubeletConfig, Overrides};
use crate::machine::{self, CpuLocation, Details, Id, IdSet, Machine};
use crate::topology::{self, Inputs};

/// Why the kubelet could not be asked.
#[derive(Debug)]
pub(super) enum KubeletError {
    /// Known in full.
    Client(ClientError),
    /// As a recording has it.
    Text(String),
}

impl std::fmt::Display for KubeletError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::Text(error) => f.write_str(error),
        }
    }
}

/// Everything that the checks of a node look at.
#[derive(Debug)]
pub(super) struct NodeFacts {
    node: String,
    pub(super) paths: HostPaths,
    /// The hardware, or why it cannot be read.
    pub(super) machine: Result<Machine, String>,
    pub(super) cpus: BTreeMap<Id, CpuLocation>,
    pub(super) details: Details,
    /// The kubelet's configuration; `None` if it is unknown.
    pub(super) config: Option<KubeletConfig>,
    /// Why it is unknown, unless it was not to be read.
    pub(super) config_error: Option<String>,
    pub(super) config_errors: Vec<String>,
    /// A file of the configuration that changed after the kubelet started.
    pub(super) changed: Option<PathBuf>,
    /// The configuration that the kubelet is known to have started with is `config`.
    pub(super) is_proven: bool,
    /// The configured overrides, and the policies that they replace.
    pub(super) overridden: Option<(Overrides, KubeletConfig)>,
    pub(super) list_error: Option<KubeletError>,
    pub(super) allocatable: Result<Allocatable, KubeletError>,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) checkpoint_errors: Vec<String>,
    /// What the accounting finds.
    pub(super) topology: BTreeSet<topology::Finding>,
    /// Why no inotify instance can be created.
    pub(super) inotify_error: Option<String>,
    /// The `--root-dir` of the kubelet's command line.
    pub(super) root_dir: Option<PathBuf>,
}

impl NodeFacts {
    /// Reads this node.
    pub(super) async fn read(settings: &Settings, cluster: Option<Cluster>) -> Self {
        let (recording, observed) = Recording::observe(settings, cluster).await;
        let Observed { list_error, allocatable_error, changed } = observed;
        let mut facts = Self::of_recording(&recording);
        let files = settings.kubelet_config.used_files();
        facts.paths = HostPaths::of(settings);
        facts.is_proven = list_error.is_none() && changed.is_none() && files.is_some();
        facts.changed = changed;
        facts.inotify_error = inotify::Inotify::init().err().map(|error| error.to_string());
        facts.root_dir = files.and_then(|files| files.root_dir());
        let overrides = &settings.kubelet_config.overrides;
        let read = files.filter(|_| *overrides != Overrides::default()).and_then(|files| files.read().ok());
        facts.overridden = read.map(|(config, _)| (overrides.clone(), config));
        facts.list_error = list_error.map(KubeletError::Client).or(facts.list_error);
        if let Some(error) = allocatable_error {
            facts.allocatable = Err(KubeletError::Client(error));
        }
        facts
    }

    /// Returns what a recording contains of it.
    pub(super) fn of_recording(recording: &Recording) -> Self {
        let machine = machine::read(&recording.files).map_err(|error| error.to_string());
        let (cpus, details) = match &machine {
            Ok(machine) => {
                (machine::read_cpus(&recording.files, machine).0, Details::read(&recording.files, machine))
            }
            Err(_) => Default::default(),
        };
        let config_error = match &recording.config {
            Recorded::Error(error) if !recording.has_no_config_source() => Some(error.clone()),
            _ => None,
        };
        Self {
            node: recording.node.clone(),
            paths: HostPaths::default(),
            topology: machine.as_ref().map(|machine| account(recording, machine)).unwrap_or_default(),
            machine,
            cpus,
            details,
            config: recording.config.response().cloned(),
            config_error,
            config_errors: recording.config_errors.clone(),
            changed: None,
            is_proven: false,
            overridden: None,
            list_error: error_of(&recording.usage),
            allocatable: match (&recording.allocatable, error_of(&recording.allocatable)) {
                (Recorded::Response(allocatable), _) => Ok(allocatable.clone()),
                (_, error) => Err(error.unwrap_or(KubeletError::Text(String::new()))),
            },
            checkpoints: recording.checkpoints.clone(),
            checkpoint_errors: recording.checkpoint_errors.clone(),
            inotify_error: None,
            root_dir: None,
        }
    }

    /// Returns a finding about this node.
    pub(super) fn finding(&self, check: &'static Check, what: impl Into<String>, mend: Mend) -> Finding {
        check.finding(format!("Node {}", self.node), what, mend)
    }

    /// Returns the node's name.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Returns machine and configuration, if both are known.
    pub(super) fn machine_and_config(&self) -> Option<(&Machine, &KubeletConfig)> {
        Some((self.machine.as_ref().ok()?, self.config.as_ref()?))
    }

    /// Returns the configuration, if it is known, unless the kubelet is known to run with it: then it accepts it.
    pub(super) fn unproven_config(&self) -> Option<&KubeletConfig> {
        self.config.as_ref().filter(|_| !self.is_proven)
    }

    /// Returns the CPUs that are reserved for the system, as far as they are known.
    pub(super) fn reserved_cpus(&self) -> IdSet {
        let (Ok(machine), Some(config)) = (&self.machine, &self.config) else { return IdSet::new() };
        if !config.reserved_system_cpus.is_empty() {
            return config.reserved_system_cpus.clone();
        }
        match &self.allocatable {
            Ok(allocatable) if !allocatable.cpus.is_empty() => online(machine).difference(&allocatable.cpus),
            _ => IdSet::new(),
        }
    }

    /// Returns the online CPUs of a CPU's core, itself included.
    pub(super) fn core_of(&self, cpu: Id) -> IdSet {
        let core = self.cpus.get(&cpu).map(|location| location.core);
        let siblings = self.cpus.iter().filter(|(_, location)| Some(location.core) == core);
        siblings.map(|(cpu, _)| *cpu).chain([cpu]).collect()
    }

    /// Returns how to set a key of the kubelet's configuration.
    pub(super) fn set(&self, setting: &str) -> Mend {
        Mend::Do(format!("Set `{setting}` in {}, and restart the kubelet.", self.paths.config()))
    }

    /// Returns how to start the kubelet without checkpoints, which it writes anew.
    pub(super) fn start_without(&self, checkpoints: &[&Path]) -> Mend {
        let files: Vec<String> = checkpoints.iter().map(|path| shell_word(&path.to_string_lossy())).collect();
        Mend::Run(format!("systemctl stop kubelet && rm -f {} && systemctl start kubelet", files.join(" ")))
    }

    /// Returns what could not be checked.
    pub(super) fn unchecked(&self) -> Vec<Unchecked> {
        let of = |what: &str, reason: String| Unchecked {
            what: what.to_owned(),
            reason,
            needs: None,
            essential: false,
        };
        let mut unchecked = Vec::new();
        if self.config.is_none() && self.config_error.is_none() {
            unchecked.push(of("the kubelet's configuration", "kubelet.configSource is none".to_owned()));
        }
        // A kubelet has the CPU Manager's under every policy.
        let is_missing =
            self.checkpoints.as_ref().is_none_or(|checkpoints| checkpoints.policies.cpu.is_empty());
        if is_missing && self.checkpoint_errors.is_empty() {
            let dir = self.paths.kubelet_dir.display();
            unchecked.push(of(
                "the checkpoints of the kubelet's managers",
                format!("{dir} has none, or is not mounted"),
            ));
        }
        let denied = self.checkpoint_errors.iter().filter(|error| is_denied(error));
        unchecked.extend(denied.map(|error| of("a checkpoint", error.clone())));
        unchecked
    }
}

/// Returns true for an error of the operating system that concerns this process only.
pub(super) fn is_denied(error: &str) -> bool {
    error.contains("(os error 13)") || error.contains("(os error 1)")
}

/// Returns the online CPUs.
pub(super) fn online(machine: &Machine) -> IdSet {
    machine.nodes.iter().flat_map(|node| node.cpus.iter()).collect()
}

fn error_of<T>(recorded: &Recorded<T>) -> Option<KubeletError> {
    match recorded {
        Recorded::Response(_) => None,
        Recorded::Error(error) => Some(KubeletError::Text(error.clone())),
    }
}

fn account(recording: &Recording, machine: &Machine) -> BTreeSet<topology::Finding> {
    let (Some(usage), Some(allocatable)) = (recording.usage.response(), recording.allocatable.response())
    else {
        return BTreeSet::new();
    };
    let inputs = Inputs {
        machine,
        allocatable,
        usage,
        terminated: &recording.terminated,
        claims: recording.claims.as_ref(),
        checkpoints: recording.checkpoints.as_ref(),
        config: recording.config.response(),
        policies: None,
        remembered: &BTreeSet::new(),
        rules: &recording.rules(),
    };
    topology::account(&inputs).findings
}

/// The paths of the node's files, as on the node itself where that is known.
#[derive(Debug)]
pub(super) struct HostPaths {
    sys: PathBuf,
    proc: PathBuf,
    pub(super) kubelet_dir: PathBuf,
    device_plugins: PathBuf,
    pub(super) socket: PathBuf,
    config: Option<PathBuf>,
}

impl Default for HostPaths {
    fn default() -> Self {
        let kubelet_dir = PathBuf::from("/var/lib/kubelet");
        Self {
            sys: "/sys".into(),
            proc: "/proc".into(),
            device_plugins: kubelet_dir.join("device-plugins"),
            socket: kubelet_dir.join("pod-resources/kubelet.sock"),
            config: None,
            kubelet_dir,
        }
    }
}

impl HostPaths {
    fn of(settings: &Settings) -> Self {
        let files = &settings.kubelet_config.files;
        let on_node = |path: &Path| match path.strip_prefix(&files.host_root) {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => path.to_owned(),
        };
        Self {
            sys: on_node(&settings.host.sys),
            proc: on_node(&settings.host.proc),
            kubelet_dir: on_node(&settings.kubelet_dir),
            device_plugins: on_node(&settings.device_plugins),
            socket: on_node(&settings.socket),
            config: settings
                .kubelet_config
                .used_files()
                .and_then(|files| files.located())
                .as_deref()
                .map(on_node),
        }
    }

    /// Returns the path of a file below `sys/` or `proc/` as a word of a shell.
    pub(super) fn word(&self, file: &str) -> String {
        let path = match file.split_once('/') {
            Some(("proc", rest)) => self.proc.join(rest),
            Some((_, rest)) => self.sys.join(rest),
            None => self.sys.join(file),
        };
        shell_word(&path.to_string_lossy())
    }

    pub(super) fn cpu_checkpoint(&self) -> PathBuf {
        self.kubelet_dir.join("cpu_manager_state")
    }

    pub(super) fn memory_checkpoint(&self) -> PathBuf {
        self.kubelet_dir.join("memory_manager_state")
    }

    pub(super) fn device_checkpoint(&self) -> PathBuf {
        self.device_plugins.join("kubelet_internal_checkpoint")
    }

    /// Returns the kubelet's configuration file, or what to call it.
    pub(super) fn config(&self) -> String {
        match &self.config {
            Some(file) => file.display().to_string(),
            None => "the kubelet's configuration".to_owned(),
        }
    }
}
