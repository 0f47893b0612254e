//! Defaults, file, environment and flags, merged key by key.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Config, DOCS};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not set.
    Default,
    /// Not set, but derived from another key.
    Derived,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(&'static str),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived => f.write_str("derived"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// An error in a configuration. Each message is one sentence with the location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: String,
    },
    /// The file is not a YAML mapping.
    #[error("the configuration {} is no YAML mapping: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        reason: String,
    },
    /// A key that does not exist.
    #[error("unknown key `{key}` in {origin}{}", suggest(.suggestion.as_deref()))]
    UnknownKey {
        /// The key, from the root.
        key: String,
        /// The layer that contains it.
        origin: String,
        /// The most similar existing key.
        suggestion: Option<String>,
    },
    /// An invalid value.
    #[error("`{key}` in {origin}: {reason}")]
    BadValue {
        /// The key, from the root.
        key: String,
        /// The layer that contains it.
        origin: String,
        /// Why it is invalid.
        reason: String,
    },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(
        || "; `numacast config defaults` lists the keys".to_owned(),
        |key| format!("; did you mean `{key}`?"),
    )
}

/// A merged configuration and where each of its values came from.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The values, including derived ones.
    pub config: Config,
    /// Key, value and origin, in the order of [`DOCS`].
    pub values: Vec<(&'static str, Value, Origin)>,
}

/// Collects the layers; the later one wins.
#[derive(Debug, Default)]
pub struct Layers {
    set: BTreeMap<String, (Value, Origin)>,
    errors: Vec<ConfigError>,
}

impl Layers {
    /// Adds a YAML file.
    #[must_use]
    pub fn file(mut self, path: &Path) -> Self {
        match std::fs::read_to_string(path) {
            Ok(text) => self.text(&text, path),
            Err(error) => {
                let reason = error.to_string();
                self.errors.push(ConfigError::Unreadable { path: path.to_owned(), reason });
                self
            }
        }
    }

    /// Adds the text of the YAML file at `path`.
    #[must_use]
    pub fn text(mut self, text: &str, path: &Path) -> Self {
        match parse(text) {
            Ok(value) => self.walk(&value, "", &Origin::File(path.to_owned())),
            Err(reason) => self.errors.push(ConfigError::Malformed { path: path.to_owned(), reason }),
        }
        self
    }

    /// Adds one value, if there is one.
    #[must_use]
    pub fn value(mut self, key: &str, value: Option<impl Into<Value>>, origin: Origin) -> Self {
        if let Some(value) = value {
            self.leaf(key, value.into(), origin);
        }
        self
    }

    /// Adds one value as typed on a command line: maps and lists as YAML (of which JSON is a subset),
    /// booleans, and everything else as text.
    #[must_use]
    pub fn typed(mut self, key: &str, text: &str, origin: Origin) -> Self {
        let structured = is_structured(key).then(|| serde_saphyr::from_str::<Value>(text));
        match (structured, text) {
            (Some(Err(error)), _) => self.errors.push(ConfigError::BadValue {
                key: key.to_owned(),
                origin: origin.to_string(),
                reason: format!("this is no YAML: {}", yaml_problem(&error)),
            }),
            (Some(Ok(value)), _) => self.leaf(key, value, origin),
            (None, "true" | "false") => self.leaf(key, Value::Bool(text == "true"), origin),
            (None, text) => self.leaf(key, text.into(), origin),
        }
        self
    }

    /// Merges the layers.
    ///
    /// # Errors
    /// All errors in all layers.
    pub fn finish(mut self) -> Result<Effective, Vec<ConfigError>> {
        let mut tree = defaults();
        for (key, (value, origin)) in &self.set {
            if let Err(error) = try_value(key, value, origin) {
                self.errors.push(error);
            }
            *slot(&mut tree, key) = value.clone();
        }
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let config: Config = serde_json::from_value(tree).map_err(|error| {
            // Each value was checked on its own above, so the error concerns a combination.
            vec![ConfigError::BadValue {
                key: "configuration".into(),
                origin: "all layers".into(),
                reason: error.to_string(),
            }]
        })?;
        let config = config.resolved();
        let conflicts = config.conflicts();
        if !conflicts.is_empty() {
            return Err(conflicts.into_iter().map(|(key, reason)| self.conflict(key, reason)).collect());
        }
        let values = self.values(&config);
        Ok(Effective { config, values })
    }

