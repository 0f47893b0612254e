//! Runs a command and measures it.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::requests::{self, Requests};
use crate::support::{Cluster, usage};
use crate::{TIMEOUT, Tool};

pub(crate) const HEAD: &str = "| command | s, median | s, at most | target, s | peak memory, MiB | requests | lists, each page | target |\n\
                               |---|---|---|---|---|---|---|---|";

/// How often the peak of the memory is read: the kernel forgets it when the process ends.
const SAMPLE: Duration = Duration::from_millis(5);

/// One run of a command.
pub(crate) struct Run {
    wall: Duration,
    /// In bytes.
    peak: usize,
    requests: Requests,
}

/// All runs of a command.
pub(crate) struct Figures(pub(crate) Vec<Run>);

impl Run {
    /// Runs a command.
    pub(crate) async fn measure(cluster: &Cluster, binary: &Path, tool: &Tool) -> Result<Self> {
        let before = requests::count(cluster).await?;
        let (output, errors) = (cluster.dir().join("output"), cluster.dir().join("errors"));
        let mut command = Command::new(binary);
        command.args(tool.arguments).arg("--kubeconfig").arg(cluster.admin_kubeconfig());
        command.stdin(Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&errors)?);
        let start = Instant::now();
        let mut child = command.kill_on_drop(true).spawn().with_context(|| binary.display().to_string())?;
        let pid = child.id().context("it has ended at once")?;
        let mut peak = 0;
        let ended = async {
            let mut samples = interval(SAMPLE);
            samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    status = child.wait() => break status,
                    _ = samples.tick() => peak = usage::memory(pid, "VmHWM").unwrap_or(peak),
                }
            }
        };
        let status = timeout(TIMEOUT, ended).await.context("it takes too long")??;
        let wall = start.elapsed();
        let requests = requests::since(&before, requests::count(cluster).await?);
        let (output, errors) = (std::fs::read_to_string(output)?, std::fs::read_to_string(errors)?);
        // 1: it does not fit on a node, or there are findings.
        ensure!(
            matches!(status.code(), Some(0 | 1)) && output.contains(tool.prints),
            "{}: {status}, and {:?} is not in what it prints: {output:.2000}{errors:.2000}",
            tool.arguments.join(" "),
            tool.prints
        );
        Ok(Self { wall, peak, requests })
    }
}

impl Figures {
    fn walls(&self) -> Vec<f64> {
        let mut walls: Vec<f64> = self.0.iter().map(|run| run.wall.as_secs_f64()).collect();
        walls.sort_by(f64::total_cmp);
        walls
    }

    fn median(&self) -> f64 {
        let walls = self.walls();
        walls[walls.len() / 2]
    }

    /// Returns the requests of most runs: the API server makes some of its own now and then.
    fn requests(&self) -> Requests {
        let keys: BTreeSet<_> = self.0.iter().flat_map(|run| run.requests.keys()).collect();
        let median = |key: &(String, String)| {
            let mut counts: Vec<u64> =
                self.0.iter().map(|run| run.requests.get(key).copied().unwrap_or_default()).collect();
            counts.sort_unstable();
            counts[counts.len() / 2]
        };
        keys.into_iter().map(|key| (key.clone(), median(key))).filter(|(_, count)| *count > 0).collect()
    }

    fn lists(&self) -> u64 {
        self.requests().iter().filter(|((verb, _), _)| verb == "LIST").map(|(_, count)| count).sum()
    }

    /// Returns the row of the table.
    pub(crate) fn row(&self, tool: &Tool) -> String {
        let requests = self.requests();
        let requests = requests.iter().map(|((verb, resource), count)| format!("{count} {verb} {resource}"));
        let target = |target: Option<String>| target.unwrap_or_else(|| "-".to_owned());
        format!(
            "| `{}` | {:.2} | {:.2} | {} | {:.0} | {} | {} | {} |",
            tool.arguments.join(" "),
            self.median(),
            self.walls().last().copied().unwrap_or_default(),
            target(tool.seconds.map(|most| most.to_string())),
            self.0.iter().map(|run| run.peak).max().unwrap_or_default() as f64 / 1048576.0,
            requests.collect::<Vec<_>>().join(", "),
            self.lists(),
            target(tool.lists.map(|most| most.to_string())),
        )
    }

    /// Returns a sentence for each target that is missed.
    pub(crate) fn missed(&self, tool: &Tool) -> Vec<String> {
        let (command, median, lists) = (tool.arguments.join(" "), self.median(), self.lists());
        let late = tool.seconds.filter(|most| median > *most);
        let late = late.map(|most| format!("{command} takes {median:.2} s, more than {most}"));
        let many = tool.lists.filter(|most| lists > *most);
        let many = many.map(|most| format!("{command} sends {lists} lists, more than {most}"));
        late.into_iter().chain(many).collect()
    }
}
