//! What `platform` supplies, and what `auto` recognizes, with and without a cluster.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use numacast::agent::ConfigSource;
use serde_json::{Value, json};

use crate::api_server::Cluster;
use crate::helm::{Helm, Objects, chart, items, name_of};
use crate::rules;

const KUBEADM_FILE: &str = "/var/lib/kubelet/config.yaml";

/// What a platform supplies.
struct Platform {
    name: &'static str,
    /// The kubelet's configuration file; `None`: it is read from its HTTPS port.
    file: Option<&'static str>,
    selinux: Option<&'static str>,
    quota: bool,
    /// The user of the controller's pods.
    user: Option<u64>,
    /// Whether there are SecurityContextConstraints.
    constraints: bool,
}

const fn platform(name: &'static str, file: Option<&'static str>) -> Platform {
    Platform { name, file, selinux: None, quota: false, user: Some(65532), constraints: false }
}

static PLATFORMS: [Platform; 9] = [
    platform("kubeadm", Some(KUBEADM_FILE)),
    platform("kind", Some(KUBEADM_FILE)),
    platform("k3s", None),
    platform("rke2", None),
    Platform {
        selinux: Some("container_device_plugin_t"),
        user: None,
        constraints: true,
        ..platform("openshift", Some("/etc/kubernetes/kubelet.conf"))
    },
    Platform { quota: true, ..platform("gke", Some("/home/kubernetes/kubelet-config.yaml")) },
    platform("eks", None),
    platform("aks", None),
    platform("generic", None),
];

/// Checks that these objects are what a platform needs.
fn is_for(objects: &Objects, platform: &Platform) -> Result<()> {
    let config = objects.config("numacast-agent")?.kubelet;
    let pod = &objects.one("DaemonSet", "numacast-agent")?["spec"]["template"]["spec"];
    let mounted = items(&pod["volumes"]).find(|volume| volume["name"] == "kubelet-config");
    match platform.file {
        Some(file) => {
            let inside = std::path::PathBuf::from(format!("/host{file}"));
            ensure!(
                config.config_source == ConfigSource::File && config.config_file == Some(inside),
                "{config:?}"
            );
            let right = json!({"path": file, "type": "File"});
            ensure!(mounted.is_some_and(|volume| volume["hostPath"] == right), "{mounted:?}");
        }
        None => {
            ensure!(
                config.config_source == ConfigSource::Configz && config.config_file.is_none(),
                "{config:?}"
            );
            ensure!(mounted.is_none(), "{mounted:?}");
        }
    }
    let selinux = pod["containers"][0]["securityContext"]["seLinuxOptions"]["type"].as_str();
    ensure!(selinux == platform.selinux, "{selinux:?}");
    ensure!((objects.all("ResourceQuota").count() == 1) == platform.quota, "a quota");
    ensure!((objects.all("SecurityContextConstraints").count() == 1) == platform.constraints, "constraints");
    let controller = &objects.one("Deployment", "numacast-controller")?["spec"]["template"]["spec"];
    for id in ["runAsUser", "runAsGroup"] {
        let user = controller["securityContext"][id].as_u64();
        ensure!(user == platform.user, "{id}: {user:?}");
    }
    Ok(())
}

fn named(name: &str) -> Result<&'static Platform> {
    PLATFORMS.iter().find(|platform| platform.name == name).with_context(|| format!("no platform {name}"))
}

#[test]
fn every_platform_is_supplied_with_what_it_needs() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for platform in &PLATFORMS {
        let objects = helm.render(&["--set", &format!("platform={}", platform.name)])?;
        rules::check(&objects).and_then(|()| is_for(&objects, platform)).context(platform.name)?;
    }
    Ok(())
}

/// The template's table, the schema and this test know the same platforms.
#[test]
fn the_schema_lists_every_platform() -> Result<()> {
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(chart().join("values.schema.json"))?)?;
    let mut names: Vec<&str> = PLATFORMS.iter().map(|platform| platform.name).collect();
    names.sort_unstable();
    let listed = |at: &Value| -> Vec<String> {
        let mut names: Vec<String> = items(at).filter_map(Value::as_str).map(str::to_owned).collect();
        names.retain(|name| name != "auto");
        names.sort_unstable();
        names
    };
    ensure!(listed(&schema["properties"]["platform"]["enum"]) == names, "of platform");
    ensure!(listed(&schema["$defs"]["pool"]["properties"]["platform"]["enum"]) == names, "of a pool");
    Ok(())
}

