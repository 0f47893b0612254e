//! Values that the chart rejects, each with an error that names the place.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::helm::{Helm, chart};

/// Rejected settings, with a part of the error.
const BY_THE_SCHEMA: [(&str, &str); 61] = [
    ("agent=null", "missing property 'agent'"),
    ("fullnameOverride=1st", "at '/fullnameOverride'"),
    ("agnet.enabled=true", "additional properties 'agnet' not allowed"),
    (
        "agent.tolerattions[0].operator=Exists",
        "at '/agent': additional properties 'tolerattions' not allowed",
    ),
    ("agent.tolerations[0].operater=Exists", "additional properties 'operater' not allowed"),
    ("agent.tolerations[0].operator=exists", "at '/agent/tolerations/0/operator'"),
    ("agent.tolerations=all", "at '/agent/tolerations': got string, want array"),
    ("agent.nodeSelector=gpu", "at '/agent/nodeSelector': got string, want object"),
    ("agent.nodeSelector.gpu=true", "at '/agent/nodeSelector/gpu': got boolean, want string"),
    ("agent.resources.limit.memory=1Gi", "at '/agent/resources': additional properties 'limit' not allowed"),
    ("agent.updateStrategy.type=Recreate", "at '/agent/updateStrategy/type'"),
    (
        "agent.updateStrategy.rollingUpdate.maxUnavailable=ten",
        "at '/agent/updateStrategy/rollingUpdate/maxUnavailable'",
    ),
    ("agent.extraArgs=--once", "at '/agent/extraArgs': got string, want array"),
    ("agent.extraEnv[0].nam=A", "at '/agent/extraEnv/0'"),
    ("agent.probes.live.periodSeconds=3", "at '/agent/probes': additional properties 'live' not allowed"),
    ("agent.probes.liveness.httpGet.path=/", "at '/agent/probes/liveness'"),
    ("config.scan.pol=5s", "at '/config/scan': additional properties 'pol' not allowed"),
    ("config.scan.poll=5", "at '/config/scan/poll': got number, want string"),
    ("config.publish.events=1", "at '/config/publish/events': got number, want boolean"),
    ("config.fingerprint.view=sheduler", "at '/config/fingerprint/view': value must be one of"),
    ("config.consumer=volcano", "at '/config/consumer': value must be one of"),
    ("config.cache=direct", "at '/config': additional properties 'cache' not allowed"),
    ("config.nodeName=worker", "at '/config': additional properties 'nodeName' not allowed"),
    ("config.proxy.annotations.koordinator={gpus}", "at '/config/proxy/annotations/koordinator/0'"),
    (
        "kubelet.configOverrides.topologyManagerPolicy=strict",
        "at '/kubelet/configOverrides/topologyManagerPolicy': value must be one of",
    ),
    (
        "kubelet.configOverrides.topologyManagerScpe=pod",
        "additional properties 'topologyManagerScpe' not allowed",
    ),
    ("kubelet.certificateFingerprints={sha256:3FA1}", "at '/kubelet/certificateFingerprints/0'"),
    ("kubelet.configSource=files", "at '/kubelet/configSource': value must be one of"),
    ("kubelet.port=10251", "at '/kubelet': additional properties 'port' not allowed"),
    ("platform=talos", "at '/platform': value must be one of"),
    ("agent.pools[0].name=a", "at '/agent/pools/0': missing property 'nodeSelector'"),
    ("agent.pools[0].nodeSelector.a=b", "at '/agent/pools/0': missing property 'name'"),
    ("agent.pools[0].name=A,agent.pools[0].nodeSelector.a=b", "at '/agent/pools/0/name'"),
    ("agent.pools[0].image=a", "additional properties 'image' not allowed"),
    (
        "agent.pools[0].name=a,agent.pools[0].nodeSelector.a=b,agent.pools[0].kubelet.files=c",
        "at '/agent/pools/0/kubelet': additional properties 'files' not allowed",
    ),
    (
        "agent.pools[0].name=a,agent.pools[0].nodeSelector.a=b,agent.pools[0].platform=auto",
        "at '/agent/pools/0/platform': value must be one of",
    ),
    ("crds.install=true", "at '/crds': additional properties 'install' not allowed"),
    ("hostUsers=no", "at '/hostUsers': got string, want null or boolean"),
    ("priorityQuota.enabled=on", "at '/priorityQuota/enabled': value must be one of"),
    ("global.imageRegistry=a/", "at '/global/imageRegistry'"),
    ("global.imagePullSecrets[0]=a", "at '/global/imagePullSecrets/0': got string, want object"),
    ("controller.config.scan.poll=2s", "at '/controller/config': additional properties 'scan' not allowed"),
    ("config.metrics.tls.certFile=/c", "at '/config/metrics/tls'"),
    ("config.metrics.address=localhost", "at '/config/metrics/address'"),
    ("controller.config.log.level=loud", "at '/controller/config/log/level': value must be one of"),
    ("controller.replicaCount=two", "at '/controller/replicaCount': got string, want integer"),
    ("controller.replicaCount=-1", "at '/controller/replicaCount'"),
    ("kubelet.dir=var/lib/kubelet", "at '/kubelet/dir'"),
    ("scheduler.name=default-scheduler", "at '/scheduler/name'"),
    ("scheduler.cacheResyncPeriodSeconds=0", "at '/scheduler/cacheResyncPeriodSeconds'"),
    ("kubelet.dir=/var/lib/kubelet/", "at '/kubelet/dir'"),
    ("kubelet.mountDir=yes", "at '/kubelet/mountDir': got string, want boolean"),
    ("image.digest=sha256:abc", "at '/image/digest'"),
    ("image.repository=numacast@sha256", "at '/image/repository'"),
    ("image.pullPolicy=always", "at '/image/pullPolicy': value must be one of"),
    ("imagePullSecrets[0]=registry", "at '/imagePullSecrets/0': got string, want object"),
    ("serviceAccount.create=false", "at '/serviceAccount': additional properties 'create' not allowed"),
    ("networkPolicy.apiServerPorts[0]=70000", "at '/networkPolicy/apiServerPorts/0'"),
    ("fullnameOverride=Zones", "at '/fullnameOverride'"),
    ("admissionPolicy.maxZones=0", "at '/admissionPolicy/maxZones'"),
    ("admissionPolicy.maxZones=65", "at '/admissionPolicy/maxZones'"),
];

