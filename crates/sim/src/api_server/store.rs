//! The objects, their resource versions and the history for watches. No I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast;

use super::fields::{self, Writer};
use super::kinds::{Kind, NAMESPACES, TOPOLOGIES};
use super::status::{self, Failure};

/// Maximum number of changes that a watch can be behind.
const HISTORY: usize = 1024;

/// The type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The object was created.
    Added,
    /// The object was modified.
    Modified,
    /// The object was deleted; the event has its last state.
    Deleted,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// The object's kind.
    pub kind: &'static Kind,
    /// The type of the change.
    pub event: EventType,
    /// The object after it.
    pub object: Arc<Value>,
    /// The object before it.
    pub before: Option<Arc<Value>>,
    /// The resource version of the change.
    pub resource_version: u64,
    /// The field manager of the writer.
    pub manager: String,
    /// When the change was stored.
    pub at: Instant,
}

/// Identifies an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) kind: &'static Kind,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// How an object is written.
pub(super) enum Write {
    /// Creates the object, which must not exist.
    Create(Value),
    /// Replaces the object, which must exist.
    Replace(Value),
    /// Applies a JSON merge patch to the object, which must exist.
    Merge(Value),
    /// Server-side apply.
    Apply { config: Value, force: bool },
}

/// The result of a write.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) object: Arc<Value>,
    pub(super) created: bool,
    pub(super) changed: bool,
}

#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    version: u64,
    history: VecDeque<Arc<Change>>,
    /// The newest version that was dropped from the history.
    compacted: u64,
    changes: broadcast::Sender<Arc<Change>>,
    /// The content of the watch cache and its version, while it is not updated.
    cache: Option<(BTreeMap<Key, Arc<Value>>, u64)>,
    rng: Rng,
}

impl Store {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 1,
            history: VecDeque::new(),
            compacted: 1,
            changes: broadcast::Sender::new(HISTORY),
            cache: None,
            rng: Rng::with_seed(seed),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Arc<Change>> {
        self.changes.subscribe()
    }

    pub(super) fn get(&self, key: &Key) -> Result<Arc<Value>, Failure> {
        self.objects.get(key).cloned().ok_or_else(|| status::not_found(key.kind, &key.name))
    }

    /// The objects of a kind, in one namespace or, if that is empty, in all.
    pub(super) fn list(&self, kind: &'static Kind, namespace: &str) -> Vec<Arc<Value>> {
        of_kind(&self.objects, kind, namespace)
    }

    /// Like [`Store::list`], from the watch cache, with its version.
    pub(super) fn cached(&self, kind: &'static Kind, namespace: &str) -> (Vec<Arc<Value>>, u64) {
        let (objects, version) = match &self.cache {
            Some((objects, version)) => (objects, *version),
            None => (&self.objects, self.version),
        };
        (of_kind(objects, kind, namespace), version)
    }

    /// Stops updating the watch cache, or catches up.
    pub(super) fn set_cache_stale(&mut self, stale: bool) {
        self.cache = stale.then(|| (self.objects.clone(), self.version));
    }

    /// Restores an old backup: later writes get resource versions that were used before.
    pub(super) fn restore_backup(&mut self) {
        self.version /= 2;
        self.compact_history();
    }

    /// The changes after a version, or the failure that makes a client relist.
    pub(super) fn since(&self, version: u64) -> Result<Vec<Arc<Change>>, Failure> {
        if version < self.compacted {
            return Err(status::expired(version, self.compacted));
        }
        Ok(self.history.iter().filter(|change| change.resource_version > version).cloned().collect())
    }

    /// Drops the history: watches from an old version must start over.
    pub(super) fn compact_history(&mut self) {
        self.history.clear();
        self.compacted = self.version;
    }

    pub(super) fn write(&mut self, key: &Key, write: Write, writer: &Writer<'_>) -> Result<Written, Failure> {
        let live = self.objects.get(key).cloned();
        let new = Self::changed(key, live.as_deref(), write, writer)?;
        check(key, writer.api_version, &new)?;
        let event = if live.is_some() { EventType::Modified } else { EventType::Added };
        let Some(object) = self.with_server_fields(key, live.as_deref(), new, writer.time) else {
            // Like a real server, return the unchanged object with its version.
            let object = live.ok_or_else(|| status::not_found(key.kind, &key.name))?;
            return Ok(Written { object, created: false, changed: false });
        };
        let object = Arc::new(object);
        self.objects.insert(key.clone(), object.clone());
        self.record(key.kind, event, object.clone(), live, writer.manager);
        Ok(Written { object, created: event == EventType::Added, changed: true })
    }

