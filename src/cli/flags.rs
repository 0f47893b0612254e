//! Flags that set keys of the configuration, with the keys' own texts as their help, and merging them with
//! the other layers.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, value_parser};
use clap_complete::engine::ArgValueCompleter;

use super::completion::{namespace_completer, node_name_completer};
use crate::config::{Config, Effective, Layers, Origin, summary};

#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// Its name, without dashes.
    name: &'static str,
    short: Option<char>,
    completer: Option<fn() -> ArgValueCompleter>,
    /// The placeholder of its value.
    value: &'static str,
    sets: Sets,
}

#[derive(Clone, Copy, Debug)]
enum Sets {
    /// A key, or an entry of a key that is a map.
    Key(&'static str),
    /// A field that is no key; with its help.
    Field(&'static str, fn(&mut Config, String)),
}

pub(super) const NODE_NAME: Flag = Flag {
    name: "node-name",
    short: None,
    completer: Some(node_name_completer),
    value: "NAME",
    sets: Sets::Field("The node's name in the cluster [environment: NODE_NAME]", |config, name| {
        config.node_name = name;
    }),
};
pub(super) const NAMESPACE: Flag = Flag {
    name: "namespace",
    short: Some('n'),
    completer: Some(namespace_completer),
    value: "NAMESPACE",
    sets: Sets::Field(
        "The namespace of the DaemonSets and the Lease [environment: POD_NAMESPACE]",
        |config, name| config.controller.namespace = name,
    ),
};
pub(super) const KUBECONFIG: Flag = Flag {
    name: "kubeconfig",
    short: None,
    completer: None,
    value: "FILE",
    sets: Sets::Field(
        "A kubeconfig file. Default: $KUBECONFIG, ~/.kube/config or the pod's service account",
        |config, file| config.kubeconfig = Some(file.into()),
    ),
};
pub(super) const HOST_ROOT: Flag = Flag::key("host-root", "DIR", "host.root");
pub(super) const SYS_DIR: Flag = Flag::key("sys-dir", "DIR", "host.sys");
pub(super) const PROC_DIR: Flag = Flag::key("proc-dir", "DIR", "host.proc");
pub(super) const KUBELET_DIR: Flag = Flag::key("kubelet-dir", "DIR", "kubelet.dir");
pub(super) const KUBELET_SOCKET: Flag = Flag::key("kubelet-socket", "SOCKET", "kubelet.socket");

/// Returns what separates errors that a command prints: each has its own line.
pub(super) fn lines() -> String {
    format!("\n{}: ", super::program::name())
}

const LOG_LEVEL: Flag = Flag::key("log-level", "LEVEL", "log.level");
const LOG_FORMAT: Flag = Flag::key("log-format", "FORMAT", "log.format");

/// The flags of every command that keeps running.
pub(super) const TELEMETRY: &[Flag] = &[
    LOG_LEVEL,
    LOG_FORMAT,
    Flag::key("metrics-address", "ADDRESS:PORT", "metrics.address"),
    Flag::key("health-address", "ADDRESS:PORT", "health.address"),
];

impl Flag {
    pub(super) const fn key(name: &'static str, value: &'static str, key: &'static str) -> Self {
        Self { name, short: None, completer: None, value, sets: Sets::Key(key) }
    }

    fn help(&self) -> String {
        match self.sets {
            Sets::Field(help, _) => help.to_owned(),
            Sets::Key(key) => match (summary(key), key.rsplit_once('.')) {
                ("", Some((map, entry))) => format!("{entry} of {map} [key: {map}]"),
                (summary, _) => format!("{summary} [key: {key}]"),
            },
        }
    }

    fn arg(&self) -> Arg {
        let arg = Arg::new(self.name).long(self.name).short(self.short);
        let arg = arg.value_name(self.value).help(self.help());
        match self.completer {
            Some(completer) => arg.add(completer()),
            None => arg,
        }
    }
}

pub(super) trait Flags: Clone + Debug + Send + Sync + 'static {
    /// The flags, in the order of the help.
    const FLAGS: &'static [&'static [Flag]];
}

/// The flags of `agent`, `snapshot` and `config show`.
#[derive(Clone, Debug)]
pub(super) struct AgentFlags;

