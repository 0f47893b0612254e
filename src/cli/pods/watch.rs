//! `numacast pods watch`

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};

use super::print::{self, Table};
use super::row::Row;
use super::{Output, OutputArgs, object, wanted};
use crate::kubelet::{PodsClient, PodsError};
use crate::pod::{Pod, PodEvent};

const ADDED: &str = "ADDED";
const MODIFIED: &str = "MODIFIED";
const DELETED: &str = "DELETED";

/// Prints the pods and then their changes.
pub(super) async fn watch(client: PodsClient, output: OutputArgs) -> anyhow::Result<ExitCode> {
    let mut follow = client.follow(wanted());
    let mut shown = Shown::new(output);
    let mut heard = Heard::default();
    loop {
        match follow.next().await {
            Ok(event) => {
                let listed = event == PodEvent::Complete;
                super::super::print(&shown.take(event)?)?;
                if listed && heard.again() {
                    let path = follow.socket().map(|path| path.display().to_string()).unwrap_or_default();
                    super::super::complain(format!("{path} tells again"));
                }
            }
            Err(error) => heard.failed(&error)?,
        }
    }
}

/// The state of error reporting.
#[derive(Default)]
struct Heard {
    /// Whether all pods were listed once.
    ever: bool,
    /// The last reported error, unless a list was completed since.
    complaint: Option<String>,
}

impl Heard {
    /// Records a complete list. Returns true if an error was reported before.
    fn again(&mut self) -> bool {
        self.ever = true;
        self.complaint.take().is_some()
    }

    /// Reports an error, unless it equals the last one. Before the first complete list an error is fatal,
    /// unless a server is just starting.
    fn failed(&mut self, error: &PodsError) -> anyhow::Result<()> {
        let sentence = error.to_string();
        if !self.ever && !error.is_starting() {
            bail!(sentence);
        }
        if self.complaint.as_ref() != Some(&sentence) {
            super::super::complain(format!("{sentence}; trying on"));
            self.complaint = Some(sentence);
        }
        Ok(())
    }
}

/// The state of the output.
struct Shown {
    output: OutputArgs,
    table: Table,
    /// Sorted by namespace, name and UID, the order in which they are printed.
    pods: BTreeMap<Key, Print>,
    /// The list being received.
    listed: BTreeMap<Key, Pod>,
}

/// Namespace, name and UID.
type Key = (String, String, String);

/// State of a printed pod.
struct Print {
    /// Hash of everything printed except the age, which changes by itself.
    hash: u64,
    /// Its last row, for tables.
    row: Option<Row>,
}

fn key(pod: &Pod) -> Key {
    (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
}

impl Shown {
    fn new(output: OutputArgs) -> Self {
        let table = Table::new(&output, &["EVENT"]);
        Self { output, table, pods: BTreeMap::new(), listed: BTreeMap::new() }
    }

    /// Returns the output for an event.
    fn take(&mut self, event: PodEvent) -> anyhow::Result<String> {
        match event {
            PodEvent::Listing => self.listed.clear(),
            PodEvent::Listed(pod) if self.output.is_wanted(&pod) => {
                self.listed.insert(key(&pod), pod);
            }
            PodEvent::Complete => return self.complete(),
            PodEvent::Is(pod) if self.output.is_wanted(&pod) => return self.is(&[pod]),
            PodEvent::Gone(pod) => return self.gone(&key(&pod), Some(&pod)),
            PodEvent::Listed(_) | PodEvent::Is(_) | PodEvent::Again => {}
        }
        Ok(String::new())
    }

    fn complete(&mut self) -> anyhow::Result<String> {
        let listed = std::mem::take(&mut self.listed);
        let gone: Vec<Key> = self.pods.keys().filter(|key| !listed.contains_key(*key)).cloned().collect();
        let mut text = String::new();
        for key in gone {
            text += &self.gone(&key, None)?;
        }
        let listed: Vec<Pod> = listed.into_values().collect();
        Ok(text + &self.is(&listed)?)
    }

    /// Returns the output for pods that exist.
    fn is(&mut self, pods: &[Pod]) -> anyhow::Result<String> {
        let (mut rows, mut text) = (Vec::new(), String::new());
        for pod in pods {
            let object = match object(pod) {
                Ok(object) => object,
                // The other pods are still printed.
                Err(error) => {
                    super::super::complain(format!("{error:#}"));
                    continue;
                }
            };
            let row = self.row(&object);
            let hash = self.hash(&object, row.as_ref());
            let event = match self.pods.insert(key(pod), Print { hash, row: row.clone() }) {
                Some(before) if before.hash == hash => continue,
                Some(_) => MODIFIED,
                None => ADDED,
            };
            match row {
                Some(row) => rows.push((event, row)),
                None => text += &self.object(event, object)?,
            }
        }
        let rows = rows.iter().map(|(event, row)| (Some(*event), row));
        match self.has_rows() {
            true => Ok(self.table.print(rows, print::now())),
            false => Ok(text),
        }
    }

    /// Returns the output for a deleted pod. `last` is its last known state, which may be only its name.
    fn gone(&mut self, key: &Key, last: Option<&Pod>) -> anyhow::Result<String> {
        let Some(print) = self.pods.remove(key) else { return Ok(String::new()) };
        if let Some(row) = &print.row {
            return Ok(self.table.print([(Some(DELETED), row)].into_iter(), print::now()));
        }
        let (namespace, name, uid) = key;
        let named = || {
            let metadata = json!({"namespace": namespace, "name": name, "uid": uid});
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        };
        self.object(DELETED, last.and_then(|pod| object(pod).ok()).unwrap_or_else(named))
    }

    /// Returns the pod's table row, if the output is a table.
    fn row(&self, object: &Value) -> Option<Row> {
        match self.output.output {
            Output::Table => Some(Row::of(object).narrow()),
            Output::Wide => Some(Row::of(object)),
            Output::Json | Output::Yaml | Output::Name => None,
        }
    }

    fn has_rows(&self) -> bool {
        matches!(self.output.output, Output::Table | Output::Wide)
    }

    fn object(&self, event: &str, object: Value) -> anyhow::Result<String> {
        let told = |object: Value| json!({"type": event, "object": object});
        match self.output.output {
            Output::Yaml => Ok(format!("---\n{}", print::yaml(&told(object))?)),
            Output::Name => Ok(format!("{event} {}", print::name(&object))),
            _ => Ok(told(object).to_string() + "\n"),
        }
    }

    /// Returns the hash of what is printed.
    fn hash(&self, object: &Value, row: Option<&Row>) -> u64 {
        let mut hasher = DefaultHasher::new();
        match (self.output.output, row) {
            (Output::Name, _) => {}
            (_, Some(row)) => row.hash(&mut hasher),
            (_, None) => object.to_string().hash(&mut hasher),
        }
        hasher.finish()
    }
}
