//! The objects that Helm renders.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use numacast::scheduler_config::{disagreements, profile};
use serde_json::{Value, json};

use crate::cases;
use crate::helm::{Helm, Objects, chart, name_of, presets};
use crate::rules;

/// The Kubernetes versions whose schemas all objects are validated against.
const VERSIONS: [&str; 5] = ["1.33", "1.34", "1.35", "1.36", "1.37"];

/// Kinds of third-party CRDs, for which there is no schema to validate against.
const WITHOUT_SCHEMA: [&str; 3] = ["PodMonitor", "PrometheusRule", "SecurityContextConstraints"];

#[test]
fn helm_finds_nothing_to_complain_about() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let chart = chart();
    let words = ["lint", "--strict", "--quiet", &chart.to_string_lossy()];
    let findings = helm.run(&words)?;
    ensure!(findings.trim().is_empty(), "{findings}");
    for file in presets()? {
        let findings = helm.run(&[&words[..], &["--values", &file.to_string_lossy()]].concat())?;
        ensure!(findings.trim().is_empty(), "{}: {findings}", file.display());
    }
    Ok(())
}

#[test]
fn every_value_gives_objects_that_keep_the_rules() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for (case, objects) in cases::rendered(&helm)?.iter() {
        rules::check(objects).with_context(|| case.clone())?;
    }
    // Names that YAML would parse as something other than a string.
    for release in ["n", "1", "on", "1e3", "0x1f", "1st.of.all", "a".repeat(53).as_str()] {
        let objects = helm.render_as(release, &[]).with_context(|| release.to_owned())?;
        rules::check(&objects).with_context(|| release.to_owned())?;
    }
    rules::check(&helm.render(&["--set-string", "serviceAccount.agent.name=1"])?)
}

#[test]
fn the_configuration_of_the_scheduler_fits_that_of_the_agents() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let enabled = "scheduler.enabled=true";
    let direct = "scheduler.enabled=true,config.consumer=schedulerPluginsDirect";
    for values in [
        enabled,
        &format!("{enabled},scheduler.cacheResyncPeriodSeconds=30"),
        &format!("{enabled},config.fingerprint.informerMode=shared"),
        direct,
    ] {
        let objects = helm.render(&["--set", values])?;
        let map = objects.one("ConfigMap", "numacast-scheduler")?;
        let text = map["data"]["scheduler.yaml"].as_str().context("no configuration")?;
        let mut config = objects.config("numacast-agent")?;
        config.controller = objects.config("numacast-controller")?.controller;
        let found = disagreements(&config, text)?;
        ensure!(found.is_empty(), "{values}: {found:?}");
        // What the chart adds to the profile that is printed: leader election.
        let mut rendered: Value = serde_saphyr::from_str(text)?;
        let lease = rendered.as_object_mut().and_then(|keys| keys.remove("leaderElection"));
        ensure!(lease.is_some_and(|lease| lease["resourceName"] == "numacast-scheduler"), "{text}");
        let printed: Value = serde_saphyr::from_str(&profile(&config, "numa-scheduler")?)?;
        ensure!(rendered == printed, "{values}: {text}");
        // Only the overreserving cache ignores objects that are created later.
        let deployment = objects.one("Deployment", "numacast-scheduler")?;
        let init = &deployment["spec"]["template"]["spec"]["initContainers"][0]["args"];
        let waits = json!([
            "wait",
            "--timeout=2m",
            "--exit-zero",
            "--namespace=numa",
            "--set=controller.daemonSets=[\"numacast-agent\"]",
        ]);
        let expected = if values == direct { Value::Null } else { waits };
        ensure!(*init == expected, "{values}: {init}");
        let role = objects.one("Role", "numacast-scheduler")?.to_string();
        ensure!(role.contains("daemonsets") == (values != direct), "{values}: {role}");
        ensure!(config.controller.restart_scheduler == (values != direct), "{values}");
        let labels = &deployment["spec"]["selector"]["matchLabels"];
        let pods = config.controller.scheduler.map(|pods| pods.to_string()).unwrap_or_default();
        let names_all = labels
            .as_object()
            .into_iter()
            .flatten()
            .all(|(key, value)| pods.contains(&format!("{key}={}", value.as_str().unwrap_or_default())));
        ensure!((pods.starts_with("numa/") && names_all) == (values != direct), "{values}: {pods}");
    }
    Ok(())
}