    /// The object as the writer wants it, with the resulting managed fields.
    fn changed(key: &Key, live: Option<&Value>, write: Write, writer: &Writer<'_>) -> Result<Value, Failure> {
        let missing = || status::not_found(key.kind, &key.name);
        let new = match write {
            Write::Create(_) if live.is_some() => return Err(status::already_exists(key.kind, &key.name)),
            Write::Create(new) => new,
            Write::Replace(new) => {
                check_version(key, live.ok_or_else(missing)?, &new, key.kind == &TOPOLOGIES)?;
                new
            }
            Write::Merge(patch) => {
                let live = live.ok_or_else(missing)?;
                check_version(key, live, &patch, false)?;
                let mut merged = live.clone();
                merge(&mut merged, &patch);
                merged
            }
            Write::Apply { config, force } => {
                check_uid(key, live, &config)?;
                return fields::apply(live, &config, writer, force);
            }
        };
        Ok(fields::update(live, new, writer))
    }

    /// Sets the metadata that only the server sets; `None` if nothing changed.
    fn with_server_fields(
        &mut self,
        key: &Key,
        live: Option<&Value>,
        mut new: Value,
        time: &str,
    ) -> Option<Value> {
        let mut metadata = match new["metadata"].take() {
            Value::Object(metadata) => metadata,
            _ => Map::new(),
        };
        metadata.insert("name".into(), json!(key.name));
        if key.kind.namespaced {
            metadata.insert("namespace".into(), json!(key.namespace));
        }
        let own = live.map(|live| &live["metadata"]);
        for field in ["uid", "creationTimestamp", "resourceVersion", "generation"] {
            let kept = own.map(|own| own[field].clone()).filter(|value| !value.is_null());
            let generated = match field {
                // Keep the caller's uid, so that a simulated pod has the uid that its kubelet has.
                "uid" => metadata.remove("uid").filter(Value::is_string).or_else(|| Some(json!(self.uid()))),
                "creationTimestamp" => Some(json!(time)),
                _ => None,
            };
            metadata.remove(field);
            if let Some(value) = kept.or(generated) {
                metadata.insert(field.into(), value);
            }
        }
        new["metadata"] = Value::Object(metadata);
        if live.is_some_and(|live| without_times(live) == without_times(&new)) {
            return None;
        }
        let generation = live.map_or(0, |live| live["metadata"]["generation"].as_u64().unwrap_or(0));
        let step = u64::from(live.is_none_or(|live| content(live) != content(&new)));
        new["metadata"]["generation"] = json!(generation + step);
        new["metadata"]["resourceVersion"] = json!((self.version + 1).to_string());
        Some(new)
    }

    /// Deletes an object, and the objects of which it is the only owner.
    pub(super) fn delete(
        &mut self,
        key: &Key,
        uid: Option<&str>,
        manager: &str,
    ) -> Result<Arc<Value>, Failure> {
        let live = self.get(key)?;
        let found = live["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(wanted) = uid.filter(|wanted| *wanted != found) {
            return Err(status::precondition(key.kind, &key.name, wanted, found));
        }
        self.objects.remove(key);
        self.record(key.kind, EventType::Deleted, live.clone(), Some(live.clone()), manager);
        self.delete_owned(|owner| owner["uid"] == found);
        Ok(live)
    }

    /// Removes objects whose owners are all missing, as a real garbage collector does now and then.
    pub(super) fn collect_ownerless(&mut self) {
        let uids: BTreeSet<String> = self
            .objects
            .values()
            .filter_map(|object| Some(object["metadata"]["uid"].as_str()?.to_owned()))
            .collect();
        self.delete_owned(|owner| !uids.contains(owner["uid"].as_str().unwrap_or_default()));
    }

