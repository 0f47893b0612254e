//! The answers as text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Answer, Explanation, Outcome, Plugin, Workload, reasons};
use crate::admission::TopologyPolicy;
use crate::fit::{Change, Need, NodeView, PodOnNode, Room, ZoneNeed};
use crate::quantity::{in_binary_units, is_memory};
use crate::render::{Column, Line, Style, Table, gib};

/// The most fitting nodes that are listed, and the most names of others for each reason.
const MAX_ROWS: usize = 50;
const MAX_NAMES: usize = 4;
/// The most sets of pods that are listed.
const MAX_SETS: usize = 5;
const MAX_JSON_SETS: usize = 100;
/// The most pods that are named in one zone.
const MAX_HOLDERS: usize = 4;

/// Returns the answers for all nodes: those that fit, then the others by reason. Unless `whole`, both are limited.
#[must_use]
pub fn summary(workload: &Workload, answers: &[Answer], whole: bool, width: usize) -> Vec<Line> {
    let mut fitting: Vec<&Answer> = answers.iter().filter(|answer| answer.fits()).collect();
    fitting.sort_by_key(|answer| (is_guess(answer), std::cmp::Reverse(answer.copies)));
    let copies = fitting.iter().map(|answer| answer.copies).fold(0, u64::saturating_add);
    let mut lines = vec![headline(workload, fitting.len(), answers.len(), copies)];
    let most = if whole { usize::MAX } else { MAX_ROWS };
    if !fitting.is_empty() {
        let several = workload.replicas > 1;
        let copies = several.then(|| Column::number("PODS"));
        let columns = [Column::text("NODE"), Column::text("FITS")].into_iter().chain(copies);
        let mut table = Table::new(columns.chain([Column::text("WHERE").flexible()]));
        for answer in fitting.iter().take(most) {
            let fits = if is_guess(answer) {
                Line::new("perhaps", Style::Warning)
            } else {
                Line::new("yes", Style::Good)
            };
            let copies = several.then(|| Line::from(answer.copies.to_string()));
            table.push(
                [answer.node.as_str().into(), fits]
                    .into_iter()
                    .chain(copies)
                    .chain([Line::from(landing(workload, answer))]),
            );
        }
        lines.push(Line::default());
        lines.extend(table.lines(width));
        lines.extend(guesses(workload, &fitting));
        if fitting.len() > most {
            lines.push(Line::new(
                format!("and {} more nodes; -o wide lists all", fitting.len() - most),
                Style::Dim,
            ));
        }
    }
    lines.extend(others(answers, whole, width));
    lines
}

fn headline(workload: &Workload, fitting: usize, nodes: usize, copies: u64) -> Line {
    let style = if fitting > 0 { Style::Good } else { Style::Bad };
    let line = Line::new(&workload.name, Style::Bold);
    let of = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
    let line = line.add(format!(" fits on {fitting} of {of}"), style);
    match workload.replicas {
        1 => line,
        wanted if copies >= wanted => line.add(format!("; there is room for all {wanted} pods"), Style::Good),
        wanted => line.add(format!("; there is room for {copies} of {wanted} pods"), Style::Bad),
    }
}

fn is_guess(answer: &Answer) -> bool {
    matches!(&answer.outcome, Outcome::Yes { guesses, .. } if !guesses.is_empty())
}

/// What is not known of the nodes of which only a guess is possible, and of the pod's claims.
fn guesses(workload: &Workload, answers: &[&Answer]) -> Vec<Line> {
    let outcomes = answers.iter().map(|answer| &answer.outcome);
    let known =
        outcomes.filter_map(|one| if let Outcome::Yes { guesses, .. } = one { Some(guesses) } else { None });
    let of_claims: Vec<String> = workload.guesses().collect();
    let unknown = known.flatten().filter(|guess| !of_claims.contains(guess)).map(String::as_str);
    let unknown: Vec<&str> = unknown.collect::<BTreeSet<&str>>().into_iter().collect();
    let of_objects =
        || format!("objects do not tell {}; `fit --local` on the node does", unknown.join(" and "));
    let of_objects = (!unknown.is_empty()).then(of_objects);
    let of_claims = (!of_claims.is_empty()).then(|| format!("it is not known {}", of_claims.join(" and ")));
    let lines = of_objects.into_iter().chain(of_claims);
    lines.map(|text| Line::new(format!("perhaps: {text}"), Style::Dim)).collect()
}

