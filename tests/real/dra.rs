//! Claims on a real kubelet, without the agent: what its List, the API server and the drivers say about them,
//! as the other tests of Dynamic Resource Allocation assume.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::support::dra::{Claims, Driver, Pool, Prepared, device};
use crate::support::podresources::{ClientKind, Clients, ListedClaim, ListedDevice, Rpc, listed_claims};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, pod};

/// The CPUs of `two-by-eight` that are not reserved.
const CPUS: [(u16, &str); 2] = [(0, "1-7"), (1, "9-15")];

#[tokio::test]
async fn the_list_has_what_drivers_return_and_the_claims_have_what_is_allocated() -> Result<()> {
    let Some(parts) = Parts::with_dra_driver(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    // With dra.cpu the kubelet gives out no CPUs.
    let node = RealNode::on("two-by-eight")?.kubelet("cpuManagerPolicy", json!("none"));
    // After a failure it prepares a claim again at its next sync of the pod, by default a minute later.
    let node = node.kubelet("syncFrequency", json!("1s"));
    let node = node.start(&cluster).await?;
    let claims = Claims::of(&node);
    let seen = Seen { node: &node, claims: &claims, clients: Clients::of(&parts) };
    let gpus = Driver::start(&cluster, &node, "gpu.example.com", &[gpus()]).await?;
    let cpus = Driver::start(&cluster, &node, "dra.cpu", &[Pool::cpus_by_count("cpus", &CPUS)?]).await?;
    let nics = Pool::of("nics").device(device("nic-0").int("dra.net/numaNode", 1)).returns_nothing();
    let nics = Driver::start(&cluster, &node, "dra.net", &[nics]).await?;

    claims.create("both", vec![gpus.allocated("gpus", "gpu-1"), gpus.allocated("gpus", "gpu-2")]).await?;
    gpus.hold_prepare()?;
    claims.submit(&pod("first").claim("both").sidecar("beside").container("other")).await?;
    until("the List names the claim, which is not prepared", async || {
        let listed = seen.listed("both").await?;
        ensure!(listed.len() == 1 && listed[0].devices.is_empty(), "{listed:?}");
        Ok(())
    })
    .await?;
    ensure!(gpus.book()?.is_empty(), "{:?}", gpus.book()?);
    gpus.allow_prepare()?;
    node.wait_until_running("first").await?;
    // A claim of two pods, and of two containers of one of them, is listed for each of them in full.
    claims.run(&node, pod("second").claim("both").container("other").claim("both")).await?;
    let prepared = seen.agree("both", &gpus, &["first/main", "second/main", "second/other"]).await?;
    ensure!(prepared.devices.iter().all(|device| device.returned && device.share_id.is_none()));

    // Two claims of one device cannot be told apart by the List, but for the CDI devices.
    for (name, count) in [("four", "4"), ("two", "2")] {
        let share = cpus.allocated("cpus", "cpudevnuma001").consumes("dra.cpu/cpu", count);
        claims.create(name, vec![share]).await?;
        claims.run(&node, pod(name).claim(name)).await?;
    }
    let four = seen.agree("four", &cpus, &["four/main"]).await?;
    let two = seen.agree("two", &cpus, &["two/main"]).await?;
    ensure!(four.devices[0].cpus == "9-12" && two.devices[0].cpus == "13-14", "{four:?}, {two:?}");
    let without_cdi = async |claim: &str| -> Result<Vec<ListedDevice>> {
        let devices = seen.listed(claim).await?.remove(0).devices;
        Ok(devices.into_iter().map(|device| ListedDevice { cdi: BTreeSet::new(), ..device }).collect())
    };
    ensure!(without_cdi("four").await? == without_cdi("two").await?);
    seen.has_cpus_in_cdi("four", &cpus, "9-12").await?;

    nics.fail_prepare("the link is down")?;
    claims.create("link", vec![nics.allocated("nics", "nic-0")]).await?;
    claims.submit(&pod("net").claim("link")).await?;
    until("the claim fails to be prepared", async || {
        ensure!(node.kubelet_log()?.contains("the link is down"));
        Ok(())
    })
    .await?;
    nics.allow_prepare()?;
    node.wait_until_running("net").await?;
    let prepared = seen.agree("link", &nics, &["net/main"]).await?;
    ensure!(prepared.devices.len() == 1 && !prepared.devices[0].returned, "{prepared:?}");

    // The kubelet forgets a claim before the API server does.
    let file = seen.cdi_file("four", &cpus).await?;
    node.delete("four").await?;
    ensure!(seen.listed("four").await?.is_empty() && !file.exists());
    ensure!(cpus.book()?.keys().eq([&claims.uid("two").await?]), "{:?}", cpus.book()?);
    ensure!(claims.get("four").await?["status"]["allocation"].is_object());
    claims.deallocate("four").await?;
    ensure!(claims.get("four").await?["status"]["allocation"].is_null());
    claims.run(&node, pod("again").claim("four")).await?;
    seen.agree("four", &cpus, &["again/main"]).await?;

    // Claims of the pod's own are named in its status.
    claims.plan("own", vec![gpus.allocated("gpus", "gpu-0")]);
    claims.plan("extended", vec![gpus.allocated("gpus", "gpu-3")]);
    let third = pod("third").template_claim("own").container("other");
    claims.run(&node, third.extended_claim("extended", "example.com/gpu", 1)).await?;
    seen.agree("third-own", &gpus, &["third/main"]).await?;
    seen.agree("third-extended", &gpus, &["third/other"]).await?;

    // The slices change, the claims do not.
    let fewer = Pool::of("gpus").device(device("gpu-1").taint("example.com/broken", "NoSchedule"));
    gpus.set(&[fewer]).await?;
    let slices = gpus.slices().await?;
    let devices = slices[0]["spec"]["devices"].as_array().context("no devices")?;
    ensure!(slices.len() == 1 && devices.len() == 1 && devices[0]["taints"][0]["effect"] == "NoSchedule");
    node.delete("first").await?;
    seen.agree("both", &gpus, &["second/main", "second/other"]).await?;
    Ok(())
}

#[tokio::test]
async fn shares_partitions_and_single_cpus_are_prepared_on_the_kubelet_before() -> Result<()> {
    let Some(parts) = Parts::with_dra_driver(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = RealNode::on("two-by-eight")?.version("1.36").kubelet("cpuManagerPolicy", json!("none"));
    let node = node.start(&cluster).await?;
    let claims = Claims::of(&node);
    let seen = Seen { node: &node, claims: &claims, clients: Clients::of(&parts) };
    let shared =
        Pool::of("nics").device(device("nic-0").capacity("bandwidth", "10G").shareable()).returns_shares();
    let partition = |name: &str, slices: &str| device(name).consumes("gpu-0", "slices", slices);
    let partitions = Pool::of("gpus").counter("gpu-0", "slices", "7").devices_per_slice(1);
    let partitions = partitions.device(partition("whole", "7")).device(partition("part-0", "1"));
    let driver = Driver::start(&cluster, &node, "dev.example.com", &[shared, partitions]).await?;
    let cpu_pools = [Pool::single_cpus("cpus", &CPUS)?];
    let cpus = Driver::start(&cluster, &node, "dra.cpu", &cpu_pools).await?;
    let slices = driver.slices().await?;
    let counts = slices.iter().map(|slice| slice["spec"]["pool"]["resourceSliceCount"].as_u64());
    ensure!(counts.collect::<BTreeSet<_>>() == BTreeSet::from([Some(1), Some(3)]) && slices.len() == 4);

    // The share's ID tells two shares of a device from each other, if the driver passes it on.
    let share = || driver.allocated("nics", "nic-0").consumes("bandwidth", "1G");
    claims.create("shares", vec![share(), share()]).await?;
    claims.run(&node, pod("sharing").claim("shares")).await?;
    let prepared = seen.agree("shares", &driver, &["sharing/main"]).await?;
    let in_book: BTreeSet<_> = prepared.devices.into_iter().map(|device| device.share_id).collect();
    let listed = seen.listed("shares").await?.remove(0).devices;
    let listed: BTreeSet<_> = listed.into_iter().map(|device| device.share_id).collect();
    let claim = claims.get("shares").await?;
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().context("no allocation")?;
    let allocated = results.iter().map(|result| result["shareID"].as_str().map(str::to_owned)).collect();
    ensure!(in_book.len() == 2 && in_book == listed && in_book == allocated, "{listed:?} {results:?}");
    ensure!(results[0]["consumedCapacity"]["bandwidth"] == "1G", "{results:?}");

    // Each container is listed with all requests. What no container refers to is prepared, but not listed.
    let part = driver.allocated("gpus", "part-0");
    let watched = driver.allocated("gpus", "whole").request("watched").admin();
    claims.create("requests", vec![part, watched]).await?;
    claims.create("unused", vec![cpus.allocated("cpus", "cpudev000")]).await?;
    let users = pod("users").claim_request("requests", "devices").container("other");
    claims.run(&node, users.claim_request("requests", "watched").unused_claim("unused")).await?;
    seen.agree("requests", &driver, &["users/main", "users/other"]).await?;
    seen.agree("unused", &cpus, &[]).await?;
    let claim = claims.get("requests").await?;
    ensure!(claim["status"]["allocation"]["devices"]["results"][1]["adminAccess"] == true, "{claim}");

    // Names of devices are not ids of CPUs. A driver that was restarted knows what is prepared.
    let two = ["cpudev001", "cpudev007"].map(|one| cpus.allocated("cpus", one));
    claims.create("two", two.to_vec()).await?;
    claims.run(&node, pod("pinned").claim("two")).await?;
    seen.agree("two", &cpus, &["pinned/main"]).await?;
    seen.has_cpus_in_cdi("two", &cpus, "2,9").await?;
    let file = seen.cdi_file("two", &cpus).await?;
    cpus.stop()?;
    let cpus = Driver::start(&cluster, &node, "dra.cpu", &cpu_pools).await?;
    seen.agree("two", &cpus, &["pinned/main"]).await?;
    node.delete("pinned").await?;
    ensure!(!file.exists());
    ensure!(cpus.book()?.keys().eq([&claims.uid("unused").await?]), "{:?}", cpus.book()?);
    Ok(())
}

/// Four GPUs, half of which do not say where they are.
fn gpus() -> Pool {
    let known = [0, 1].map(|id| device(&format!("gpu-{id}")).numa_node(id));
    let unknown = ["gpu-2", "gpu-3"].map(device);
    known.into_iter().chain(unknown).fold(Pool::of("gpus"), Pool::device)
}

/// What can be seen of the claims of a node.
struct Seen<'a> {
    node: &'a RealNode,
    claims: &'a Claims,
    clients: Clients,
}

impl Seen<'_> {
    /// Returns the places in the List that name a claim.
    async fn listed(&self, claim: &str) -> Result<Vec<ListedClaim>> {
        let socket = self.node.socket();
        let response = self.clients.request(ClientKind::Go, &socket, &Rpc::List).await?.ok()?;
        let claim = format!("{}/{claim}", self.node.namespace());
        Ok(listed_claims(&response.message).into_iter().filter(|listed| listed.claim == claim).collect())
    }

    /// Checks that a claim's allocation, its driver's book, and the List agree, which names the claim for
    /// these containers (`pod/container`). Returns the claim in the book.
    async fn agree(&self, claim: &str, driver: &Driver, users: &[&str]) -> Result<Prepared> {
        let uid = self.claims.uid(claim).await?;
        let prepared = driver.book()?.remove(&uid);
        let prepared = prepared.with_context(|| format!("{claim} is not prepared"))?;
        let results = self.claims.get(claim).await?["status"]["allocation"]["devices"]["results"].take();
        let results = results.as_array().context("no allocation")?;
        let allocated = |result: &Value| json!([result["request"], result["pool"], result["device"]]);
        let in_book =
            prepared.devices.iter().map(|device| json!([device.request, device.pool, device.device]));
        ensure!(results.iter().map(allocated).eq(in_book), "{results:?} are allocated, {prepared:?}");

        let mut returned: Vec<_> = prepared.devices.iter().filter(|device| device.returned).collect();
        returned.sort_by_key(|device| &device.device);
        let returned: Vec<_> =
            returned.iter().map(|device| (driver.name(), &*device.pool, &*device.device)).collect();
        let listed = self.listed(claim).await?;
        for place in &listed {
            let devices = place.devices.iter();
            let devices: Vec<_> =
                devices.map(|device| (&*device.driver, &*device.pool, &*device.device)).collect();
            ensure!(devices == returned, "{place:?}: returned {returned:?}");
        }
        let users: Vec<String> =
            users.iter().map(|user| format!("{}/{user}", self.node.namespace())).collect();
        let places = listed.iter().map(|place| format!("{}/{}", place.pod, place.container));
        ensure!(places.eq(users), "{listed:?}");
        Ok(prepared)
    }

    async fn cdi_file(&self, claim: &str, driver: &Driver) -> Result<PathBuf> {
        let uid = self.claims.uid(claim).await?;
        Ok(driver.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{uid}.json")))
    }

    /// Checks that the CDI device in the List is in a file with these CPUs.
    async fn has_cpus_in_cdi(&self, claim: &str, driver: &Driver, cpus: &str) -> Result<()> {
        let uid = self.claims.uid(claim).await?;
        let file: Value = serde_json::from_slice(&std::fs::read(self.cdi_file(claim, driver).await?)?)?;
        let device = &file["devices"][0];
        ensure!(device["containerEdits"]["env"] == json!([format!("DRA_CPUSET_{uid}={cpus}")]), "{file}");
        let id = format!(
            "{}={}",
            file["kind"].as_str().context("kind")?,
            device["name"].as_str().context("name")?
        );
        let listed = self.listed(claim).await?;
        ensure!(listed[0].devices[0].cdi == BTreeSet::from([id]), "{listed:?}");
        Ok(())
    }
}
