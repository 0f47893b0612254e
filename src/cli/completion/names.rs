//! Completers of arguments that are names in a cluster. After any error there are no candidates.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::ArgMatches;
use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCompleter;

use super::COMPLETE;
use crate::cluster::{Cluster, ClusterError, contexts};
use crate::names::is_dns_name;

/// How long a user waits for names.
const LIMIT: Duration = Duration::from_secs(2);

/// Completes the name of a Node.
pub(in super::super) fn node_name_completer() -> ArgValueCompleter {
    completer(|current| {
        starting_with(current, given().read(|cluster| async move { cluster.node_names().await }))
    })
}

/// Completes a pod as `NAMESPACE/NAME`, or its name if the command line has a namespace.
pub(in super::super) fn pod_name_completer() -> ArgValueCompleter {
    completer(|current| {
        let given = given();
        if let Some((namespace, _)) = current.split_once('/') {
            let pods = given.pods(namespace).into_iter().map(|pod| format!("{namespace}/{pod}"));
            return starting_with(current, pods.collect());
        }
        if let Some(namespace) = &given.namespace {
            return starting_with(current, given.pods(namespace));
        }
        let namespaces = given.read(|cluster| async move { cluster.namespace_names().await });
        starting_with(current, namespaces.into_iter().map(|namespace| namespace + "/").collect())
    })
}

/// Completes a namespace.
pub(in super::super) fn namespace_completer() -> ArgValueCompleter {
    completer(|current| {
        starting_with(current, given().read(|cluster| async move { cluster.namespace_names().await }))
    })
}

/// Completes a context of the kubeconfig.
pub(in super::super) fn context_completer() -> ArgValueCompleter {
    completer(|current| starting_with(current, contexts(given().kubeconfig.as_deref())))
}

fn completer(
    complete: impl Fn(&str) -> Vec<CompletionCandidate> + Send + Sync + 'static,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| current.to_str().map(&complete).unwrap_or_default())
}

fn starting_with(start: &str, mut names: Vec<String>) -> Vec<CompletionCandidate> {
    names.retain(|name| name.starts_with(start));
    names.sort();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// What the command line that is completed says about the cluster.
#[derive(Default)]
struct Given {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    namespace: Option<String>,
}

fn given() -> Given {
    let words = std::env::args_os().skip_while(|word| word != COMPLETE).skip(1);
    Given::of(words.collect())
}

impl Given {
    /// Reads the flags before the first error: the line is incomplete.
    fn of(words: Vec<OsString>) -> Self {
        let words = std::iter::once(OsString::new()).chain(words);
        let Ok(matches) = super::super::command().ignore_errors(true).try_get_matches_from(words) else {
            return Self::default();
        };
        // One command's flag is a path, the other's is a text.
        let path = value_of::<PathBuf>(&matches, "kubeconfig");
        Self {
            kubeconfig: path.or_else(|| value_of::<String>(&matches, "kubeconfig").map(PathBuf::from)),
            context: value_of(&matches, "context"),
            namespace: value_of(&matches, "namespace"),
        }
    }

    fn pods(&self, namespace: &str) -> Vec<String> {
        // It becomes part of a URL.
        if !is_dns_name(namespace) {
            return Vec::new();
        }
        let namespace = namespace.to_owned();
        self.read(|cluster| async move { cluster.pod_names(&namespace).await })
    }

    fn read<F>(&self, read: impl FnOnce(Cluster) -> F + Send + 'static) -> Vec<String>
    where
        F: Future<Output = Result<Vec<String>, ClusterError>>,
    {
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let (sender, names) = mpsc::channel();
        let ask = move || {
            let answer = super::super::block_on(async {
                let cluster = Cluster::in_context(kubeconfig.as_deref(), context.as_deref(), LIMIT).await?;
                Ok(read(cluster).await?)
            });
            let names = answer.unwrap_or_default();
            // Nobody waits any more after the limit.
            let _ = sender.send(names);
        };
        // Another thread, since a kubeconfig's credential plugin blocks it.
        let _ = std::thread::Builder::new().spawn(ask);
        names.recv_timeout(LIMIT).unwrap_or_default()
    }
}

/// Returns the value of a flag of the command or, if it has none, of the one that it belongs to.
fn value_of<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, flag: &str) -> Option<T> {
    let inner = matches.subcommand().and_then(|(_, matches)| value_of(matches, flag));
    inner.or_else(|| matches.try_get_one::<T>(flag).ok().flatten().cloned())
}
