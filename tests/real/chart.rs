//! The chart's lifecycle on a real API server: installed, upgraded and uninstalled by real Helm, with every
//! values file, without a warning. No controllers run there: the test itself does the work of the Job
//! controller for the hook.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, PodTemplateSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition as Crd;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::operator::Operator;
use crate::support::parts::repository;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts};

const CRD: &str = "noderesourcetopologies.topology.node.k8s.io";
const NAMESPACE: &str = "numa";
const PURGE: &str = "numacast-purge";

/// Values that enable every optional object.
const EVERYTHING: &str = "networkPolicy.enabled=true,priorityQuota.enabled=true,metricsTls.secretName=certificate,\
                          platform=openshift,podMonitor.enabled=true,prometheusRule.enabled=true,\
                          dashboard.enabled=true,agent.pools[0].name=edge,agent.pools[0].nodeSelector.pool=edge";

/// Stand-ins for other projects' CRDs, which accept any object: group, kind, plural, whether namespaced.
const STAND_INS: [(&str, &str, &str, bool); 3] = [
    ("monitoring.coreos.com", "PodMonitor", "podmonitors", true),
    ("monitoring.coreos.com", "PrometheusRule", "prometheusrules", true),
    ("security.openshift.io", "SecurityContextConstraints", "securitycontextconstraints", false),
];

