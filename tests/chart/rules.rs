//! Rules for everything that the chart renders, independent of the values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use numacast::config::{DraSource, Endpoint, PodsApiSource, PublishTo, TlsFiles};
use serde_json::{Value, json};

use crate::helm::{Objects, items, name_of, words};

/// Kinds without a namespace.
const CLUSTER_SCOPED: [&str; 6] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "SecurityContextConstraints",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Checks all rules.
pub(crate) fn check(objects: &Objects) -> Result<()> {
    names_and_labels(objects)?;
    for (object, pod) in objects.pods() {
        let check = || -> Result<()> {
            pod_is_confined(object, pod)?;
            mounts_fit(pod)?;
            account_exists(objects, pod)?;
            ports_and_probes(objects, object, pod)?;
            workload_selects_its_pods(object)
        };
        check().with_context(|| format!("{} {}", object["kind"], name_of(object)))?;
    }
    configurations_are_right(objects)?;
    roles_are_narrow(objects)
}

fn names_and_labels(objects: &Objects) -> Result<()> {
    let mut seen = BTreeSet::new();
    for object in &objects.0 {
        let (kind, name) = (object["kind"].as_str().context("an object without a kind")?, name_of(object));
        let namespace = &object["metadata"]["namespace"];
        // RBAC and policy names may be longer; other names are also used for pods, services and labels.
        let most = if kind.contains("Role") || kind.contains("Policy") { 253 } else { 63 };
        ensure!(
            !name.is_empty() && name.len() <= most,
            "{kind} {name}: the name has {} characters",
            name.len()
        );
        ensure!(seen.insert((kind, namespace.to_string(), name)), "{kind} {name} is there twice");
        let plain = !name.contains('.') && !name.starts_with(|first: char| first.is_ascii_digit());
        ensure!(kind != "Service" || plain, "no Service can be called {name}");
        let scoped = CLUSTER_SCOPED.contains(&kind);
        ensure!(scoped == namespace.is_null(), "{kind} {name} is in the namespace {namespace}");
        ensure!(scoped || namespace.is_string(), "{kind} {name} is in the namespace {namespace}");
        for part in ["labels", "annotations"] {
            for (key, value) in object["metadata"][part].as_object().into_iter().flatten() {
                ensure!(value.is_string(), "{kind} {name}: {part} {key} is {value}, no text");
            }
        }
        for label in ["name", "instance", "component", "managed-by", "version"] {
            let value = &object["metadata"]["labels"][format!("app.kubernetes.io/{label}")];
            ensure!(value.is_string(), "{kind} {name}: no label app.kubernetes.io/{label}");
        }
    }
    Ok(())
}

/// Checks that a pod runs as root only if it needs the kubelet's socket, and has no other privileges.
fn pod_is_confined(object: &Value, pod: &Value) -> Result<()> {
    let spec = &pod["spec"];
    ensure!(object["kind"] != "DaemonSet" || spec["hostUsers"].is_null(), "/sys has owners of the host");
    for power in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"] {
        ensure!(spec[power].is_null(), "{power} is {}", spec[power]);
    }
    ensure!(spec["automountServiceAccountToken"] == false, "a token is mounted by itself");
    ensure!(spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", "no seccomp profile");
    let agent = object["kind"] == "DaemonSet";
    if !agent {
        ensure!(spec["securityContext"]["runAsNonRoot"] == true, "it may be root");
    }
    for container in items(&spec["containers"]) {
        let context = &container["securityContext"];
        ensure!(context["allowPrivilegeEscalation"] == false, "privileges may grow");
        ensure!(context["readOnlyRootFilesystem"] == true, "its root can be written");
        ensure!(
            context["capabilities"] == json!({"drop": ["ALL"]}),
            "capabilities: {}",
            context["capabilities"]
        );
        ensure!(context["privileged"] != true, "it is privileged");
        ensure!(context["runAsUser"].is_null() || agent, "it has a user of its own");
        ensure!(!agent || context["runAsUser"] == 0, "it cannot speak with the kubelet's socket");
        ensure!(container["resources"]["requests"]["memory"].is_string(), "no request for memory");
        ensure!(container["resources"]["limits"]["cpu"].is_null(), "its CPU is limited");
    }
    Ok(())
}

