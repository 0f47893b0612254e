mod print;
mod row;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::{Subcommand, ValueEnum};

use self::print::Table;
use self::row::Row;
use super::flags::{ConfigArgs, Flag, Flags, HOST_ROOT, KUBELET_DIR};
use crate::kubelet::{PodsClient, PodsErrorKind};
use crate::pod::{Pod, Wanted};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print all pods of this node.
    List(ReadArgs),
    /// Print one pod.
    Get {
        /// Its UID, namespace/name, or name
        pod: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Print all pods of this node and then their changes, until it is interrupted.
    Watch(ReadArgs),
}

#[derive(Debug, Clone, clap::Args)]
struct ReadArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    sockets: SocketArgs,
}

#[derive(Debug, Clone, clap::Args)]
struct OutputArgs {
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// How pods are printed; name is namespace/name
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Tables without their first line
    #[arg(long)]
    no_headers: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Table,
    /// A table with addresses, QoS class and conditions
    Wide,
    Name,
}

/// Where the Pods API is served.
#[derive(Debug, Clone, clap::Args)]
struct SocketArgs {
    /// A socket of the Pods API; several are tried in this order [default: that of podsApi.dir, then the kubelet's]
    #[arg(long, value_name = "SOCKET")]
    socket: Vec<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs<PodsFlags>,
}

#[derive(Clone, Debug)]
struct PodsFlags;

impl Flags for PodsFlags {
    const FLAGS: &'static [&'static [Flag]] = &[&[HOST_ROOT, KUBELET_DIR]];
}

impl SocketArgs {
    fn client(self) -> anyhow::Result<PodsClient> {
        let config = self.config.given.effective()?.config;
        let sockets = match self.socket.is_empty() {
            true => vec![config.pods_api_socket().path, config.paths().pods_socket],
            false => self.socket,
        };
        Ok(PodsClient::new(sockets, config.kubelet.timeout.get()))
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::List(read) => super::block_on(list(read.sockets.client()?, read.output)),
        Verb::Get { pod, read: ReadArgs { output, sockets } } => {
            let mut client = sockets.client()?;
            super::block_on(async {
                let pod = find(&mut client, &pod, &output).await?;
                print_pods(&[pod], &output)
            })
        }
        Verb::Watch(read) => super::block_on(watch::watch(read.sockets.client()?, read.output)),
    }
}

async fn list(mut client: PodsClient, output: OutputArgs) -> anyhow::Result<ExitCode> {
    let mut pods = client.list(&wanted()).await?;
    pods.retain(|pod| output.is_wanted(pod));
    pods.sort_by_key(Pod::full_name);
    if pods.is_empty() && output.output != Output::Name {
        // Not the requested output, so not on standard output.
        super::print_error(match &output.namespace {
            Some(namespace) => format!("no pod of this node is in the namespace {namespace}"),
            None => "this node has no pods".to_owned(),
        });
        return Ok(ExitCode::SUCCESS);
    }
    print_pods(&pods, &output)
}

/// Prints pods. One that cannot be read is reported, and the others are still printed.
fn print_pods(pods: &[Pod], output: &OutputArgs) -> anyhow::Result<ExitCode> {
    if output.output == Output::Name {
        super::print(&pods.iter().map(|pod| print::name(&pod.namespace, &pod.name)).collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::with_capacity(pods.len());
    for pod in pods {
        match Row::of(pod) {
            Ok(row) => rows.push(row),
            Err(error) => super::print_error(error),
        }
    }
    let code = if rows.len() == pods.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if !rows.is_empty() {
        let rows = rows.iter().map(|row| (None, row));
        super::print(&Table::new(output, &[]).print(rows, super::terminal::now()))?;
    }
    Ok(code)
}

/// Finds a pod by its UID, if the text may be one, or by its name.
async fn find(client: &mut PodsClient, what: &str, output: &OutputArgs) -> anyhow::Result<Pod> {
    if may_be_uid(what) {
        match client.get(what, &wanted()).await {
            Err(error) if error.kind == PodsErrorKind::NoSuchPod => {}
            Ok(pod) if !output.is_wanted(&pod) => {
                bail!("the pod with the UID {what} is in the namespace {}: it is {}", pod.namespace, pod.name)
            }
            answer => return Ok(answer?),
        }
    }
    let (namespace, name) = match what.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, what),
    };
    let has_name =
        |pod: &Pod| pod.name == name && namespace.is_none_or(|namespace| pod.namespace == namespace);
    let is_it = |pod: &Pod| pod.uid == what || has_name(pod);
    let mut found = client.list(&wanted()).await?;
    found.retain(|pod| is_it(pod) && output.is_wanted(pod));
    match found.len() {
        0 => Err(anyhow!("this node has no pod {what}; `numacast pods list` prints those that it has")),
        1 => Ok(found.swap_remove(0)),
        _ => {
            let all: Vec<String> =
                found.iter().map(|pod| format!("{}/{} ({})", pod.namespace, pod.name, pod.uid)).collect();
            Err(anyhow!("several pods are called {what}: name the UID of one of {}", all.join(", ")))
        }
    }
}

/// Returns true if the text may be a UID. UIDs are UUIDs; that of a static pod is a hash of its manifest. A
/// name may look like one too.
fn may_be_uid(text: &str) -> bool {
    !text.contains('/')
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        && text.len() >= 32
}

impl OutputArgs {
    fn is_wanted(&self, pod: &Pod) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| pod.namespace == *namespace)
    }
}

fn wanted() -> Wanted {
    Wanted::default().with_raw()
}