#[test]
fn the_image_of_the_scheduler_follows_the_version_of_the_cluster() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for (version, tag, release) in [
        ("1.30.4", "v0.30.12", "v0.34"),
        ("1.34.1-gke.200", "v0.34.7", "v0.34"),
        ("1.35.0", "v0.35.7", "v0.35"),
        ("1.37.0+k3s1", "v0.35.7", "v0.35"),
    ] {
        let objects = helm.render(&["--set", "scheduler.enabled=true", "--kube-version", version])?;
        let deployment = objects.one("Deployment", "numacast-scheduler")?;
        let image =
            deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
        ensure!(
            image == format!("registry.k8s.io/scheduler-plugins/kube-scheduler:{tag}"),
            "{version}: {image}"
        );
        let rule = serde_json::to_value(objects.config("numacast-agent")?.fingerprint.plugin_release)?;
        ensure!(rule == release, "{version}: {rule}");
    }
    let digest = format!("sha256:{}", "a".repeat(64));
    let set = format!("scheduler.enabled=true,scheduler.image.tag=v0.33.5,scheduler.image.digest={digest}");
    let objects = helm.render(&["--set", &set])?;
    let deployment = objects.one("Deployment", "numacast-scheduler")?.to_string();
    ensure!(deployment.contains(&format!("kube-scheduler@{digest}")), "{deployment}");
    let rule = objects.config("numacast-agent")?.fingerprint.plugin_release;
    ensure!(serde_json::to_value(rule)? == "v0.34");
    Ok(())
}

/// Returns what is relevant to a schema: an object's keys and the types of its values, with the text of
/// `kind` and `apiVersion`.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| match (key.as_str(), value) {
                ("kind" | "apiVersion", Value::String(text)) => format!("{key}: {text}"),
                // Maps with arbitrary keys.
                ("labels" | "annotations" | "matchLabels" | "data", _) => key.clone(),
                _ => format!("{key}: {}", shape(value)),
            });
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Array(list) => {
            format!("{:?}", list.iter().map(shape).collect::<BTreeSet<_>>())
        }
        Value::String(_) => "text".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::Bool(_) => "truth".to_owned(),
        Value::Null => "null".to_owned(),
    }
}

#[test]
fn everything_is_valid_for_the_schemas_of_kubernetes() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let mut distinct = BTreeMap::new();
    for (_, objects) in cases::rendered(&helm)?.iter() {
        distinct.extend(objects.0.iter().map(|object| (shape(object), object.to_string())));
    }
    let file = helm.home().join("objects.yaml");
    std::fs::write(&file, distinct.values().map(|object| format!("---\n{object}\n")).collect::<String>())?;
    let mut command = Command::new(helm.program("kubernetes-validate"));
    command.args(VERSIONS.iter().flat_map(|version| ["-k", *version])).arg("--strict").arg(&file);
    let output = command.output()?;
    let lines = String::from_utf8(output.stdout)?;
    let mut passed = 0;
    for line in lines.lines() {
        let unknown =
            WITHOUT_SCHEMA.iter().any(|kind| line.contains(&format!("find schema for kind {kind} ")));
        match line.split(' ').next() {
            Some("INFO") => passed += 1,
            Some("WARN") if unknown => passed += 1,
            _ => bail!("{line}"),
        }
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubernetes-validate ends with {}: {stderr}", output.status);
    ensure!(passed == distinct.len() * VERSIONS.len(), "{passed} of {} were looked at", distinct.len());
    Ok(())
}

