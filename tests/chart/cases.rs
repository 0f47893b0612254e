//! Values for which the chart is rendered.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::helm::{Helm, Objects, presets};

/// Arguments of `helm template`, with a name.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    arguments: Vec<String>,
}

impl Case {
    fn set(values: &[&str]) -> Self {
        let arguments = values.iter().flat_map(|value| ["--set".to_owned(), (*value).to_owned()]);
        Self { name: values.join(" "), arguments: arguments.collect() }
    }

    fn arguments(&self) -> Vec<&str> {
        self.arguments.iter().map(String::as_str).collect()
    }
}

/// Everything that can be enabled in addition to the defaults without disabling something else.
const EVERYTHING: [&str; 12] = [
    "networkPolicy.enabled=true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
    "priorityQuota.enabled=true",
    "hostUsers=false",
    "metricsTls.secretName=certificate",
    "metricsTls.verifyClients=true",
    "podMonitor.enabled=true",
    "podMonitor.tlsConfig.cert.secret.name=scraper",
    "podMonitor.tlsConfig.keySecret.name=scraper",
    "scheduler.enabled=true",
    "prometheusRule.enabled=true",
    "dashboard.enabled=true",
];

/// Single settings, or a few related ones.
const SWITCHES: [&[&str]; 82] = [
    &[],
    &[
        "config.publish.to=none",
        "config.podsApi.enabled=true",
        "config.podsApi.podInfo.group=2000",
        "config.proxy.enabled=false",
        "controller.enabled=false",
        "purge.enabled=false",
        "networkPolicy.enabled=true",
        "podMonitor.enabled=true",
        "prometheusRule.enabled=true",
    ],
    &[
        "config.publish.to=none",
        "config.podsApi.enabled=true",
        "config.podsApi.source=podsApi",
        "controller.enabled=false",
        "purge.enabled=false",
    ],
    &["nameOverride=zones"],
    &["fullnameOverride=zones"],
    &["commonLabels.team=hpc", "commonAnnotations.note=ours"],
    &["commonLabels.app\\.kubernetes\\.io/component=mine", "agent.podLabels.app\\.kubernetes\\.io/name=mine"],
    &["image.tag=v9", "image.repository=registry.example:5000/a/b", "image.pullPolicy=Always"],
    &["image.digest=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"],
    &["imagePullSecrets[0].name=registry"],
    &[
        "global.imageRegistry=registry.example:5000/mirror",
        "global.imagePullSecrets[0].name=mirror",
        "imagePullSecrets[0].name=registry",
        "scheduler.enabled=true",
    ],
    &[
        "platform=openshift",
        "scheduler.enabled=true",
        "agent.pools[0].name=a",
        "agent.pools[0].nodeSelector.a=b",
    ],
    &["platform=gke"],
    &["platform=kubeadm"],
    &[
        "agent.enabled=false",
        "podMonitor.enabled=true",
        "networkPolicy.enabled=true",
        "prometheusRule.enabled=true",
    ],
    &["agent.enabled=false", "controller.enabled=false", "purge.enabled=false", "scheduler.enabled=true"],
    &["agent.labels.a=b", "agent.annotations.a=b", "controller.labels.a=b", "controller.annotations.a=b"],
    &["crds.keep=false"],
    &[
        "kubelet.configFile=/etc/a",
        "agent.pools[0].name=a",
        "agent.pools[0].nodeSelector.a=b",
        "config.proxy.enabled=true",
    ],
    &["config.pods.source=kubelet", "config.fingerprint.view=kubelet"],
    &["config.pods.source=podsApi", "config.fingerprint.view=none"],
    &["config.pods.source=none", "config.fingerprint.view=kubelet"],
    &["config.fingerprint.view=kubelet"],
    &["config.pods.source=auto", "config.fingerprint.view=kubelet"],
    &["config.consumer=kai"],
    &["config.consumer=none", "config.pods.source=auto", "networkPolicy.enabled=true"],
    &["config.consumer=schedulerPluginsDirect"],
    &["config.publish.events=false", "config.publish.ownerReference=false"],
    &["kubelet.configSource=auto"],
    &[
        "kubelet.configSource=none",
        "kubelet.configOverrides.topologyManagerPolicy=restricted",
        "kubelet.configOverrides.topologyManagerScope=pod",
    ],
    &["kubelet.address=worker.example:10251", "networkPolicy.enabled=true"],
    &[
        "kubelet.certificateFingerprints={sha256:00:07:0E:15:1C:23:2A:31:38:3F:46:4D:54:5B:62:69:70:77:7E:85:8C:93:9A:A1:A8:AF:B6:BD:C4:CB:D2:D9}",
    ],
    &["config.health.address=none", "controller.config.health.address=none"],
    &["config.metrics.address=none", "controller.config.metrics.address=none", "networkPolicy.enabled=true"],
    &["config.health.address=0.0.0.0:1234", "config.metrics.address=[::]:4321"],
    &["config.health.address=:9742"],
    &["config.log.level=debug", "config.log.format=json"],
    &["kubelet.configFile=/var/lib/kubelet/config.yaml"],
    &["kubelet.configFile=/etc/kubernetes/kubelet.conf", "kubelet.configDir=/etc/kubernetes/kubelet.conf.d"],
    &["kubelet.mountDir=true"],
    &["config.dra.source=off"],
    &["config.dra.source=false"],
    &["kubelet.mountDir=true", "kubelet.configSource=file"],
    &[
        "kubelet.mountDir=true",
        "kubelet.configFile=/var/lib/kubelet/config.yaml",
        "config.fingerprint.view=none",
    ],
    &["kubelet.mountDir=true", "kubelet.dir=/data/kubelet", "kubelet.configFile=/etc/kubelet.yaml"],
    &["kubelet.dir=/var/snap/microk8s/common/var/lib/kubelet"],
    &["kubelet.devicePluginsDir="],
    &["config.proxy.enabled=true"],
    &["config.proxy.enabled=true", "config.proxy.annotations.koordinator={cpus}", "kubelet.mountDir=true"],
    &["config.proxy.enabled=true", "config.proxy.dir=/var/run/shared/lister", "config.proxy.group=1500"],
    &["config.proxy.dir=/run/unused", "config.proxy.group=1500"],
    &["config.podsApi.enabled=true"],
    &["config.podsApi.enabled=true", "config.podsApi.source=kubelet", "networkPolicy.enabled=true"],
    &["config.podsApi.enabled=true", "config.podsApi.source=podsApi", "kubelet.mountDir=true"],
    &[
        "config.podsApi.enabled=true",
        "config.podsApi.source=apiServer",
        "config.podsApi.dir=/var/run/shared/pods",
        "config.podsApi.group=1501",
        "config.pods.source=none",
        "config.fingerprint.view=none",
    ],
    &[
        "config.podsApi.enabled=true",
        "config.podsApi.group=1500",
        "config.proxy.enabled=true",
        "config.proxy.group=1500",
    ],
    &["config.podsApi.dir=/run/unused", "config.podsApi.group=1500"],
    &["config.publish.apiVersion=v1alpha1"],
    &["agent.priorityClassName=", "agent.tolerations=null", "agent.nodeSelector=null", "agent.affinity=null"],
    &["agent.updateStrategy.type=OnDelete", "controller.strategy.type=Recreate"],
    &[
        "agent.extraArgs[0]=--log-format",
        "agent.extraArgs[1]=json",
        "controller.extraArgs[0]=--log-format=json",
    ],
    &[
        "agent.extraEnv[0].name=A",
        "agent.extraEnv[0].value=b",
        "agent.extraVolumes[0].name=run",
        "agent.extraVolumes[0].emptyDir.medium=Memory",
        "agent.extraVolumeMounts[0].name=run",
        "agent.extraVolumeMounts[0].mountPath=/run/numacast",
    ],
    &[
        "controller.extraEnv[0].name=A",
        "controller.extraEnv[0].value=b",
        "controller.extraVolumes[0].name=run",
        "controller.extraVolumes[0].emptyDir.medium=Memory",
        "controller.extraVolumeMounts[0].name=run",
        "controller.extraVolumeMounts[0].mountPath=/run/numacast",
    ],
    &["controller.enabled=false"],
    &["controller.enabled=false", "purge.enabled=false", "networkPolicy.enabled=true"],
    &["controller.replicaCount=1"],
    &["controller.podDisruptionBudget.enabled=false"],
    &["controller.priorityClassName=high", "agent.runtimeClassName=runc"],
    &[
        "controller.config.publish.events=false",
        "controller.config.log.level=debug",
        "controller.extraArgs[0]=--dry-run",
        "controller.config.scheduler=kube-system/component=kube-scheduler",
        "controller.config.garbage.maxPercent=50",
    ],
    &["controller.config.lease=", "controller.replicaCount=1"],
    &["scheduler.enabled=true", "scheduler.config.parallelism=32", "podMonitor.enabled=true"],
    &["scheduler.enabled=true", "config.consumer=schedulerPluginsDirect", "networkPolicy.enabled=true"],
    &[
        "scheduler.enabled=true",
        "scheduler.name=zones",
        "scheduler.replicaCount=1",
        "scheduler.cacheResyncPeriodSeconds=30",
        "controller.config.nudge=off",
        "config.fingerprint.informerMode=shared",
    ],
    &["crds.enabled=false"],
    &["rbac.create=false", "purge.enabled=false", "platform=openshift"],
    &[
        "serviceAccount.agent.create=false",
        "serviceAccount.agent.name=one",
        "serviceAccount.controller.create=false",
        "serviceAccount.controller.name=two",
        "serviceAccount.purge.create=false",
        "serviceAccount.purge.name=three",
    ],
    &[
        "serviceAccount.agent.name=a.b",
        "serviceAccount.agent.annotations.a=b",
        "serviceAccount.purge.annotations.a=b",
    ],
    &["admissionPolicy.enabled=false"],
    &["admissionPolicy.onMissingClaim=Allow"],
    &["admissionPolicy.maxZones=64"],
    &["config.publish.topologyPolicies=true"],
    &["lookup=false", "purge.enabled=false"],
];

