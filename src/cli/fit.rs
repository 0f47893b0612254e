use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use super::cluster::ClusterArgs;
use super::flags::{ConfigArgs, Flag, Flags, HOST_ROOT, KUBELET_DIR, KUBELET_SOCKET, NODE_NAME};
use super::terminal::Terminal;
use crate::agent::Recording;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::inspect::fit::{self, Answer, Explanation, Fleet, Local, NEWEST_MINOR, Selection, Workload};
use crate::names::is_dns_name;
use crate::pod::Wanted;
use crate::render::{Line, Style, page};

/// Maximum size of a manifest, in bytes.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = false, subcommand_negates_reqs = true)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    what: WhatArgs,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Where a pod of the cluster would fit, also if it is Pending.
    Pod {
        /// NAMESPACE/NAME, or a name in the namespace of -n
        pod: String,
    },
}

/// The pod that is asked about.
#[derive(Debug, clap::Args)]
struct WhatArgs {
    /// A manifest with a Pod, Deployment, StatefulSet, Job or List; - for standard input
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with_all = ["cpu", "memory", "device", "pending"])]
    filename: Option<PathBuf>,
    /// CPUs of a Guaranteed pod with one container, such as 8
    #[arg(long, value_name = "QUANTITY", requires = "memory")]
    cpu: Option<String>,
    /// Its memory, such as 16Gi
    #[arg(long, value_name = "QUANTITY", requires = "cpu")]
    memory: Option<String>,
    /// Its devices and huge pages, such as nvidia.com/gpu=1 or hugepages-1Gi=2Gi
    #[arg(long, value_name = "RESOURCE=QUANTITY", requires = "cpu")]
    device: Vec<String>,
    /// All pods that are Pending and bound to no node, in one table
    #[arg(long, conflicts_with_all = ["cpu", "memory", "device", "make_room", "local", "replay"])]
    pending: bool,
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Only these nodes; one of them is explained in full
    #[arg(long, value_name = "NODE", global = true)]
    node: Vec<String>,
    /// Only nodes with these labels, as in `kubectl get nodes -l`
    #[arg(short = 'l', long, value_name = "SELECTOR", global = true, conflicts_with = "node")]
    selector: Option<String>,
    /// Also find the smallest sets of pods whose end would make room; ends nothing
    #[arg(long, global = true)]
    make_room: bool,
    /// The namespace of the pod, or of the pending pods
    #[arg(short, long, value_name = "NAMESPACE", global = true)]
    namespace: Option<String>,
    /// How the answer is printed
    #[arg(short, long, value_enum, default_value_t, global = true)]
    output: Output,
    /// Ask this node's own kubelet: which CPUs and devices, not only how many
    #[arg(long, global = true, conflicts_with_all = ["node", "selector"])]
    local: bool,
    /// Ask a recording of a node, made by `numacast snapshot --record`
    #[arg(long, value_name = "FILE", global = true, conflicts_with_all = ["node", "selector", "local"])]
    replay: Option<PathBuf>,
    /// The Kubernetes version of the kubelet of --local or --replay, such as 1.36. Default: that of the Node if the API
    /// server can be asked, else the newest that is known
    #[arg(long, value_name = "VERSION", global = true, value_parser = minor_version)]
    kubelet_version: Option<u32>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    config: ConfigArgs<LocalFlags>,
}

#[derive(Clone, Debug)]
struct LocalFlags;

impl Flags for LocalFlags {
    const FLAGS: &'static [&'static [Flag]] = &[&[NODE_NAME, HOST_ROOT, KUBELET_DIR, KUBELET_SOCKET]];
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Text,
    /// As text, with every node
    Wide,
    Json,
}

fn minor_version(text: &str) -> Result<u32, String> {
    let minor = text.trim_start_matches('v').strip_prefix("1.").and_then(|rest| rest.split('.').next());
    let minor = minor.and_then(|minor| minor.parse().ok()).ok_or("write a version such as 1.36")?;
    let known = 34..=NEWEST_MINOR;
    if known.contains(&minor) { Ok(minor) } else { Err(format!("1.34 to 1.{NEWEST_MINOR} are known")) }
}

/// An answer in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonAnswer<'a> {
    pod: &'a str,
    replicas: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_considered: Vec<&'static str>,
    nodes: &'a [Answer],
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { verb, what, options } = args;
    if let Some(name) = options.node.iter().find(|name| !is_dns_name(name)) {
        bail!("{name:?} cannot be the name of a node");
    }
    super::block_on(async {
        if what.pending {
            ensure!(verb.is_none(), "--pending is about all pending pods: leave out `pod`");
            return pending(&options).await;
        }
        let workloads = match verb {
            Some(Verb::Pod { pod }) => {
                ensure!(
                    what.is_empty(),
                    "`fit pod` asks about a pod of the cluster: leave out -f, --cpu and --memory"
                );
                vec![pod_of_cluster(&options, &pod).await?]
            }
            None => what.workloads(options.namespace.as_deref())?,
        };
        match options.local || options.replay.is_some() {
            true => local(&options, &workloads).await,
            false => in_cluster(&options, &workloads).await,
        }
    })
}

