//! Tables and pictures that follow the objects.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use futures::StreamExt;
use futures::stream::{BoxStream, select_all};
use tokio::time::{MissedTickBehavior, interval};

use super::{Form, Output, pods_of};
use crate::cli::terminal::{Terminal, now};
use crate::cluster::{Cluster, ClusterError, ListWatchEvent, PublishedObject};
use crate::core_v1::PlacedPod;
use crate::inspect::Picture;
use crate::inspect::show::{Row, Scope};
use crate::inspect::truncate;
use crate::render::{Line, Style, Table, page};

/// How often a terminal is redrawn: ages change by themselves. Also how often a node's pods are listed at most.
const REDRAW: Duration = Duration::from_secs(1);

pub(super) async fn watch(cluster: &Cluster, scope: &Scope, form: Form) -> anyhow::Result<ExitCode> {
    let mut events = events(cluster, scope);
    let mut ticks = interval(REDRAW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = View::new(cluster, scope, form);
    let is_terminal = Terminal::now().size.is_some();
    loop {
        tokio::select! {
            Some((of, event)) = events.next() => {
                let changed = view.apply(of, event)?;
                if !is_terminal {
                    view.print(&changed).await?;
                }
            }
            _ = ticks.tick(), if is_terminal && view.unlisted.is_empty() => view.draw().await?,
        }
    }
}

type Event = Result<ListWatchEvent<PublishedObject>, ClusterError>;

/// Returns the events of all objects, or of each named node's, with its name.
fn events(cluster: &Cluster, scope: &Scope) -> impl StreamExt<Item = (Option<String>, Event)> + Unpin {
    let of = |node: Option<String>| -> BoxStream<'static, (Option<String>, Event)> {
        cluster.watch_objects(node.as_deref()).map(move |event| (node.clone(), event)).boxed()
    };
    match scope {
        Scope::Named(names) => select_all(names.iter().cloned().map(|name| of(Some(name)))),
        _ => select_all([of(None)]),
    }
}

/// What is shown of a node.
struct Shown {
    row: Row,
    /// For pictures.
    object: Option<Box<PublishedObject>>,
    pods: Option<Vec<PlacedPod>>,
}

struct View<'a> {
    cluster: &'a Cluster,
    scope: &'a Scope,
    form: Form,
    nodes: BTreeMap<String, Shown>,
    /// The watches that have not listed yet, by their node.
    unlisted: BTreeSet<Option<String>>,
    /// Nodes whose pods are to be listed.
    stale: BTreeSet<String>,
    /// Errors since the last event.
    error: Option<String>,
    /// The last table, which the next rows continue.
    last: Option<Table>,
    has_printed: bool,
    /// The screen as it was drawn last.
    screen: Option<String>,
}

/// A change: the node, and its row as it is to be printed.
type Change = (String, Row);

impl<'a> View<'a> {
    fn new(cluster: &'a Cluster, scope: &'a Scope, form: Form) -> Self {
        let unlisted = match scope {
            Scope::Named(names) => names.iter().cloned().map(Some).collect(),
            _ => BTreeSet::from([None]),
        };
        Self {
            cluster,
            scope,
            form,
            nodes: BTreeMap::new(),
            unlisted,
            stale: BTreeSet::new(),
            error: None,
            last: None,
            has_printed: false,
            screen: None,
        }
    }

    /// Applies an event of the watch of one node, or of all. Returns what has changed.
    fn apply(&mut self, of: Option<String>, event: Event) -> anyhow::Result<Vec<Change>> {
        match event {
            Ok(ListWatchEvent::Listed(objects)) => {
                self.error = None;
                let is_first = self.unlisted.remove(&of);
                Ok(self.replace(of.as_deref(), objects, is_first))
            }
            Ok(ListWatchEvent::Applied(object)) => {
                self.error = None;
                Ok(self.insert(object).into_iter().collect())
            }
            Ok(ListWatchEvent::Deleted(object)) => {
                self.error = None;
                Ok(self.remove(&object.meta.name).into_iter().collect())
            }
            Ok(ListWatchEvent::Resumed) => {
                self.error = None;
                Ok(Vec::new())
            }
            // Before the first list an error is fatal.
            Err(error) if self.unlisted.contains(&of) => bail!(error),
            Err(error) => {
                self.report(format!("{error}; retrying"));
                Ok(Vec::new())
            }
        }
    }

    /// Shows an error until the next event. Without a terminal it is printed once.
    fn report(&mut self, error: String) {
        if Terminal::now().size.is_none() && self.error.as_ref() != Some(&error) {
            crate::cli::print_error(&error);
        }
        self.error = Some(error);
    }

    fn replace(&mut self, of: Option<&str>, objects: Vec<PublishedObject>, is_first: bool) -> Vec<Change> {
        if let (Some(node), true, true) = (of, objects.is_empty(), is_first) {
            crate::cli::print_error(format!("the node {node} has no object yet"));
        }
        let listed: BTreeSet<String> = objects.iter().map(|object| object.meta.name.clone()).collect();
        let is_gone = |name: &&String| of.is_none_or(|of| of == *name) && !listed.contains(*name);
        let gone: Vec<String> = self.nodes.keys().filter(is_gone).cloned().collect();
        let mut changes: Vec<Change> = gone.iter().filter_map(|name| self.remove(name)).collect();
        changes.extend(objects.into_iter().filter_map(|object| self.insert(object)));
        changes
    }