#[test]
fn pods_are_replaced_for_their_own_configuration_and_for_nothing_else() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let sums = |values: &[&str]| -> Result<[String; 2]> {
        let objects = helm.render(values)?;
        let of = |kind, name| -> Result<String> {
            let annotations = &objects.one(kind, name)?["spec"]["template"]["metadata"]["annotations"];
            Ok(annotations["checksum/config"].as_str().context("no checksum")?.to_owned())
        };
        Ok([of("DaemonSet", "numacast-agent")?, of("Deployment", "numacast-controller")?])
    };
    let [agent, controller] = sums(&[])?;
    ensure!(agent != controller, "both have one configuration");
    for (values, of_agent, of_controller) in [
        ("config.scan.poll=2s", true, false),
        ("kubelet.configFile=/etc/kubelet.yaml", true, false),
        ("kubelet.dir=/data/kubelet", true, false),
        ("config.proxy.enabled=true", true, false),
        ("config.podsApi.enabled=true", true, false),
        ("controller.config.log.level=debug", false, true),
        ("metricsTls.secretName=certificate", true, true),
        ("image.tag=v9", false, false),
        ("agent.resources.limits.memory=96Mi", false, false),
        ("networkPolicy.enabled=true", false, false),
    ] {
        let [now_agent, now_controller] = sums(&["--set", values])?;
        ensure!((now_agent != agent) == of_agent, "{values}: the agents");
        ensure!((now_controller != controller) == of_controller, "{values}: the controller");
    }
    Ok(())
}

/// Returns what an upgrade cannot change: the workloads' names and selectors.
fn for_ever(objects: &Objects) -> BTreeMap<String, Value> {
    let workloads = objects.all("DaemonSet").chain(objects.all("Deployment"));
    workloads.map(|object| (name_of(object).to_owned(), object["spec"]["selector"].clone())).collect()
}

#[test]
fn a_new_version_changes_neither_names_nor_selectors() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let now = for_ever(&helm.render(&[])?);
    ensure!(now.len() == 2, "{now:?}");
    let chart = chart();
    helm.run(&[
        "package",
        &chart.to_string_lossy(),
        "--version=7.8.9+build",
        "--app-version=9.8.7",
        "--destination",
        &helm.home().to_string_lossy(),
    ])?;
    let package = helm.home().join("numacast-7.8.9+build.tgz");
    let words = ["template", "numacast", &package.to_string_lossy(), "--namespace", "numa"];
    let next = Objects::parse(&helm.run(&words)?)?;
    rules::check(&next)?;
    ensure!(for_ever(&next) == now, "{:?}", for_ever(&next));
    let agent = next.one("DaemonSet", "numacast-agent")?;
    ensure!(agent["metadata"]["labels"]["helm.sh/chart"] == "numacast-7.8.9_build", "{agent}");
    ensure!(agent["spec"]["template"]["spec"]["containers"][0]["image"] == "ghcr.io/numacast/numacast:9.8.7");
    let labels = |objects: &Objects| -> Result<Value> {
        Ok(objects.one("DaemonSet", "numacast-agent")?["spec"]["template"]["metadata"].clone())
    };
    ensure!(labels(&next)? == labels(&helm.render(&[])?)?, "the pods have the chart's version in them");
    Ok(())
}

#[test]
fn names_follow_the_release() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for (release, values, name) in [
        ("numacast", "", "numacast-agent"),
        ("my-numacast", "", "my-numacast-agent"),
        ("hpc", "", "hpc-numacast-agent"),
        ("hpc", "nameOverride=zones", "hpc-zones-agent"),
        ("hpc", "fullnameOverride=zones", "zones-agent"),
    ] {
        let arguments = if values.is_empty() { vec![] } else { vec!["--set", values] };
        helm.render_as(release, &arguments)?.one("DaemonSet", name)?;
    }
    Ok(())
}

/// Returns the host paths that the agent mounts.
fn host_paths(objects: &Objects) -> Result<Vec<String>> {
    let volumes = &objects.one("DaemonSet", "numacast-agent")?["spec"]["template"]["spec"]["volumes"];
    let paths = crate::helm::items(volumes).filter_map(|volume| volume["hostPath"]["path"].as_str());
    Ok(paths.map(str::to_owned).collect())
}