/// Settings that the schema cannot reject but the templates do.
const BY_THE_TEMPLATES: [(&str, &str); 38] = [
    ("controller.config.lease=", "controller.config.lease: without a Lease there is no leader election"),
    (
        "serviceAccount.controller.name=numacast-agent",
        "serviceAccount.controller.name: the agents have that account",
    ),
    ("serviceAccount.purge.name=numacast-agent", "serviceAccount.purge.name: the agents have that account"),
    ("rbac.create=false", "purge.enabled: with rbac.create: false the hook's account has no permissions"),
    ("metricsTls.secretName=a,config.health.address=:9742", "config.health.address: health is plain HTTP"),
    (
        "config.proxy.enabled=true,config.proxy.dir=run/numacast",
        "config.proxy.dir: run/numacast: the agent can write to this host directory",
    ),
    ("config.proxy.enabled=true,config.proxy.dir=/run", "an absolute path of two parts or more"),
    ("config.proxy.enabled=true,config.proxy.dir=/run/numacast/", "without a slash at its end"),
    ("config.proxy.enabled=true,config.proxy.dir=/run/../etc/a", "a host path must not contain . or .."),
    (
        "config.proxy.enabled=true,config.proxy.dir=/var/lib/kubelet/pod-resources",
        "is, contains or is below a directory of the kubelet (kubelet.dir: /var/lib/kubelet)",
    ),
    ("config.proxy.enabled=true,config.proxy.dir=/var/lib", "the socket needs a directory of its own"),
    (
        "config.proxy.enabled=true,kubelet.dir=/data/kubelet,config.proxy.dir=/var/lib/kubelet/device-plugins/a",
        "(kubelet.devicePluginsDir: /var/lib/kubelet/device-plugins)",
    ),
    ("config.proxy.enabled=true,config.proxy.dir=/etc/cni", "is below /etc, where the agent must not"),
    (
        "config.podsApi.enabled=true,config.podsApi.dir=/run",
        "config.podsApi.dir: /run: the agent can write to this host directory",
    ),
    ("config.podsApi.enabled=true,config.podsApi.dir=/run/./a", "config.podsApi.dir: /run/./a: a host path"),
    (
        "config.podsApi.enabled=true,config.podsApi.dir=/var/lib/kubelet/pods-api",
        "config.podsApi.dir: /var/lib/kubelet/pods-api is, contains or is below a directory of the kubelet (kubelet.dir: /var/lib/kubelet)",
    ),
    ("config.podsApi.enabled=true,config.podsApi.dir=/dev/shm", "config.podsApi.dir: /dev/shm is below /dev"),
    ("config.proxy.enabled=true,config.proxy.dir=/usr/lib", "config.proxy.dir: /usr/lib is below /usr"),
    (
        "config.podsApi.enabled=true,config.podsApi.dir=/run/numacast/pod-resources,config.proxy.enabled=true",
        "is, contains or is below the directory of another socket (config.podsApi.dir: /run/numacast/pod-resources)",
    ),
    (
        "config.podsApi.enabled=true,config.podsApi.dir=/run/numacast,config.proxy.enabled=true",
        "config.proxy.dir: /run/numacast/pod-resources is, contains or is below the directory of another socket",
    ),
    ("kubelet.configSource=file", "kubelet.configSource: file: no file is mounted; set kubelet.configFile"),
    (
        "kubelet.configDir=/etc/a",
        "kubelet.configDir: drop-ins are read with a configuration file; set kubelet.configFile",
    ),
    (
        "agent.pools[0].name=default,agent.pools[0].nodeSelector.a=b",
        "agent.pools: default: there are two pools of this name, or it is that of all other nodes",
    ),
    (
        "agent.pools[0].name=a,agent.pools[0].nodeSelector.a=b,agent.pools[1].name=a,agent.pools[1].nodeSelector.a=c",
        "agent.pools: a: there are two pools of this name",
    ),
    (
        "agent.pools[0].name=a,agent.pools[0].nodeSelector.a=b,agent.pools[1].name=c,agent.pools[1].nodeSelector.a=b",
        "agent.pools: c: an earlier pool has the same nodeSelector {\"a\":\"b\"}, and so all of its nodes",
    ),
    (
        "agent.pools[0].name=a,agent.pools[0].nodeSelector.a=b,agent.pools[0].nodeSelector.c=d",
        "agent.pools: a: nodeSelector has 2 labels; a pool is selected by exactly one",
    ),
    (
        "agent.pools[0].name=aaaaaaaaaaaaaaaaaaaa,agent.pools[0].nodeSelector.a=b,fullnameOverride=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
        "has more than 63 characters; shorten the pool's name, or set fullnameOverride",
    ),
    (
        "agent.pools[0].name=a,agent.pools[0].nodeSelector.a=b,agent.pools[0].kubelet.configSource=file",
        "agent.pools: a: kubelet.configSource: file: no file is mounted",
    ),
    ("scheduler.enabled=true,config.consumer=kai", "scheduler.enabled: config.consumer is kai"),
    ("scheduler.enabled=true,scheduler.config.profiles=x", "scheduler.config.profiles: the chart sets it"),
    (
        "scheduler.enabled=true,serviceAccount.scheduler.name=numacast-agent",
        "serviceAccount.scheduler.name: the agents have that account",
    ),
    (
        "kubelet.configOverrides.topologyManagerPolicyOptions.max-allowable-numa-nodes=four",
        "max-allowable-numa-nodes: four: kubelets accept numbers from 8 on",
    ),
    (
        "config.health.address=127.0.0.1:9743",
        "config.health.address: 127.0.0.1:9743 is reached from inside the pod only; use \":9743\"",
    ),
    (
        "controller.config.metrics.address=[::1]:9742",
        "controller.config.metrics.address: [::1]:9742 is reached from inside",
    ),
    (
        "config.publish.to=none,config.proxy.enabled=true",
        "controller.enabled: with config.publish.to: none the API server gets no objects",
    ),
    (
        "config.podsApi.enabled=true,config.podsApi.podInfo.dir=/run/numacast/pods-api",
        "is, contains or is below the directory of another socket (config.podsApi.",
    ),
    (
        "serviceAccount.agent.create=false",
        "serviceAccount.agent.name: with serviceAccount.agent.create: false",
    ),
    (
        "serviceAccount.purge.create=false",
        "serviceAccount.purge.name: with serviceAccount.purge.create: false",
    ),
];

