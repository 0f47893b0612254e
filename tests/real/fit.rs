//! `numacast fit` beside a real kubelet: what it says before a pod is sent is what the kubelet does, and the room that it
//! names lets the pod fit.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::agent::Agent;
use crate::support::node::{NodeSetup, PodOutcome};
use crate::support::pods::{PodSpec, pod};
use crate::support::{Cluster, Needs, Parts, RealNode, seed};

/// Runs `numacast fit` with an administrator's rights.
fn fit(cluster: &Cluster, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
    command.arg("fit").args(arguments).arg("--kubeconfig").arg(cluster.admin_kubeconfig());
    command.output().context("cannot run numacast fit")
}

/// Asks about a pod on a node, from the object or from the node itself.
fn ask(cluster: &Cluster, node: &RealNode, spec: &PodSpec, local: bool, room: bool) -> Result<Value> {
    let mut object: Pod = spec.bound_to(node.name())?;
    object.metadata.namespace = Some(node.namespace().to_owned());
    let spec = object.spec.as_mut().context("it has a specification")?;
    spec.node_name = None;
    let mut manifest = serde_json::to_value(&object)?;
    manifest["kind"] = json!("Pod");
    let file = node.dir().join("fit.json");
    std::fs::write(&file, manifest.to_string())?;
    let mut arguments = vec!["-o".to_owned(), "json".to_owned(), "-f".to_owned(), file.display().to_string()];
    if local {
        arguments.extend(["--local".to_owned(), "--node-name".to_owned(), node.name().to_owned()]);
        arguments.extend(places(node));
    } else {
        arguments.extend(["--node".to_owned(), node.name().to_owned()]);
    }
    arguments.extend(room.then(|| "--make-room".to_owned()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = fit(cluster, &arguments)?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let answer = answer[0]["nodes"][0].clone();
    ensure!(output.status.success() == (answer["fits"] == "yes"), "{:?}: {answer}", output.status);
    Ok(answer)
}

fn places(node: &RealNode) -> [String; 6] {
    let of = |key: &str, path: PathBuf| ["--set".to_owned(), format!("{key}={}", path.display())];
    let [[a, b], [c, d], [e, f]] = [
        of("host.sys", node.dir().join("sys")),
        of("host.proc", node.dir().join("proc")),
        of("kubelet.dir", node.kubelet_dir()),
    ];
    [a, b, c, d, e, f]
}

fn random_pod(name: &str, random: &mut Rng) -> PodSpec {
    let mut spec = pod(name).cpus(random.u32(1..5)).memory(["256Mi", "1Gi", "3Gi"][random.usize(..3)]);
    if random.u8(..3) == 0 {
        spec = spec.device("example.com/nic", 1);
    }
    if random.u8(..4) == 0 {
        spec = spec.container("second").cpus(random.u32(1..3)).memory("256Mi");
    }
    spec
}

fn strict(setup: NodeSetup) -> NodeSetup {
    setup.kubelet("topologyManagerPolicy", "single-numa-node".into())
}

#[tokio::test]
async fn what_fit_says_is_what_the_kubelet_does() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = strict(RealNode::on("two-by-eight")?).start(&cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    let mut random = Rng::with_seed(seed("pods of fit"));
    let mut verdicts = [0, 0];
    for number in 0..16 {
        agent.matches_oracle(&node).await?;
        let spec = random_pod(&format!("pod-{number}"), &mut random);
        let exact = ask(&cluster, &node, &spec, true, false)?;
        let published = ask(&cluster, &node, &spec, false, false)?;
        let outcome = node.try_to_run(spec.clone()).await?;
        let runs = outcome == PodOutcome::Running;
        ensure!((exact["fits"] == "yes") == runs, "{spec}: {outcome:?}, but {exact}");
        let is_certain = published["guesses"].is_null();
        ensure!(!is_certain || (published["fits"] == "yes") == runs, "{spec}: {outcome:?}, but {published}");
        verdicts[usize::from(runs)] += 1;
        if runs && random.u8(..3) == 0 {
            node.delete(spec.name()).await?;
        } else if !runs {
            node.force_delete(spec.name()).await?;
        }
    }
    ensure!(verdicts[0] > 0 && verdicts[1] > 0, "both must occur: {verdicts:?}");
    Ok(())
}

#[tokio::test]
async fn the_room_that_is_named_lets_the_pod_fit() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let node = strict(RealNode::on("two-by-eight")?).start(&cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    let mut random = Rng::with_seed(seed("pods to make room for"));
    let mut sizes = Vec::new();
    for round in 0..6 {
        for number in 0..8 {
            let spec = random_pod(&format!("pod-{round}-{number}"), &mut random);
            if node.try_to_run(spec.clone()).await? != PodOutcome::Running {
                node.force_delete(spec.name()).await?;
            }
        }
        let wanted = pod(&format!("wanted-{round}")).cpus(random.u32(5..8)).memory("2Gi");
        let local = round % 2 == 0;
        agent.matches_oracle(&node).await?;
        let answer = ask(&cluster, &node, &wanted, local, true)?;
        if answer["fits"] != "yes" {
            let sets = answer["explanation"]["room"]["sets"].as_array().context("it searched")?;
            let set = sets.first().with_context(|| format!("there is room on an empty node: {answer}"))?;
            let pods = set["pods"].as_array().context("it names pods")?;
            sizes.push(pods.len());
            for name in pods {
                let name = name.as_str().and_then(|name| name.split('/').nth(1)).context("namespace/name")?;
                node.delete(name).await?;
            }
        }
        node.run(wanted).await?;
    }
    ensure!(sizes.iter().any(|size| *size > 1), "at least one pod needs the end of several: {sizes:?}");
    Ok(())
}

#[tokio::test]
async fn people_are_told_why() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let node = strict(RealNode::on("two-by-eight")?).start(&cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    node.run(pod("first").cpus(5).memory("1Gi").device("example.com/nic", 1)).await?;
    node.run(pod("second").cpus(4).memory("1Gi")).await?;
    agent.matches_oracle(&node).await?;
    let text = |arguments: &[&str]| -> Result<(String, String, Option<i32>)> {
        let output = fit(&cluster, arguments)?;
        Ok((String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?, output.status.code()))
    };
    let shape = ["--cpu", "5", "--memory", "1Gi"];
    // The API server adds a taint until a controller removes it, which does not run here.
    let (out, _, code) = text(&shape)?;
    ensure!(
        code == Some(1) && out.contains("The scheduler excludes it: node(s) had untolerated taint(s)"),
        "{out}"
    );
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    Api::<Node>::all(node.client()).patch(node.name(), &PatchParams::default(), &untainted).await?;
    let (out, _, code) = text(&shape)?;
    ensure!(code == Some(1), "{out}");
    for expected in [
        "does not fit on",
        "TopologyAffinityError: Resources cannot be allocated with Topology locality",
        "The scheduler plugin rejects the node: cannot align container",
        "cpu (needs 5)",
        "2 of 7 free",
        "3 of 7 free",
        "/first (5 cpu)",
        "/second (4 cpu)",
        "lower the cpu request to 3",
        "topologyManagerPolicy to best-effort",
    ] {
        ensure!(out.contains(expected), "no {expected:?} in:\n{out}");
    }
    let (out, _, code) = text(&["--cpu", "3", "--memory", "1Gi", "--device", "example.com/nic=1"])?;
    ensure!(code == Some(0) && out.contains("fits") && out.contains("node-1"), "{out}");
    let (out, _, code) = text(&["--cpu", "9", "--memory", "1Gi"])?;
    ensure!(code == Some(1) && out.contains("The scheduler excludes it: Insufficient cpu"), "{out}");

    let (out, err, code) = text(&["pod", &format!("{}/first", node.namespace())])?;
    ensure!(code == Some(0) && out.contains("/first runs on"), "what it has counts against it: {out}{err}");

    // A Pending pod, which no scheduler will bind.
    let pods: Api<Pod> = Api::namespaced(node.client(), node.namespace());
    let mut waiting: Pod = pod("waiting").cpus(5).memory("1Gi").bound_to(node.name())?;
    let spec = waiting.spec.as_mut().context("it has a specification")?;
    spec.node_name = None;
    pods.create(&PostParams::default(), &waiting).await?;
    let (out, err, code) = text(&["--pending"])?;
    ensure!(code == Some(1) && out.contains("/waiting") && out.contains("0 of 1"), "{out}{err}");
    ensure!(out.contains("TopologyAffinityError: cpu"), "{out}");
    let name = format!("{}/waiting", node.namespace());
    let (out, err, code) = text(&["pod", &name])?;
    ensure!(code == Some(1) && out.contains("does not fit on"), "{out}{err}");
    let (_, err, code) = text(&["pod", "default/nobody"])?;
    ensure!(code != Some(0) && err.contains("there is no pod default/nobody"), "{err}");
    let (_, err, code) = text(&["--node", "nobody", shape[0], shape[1], shape[2], shape[3]])?;
    ensure!(code != Some(0) && err.contains("no node `nobody`"), "{err}");
    Ok(())
}