#[test]
fn the_agent_sees_of_the_host_what_its_configuration_needs() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let kubelet = "/var/lib/kubelet";
    let devices = "/var/lib/kubelet/device-plugins";
    let pods_api = "/var/lib/kubelet/pods-api";
    let served = "/run/numacast/pods-api";
    let hardware = |more: &[&'static str]| [&["/sys/devices", "/sys/kernel/mm", "/sys/bus"], more].concat();
    let cdi = "/var/run/cdi";
    let usual = |more: &[&'static str]| {
        [hardware(&["/var/lib/kubelet/pod-resources", devices]), more.to_vec()].concat()
    };
    for (values, paths) in [
        ("", usual(&[])),
        ("config.fingerprint.view=kubelet", usual(&[])),
        ("config.fingerprint.view=kubelet,config.pods.source=auto", usual(&[pods_api])),
        ("config.consumer=none", usual(&[])),
        ("config.consumer=none,config.pods.source=auto", usual(&[pods_api])),
        ("config.consumer=kai,config.pods.source=auto", usual(&[])),
        ("config.consumer=kaiDirect,config.pods.source=auto", usual(&[])),
        ("config.consumer=schedulerPluginsDirect,config.pods.source=auto", usual(&[])),
        ("config.pods.source=podsApi,config.fingerprint.view=none", usual(&[pods_api])),
        ("config.pods.source=none,config.fingerprint.view=none", usual(&[])),
        ("kubelet.configFile=/etc/kubelet.yaml", usual(&["/etc/kubelet.yaml"])),
        ("kubelet.configFile=/etc/a,kubelet.configDir=/etc/b.d", usual(&["/etc/a", "/etc/b.d"])),
        ("kubelet.devicePluginsDir=", hardware(&["/var/lib/kubelet/pod-resources"])),
        (
            "config.proxy.enabled=true",
            hardware(&["/run/numacast/pod-resources", "/var/lib/kubelet/pod-resources", devices]),
        ),
        ("config.proxy.dir=/run/elsewhere", usual(&[])),
        // The agent answers that the service is off.
        (
            "config.proxy.enabled=false",
            hardware(&["/run/numacast/pod-resources", "/var/lib/kubelet/pod-resources", devices]),
        ),
        (
            "config.podsApi.enabled=true,config.podsApi.podInfo.group=2000",
            hardware(&[
                served,
                "/run/numacast/pod-info",
                "/var/lib/kubelet/pod-resources",
                devices,
                pods_api,
            ]),
        ),
        (
            "config.publish.to=none,config.proxy.enabled=true,controller.enabled=false,purge.enabled=false",
            vec!["/sys/devices", "/sys/bus", "/run/numacast/pod-resources", "/var/lib/kubelet/pod-resources"],
        ),
        (
            "config.publish.to=none,config.podsApi.enabled=true,config.podsApi.source=podsApi,\
             controller.enabled=false,purge.enabled=false",
            vec![served, pods_api],
        ),
        (
            "config.podsApi.enabled=true",
            hardware(&[served, "/var/lib/kubelet/pod-resources", devices, pods_api]),
        ),
        (
            "config.podsApi.enabled=true,config.podsApi.source=apiServer",
            hardware(&[served, "/var/lib/kubelet/pod-resources", devices]),
        ),
        ("config.podsApi.enabled=true,kubelet.mountDir=true", hardware(&[kubelet, cdi, served])),
        ("config.podsApi.source=podsApi", usual(&[])),
        ("kubelet.mountDir=true,kubelet.configFile=/var/lib/kubelet/config.yaml", hardware(&[kubelet, cdi])),
        ("kubelet.mountDir=true,kubelet.dir=/data/kubelet", hardware(&["/data/kubelet", cdi, devices])),
        (
            "kubelet.mountDir=true,kubelet.configFile=/var/lib/kubelet-config",
            hardware(&[kubelet, cdi, "/var/lib/kubelet-config"]),
        ),
        (
            "config.dra.source=off",
            vec!["/sys/devices", "/sys/kernel/mm", "/var/lib/kubelet/pod-resources", devices],
        ),
        ("config.dra.source=false,kubelet.mountDir=true", vec!["/sys/devices", "/sys/kernel/mm", kubelet]),
        (
            "config.dra.source=off,config.proxy.enabled=true,kubelet.mountDir=true",
            hardware(&[kubelet, "/run/numacast/pod-resources"]),
        ),
    ] {
        let arguments = if values.is_empty() { vec![] } else { vec!["--set", values] };
        let seen = host_paths(&helm.render(&arguments)?)?;
        ensure!(seen == paths, "{values}: {seen:?}");
    }
    Ok(())
}

