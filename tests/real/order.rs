//! The order in which a restarted kubelet reports its state, which `src/agent/reconcile/restart_guard.rs`
//! relies on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::support::prober::{Allocatable, Allocated, Pods, Prober, Recorded, Requests, Response};
use crate::support::wait::{pause, until};
use crate::support::{Cluster, Needs, Parts, RealNode, Stop, pod};

/// Pause between alternating List and `GetAllocatableResources` requests: 80 per second, below the kubelet's
/// limit of 100.
const PAUSE: Duration = Duration::from_micros(12_500);

/// What happens while the kubelet is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// The directory of its socket is recreated.
    DirectoryLost,
    /// A pod is deleted and another is bound to the node.
    PodsChange,
    /// The API server is down, and returns some time after the kubelet.
    ApiServerDead,
    /// The API server accepts connections and does not respond.
    ApiServerFrozen,
    /// The API server is down, and the kubelet finds a new static pod.
    StaticPod,
}

#[tokio::test]
async fn a_restarted_kubelet_lists_a_pod_with_everything_or_not_at_all() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut cluster = Cluster::start(&parts).await?;
    let mut node = RealNode::on("two-by-eight")?.static_pods(&cluster)?.start(&cluster).await?;
    node.run(pod("old-nic").cpus(2).memory("1Gi").device("example.com/nic", 1)).await?;
    node.run(pod("old-pages").cpus(1).memory("512Mi").hugepages("2Mi", "128Mi")).await?;
    node.run(pod("old-bridge").burstable().millicpus(100).memory("64Mi").device("example.com/bridge", 1))
        .await?;
    for index in 0..6 {
        node.run(pod(&format!("old-{index}")).cpus(1).memory("64Mi")).await?;
    }
    node.run(pod("old-nothing")).await?;

    for (round, (how, meanwhile)) in [
        (Stop::Term, Meanwhile::Nothing),
        (Stop::Kill, Meanwhile::Nothing),
        (Stop::Kill, Meanwhile::DirectoryLost),
        (Stop::Kill, Meanwhile::PodsChange),
        (Stop::Kill, Meanwhile::ApiServerDead),
        (Stop::Term, Meanwhile::ApiServerFrozen),
        (Stop::Kill, Meanwhile::StaticPod),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("{how:?}, {meanwhile:?}");
        restart(&mut cluster, &mut node, how, meanwhile, round).await.with_context(|| what)?;
    }
    Ok(())
}

/// Restarts the kubelet once, and prints and checks its responses.
async fn restart(
    cluster: &mut Cluster,
    node: &mut RealNode,
    how: Stop,
    meanwhile: Meanwhile,
    round: usize,
) -> Result<()> {
    let prober = Prober::start(node.socket(), Requests::Both, PAUSE)?;
    let (pods, allocatable) = until("the prober has both responses", async || {
        let story = Story::of(&prober.responses(), Instant::now());
        let (.., pods) = story.pods.last().context("no List")?;
        let (.., allocatable) = story.allocatable.last().context("no allocatable resources")?;
        Ok((pods.clone(), allocatable.clone()))
    })
    .await?;
    prober.clear();
    let start = Instant::now();
    node.stop_kubelet(how)?;
    let stopped = start.elapsed();
    let mut gone = BTreeSet::new();
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::DirectoryLost => node.recreate_pod_resources_dir()?,
        Meanwhile::PodsChange => {
            gone.insert("old-0".to_owned());
            node.request_deletion("old-0").await?;
            node.submit(&pod("new").cpus(2).memory("1Gi").device("example.com/nic", 1)).await?;
        }
        Meanwhile::ApiServerDead => cluster.kill_api_server()?,
        Meanwhile::StaticPod => {
            cluster.kill_api_server()?;
            let manifest = node.manifest(&pod("static").cpus(1).memory("64Mi"))?;
            std::fs::write(cluster.dir().join("manifests/static.yaml"), manifest)?;
        }
        Meanwhile::ApiServerFrozen => cluster.signal_api_server("STOP")?,
    }
    let launched = start.elapsed();
    node.launch_kubelet()?;
    if matches!(meanwhile, Meanwhile::ApiServerDead | Meanwhile::ApiServerFrozen | Meanwhile::StaticPod) {
        pause("everything that needs no API server", Duration::from_secs(6)).await;
    }
    let returned = start.elapsed();
    match meanwhile {
        Meanwhile::ApiServerDead | Meanwhile::StaticPod => cluster.restart_api_server().await?,
        Meanwhile::ApiServerFrozen => cluster.signal_api_server("CONT")?,
        _ => {}
    }
    node.wait_until_ready().await?;
    let rest: BTreeSet<&String> = pods.keys().filter(|name| !gone.contains(*name)).collect();
    until("every pod that stays is listed again", async || {
        let story = Story::of(&prober.responses(), start);
        let (.., last) = story.pods.last().context("no List")?;
        ensure!(rest.iter().all(|name| last.contains_key(*name)), "only {:?}", last.keys());
        ensure!(
            meanwhile != Meanwhile::PodsChange || last.get("new").is_some_and(|has| !has.cpus.is_empty()),
            "no new pod"
        );
        let (.., now) = story.allocatable.last().context("no allocatable resources")?;
        ensure!(now == &allocatable, "allocatable: {now:?}");
        Ok(())
    })
    .await?;
    let story = Story::of(&prober.responses(), start);
    story.print(&format!(
        "round {round}: {how:?}, {meanwhile:?}; ended after {stopped:.0?}, started at {launched:.0?}, API server up from {returned:.0?}"
    ));
    story.check(&pods, &allocatable, &ages(node).await?, &gone)?;
    if meanwhile == Meanwhile::StaticPod {
        // It needs no API server, so it proves nothing about the other pods.
        let alone =
            story.pods.iter().any(|(.., pods)| pods.len() == 1 && pods.contains_key(&node.mirror("static")));
        ensure!(alone, "the static pod was never listed alone");
    }
    for name in &gone {
        node.wait_until_gone(name).await?;
    }
    Ok(())
}

