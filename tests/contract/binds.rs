//! How long after its bind a pod shows, and where: what the agent could have heard when.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::events::{Events, Seen};
use crate::percentiles;
use crate::support::prober::{Has, Heard, Prober, Questions};
use crate::support::{RealNode, pod};

/// Below what the kubelet allows all its clients, 100 per second.
const PROBE: Duration = Duration::from_millis(12);

/// Times since the request to bind was sent.
#[derive(Debug, Default)]
pub(crate) struct Binds {
    answered: Vec<Duration>,
    watched: Vec<Duration>,
    listed: Vec<Duration>,
    /// Listed by a kubelet that has not given it its CPUs yet.
    given: Vec<Duration>,
    running: Vec<Duration>,
    /// How many were seen in the List before they had their CPUs.
    empty: usize,
}

/// Binds so many pods, one after another, to a node that has nothing else to do.
pub(crate) async fn measure(node: &RealNode, random: &mut Rng, count: usize) -> Result<Binds> {
    let mut binds = Binds::default();
    let mut events = Events::watch(&node.client(), node.name()).await?;
    let prober = Prober::start(node.socket(), Questions::Lists, PROBE)?;
    for number in 0..count {
        let name = format!("bound-{number}");
        tokio::time::sleep(Duration::from_millis(random.u64(50..600))).await;
        binds.one(node, &mut events, &prober, &name).await.with_context(|| name.clone())?;
        node.delete(&name).await?;
    }
    Ok(binds)
}

impl Binds {
    async fn one(&mut self, node: &RealNode, events: &mut Events, prober: &Prober, name: &str) -> Result<()> {
        let api = Api::<Pod>::default_namespaced(node.client());
        let unbound = pod(name).cpus(1).memory("64Mi").scheduled_by("nobody")?;
        api.create(&PostParams::default(), &unbound).await?;
        prober.forget();

        let bind = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node.name() },
        });
        let sent = Instant::now();
        let _: Value = api.create_subresource("binding", name, &PostParams::default(), &bind).await?;
        self.answered.push(sent.elapsed());

        let mut watched = None;
        loop {
            let Seen { at, name: whose, phase, .. } = events.next().await?;
            if whose != name {
                continue;
            }
            watched.get_or_insert(at);
            if phase == "Running" {
                self.running.push(at - sent);
                break;
            }
        }
        self.watched.push(watched.context("nothing was heard of it")? - sent);
        // The List may be a probe behind.
        tokio::time::sleep(PROBE * 3).await;
        self.lists(prober, name, sent)
    }

    fn lists(&mut self, prober: &Prober, name: &str, sent: Instant) -> Result<()> {
        let has = |heard: &Heard| -> Option<Has> {
            let Heard::Pods(pods) = heard else { return None };
            pods.get(name).cloned()
        };
        let answers = prober.answers();
        let listed = answers.iter().find(|answer| has(&answer.heard).is_some());
        let listed = listed.context("it was never listed")?;
        let given = answers.iter().find(|answer| has(&answer.heard).is_some_and(|has| !has.cpus.is_empty()));
        self.listed.push(listed.at - sent);
        self.given.push(given.context("it was never given CPUs")?.at - sent);
        self.empty += usize::from(has(&listed.heard).is_some_and(|has| has.cpus.is_empty()));
        Ok(())
    }

    pub(crate) fn table(&mut self) -> String {
        let rows = [
            ("the API server answers whoever binds", &mut self.answered),
            ("a watch of the node's pods tells of it", &mut self.watched),
            ("the kubelet's List names it", &mut self.listed),
            ("the List shows its CPUs", &mut self.given),
            ("its status Running reaches a watch", &mut self.running),
        ];
        let mut text =
            "| after the request to bind was sent, ms | p50 | p90 | at most |\n|---|---|---|---|\n"
                .to_owned();
        for (what, times) in rows {
            let [p50, p90, most] = percentiles(times, [50, 90, 100]).map(|time| time.as_secs_f64() * 1e3);
            text += &format!("| {what} | {p50:.1} | {p90:.1} | {most:.1} |\n");
        }
        text + &format!("\n{} of {} were listed without CPUs first.", self.empty, self.listed.len())
    }
}
