use std::sync::LazyLock;

use serde_json::Value;

use super::Config;
use super::error::ConfigError;

/// The JSON Schema (draft 7) of a configuration file, generated from the types and their doc comments. It
/// covers keys and types, but not conflicts between keys: `numacast config check` does.
pub const SCHEMA: &str = include_str!("schema.json");

/// A key.
#[derive(Debug)]
pub struct Key {
    /// Its name, from the root.
    pub name: String,
    /// What it means, in one paragraph.
    pub summary: String,
    /// Further paragraphs.
    pub details: Vec<String>,
    /// The default; null if the key has no default, or one that depends on other keys.
    pub default: Value,
    /// Whether a value on the command line is text, and not YAML.
    pub(super) is_text: bool,
    /// Whether it is a map or a list.
    pub(super) is_collection: bool,
}

/// Returns all keys, sorted.
pub fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let mut keys = Vec::new();
        let schema = serde_json::from_str(SCHEMA).unwrap_or_default();
        collect(&schema, "", &defaults(), &mut keys);
        keys
    });
    &KEYS
}

pub(super) fn key(name: &str) -> Option<&'static Key> {
    keys().iter().find(|key| key.name == name)
}

fn collect(schema: &Value, section: &str, defaults: &Value, keys: &mut Vec<Key>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let default = &defaults[name];
        let name = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
        if is_section(schema) {
            collect(schema, &name, default, keys);
            continue;
        }
        let meaning = schema["description"].as_str().unwrap_or_default();
        let mut paragraphs = meaning.split("\n\n").map(str::to_owned);
        keys.push(Key {
            name,
            summary: paragraphs.next().unwrap_or_default(),
            details: paragraphs.collect(),
            default: default.clone(),
            is_text: has_type(schema, "string"),
            is_collection: has_type(schema, "object") || has_type(schema, "array"),
        });
    }
}

/// Returns true for the schema of a section. A key with named fields may also be null.
fn is_section(schema: &Value) -> bool {
    schema["type"] == "object" && schema["properties"].is_object()
}

/// Returns true if the schema, or one of its alternatives, has this type.
fn has_type(schema: &Value, name: &str) -> bool {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    alternatives.chain([schema]).any(|schema| match &schema["type"] {
        Value::Array(types) => types.iter().any(|one| one == name),
        one => one == name,
    })
}