impl Flags for AgentFlags {
    const FLAGS: &'static [&'static [Flag]] = &[
        &[
            NODE_NAME,
            HOST_ROOT,
            SYS_DIR,
            PROC_DIR,
            KUBELET_DIR,
            KUBELET_SOCKET,
            Flag::key("kubelet-config", "FILE", "kubelet.configFile"),
            Flag::key("kubelet-config-source", "SOURCE", "kubelet.configSource"),
            Flag::key("topology-manager-policy", "POLICY", "kubelet.configOverrides.topologyManagerPolicy"),
            Flag::key("topology-manager-scope", "SCOPE", "kubelet.configOverrides.topologyManagerScope"),
            KUBECONFIG,
            Flag::key("poll", "TIME", "scan.poll"),
            Flag::key("notify-file", "FILE", "scan.notifyFile"),
        ],
        TELEMETRY,
    ];
}

/// The flags of `purge` and `wait`.
#[derive(Clone, Debug)]
pub(super) struct OneOffFlags;

impl Flags for OneOffFlags {
    const FLAGS: &'static [&'static [Flag]] = &[&[NAMESPACE, LOG_LEVEL, LOG_FORMAT]];
}

/// The part of the command line that sets the configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) file: Option<PathBuf>,
    flags: Vec<(&'static Flag, String)>,
    /// Any keys, as `KEY=VALUE`.
    set: Vec<String>,
}

/// The arguments that set keys of the configuration. `numacast config explain` explains every key.
#[derive(Clone, Debug)]
pub(super) struct ConfigArgs<F> {
    pub(super) given: Given,
    flags: PhantomData<F>,
}

impl<F: Flags> FromArgMatches for ConfigArgs<F> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |flag: &'static Flag| Some((flag, matches.get_one::<String>(flag.name)?.clone()));
        let given = Given {
            file: matches.get_one::<PathBuf>("config").cloned(),
            flags: F::FLAGS.iter().copied().flatten().filter_map(value).collect(),
            set: matches.get_many::<String>("set").into_iter().flatten().cloned().collect(),
        };
        Ok(Self { given, flags: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<F: Flags> clap::Args for ConfigArgs<F> {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("A configuration file (YAML); flags and the environment override it");
        let set =
            Arg::new("set").long("set").value_name("KEY=VALUE").action(ArgAction::Append).help(
                "Any key of the configuration, e.g. --set scan.poll=2s; maps and lists in YAML or JSON",
            );
        let flags = F::FLAGS.iter().copied().flatten().map(Flag::arg);
        command.next_help_heading("Configuration").arg(file).args(flags).arg(set)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl Given {
    /// Merges defaults, file, environment and flags.
    pub(super) fn effective(&self) -> anyhow::Result<Effective> {
        let mut effective = finish(self.layers(None)?, &lines())?;
        self.set_fields(&mut effective.config);
        Ok(effective)
    }

    /// Returns the layers. `text` is the file's contents, if they were already read.
    pub(super) fn layers(&self, text: Option<&str>) -> anyhow::Result<Layers> {
        let mut layers = match (&self.file, text) {
            (Some(file), Some(text)) => Layers::default().text(text, file),
            (Some(file), None) => Layers::default().file(file),
            (None, _) => Layers::default(),
        };
        if let Some(address) = variable("NODE_ADDRESS") {
            layers = layers.typed("kubelet.address", &address, Origin::Environment("NODE_ADDRESS"));
        }
        for (flag, value) in &self.flags {
            if let Sets::Key(key) = flag.sets {
                layers = layers.typed(key, value, Origin::Flag(format!("--{}", flag.name)));
            }
        }
        for assignment in &self.set {
            let Some((key, value)) = assignment.split_once('=') else {
                return Err(anyhow!("--set {assignment}: write KEY=VALUE, e.g. --set scan.poll=2s"));
            };
            layers = layers.typed(key, value, Origin::Flag("--set".to_owned()));
        }
        Ok(layers)
    }

    fn set_fields(&self, config: &mut Config) {
        config.node_name = variable("NODE_NAME").unwrap_or_default();
        config.controller.namespace = variable("POD_NAMESPACE").unwrap_or_default();
        for (flag, value) in &self.flags {
            if let Sets::Field(_, set) = flag.sets {
                set(config, value.clone());
            }
        }
    }
}

/// Returns an environment variable that is not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Merges the layers; the error has all problems, with this separator.
pub(super) fn finish(layers: Layers, separator: &str) -> anyhow::Result<Effective> {
    layers.finish().map_err(|errors| {
        let sentences: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow!(sentences.join(separator))
    })
}
