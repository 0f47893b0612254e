//! Large init containers, with the chart's default mounts: the kubelet's directory itself is not mounted, so
//! that what init containers keep is known only from the pods' specs. A pod is created only if the published
//! zones have room for it, and the kubelet must not reject any.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use crate::support::agent::Agent;
use crate::support::fingerprint::{Counting, Upstream, published};
use crate::support::node::PodOutcome;
use crate::support::nrt::{self, Figures, Zones};
use crate::support::pods::{PodSpec, pod};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, oracle, seed};

const NIC: &str = "example.com/nic";
const COUNTING: Counting = Counting { informer: "dedicated", method: "all", plugin: "v0.35" };
/// Steps of one walk.
const STEPS: usize = 20;
const GIB: u64 = 1 << 30;

#[tokio::test]
async fn no_pod_is_rejected_where_each_container_is_aligned() -> Result<()> {
    walk("single-numa-node", "container").await
}

#[tokio::test]
async fn no_pod_is_rejected_where_pods_are_aligned() -> Result<()> {
    walk("restricted", "pod").await
}

/// CPUs, memory in GiB and devices of a container.
type Amounts = (u32, u64, u32);

/// A pod with one init container and one or two others.
struct Shape {
    init: Amounts,
    apps: Vec<Amounts>,
}

impl Shape {
    fn any(random: &mut Rng) -> Self {
        let device = |random: &mut Rng| u32::from(random.u8(..4) == 0);
        let init = (random.u32(1..=6), random.u64(1..=6), device(random));
        let count = random.usize(1..=2);
        let app = |random: &mut Rng| (random.u32(1..=3), random.u64(1..=3), device(random));
        Self { init, apps: (0..count).map(|_| app(random)).collect() }
    }

    fn pod(&self, name: &str) -> PodSpec {
        let request = |one: PodSpec, (cpus, memory, devices): Amounts| {
            let one = one.cpus(cpus).memory(&format!("{memory}Gi"));
            if devices > 0 { one.device(NIC, devices) } else { one }
        };
        let mut one = request(pod(name), self.apps[0]);
        for app in &self.apps[1..] {
            one = request(one.container("second"), *app);
        }
        request(one.init("first"), self.init)
    }

    /// Returns the pod's requests: CPUs, memory and devices.
    fn requests(&self) -> [u64; 3] {
        let larger = |of: fn(&Amounts) -> u64| of(&self.init).max(self.apps.iter().map(of).sum());
        [larger(cpus), larger(memory), larger(devices)]
    }

    /// Returns whether the whole pod fits into one zone, as seen by the scheduler. The kubelet places the
    /// init container first, and rejects the pod if the others do not fit there: so they must fit wherever
    /// the init container does according to `truth`.
    fn fits(&self, published: &Zones, truth: &Zones) -> bool {
        let all = self.requests();
        let init = [cpus(&self.init), memory(&self.init), devices(&self.init)];
        let has = |zone: &BTreeMap<String, Figures>, amounts: [u64; 3]| {
            let free = |name: &str| zone.get(name).map_or(0, |figures| figures.available);
            [free("cpu"), free("memory"), free(NIC)].iter().zip(amounts).all(|(free, amount)| amount <= *free)
        };
        published.values().any(|zone| has(zone, all))
            && truth.values().all(|zone| !has(zone, init) || has(zone, all))
    }
}

/// Returns whether the requests of these pods together are at most what the node has allocatable. The
/// scheduler checks that as well (NodeResourcesFit), and the kubelet rejects a pod with `OutOfmemory` otherwise.
fn fit_node<'a>(pods: impl Iterator<Item = &'a Shape> + Clone, zones: &Zones) -> bool {
    ["cpu", "memory", NIC].iter().enumerate().all(|(index, name)| {
        let requested: u64 = pods.clone().map(|shape| shape.requests()[index]).sum();
        let figures = zones.values().filter_map(|zone| zone.get(*name));
        requested <= figures.map(|figures| figures.allocatable).sum()
    })
}

fn cpus(amounts: &Amounts) -> u64 {
    amounts.0.into()
}

fn memory(amounts: &Amounts) -> u64 {
    amounts.1 * GIB
}

fn devices(amounts: &Amounts) -> u64 {
    amounts.2.into()
}

async fn walk(policy: &str, scope: &str) -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let mut random = Rng::with_seed(seed(&format!("init containers, {policy}, {scope}")));
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?
        .kubelet("topologyManagerPolicy", policy.into())
        .kubelet("topologyManagerScope", scope.into())
        .start(&cluster)
        .await?;
    let mut agent = Agent::start_with_default_mounts(&node)?;
    let upstream = Upstream::of(&parts);
    let (mut pods, mut history): (Vec<(String, Shape)>, String) = (Vec::new(), String::new());
    for step in 0..STEPS {
        let (zones, truth) = matching(&node, &mut agent, &upstream).await.with_context(|| history.clone())?;
        let fits_node = |shape: &Shape| fit_node(pods.iter().map(|(_, pod)| pod).chain([shape]), &zones);
        let fitting = (0..8)
            .map(|_| Shape::any(&mut random))
            .find(|shape| shape.fits(&zones, &truth) && fits_node(shape));
        let Some(shape) = fitting else {
            let (name, _) = pods.swap_remove(random.usize(..pods.len()));
            node.delete(&name).await?;
            writeln!(history, "{name} was deleted")?;
            continue;
        };
        let name = format!("pod-{step}");
        let spec = shape.pod(&name);
        writeln!(history, "{spec} was started beside {}", free(&zones))?;
        let outcome = node.try_to_run(spec).await?;
        ensure!(
            outcome == PodOutcome::Running,
            "the kubelet rejected a pod that fits: {outcome:?}\n{history}"
        );
        pods.push((name, shape));
    }
    Ok(())
}

/// Formats the zones' available resources in one line.
fn free(zones: &Zones) -> String {
    let zone = |(zone, resources): (&String, &BTreeMap<String, Figures>)| {
        let shown = resources.iter().filter(|(name, _)| !name.starts_with("hugepages"));
        let shown: Vec<String> =
            shown.map(|(name, figures)| format!("{name} {}", figures.available)).collect();
        format!("{zone}: {}", shown.join(" "))
    };
    zones.iter().map(zone).collect::<Vec<_>>().join("; ")
}

/// Waits until the object's fingerprint matches the existing pods and its zones report no more as available
/// than the kubelet's checkpoints; returns its zones and those of the checkpoints.
async fn matching(node: &RealNode, agent: &mut Agent, upstream: &Upstream) -> Result<(Zones, Zones)> {
    until("the fingerprint matches, and no more is available than there is", async || {
        agent.still_runs()?;
        node.kubelet_still_runs()?;
        let object = nrt::read(&node.client(), node.name()).await?;
        let expected = upstream.expects(COUNTING, &node.pods().await?, &object)?;
        ensure!(published(&object) == Some(&expected.fingerprint), "the fingerprint does not match");
        let truth = oracle::expected(node).await?;
        let beyond = truth.overstated(&object.zones);
        ensure!(beyond.is_empty(), "too much is available: {}", beyond.join(", "));
        Ok((object.zones, truth.into_zones()))
    })
    .await
}
