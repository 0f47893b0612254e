use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::cluster::ClusterArgs;
use super::completion::{namespace_completer, node_name_completer, pod_name_completer};
use super::exit::Exit;
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
pub(super) struct Args {
    #[command(flatten)]
    what: WhatArgs,
    #[command(flatten)]
    options: Options,
}

/// The pod that is asked about.
#[derive(Debug, clap::Args)]
struct WhatArgs {
    /// A pod of the cluster, also if it is Pending; without a namespace in that of -n
    #[arg(
        value_name = "pod NAMESPACE/NAME",
        num_args = 1..=2,
        conflicts_with_all = ["filename", "cpu", "pending"],
        add = pod_name_completer()
    )]
    pod: Vec<String>,
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
    #[arg(long, value_name = "NODE", add = node_name_completer())]
    node: Vec<String>,
    /// Only nodes with these labels, as in `kubectl get nodes -l`
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "node")]
    selector: Option<String>,
    /// Also find the smallest sets of pods whose end would make room; ends nothing
    #[arg(long)]
    make_room: bool,
    /// The namespace of the pod, or of the pending pods
    #[arg(short, long, value_name = "NAMESPACE", add = namespace_completer())]
    namespace: Option<String>,
    /// How the answer is printed
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Ask this node's own kubelet: which CPUs and devices, not only how many
    #[arg(long, conflicts_with_all = ["node", "selector"])]
    local: bool,
    /// Ask a recording of a node, made by `numacast snapshot --record`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "selector", "local"])]
    replay: Option<PathBuf>,
    /// The Kubernetes version of the kubelet of --local or --replay, such as 1.36. Default: that of the Node if the API
    /// server can be asked, else the newest that is known
    #[arg(long, value_name = "VERSION", value_parser = minor_version)]
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
    let Args { what, options } = args;
    if let Some(name) = options.node.iter().find(|name| !is_dns_name(name)) {
        bail!("{name:?} cannot be the name of a node");
    }
    super::block_on(async {
        if what.pending {
            return pending(&options).await;
        }
        let workloads = match what.pod()? {
            Some(pod) => vec![pod_of_cluster(&options, pod).await?],
            None => what.workloads(options.namespace.as_deref())?,
        };
        match options.local || options.replay.is_some() {
            true => local(&options, &workloads).await,
            false => in_cluster(&options, workloads).await,
        }
    })
}

impl WhatArgs {
    /// Returns the name of the pod of the cluster: `pod NAME` and `pod/NAME` are as in kubectl.
    fn pod(&self) -> anyhow::Result<Option<&str>> {
        match self.pod.as_slice() {
            [] => Ok(None),
            [kind, name] if matches!(kind.as_str(), "pod" | "pods" | "po") => Ok(Some(name)),
            [name] if name.starts_with("pod/") => Ok(name.strip_prefix("pod/")),
            other => bail!("{}: write pod NAMESPACE/NAME", other.join(" ")),
        }
    }

