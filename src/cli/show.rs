mod list;
mod watch;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;

use super::cluster::ClusterArgs;
use super::completion::node_name_completer;
use super::terminal::{Terminal, now};
use crate::cluster::{Cluster, PublishedObject};
use crate::core_v1::PlacedPod;
use crate::inspect::Picture;
use crate::inspect::show::{ChosenShape, Fleet, Objects, Row, Scope, SortBy, WantedShape};
use crate::names::is_dns_name;
use crate::pod::Wanted;
use crate::render::{Line, page};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Nodes to show as pictures. Default: a table of all that have objects
    #[arg(value_name = "NODE", add = node_name_completer())]
    nodes: Vec<String>,
    /// Only nodes with these labels, as in `kubectl get nodes -l`
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,
    /// Also show how many pods of this shape fit, such as cpu=8,memory=16Gi,nvidia.com/gpu=1, each within one zone,
    /// and what is free but of no use to them; `running` is the shape of most Guaranteed pods that run
    #[arg(long, value_name = "SHAPE")]
    shape: Option<WantedShape>,
    /// The order of the table
    #[arg(long, value_enum, default_value_t, value_name = "KEY")]
    sort_by: SortBy,
    /// Keep showing changes, until it is interrupted. On a terminal the screen is redrawn, otherwise lines are added
    #[arg(short, long)]
    watch: bool,
    /// How nodes are printed [default: picture if nodes are named without a shape, else table]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Tables without their first line
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line per node. Resources are free/allocatable and, in parentheses, the most that is free in one zone
    Table,
    /// A table with age, huge pages, what is free in the zone with the most free CPUs, and who writes the object
    Wide,
    /// Each zone with bars, and who has exclusive resources in it
    Picture,
    /// The objects as the API server has them
    Json,
    /// The objects as the API server has them
    Yaml,
    /// Only names
    Name,
}

/// How nodes are printed.
#[derive(Clone, Debug)]
struct Form {
    output: Output,
    fleet: Fleet,
    sort_by: SortBy,
    shape: Option<ChosenShape>,
}

impl Form {
    fn row(&self, object: &PublishedObject) -> Row {
        Row::new(object, self.shape.as_ref().map(|chosen| &chosen.shape))
    }

    /// Returns what is said about all rows, below them: nothing without a shape.
    fn summary(&self, rows: &[Row]) -> Vec<Line> {
        let shape = self.shape.as_ref().filter(|_| !self.fleet.no_headers);
        shape.map(|shape| vec![Line::default(), shape.summary(rows)]).unwrap_or_default()
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut form = args.form()?;
    super::block_on(async {
        let cluster = args.cluster.cluster().await?;
        form.shape = args.chosen_shape(&cluster).await?;
        let scope = args.scope(&cluster).await?;
        match form.output {
            _ if args.watch => watch::watch(&cluster, &scope, form).await,
            Output::Json | Output::Yaml => list::print_objects(&cluster, &scope, form.output).await,
            Output::Table | Output::Wide | Output::Name => print_rows(&cluster, &scope, form).await,
            Output::Picture => print_pictures(&cluster, &scope).await,
        }
    })
}

impl Args {
    fn form(&self) -> anyhow::Result<Form> {
        let is_table = self.nodes.is_empty() || self.shape.is_some();
        let default = if is_table { Output::Table } else { Output::Picture };
        let output = self.output.unwrap_or(default);
        let is_table = matches!(output, Output::Table | Output::Wide);
        if self.watch && !is_table && output != Output::Picture {
            bail!(
                "--watch prints tables and pictures; `kubectl get node-res-topo --watch` prints the others"
            );
        }
        if self.sort_by != SortBy::Node && !is_table && output != Output::Name {
            bail!("--sort-by is only for tables and names");
        }
        if self.shape.is_some() && !is_table && output != Output::Name {
            bail!("--shape is only for tables and names");
        }
        if self.sort_by.needs_shape() && self.shape.is_none() {
            bail!("--sort-by pods and stranded need a --shape");
        }
        if let Some(name) = self.nodes.iter().find(|name| !is_dns_name(name)) {
            bail!("{name:?} cannot be the name of a node");
        }
        let (wide, has_shape) = (output == Output::Wide, self.shape.is_some());
        let fleet = Fleet { wide, has_shape, no_headers: self.no_headers };
        Ok(Form { output, fleet, sort_by: self.sort_by, shape: None })
    }

