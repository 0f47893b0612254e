//! The chart's documents: values, their schema, README, the CRD.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use numacast::nrt;
use serde_json::{Map, Value, json};

use crate::helm::{Helm, chart, presets};
use crate::parts::repository;

fn read(name: &str) -> Result<String> {
    let path = chart().join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn yaml(name: &str) -> Result<Value> {
    serde_saphyr::from_str(&read(name)?).with_context(|| name.to_owned())
}

/// Checks that a document of the chart is up to date, or writes it.
fn is(name: &str, right: &str) -> Result<()> {
    if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
        return Ok(std::fs::write(chart().join(name), right)?);
    }
    let how = "NUMACAST_WRITE_DOCS=1 cargo test --test chart documents";
    ensure!(read(name).unwrap_or_default() == right, "charts/numacast/{name} is old: run `{how}`");
    Ok(())
}

#[test]
fn the_chart_has_the_version_of_the_binary() -> Result<()> {
    let about = yaml("Chart.yaml")?;
    for key in ["version", "appVersion"] {
        ensure!(about[key] == env!("CARGO_PKG_VERSION"), "{key} is {}", about[key]);
    }
    let (images, values) = (annotation(&about, "images")?, yaml("values.yaml")?);
    let repository = values["image"]["repository"].as_str().context("no repository")?;
    let image = format!("{repository}:{}", env!("CARGO_PKG_VERSION"));
    ensure!(images == json!([{"name": "numacast", "image": image}]), "Artifact Hub shows {images}");
    Ok(())
}

/// Returns an annotation for Artifact Hub, which is YAML.
fn annotation(about: &Value, name: &str) -> Result<Value> {
    let text = about["annotations"][format!("artifacthub.io/{name}")].as_str();
    Ok(serde_saphyr::from_str(text.with_context(|| format!("no annotation {name}"))?)?)
}

#[test]
fn artifact_hub_shows_the_crd_of_the_chart() -> Result<()> {
    let (crds, crd) = (annotation(&yaml("Chart.yaml")?, "crds")?, yaml("files/crd.yaml")?);
    let shown = &crds[0];
    ensure!(
        shown["name"] == crd["metadata"]["name"] && shown["kind"] == crd["spec"]["names"]["kind"],
        "{shown}"
    );
    let versions: Vec<&Value> = crate::helm::items(&crd["spec"]["versions"]).collect();
    let stored =
        versions.iter().find(|version| version["storage"] == true).context("no version is stored")?;
    ensure!(shown["version"] == stored["name"], "{shown}");
    let icon = yaml("Chart.yaml")?["icon"].as_str().map(str::to_owned).context("no icon")?;
    let file = icon.rsplit('/').next().unwrap_or_default();
    ensure!(chart().join(file).is_file() && icon.ends_with(&format!("charts/numacast/{file}")), "{icon}");
    Ok(())
}

#[test]
fn the_crd_is_that_of_the_binary() -> Result<()> {
    ensure!(read("files/crd.yaml")? == nrt::CRD, "copy crds/ to charts/numacast/files/crd.yaml");
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let name = "noderesourcetopologies.topology.node.k8s.io";
    let right: Value = serde_saphyr::from_str(nrt::CRD)?;
    let rendered = helm.render(&["--set", "commonAnnotations.note=ours"])?;
    let crd = rendered.one("CustomResourceDefinition", name)?;
    ensure!(crd["spec"] == right["spec"], "{crd}");
    let mut notes = right["metadata"]["annotations"].clone();
    notes["helm.sh/resource-policy"] = "keep".into();
    notes["note"] = "ours".into();
    ensure!(crd["metadata"]["annotations"] == notes, "{crd}");
    let deleted = helm.render(&["--set", "crds.keep=false"])?;
    let notes = &deleted.one("CustomResourceDefinition", name)?["metadata"]["annotations"];
    ensure!(*notes == right["metadata"]["annotations"], "{notes}");
    let without = helm.render(&["--set", "crds.enabled=false"])?;
    ensure!(without.all("CustomResourceDefinition").count() == 0);
    Ok(())
}

/// Keys of the kubelet that the chart's schema describes itself: paths on the node, and a source that may be
/// empty.
const OWN_KUBELET_KEYS: [&str; 6] =
    ["configDir", "configFile", "configSource", "devicePluginsDir", "dir", "mountDir"];