    fn workloads(&self, namespace: Option<&str>) -> anyhow::Result<Vec<Workload>> {
        if let Some(file) = &self.filename {
            let text = super::input::read(file, MAX_BYTES)?;
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

async fn pod_of_cluster(options: &Options, pod: &str) -> anyhow::Result<Workload> {
    let cluster = options.cluster.cluster().await?;
    let of_context = cluster.config().map_or("default", |config| &config.default_namespace);
    let (namespace, name) = match pod.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => (options.namespace.as_deref().unwrap_or(of_context), pod),
    };
    ensure!(
        is_dns_name(namespace) && is_dns_name(name),
        "{pod:?} cannot be the name of a pod: write NAMESPACE/NAME"
    );
    let found = cluster.whole_pod(namespace, name).await?;
    let found = found.with_context(|| format!("there is no pod {namespace}/{name}"))?;
    Workload::of_cluster(found, &format!("Pod {namespace}/{name}")).map_err(anyhow::Error::msg)
}

impl Options {
    fn selection(&self) -> Selection {
        match (&self.selector, self.node.is_empty()) {
            (Some(labels), _) => Selection::Labels(labels.clone()),
            (None, true) => Selection::All,
            (None, false) => {
                let named: BTreeSet<&String> = self.node.iter().collect();
                Selection::Named(named.into_iter().cloned().collect())
            }
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

async fn in_cluster(options: &Options, mut workloads: Vec<Workload>) -> anyhow::Result<ExitCode> {
    let cluster = options.cluster.cluster().await?;
    fit::read_claims(&cluster, &mut workloads).await;
    let workloads = &workloads;
    let fleet = options.fleet(&cluster).await?;
    let answers = fit::answers(&fleet, workloads);
    let explain = |(workload, answers): (&Workload, &Vec<Answer>)| {
        let [answer] = answers.as_slice() else { return None };
        fleet.nodes[0].explain(&fleet.budgets, workload, answer, options.make_room)
    };
    let explained = workloads.iter().zip(&answers).map(explain).collect();
    print_answers(options, workloads, answers, explained, Some(&fleet))
}

/// Prints the answers for each pod: one node in full, several in a table. `fleet` are the nodes, if they are those of the
/// cluster.
fn print_answers(
    options: &Options,
    workloads: &[Workload],
    mut answers: Vec<Vec<Answer>>,
    explained: Vec<Option<Explanation>>,
    fleet: Option<&Fleet>,
) -> anyhow::Result<ExitCode> {
    let easiest = |(workload, answers): (&Workload, &Vec<Answer>)| {
        let asked = options.make_room && answers.len() > 1 && !answers.iter().any(Answer::fits);
        fleet.filter(|_| asked).map(|fleet| fit::easiest_room(fleet, workload, answers))
    };
    let easiest: Vec<Option<Option<Explanation>>> = workloads.iter().zip(&answers).map(easiest).collect();
    if options.output == Output::Json {
        for ((answers, explained), easiest) in answers.iter_mut().zip(&explained).zip(&easiest) {
            for explanation in explained.iter().chain(easiest.iter().flatten()) {
                let of_node = answers.iter_mut().find(|answer| answer.node == explanation.view.name);
                of_node.into_iter().for_each(|answer| answer.explanation = Some(explanation.to_json()));
            }
        }
        return print_json(workloads, &slices(&answers));
    }
    let terminal = Terminal::now();
    let width = terminal.width();
    let mut lines = Vec::new();
    for (at, (workload, answers)) in workloads.iter().zip(&answers).enumerate() {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        match answers.as_slice() {
            [answer] => lines.extend(fit::explanation(workload, answer, explained[at].as_ref(), width)),
            several => lines.extend(fit::summary(workload, several, options.output == Output::Wide, width)),
        }
        lines.extend(easiest[at].as_ref().map(|room| fit::easiest(room.as_ref())).into_iter().flatten());
        lines.extend(fleet.and_then(|_| not_considered(workload)));
    }
    print_lines(lines, terminal)?;
    Ok(exit(workloads, &slices(&answers)))
}

fn slices(answers: &[Vec<Answer>]) -> Vec<&[Answer]> {
    answers.iter().map(Vec::as_slice).collect()
}

/// Prints lines; those that are too long for the terminal are wrapped.
fn print_lines(lines: Vec<Line>, terminal: Terminal) -> anyhow::Result<()> {
    let lines: Vec<Line> = lines.into_iter().flat_map(|line| line.wrapped(terminal.width())).collect();
    super::print(&(page(&lines, usize::MAX, terminal.colour) + "\n"))
}

fn not_considered(workload: &Workload) -> Option<Line> {
    let names = fit::not_considered(workload);
    let text = format!("Not considered: {}", names.join(", "));
    (!names.is_empty()).then(|| Line::new(text, Style::Warning))
}

/// Whether there is room for every pod.
fn exit(workloads: &[Workload], answers: &[&[Answer]]) -> ExitCode {
    let exit = |(workload, answers): (&Workload, &&[Answer])| {
        let copies = answers.iter().map(|answer| answer.copies).fold(0, u64::saturating_add);
        match copies >= workload.replicas {
            true => Exit::Success,
            false if answers.iter().any(Answer::is_unknown) => Exit::Unknown,
            false => Exit::Failure,
        }
    };
    let exits: Vec<Exit> = workloads.iter().zip(answers).map(exit).collect();
    let worst = [Exit::Failure, Exit::Unknown].into_iter().find(|exit| exits.contains(exit));
    worst.unwrap_or(Exit::Success).into()
}

fn print_json(workloads: &[Workload], answers: &[&[Answer]]) -> anyhow::Result<ExitCode> {
    let all = workloads.iter().zip(answers).map(|(workload, nodes)| JsonAnswer {
        pod: &workload.name,
        replicas: workload.replicas,
        not_considered: fit::not_considered(workload),
        nodes,
    });
    let all: Vec<JsonAnswer<'_>> = all.collect();
    super::print(&(serde_json::to_string_pretty(&all)? + "\n"))?;
    Ok(exit(workloads, answers))
}

async fn pending(options: &Options) -> anyhow::Result<ExitCode> {
    let cluster = options.cluster.cluster().await?;
    let pods = fit::pending_pods(&cluster, options.namespace.as_deref()).await?;
    if pods.is_empty() {
        super::print_error("no pod is Pending without a node");
        return Ok(ExitCode::SUCCESS);
    }
    let fleet = options.fleet(&cluster).await?;
    let (mut workloads, messages): (Vec<Workload>, Vec<String>) = pods.into_iter().unzip();
    fit::read_claims(&cluster, &mut workloads).await;
    let answers = fit::shared_answers(&fleet, &workloads);
    let answers: Vec<&[Answer]> = answers.iter().map(Rc::as_ref).collect();
    if options.output == Output::Json {
        return print_json(&workloads, &answers);
    }
    let terminal = Terminal::now();
    let lines = fit::pending(&workloads, &messages, &answers, terminal.width());
    print_lines(lines, terminal)?;
    Ok(exit(&workloads, &answers))
}

async fn local(options: &Options, workloads: &[Workload]) -> anyhow::Result<ExitCode> {
    let local = read_local(options).await?;
    local.warnings.iter().for_each(super::print_error);
    let answers: Vec<Vec<Answer>> = workloads.iter().map(|workload| vec![local.answer(workload)]).collect();
    let explain = |(workload, answers): (&Workload, &Vec<Answer>)| {
        let fits = answers.iter().all(Answer::fits);
        (!fits).then(|| Explanation::new(local.view.clone(), workload, options.make_room))
    };
    let explained = workloads.iter().zip(&answers).map(explain).collect();
    print_answers(options, workloads, answers, explained, None)
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
