//! `numacast pods watch`

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::bail;

use super::print::{self, Table};
use super::row::Row;
use super::{Output, OutputArgs, wanted};
use crate::kubelet::{PodsClient, PodsError};
use crate::pod::{Pod, PodEvent};

const ADDED: &str = "ADDED";
const MODIFIED: &str = "MODIFIED";
const DELETED: &str = "DELETED";

/// Prints the pods and then their changes.
pub(super) async fn watch(client: PodsClient, output: OutputArgs) -> anyhow::Result<ExitCode> {
    let mut events = client.follow(wanted());
    let mut printer = Printer::new(output);
    let mut errors = Errors::default();
    loop {
        match events.next().await {
            Ok(event) => {
                let is_listed = event == PodEvent::Complete;
                super::super::print(&printer.take(event))?;
                if is_listed && errors.recovered() {
                    let path = events.socket().map(|path| path.display().to_string()).unwrap_or_default();
                    super::super::complain(format!("{path} responds again"));
                }
            }
            Err(error) => errors.add(&error)?,
        }
    }
}

/// The state of error reporting.
#[derive(Default)]
struct Errors {
    /// Whether all pods were listed once.
    has_listed: bool,
    /// The last reported error, unless a list was completed since.
    last: Option<String>,
}

impl Errors {
    /// Records a complete list. Returns true if an error was reported before.
    fn recovered(&mut self) -> bool {
        self.has_listed = true;
        self.last.take().is_some()
    }

    /// Reports an error, unless it equals the last one. Before the first complete list an error is fatal,
    /// unless a server is just starting.
    fn add(&mut self, error: &PodsError) -> anyhow::Result<()> {
        let message = error.to_string();
        if !self.has_listed && !error.is_starting() {
            bail!(message);
        }
        if self.last.as_ref() != Some(&message) {
            super::super::complain(format!("{message}; retrying"));
            self.last = Some(message);
        }
        Ok(())
    }
}

/// The state of the output.
struct Printer {
    output: OutputArgs,
    table: Table,
    /// The printed rows, if the output is a table. Sorted by namespace, name and UID, the order in which they
    /// are printed.
    pods: BTreeMap<Key, Option<Row>>,
    /// The list being received.
    listed: BTreeMap<Key, Pod>,
}

/// Namespace, name and UID.
type Key = (String, String, String);

fn key(pod: &Pod) -> Key {
    (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
}

impl Printer {
    fn new(output: OutputArgs) -> Self {
        let table = Table::new(&output, &["EVENT"]);
        Self { output, table, pods: BTreeMap::new(), listed: BTreeMap::new() }
    }

    /// Returns the output for an event.
    fn take(&mut self, event: PodEvent) -> String {
        match event {
            PodEvent::Listing => self.listed.clear(),
            PodEvent::Listed(pod) if self.output.is_wanted(&pod) => {
                self.listed.insert(key(&pod), pod);
            }
            PodEvent::Complete => return self.complete(),
            PodEvent::Is(pod) if self.output.is_wanted(&pod) => return self.apply(&[pod]),
            PodEvent::Gone(pod) => return self.delete(&key(&pod)),
            PodEvent::Listed(_) | PodEvent::Is(_) | PodEvent::Again => {}
        }
        String::new()
    }

    fn complete(&mut self) -> String {
        let listed = std::mem::take(&mut self.listed);
        let gone: Vec<Key> = self.pods.keys().filter(|key| !listed.contains_key(*key)).cloned().collect();
        let deleted: String = gone.iter().map(|key| self.delete(key)).collect();
        let listed: Vec<Pod> = listed.into_values().collect();
        deleted + &self.apply(&listed)
    }

    /// Returns the output for pods that exist.
    fn apply(&mut self, pods: &[Pod]) -> String {
        let mut changes = Vec::new();
        for pod in pods {
            let row = match self.row(pod) {
                Ok(row) => row,
                // The other pods are still printed.
                Err(error) => {
                    super::super::complain(error);
                    continue;
                }
            };
            let key = key(pod);
            match self.pods.insert(key.clone(), row.clone()) {
                Some(before) if before == row => {}
                Some(_) => changes.push((MODIFIED, key, row)),
                None => changes.push((ADDED, key, row)),
            }
        }
        let changes = changes.iter().map(|(event, key, row)| (*event, key, row.as_ref()));
        self.print(changes.collect())
    }

    /// Returns the output for a deleted pod.
    fn delete(&mut self, key: &Key) -> String {
        match self.pods.remove(key) {
            Some(row) => self.print(vec![(DELETED, key, row.as_ref())]),
            None => String::new(),
        }
    }

    /// Returns the pod's row without its age, which changes by itself, if the output is a table.
    fn row(&self, pod: &Pod) -> anyhow::Result<Option<Row>> {
        Ok(match self.output.output {
            Output::Table => Some(Row::of(pod)?.narrow()),
            Output::Wide => Some(Row::of(pod)?),
            Output::Name => None,
        })
    }

    fn print(&mut self, changes: Vec<(&str, &Key, Option<&Row>)>) -> String {
        if self.output.output == Output::Name {
            let line = |(event, (namespace, name, _), _): (&str, &Key, _)| {
                format!("{event} {}", print::name(namespace, name))
            };
            return changes.into_iter().map(line).collect();
        }
        let rows = changes.into_iter().filter_map(|(event, _, row)| Some((Some(event), row?)));
        self.table.print(rows, print::now())
    }
}