    /// Returns the change, if there is one.
    fn insert(&mut self, object: PublishedObject) -> Option<Change> {
        let (name, row) = (object.meta.name.clone(), self.form.row(&object));
        let before = self.nodes.get_mut(&name);
        if !self.scope.contains(&name) || before.as_ref().is_some_and(|shown| shown.row == row) {
            return None;
        }
        let object = (self.form.output == Output::Picture).then(|| Box::new(object));
        self.stale.extend(object.is_some().then(|| name.clone()));
        let pods = before.and_then(|shown| shown.pods.take());
        self.nodes.insert(name.clone(), Shown { row: row.clone(), object, pods });
        Some((name, row))
    }

    fn remove(&mut self, name: &str) -> Option<Change> {
        let shown = self.nodes.remove(name)?;
        Some((name.to_owned(), shown.row.deleted()))
    }

    /// Lists the pods of nodes that have changed.
    async fn list_pods(&mut self) {
        for name in std::mem::take(&mut self.stale) {
            let Some(shown) = self.nodes.get_mut(&name) else { continue };
            match pods_of(self.cluster, &name).await {
                Ok(pods) => shown.pods = Some(pods),
                Err(error) => self.report(format!("{error:#}")),
            }
        }
    }

    /// Appends what has changed to standard output.
    async fn print(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        if self.form.output != Output::Picture {
            return self.print_rows(changes);
        }
        self.list_pods().await;
        for (name, _) in changes {
            let gap = if std::mem::replace(&mut self.has_printed, true) { "\n" } else { "" };
            let lines = match self.nodes.get(name) {
                Some(shown) => shown.picture(usize::MAX, usize::MAX),
                None => vec![no_object(name)],
            };
            crate::cli::print(&format!("{gap}{}\n", page(&lines, usize::MAX, false)))?;
        }
        Ok(())
    }

    fn print_rows(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut rows: Vec<Row> = changes.iter().map(|(_, row)| row.clone()).collect();
        self.form.sort_by.sort(&mut rows);
        let table = self.form.fleet.table(&rows, now());
        let table = match &self.last {
            Some(last) => table.continuing(last),
            None => table,
        };
        let text = page(&table.lines(usize::MAX), usize::MAX, false);
        self.last = Some(table);
        crate::cli::print(&(text + "\n"))
    }

    /// Redraws the screen.
    async fn draw(&mut self) -> anyhow::Result<()> {
        self.list_pods().await;
        let terminal = Terminal::now();
        let (width, height) = terminal.size.unwrap_or((usize::MAX, usize::MAX));
        // A newline in the last row would scroll.
        let lines = self.lines(width, height.saturating_sub(1));
        let text = page(&lines, width, terminal.colour);
        if self.screen.as_ref() == Some(&text) {
            return Ok(());
        }
        // Home, each line up to its end, and nothing below; the first time also what was there before.
        let start = if self.screen.is_none() { "\x1b[2J\x1b[H" } else { "\x1b[H" };
        let drawn: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
        self.screen = Some(text);
        crate::cli::print(&format!("{start}{drawn}\x1b[J"))
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.nodes.values().map(|shown| shown.row.clone()).collect();
        self.form.sort_by.sort(&mut rows);
        rows
    }

    fn lines(&self, width: usize, height: usize) -> Vec<Line> {
        let rows = self.rows();
        let mut footer = self.form.summary(&rows);
        footer.extend(self.error.as_ref().map(|error| Line::new(error, Style::Bad)));
        let height = height.saturating_sub(footer.len());
        let mut lines = match self.form.output {
            Output::Picture => self.pictures(width, height),
            _ => self.form.fleet.table(&rows, now()).lines(width),
        };
        truncate(&mut lines, height, "lines");
        lines.extend(footer);
        lines
    }

    fn pictures(&self, width: usize, height: usize) -> Vec<Line> {
        // Each node gets an equal part of the window.
        let each = height / self.nodes.len().max(1);
        let mut pictures: Vec<Vec<Line>> =
            self.nodes.values().map(|shown| shown.picture(width, each.saturating_sub(1).max(1))).collect();
        if let Scope::Named(names) = self.scope {
            let missing = names.iter().filter(|name| !self.nodes.contains_key(*name));
            pictures.extend(missing.map(|name| vec![no_object(name)]));
        }
        pictures.join(&Line::default())
    }
}

fn no_object(node: &str) -> Line {
    Line::new(node, Style::Bold).add("  has no object", Style::Bad)
}

impl Shown {
    fn picture(&self, width: usize, height: usize) -> Vec<Line> {
        let picture =
            self.object.as_ref().map(|object| Picture::of_object(object, self.pods.as_deref(), now()));
        picture.map(|picture| picture.lines_within(width, height)).unwrap_or_default()
    }
}