/// Whether the pod has one container, so that it need not be named.
fn is_single(workload: &Workload) -> bool {
    workload.spec.containers.len() == 1 && workload.spec.init_containers.is_none()
}

/// `db on node-0, log on node-1`, or `node-0` if there is only one container.
fn landing(workload: &Workload, answer: &Answer) -> String {
    let Outcome::Yes { containers, .. } = &answer.outcome else {
        return if answer.fits() { "it runs there".to_owned() } else { String::new() };
    };
    let placed = containers.iter().filter(|one| !one.zones.is_empty());
    let text = |one: &super::Landing| {
        let cpus = if one.cpus.is_empty() { String::new() } else { format!(" (CPUs {})", one.cpus) };
        let is_named = !one.container.is_empty() && !is_single(workload);
        let container = if is_named { format!("{} on ", one.container) } else { String::new() };
        let nodes = if one.zones.len() == 1 { "node-" } else { "nodes " };
        format!("{container}{nodes}{}{cpus}", one.zones)
    };
    let placed: Vec<String> = placed.map(text).collect();
    if placed.is_empty() { "nothing exclusive".to_owned() } else { placed.join(", ") }
}

fn others(answers: &[Answer], whole: bool, width: usize) -> Vec<Line> {
    let groups = reasons(answers);
    if groups.is_empty() {
        return Vec::new();
    }
    let columns =
        [Column::number("NODES"), Column::text("WHY NOT").flexible(), Column::text("WHICH").flexible()];
    let mut table = Table::new(columns);
    for (reason, nodes) in groups {
        let most = if whole { usize::MAX } else { MAX_NAMES };
        let mut names: Vec<String> = nodes.iter().take(most).map(|name| (*name).to_owned()).collect();
        if nodes.len() > most {
            names.push(format!("+{}", nodes.len() - most));
        }
        table.push([nodes.len().to_string(), reason, names.join(" ")]);
    }
    std::iter::once(Line::default()).chain(table.lines(width)).collect()
}

/// Returns why a pod does not fit, in a few words.
pub(super) fn reason(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Yes { .. } | Outcome::Runs => "it fits".to_owned(),
        Outcome::NoObject => "no object: no agent has run on it".to_owned(),
        Outcome::Excluded { message } => message.clone(),
        Outcome::Refused { reason, resources, .. } if resources.is_empty() => (*reason).to_owned(),
        Outcome::Refused { reason, resources, .. } => format!("{reason}: {}", resources.join(", ")),
    }
}

