//! Field managers: server-side apply and updates, at the granularity of top-level fields, labels,
//! annotations, finalizers and owner references. That is exact for `NodeResourceTopology`, whose lists are
//! atomic.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::status::{Failure, apply_conflict};

/// A field path: `["zones"]`, `["metadata", "labels", "x"]`.
type Path = Vec<String>;

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    manager: String,
    apply: bool,
    api_version: String,
    time: String,
    fields: BTreeSet<Path>,
}

/// The field manager, API version and time of a write.
#[derive(Clone, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    pub(super) api_version: &'a str,
    /// RFC 3339, in seconds.
    pub(super) time: &'a str,
}

/// The live object after the manager has applied `config`.
///
/// # Errors
/// When another manager owns a field that `config` changes, unless `force` is set.
pub(super) fn apply(
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, Failure> {
    let mut object = live.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": config["apiVersion"],
            "kind": config["kind"],
            "metadata": {"name": config["metadata"]["name"]},
        })
    });
    let mut entries = entries(&object);
    let (wanted, present) = (leaves(config), leaves(&object));
    let mine = |entry: &Entry| entry.apply && entry.manager == writer.manager;
    let changed: BTreeSet<&Path> = wanted
        .iter()
        .filter(|(path, value)| present.get(*path) != Some(value))
        .map(|(path, _)| path)
        .collect();

    let conflicts = conflicts(&entries, &changed, mine);
    if !conflicts.is_empty() && !force {
        return Err(apply_conflict(&conflicts));
    }
    for entry in entries.iter_mut().filter(|entry| !mine(entry)) {
        entry.fields.retain(|path| !changed.contains(path));
    }
    let before = entries.iter().find(|entry| mine(entry)).cloned();
    entries.retain(|entry| !mine(entry));
    // Remove what this manager no longer applies, unless another manager owns it.
    for path in before.iter().flat_map(|entry| &entry.fields).filter(|path| !wanted.contains_key(*path)) {
        if !entries.iter().any(|entry| entry.fields.contains(path)) {
            set(&mut object, path, None);
        }
    }
    for path in changed {
        set(&mut object, path, wanted.get(path));
    }
    let fields: BTreeSet<Path> = wanted.into_keys().collect();
    let time = match before {
        // A real server keeps the time of an unchanged entry.
        Some(before) if before.fields == fields && live.map(leaves) == Some(leaves(&object)) => before.time,
        _ => writer.time.to_owned(),
    };
    let api_version = writer.api_version.to_owned();
    entries.push(Entry { manager: writer.manager.to_owned(), apply: true, api_version, time, fields });
    write_entries(&mut object, entries);
    Ok(object)
}

/// `new` with its changes from `live` recorded as owned by the updating manager.
pub(super) fn update(live: Option<&Value>, mut new: Value, writer: &Writer<'_>) -> Value {
    // The writer may replace `managedFields`, with entries that own any fields.
    let replaced = Some(entries(&new)).filter(|entries| !entries.is_empty());
    let mut entries = replaced.or_else(|| live.map(entries)).unwrap_or_default();
    let (after, before) = (leaves(&new), live.map(leaves).unwrap_or_default());
    let changed: BTreeSet<Path> = after
        .iter()
        .filter(|(path, value)| before.get(*path) != Some(value))
        .map(|(path, _)| path.clone())
        .collect();
    let mine = |entry: &Entry| !entry.apply && entry.manager == writer.manager;
    for entry in &mut entries {
        let removed = |path: &Path| before.contains_key(path) && !after.contains_key(path);
        let keeps = |path: &Path| !removed(path) && (mine(entry) || !changed.contains(path));
        entry.fields = entry.fields.iter().filter(|path| keeps(path)).cloned().collect();
    }
    let old = entries.iter().position(mine).map(|at| entries.remove(at));
    let mut fields = changed.clone();
    fields.extend(old.iter().flat_map(|entry| entry.fields.clone()));
    let time = old.filter(|_| changed.is_empty()).map_or_else(|| writer.time.to_owned(), |entry| entry.time);
    let api_version = writer.api_version.to_owned();
    entries.push(Entry { manager: writer.manager.to_owned(), apply: false, api_version, time, fields });
    write_entries(&mut new, entries);
    new
}

/// The fields that other managers own and the configuration changes, each with a description of its manager.
fn conflicts(
    entries: &[Entry],
    changed: &BTreeSet<&Path>,
    mine: impl Fn(&Entry) -> bool,
) -> Vec<(String, String)> {
    let of = |entry: &Entry| -> Vec<(String, String)> {
        let fields = entry.fields.iter().filter(|path| changed.contains(path));
        fields.map(|path| (entry.description(), format_path(path))).collect()
    };
    entries.iter().filter(|entry| !mine(entry)).flat_map(of).collect()
}

impl Entry {
    fn description(&self) -> String {
        if self.apply {
            format!("\"{}\"", self.manager)
        } else {
            format!("\"{}\" using {}", self.manager, self.api_version)
        }
    }
}