#[test]
fn the_memory_limit_follows_what_is_served() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for (values, limits) in [
        ("controller.replicaCount=2", json!({"memory": "128Mi"})),
        ("controller.ui.secretName=tls", json!({"memory": "384Mi"})),
        ("controller.ui.secretName=tls,controller.resources.limits.memory=1Gi", json!({"memory": "1Gi"})),
        ("controller.resources.limits=null", Value::Null),
    ] {
        let objects = helm.render(&["--set", values])?;
        let pod = &objects.one("Deployment", "numacast-controller")?["spec"]["template"]["spec"];
        let rendered = &pod["containers"][0]["resources"]["limits"];
        ensure!(*rendered == limits, "{values}: {rendered}");
    }
    for (values, limits) in [
        ("", json!({"memory": "64Mi"})),
        // tests/real/hostile.rs shows that this is enough.
        ("config.podsApi.enabled=true", json!({"memory": "256Mi"})),
        ("config.proxy.enabled=true", json!({"memory": "192Mi"})),
        ("config.podsApi.enabled=true,config.proxy.enabled=true", json!({"memory": "384Mi"})),
        ("config.podsApi.enabled=true,agent.resources.limits.memory=1Gi", json!({"memory": "1Gi"})),
        ("agent.resources.limits.cpu=2", json!({"cpu": 2, "memory": "64Mi"})),
        ("agent.resources.limits=null", Value::Null),
        ("agent.resources=null", Value::Null),
    ] {
        let arguments = if values.is_empty() { vec![] } else { vec!["--set", values] };
        let objects = helm.render(&arguments)?;
        let pod = &objects.one("DaemonSet", "numacast-agent")?["spec"]["template"]["spec"];
        let rendered = &pod["containers"][0]["resources"]["limits"];
        ensure!(*rendered == limits, "{values}: {rendered}");
    }
    Ok(())
}

#[test]
fn a_budget_for_disruptions_needs_a_second_replica() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for (replicas, budgets) in [("1", 0), ("2", 1), ("3", 1)] {
        let objects = helm.render(&["--set", &format!("controller.replicaCount={replicas}")])?;
        ensure!(objects.all("PodDisruptionBudget").count() == budgets, "{replicas} replicas");
    }
    Ok(())
}

#[test]
fn a_strategy_without_rolling_has_no_rolling_values() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let values = "agent.updateStrategy.type=OnDelete,controller.strategy.type=Recreate";
    let objects = helm.render(&["--set", values])?;
    let agent = &objects.one("DaemonSet", "numacast-agent")?["spec"]["updateStrategy"];
    let controller = &objects.one("Deployment", "numacast-controller")?["spec"]["strategy"];
    ensure!(*agent == json!({"type": "OnDelete"}), "{agent}");
    ensure!(*controller == json!({"type": "Recreate"}), "{controller}");
    Ok(())
}

#[test]
fn the_package_holds_the_chart_and_nothing_else() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let chart = chart();
    let destination = helm.home().to_string_lossy().into_owned();
    helm.run(&["package", &chart.to_string_lossy(), "--destination", &destination])?;
    let version = env!("CARGO_PKG_VERSION");
    let package = helm.home().join(format!("numacast-{version}.tgz"));
    let listed = Command::new("tar").arg("--list").arg("--file").arg(&package).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    for file in ["Chart.yaml", "README.md", "values.yaml", "values.schema.json", "files/crd.yaml"] {
        ensure!(listed.lines().any(|line| line == format!("numacast/{file}")), "no {file}");
    }
    for line in listed.lines() {
        let known = [".yaml", ".tpl", ".md", ".json", ".txt", ".helmignore"];
        ensure!(known.iter().any(|end| line.ends_with(end)), "{line} is in the package");
    }
    Ok(())
}

