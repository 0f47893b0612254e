//! How the commands for people reach the API server.

use std::path::PathBuf;

use super::completion::context_completer;
use crate::cluster::{Cluster, ClusterError};
use crate::config::Period;

/// The flags that kubectl has too.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// A kubeconfig file. Default: $KUBECONFIG, ~/.kube/config or the pod's service account
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use, instead of its current one
    #[arg(long, value_name = "NAME", global = true, add = context_completer())]
    context: Option<String>,
    /// How long a request may take
    #[arg(long, value_name = "DURATION", default_value = "30s", global = true)]
    request_timeout: Period,
}

impl ClusterArgs {
    /// Returns a client. Does not connect yet.
    pub(super) async fn cluster(&self) -> Result<Cluster, ClusterError> {
        let kubeconfig = self.kubeconfig.as_deref();
        Cluster::in_context(kubeconfig, self.context.as_deref(), self.request_timeout.get()).await
    }
}