async fn stand_in_for_other_crds(client: &Client) -> Result<()> {
    let api: Api<Crd> = Api::all(client.clone());
    for (group, kind, plural, namespaced) in STAND_INS {
        let name = format!("{plural}.{group}");
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": group,
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "scope": if namespaced { "Namespaced" } else { "Cluster" },
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    }},
                }],
            },
        });
        api.patch(&name, &PatchParams::apply("tests"), &Patch::Apply(&crd)).await?;
        until(&format!("{name} is established"), async || {
            let status = api.get(&name).await?.status.unwrap_or_default();
            let mut conditions = status.conditions.into_iter().flatten();
            ensure!(
                conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Creates a namespace with a Pod Security Standard in the modes `enforce` and `warn`.
async fn namespace(client: &Client, name: &str, standard: &str) -> Result<()> {
    let of = |mode: &str| format!("pod-security.kubernetes.io/{mode}");
    let labels: BTreeMap<String, &str> = ["enforce", "warn"].map(|mode| (of(mode), standard)).into();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    let params = PatchParams::apply("tests").force();
    Api::<Namespace>::all(client.clone()).patch(name, &params, &Patch::Apply(&namespace)).await?;
    Ok(())
}

/// Returns Helm arguments: without values, with each values file of the chart, and with everything enabled.
fn values() -> Result<Vec<String>> {
    let mut all = vec![String::new(), format!("--set {EVERYTHING}")];
    for entry in std::fs::read_dir(repository().join("charts/numacast"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("values-") {
            all.push(format!("--values {}", path.display()));
        }
    }
    all.sort();
    Ok(all)
}

/// Lists all objects by name: all listable kinds, except what the API server creates by itself.
fn inventory(operator: &Operator) -> Result<BTreeSet<String>> {
    let kinds = operator.run("kubectl", "api-resources --verbs=list --output=name")?;
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let line = format!(
        "get {} --all-namespaces --output=custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name --no-headers",
        kinds.join(",")
    );
    let all = operator.run("kubectl", &line)?;
    let ours = |line: &&str| !line.starts_with("APIService") && !line.contains("kube-system");
    Ok(all.lines().filter(ours).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect())
}

/// Returns Helm's output; fails if it has a warning or an error.
fn without_warnings((stdout, stderr): (String, String), line: &str) -> Result<String> {
    // client-go logs a watch that is canceled when helm exits.
    let canceled = |line: &&str| line.contains("reflector.go") && line.contains("context canceled");
    let mut errors = stderr.lines().filter(|line| !canceled(line));
    ensure!(errors.all(|line| line.trim().is_empty()), "helm {line}: {stderr}");
    ensure!(!stdout.contains("arning:"), "helm {line}: {stdout}");
    Ok(stdout)
}

/// The release `numacast` on a cluster.
struct Release<'a> {
    operator: &'a Operator,
    cluster: &'a Cluster,
}

impl Release<'_> {
    fn helm(&self, line: &str) -> Result<String> {
        without_warnings(self.operator.run_with_stderr("helm", line)?, line)
    }

    /// Checks that the API server accepts every rendered object, including hooks, with strict validation and
    /// no warning.
    fn is_accepted(&self, chart: &str, values: &str) -> Result<()> {
        let line = format!("template numacast {chart} --namespace {NAMESPACE} {values}");
        let file = self.cluster.dir().join("rendered.yaml");
        std::fs::write(&file, self.helm(&line)?)?;
        let line = format!(
            "apply --server-side --force-conflicts --dry-run=server --validate=strict --warnings-as-errors --filename {}",
            file.display()
        );
        let (_, error) = self.operator.run_with_stderr("kubectl", &line)?;
        ensure!(error.trim().is_empty(), "kubectl prints {error}");
        Ok(())
    }

    /// Returns what upgrades must preserve: the workloads' UIDs and selectors.
    async fn identities(&self) -> Result<Vec<Value>> {
        let client = self.cluster.client();
        let agents = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE);
        let controllers = Api::<Deployment>::namespaced(client, NAMESPACE);
        let agent = agents.get("numacast-agent").await?;
        let controller = controllers.get_opt("numacast-controller").await?;
        Ok(vec![
            json!([agent.uid(), agent.spec.map(|spec| spec.selector)]),
            json!(controller.map(|controller| (controller.uid(), controller.spec.map(|spec| spec.selector)))),
        ])
    }

    async fn agents(&self) -> Result<DaemonSet> {
        let api = Api::namespaced(self.cluster.client(), NAMESPACE);
        Ok(api.get("numacast-agent").await?)
    }

    /// Installs an older chart, upgrades it several times, and uninstalls it.
    async fn cycle(&self, older: &str, values: &str) -> Result<()> {
        self.is_accepted("charts/numacast", values)?;
        let at = format!("--namespace {NAMESPACE} {values}");
        self.helm(&format!("install numacast {older} {at}"))?;
        let (identities, of_old) = (self.identities().await?, self.agents().await?);

        self.helm(&format!("upgrade numacast charts/numacast {at}"))?;
        let of_new = self.agents().await?;
        ensure!(template(&of_new)? != template(&of_old)?, "the new image is not in the pods");
        self.helm(&format!("upgrade numacast charts/numacast {at}"))?;
        let once_more = self.agents().await?.metadata.generation;
        ensure!(once_more == of_new.metadata.generation, "the same chart and values change the agents");
        let other = "--set config.scan.poll=7s,controller.replicaCount=3,networkPolicy.enabled=true";
        self.helm(&format!("upgrade numacast charts/numacast {at} {other}"))?;
        ensure!(template(&self.agents().await?)? != template(&of_new)?, "the pods stay as they were");
        ensure!(self.identities().await? == identities, "a workload is another one");

        if values.contains("values-without-objects.yaml") {
            ensure!(identities[1].is_null(), "there is a controller");
            return self.helm(&format!("uninstall numacast --namespace {NAMESPACE}")).map(drop);
        }
        published(self.operator, self.cluster.dir(), "worker")?;
        self.uninstall().await
    }

    /// Uninstalls the release, doing the Job controller's work for the hook meanwhile.
    async fn uninstall(&self) -> Result<()> {
        let line = format!("uninstall numacast --namespace {NAMESPACE} --timeout 80s");
        let (operator, arguments) = (self.operator.clone(), line.clone());
        let helm = tokio::task::spawn_blocking(move || operator.run_with_stderr("helm", &arguments));
        let acted = self.act_as_job_controller().await;
        let output = helm.await?;
        acted?;
        let output = without_warnings(output?, &line)?;
        ensure!(output.contains("kept due to the resource policy"), "{output}");
        Ok(())
    }

    /// Does what the Job's pod would do, with the Job's own command, configuration, environment and service
    /// account.
    async fn act_as_job_controller(&self) -> Result<()> {
        let client = self.cluster.client();
        let jobs = Api::<Job>::namespaced(client.clone(), NAMESPACE);
        let job = until("the hook's Job is there", async || Ok(jobs.get(PURGE).await?)).await?;
        let pod = job.spec.context("a Job without a spec")?.template.spec.context("a Job without a pod")?;
        let account = pod.service_account_name.context("a pod without an account")?;
        let maps = Api::<ConfigMap>::namespaced(client, NAMESPACE);
        let map = maps.get("numacast-controller").await?;
        let file = self.cluster.dir().join("purge.yaml");
        std::fs::write(&file, &map.data.context("an empty ConfigMap")?["config.yaml"])?;
        let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        for argument in pod.containers[0].args.iter().flatten() {
            let is_file = argument == "/etc/numacast/config.yaml";
            command.arg(if is_file { file.as_os_str() } else { argument.as_ref() });
        }
        command.env("KUBECONFIG", self.cluster.kubeconfig_as(&user, &[])?);
        command.env("POD_NAME", PURGE).env("POD_NAMESPACE", NAMESPACE);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        ensure!(output.status.success(), "the hook: {}", String::from_utf8_lossy(&output.stderr));
        let now = job.metadata.creation_timestamp.context("a Job without an age")?;
        let of = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let status = json!({"status": {
            "startTime": now, "completionTime": now, "succeeded": 1, "uncountedTerminatedPods": {},
            "conditions": [of("SuccessCriteriaMet"), of("Complete")],
        }});
        jobs.patch_status(PURGE, &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(())
    }
}

/// Writes an object as an agent does, so that there is something to purge.
fn published(operator: &Operator, dir: &Path, name: &str) -> Result<()> {
    let object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name}, "zones": [{"name": "node-0", "type": "Node"}],
    });
    let file = dir.join(format!("{name}.json"));
    std::fs::write(&file, object.to_string())?;
    let line = format!("apply --server-side --field-manager=numacast --filename {}", file.display());
    operator.run("kubectl", &line).map(drop)
}