/// In Helm, null removes a default: the rest must still be correct.
#[test]
fn a_default_can_be_taken_away() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for values in [
        "config",
        "controller.config",
        "commonLabels",
        "commonAnnotations",
        "agent.podAnnotations",
        "agent.podLabels",
        "agent.probes",
        "agent.probes.liveness",
        "agent.updateStrategy",
        "agent.affinity",
        "agent.extraEnv",
        "controller.probes.readiness",
        "controller.podAnnotations",
        "controller.strategy",
        "scheduler.strategy",
        "global",
        "platform",
        "kubelet.dir",
        "agent.pools",
        "extraObjects",
        "controller.topologySpreadConstraints",
        "serviceAccount.purge.annotations",
        "image.tag",
        "image.digest",
        "kubelet.configFile",
        "admissionPolicy.maxZones",
        "lookup",
    ] {
        let objects = helm.render(&["--set", &format!("{values}=null")]).context(values)?;
        rules::check(&objects).context(values)?;
    }
    let file = helm.home().join("empty.yaml");
    let text = "config:\n#  scan: {poll: 5s}\ncontroller:\n  config:\nagent: {probes: {readiness: }}\n";
    std::fs::write(&file, text)?;
    rules::check(&helm.render(&["--values", &file.to_string_lossy()])?)
}

#[test]
fn the_hook_uninstalls_independently_of_the_controllers_configuration() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let values = "controller.extraArgs[0]=--dry-run";
    let values = format!("{values},metricsTls.secretName=a,controller.enabled=false");
    let objects = helm.render(&["--set", &values, "--set-json", "controller.config.daemonSets=[]"])?;
    let pod = &objects.one("Job", "numacast-purge")?["spec"]["template"]["spec"];
    let arguments: Vec<&str> = crate::helm::words(&pod["containers"][0]["args"]).collect();
    let right = ["/etc/numacast/config.yaml", "--set=controller.daemonSets=[\"numacast-agent\"]"];
    ensure!(arguments[0] == "purge" && arguments.ends_with(&right), "{arguments:?}");
    // It has to start even if the Secret is already deleted.
    ensure!(crate::helm::items(&pod["volumes"]).count() == 2, "{}", pod["volumes"]);
    Ok(())
}

#[test]
fn the_controller_reads_the_version_that_the_agents_write() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for (values, of_controller) in [
        ("config.scan.poll=2s", None),
        ("config.publish.apiVersion=v1alpha1", Some("v1alpha1")),
        (
            "config.publish.apiVersion=v1alpha1,controller.config.publish.apiVersion=v1alpha2",
            Some("v1alpha2"),
        ),
    ] {
        let objects = helm.render(&["--set", values])?;
        let config: Value = serde_saphyr::from_str(objects.configuration("numacast-controller")?)?;
        let version = config["publish"]["apiVersion"].as_str();
        ensure!(version == of_controller, "{values}: {version:?}");
    }
    Ok(())
}