    fn conflict(&self, key: &str, reason: &str) -> ConfigError {
        let origin = self.set.get(key).map_or(&Origin::Default, |(_, origin)| origin);
        ConfigError::BadValue { key: key.to_owned(), origin: origin.to_string(), reason: reason.to_owned() }
    }

    fn values(&self, config: &Config) -> Vec<(&'static str, Value, Origin)> {
        let mut resolved = serde_json::to_value(config).unwrap_or_default();
        let mut defaults = defaults();
        DOCS.iter()
            .map(|(key, _)| {
                let value = slot(&mut resolved, key).clone();
                let origin = match self.set.get(*key) {
                    Some((_, origin)) => origin.clone(),
                    None if *slot(&mut defaults, key) == value => Origin::Default,
                    None => Origin::Derived,
                };
                (*key, value, origin)
            })
            .collect()
    }

    fn walk(&mut self, value: &Value, prefix: &str, origin: &Origin) {
        let Value::Object(entries) = value else { return };
        for (name, value) in entries {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let is_section = DOCS.iter().any(|(known, _)| known.starts_with(&format!("{key}.")));
            match value {
                Value::Object(_) if is_section => self.walk(value, &key, origin),
                // `log:` with nothing below it sets nothing, nor does an empty map or list.
                Value::Null if is_section || is_structured(&key) => {}
                _ if is_section => self.errors.push(ConfigError::BadValue {
                    key,
                    origin: origin.to_string(),
                    reason: "this is a section; its keys go below it".into(),
                }),
                _ => self.leaf(&key, value.clone(), origin.clone()),
            }
        }
    }

    fn leaf(&mut self, key: &str, value: Value, origin: Origin) {
        if DOCS.iter().any(|(known, _)| *known == key) {
            self.set.insert(key.to_owned(), (value, origin));
            return;
        }
        self.errors.push(unknown(key, origin.to_string()));
    }
}

/// Returns the error for an unknown key, with the key that was probably meant.
pub(super) fn unknown(key: &str, origin: String) -> ConfigError {
    ConfigError::UnknownKey { key: key.to_owned(), origin, suggestion: nearest(key) }
}

fn parse(text: &str) -> Result<Value, String> {
    match serde_saphyr::from_str(text).map_err(|error| yaml_problem(&error))? {
        value @ (Value::Object(_) | Value::Null) => Ok(value),
        other => Err(format!("it holds {other}")),
    }
}

fn yaml_problem(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    // NFD's example configuration has this mistake.
    let hint = if line.contains("unknown anchor") { "; a `*` needs quotes: \"*\"" } else { "" };
    format!("{line}{hint}")
}

/// Returns the default of `key`; null if it is derived from other keys.
pub(super) fn default(key: &str) -> Value {
    slot(&mut defaults(), key).clone()
}

/// Returns true if the value of `key` is a map or a list.
fn is_structured(key: &str) -> bool {
    let known = DOCS.iter().any(|(name, _)| *name == key);
    known && matches!(default(key), Value::Object(_) | Value::Array(_))
}

fn defaults() -> Value {
    serde_json::to_value(Config::default()).unwrap_or_default()
}

/// Returns the value at `key`, which exists in every tree made from [`Config`].
fn slot<'a>(tree: &'a mut Value, key: &str) -> &'a mut Value {
    key.split('.').fold(tree, |node, name| &mut node[name])
}