/// Checks that mounts and volumes match, and that the host is mounted as read-only directories.
fn mounts_fit(pod: &Value) -> Result<()> {
    let spec = &pod["spec"];
    let mut volumes: BTreeMap<&str, &Value> = BTreeMap::new();
    for volume in items(&spec["volumes"]) {
        let name = volume["name"].as_str().context("a volume without a name")?;
        ensure!(volumes.insert(name, volume).is_none(), "two volumes {name}");
    }
    let mut mounted = BTreeSet::new();
    for mount in items(&spec["containers"]).flat_map(|container| items(&container["volumeMounts"])) {
        let name = mount["name"].as_str().context("a mount without a name")?;
        let volume = volumes.get(name).with_context(|| format!("the mount {name} has no volume"))?;
        ensure!(mounted.insert(mount["mountPath"].to_string()), "two mounts at {}", mount["mountPath"]);
        let host = &volume["hostPath"];
        let served = ["proxy", "served-pods", "served-pod-info"].contains(&name) && !host.is_null();
        let writable = volume["emptyDir"].is_object() || served;
        ensure!(mount["readOnly"] == true || writable, "{name} can be written");
        if host.is_null() {
            continue;
        }
        let path = host["path"].as_str().unwrap_or_default();
        let kind = host["type"].as_str().unwrap_or_default();
        ensure!(["Directory", "DirectoryOrCreate", "File"].contains(&kind), "{path} is of the type {kind}");
        ensure!(!path.ends_with(".sock"), "{path} is a socket: it dies with the kubelet that made it");
        // A read-only mount covers mounts below it only where runtime and kernel support that.
        ensure!(
            !["/", "/sys", "/proc", "/dev", "/run", "/var"].contains(&path),
            "{path} has mounts below it"
        );
        let whole = mount["mountPropagation"] == "HostToContainer";
        ensure!(
            whole == (name == "kubelet"),
            "{path}: volumes of pods that are gone would stay, or others come"
        );
        // Consumers and the agent use the same paths for the directories of its sockets.
        let place = if served { path.to_owned() } else { format!("/host{path}") };
        ensure!(mount["mountPath"] == place, "{path} is at {}", mount["mountPath"]);
    }
    let unused = volumes.keys().find(|name| {
        !items(&spec["containers"])
            .any(|container| items(&container["volumeMounts"]).any(|mount| mount["name"] == **name))
    });
    ensure!(unused.is_none(), "nobody mounts the volume {unused:?}");
    let token = volumes.get("api-access").context("no credentials")?;
    let sources = items(&token["projected"]["sources"]);
    let seconds: Vec<_> =
        sources.filter_map(|source| source["serviceAccountToken"]["expirationSeconds"].as_u64()).collect();
    ensure!(seconds == [3600], "the token is valid for {seconds:?} s");
    Ok(())
}

/// Checks that the pod's service account is rendered too (as a hook if the pod is one), or is another one
/// named in the values.
fn account_exists(objects: &Objects, pod: &Value) -> Result<()> {
    let name = pod["spec"]["serviceAccountName"].as_str().context("no account")?;
    let made = objects.all("ServiceAccount").find(|account| name_of(account) == name);
    let named_in_values = ["one", "two", "three"].contains(&name);
    ensure!(made.is_some() != named_in_values, "its account {name} is not there");
    let mounts = made.map(|account| &account["automountServiceAccountToken"]);
    ensure!(mounts.is_none_or(|mounts| mounts == false), "the account {name} mounts tokens");
    Ok(())
}

