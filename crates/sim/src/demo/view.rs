//! Rendering of the demo: a pure function from the state to text that fits the window.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use numacast_core::render::{Line, Style, Zone, gib, page, panels, resource_label, zone_table};

use super::latency::Summary;
use crate::kubelet::PodSpec;

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) node: String,
    pub(super) seed: u64,
    /// The command that shows the same object; empty on a page that outlives its API server.
    pub(super) command: String,
    pub(super) zones: Vec<Zone>,
    /// Pod name to the ids of its zones (`0`, `0-1`), from the API server.
    pub(super) pods: BTreeMap<String, String>,
    pub(super) events: VecDeque<Event>,
    /// Writes that changed the object.
    pub(super) writes: u64,
    /// Number of allocations and releases.
    pub(super) changes: u64,
    pub(super) allocation: Summary,
    pub(super) release: Summary,
    /// How long the kubelet takes to release resources.
    pub(super) release_lag: Duration,
    /// Whether the object matches the kubelet's own state.
    pub(super) matches: bool,
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) text: String,
    /// The time until the object showed it; `None` for what no object shows.
    pub(super) took: Option<Duration>,
}

pub(super) fn request(pod: &PodSpec) -> String {
    let mut parts = Vec::new();
    for container in &pod.containers {
        let cpus = container.milli_cpu / 1000;
        parts.push(if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") });
        parts.push(format!("{} GiB", gib(container.memory)));
        let pages = container.hugepages.iter();
        parts.extend(pages.map(|(name, bytes)| format!("{} GiB of {}", gib(*bytes), resource_label(name))));
        parts.extend(
            container.devices.iter().map(|(name, count)| format!("{count} {}", resource_label(name))),
        );
    }
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => "nothing".to_owned(),
    }
}

/// Maximum number of events in the history.
pub(super) const MAX_EVENTS: usize = 5;

/// Renders the page, with at most `height` lines of at most `width` columns.
pub(super) fn render(view: &View, width: usize, height: usize, colour: bool) -> String {
    let mut lines = layout(view, width, height);
    lines.truncate(height);
    page(&lines, width, colour)
}

/// Returns a panel per zone if they fit with the newest event, else a table, and as many events as there is
/// room for.
fn layout(view: &View, width: usize, height: usize) -> Vec<Line> {
    let head = head(view, width);
    let height = height.saturating_sub(head.len());
    let mut body = panels(&zones(view), width);
    if body.len() + foot(view, width, 0).len() + usize::from(!view.events.is_empty()) > height {
        body = zone_table(&view.zones, width);
    }
    let foot = foot(view, width, height.saturating_sub(body.len()));
    let room = height.saturating_sub(foot.len());
    if body.len() > room {
        let hidden = body.len() - room + 1;
        body.truncate(room.saturating_sub(1));
        body.push(Line::new(format!("and {hidden} more zones: the window is too low"), Style::Dim));
    }
    [head, body, foot].concat()
}

fn head(view: &View, width: usize) -> Vec<Line> {
    let zones = view.zones.len();
    let left = Line::new("numacast demo", Style::Bold)
        .add(format!("  {}, {zones} NUMA zones, seed {}", view.node, view.seed), Style::Plain);
    let quit = "q quits";
    let live = !view.command.is_empty();
    let title = if live && left.width() + quit.len() + 2 <= width {
        left.fitted(width - quit.len()).add(quit, Style::Dim)
    } else {
        left
    };
    let what = "A simulated kubelet, the real agent. Below: the object as the API server has it.";
    vec![title, Line::new(what, Style::Dim), Line::default()]
}

/// Returns the lines below the zones: the latencies, and above them the events that fit.
fn foot(view: &View, width: usize, height: usize) -> Vec<Line> {
    let lag = format!("; {} of it in the kubelet", millis(view.release_lag));
    let releases = timing("releases     ", &view.release);
    let releases = if view.release.count > 0 { releases.add(lag, Style::Dim) } else { releases };
    let mut lines = vec![timing("allocations  ", &view.allocation), releases, state(view)];
    lines.extend(command(view, width));
    let room = height.saturating_sub(lines.len() + 1);
    let events = |count| view.events.iter().take(count).enumerate().map(|(age, event)| line(event, age == 0));
    let mut foot = vec![Line::default()];
    // With a heading and a blank line, if there is room for two events.
    if room < 4 || view.events.is_empty() {
        foot.extend(events(room));
    } else {
        foot.push(Line::new("Events, and how long until the object showed them:", Style::Dim));
        foot.extend(events(MAX_EVENTS.min(room - 2)));
        foot.push(Line::default());
    }
    foot.extend(lines);
    foot
}

fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

fn command(view: &View, width: usize) -> Option<Line> {
    let prefix = "See it yourself: ";
    let roomy = prefix.len() + view.command.len() <= width;
    let line = Line::new(if roomy { prefix } else { "" }, Style::Dim).add(&view.command, Style::Plain);
    (!view.command.is_empty()).then_some(line)
}

fn line(event: &Event, is_newest: bool) -> Line {
    let style = if is_newest { Style::Bold } else { Style::Dim };
    let took = event.took.map_or_else(String::new, millis);
    Line::new(format!("{took:>9}  "), Style::Good).add(event.text.clone(), style)
}

fn timing(what: &str, summary: &Summary) -> Line {
    let line = Line::new(what, Style::Plain);
    if summary.count == 0 {
        return line.add("none yet", Style::Dim);
    }
    let times = format!("p50 {}  p99 {}", millis(summary.p50), millis(summary.p99));
    line.add(times, Style::Good).add(format!(" of {}", summary.count), Style::Dim)
}

/// Returns whether the object matches the kubelet's state, and the number of writes.
fn state(view: &View) -> Line {
    let line = match (&view.error, view.matches, view.zones.is_empty()) {
        (Some(error), ..) => Line::new(error.clone(), Style::Bad),
        (None, _, true) => Line::new("Waiting for the agent's first object.", Style::Dim),
        (None, true, _) => Line::new("The object matches the kubelet's own state.", Style::Good),
        (None, false, _) => Line::new("The object is being updated.", Style::Used),
    };
    line.add(format!("  {} for {}", count(view.writes, "write"), count(view.changes, "change")), Style::Dim)
}

/// Formats a duration: `4.2 ms`, `251 ms`, `1.2 s`.
fn millis(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    match ms {
        ms if ms < 99.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// Returns the zones with the names of their pods.
fn zones(view: &View) -> Vec<Zone> {
    let pods = |zone: &Zone| pods_on(view, zone).into_iter().map(str::to_owned).collect();
    view.zones.iter().map(|zone| Zone { pods: pods(zone), ..zone.clone() }).collect()
}

fn pods_on<'a>(view: &'a View, zone: &Zone) -> Vec<&'a str> {
    let id = zone.name.strip_prefix("node-").and_then(|id| id.parse().ok());
    let on = |zones: &String| {
        let zones: numacast_core::machine::IdSet = zones.parse().unwrap_or_default();
        id.is_some_and(|id| zones.contains(id))
    };
    view.pods.iter().filter(|(_, zones)| on(zones)).map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests;