#[test]
fn values_override_what_a_platform_supplies() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let render = |values: &str| helm.render(&["--set", values]).context(values.to_owned());
    let kubeadm = "platform=kubeadm,kubelet";
    for (values, source, file) in [
        (format!("{kubeadm}.configSource=configz"), ConfigSource::Configz, None),
        (format!("{kubeadm}.configSource=none"), ConfigSource::None, None),
        (format!("{kubeadm}.configSource=auto"), ConfigSource::Auto, Some(KUBEADM_FILE)),
        (format!("{kubeadm}.configFile=/etc/kubelet.yaml"), ConfigSource::File, Some("/etc/kubelet.yaml")),
        (format!("{kubeadm}.configDir=/etc/kubelet.d"), ConfigSource::File, Some(KUBEADM_FILE)),
        ("platform=k3s,kubelet.configFile=/etc/a".to_owned(), ConfigSource::File, Some("/etc/a")),
        ("platform=k3s,kubelet.configSource=auto".to_owned(), ConfigSource::Auto, None),
    ] {
        let objects = render(&values)?;
        rules::check(&objects).context(values.clone())?;
        let config = objects.config("numacast-agent")?.kubelet;
        let file = file.map(|file| std::path::PathBuf::from(format!("/host{file}")));
        ensure!((config.config_source, config.config_file) == (source, file), "{values}");
    }
    ensure!(render("platform=gke,priorityQuota.enabled=false")?.all("ResourceQuota").count() == 0);
    ensure!(render("platform=k3s,priorityQuota.enabled=true")?.all("ResourceQuota").count() == 1);
    let openshift = "platform=openshift,agent.securityContext.seLinuxOptions.type=spc_t";
    let objects = render(&format!("{openshift},controller.podSecurityContext.runAsUser=7"))?;
    let pod_of = |kind: &str, name: &str| -> Result<Value> {
        Ok(objects.one(kind, name)?["spec"]["template"]["spec"].clone())
    };
    let agent = pod_of("DaemonSet", "numacast-agent")?;
    ensure!(agent["containers"][0]["securityContext"]["seLinuxOptions"]["type"] == "spc_t", "{agent}");
    ensure!(pod_of("Deployment", "numacast-controller")?["securityContext"]["runAsUser"] == 7);
    Ok(())
}

/// The sentence about a platform that is not known.
const GUESSED: &str = "WARNING: the agents read the kubelet's configuration from its HTTPS port, which needs a \
                       certificate that the cluster's CA signed (kubeadm's default is self-signed): set platform, \
                       kubelet.configFile or kubelet.certificateFingerprints if yours is not.";

/// Without a cluster, version and API groups can be given to Helm.
#[test]
fn without_a_cluster_auto_recognizes_versions_and_api_groups() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    // Notes are only rendered by an installation, so a copy of the chart has an object with the platform.
    let copy = helm.home().join("numacast");
    let made = Command::new("cp").arg("-r").arg(chart()).arg(&copy).status()?;
    ensure!(made.success(), "no copy of the chart");
    let template = "kind: Platform\nfound: {{ include \"numacast.platform\" . }}\n";
    std::fs::write(copy.join("templates/platform.yaml"), template)?;
    let copy = copy.to_string_lossy();
    for (arguments, name) in [
        (&[][..], "generic"),
        (&["--kube-version=v1.35.0+k3s1"], "k3s"),
        (&["--kube-version=v1.35.0+rke2r1"], "rke2"),
        (&["--kube-version=v1.35.1-gke.1000"], "gke"),
        (&["--kube-version=v1.35.1-eks-4a4a4a4"], "eks"),
        (&["--api-versions=security.openshift.io/v1"], "openshift"),
        (&["--api-versions=security.openshift.io/v1", "--set=platform=generic"], "generic"),
    ] {
        let words = ["template", "a", &copy, "--show-only=templates/platform.yaml"];
        let words = [&words[..], arguments];
        let found = Objects::parse(&helm.run(&words.concat())?)?;
        ensure!(found.0[0]["found"]["name"] == name, "{arguments:?}: {}", found.0[0]);
    }
    let notes = |values: &str| -> Result<String> {
        let chart = chart();
        let words = ["install", "numacast", &chart.to_string_lossy(), "--dry-run=client", "--set", values];
        helm.run(&words)
    };
    let fingerprint = format!("kubelet.certificateFingerprints={{{}}}", "a".repeat(64));
    let usual = notes("platform=auto")?;
    ensure!(usual.contains("\nPlatform: generic (the cluster could not be queried).\n"), "{usual}");
    ensure!(usual.contains(GUESSED), "{usual}");
    for values in [
        "platform=generic",
        "kubelet.configFile=/etc/a",
        "kubelet.configSource=none",
        "kubelet.caFile=/ca.crt",
        &fingerprint,
        "agent.enabled=false",
    ] {
        let notes = notes(values)?;
        ensure!(!notes.contains(GUESSED), "{values}: {notes}");
    }
    let set = notes("platform=eks")?;
    ensure!(set.contains("\nPlatform: eks (platform is set).\n"), "{set}");
    Ok(())
}