/// Returns the creation time of each of the API server's pods, which has a resolution of one second.
async fn ages(node: &RealNode) -> Result<BTreeMap<String, Time>> {
    let pods = node.pods().await?.into_iter().filter(|pod| {
        let annotations = pod.metadata.annotations.iter().flatten();
        // Mirror pods.
        !annotations.into_iter().any(|(key, _)| key == "kubernetes.io/config.mirror")
    });
    pods.map(|pod| Ok((pod.name_any(), pod.creation_timestamp().context("a pod without an age")?))).collect()
}

/// The responses, with the time since the kubelet was stopped.
#[derive(Default)]
struct Story {
    pods: Vec<(Duration, u64, Pods)>,
    /// The second time is when the response before it was last requested.
    allocatable: Vec<(Duration, u64, Option<Duration>, Allocatable)>,
    lines: Vec<(Duration, String)>,
}

impl Story {
    fn of(responses: &[Recorded], start: Instant) -> Self {
        let mut story = Self::default();
        for recorded in responses {
            let at = recorded.received.saturating_duration_since(start);
            let line = match &recorded.response {
                Response::Error(error) => format!("error ({})", error.lines().next().unwrap_or_default()),
                Response::Allocatable(now) => {
                    let other = recorded.last_other.map(|sent| sent.saturating_duration_since(start));
                    story.allocatable.push((at, recorded.socket, other, now.clone()));
                    let memory = now.memory >> 20;
                    format!("allocatable: {} CPUs, {memory} MiB, devices {:?}", now.cpus, now.devices)
                }
                Response::Pods(pods) => {
                    story.pods.push((at, recorded.socket, pods.clone()));
                    let of = |name: &String, has: &Allocated| {
                        format!(
                            "{name}({} CPUs, {} MiB, {} dev)",
                            has.cpus.len(),
                            has.memory >> 20,
                            has.devices.len()
                        )
                    };
                    let each: Vec<String> = pods.iter().map(|(name, has)| of(name, has)).collect();
                    format!("lists {}: {}", pods.len(), each.join(" "))
                }
            };
            story.lines.push((at, format!("[{}] {line}", recorded.socket % 100_000)));
        }
        story
    }

    /// Prints to stderr directly, since the test harness captures the output of passing tests.
    fn print(&self, title: &str) {
        let mut out = std::io::stderr().lock();
        let _ = writeln!(out, "{title}");
        for (at, line) in &self.lines {
            let _ = writeln!(out, "  {:>6} ms  {line}", at.as_millis());
        }
    }

    /// Checks what the agent relies on.
    fn check(
        &self,
        before: &Pods,
        allocatable: &Allocatable,
        ages: &BTreeMap<String, Time>,
        gone: &BTreeSet<String>,
    ) -> Result<()> {
        let last = self.pods.last().map(|(_, socket, _)| *socket).context("no List")?;
        let since = self.pods.iter().filter(|(_, socket, _)| *socket == last);
        let complete = self.allocatable.iter().find(|(_, socket, _, now)| {
            *socket == last && now.cpus == allocatable.cpus && now.memory == allocatable.memory
        });
        let (.., other, _) = complete.context("CPUs and memory never became allocatable again")?;
        let incomplete = other.unwrap_or_default();
        for (at, _, pods) in since {
            for (name, has) in pods {
                // A pod that is listed again has everything at once: none of it may appear available.
                let had = before.get(name);
                ensure!(had.is_none_or(|had| had == has), "{at:?}: {name} has {has:?}, and had {had:?}");
            }
            // No pod is listed before all CPUs and memory are reported as allocatable.
            ensure!(
                pods.is_empty() || *at >= incomplete,
                "{at:?}: pods, and not all CPUs and memory for a request at {incomplete:?}"
            );
            // Pods of the API server are listed by age: a missing pod is not older than a listed one.
            let missing = ages.iter().filter(|(name, _)| !gone.contains(*name) && !pods.contains_key(*name));
            let oldest = missing.min_by_key(|(_, age)| *age);
            let youngest =
                pods.keys().filter_map(|name| ages.get_key_value(name)).max_by_key(|(_, age)| *age);
            if let (Some((missing, of)), Some((listed, age))) = (oldest, youngest) {
                ensure!(of >= age, "{at:?}: {listed} of {age:?} is listed, and {missing} of {of:?} is not");
            }
        }
        Ok(())
    }
}
