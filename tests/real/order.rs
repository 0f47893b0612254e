//! The order in which a restarted kubelet reports its state, which `src/agent/reconcile/restart_guard.rs` relies on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::support::prober::{Answer, Heard, Offer, Pods, Prober, Questions};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, Stop, pod};

/// Pause between alternating List and `GetAllocatableResources` requests: 80 per second, below the kubelet's
/// limit of 100.
const PAUSE: Duration = Duration::from_micros(12_500);

/// What happens while the kubelet is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
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
async fn a_restarted_kubelet_lists_a_pod_with_all_it_has_or_not_at_all() -> Result<()> {
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

    for (round, (how, away)) in [
        (Stop::Term, Away::Nothing),
        (Stop::Kill, Away::Nothing),
        (Stop::Kill, Away::DirectoryLost),
        (Stop::Kill, Away::PodsChange),
        (Stop::Kill, Away::ApiServerDead),
        (Stop::Term, Away::ApiServerFrozen),
        (Stop::Kill, Away::StaticPod),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("{how:?}, {away:?}");
        restart(&mut cluster, &mut node, how, away, round).await.with_context(|| what)?;
    }
    Ok(())
}

/// Restarts the kubelet once, and prints and checks its responses.
async fn restart(
    cluster: &mut Cluster,
    node: &mut RealNode,
    how: Stop,
    away: Away,
    round: usize,
) -> Result<()> {
    let prober = Prober::start(node.socket(), Questions::Both, PAUSE)?;
    let before = until("the prober has heard both answers", async || {
        let heard = Story::of(&prober.answers(), Instant::now());
        heard
            .pods
            .last()
            .zip(heard.offers.last())
            .map(|((.., p), (.., o))| (p.clone(), o.clone()))
            .context("no")
    })
    .await?;
    prober.forget();
    let start = Instant::now();
    node.stop_kubelet(how)?;
    let stopped = start.elapsed();
    let mut gone = BTreeSet::new();
    match away {
        Away::Nothing => {}
        Away::DirectoryLost => node.recreate_pod_resources_dir()?,
        Away::PodsChange => {
            gone.insert("old-0".to_owned());
            node.request_deletion("old-0").await?;
            node.submit(&pod("new").cpus(2).memory("1Gi").device("example.com/nic", 1)).await?;
        }
        Away::ApiServerDead => cluster.kill_api_server()?,
        Away::StaticPod => {
            cluster.kill_api_server()?;
            let manifest = pod("static").cpus(1).memory("64Mi").bound_to("")?;
            std::fs::write(cluster.dir().join("manifests/static.yaml"), serde_json::to_vec(&manifest)?)?;
        }
        Away::ApiServerFrozen => cluster.signal_api_server("STOP")?,
    }
    let launched = start.elapsed();
    node.launch_kubelet()?;
    if matches!(away, Away::ApiServerDead | Away::ApiServerFrozen | Away::StaticPod) {
        // Long enough for everything that does not need the API server.
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    let returned = start.elapsed();
    match away {
        Away::ApiServerDead | Away::StaticPod => cluster.restart_api_server().await?,
        Away::ApiServerFrozen => cluster.signal_api_server("CONT")?,
        _ => {}
    }
    node.wait_until_ready().await?;
    let rest: BTreeSet<&String> = before.0.keys().filter(|name| !gone.contains(*name)).collect();
    until("every pod that stays is listed again", async || {
        let story = Story::of(&prober.answers(), start);
        let (.., last) = story.pods.last().context("no List")?;
        ensure!(rest.iter().all(|name| last.contains_key(*name)), "only {:?}", last.keys());
        ensure!(
            away != Away::PodsChange || last.get("new").is_some_and(|has| !has.cpus.is_empty()),
            "no new pod"
        );
        let (.., offer) = story.offers.last().context("no offer")?;
        ensure!(offer == &before.1, "it offers {offer:?}");
        Ok(())
    })
    .await?;
    let story = Story::of(&prober.answers(), start);
    story.tell(&format!(
        "round {round}: {how:?}, {away:?}; ended after {stopped:.0?}, started at {launched:.0?}, API server there from {returned:.0?}"
    ));
    story.judge(&before.0, &before.1, &ages(node).await?, &gone)?;
    if away == Away::StaticPod {
        // It needs no API server, so it proves nothing about the other pods.
        let alone =
            story.pods.iter().any(|(.., pods)| pods.len() == 1 && pods.contains_key("static-two-by-eight"));
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
    offers: Vec<(Duration, u64, Offer)>,
    lines: Vec<(Duration, String)>,
}

impl Story {
    fn of(answers: &[Answer], start: Instant) -> Self {
        let mut story = Self::default();
        for answer in answers {
            let at = answer.at.saturating_duration_since(start);
            let line = match &answer.heard {
                Heard::Nothing(why) => format!("nothing ({})", why.lines().next().unwrap_or_default()),
                Heard::Offer(offer) => {
                    story.offers.push((at, answer.socket, offer.clone()));
                    format!(
                        "offers {} CPUs, {} MiB, devices {:?}",
                        offer.cpus,
                        offer.memory >> 20,
                        offer.devices
                    )
                }
                Heard::Pods(pods) => {
                    story.pods.push((at, answer.socket, pods.clone()));
                    let of = |name: &String, has: &crate::support::prober::Has| {
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
            story.lines.push((at, format!("[{}] {line}", answer.socket % 100_000)));
        }
        story
    }

    /// Prints to stderr directly, since the test harness captures the output of passing tests.
    fn tell(&self, title: &str) {
        let mut out = std::io::stderr().lock();
        let _ = writeln!(out, "{title}");
        for (at, line) in &self.lines {
            let _ = writeln!(out, "  {:>6} ms  {line}", at.as_millis());
        }
    }

    /// Checks what the agent relies on.
    fn judge(
        &self,
        before: &Pods,
        offered: &Offer,
        ages: &BTreeMap<String, Time>,
        gone: &BTreeSet<String>,
    ) -> Result<()> {
        let last = self.pods.last().map(|(_, socket, _)| *socket).context("no List")?;
        let since = self.pods.iter().filter(|(_, socket, _)| *socket == last);
        let complete = self.offers.iter().find(|(_, socket, offer)| {
            *socket == last && offer.cpus == offered.cpus && offer.memory == offered.memory
        });
        let complete = complete.context("CPUs and memory were never offered again")?.0;
        for (at, _, pods) in since {
            for (name, has) in pods {
                // A pod that is listed again has everything at once: none of it may appear available.
                let had = before.get(name);
                ensure!(had.is_none_or(|had| had == has), "{at:?}: {name} has {has:?}, and had {had:?}");
            }
            // No pod is listed before CPUs and memory are reported as allocatable. The two requests
            // alternate.
            ensure!(
                pods.is_empty() || *at + PAUSE * 2 >= complete,
                "{at:?}: pods, and no CPUs until {complete:?}"
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