/// Installs on a cluster without changing it.
fn installed(helm: &Helm, cluster: Cluster, values: &str) -> Result<Output> {
    let kubeconfig = helm.home().join("kubeconfig");
    cluster.serve(&kubeconfig)?;
    let chart = chart();
    let mut command = helm.command();
    command.env("KUBECONFIG", kubeconfig).args(["install", "numacast", &chart.to_string_lossy()]);
    command.args(["--namespace=numa", "--dry-run=server", "--disable-openapi-validation", "--output=json"]);
    Ok(command.args(["--set", values]).output()?)
}

#[test]
fn on_a_cluster_auto_recognizes_its_platform() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let plain = || Cluster::new("v1.37.0");
    let config = |cluster: Cluster| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubeadm-config"}});
        cluster.with("/api/v1/namespaces/kube-system/configmaps/kubeadm-config", map)
    };
    let kindnet = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "kindnet"}});
    let labels = json!({"kubernetes.azure.com/managedby": "aks"});
    let of_aks = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "labels": labels}});
    let none = "no other platform was recognized";
    let guessed = Some(GUESSED);
    for (cluster, values, name, reason, warning) in [
        (plain(), "", "generic", none, guessed),
        (plain(), "kubelet.configFile=/etc/kubernetes/kubelet.yaml", "", none, None),
        (config(plain()), "", "kubeadm", "the ConfigMap kube-system/kubeadm-config exists", None),
        (
            config(plain()).with("/apis/apps/v1/namespaces/kube-system/daemonsets/kindnet", kindnet),
            "",
            "kind",
            "the DaemonSet kube-system/kindnet exists",
            None,
        ),
        (
            plain().with("/api/v1/namespaces/kube-system", of_aks),
            "",
            "aks",
            "kube-system has the label kubernetes.azure.com/managedby=aks",
            None,
        ),
        (Cluster::new("v1.36.2+k3s1"), "", "k3s", "its version is v1.36.2+k3s1", None),
        (config(Cluster::new("v1.36.2+rke2r1")), "", "rke2", "its version is v1.36.2+rke2r1", None),
        (Cluster::new("v1.36.2-gke.77"), "", "gke", "its version is v1.36.2-gke.77", None),
        (Cluster::new("v1.36.2-eks-5e0fdde"), "", "eks", "its version is v1.36.2-eks-5e0fdde", None),
        (
            Cluster { openshift: true, ..config(plain()) },
            "",
            "openshift",
            "its API server has the API group security.openshift.io",
            None,
        ),
        (config(plain()), "platform=k3s", "k3s", "platform is set", None),
        (config(plain()), "lookup=false", "generic", "the cluster could not be queried", guessed),
    ] {
        let what = format!("{cluster:?} {values}");
        let output = installed(&helm, cluster, values)?;
        ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        let release: Value = serde_json::from_slice(&output.stdout)?;
        let notes = release["info"]["notes"].as_str().context("no notes")?;
        ensure!(notes.contains(&format!("({reason}).\n")), "{what}: {notes}");
        ensure!(notes.contains("WARNING") == warning.is_some(), "{what}: {notes}");
        ensure!(warning.is_none_or(|warning| notes.contains(warning)), "{what}: {notes}");
        if !name.is_empty() {
            ensure!(notes.contains(&format!("\nPlatform: {name} (")), "{what}: {notes}");
            let objects = Objects::parse(release["manifest"].as_str().context("no manifest")?)?;
            is_for(&objects, named(name)?).context(what)?;
        }
    }
    Ok(())
}

