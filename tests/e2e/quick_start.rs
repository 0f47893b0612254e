//! The steps of docs/quickstart.md, as a reader takes them. Their output becomes that of the documents.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::cluster::Cluster;
use crate::images;
use crate::pods::wait_until_it_runs;
use crate::support::document;
use crate::support::parts::repository;
use crate::support::wait::until;

/// Prints the CPUs that are free, by node and zone.
const FREE: &str = "kubectl get noderesourcetopologies --output custom-columns='NODE:.metadata.name,FREE CPUS:.zones[*].resources[?(@.name==\"cpu\")].available'";

/// Takes the steps and writes their output.
pub(crate) async fn run(cluster: &Cluster) -> Result<String> {
    let dir = cluster.dir().join("quick-start");
    std::fs::create_dir_all(&dir)?;
    for (name, cpus) in [("aligned", None), ("second", None), ("third", Some("3"))] {
        write_pod(&dir, name, cpus)?;
    }
    let zones = console(cluster, &dir, &["kubectl get noderesourcetopologies", FREE]).await?;

    let created = console(cluster, &dir, &["kubectl apply --filename aligned.yaml"]).await?;
    wait_until_it_runs(cluster, "aligned").await?;
    wait_for(cluster, &dir, "2,7").await?;
    let pod = console(cluster, &dir, &["kubectl get pod aligned", FREE]).await?;

    let second = console(cluster, &dir, &["kubectl apply --filename second.yaml"]).await?;
    wait_until_it_runs(cluster, "second").await?;
    wait_for(cluster, &dir, "2,2").await?;
    let third = console(cluster, &dir, &[FREE, "kubectl apply --filename third.yaml"]).await?;
    let events = "kubectl get events --field-selector involvedObject.name=third,reason=FailedScheduling";
    until("the scheduler says why the third pod fits no zone", async || {
        let text = cluster.tools.shell(events, &dir).await?;
        ensure!(text.contains("cannot align"), "{text}");
        Ok(())
    })
    .await?;
    let pending = console(cluster, &dir, &[events]).await?;

    let deleted = console(cluster, &dir, &["kubectl delete pod aligned"]).await?;
    wait_until_it_runs(cluster, "third").await?;
    let started = console(cluster, &dir, &["kubectl get pod third"]).await?;

    for (file, name, text) in [
        ("docs/quickstart.md", "the zones", zones),
        ("docs/quickstart.md", "an aligned pod", format!("{created}{pod}")),
        ("docs/quickstart.md", "a pod that fits no zone", format!("{second}{third}{pending}")),
        ("docs/quickstart.md", "it starts later", format!("{deleted}{started}")),
        ("README.md", "an aligned pod", pod),
    ] {
        let markers =
            [format!("<!-- output: {name} -->\n```console\n"), "```\n<!-- end of output -->".to_owned()];
        document::replace(file, [&markers[0], &markers[1]], &text)?;
    }
    Ok("three pods as documented; the output is in README.md and docs/quickstart.md".to_owned())
}

/// Writes the document's pod under another name and with other CPUs, and with an image that the nodes have.
fn write_pod(dir: &Path, name: &str, cpus: Option<&str>) -> Result<()> {
    let document = std::fs::read_to_string(repository().join("docs/quickstart.md"))?;
    let blocks = document.split("```yaml\n").filter_map(|rest| rest.split("```").next());
    let block = blocks.into_iter().find(|block| block.contains("kind: Pod")).context("there is no pod")?;
    let mut pod: Pod = serde_saphyr::from_str(block)?;
    pod.metadata.name = Some(name.to_owned());
    let spec = pod.spec.as_mut().context("the pod has no spec")?;
    spec.termination_grace_period_seconds = Some(1);
    let container = &mut spec.containers[0];
    (container.image, container.command) = (Some(images::PAUSE.to_owned()), None);
    let limits = container.resources.as_mut().and_then(|resources| resources.limits.as_mut());
    if let (Some(limits), Some(cpus)) = (limits, cpus) {
        limits.insert("cpu".to_owned(), Quantity(cpus.to_owned()));
    }
    Ok(std::fs::write(dir.join(format!("{name}.yaml")), serde_json::to_vec(&pod)?)?)
}

/// Runs commands and returns them with their output, as a terminal shows it.
async fn console(cluster: &Cluster, dir: &Path, commands: &[&str]) -> Result<String> {
    let mut text = String::new();
    for command in commands {
        text += &format!("$ {command}\n");
        for line in cluster.tools.shell(command, dir).await?.lines() {
            text += &format!("{}\n", line.trim_end());
        }
    }
    Ok(text)
}

/// Waits until the zones have these free CPUs.
async fn wait_for(cluster: &Cluster, dir: &Path, free: &str) -> Result<()> {
    until(&format!("the zones have {free} free CPUs"), async || {
        let text = cluster.tools.shell(FREE, dir).await?;
        ensure!(text.trim_end().ends_with(&format!(" {free}")), "{text}");
        Ok(())
    })
    .await
}