/// Formats a path: `.zones`, `.metadata.labels.x`, `.metadata.ownerReferences[uid="u"]`.
fn format_path(path: &[String]) -> String {
    let segment = |segment: &String| match segment.strip_prefix("k:") {
        Some(key) => {
            let key: Value = serde_json::from_str(key).unwrap_or_default();
            format!("[uid={}]", key["uid"])
        }
        None => match segment.strip_prefix("v:") {
            Some(value) => format!("[={value}]"),
            None => format!(".{segment}"),
        },
    };
    path.iter().map(segment).collect()
}

/// All managed fields of an object with their values.
fn leaves(object: &Value) -> BTreeMap<Path, Value> {
    let mut found = BTreeMap::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            found.insert(vec![name.clone()], value.clone());
        }
    }
    let metadata = &object["metadata"];
    let path = |field: &str, key: String| vec!["metadata".to_owned(), field.to_owned(), key];
    for field in ["labels", "annotations"] {
        for (name, value) in metadata[field].as_object().into_iter().flatten() {
            found.insert(path(field, name.clone()), value.clone());
        }
    }
    for reference in metadata["ownerReferences"].as_array().into_iter().flatten() {
        let key = format!("k:{{\"uid\":{}}}", reference["uid"]);
        found.insert(path("ownerReferences", key), reference.clone());
    }
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten() {
        found.insert(path("finalizers", format!("v:{finalizer}")), finalizer.clone());
    }
    found
}

/// Sets or removes one field.
fn set(object: &mut Value, path: &[String], value: Option<&Value>) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut parent = object;
    for name in parents {
        parent = &mut parent[name];
    }
    if last.starts_with("k:") || last.starts_with("v:") {
        return set_item(parent, last, value);
    }
    if !parent.is_object() {
        *parent = Value::Object(Map::new());
    }
    match value {
        Some(value) => parent[last] = value.clone(),
        None => {
            parent.as_object_mut().map(|fields| fields.remove(last));
        }
    }
}

fn set_item(list: &mut Value, key: &str, value: Option<&Value>) {
    let matches = |item: &Value| match key.strip_prefix("v:") {
        Some(text) => serde_json::from_str(text).is_ok_and(|wanted: Value| wanted == *item),
        None => format!("k:{{\"uid\":{}}}", item["uid"]) == key,
    };
    let mut items = list.as_array().cloned().unwrap_or_default();
    match (items.iter().position(matches), value) {
        (Some(at), Some(value)) => items[at] = value.clone(),
        (Some(at), None) => {
            items.remove(at);
        }
        (None, Some(value)) => items.push(value.clone()),
        (None, None) => {}
    }
    *list = Value::Array(items);
}

fn entries(object: &Value) -> Vec<Entry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entry = |entry: &Value| {
        let mut fields = BTreeSet::new();
        read_fields(&entry["fieldsV1"], &mut Vec::new(), &mut fields);
        Entry {
            manager: text(&entry["manager"]),
            apply: entry["operation"] == "Apply",
            api_version: text(&entry["apiVersion"]),
            time: text(&entry["time"]),
            fields,
        }
    };
    object["metadata"]["managedFields"].as_array().into_iter().flatten().map(entry).collect()
}

fn read_fields(tree: &Value, path: &mut Path, found: &mut BTreeSet<Path>) {
    for (key, below) in tree.as_object().into_iter().flatten() {
        path.push(key.strip_prefix("f:").unwrap_or(key).to_owned());
        if below.as_object().is_none_or(Map::is_empty) {
            found.insert(path.clone());
        }
        read_fields(below, path, found);
        path.pop();
    }
}

/// Writes the entries in the order of a real server: appliers first, then by time and name. Empty ones are
/// dropped.
fn write_entries(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| (!a.apply, &a.time, &a.manager).cmp(&(!b.apply, &b.time, &b.manager)));
    let written: Vec<Value> = entries.iter().map(write_entry).collect();
    object["metadata"]["managedFields"] = Value::Array(written);
    for list in ["ownerReferences", "finalizers", "labels", "annotations"] {
        let empty = match &object["metadata"][list] {
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => true,
        };
        if empty && let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove(list);
        }
    }
}

fn write_entry(entry: &Entry) -> Value {
    let mut tree = json!({});
    for path in &entry.fields {
        let mut place = &mut tree;
        for name in path {
            let is_item = name.starts_with("k:") || name.starts_with("v:");
            let key = if is_item { name.clone() } else { format!("f:{name}") };
            if !place[&key].is_object() {
                place[&key] = json!({});
            }
            place = &mut place[&key];
        }
    }
    json!({
        "manager": entry.manager,
        "operation": if entry.apply { "Apply" } else { "Update" },
        "apiVersion": entry.api_version,
        "time": entry.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": tree,
    })
}