#[tokio::test]
async fn it_is_installed_upgraded_and_uninstalled_with_every_values_file() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let client = cluster.client();
    let operator = Operator::of(&parts, &cluster);
    // A cluster without the CRD, which this chart installs.
    Api::<Crd>::all(client.clone()).delete(CRD, &DeleteParams::default()).await?;
    stand_in_for_other_crds(&client).await?;
    namespace(&client, NAMESPACE, "privileged").await?;
    let older = cluster.dir().join("numacast-0.0.1.tgz");
    let dir = cluster.dir().display();
    operator.run(
        "helm",
        &format!("package charts/numacast --version 0.0.1 --app-version 0.0.1 --destination {dir}"),
    )?;
    until("the CRD is gone", async || {
        ensure!(Api::<Crd>::all(client.clone()).get_opt(CRD).await?.is_none());
        Ok(())
    })
    .await?;
    let before = inventory(&operator)?;

    let release = Release { operator: &operator, cluster: &cluster };
    for values in values()? {
        release
            .cycle(&older.to_string_lossy(), &values)
            .await
            .with_context(|| format!("values: {values}"))?;
        let after = inventory(&operator)?;
        let left: Vec<&String> = after.difference(&before).collect();
        ensure!(left == [&format!("CustomResourceDefinition <none> {CRD}")], "{values}: it leaves {left:?}");
    }
    Ok(())
}

fn template(agents: &DaemonSet) -> Result<&PodTemplateSpec> {
    Ok(&agents.spec.as_ref().context("no spec")?.template)
}