/// Checks that probes use the health address, that there are none without it, and that the ports match what
/// is served.
fn ports_and_probes(objects: &Objects, object: &Value, pod: &Value) -> Result<()> {
    let container = &pod["spec"]["containers"][0];
    if container["command"] == json!(["/bin/kube-scheduler"]) {
        return scheduler_is_probed(container);
    }
    let serves = matches!(object["kind"].as_str(), Some("DaemonSet" | "Deployment"));
    let config = if serves { objects.configuration(name_of(object))? } else { "health: {address: none}" };
    let config: Value = serde_saphyr::from_str(config)?;
    let port_of = |key: &str| -> Result<Option<u16>> {
        let text = config[key]["address"].as_str().unwrap_or("none");
        Ok(match text.parse::<Endpoint>().map_err(anyhow::Error::msg)? {
            Endpoint::Nowhere => None,
            _ => text.rsplit(':').next().map(str::parse).transpose()?,
        })
    };
    let (health, metrics) = (port_of("health")?, port_of("metrics")?);
    // /livez: with /startupz it would be restarted while the API server is away.
    for (probe, path) in
        [("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]
    {
        let probed =
            container[probe]["httpGet"].as_object().map(|get| (get["path"].clone(), get["port"].clone()));
        let right = health.map(|port| (json!(path), json!(port)));
        ensure!(probed == right, "{probe} probes {probed:?}, and health is at {health:?}");
    }
    let ports: BTreeSet<u64> =
        items(&container["ports"]).filter_map(|port| port["containerPort"].as_u64()).collect();
    let right: BTreeSet<u64> = [health, metrics].into_iter().flatten().map(u64::from).collect();
    ensure!(ports == right, "the ports are {ports:?}, not {right:?}");
    ensure!(items(&container["ports"]).count() == ports.len(), "a port is there twice");
    Ok(())
}

/// Checks that kube-scheduler is probed at its only port, over TLS.
fn scheduler_is_probed(container: &Value) -> Result<()> {
    for (probe, path) in
        [("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")]
    {
        let right = json!({"path": path, "port": 10259, "scheme": "HTTPS"});
        ensure!(container[probe]["httpGet"] == right, "{probe} is {}", container[probe]);
    }
    let ports: Vec<_> = items(&container["ports"]).map(|port| &port["containerPort"]).collect();
    ensure!(ports == [&json!(10259)], "the ports are {ports:?}");
    Ok(())
}

/// Checks the selector, which is immutable: labels that the pods have.
fn workload_selects_its_pods(object: &Value) -> Result<()> {
    let Some(selector) = object["spec"]["selector"]["matchLabels"].as_object() else { return Ok(()) };
    let keys: Vec<&str> = selector.keys().map(String::as_str).collect();
    let mut right = ["component", "instance", "name"].map(|key| format!("app.kubernetes.io/{key}")).to_vec();
    if object["kind"] == "DaemonSet" {
        right.push("numacast.io/pool".to_owned());
    }
    ensure!(keys == right, "the selector has {keys:?}");
    let labels = &object["spec"]["template"]["metadata"]["labels"];
    let other = selector.iter().find(|(key, value)| labels[key.as_str()] != **value);
    ensure!(other.is_none(), "its pods have not the label {other:?}");
    ensure!(labels["helm.sh/chart"].is_null(), "a new chart alone would replace the pods");
    Ok(())
}

/// Checks that the binary accepts the configuration in the ConfigMaps, and that every file in it is mounted.
fn configurations_are_right(objects: &Objects) -> Result<()> {
    let maps = objects.all("ConfigMap").filter(|map| map["data"]["config.yaml"].is_string());
    for map in maps {
        let name = name_of(map);
        let config = objects.config(name)?;
        let Some((object, pod)) = objects.pods().find(|(object, _)| name_of(object) == name) else {
            continue;
        };
        let mounts: Vec<&str> = items(&pod["spec"]["containers"][0]["volumeMounts"])
            .filter_map(|mount| mount["mountPath"].as_str())
            .collect();
        let is_mounted = |path: &Path| mounts.iter().any(|mount| path.starts_with(mount));
        let paths = config.paths();
        let tls = config.metrics.tls.clone().into_iter().flat_map(
            |TlsFiles { cert_file, key_file, client_ca_file }| {
                [Some(cert_file), Some(key_file), client_ca_file]
            },
        );
        let files = tls.chain([config.kubelet.config_file.clone(), config.kubelet.config_dir.clone()]);
        for file in files.flatten() {
            ensure!(is_mounted(&file), "{name}: {} is not mounted", file.display());
        }
        if object["kind"] == "DaemonSet" {
            let raw = &map["data"]["config.yaml"].as_str().unwrap_or_default();
            let raw: Value = serde_saphyr::from_str(raw)?;
            // Switched off, too: the agent says so on a socket that is left.
            let is_switched = |key: &str| raw[key]["enabled"].is_boolean();
            let reads_node = config.publish.to != PublishTo::Nowhere;
            let reads_claims = reads_node && config.dra.source == DraSource::Auto;
            let info = config.pod_info_socket().filter(|_| config.pods_api.enabled);
            let info_dir = info.as_ref().and_then(|socket| socket.path.parent());
            for (path, is_needed) in [
                (&paths.sys.join("devices/system/cpu"), reads_node || config.proxy.enabled),
                (&paths.sys.join("kernel/mm/hugepages"), reads_node),
                (&paths.socket, reads_node || config.proxy.enabled),
                (&paths.sys.join("bus/pci/devices"), config.proxy.enabled || reads_claims),
                (&paths.proxy_dir, is_switched("proxy")),
                (&paths.pods_api_dir, is_switched("podsApi")),
                (
                    &info_dir.map_or_else(|| paths.root.join("run/numacast/pod-info"), Path::to_owned),
                    info.is_some(),
                ),
            ] {
                ensure!(is_mounted(path) == is_needed, "{name}: {}", path.display());
            }
            let reads = [PodsApiSource::Auto, PodsApiSource::PodsApi].contains(&config.pods_api.source);
            ensure!(
                is_mounted(&paths.pods_socket) || !(config.pods_api.enabled && reads),
                "{name}: the kubelet's Pods API is not mounted"
            );
            let groups = &pod["spec"]["securityContext"]["supplementalGroups"];
            let joined: BTreeSet<u32> = [
                (is_switched("proxy"), config.proxy.group),
                (is_switched("podsApi"), config.pods_api.group),
                (true, info.as_ref().and_then(|socket| socket.group)),
            ]
            .into_iter()
            .filter_map(|(is_mounted, group)| group.filter(|_| is_mounted))
            .collect();
            let found: BTreeSet<u32> =
                items(groups).filter_map(|group| group.as_u64()?.try_into().ok()).collect();
            ensure!(found == joined && items(groups).count() == joined.len(), "it is in {groups}");
        }
    }
    Ok(())
}

/// Checks that roles have no wildcards and never `nodes/proxy`, and are only bound to our own subjects.
fn roles_are_narrow(objects: &Objects) -> Result<()> {
    for role in objects.all("Role").chain(objects.all("ClusterRole")) {
        for rule in items(&role["rules"]) {
            for part in ["apiGroups", "resources", "verbs"] {
                let bad = words(&rule[part]).find(|word| word.contains('*') || *word == "nodes/proxy");
                ensure!(bad.is_none(), "{}: {part} {bad:?}", name_of(role));
            }
        }
    }
    for binding in objects.all("RoleBinding").chain(objects.all("ClusterRoleBinding")) {
        let reference = &binding["roleRef"];
        let (kind, name) = (reference["kind"].as_str(), reference["name"].as_str());
        let built_in =
            ["system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"];
        let is_built_in =
            built_in.contains(&name.unwrap_or_default()) && name_of(binding).contains("-scheduler");
        ensure!(
            is_built_in || objects.one(kind.unwrap_or_default(), name.unwrap_or_default()).is_ok(),
            "{reference} is not there"
        );
        for subject in items(&binding["subjects"]) {
            let runs = objects.pods().any(|(_, pod)| pod["spec"]["serviceAccountName"] == subject["name"]);
            ensure!(runs && subject["namespace"] == "numa", "{} is bound to {subject}", name_of(binding));
        }
    }
    Ok(())
}