impl WhatArgs {
    fn is_empty(&self) -> bool {
        self.filename.is_none() && self.cpu.is_none()
    }

    fn workloads(&self, namespace: Option<&str>) -> anyhow::Result<Vec<Workload>> {
        if let Some(file) = &self.filename {
            let text = read(file).with_context(|| format!("cannot read {}", file.display()))?;
            return Workload::read(&text, namespace.unwrap_or("default"))
                .with_context(|| file.display().to_string());
        }
        let (Some(cpu), Some(memory)) = (&self.cpu, &self.memory) else {
            bail!("which pod? Give -f FILE, `pod NAMESPACE/NAME`, --cpu and --memory, or --pending");
        };
        let mut amounts =
            BTreeMap::from([("cpu".to_owned(), cpu.clone()), ("memory".to_owned(), memory.clone())]);
        for device in &self.device {
            let Some((name, quantity)) = device.split_once('=') else {
                bail!("--device {device}: write RESOURCE=QUANTITY, such as nvidia.com/gpu=1");
            };
            amounts.insert(name.to_owned(), quantity.to_owned());
        }
        Ok(vec![Workload::of_amounts(&amounts).map_err(anyhow::Error::msg)?])
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    let input: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file)?)
    };
    let mut text = String::new();
    input.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= MAX_BYTES, "it is larger than {MAX_BYTES} bytes");
    Ok(text)
}

async fn pod_of_cluster(options: &Options, pod: &str) -> anyhow::Result<Workload> {
    let (namespace, name) = match pod.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (options.namespace.as_deref().unwrap_or("default"), pod),
    };
    ensure!(
        is_dns_name(namespace) && is_dns_name(name),
        "{pod:?} cannot be the name of a pod: write NAMESPACE/NAME"
    );
    let cluster = options.cluster.cluster().await?;
    let found = cluster.whole_pod(namespace, name).await?;
    let found = found.with_context(|| format!("there is no pod {namespace}/{name}"))?;
    Workload::of_pod(found, &format!("Pod {namespace}/{name}")).map_err(anyhow::Error::msg)
}

impl Options {
    fn selection(&self) -> Selection {
        match (&self.selector, self.node.is_empty()) {
            (Some(labels), _) => Selection::Labels(labels.clone()),
            (None, true) => Selection::All,
            (None, false) => Selection::Named(self.node.clone()),
        }
    }

    async fn fleet(&self, cluster: &Cluster) -> anyhow::Result<Fleet> {
        let mut fleet = Fleet::read(cluster, &self.selection()).await?;
        if self.make_room {
            fleet.read_budgets(cluster).await?;
        }
        ensure!(!fleet.nodes.is_empty(), "there are no Nodes, or none with these labels");
        Ok(fleet)
    }
}

async fn in_cluster(options: &Options, workloads: &[Workload]) -> anyhow::Result<ExitCode> {
    let cluster = options.cluster.cluster().await?;
    let fleet = options.fleet(&cluster).await?;
    let answers: Vec<Vec<Answer>> = workloads.iter().map(|workload| fit::answers(&fleet, workload)).collect();
    if options.output == Output::Json {
        return print_json(workloads, &answers);
    }
    let terminal = Terminal::now();
    let mut lines = Vec::new();
    for (workload, answers) in workloads.iter().zip(&answers) {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        match answers.as_slice() {
            [answer] => {
                let view = fleet.nodes[0].view_with_pods(&fleet.budgets).filter(|_| !answer.fits());
                let explained = view.map(|view| Explanation::new(view, workload, options.make_room));
                lines.extend(fit::explanation(workload, answer, explained.as_ref(), terminal.width()));
            }
            several => {
                lines.extend(fit::summary(
                    workload,
                    several,
                    options.output == Output::Wide,
                    terminal.width(),
                ));
                if options.make_room && !several.iter().any(Answer::fits) {
                    lines.extend(fit::easiest_room(&fleet, workload, several));
                }
            }
        }
        lines.extend(not_considered(workload));
    }
    super::print(&page(&lines, terminal.width(), terminal.colour))?;
    Ok(exit(&answers))
}

fn not_considered(workload: &Workload) -> Option<Line> {
    let names = fit::not_considered(workload);
    let text = format!("Not considered: {}", names.join(", "));
    (!names.is_empty()).then(|| Line::new(text, Style::Warning))
}