    async fn chosen_shape(&self, cluster: &Cluster) -> anyhow::Result<Option<ChosenShape>> {
        match &self.shape {
            None => Ok(None),
            Some(WantedShape::Of(shape)) => Ok(Some(shape.clone().into())),
            Some(WantedShape::Running) => {
                let pods = cluster.placed_pods(None, &Wanted::default()).await?;
                let none =
                    "no running pod has exclusive CPUs: name a shape such as --shape cpu=8,memory=16Gi";
                Ok(Some(ChosenShape::of_most(&pods).context(none)?))
            }
        }
    }

    async fn scope(&self, cluster: &Cluster) -> anyhow::Result<Scope> {
        if let Some(selector) = &self.selector {
            return Ok(Scope::of_labels(cluster, selector).await?);
        }
        let mut names = self.nodes.clone();
        // Each once, as they were named.
        let mut seen = std::collections::BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(if names.is_empty() { Scope::All } else { Scope::Named(names) })
    }
}

/// What was found, for the exit code and for a sentence if it is nothing.
#[derive(Debug, Default)]
struct Found {
    objects: usize,
    missing: usize,
}

impl Found {
    fn add_missing(&mut self, node: &str) {
        self.missing += 1;
        super::print_error(format!("the node {node} has no object: does an agent run on it?"));
    }

    fn exit(&self, scope: &Scope) -> ExitCode {
        if self.objects == 0 && self.missing == 0 {
            super::print_error(match scope {
                Scope::Selected(names) if names.is_empty() => "no Node has these labels",
                Scope::Selected(_) => "no Node with these labels has an object: do agents run on them?",
                _ => "there are no objects: do agents run in this cluster?",
            });
        }
        if self.missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

async fn print_rows(cluster: &Cluster, scope: &Scope, form: Form) -> anyhow::Result<ExitCode> {
    let (mut rows, mut found) = (Vec::new(), Found::default());
    let mut objects = Objects::<PublishedObject>::new(cluster, scope);
    while let Some(page) = objects.next(|node| found.add_missing(node)).await? {
        rows.extend(page.iter().map(|object| form.row(object)));
    }
    found.objects = rows.len();
    form.sort_by.sort(&mut rows);
    if form.output == Output::Name {
        super::print(&rows.iter().map(|row| row.node.clone() + "\n").collect::<String>())?;
    } else if !rows.is_empty() {
        let terminal = Terminal::now();
        // What does not fit even so is wrapped by the terminal, as kubectl's tables are.
        let width = if form.fleet.wide { usize::MAX } else { terminal.width() };
        let mut lines = form.fleet.table(&rows, now()).lines(width);
        lines.extend(form.summary(&rows));
        super::print(&(page(&lines, usize::MAX, terminal.colour) + "\n"))?;
    }
    Ok(found.exit(scope))
}

async fn print_pictures(cluster: &Cluster, scope: &Scope) -> anyhow::Result<ExitCode> {
    let (mut found, mut is_partial) = (Found::default(), false);
    let mut objects = Objects::<PublishedObject>::new(cluster, scope);
    while let Some(next) = objects.next(|node| found.add_missing(node)).await? {
        for object in next {
            let pods = pods_of(cluster, &object.meta.name).await;
            if let Err(error) = &pods {
                is_partial = true;
                super::print_error(error);
            }
            let terminal = Terminal::now();
            let width = terminal.width();
            let lines = Picture::of_object(&object, pods.ok().as_deref(), now()).lines(width);
            let gap = if found.objects > 0 { "\n" } else { "" };
            super::print(&format!("{gap}{}\n", page(&lines, usize::MAX, terminal.colour)))?;
            found.objects += 1;
        }
    }
    let code = found.exit(scope);
    Ok(if is_partial { ExitCode::FAILURE } else { code })
}

/// Returns the pods of a node.
async fn pods_of(cluster: &Cluster, node: &str) -> anyhow::Result<Vec<PlacedPod>> {
    let pods = cluster.placed_pods(Some(node), &Wanted::default()).await;
    pods.with_context(|| format!("who has what on the node {node} is not known"))
}