#[test]
fn invalid_values_are_rejected_with_their_place() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let chart = chart();
    for (values, expected) in BY_THE_SCHEMA.into_iter().chain(BY_THE_TEMPLATES) {
        let output = helm.try_to(&["template", "numacast", &chart.to_string_lossy(), "--set", values])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{values} is taken");
        ensure!(stderr.contains(expected), "{values}: {stderr}");
    }
    Ok(())
}

/// Every value of an earlier chart fails, and names what replaces it.
#[test]
fn renamed_values_are_rejected_with_their_new_names() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let chart = chart();
    let text = std::fs::read_to_string(chart.join("templates/_renamed.tpl"))?;
    let rest = text.split_once("define \"numacast.renamed\" -}}\n").context("no table")?.1;
    let table = rest.split_once("{{- end }}").context("no end of the table")?.0;
    let rows: Vec<BTreeMap<String, String>> = serde_saphyr::from_str(table)?;
    ensure!(rows.len() > 20, "only {} rows", rows.len());
    for (old, instead) in rows.into_iter().flatten() {
        let set = format!("{old}=any");
        let output = helm.try_to(&["template", "numacast", &chart.to_string_lossy(), "--set", &set])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && stderr.contains(&format!("{old}: {instead}")), "{old}: {stderr}");
    }
    Ok(())
}

#[test]
fn as_a_dependency_it_takes_what_helm_adds() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let parent = helm.home().join("parent");
    std::fs::create_dir_all(parent.join("charts"))?;
    let about = "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies:\n\
                 - {name: numacast, version: '*', condition: numacast.enabled}\n";
    std::fs::write(parent.join("Chart.yaml"), about)?;
    std::fs::write(parent.join("values.yaml"), "global: {team: hpc}\nnumacast: {enabled: true}\n")?;
    helm.run(&[
        "package",
        &chart().to_string_lossy(),
        "--destination",
        &parent.join("charts").to_string_lossy(),
    ])?;
    let text = helm.run(&["template", "all", &parent.to_string_lossy(), "--namespace", "numa"])?;
    ensure!(crate::helm::Objects::parse(&text)?.one("DaemonSet", "all-numacast-agent").is_ok(), "{text}");
    Ok(())
}

#[test]
fn a_cluster_that_is_too_old_is_rejected() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let chart = chart();
    for (version, taken) in [("1.29.9", false), ("1.30.0", true), ("1.33.4-gke.100", true)] {
        let output = helm.try_to(&["template", "a", &chart.to_string_lossy(), "--kube-version", version])?;
        ensure!(output.status.success() == taken, "{version}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