/// Returns a case for every values file and every switch, and combinations with everything enabled.
fn all() -> Result<Vec<Case>> {
    let mut cases: Vec<Case> = SWITCHES.iter().map(|values| Case::set(values)).collect();
    cases[0].name = "the defaults".to_owned();
    cases.push(Case::set(&EVERYTHING));
    for file in presets()? {
        let arguments = vec!["--values".to_owned(), file.display().to_string()];
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Without objects there is no scheduler.
        let is_possible =
            |value: &&&str| !(name == "values-without-objects.yaml" && value.starts_with("scheduler."));
        let everything: Vec<&str> = EVERYTHING.iter().filter(is_possible).copied().collect();
        let with_everything = Case::set(&everything).arguments;
        cases.push(Case {
            name: format!("{name} and everything"),
            arguments: [arguments.clone(), with_everything].concat(),
        });
        cases.push(Case { name, arguments });
    }
    Ok(cases)
}

/// Names of cases, with the rendered objects.
type Rendered = Arc<Vec<(String, Objects)>>;

/// Renders all cases, once for all tests.
pub(crate) fn rendered(helm: &Helm) -> Result<Rendered> {
    static RENDERED: Mutex<Option<Rendered>> = Mutex::new(None);
    let mut rendered = RENDERED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(all) = &*rendered {
        return Ok(Arc::clone(all));
    }
    let mut fresh = Vec::new();
    for case in all()? {
        let objects = helm.render(&case.arguments()).with_context(|| case.name.clone())?;
        fresh.push((case.name, objects));
    }
    let fresh = Arc::new(fresh);
    *rendered = Some(Arc::clone(&fresh));
    Ok(fresh)
}
