use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::bail;

use super::print::{self, Table};
use super::row::Row;
use super::{Output, OutputArgs, wanted};
use crate::kubelet::{PodsClient, PodsErrorKind};
use crate::pod::{Pod, PodEvent};
use crate::watch_event::{Reflector, WatchEvent};

pub(super) async fn watch(client: PodsClient, output: OutputArgs) -> anyhow::Result<ExitCode> {
    let mut events = client.watch(wanted());
    let table = Table::new(&output, &["EVENT"]);
    let mut printer = Printer { output, table, rows: Reflector::default() };
    // The last error that was reported, unless a list was completed since.
    let (mut has_listed, mut reported) = (false, None);
    loop {
        match events.next().await {
            Ok(event) => {
                let is_listed = event == PodEvent::InitDone;
                super::super::print(&printer.apply(event))?;
                has_listed |= is_listed;
                if is_listed && reported.take().is_some() {
                    let path = events.socket().map(|path| path.display().to_string()).unwrap_or_default();
                    super::super::print_error(format!("{path} responds again"));
                }
            }
            // Before the first complete list an error is fatal, unless a server is just starting.
            Err(error) if !has_listed && error.kind != PodsErrorKind::Starting => bail!(error.to_string()),
            Err(error) => {
                let message = error.to_string();
                if reported.as_ref() != Some(&message) {
                    super::super::print_error(format!("{message}; retrying"));
                    reported = Some(message);
                }
            }
        }
    }
}

struct Printer {
    output: OutputArgs,
    table: Table,
    rows: Reflector<Rows>,
}

/// The printed rows, if the output is a table. Sorted by namespace, name and UID, the order in which they are
/// printed.
type Rows = BTreeMap<Key, Option<Row>>;

type Key = (String, String, String);

fn key(pod: &Pod) -> Key {
    (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
}

impl Printer {
    fn apply(&mut self, event: PodEvent) -> String {
        let is_deletion = matches!(event, PodEvent::Delete(_));
        let entry = event.object().map(|pod| self.entry(pod, is_deletion));
        if entry == Some(None) {
            return String::new();
        }
        let event = event.map(|pod| entry.flatten().unwrap_or_else(|| (key(&pod), None)));
        let changed = match &event {
            WatchEvent::Apply((key, _)) | WatchEvent::Delete((key, _)) => Some(key.clone()),
            _ => None,
        };
        let known = |key: &Key| Some((key.clone(), self.rows.objects().get(key)?.clone()));
        let known: Rows = changed.iter().filter_map(known).collect();
        let before = match self.rows.apply(event) {
            Some(before) => before,
            None if changed.is_some() => known,
            None => return String::new(),
        };
        let now = self.rows.objects();
        let mut text = String::new();
        for (key, row) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
            text += &print_changes(&mut self.table, &self.output, vec![("DELETED", key, row.as_ref())]);
        }
        if is_deletion {
            return text;
        }
        let may_differ = |key: &Key| changed.as_ref().is_none_or(|changed| changed == key);
        let changes = now.iter().filter(|(key, _)| may_differ(key));
        let changes = changes.filter_map(|(key, row)| match before.get(key) {
            Some(before) if before == row => None,
            Some(_) => Some(("MODIFIED", key, row.as_ref())),
            None => Some(("ADDED", key, row.as_ref())),
        });
        text + &print_changes(&mut self.table, &self.output, changes.collect())
    }

    /// Returns a wanted pod's key and, if the output is a table, its row without its age, which changes by
    /// itself.
    fn entry(&self, pod: &Pod, is_deletion: bool) -> Option<(Key, Option<Row>)> {
        let key = key(pod);
        let row = match self.output.output {
            _ if !self.output.is_wanted(pod) => return None,
            _ if is_deletion => Ok(None),
            Output::Table => Row::of(pod).map(|row| Some(row.narrow())),
            Output::Wide => Row::of(pod).map(Some),
            Output::Name => Ok(None),
        };
        let row = match row {
            Ok(row) => row,
            // The last row stays, and the other pods are still printed.
            Err(error) => {
                super::super::print_error(error);
                self.rows.objects().get(&key)?.clone()
            }
        };
        Some((key, row))
    }
}

fn print_changes(table: &mut Table, output: &OutputArgs, changes: Vec<(&str, &Key, Option<&Row>)>) -> String {
    if output.output == Output::Name {
        let line = |(event, (namespace, name, _), _): (&str, &Key, _)| {
            format!("{event} {}", print::name(namespace, name))
        };
        return changes.into_iter().map(line).collect();
    }
    let rows = changes.into_iter().filter_map(|(event, _, row)| Some((Some(event), row?)));
    table.print(rows, super::super::terminal::now())
}