/// Returns everything about one node.
#[must_use]
pub fn explanation(
    workload: &Workload,
    answer: &Answer,
    explained: Option<&Explanation>,
    width: usize,
) -> Vec<Line> {
    let name = Line::new(&workload.name, Style::Bold);
    let mut lines = match &answer.outcome {
        Outcome::Yes { guesses, .. } => {
            let (fits, style) = if guesses.is_empty() {
                ("fits", Style::Good)
            } else {
                ("fits, as far as is known,", Style::Warning)
            };
            let copies = if workload.replicas > 1 {
                format!(": {} of {} pods", answer.copies, workload.replicas)
            } else {
                String::new()
            };
            let unknown = format!("  Not known: {}", guesses.join(", "));
            let unknown = (!guesses.is_empty()).then(|| Line::new(unknown, Style::Dim));
            let title = name.add(format!(" {fits} on {}{copies}", answer.node), style);
            let landing = Line::from(format!("  {}", landing(workload, answer)));
            [title, landing].into_iter().chain(unknown).collect()
        }
        Outcome::Runs => vec![name.add(format!(" runs on {}", answer.node), Style::Good)],
        Outcome::NoObject => vec![
            name.add(format!(": nothing is known of {}", answer.node), Style::Warning),
            Line::new("  It has no object: no agent has run on it.", Style::Plain),
        ],
        Outcome::Excluded { message } => vec![
            name.add(format!(" does not fit on {}", answer.node), Style::Bad),
            Line::new(format!("  The scheduler excludes it: {message}"), Style::Plain),
        ],
        Outcome::Refused { reason, message, container, .. } => {
            let place = if container.is_empty() || is_single(workload) {
                "the pod".to_owned()
            } else {
                format!("container {container}")
            };
            vec![
                name.add(format!(" does not fit on {}", answer.node), Style::Bad),
                Line::new(format!("  The kubelet rejects {place}: {reason}: {message}"), Style::Plain),
            ]
        }
    };
    lines.extend(plugin(answer));
    if let Some(explained) = explained {
        lines.extend(needs(explained, width));
        lines.extend(changes(workload, explained));
        lines.extend(room(explained));
    }
    lines
}

/// What the scheduler plugin says, if it checks the node.
fn plugin(answer: &Answer) -> Option<Line> {
    Some(match (answer.plugin?, &answer.outcome) {
        (Plugin::Accepts, Outcome::Refused { .. }) => Line::new(
            "  The scheduler plugin accepts the node: scheduled there, the pod would fail.",
            Style::Warning,
        ),
        (Plugin::Accepts, _) => Line::new("  The scheduler plugin accepts the node.", Style::Dim),
        (Plugin::Rejects(message), _) => {
            let fits = answer.fits();
            let although = if fits { ", although the kubelet would admit the pod" } else { "" };
            let style = if fits { Style::Warning } else { Style::Plain };
            Line::new(format!("  The scheduler plugin rejects the node: {message}{although}"), style)
        }
    })
}

/// A table with a row for each zone, and a column for each resource.
fn needs(explained: &Explanation, width: usize) -> Vec<Line> {
    let needs = &explained.needs;
    let Some(first) = needs.first() else { return Vec::new() };
    let heading =
        |need: &Need| Column::number(format!("{} (needs {})", need.resource, number(need, need.requested)));
    let columns = std::iter::once(Column::text("ZONE")).chain(needs.iter().map(heading));
    let mut table = Table::new(columns.chain([Column::text("HELD BY").flexible()]));
    for zone in first.zones.keys() {
        let cell = |need: &Need| {
            let has = &need.zones[zone];
            let style = if has.free < need.requested { Style::Bad } else { Style::Good };
            Line::new(format!("{} of {} free", number(need, has.free), number(need, has.allocatable)), style)
        };
        let name = Line::from(format!("node-{zone}"));
        let holders = Line::from(holders(explained, *zone));
        table.push(std::iter::once(name).chain(needs.iter().map(cell)).chain([holders]));
    }
    let indented =
        table.lines(width.saturating_sub(2)).into_iter().map(|line| Line::new("  ", Style::Plain).join(line));
    let elsewhere = elsewhere(explained).map(|text| Line::new(format!("  {text}"), Style::Dim));
    std::iter::once(Line::default()).chain(indented).chain(elsewhere).collect()
}

/// Who has what blocks the pod; of all that it needs if nothing is named.
fn holders(explained: &Explanation, zone: u16) -> String {
    let any_blocks = explained.needs.iter().any(|need| need.blocks);
    let mut of_pods: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for need in explained.needs.iter().filter(|need| need.blocks || !any_blocks) {
        for (at, amount) in &need.zones[&zone].holders {
            let what = format!("{} {}", number(need, *amount), need.resource);
            of_pods.entry(*at).or_default().push(what);
        }
    }
    let count = of_pods.len();
    let text = |(at, what): (usize, Vec<String>)| {
        format!("{} ({})", pod_name(&explained.view.pods[at]), what.join(", "))
    };
    let mut texts: Vec<String> = of_pods.into_iter().take(MAX_HOLDERS).map(text).collect();
    if count > MAX_HOLDERS {
        texts.push(format!("+{}", count - MAX_HOLDERS));
    }
    texts.join(", ")
}