#[tokio::test]
async fn a_crd_of_another_owner_is_not_changed() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let operator = Operator::of(&parts, &cluster);
    let crds = Api::<Crd>::all(cluster.client());
    let owned_by = async |release: Option<&str>| -> Result<()> {
        let of = |key: &str, value: &str| release.map(|_| (format!("meta.helm.sh/{key}"), value.to_owned()));
        let notes = [of("release-name", release.unwrap_or_default()), of("release-namespace", "elsewhere")];
        let notes: BTreeMap<_, _> = notes.into_iter().flatten().collect();
        let patch = json!({"metadata": {"annotations": notes}});
        crds.patch(CRD, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    };
    for (owner, text) in [
        (None, "belongs to another installation, without Helm"),
        (Some("nfd"), "belongs to the Helm release elsewhere/nfd"),
        (Some("numacast"), "belongs to the Helm release elsewhere/numacast"),
    ] {
        owned_by(owner).await?;
        // Not its resourceVersion: the API server itself writes the status.
        let what = |crd: &Crd| (crd.metadata.generation, crd.labels().clone(), crd.annotations().clone());
        let before = what(&crds.get(CRD).await?);
        let line = "install numacast charts/numacast --namespace numa --create-namespace";
        let output = without_warnings(operator.run_with_stderr("helm", line)?, line)?;
        ensure!(output.contains(text), "{output}");
        let line = "upgrade numacast charts/numacast --namespace numa";
        let output = without_warnings(operator.run_with_stderr("helm", line)?, line)?;
        ensure!(output.contains(text), "{output}");
        operator.run("helm", "uninstall numacast --namespace numa --no-hooks")?;
        ensure!(what(&crds.get(CRD).await?) == before, "{owner:?}: the CRD was touched");
    }
    // A CRD that does not serve the version that the agents write.
    let patch = r#"[{"op":"replace","path":"/spec/versions/1/served","value":false}]"#;
    operator.run("kubectl", &format!("patch crd {CRD} --type=json --patch={patch}"))?;
    let output = operator.run("helm", "install numacast charts/numacast --namespace numa")?;
    ensure!(output.contains("serves v1alpha1 but not v1alpha2"), "{output}");
    Ok(())
}