/// The schemas of `config`, `controller.config` and most of `kubelet` are generated from that of the
/// configuration file; the rest is hand-written.
#[test]
fn the_schema_of_values_has_that_of_the_configuration() -> Result<()> {
    let mut schema: Value = serde_json::from_str(&read("values.schema.json")?)?;
    let config = std::fs::read_to_string(repository().join("src/config/schema.json"))?;
    let mut config: Map<String, Value> = serde_json::from_str(&config)?;
    config.retain(|key, _| !["$schema", "title"].contains(&key.as_str()));
    let keys = config.get_mut("properties").and_then(Value::as_object_mut).context("no properties")?;
    // The templates name the new place of these.
    let moved = || json!({"deprecated": true});
    let mut take = |key: &str| keys.insert(key.to_owned(), moved()).with_context(|| format!("no key {key}"));
    let (kubelet, mut controller) = (take("kubelet")?, take("controller")?);
    take("host")?;
    let of_controller = controller["properties"].as_object_mut().context("no properties")?;
    of_controller.insert("controller".to_owned(), moved());
    for key in ["health", "log", "metrics", "publish"] {
        of_controller.insert(key.to_owned(), keys[key].clone());
    }
    let of_kubelet = schema["$defs"]["kubelet"]["properties"].as_object_mut().context("no kubelet")?;
    of_kubelet.retain(|key, _| OWN_KUBELET_KEYS.contains(&key.as_str()));
    for (key, value) in kubelet["properties"].as_object().context("no properties")? {
        of_kubelet.entry(key.clone()).or_insert_with(|| value.clone());
    }
    schema["$defs"]["controllerConfig"] =
        json!({"type": "object", "additionalProperties": false, "properties": controller["properties"]});
    schema["$defs"]["config"] = config.into();
    is("values.schema.json", &(serde_json::to_string_pretty(&schema)? + "\n"))
}

/// Collects the schema's keys recursively, except below keys that are documented elsewhere.
fn keys_of_schema<'a>(schema: &'a Value, all: &'a Value, at: &str, keys: &mut BTreeSet<String>) {
    let referred = schema["$ref"].as_str().and_then(|to| all["$defs"].get(to.strip_prefix("#/$defs/")?));
    let schema = referred.unwrap_or(schema);
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        if below["deprecated"] == true {
            continue;
        }
        let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        if !is_documented_elsewhere(&key) {
            keys_of_schema(below, all, &key, keys);
        }
        keys.insert(key);
    }
}

/// Returns true if a key is documented elsewhere: the configuration, and types defined by Kubernetes.
fn is_documented_elsewhere(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or_default();
    let theirs = [
        "config",
        "global",
        "resources",
        "affinity",
        "tolerations",
        "updateStrategy",
        "strategy",
        "pools",
        "configOverrides",
        "probes",
        "securityContext",
    ];
    theirs.contains(&last) || ["podSecurityContext", "extraEnv", "imagePullSecrets"].contains(&last)
}

fn keys_of_values(values: &Value, at: &str, keys: &mut BTreeSet<String>) {
    for (name, below) in values.as_object().into_iter().flatten() {
        let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        let is_map = key.ends_with("nodeSelector") || key.ends_with("abels") || key.ends_with("nnotations");
        if !is_documented_elsewhere(&key) && !is_map {
            keys_of_values(below, &key, keys);
        }
        keys.insert(key);
    }
}

#[test]
fn values_and_schema_know_the_same_keys() -> Result<()> {
    let schema: Value = serde_json::from_str(&read("values.schema.json")?)?;
    let (mut known, mut valued) = (BTreeSet::new(), BTreeSet::new());
    keys_of_schema(&schema, &schema, "", &mut known);
    // Added by Helm.
    ensure!(known.remove("enabled"));
    keys_of_values(&yaml("values.yaml")?, "", &mut valued);
    let difference: Vec<_> = known.symmetric_difference(&valued).collect();
    ensure!(difference.is_empty(), "only one of values.yaml and values.schema.json has {difference:?}");
    Ok(())
}

#[test]
fn the_timeout_of_the_kubelet_is_the_agents_default() -> Result<()> {
    let config: Value = serde_json::to_value(numacast::config::Config::default())?;
    let timeout = &yaml("values.yaml")?["kubelet"]["timeout"];
    ensure!(*timeout == config["kubelet"]["timeout"], "the agent's is {}", config["kubelet"]["timeout"]);
    Ok(())
}