/// Pods of which the object does not tell where they have something.
fn elsewhere(explained: &Explanation) -> Option<String> {
    let unknown = explained.view.pods.iter().filter(|pod| !pod.elsewhere.is_empty());
    let names: Vec<String> = unknown.map(pod_name).collect();
    (!names.is_empty())
        .then(|| format!("In zones that the object does not tell: {}", crate::render::listed(&names, 200)))
}

fn pod_name(pod: &PodOnNode) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn number(need: &Need, amount: u64) -> String {
    if is_memory(&need.resource) { format!("{}Gi", gib(amount)) } else { amount.to_string() }
}

fn changes(workload: &Workload, explained: &Explanation) -> Vec<Line> {
    let is_named = !is_single(workload);
    let text = |change| Line::new(format!("  - {}", change_text(change, is_named)), Style::Plain);
    let list = explained.changes.iter().map(text);
    let list: Vec<Line> = list.collect();
    if list.is_empty() {
        return list;
    }
    let title = Line::new("  Any one of these changes would make it fit:", Style::Bold);
    [Line::default(), title].into_iter().chain(list).collect()
}

/// Returns a change as a sentence without its end. `is_named`: with the container's name.
fn change_text(change: &Change, is_named: bool) -> String {
    match change {
        Change::Request { container, resource, amount } => {
            // Rounded down, which fits as well.
            let whole = if resource == "memory" { amount >> 20 << 20 } else { *amount };
            let amount = if is_memory(resource) { in_binary_units(whole) } else { amount.to_string() };
            let of = if is_named { format!(" of container {container}") } else { String::new() };
            format!("lower the {resource} request{of} to {amount}")
        }
        Change::Scope => "set the kubelet's topologyManagerScope to container".to_owned(),
        Change::Policy(policy) => {
            format!("set the kubelet's topologyManagerPolicy to {}", policy_name(*policy))
        }
        Change::HugePages { zone, resource, bytes } => {
            format!("add {} of {resource} to node-{zone}", in_binary_units(*bytes))
        }
    }
}

const fn policy_name(policy: TopologyPolicy) -> &'static str {
    match policy {
        TopologyPolicy::None => "none",
        TopologyPolicy::BestEffort => "best-effort",
        TopologyPolicy::Restricted => "restricted",
        TopologyPolicy::SingleNumaNode => "single-numa-node",
    }
}

impl Explanation {
    /// Returns it for `-o json`: `needs` by zone with the pods that hold the rest, `changes` as sentences, and `room` as
    /// sets of pods.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let name = |at: &usize| pod_name(&self.view.pods[*at]);
        let zone = |(zone, has): (&u16, &ZoneNeed)| {
            let holders = has.holders.iter().map(|(at, amount)| json!({"pod": name(at), "amount": amount}));
            let holders: Vec<Value> = holders.collect();
            let zone = format!("node-{zone}");
            json!({"zone": zone, "allocatable": has.allocatable, "free": has.free, "holders": holders})
        };
        let need = |need: &Need| {
            let zones: Vec<Value> = need.zones.iter().map(zone).collect();
            json!({"resource": need.resource, "requested": need.requested, "blocks": need.blocks, "zones": zones})
        };
        let room = match &self.room {
            None => Value::Null,
            Some(Room::Never) => json!({"sets": []}),
            Some(Room::Unknown) => json!({"sets": null}),
            Some(Room::MoreThan(count)) => json!({"moreThan": count}),
            Some(Room::Sets(sets)) => {
                let set = |set: &Vec<usize>| {
                    let pods: Vec<String> = set.iter().map(name).collect();
                    json!({"pods": pods, "violatedBudgets": self.view.violated_budgets(set)})
                };
                json!({"sets": sets.iter().take(MAX_JSON_SETS).map(set).collect::<Vec<Value>>()})
            }
        };
        let needs: Vec<Value> = self.needs.iter().map(need).collect();
        let changes: Vec<String> = self.changes.iter().map(|change| change_text(change, true)).collect();
        json!({"needs": needs, "changes": changes, "room": room})
    }
}