/// Returns the images of all containers.
fn images(objects: &Objects) -> BTreeSet<String> {
    let containers = objects.pods().flat_map(|(_, pod)| crate::helm::items(&pod["spec"]["containers"]));
    containers.filter_map(|container| container["image"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_global_registry_replaces_that_of_every_image() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let version = env!("CARGO_PKG_VERSION");
    let digest = format!("sha256:{}", "a".repeat(64));
    for (values, expected) in [
        (
            "global.imageRegistry=mirror.example:5000/all",
            [
                format!("mirror.example:5000/all/numacast/numacast:{version}"),
                "mirror.example:5000/all/scheduler-plugins/kube-scheduler:v0.35.7".to_owned(),
            ],
        ),
        (
            &format!(
                "global.imageRegistry=mirror,image.repository=ours/numacast,scheduler.image.digest={digest}"
            ),
            [
                format!("mirror/ours/numacast:{version}"),
                format!("mirror/scheduler-plugins/kube-scheduler@{digest}"),
            ],
        ),
    ] {
        let objects =
            helm.render(&["--set", values, "--set", "scheduler.enabled=true", "--kube-version=1.35.0"])?;
        ensure!(images(&objects) == BTreeSet::from(expected), "{values}: {:?}", images(&objects));
    }
    Ok(())
}

#[test]
fn all_pods_have_the_pull_secrets_of_chart_and_parent() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let values = "global.imagePullSecrets[0].name=a,imagePullSecrets[0].name=b,imagePullSecrets[1].name=a";
    let objects = helm.render(&["--set", values, "--set", "scheduler.enabled=true"])?;
    ensure!(objects.pods().count() == 5, "{} pods", objects.pods().count());
    for (object, pod) in objects.pods() {
        let secrets = &pod["spec"]["imagePullSecrets"];
        ensure!(*secrets == json!([{"name": "a"}, {"name": "b"}]), "{}: {secrets}", name_of(object));
    }
    Ok(())
}

#[test]
fn workloads_have_labels_and_annotations_of_their_own() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let plain = helm.render(&["--set", "scheduler.enabled=true"])?;
    for (kind, part) in [("DaemonSet", "agent"), ("Deployment", "controller"), ("Deployment", "scheduler")] {
        let values =
            format!("{part}.labels.team=hpc,{part}.annotations.note=ours,commonAnnotations.note=all");
        let objects = helm.render(&["--set", "scheduler.enabled=true", "--set", &values])?;
        let name = format!("numacast-{part}");
        let workload = objects.one(kind, &name)?;
        ensure!(workload["metadata"]["labels"]["team"] == "hpc", "{workload}");
        ensure!(workload["metadata"]["annotations"]["note"] == "ours", "{workload}");
        let pod = |objects: &Objects| -> Result<Value> {
            Ok(objects.one(kind, &name)?["spec"]["template"]["metadata"]["labels"].clone())
        };
        ensure!(pod(&objects)? == pod(&plain)?, "they are also on the pods: {}", pod(&objects)?);
        let labelled =
            objects.0.iter().filter(|object| object["metadata"]["labels"]["team"] == "hpc").count();
        ensure!(labelled == 1, "{part}: {labelled} objects");
    }
    Ok(())
}

#[test]
fn additional_objects_are_maps_or_templates() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let file = helm.home().join("objects.yaml");
    let map = "  - {apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}-a'}}\n";
    let text = "  - |\n    apiVersion: v1\n    kind: ConfigMap\n    metadata: {name: {{ include \"numacast.fullname\" . }}-b}\n";
    std::fs::write(&file, format!("extraObjects:\n{map}{text}"))?;
    let objects = helm.render_as("hpc", &["--values", &file.to_string_lossy()])?;
    objects.one("ConfigMap", "hpc-a")?;
    objects.one("ConfigMap", "hpc-numacast-b")?;
    Ok(())
}

#[test]
fn host_users_are_chosen_for_all_pods_but_the_agents() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for (value, chosen) in [("null", Value::Null), ("false", json!(false)), ("true", json!(true))] {
        let objects = helm.render(&["--set", &format!("hostUsers={value},scheduler.enabled=true")])?;
        for (object, pod) in objects.pods() {
            let right = if object["kind"] == "DaemonSet" { &Value::Null } else { &chosen };
            ensure!(
                pod["spec"]["hostUsers"] == *right,
                "{value}: {}: {}",
                name_of(object),
                pod["spec"]["hostUsers"]
            );
        }
    }
    Ok(())
}

/// A part that is disabled leaves nothing behind.
#[test]
fn a_disabled_part_has_no_objects() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let everything =
        "podMonitor.enabled=true,networkPolicy.enabled=true,platform=openshift,scheduler.enabled=true";
    for part in ["agent", "controller", "scheduler"] {
        let of = |objects: &Objects| -> BTreeSet<String> {
            let component =
                |object: &&Value| object["metadata"]["labels"]["app.kubernetes.io/component"] == part;
            objects
                .0
                .iter()
                .filter(component)
                .map(|object| format!("{} {}", object["kind"], name_of(object)))
                .collect()
        };
        let with = of(&helm.render(&["--set", everything])?);
        ensure!(with.len() > 5, "{with:?}");
        let without = of(&helm.render(&["--set", everything, "--set", &format!("{part}.enabled=false")])?);
        // The purge hook reads the controller's configuration.
        let left =
            if part == "controller" { vec!["\"ConfigMap\" numacast-controller".to_owned()] } else { vec![] };
        ensure!(without == BTreeSet::from_iter(left), "{part}: {without:?}");
    }
    Ok(())
}