/// Every object of our own in the schema rejects unknown keys.
#[test]
fn the_schema_is_strict() -> Result<()> {
    fn walk(schema: &Value, at: &str, loose: &mut Vec<String>) {
        if schema["properties"].is_object() && schema["additionalProperties"] != false {
            loose.push(at.to_owned());
        }
        let below = schema.as_object().into_iter().flatten();
        below.for_each(|(key, value)| walk(value, &format!("{at}/{key}"), loose));
    }
    let schema: Value = serde_json::from_str(&read("values.schema.json")?)?;
    let mut loose = Vec::new();
    walk(&schema, "", &mut loose);
    ensure!(loose.is_empty(), "{loose:?} take any key");
    Ok(())
}

/// A key of values.yaml with its comment.
#[derive(Debug, PartialEq)]
struct Described {
    key: String,
    meaning: String,
}

/// Returns the commented keys of values.yaml, in order.
fn described(text: &str) -> Result<Vec<Described>> {
    let (mut path, mut comment, mut found) = (Vec::<(usize, String)>::new(), String::new(), Vec::new());
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let content = line.trim();
        if let Some(words) = content.strip_prefix("# ") {
            ensure!(comment.is_empty(), "a comment of two lines: {words}");
            comment = words.to_owned();
            continue;
        }
        let key =
            content.split_once(':').map(|(key, _)| key).filter(|key| !key.contains([' ', '{', '-', '[']));
        if let Some(key) = key {
            path.retain(|(depth, _)| *depth < indent);
            path.push((indent, key.to_owned()));
            if !comment.is_empty() {
                let key = path.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join(".");
                found.push(Described { key, meaning: std::mem::take(&mut comment) });
            }
        }
        comment.clear();
    }
    Ok(found)
}

#[test]
fn comments_are_found_where_they_stand() -> Result<()> {
    let text = "# About the file.\n\na:\n  # One.\n  b: {c: d}\n  # Two.\n  e:\n    f: 1\n  - operator: x\n# Three.\ng: \"\"\n";
    let of = |key: &str, meaning: &str| Described { key: key.into(), meaning: meaning.into() };
    ensure!(described(text)? == [of("a.b", "One."), of("a.e", "Two."), of("g", "Three.")]);
    Ok(())
}

/// Formats a default for a table.
fn shown(value: &Value) -> String {
    fn flow(value: &Value) -> String {
        match value {
            Value::Object(map) => {
                let entries = map.iter().map(|(key, value)| format!("{key}: {}", flow(value)));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
            Value::Array(list) => format!("[{}]", list.iter().map(flow).collect::<Vec<_>>().join(", ")),
            Value::String(text) if !text.is_empty() => text.clone(),
            other => other.to_string(),
        }
    }
    format!("`{}`", flow(value))
}

#[test]
fn the_readme_lists_every_value() -> Result<()> {
    let (text, values) = (read("values.yaml")?, yaml("values.yaml")?);
    let described = described(&text)?;
    let documented: BTreeSet<String> = described.iter().map(|one| one.key.clone()).collect();
    let mut rows = String::from("| value | default | meaning |\n|---|---|---|\n");
    let default = |key: &str| key.split('.').fold(&values, |value, name| &value[name]);
    let parent = |key: &str| key.rsplit_once('.').map(|(parent, _)| parent.to_owned());
    // Neighbours with the same default and meaning share a row.
    let is_same = |a: &Described, b: &Described| {
        a.meaning == b.meaning && parent(&a.key) == parent(&b.key) && default(&a.key) == default(&b.key)
    };
    for same in described.chunk_by(is_same) {
        let names: Vec<_> = same.iter().map(|one| format!("`{}`", one.key)).collect();
        let meaning = same[0].meaning.replace('|', "\\|");
        rows += &format!("| {} | {} | {meaning} |\n", names.join(", "), shown(default(&same[0].key)));
    }
    let mut all = BTreeSet::new();
    keys_of_values(&values, "", &mut all);
    let silent: Vec<_> = all
        .iter()
        .filter(|key| {
            !documented.contains(*key)
                && !documented.iter().any(|other| other.starts_with(&format!("{key}.")))
        })
        .filter(|key| !documented.iter().any(|other| key.starts_with(&format!("{other}."))))
        .collect();
    ensure!(silent.is_empty(), "values.yaml says nothing about {silent:?}");
    let readme = read("README.md")?;
    let (start, end) = ("<!-- values -->\n", "<!-- end of values -->\n");
    let (before, rest) = readme.split_once(start).context("no table of values")?;
    let (_, after) = rest.split_once(end).context("no end of the table")?;
    is("README.md", &[before, start, &rows, end, after].concat())
}

#[test]
fn each_values_file_says_for_whom_it_is() -> Result<()> {
    for file in presets()? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = read(&name)?;
        let comment: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
        ensure!(comment.len() >= 2 && comment[0].starts_with("# For "), "{name} begins with {comment:?}");
        ensure!(yaml(&name)?.as_object().is_some_and(|values| !values.is_empty()), "{name} sets nothing");
        ensure!(read("README.md")?.contains(&format!("]({name})")), "README.md does not name {name}");
    }
    Ok(())
}

