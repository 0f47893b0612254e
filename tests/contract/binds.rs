//! Measures when and where a pod becomes visible after its bind: what the agent could have observed, and
//! when.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::events::{Event, Events, phase};
use crate::percentiles;
use crate::support::fingerprint::{WITHHELD, published};
use crate::support::nrt::ObjectVersion;
use crate::support::prober::{Allocated, Prober, Requests, Response};
use crate::support::{RealNode, pod};

/// Interval between probes; below the kubelet's limit for all clients, 100 per second.
const PROBE: Duration = Duration::from_millis(12);

/// Times since the bind request was sent.
#[derive(Debug, Default)]
pub(crate) struct Binds {
    responded: Vec<Duration>,
    watched: Vec<Duration>,
    listed: Vec<Duration>,
    /// Until the List shows its CPUs.
    allocated: Vec<Duration>,
    running: Vec<Duration>,
    /// Until the zones account for the pod or the fingerprint is withheld: the end of the window in which the plugin
    /// may overcommit the node.
    accounted: Vec<Duration>,
    /// Until the fingerprint matches and the zones account for the pod.
    matched: Vec<Duration>,
    /// Number of pods that the List showed before they had CPUs.
    empty: usize,
    /// Number of pods that the first write accounted for, without withholding the fingerprint.
    at_once: usize,
}

/// The sources observed.
struct Sources {
    pods: Events<Pod>,
    object: Events<DynamicObject>,
    prober: Prober,
}

/// Binds `count` pods, one after another, to an otherwise idle node.
pub(crate) async fn measure(node: &RealNode, random: &mut Rng, count: usize) -> Result<Binds> {
    let mut binds = Binds::default();
    let mut sources = Sources {
        pods: Events::of_pods(&node.client(), Some(node.name())).await?,
        object: Events::of_object(&node.client(), node.name()).await?,
        prober: Prober::start(node.socket(), Requests::Lists, PROBE)?,
    };
    for number in 0..count {
        let name = format!("bound-{number}");
        // Randomised so as not to align with any other period, and long after the previous pod's end.
        tokio::time::sleep(Duration::from_millis(random.u64(1500..2500))).await;
        binds.one(node, &mut sources, &name).await.with_context(|| name.clone())?;
        node.delete(&name).await?;
    }
    Ok(binds)
}

impl Binds {
    async fn one(&mut self, node: &RealNode, sources: &mut Sources, name: &str) -> Result<()> {
        let api = Api::<Pod>::default_namespaced(node.client());
        let unbound = pod(name).cpus(1).memory("64Mi").scheduled_by("nobody")?;
        api.create(&PostParams::default(), &unbound).await?;
        sources.prober.clear();
        while sources.object.waiting()?.is_some() {}

        let bind = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node.name() },
        });
        let sent = Instant::now();
        let _: Value = api.create_subresource("binding", name, &PostParams::default(), &bind).await?;
        self.responded.push(sent.elapsed());

        let mut watched = None;
        loop {
            let Event { at, object, .. } = sources.pods.next().await?;
            if object.name_any() != name {
                continue;
            }
            watched.get_or_insert(at);
            if phase(&object) == "Running" {
                self.running.push(at - sent);
                break;
            }
        }
        self.watched.push(watched.context("the watch never delivered it")? - sent);
        self.objects(&mut sources.object, sent).await?;
        // The List may lag by a probe.
        tokio::time::sleep(PROBE * 3).await;
        self.lists(&sources.prober, name, sent)
    }

    /// Records the object's changes. The node has 14 CPUs, one of which the pod is allocated. The
    /// fingerprint keeps matching once it covers the Running pod.
    async fn objects(&mut self, events: &mut Events<DynamicObject>, sent: Instant) -> Result<()> {
        let mut accounted = None;
        let mut matched: Option<(Instant, String)> = None;
        loop {
            // No event for this long means that there are no more.
            let next = tokio::time::timeout(Duration::from_millis(500), events.next()).await;
            let Ok(next) = next else { break };
            let Event { at, object, .. } = next?;
            let seen = ObjectVersion::of(&object)?;
            let free: u64 = seen.zones.values().map(|zone| zone["cpu"].available).sum();
            let is_withheld = published(&seen) == Some(WITHHELD);
            if accounted.is_none() && (is_withheld || free == 13) {
                accounted = Some(at);
                self.at_once += usize::from(!is_withheld);
            }
            // Ignore refreshes.
            let fingerprint = published(&seen).unwrap_or_default();
            if !is_withheld && free == 13 && matched.as_ref().is_none_or(|(_, before)| before != fingerprint)
            {
                matched = Some((at, fingerprint.to_owned()));
            }
        }
        self.accounted.push(accounted.context("the object never accounted for it")? - sent);
        self.matched.push(matched.context("the fingerprint never matched")?.0 - sent);
        Ok(())
    }

    fn lists(&mut self, prober: &Prober, name: &str, sent: Instant) -> Result<()> {
        let has = |response: &Response| -> Option<Allocated> {
            let Response::Pods(pods) = response else { return None };
            pods.get(name).cloned()
        };
        let responses = prober.responses();
        let listed = responses.iter().find(|recorded| has(&recorded.response).is_some());
        let listed = listed.context("it was never listed")?;
        let has_cpus = |response: &Response| has(response).is_some_and(|has| !has.cpus.is_empty());
        let allocated = responses.iter().find(|recorded| has_cpus(&recorded.response));
        self.listed.push(listed.received - sent);
        self.allocated.push(allocated.context("it was never allocated CPUs")?.received - sent);
        self.empty += usize::from(!has_cpus(&listed.response));
        Ok(())
    }

    pub(crate) fn table(&mut self) -> String {
        let rows = [
            ("the API server responds to the request", &mut self.responded),
            ("a watch of the node's pods delivers the bound pod", &mut self.watched),
            ("the kubelet's List names it", &mut self.listed),
            ("the List shows its CPUs", &mut self.allocated),
            ("its status Running reaches a watch", &mut self.running),
            ("the object accounts for the pod, or its fingerprint is withheld", &mut self.accounted),
            ("the object accounts for the pod, and its fingerprint matches the plugin's", &mut self.matched),
        ];
        let mut text =
            "| after the request to bind was sent, ms | p50 | p90 | at most |\n|---|---|---|---|\n"
                .to_owned();
        for (what, times) in rows {
            let [p50, p90, most] = percentiles(times, [50, 90, 100]).map(|time| time.as_secs_f64() * 1e3);
            text += &format!("| {what} | {p50:.1} | {p90:.1} | {most:.1} |\n");
        }
        text + &format!(
            "\n{} of {} were listed without CPUs first. The fingerprint was withheld for {} of them.",
            self.empty,
            self.listed.len(),
            self.accounted.len() - self.at_once
        )
    }
}