    /// Deletes the objects that have owners, of which all are gone.
    fn delete_owned(&mut self, is_gone: impl Fn(&Value) -> bool) {
        let is_orphan = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| !owners.is_empty() && owners.iter().all(&is_gone))
        };
        let orphans = self.objects.iter().filter(|(_, object)| is_orphan(object));
        let orphans: Vec<Key> = orphans.map(|(key, _)| key.clone()).collect();
        for key in orphans {
            // The object existed a moment ago.
            let _ = self.delete(&key, None, "garbage-collector");
        }
    }

    fn record(
        &mut self,
        kind: &'static Kind,
        event: EventType,
        object: Arc<Value>,
        before: Option<Arc<Value>>,
        manager: &str,
    ) {
        self.version += 1;
        let object = match event {
            EventType::Deleted => {
                let mut object = (*object).clone();
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                Arc::new(object)
            }
            _ => object,
        };
        let change = Arc::new(Change {
            kind,
            event,
            object,
            before,
            resource_version: self.version,
            manager: manager.to_owned(),
            at: Instant::now(),
        });
        self.history.push_back(change.clone());
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.compacted = oldest.resource_version;
        }
        // There may be no watch.
        let _ = self.changes.send(change);
    }

    fn uid(&mut self) -> String {
        let bits = self.rng.u128(..);
        let hex = format!("{bits:032x}");
        format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
    }
}

fn of_kind(objects: &BTreeMap<Key, Arc<Value>>, kind: &'static Kind, namespace: &str) -> Vec<Arc<Value>> {
    let matches = |key: &Key| key.kind == kind && (namespace.is_empty() || key.namespace == namespace);
    objects.iter().filter(|(key, _)| matches(key)).map(|(_, object)| object.clone()).collect()
}

/// Validates a custom resource against its schema; built-in kinds are not validated.
fn check(key: &Key, api_version: &str, object: &Value) -> Result<(), Failure> {
    if key.kind != &TOPOLOGIES {
        return Ok(());
    }
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let violations = super::schema::violations(super::schema::of_version(version), object);
    if violations.is_empty() { Ok(()) } else { Err(status::invalid(key.kind, &key.name, &violations)) }
}

/// Checks that the object was not written since the writer read it.
fn check_version(key: &Key, live: &Value, new: &Value, required: bool) -> Result<(), Failure> {
    let wanted = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if wanted.is_empty() && required {
        return Err(status::needs_resource_version(key.kind, &key.name));
    }
    let stale = !wanted.is_empty() && live["metadata"]["resourceVersion"] != *wanted;
    if stale { Err(status::modified(key.kind, &key.name)) } else { Ok(()) }
}

/// Checks the uid in an apply configuration, which is optional.
fn check_uid(key: &Key, live: Option<&Value>, config: &Value) -> Result<(), Failure> {
    let Some(wanted) = config["metadata"]["uid"].as_str() else { return Ok(()) };
    match live {
        None => Err(status::no_such_uid(key.kind, &key.name, wanted)),
        Some(live) if live["metadata"]["uid"] != wanted => {
            Err(status::other_uid(key.kind, &key.name, wanted))
        }
        Some(_) => Ok(()),
    }
}

/// A JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in patch {
        match target.as_object_mut() {
            Some(fields) if value.is_null() => {
                fields.remove(name);
            }
            _ => merge(&mut target[name], value),
        }
    }
}

/// The object without the times of its managed fields, which do not count as a change.
fn without_times(object: &Value) -> Value {
    let mut object = object.clone();
    let managers = object["metadata"]["managedFields"].as_array_mut();
    for entry in managers.into_iter().flatten() {
        entry["time"] = Value::Null;
    }
    object
}

/// The part of the object whose changes increase the generation.
fn content(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("metadata");
        fields.remove("status");
    }
    object
}

/// Creates the namespaces of a fresh cluster.
pub(super) fn seed(store: &mut Store, time: &str) {
    let writer = Writer { manager: "kube-apiserver", api_version: "v1", time };
    for name in ["default", "kube-system"] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "status": {"phase": "Active"}});
        let key = Key { kind: &NAMESPACES, namespace: String::new(), name: name.into() };
        // A fresh store has no such object.
        let _ = store.write(&key, Write::Create(object), &writer);
    }
}