#[test]
fn the_notes_warn_about_risky_values() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let chart = chart();
    let notes = |values: &str| -> Result<String> {
        let words = ["install", "numacast", &chart.to_string_lossy(), "--dry-run=client", "--output=json"];
        let set = if values.is_empty() { vec![] } else { vec!["--set", values] };
        let release: Value = serde_json::from_str(&helm.run(&[&words[..], &set].concat())?)?;
        Ok(release["info"]["notes"].as_str().context("no notes")?.to_owned())
    };
    let usual = notes("")?;
    ensure!(
        usual.matches("WARNING").count() == 1 && !usual.contains("proxy") && !usual.contains("Pods API"),
        "{usual}"
    );
    for words in
        ["rollout status daemonset/numacast-agent", "helm --namespace default test numacast", "keeps the CRD"]
    {
        ensure!(usual.contains(words), "{usual}");
    }
    for (values, words) in [
        ("admissionPolicy.enabled=false", "WARNING: any agent's token, and the controller's, can write"),
        ("admissionPolicy.onMissingClaim=Allow", "WARNING: an agent's token that names no node"),
        ("kubelet.mountDir=true", "WARNING: the agents can read and write the volumes of every pod"),
        ("rbac.create=false,purge.enabled=false", "WARNING: no roles are created"),
        ("purge.enabled=false", "mislead the scheduler"),
        (
            "scheduler.enabled=true,controller.enabled=false,purge.enabled=false",
            "WARNING: the scheduler ignores objects that are created after it started",
        ),
        ("config.proxy.enabled=true", "on each node /run/numacast/pod-resources/kubelet.sock."),
        ("config.proxy.enabled=true,config.proxy.dir=/run/a/b", "on each node /run/a/b/kubelet.sock."),
        ("config.podsApi.enabled=true", "on each node /run/numacast/pods-api/pods-api.sock."),
        ("config.podsApi.enabled=true", "can read all pods of the node, including environment variables."),
        ("config.podsApi.enabled=true,config.podsApi.dir=/run/a/b", "on each node /run/a/b/pods-api.sock."),
    ] {
        let notes = notes(values)?;
        ensure!(notes.contains(words), "{values}: {notes}");
    }
    Ok(())
}

/// Notes are only rendered by an installation, which reads the cluster's version; so a copy of the chart
/// renders them instead.
#[test]
fn kubelets_that_do_not_report_their_configuration_are_warned_about() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let copy = helm.home().join("numacast");
    let made = Command::new("cp").arg("-r").arg(chart()).arg(&copy).status()?;
    ensure!(made.success(), "no copy of the chart");
    let template = "kind: Warnings\nwarnings:\n{{- include \"numacast.warnings\" . | nindent 2 }}\n";
    std::fs::write(copy.join("templates/warnings.yaml"), template)?;
    let warned = |version: &str, values: &str| -> Result<bool> {
        let copy = copy.to_string_lossy();
        let words =
            ["template", "a", &copy, "--show-only=templates/warnings.yaml", "--kube-version", version];
        let warnings = helm.run(&[&words[..], &["--set", values]].concat())?;
        Ok(warnings.contains("kubelets report their configuration from Kubernetes 1.33 on"))
    };
    ensure!(warned("1.32.9", "lookup=false")?);
    ensure!(!warned("1.32.9", "kubelet.configFile=/etc/kubelet.yaml")?);
    ensure!(!warned("1.33.0", "lookup=false")?);
    ensure!(!warned("1.33.0-eks-1", "lookup=false")?);
    Ok(())
}