#[tokio::test]
async fn the_notes_warn_of_obstacles() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let client = cluster.client();
    let operator = Operator::of(&parts, &cluster);
    Api::<Crd>::all(client.clone()).delete(CRD, &DeleteParams::default()).await?;
    let notes = |values: &str| -> Result<String> {
        let line =
            format!("install numacast charts/numacast --namespace {NAMESPACE} --dry-run=server {values}");
        operator.run("helm", &line)
    };
    namespace(&client, NAMESPACE, "privileged").await?;
    until("the CRD is gone", async || {
        ensure!(Api::<Crd>::all(client.clone()).get_opt(CRD).await?.is_none());
        Ok(())
    })
    .await?;
    let usual = notes("")?;
    ensure!(usual.contains("Platform: generic (no other platform was recognized)."), "{usual}");
    ensure!(
        usual.matches("WARNING").count() == 1 && usual.contains("set platform, kubelet.configFile"),
        "{usual}"
    );
    let usual = notes("--set platform=generic")?;
    ensure!(!usual.contains("WARNING"), "{usual}");
    let output = notes("--set crds.enabled=false")?;
    ensure!(output.contains("there is no CRD of NodeResourceTopology"), "{output}");

    namespace(&client, NAMESPACE, "baseline").await?;
    let kubeadm = json!({"metadata": {"name": "kubeadm-config"}});
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    maps.create(&PostParams::default(), &serde_json::from_value(kubeadm)?).await?;
    for (name, image, command) in [
        ("nfd-topology-updater", "nfd:v0.19", "nfd-topology-updater"),
        ("rte", "rte:v0.25", "/bin/resource-topology-exporter"),
        ("koordlet", "koordlet:v1.7", "/koordlet"),
        ("harmless", "pause:latest", "/pause"),
    ] {
        let agents = json!({"metadata": {"name": name}, "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": image, "command": [command]}]},
            },
        }});
        let api = Api::<DaemonSet>::namespaced(client.clone(), "default");
        api.create(&PostParams::default(), &serde_json::from_value(agents)?).await?;
    }
    let output = notes("")?;
    for text in [
        "the namespace enforces the Pod Security Standard baseline, which forbids the agents' host paths",
        "Platform: kubeadm (the ConfigMap kube-system/kubeadm-config exists).",
        "the DaemonSet default/nfd-topology-updater seems to write",
        "the DaemonSet default/rte seems to write",
        "the DaemonSet default/koordlet seems to write",
    ] {
        ensure!(output.contains(text), "not there: {text}\n{output}");
    }
    ensure!(output.matches("WARNING").count() == 4, "{output}");
    let output = notes("--set lookup=false")?;
    ensure!(output.matches("WARNING").count() == 1, "{output}");
    ensure!(output.contains("Platform: generic (the cluster could not be queried)."), "{output}");

    // Another numacast would write the same objects.
    namespace(&client, NAMESPACE, "privileged").await?;
    operator.run("helm", &format!("install numacast charts/numacast --namespace {NAMESPACE}"))?;
    let output =
        operator.run("helm", "install second charts/numacast --namespace default --dry-run=server")?;
    ensure!(output.contains("the DaemonSet numa/numacast-agent belongs to another numacast"), "{output}");
    let line = format!("upgrade numacast charts/numacast --namespace {NAMESPACE}");
    let output = operator.run("helm", &line)?;
    ensure!(!output.contains("another numacast"), "{output}");
    Ok(())
}

/// Which Pod Security Standard admits which pods: the agents' host paths need `privileged`; the others pass
/// `restricted`.
#[tokio::test]
async fn pods_are_admitted_where_the_documents_say() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let client = cluster.client();
    let operator = Operator::of(&parts, &cluster);
    for standard in ["privileged", "baseline", "restricted"] {
        namespace(&client, standard, standard).await?;
    }
    operator.run("helm", "install numacast charts/numacast --namespace privileged")?;
    let agents = Api::<DaemonSet>::namespaced(client.clone(), "privileged").get("numacast-agent").await?;
    let controllers = Api::<Deployment>::namespaced(client.clone(), "privileged");
    let controller = controllers.get("numacast-controller").await?.spec.context("no spec")?.template;
    let rendered =
        operator.run("helm", "template numacast charts/numacast --show-only templates/tests/check.yaml")?;
    let check = rendered.split("\n---\n").last().context("no Pod")?;
    let check: Pod = serde_saphyr::from_str(check)?;
    let rendered =
        operator.run("helm", "template numacast charts/numacast --show-only templates/purge-hook.yaml")?;
    let purge = rendered.split("\n---\n").last().context("no Job")?;
    let purge: Job = serde_saphyr::from_str(purge)?;
    for (who, spec, least) in [
        ("agent", template(&agents)?.spec.clone(), "privileged"),
        ("controller", controller.spec, "restricted"),
        ("check", check.spec, "restricted"),
        ("purge", purge.spec.context("no spec")?.template.spec, "restricted"),
    ] {
        for standard in ["privileged", "baseline", "restricted"] {
            let mut pod = Pod { spec: spec.clone(), ..Pod::default() };
            pod.metadata.name = Some(who.to_owned());
            let params = PostParams { dry_run: true, ..PostParams::default() };
            let result = Api::namespaced(client.clone(), standard).create(&params, &pod).await;
            let admitted = standard == "privileged" || least == "restricted";
            ensure!(result.is_ok() == admitted, "{who} in {standard}: {:?}", result.err());
            let output = result.err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(admitted || output.contains("hostPath"), "{who} in {standard}: {output}");
        }
    }
    Ok(())
}
