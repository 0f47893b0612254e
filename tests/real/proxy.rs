//! The podresources proxy between a real kubelet and real clients.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use numacast::kubelet::Client;

use crate::support::podresources::{
    Clients, EVERYBODY, Held, Recorder, Rpc, Who, added, held, held_of, in_order,
};
use crate::support::{Cluster, Needs, Parts, RealNode, pod};

const NIC: &str = "example.com/nic";

/// Clients of every kind, our own among them, make the same of what is said at a socket.
async fn everybody_hears_the_same(clients: &Clients, socket: &Path) -> Result<()> {
    let (usage, ..) = Client::new(socket.to_owned(), Duration::from_secs(5)).list().await?;
    let ours = held_of(&usage);
    for rpc in [Rpc::List, Rpc::ListV1alpha1, Rpc::Get("default/a".to_owned()), Rpc::Allocatable] {
        let mut first = None;
        for who in EVERYBODY {
            let heard =
                clients.ask(who, socket, &rpc).await?.ok().with_context(|| format!("{who:?} {rpc:?}"))?;
            let answer = in_order(&heard.answer);
            let first = first.get_or_insert_with(|| answer.clone());
            ensure!(*first == answer, "{who:?} {rpc:?}: {answer}, and before {first}");
        }
        let first = first.context("nobody asked")?;
        let right: BTreeSet<Held> = match &rpc {
            Rpc::Get(pod) => ours.iter().filter(|one| one.pod == *pod).cloned().collect(),
            Rpc::ListV1alpha1 => ours.iter().map(|one| Held { nodes: Vec::new(), ..one.clone() }).collect(),
            _ => ours.clone(),
        };
        let theirs = held(&first)?;
        ensure!(!right.is_empty(), "nobody has a device");
        ensure!(rpc == Rpc::Allocatable || theirs == right, "{rpc:?}: {first}, and we hear {right:?}");
    }
    Ok(())
}

/// The clients by themselves: that they hear what a kubelet says, and that the recorder adds only what nobody knows.
#[tokio::test]
async fn clients_of_every_kind_agree_about_a_kubelet() -> Result<()> {
    let Some(parts) = Parts::with_clients(Needs::Kubelet).await? else { return Ok(()) };
    let clients = Clients::of(&parts);
    let cluster = Cluster::start(&parts).await?;
    let node = RealNode::on("two-by-eight")?.start(&cluster).await?;
    node.run(pod("a").cpus(1).memory("1Gi").device(NIC, 2).container("other").cpus(1).memory("64Mi")).await?;
    node.run(pod("b")).await?;
    everybody_hears_the_same(&clients, &node.socket()).await?;

    let recorder = Recorder::start(&clients, &node.socket(), &cluster.dir().join("recorder"), &[]).await?;
    everybody_hears_the_same(&clients, recorder.socket()).await?;
    let known = recorder.count()?;
    let heard = clients.ask(Who::Python, recorder.socket(), &Rpc::List).await?.ok()?;
    let sent = recorder.sent_since(known)?;
    let [sent] = sent.as_slice() else { anyhow::bail!("{} answers to one question", sent.len()) };
    ensure!(sent.path == Rpc::List.path() && sent.sent == heard.bytes);
    ensure!(added(&sent.sent, &heard.bytes)?.is_empty());

    // What a client refuses by itself, it refuses in words of its own, and others do not notice.
    let large = ["--pad", "5242880"];
    let padded = Recorder::start(&clients, &node.socket(), &cluster.dir().join("padded"), &large).await?;
    for (who, text) in [
        (Who::Go, "grpc: received message larger than max"),
        (Who::Python, "CLIENT: Received message larger than max"),
    ] {
        let heard = clients.ask(who, padded.socket(), &Rpc::List).await?;
        ensure!(heard.code == "ResourceExhausted" && heard.text.contains(text), "{who:?}: {heard:?}");
        let heard =
            clients.ask_with(who, padded.socket(), &Rpc::List, &["--limit", "16777216"]).await?.ok()?;
        ensure!(heard.bytes.len() > 5 << 20, "{} bytes", heard.bytes.len());
    }
    Ok(())
}