/// 0 if every pod fits somewhere.
fn exit(answers: &[Vec<Answer>]) -> ExitCode {
    match answers.iter().all(|answers| answers.iter().any(Answer::fits)) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn print_json(workloads: &[Workload], answers: &[Vec<Answer>]) -> anyhow::Result<ExitCode> {
    let all = workloads.iter().zip(answers).map(|(workload, nodes)| JsonAnswer {
        pod: &workload.name,
        replicas: workload.replicas,
        not_considered: fit::not_considered(workload),
        nodes,
    });
    let all: Vec<JsonAnswer<'_>> = all.collect();
    super::print(&(serde_json::to_string_pretty(&all)? + "\n"))?;
    Ok(exit(answers))
}

async fn pending(options: &Options) -> anyhow::Result<ExitCode> {
    let cluster = options.cluster.cluster().await?;
    let pods = fit::pending_pods(&cluster, options.namespace.as_deref()).await?;
    if pods.is_empty() {
        super::print_error("no pod is Pending without a node");
        return Ok(ExitCode::SUCCESS);
    }
    let fleet = options.fleet(&cluster).await?;
    let answered = pods.into_iter().map(|(workload, message)| {
        let answers = fit::answers(&fleet, &workload);
        (workload, message, answers)
    });
    let (workloads, answers): (Vec<_>, Vec<_>) =
        answered.map(|(workload, message, answers)| ((workload, message), answers)).unzip();
    if options.output == Output::Json {
        let workloads: Vec<Workload> = workloads.into_iter().map(|(workload, _)| workload).collect();
        return print_json(&workloads, &answers);
    }
    let terminal = Terminal::now();
    let code = exit(&answers);
    let rows =
        workloads.into_iter().zip(answers).map(|((workload, message), answers)| (workload, message, answers));
    let rows: Vec<_> = rows.collect();
    super::print(&page(&fit::pending(&rows, terminal.width()), terminal.width(), terminal.colour))?;
    Ok(code)
}

async fn local(options: &Options, workloads: &[Workload]) -> anyhow::Result<ExitCode> {
    let local = read_local(options).await?;
    local.warnings.iter().for_each(super::print_error);
    let answers: Vec<Vec<Answer>> = workloads.iter().map(|workload| vec![local.answer(workload)]).collect();
    if options.output == Output::Json {
        return print_json(workloads, &answers);
    }
    let terminal = Terminal::now();
    let mut lines = Vec::new();
    for (workload, answer) in workloads.iter().zip(answers.iter().flatten()) {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        let explained =
            (!answer.fits()).then(|| Explanation::new(local.view.clone(), workload, options.make_room));
        lines.extend(fit::explanation(workload, answer, explained.as_ref(), terminal.width()));
    }
    super::print(&page(&lines, terminal.width(), terminal.colour))?;
    Ok(exit(&answers))
}

async fn read_local(options: &Options) -> anyhow::Result<Local> {
    let mut warnings = Vec::new();
    let (recording, api) = match &options.replay {
        Some(file) => (Recording::read(file)?, None),
        None => {
            let mut config: Config = options.config.given.effective()?.config;
            if config.node_name.is_empty() {
                config.node_name = super::snapshot::host_name(&config);
            }
            let cluster = options.cluster.cluster().await.ok();
            let recording = Recording::take(&config.agent_settings(), cluster.clone()).await;
            let api = match &cluster {
                Some(cluster) => node_and_pods(cluster, &config.node_name).await,
                None => Err(anyhow::anyhow!("there is no kubeconfig")),
            };
            let api = api.map_err(|error| {
                warnings
                    .push(format!("{error:#}; what pods request of the node as a whole is not considered"));
            });
            (recording, api.ok())
        }
    };
    let minor = options.kubelet_version.or(api.as_ref().and_then(|(minor, _)| *minor));
    let minor = minor.unwrap_or_else(|| {
        warnings.push(format!(
            "the kubelet's version is not known: taken for 1.{NEWEST_MINOR}; set --kubelet-version"
        ));
        NEWEST_MINOR
    });
    let mut local = Local::new(&recording, minor, api.map(|(_, api)| api))?;
    local.warnings.extend(warnings);
    Ok(local)
}

type Api = (crate::admission::NodeAmounts, Vec<crate::core_v1::PlacedPod>);

async fn node_and_pods(cluster: &Cluster, node: &str) -> anyhow::Result<(Option<u32>, Api)> {
    let details = cluster.node(node).await?;
    let pods = cluster.placed_pods(Some(node), &Wanted::default()).await?;
    Ok((details.minor(), (details.allocatable, pods)))
}