/// Helm ends the installation if it may not ask; the values' comment names the way out.
#[test]
fn an_installer_without_permission_sets_lookup() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    for forbidden in [
        "/api/v1/namespaces/kube-system",
        "/api/v1/namespaces/kube-system/configmaps/kubeadm-config",
        "/apis/apps/v1/daemonsets",
    ] {
        let cluster = || Cluster { forbidden, ..Cluster::new("v1.37.0") };
        let output = installed(&helm, cluster(), "")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && stderr.contains("Forbidden"), "{forbidden}: {stderr}");
        let output = installed(&helm, cluster(), "lookup=false")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{forbidden}: {stderr}");
    }
    Ok(())
}

const POOLS: &str = "
platform: kubeadm
networkPolicy: {enabled: true}
agent:
  nodeSelector: {numa: \"true\"}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: zone, operator: In, values: [a]}]
        - matchFields: [{key: metadata.name, operator: In, values: [special]}]
  pools:
  - name: edge
    nodeSelector: {pool: edge}
    platform: k3s
    kubelet: {address: \"worker.example:10251\"}
    resources: {limits: {memory: 1Gi}}
    tolerations: []
  - name: gpu
    nodeSelector: {node-role.example/gpu: \"\"}
    kubelet: {dir: /data/kubelet, configDir: /etc/kubelet.d, mountDir: true}
";

/// Nodes as sets of labels; each pair is a key and its value.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// Returns true if a pod with this spec may run on a node, by node selector and required affinity.
fn selects(pod: &Value, name: &str, labels: Labels<'_>) -> bool {
    let linux = ("kubernetes.io/os", "linux");
    let all = || labels.iter().chain([&linux]);
    let value_of = |key: &str| all().find(|(label, _)| *label == key).map(|(_, value)| *value);
    let requires = |requirement: &Value, value: Option<&str>| {
        let values: Vec<&str> = crate::helm::words(&requirement["values"]).collect();
        match requirement["operator"].as_str() {
            Some("In") => value.is_some_and(|value| values.contains(&value)),
            Some("NotIn") => value.is_none_or(|value| !values.contains(&value)),
            other => panic!("the operator {other:?}"),
        }
    };
    let by_labels = pod["nodeSelector"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(key, value)| value_of(key) == value.as_str());
    let required = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = &required["nodeSelectorTerms"];
    let meets = |term: &Value| {
        items(&term["matchExpressions"])
            .all(|one| requires(one, value_of(one["key"].as_str().unwrap_or_default())))
            && items(&term["matchFields"]).all(|one| requires(one, Some(name)))
    };
    by_labels && (terms.is_null() || items(terms).any(meets))
}

#[test]
fn each_node_has_exactly_one_agent() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let file = helm.home().join("pools.yaml");
    std::fs::write(&file, POOLS)?;
    let objects = helm.render(&["--values", &file.to_string_lossy()])?;
    rules::check(&objects)?;
    let (numa, zone) = (("numa", "true"), ("zone", "a"));
    let (edge, other, gpu) = (("pool", "edge"), ("pool", "other"), ("node-role.example/gpu", ""));
    for (name, labels, agents) in [
        ("n", &[numa, zone][..], &["numacast-agent"][..]),
        ("n", &[numa, zone, other], &["numacast-agent"]),
        ("n", &[numa, zone, edge], &["numacast-agent-edge"]),
        ("n", &[numa, zone, gpu], &["numacast-agent-gpu"]),
        ("n", &[numa, zone, other, gpu], &["numacast-agent-gpu"]),
        // The first pool has it.
        ("n", &[numa, zone, edge, gpu], &["numacast-agent-edge"]),
        ("special", &[numa, edge], &["numacast-agent-edge"]),
        ("special", &[numa], &["numacast-agent"]),
        // Not one of the agents' nodes.
        ("n", &[zone], &[]),
        ("n", &[numa], &[]),
        ("n", &[numa, edge], &[]),
    ] {
        let on =
            objects.all("DaemonSet").filter(|one| selects(&one["spec"]["template"]["spec"], name, labels));
        let found: Vec<&str> = on.map(name_of).collect();
        ensure!(found == agents, "{name} {labels:?}: {found:?}");
    }
    Ok(())
}

#[test]
fn a_pool_differs_where_its_values_do() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let file = helm.home().join("pools.yaml");
    std::fs::write(&file, POOLS)?;
    let objects = helm.render(&["--values", &file.to_string_lossy()])?;
    let of = |name: &str| -> Result<(numacast::config::Config, &Value)> {
        Ok((objects.config(name)?, &objects.one("DaemonSet", name)?["spec"]["template"]["spec"]))
    };
    let ((rest, rest_pod), (edge, edge_pod), (gpu, gpu_pod)) =
        (of("numacast-agent")?, of("numacast-agent-edge")?, of("numacast-agent-gpu")?);
    ensure!(rest.kubelet.config_source == ConfigSource::File && rest.kubelet.address.is_none(), "{rest:?}");
    ensure!(
        edge.kubelet.config_source == ConfigSource::Configz && edge.kubelet.address.is_some(),
        "{edge:?}"
    );
    ensure!(gpu.kubelet.config_source == ConfigSource::File, "{gpu:?}");
    ensure!(gpu.kubelet.dir == Some("/host/data/kubelet".into()), "{gpu:?}");
    ensure!(gpu.kubelet.config_dir == Some("/host/etc/kubelet.d".into()), "{gpu:?}");
    let memory = |pod: &Value| pod["containers"][0]["resources"]["limits"]["memory"].clone();
    ensure!([memory(rest_pod), memory(edge_pod), memory(gpu_pod)] == ["64Mi", "1Gi", "64Mi"]);
    ensure!(edge_pod["tolerations"].is_null() && gpu_pod["tolerations"] == rest_pod["tolerations"]);
    // What all agents share.
    let names = ["numacast-agent", "numacast-agent-edge", "numacast-agent-gpu"];
    ensure!(objects.config("numacast-controller")?.controller.daemon_sets == names);
    let purge = &objects.one("Job", "numacast-purge")?["spec"]["template"]["spec"]["containers"][0]["args"];
    let right =
        "--set=controller.daemonSets=[\"numacast-agent\",\"numacast-agent-edge\",\"numacast-agent-gpu\"]";
    ensure!(crate::helm::words(purge).last() == Some(right), "{purge}");
    for role in ["numacast-controller", "numacast-purge"] {
        let rules = &objects.one("Role", role)?["rules"];
        ensure!(items(rules).any(|rule| rule["resourceNames"] == json!(names)), "{role}: {rules}");
    }
    let rules = &objects.one("ClusterRole", "numacast-agent")?["rules"];
    let reads =
        items(rules).any(|rule| crate::helm::words(&rule["resources"]).any(|one| one == "nodes/configz"));
    ensure!(reads, "one pool reads from kubelets: {rules}");
    let policy = &objects.one("NetworkPolicy", "numacast-agent")?["spec"];
    ensure!(policy["egress"][1]["ports"] == json!([{"port": 10251, "protocol": "TCP"}]), "{policy}");
    for (_, pod) in objects.pods().filter(|(object, _)| object["kind"] == "DaemonSet") {
        for (label, value) in policy["podSelector"]["matchLabels"].as_object().context("no labels")? {
            ensure!(pod["metadata"]["labels"][label] == *value, "{label}: {pod}");
        }
    }
    Ok(())
}

#[test]
fn selectors_of_workloads_do_not_overlap() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let file = helm.home().join("pools.yaml");
    std::fs::write(&file, POOLS)?;
    let objects = helm.render(&["--values", &file.to_string_lossy(), "--set=scheduler.enabled=true"])?;
    let workloads: Vec<&Value> = objects.all("DaemonSet").chain(objects.all("Deployment")).collect();
    ensure!(workloads.len() == 5, "{} workloads", workloads.len());
    for one in &workloads {
        let selector = one["spec"]["selector"]["matchLabels"].as_object().context("no selector")?;
        let selected = workloads.iter().filter(|other| {
            selector
                .iter()
                .all(|(label, value)| other["spec"]["template"]["metadata"]["labels"][label] == *value)
        });
        let selected: Vec<&str> = selected.map(|other| name_of(other)).collect();
        ensure!(selected == [name_of(one)], "{} selects {selected:?}", name_of(one));
    }
    Ok(())
}