/// Returns where the fewest pods would have to end: [`easiest_room`](super::easiest_room).
#[must_use]
pub fn easiest(explained: Option<&Explanation>) -> Vec<Line> {
    let Some(Explanation { view, room: Some(Room::Sets(sets)), .. }) = explained else {
        let none = "On the nodes that were tried no pods are known whose end would make room.";
        return vec![Line::default(), Line::new(none, Style::Bad)];
    };
    let title = Line::new(format!("The fewest pods would have to end on {}:", view.name), Style::Bold);
    [Line::default(), title].into_iter().chain(sets_of_pods(view, sets)).collect()
}

fn room(explained: &Explanation) -> Vec<Line> {
    let view = &explained.view;
    let one = |text: String, style| vec![Line::default(), Line::new(text, style)];
    match &explained.room {
        None => Vec::new(),
        Some(Room::Never) => one(
            "  Ending pods would not make room, apart from those that start again at once.".to_owned(),
            Style::Bad,
        ),
        Some(Room::Unknown) => one(
            "  Which pods would have to end is not known: the object does not tell in which zones they are."
                .to_owned(),
            Style::Warning,
        ),
        Some(Room::MoreThan(count)) => one(
            format!("  More than {count} pods would have to end; that many were not tried."),
            Style::Warning,
        ),
        Some(Room::Sets(sets)) => {
            let mut lines = one("  Ending any one of these would make room:".to_owned(), Style::Bold);
            lines.extend(sets_of_pods(view, sets));
            lines
        }
    }
}

fn sets_of_pods(view: &NodeView, sets: &[Vec<usize>]) -> Vec<Line> {
    let line = |set: &Vec<usize>| {
        let pods: Vec<String> = set.iter().map(|at| pod_and_rank(&view.pods[*at])).collect();
        let note = match view.violated_budgets(set) {
            0 => "",
            _ => "; PodDisruptionBudgets do not allow that now",
        };
        Line::new(format!("  - {}", pods.join(" and ")), Style::Plain).add(note, Style::Warning)
    };
    let more = sets.len().saturating_sub(MAX_SETS);
    let more = (more > 0).then(|| Line::new(format!("  and {more} more"), Style::Dim));
    sets.iter().take(MAX_SETS).map(line).chain(more).collect()
}

fn pod_and_rank(pod: &PodOnNode) -> String {
    format!("{} (priority {})", pod_name(pod), pod.priority)
}

/// Returns one table of pending pods: each with its answers, and what the scheduler says.
#[must_use]
pub fn pending(
    workloads: &[Workload],
    messages: &[String],
    answers: &[&[Answer]],
    width: usize,
) -> Vec<Line> {
    let columns = [
        Column::text("POD"),
        Column::text("FITS ON"),
        Column::text("WHY NOT").flexible(),
        Column::text("THE SCHEDULER SAYS").flexible(),
    ];
    let mut table = Table::new(columns);
    for ((workload, message), answers) in workloads.iter().zip(messages).zip(answers) {
        let fitting = answers.iter().filter(|answer| answer.fits()).count();
        let style = if fitting > 0 { Style::Good } else { Style::Bad };
        let fits = Line::new(format!("{fitting} of {}", answers.len()), style);
        let why = reasons(answers).into_iter().map(|(reason, nodes)| format!("{} {reason}", nodes.len()));
        let why = why.collect::<Vec<_>>().join("; ");
        table.push([workload.name.as_str().into(), fits, Line::from(why), Line::from(message.as_str())]);
    }
    table.lines(width)
}
