//! Migrating from NFD, step by step as in docs/migration.md, with real Helm. A minimal chart stands in for
//! NFD's: what matters is that the CRD is one of its templates, behind a value.

use std::path::Path;

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Crd;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::operator::Operator;
use crate::support::parts::repository;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts};

const CRD: &str = "noderesourcetopologies.topology.node.k8s.io";

/// Writes a chart that handles the CRD like NFD's.
fn write_old_chart(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir.join("templates"))?;
    std::fs::write(dir.join("Chart.yaml"), "apiVersion: v2\nname: old\nversion: 1.0.0\n")?;
    std::fs::write(dir.join("values.yaml"), "createCRDs: true\n")?;
    let crd = std::fs::read_to_string(repository().join("charts/numacast/files/crd.yaml"))?;
    let template = format!("{{{{- if .Values.createCRDs }}}}\n{crd}\n{{{{- end }}}}\n");
    Ok(std::fs::write(dir.join("templates/crd.yaml"), template)?)
}

/// Installs it in place of the CRD that every test cluster starts with; returns the chart's path.
async fn install_old(operator: &Operator, crds: &Api<Crd>, dir: &Path) -> Result<String> {
    crds.delete(CRD, &DeleteParams::default()).await?;
    until("the CRD is gone", async || {
        ensure!(crds.get_opt(CRD).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    let old = dir.join("old");
    write_old_chart(&old)?;
    let old = old.display().to_string();
    operator.run("helm", &format!("install old {old} --namespace old --create-namespace"))?;
    Ok(old)
}

#[tokio::test]
async fn the_crd_and_the_objects_remain_after_the_old_publisher() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let operator = Operator::of(&parts, &cluster);
    let crds: Api<Crd> = Api::all(cluster.client());
    let old = install_old(&operator, &crds, cluster.dir()).await?;
    let resource = ApiResource {
        group: "topology.node.k8s.io".to_owned(),
        version: "v1alpha2".to_owned(),
        api_version: "topology.node.k8s.io/v1alpha2".to_owned(),
        kind: "NodeResourceTopology".to_owned(),
        plural: "noderesourcetopologies".to_owned(),
    };
    let topologies: Api<DynamicObject> = Api::all_with(cluster.client(), &resource);
    let object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "worker"}, "zones": [],
    });
    until("the old publisher's object is there", async || {
        let params = PatchParams::apply("node-feature-discovery-topology-updater");
        topologies.patch("worker", &params, &Patch::Apply(&object)).await?;
        Ok(())
    })
    .await?;
    let uid = crds.get(CRD).await?.uid();

    // As in the document.
    operator.run("kubectl", &format!("annotate crd {CRD} helm.sh/resource-policy=keep --overwrite"))?;
    operator.run("helm", &format!("upgrade old {old} --namespace old --set createCRDs=false"))?;
    operator.run(
        "helm",
        "install numacast charts/numacast --namespace numacast --create-namespace --values charts/numacast/values-from-nfd.yaml",
    )?;
    operator.run("helm", "uninstall old --namespace old")?;
    let kept = crds.get(CRD).await?;
    ensure!(
        kept.uid() == uid && kept.metadata.deletion_timestamp.is_none(),
        "the CRD is another one, or going"
    );
    ensure!(
        kept.annotations().get("meta.helm.sh/release-name").is_some_and(|name| name == "old"),
        "it was taken"
    );
    ensure!(topologies.list(&ListParams::default()).await?.items.len() == 1, "the object is gone");

    // Once adopted, the CRD is upgraded with the release, but not removed with it.
    operator.run(
        "kubectl",
        &format!("annotate crd {CRD} --overwrite meta.helm.sh/release-name=numacast meta.helm.sh/release-namespace=numacast"),
    )?;
    operator.run("kubectl", &format!("label crd {CRD} app.kubernetes.io/managed-by=Helm --overwrite"))?;
    operator
        .run("helm", "upgrade numacast charts/numacast --namespace numacast --reset-then-reuse-values")?;
    let manifest = operator.run("helm", "get manifest numacast --namespace numacast")?;
    ensure!(manifest.contains("kind: CustomResourceDefinition"), "the CRD is not the release's");
    operator.run("helm", "uninstall numacast --namespace numacast --no-hooks")?;
    let kept = crds.get(CRD).await?;
    ensure!(kept.uid() == uid && kept.metadata.deletion_timestamp.is_none(), "the CRD went with numacast");
    Ok(())
}

/// The reason for the document's first step: what happens without it.
#[tokio::test]
async fn without_the_annotation_the_crd_is_deleted_with_every_object() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let operator = Operator::of(&parts, &cluster);
    let crds: Api<Crd> = Api::all(cluster.client());
    let old = install_old(&operator, &crds, cluster.dir()).await?;
    operator.run("helm", &format!("upgrade old {old} --namespace old --set createCRDs=false"))?;
    until("the CRD goes", async || {
        let crd = crds.get_opt(CRD).await?;
        ensure!(crd.is_none_or(|crd| crd.metadata.deletion_timestamp.is_some()), "it is there");
        Ok(())
    })
    .await
}
