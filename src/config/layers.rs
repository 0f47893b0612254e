//! Defaults, file, environment and flags, merged key by key.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Config;
use super::error::ConfigError;
use super::keys::{Key, defaults, is_former_section, key, keys, unknown};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Not set.
    Default,
    /// Not set, but follows from another key.
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

/// A merged configuration and where each of its values came from.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The configuration.
    pub config: Config,
    /// All keys, in the order of [`keys`], with values that follow from other keys.
    pub values: Vec<Shown>,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The key.
    pub key: &'static Key,
    /// Its value.
    pub value: Value,
    /// Where the value came from.
    pub origin: Origin,
}

/// Collects the layers; the later one wins.
#[derive(Debug, Default)]
pub struct Layers {
    set: BTreeMap<String, (Value, Origin)>,
    errors: Vec<ConfigError>,
}

impl Layers {
    /// Adds a YAML file.
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
    pub fn text(mut self, text: &str, path: &Path) -> Self {
        match parse(text) {
            Ok(value) => self.walk(&value, "", &Origin::File(path.to_owned())),
            Err(reason) => self.errors.push(ConfigError::Malformed { path: path.to_owned(), reason }),
        }
        self
    }

    /// Adds one value as written on a command line: text, or YAML (of which JSON is a subset) if the key's
    /// values are no text. A key can be extended by the name of a map's entry, which leaves the other
    /// entries.
    pub fn typed(mut self, name: &str, text: &str, origin: Origin) -> Self {
        let value = match key(name) {
            Some(key) if !key.is_text => serde_saphyr::from_str(text),
            None if text.starts_with(['{', '[']) => serde_saphyr::from_str(text),
            _ => Ok(Value::from(text)),
        };
        match value {
            Ok(value) => self.leaf(name, value, origin),
            Err(error) => {
                self.errors.push(bad_value(
                    name,
                    &origin,
                    format!("this is not valid YAML: {}", yaml_problem(&error)),
                ));
            }
        }
        self
    }

    /// Merges the layers.
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
            vec![bad_value("configuration", &"all layers", error)]
        })?;
        let conflicts = config.conflicts();
        if !conflicts.is_empty() {
            return Err(conflicts.into_iter().map(|(key, reason)| self.conflict(key, reason)).collect());
        }
        let values = self.values(&config);
        Ok(Effective { config, values })
    }

    fn conflict(&self, key: &str, reason: &str) -> ConfigError {
        let origin = self.set.get(key).map_or(&Origin::Default, |(_, origin)| origin);
        bad_value(key, origin, reason)
    }

    fn values(&self, config: &Config) -> Vec<Shown> {
        let mut tree = serde_json::to_value(config).unwrap_or_default();
        let derived = config.derived();
        let show = |key: &'static Key| {
            let value = slot(&mut tree, &key.name).clone();
            let is_unset = value.is_null() || value == "";
            let derived = derived.iter().find(|(name, _)| is_unset && *name == key.name);
            match (derived, self.set.get(&key.name)) {
                (Some((_, value)), _) => Shown { key, value: value.clone(), origin: Origin::Derived },
                (None, Some((_, origin))) => Shown { key, value, origin: origin.clone() },
                (None, None) => Shown { key, value, origin: Origin::Default },
            }
        };
        keys().iter().map(show).collect()
    }

    fn walk(&mut self, value: &Value, prefix: &str, origin: &Origin) {
        let Value::Object(entries) = value else { return };
        for (name, value) in entries {
            let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let is_section = keys().iter().any(|key| key.name.starts_with(&format!("{name}.")));
            match value {
                Value::Object(_) if is_section || is_former_section(&name) => self.walk(value, &name, origin),
                // A section, map or list without a value (`log:`) sets nothing.
                Value::Null if is_section || key(&name).is_some_and(|key| key.is_collection) => {}
                _ if is_section => {
                    self.errors.push(bad_value(&name, origin, "this is a section; its keys go below it"));
                }
                _ => self.leaf(&name, value.clone(), origin.clone()),
            }
        }
    }

    fn leaf(&mut self, name: &str, value: Value, origin: Origin) {
        if key(name).is_some() {
            self.set.insert(name.to_owned(), (value, origin));
            return;
        }
        let map = name.rsplit_once('.').filter(|(map, _)| key(map).is_some_and(|key| key.is_collection));
        match map {
            Some((map, entry)) if !matches!(origin, Origin::File(_)) => {
                let (entries, from) = self.set.entry(map.to_owned()).or_insert((json!({}), origin.clone()));
                match entries.as_object_mut() {
                    Some(entries) => drop(entries.insert(entry.to_owned(), value)),
                    None => self.errors.push(unknown(name, origin.to_string())),
                }
                *from = origin;
            }
            _ => self.errors.push(unknown(name, origin.to_string())),
        }
    }
}

fn bad_value(key: &str, origin: &dyn fmt::Display, reason: impl fmt::Display) -> ConfigError {
    ConfigError::BadValue { key: key.to_owned(), origin: origin.to_string(), reason: reason.to_string() }
}

fn parse(text: &str) -> Result<Value, String> {
    match serde_saphyr::from_str(text).map_err(|error| yaml_problem(&error))? {
        value @ (Value::Object(_) | Value::Null) => Ok(value),
        other => Err(format!("it contains {other}")),
    }
}

fn yaml_problem(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    // NFD's example configuration has this mistake.
    let hint = if line.contains("unknown anchor") { "; a `*` needs quotes: \"*\"" } else { "" };
    format!("{line}{hint}")
}

/// Returns the value at `key`, which exists in every tree made from [`Config`].
fn slot<'a>(tree: &'a mut Value, key: &str) -> &'a mut Value {
    key.split('.').fold(tree, |node, name| &mut node[name])
}

/// Checks a value on its own, with defaults for all other keys.
fn try_value(key: &str, value: &Value, origin: &Origin) -> Result<(), ConfigError> {
    let mut tree = defaults();
    *slot(&mut tree, key) = value.clone();
    serde_json::from_value::<Config>(tree).map(drop).map_err(|error| bad_value(key, origin, error))
}