/// Returns a key, all keys of a section, or every key.
pub fn explain(key: Option<&str>) -> Result<Vec<&'static Key>, ConfigError> {
    let chosen = |known: &&Key| {
        key.is_none_or(|key| {
            known.name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let found: Vec<&Key> = keys().iter().filter(chosen).collect();
    match key {
        Some(key) if found.is_empty() => Err(unknown(key, "the command line".to_owned())),
        _ => Ok(found),
    }
}

/// Returns the summary of a key, for the help of its flag; empty if there is no such key.
pub(crate) fn summary(name: &str) -> &'static str {
    key(name).map_or("", |key| &key.summary)
}

/// Returns the defaults, as a tree.
pub(super) fn defaults() -> Value {
    serde_json::to_value(Config::default()).unwrap_or_default()
}

/// Returns the error for an unknown key, with the key that was probably meant.
pub(super) fn unknown(key: &str, origin: String) -> ConfigError {
    ConfigError::UnknownKey { key: key.to_owned(), origin, suggestion: nearest(key) }
}

/// Names in NFD, RTE and the scheduler plugin, earlier names, and what is set by a flag only. Each is a whole
/// key or the last part of one, in lowercase.
const ALIASES: [(&str, &str); 31] = [
    ("controller.namespace", "--namespace"),
    ("kubelet.config.source", "kubelet.configSource"),
    ("kubelet.config.file", "kubelet.configFile"),
    ("kubelet.config.dir", "kubelet.configDir"),
    ("kubelet.config.overrides", "kubelet.configOverrides"),
    ("proxy.annotations.resources", "proxy.annotations.koordinatorResources"),
    ("pods.interval", "scan.poll"),
    ("rivals", "publish.conflicts"),
    ("allocatable", "proxy.annotations.koordinator"),
    ("cpus", "proxy.annotations.koordinator"),
    ("sharedids", "proxy.annotations.koordinator"),
    ("cpumanagerpolicy", "kubelet.configOverrides"),
    ("memorymanagerpolicy", "kubelet.configOverrides"),
    ("topologymanagerpolicy", "kubelet.configOverrides"),
    ("topologymanagerscope", "kubelet.configOverrides"),
    ("cache", "consumer"),
    ("reserve", "consumer"),
    ("fillers", "consumer"),
    ("nodename", "--node-name"),
    ("kubeconfig", "--kubeconfig"),
    ("dryrun", "--dry-run"),
    ("configfile", "kubelet.configFile"),
    ("kubeletconfigfile", "kubelet.configFile"),
    ("excludelist", "exclude.resources"),
    ("resourceexclude", "exclude.resources"),
    ("podexclude", "exclude.pods"),
    ("podexcludes", "exclude.pods"),
    ("namespace", "exclude.outsideNamespace"),
    ("watchnamespace", "exclude.outsideNamespace"),
    ("sleepinterval", "scan.poll"),
    ("podresourcessocketpath", "kubelet.socket"),
];

/// Returns true if `section` had keys that are now in [`ALIASES`]. Each of them is an error of its own.
pub(super) fn is_former_section(section: &str) -> bool {
    let section = format!("{}.", section.to_lowercase());
    ALIASES.iter().any(|(alias, _)| alias.starts_with(&section))
}

/// Returns the existing key that was probably meant: the most similar by its full path or by its last part,
/// or the one in [`ALIASES`].
fn nearest(key: &str) -> Option<String> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_lowercase();
    let names = [key.to_lowercase(), last(key).replace('-', "")];
    if let Some((_, known)) = ALIASES.iter().find(|(alias, _)| names.iter().any(|name| name == alias)) {
        return Some((*known).to_owned());
    }
    let score = |known: &str| {
        let whole = strsim::jaro_winkler(&known.to_lowercase(), &key.to_lowercase());
        whole.max(strsim::jaro_winkler(&last(known), &last(key)) * 0.95)
    };
    let scored = keys().iter().map(|known| (score(&known.name), &known.name));
    let (score, best) = scored.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (score > 0.8).then(|| best.clone())
}

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;

    use super::*;
    use crate::generated;

    /// Returns the schema of the types. Of the doc comments, only those of keys remain.
    fn schema_of_types() -> Value {
        let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
        simplify(&mut schema, true);
        schema["title"] = "The configuration of numacast".into();
        schema
    }

    /// Removes descriptions except those of keys, whose lines are joined to paragraphs, and turns
    /// alternatives that are all constants into an `enum`. `has_keys`: its properties are sections or keys.
    fn simplify(schema: &mut Value, has_keys: bool) {
        let Some(map) = schema.as_object_mut() else { return };
        map.remove("title");
        map.remove("description");
        // Defaults are those of keys.
        if map.contains_key("properties") || map.get("default").is_some_and(Value::is_null) {
            map.remove("default");
        }
        if let Some(variants) = map.get("oneOf").and_then(Value::as_array) {
            let names: Option<Vec<Value>> =
                variants.iter().map(|variant| variant.get("const").cloned()).collect();
            if let Some(names) = names {
                map.remove("oneOf");
                map.insert("type".to_owned(), "string".into());
                map.insert("enum".to_owned(), names.into());
            }
        }
        for (_, property) in map.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            let description = property["description"].as_str().map(paragraphs);
            let is_key = has_keys && !is_section(property);
            simplify(property, has_keys && !is_key);
            if let Some(description) = description.filter(|_| is_key) {
                property["description"] = description.into();
            }
        }
        for name in ["items", "additionalProperties"] {
            map.get_mut(name).into_iter().for_each(|schema| simplify(schema, false));
        }
        let alternatives = map.get_mut("anyOf").and_then(Value::as_array_mut).into_iter().flatten();
        alternatives.for_each(|schema| simplify(schema, false));
    }

    /// Joins the lines of each paragraph.
    fn paragraphs(text: &str) -> String {
        let joined = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
        joined.collect::<Vec<_>>().join("\n\n")
    }

    #[test]
    fn the_document_schema_is_that_of_the_types() {
        let text = serde_json::to_string_pretty(&schema_of_types()).unwrap() + "\n";
        generated::whole("src/config/schema.json", &text);
    }

    #[test]
    fn the_document_lists_every_key() {
        let row = |Key { name, summary, default, .. }: &Key| {
            let default = match default {
                Value::Null => String::new(),
                Value::String(text) => format!("`{text}`"),
                other => format!("`{other}`"),
            };
            format!("| `{name}` | {default} | {} |\n", summary.replace('|', "\\|"))
        };
        let rows: String = keys().iter().map(row).collect();
        let table = format!("| key | default | meaning |\n|---|---|---|\n{rows}");
        generated::section("docs/configuration-reference.md", "keys", &table);
    }

    #[test]
    fn there_are_at_most_62_keys_each_with_a_summary() {
        assert!((50..=62).contains(&keys().len()), "{}", keys().len());
        for key in keys() {
            assert!(key.summary.len() > 20 && !key.summary.contains('\n'), "{key:?}");
        }
    }

    #[test]
    fn a_key_a_section_or_everything_is_explained() {
        let names = |key| explain(key).unwrap().iter().map(|key| key.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(Some("publish.to")), ["publish.to"]);
        assert_eq!(names(Some("scan")), ["scan.notifyFile", "scan.poll"]);
        assert_eq!(names(None).len(), keys().len());
        assert_eq!(explain(Some("scan.poll")).unwrap()[0].default, "5s");
        assert_eq!(explain(Some("host.sys")).unwrap()[0].default, Value::Null);
        assert_eq!(
            explain(Some("podExclude")).unwrap_err().to_string(),
            "unknown key `podExclude` in the command line; did you mean `exclude.pods`?"
        );
        assert!(explain(Some("sca")).is_err(), "a part of a name is no section");
    }

    #[test]
    fn an_earlier_name_leads_to_its_successor() {
        for (name, expected) in [
            ("controller.namespace", "--namespace"),
            ("resourceMonitor.namespace", "exclude.outsideNamespace"),
            ("kubelet.config.topologyManagerPolicy", "kubelet.configOverrides"),
            ("kubelet.config.source", "kubelet.configSource"),
        ] {
            assert_eq!(nearest(name).as_deref(), Some(expected), "{name}");
        }
        for (alias, known) in ALIASES {
            assert!(key(known).is_some() || known.starts_with("--"), "{alias}");
        }
    }

    #[test]
    fn values_on_a_command_line_are_text_or_yaml_by_their_type() {
        for (name, is_text, is_collection) in [
            ("scan.poll", true, false),
            ("fingerprint.view", true, false),
            ("controller.nudge", true, false),
            ("publish.events", false, false),
            ("proxy.group", false, false),
            ("exclude.pods", false, true),
            ("metrics.tls", false, true),
            ("kubelet.configOverrides", false, true),
        ] {
            let key = key(name).unwrap();
            assert_eq!((key.is_text, key.is_collection), (is_text, is_collection), "{name}");
        }
    }
}