/// Checks a value on its own, with defaults for all other keys.
fn try_value(key: &str, value: &Value, origin: &Origin) -> Result<(), ConfigError> {
    let mut tree = defaults();
    *slot(&mut tree, key) = value.clone();
    serde_json::from_value::<Config>(tree).map(drop).map_err(|error| ConfigError::BadValue {
        key: key.to_owned(),
        origin: origin.to_string(),
        reason: error.to_string(),
    })
}

/// The names of these keys in NFD and RTE.
const ALIASES: [(&str, &str); 10] = [
    ("configfile", "kubelet.config.file"),
    ("kubeletconfigfile", "kubelet.config.file"),
    ("excludelist", "exclude.resources"),
    ("resourceexclude", "exclude.resources"),
    ("podexclude", "exclude.pods"),
    ("podexcludes", "exclude.pods"),
    ("namespace", "exclude.outsideNamespace"),
    ("watchnamespace", "exclude.outsideNamespace"),
    ("sleepinterval", "scan.poll"),
    ("podresourcessocketpath", "kubelet.socket"),
];

/// Returns the existing key that was probably meant: the most similar by its full path or by its last part,
/// or the one for a name used in NFD or RTE.
fn nearest(key: &str) -> Option<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_lowercase();
    let plain = last(key).replace('-', "");
    if let Some((_, known)) = ALIASES.iter().find(|(alias, _)| *alias == plain) {
        return Some((*known).to_owned());
    }
    let score = |known: &str| {
        let whole = strsim::jaro_winkler(&known.to_lowercase(), &key.to_lowercase());
        whole.max(strsim::jaro_winkler(&last(known), &last(key)) * 0.95)
    };
    let best = DOCS.iter().map(|(known, _)| (score(known), *known)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.8).then(|| best.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(yaml: &str) -> Result<Effective, Vec<String>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), yaml).unwrap();
        let place = file.path().display().to_string();
        let plain = |errors: Vec<ConfigError>| {
            errors.iter().map(|error| error.to_string().replace(&place, "FILE")).collect()
        };
        Layers::default().file(file.path()).finish().map_err(plain)
    }

    #[test]
    fn every_key_is_documented_once_and_only_keys_are() {
        fn leaves(value: &Value, prefix: &str, found: &mut Vec<String>) {
            match value {
                Value::Object(entries) if !entries.is_empty() => {
                    for (name, value) in entries {
                        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                        leaves(value, &key, found);
                    }
                }
                _ => found.push(prefix.to_owned()),
            }
        }
        let mut found = Vec::new();
        leaves(&defaults(), "", &mut found);
        found.sort();
        let mut documented: Vec<String> = DOCS.iter().map(|(key, _)| (*key).to_owned()).collect();
        documented.sort();
        assert_eq!(found, documented);
    }

    #[test]
    fn the_later_layer_wins_and_every_value_knows_its_origin() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "nodeName: from-file\nscan: {poll: 1s}\nkubelet: {dir: /k}\n").unwrap();
        let effective = Layers::default()
            .file(file.path())
            .value("nodeName", Some("from-env"), Origin::Environment("NODE_NAME"))
            .value("scan.poll", Some("2s"), Origin::Flag("--poll".into()))
            .value("log.level", None::<String>, Origin::Flag("--log-level".into()))
            .finish()
            .unwrap();
        assert_eq!(effective.config.node_name, "from-env");
        assert_eq!(effective.config.scan.poll, "2s".parse().unwrap());
        let origin = |key: &str| {
            let found = effective.values.iter().find(|(name, ..)| *name == key).unwrap();
            (found.1.clone(), found.2.to_string())
        };
        assert_eq!(origin("nodeName"), ("from-env".into(), "environment NODE_NAME".into()));
        assert_eq!(origin("scan.poll"), ("2s".into(), "flag --poll".into()));
        assert_eq!(origin("kubelet.dir"), ("/k".into(), format!("file {}", file.path().display())));
        assert_eq!(origin("kubelet.socket"), ("/k/pod-resources/kubelet.sock".into(), "derived".into()));
        assert_eq!(origin("log.level"), ("info".into(), "default".into()));
    }

    #[test]
    fn an_unknown_key_fails_with_a_suggestion() {
        let errors = file("kubelet: {sokcet: /x}\nnodename: a\npoll: 1s\nxyzzy: 1\n").unwrap_err();
        assert_eq!(
            errors,
            [
                "unknown key `kubelet.sokcet` in file FILE; did you mean `kubelet.socket`?",
                "unknown key `nodename` in file FILE; did you mean `nodeName`?",
                "unknown key `poll` in file FILE; did you mean `scan.poll`?",
                "unknown key `xyzzy` in file FILE; `numacast config defaults` lists the keys",
            ]
        );
    }

    #[test]
    fn a_value_that_makes_no_sense_names_its_key() {
        let errors = file("scan: {poll: soon}\nlog: {level: loud}\nzones: 3\npublish: {ownerReference: 1}\n");
        assert_eq!(
            errors.unwrap_err(),
            [
                "`zones` in file FILE: this is a section; its keys go below it",
                "`log.level` in file FILE: unknown variant `loud`, expected one of `error`, `warn`, `info`, `debug`, `trace`",
                "`publish.ownerReference` in file FILE: invalid type: integer `1`, expected a boolean",
                "`scan.poll` in file FILE: `soon` is no length of time such as 500ms, 10s or 5m",
            ]
        );
    }

    #[test]
    fn metrics_are_switched_off_by_a_word_that_yaml_leaves_alone() {
        let nowhere = file("metrics: {address: none}").unwrap().config.metrics.address;
        assert_eq!(nowhere, super::super::Endpoint::Nowhere);
        for (value, name) in [("off", "boolean `false`"), ("9742", "integer `9742`")] {
            let expected = "expected an IP address with a port, such as 127.0.0.1:9742, a port such as \":9742\", or none";
            assert_eq!(
                file(&format!("metrics: {{address: {value}}}")).unwrap_err(),
                [format!("`metrics.address` in file FILE: invalid type: {name}, {expected}")]
            );
        }
    }

    #[test]
    fn tls_needs_a_certificate_and_its_key_and_an_address_without_probes() {
        let (cert, key) = ("certFile: /c", "keyFile: /k");
        let refused = |tls: &str| file(&format!("metrics: {{tls: {{{tls}}}}}")).unwrap_err();
        let needs = |key: &str, others: &str| {
            [format!("`metrics.tls.{key}` in file FILE: TLS needs {others} as well")]
        };
        assert_eq!(refused(cert), needs("certFile", "`metrics.tls.keyFile`"));
        assert_eq!(refused(key), needs("keyFile", "`metrics.tls.certFile`"));
        let both = "`metrics.tls.certFile` and `metrics.tls.keyFile`";
        assert_eq!(refused("clientCaFile: /ca"), needs("clientCaFile", both));
        let shared = |tls: &str| {
            file(&format!("metrics: {{address: '[::1]:1', tls: {{{tls}}}}}\nhealth: {{address: '[::1]:1'}}"))
        };
        assert_eq!(
            shared(&format!("{cert}, {key}")).unwrap_err(),
            [
                "`health.address` in file FILE: health is plain HTTP and cannot share the address of metrics with TLS; \
              choose another one, or none"
            ]
        );
        assert!(shared("").is_ok());
        assert!(file(&format!("metrics: {{tls: {{{cert}, {key}, clientCaFile: /ca}}}}")).is_ok());
    }

    #[test]
    fn the_names_that_nfd_and_rte_use_lead_to_ours() {
        let peers = "excludeList: {'*': [cpu]}\nresourceExclude: {a: [cpu]}\nwatch-namespace: x\n\
                     podExclude: [{namespacePattern: a, namePattern: b}]\nresourceMonitor.namespace: x\n";
        let mut suggested: Vec<(String, String)> = Vec::new();
        for error in file(peers).unwrap_err() {
            let (start, suggestion) = error.split_once("; did you mean ").unwrap();
            let key = start.strip_prefix("unknown key ").unwrap().split(' ').next().unwrap();
            suggested.push((key.to_owned(), suggestion.to_owned()));
        }
        suggested.sort();
        let expected = [
            ("`excludeList`", "`exclude.resources`?"),
            ("`podExclude`", "`exclude.pods`?"),
            ("`resourceExclude`", "`exclude.resources`?"),
            ("`resourceMonitor.namespace`", "`exclude.outsideNamespace`?"),
            ("`watch-namespace`", "`exclude.outsideNamespace`?"),
        ];
        assert_eq!(suggested, expected.map(|(key, ours)| (key.to_owned(), ours.to_owned())));
        for (alias, known) in ALIASES {
            assert!(DOCS.iter().any(|(key, _)| *key == known), "{alias}");
        }
    }

    #[test]
    fn maps_and_lists_flow_through_the_layers_whole() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let text = "exclude:\n  resources: {'*': [cpu], a: [memory]}\n  pods:\n  - name: x-*\n";
        std::fs::write(place.path(), text).unwrap();
        let flag = || Origin::Flag("--set".to_owned());
        let layers = || Layers::default().file(place.path());
        let exclude = layers().finish().unwrap().config.exclude;
        assert_eq!(exclude.resources_of("a").collect::<Vec<_>>(), ["cpu", "memory"]);
        assert_eq!(exclude.pods[0].to_string(), "*/x-*");
        let effective = layers().typed("exclude.resources", r#"{"b": ["memory"]}"#, flag()).finish().unwrap();
        let exclude = &effective.config.exclude;
        assert_eq!(exclude.resources.keys().collect::<Vec<_>>(), ["b"], "replaced, not merged");
        assert_eq!(exclude.pods.len(), 1);
        let (_, value, origin) =
            effective.values.iter().find(|(key, ..)| *key == "exclude.resources").unwrap();
        assert_eq!((value.to_string(), origin), (r#"{"b":["memory"]}"#.to_owned(), &flag()));
        let cleared = layers().typed("exclude.pods", "[]", flag()).finish().unwrap();
        assert!(cleared.config.exclude.pods.is_empty());
    }

    #[test]
    fn a_typed_value_has_the_type_of_its_key() {
        let typed = |key: &str, text: &str| {
            let effective = Layers::default().typed(key, text, Origin::Flag("--set".into())).finish();
            effective.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        };
        assert!(!typed("zones.fillers", "false").unwrap().config.zones.fillers);
        assert_eq!(typed("nodeName", "{a").unwrap().config.node_name, "{a");
        let error = typed("exclude.pods", "[{name: x}").unwrap_err();
        assert!(error.starts_with("`exclude.pods` in flag --set: this is no YAML: "), "{error}");
        let error = typed("exclude.resources", "cpu").unwrap_err();
        assert!(error.starts_with("`exclude.resources` in flag --set: invalid type: string"), "{error}");
        let error = typed("exclude.pods", "[{name: 'x['}]").unwrap_err();
        assert!(error.starts_with("`exclude.pods` in flag --set: `x[` is no pattern: a class"), "{error}");
    }

    #[test]
    fn an_empty_file_sets_nothing_and_a_broken_one_says_so() {
        assert_eq!(file("# nothing\n").unwrap().config, Config::default().resolved());
        assert_eq!(file("log:\n").unwrap().config, Config::default().resolved());
        assert_eq!(file("exclude:\n  pods:\n  resources:\n").unwrap().config, Config::default().resolved());
        let errors = file("exclude: {resources: {*: [cpu]}}\n").unwrap_err();
        assert!(errors[0].ends_with("; a `*` needs quotes: \"*\""), "{errors:?}");
        let errors = file("- a\n").unwrap_err();
        assert!(errors[0].starts_with("the configuration FILE is no YAML mapping"), "{errors:?}");
        let errors = Layers::default().file(Path::new("/nowhere.yaml")).finish().unwrap_err();
        assert!(
            errors[0].to_string().starts_with("cannot read the configuration /nowhere.yaml: No such file")
        );
    }
}
