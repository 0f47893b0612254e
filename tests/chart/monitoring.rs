//! Alerts and dashboard: they only use exported series, and every alert fires when it should and only then.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::alerts::{CASES, Case};
use crate::exported::{KUBELET, TARGET, exported};
use crate::helm::{Helm, Objects, chart, items};
use crate::parts::{fetched, repository};
use crate::promql::query;

const ALL: [&str; 6] = [
    "--set",
    "podMonitor.enabled=true",
    "--set",
    "prometheusRule.enabled=true",
    "--set",
    "dashboard.enabled=true",
];

/// Returns the chart rendered with all monitoring enabled, and the path of promtool.
fn rendered() -> Result<Option<(Objects, PathBuf)>> {
    let (Some(helm), Some(dir)) = (Helm::for_test()?, fetched(&["promtool"])?) else { return Ok(None) };
    Ok(Some((helm.render(&ALL)?, dir.join("promtool"))))
}

fn rules(objects: &Objects) -> Result<&Value> {
    let rule = objects.all("PrometheusRule").next().context("no PrometheusRule")?;
    Ok(&rule["spec"])
}

/// Returns every alert of a `spec`.
fn alerts(spec: &Value) -> impl Iterator<Item = &Value> {
    items(&spec["groups"]).flat_map(|group| items(&group["rules"]))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn dashboard(objects: &Objects) -> Result<Value> {
    let map = objects.all("ConfigMap").find(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1");
    let data = map.context("no dashboard")?["data"].as_object().context("no data")?;
    ensure!(data.len() == 1, "{:?}", data.keys());
    let text = data.values().next().and_then(Value::as_str).context("no text")?;
    Ok(serde_json::from_str(text)?)
}

/// Returns every expression of the dashboard's panels, with the panel's title.
fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for panel in items(&dashboard["panels"]) {
        for target in items(&panel["targets"]) {
            found.push((text(panel, "title").to_owned(), text(target, "expr").to_owned()));
        }
    }
    found
}

fn promtool(promtool: &Path, dir: &Path, words: &[&str]) -> Result<()> {
    let output =
        Command::new(promtool).args(words).current_dir(dir).output().context("cannot run promtool")?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "promtool {}: {text}", words.join(" "));
    Ok(())
}

/// Checks that an expression only uses series and labels that an agent, a controller or the kubelet exports.
fn only_what_is_exported(expression: &str) -> Result<()> {
    let known = exported()?;
    let query = query(expression);
    ensure!(!query.selectors.is_empty(), "it queries nothing");
    let mut labels: BTreeSet<&str> = TARGET.into();
    for selector in &query.selectors {
        let own = known.get(selector.metric.as_str());
        let own = own.with_context(|| format!("nobody exports {}", selector.metric))?;
        for label in &selector.labels {
            let there = own.contains(label) || TARGET.contains(&label.as_str());
            ensure!(there, "{} has no label {label}", selector.metric);
        }
        let job = selector.labels.contains("job") && selector.labels.contains("namespace");
        ensure!(job || selector.metric == KUBELET, "{} of every release is taken together", selector.metric);
        labels.extend(own.iter().map(String::as_str));
    }
    for label in &query.grouped {
        ensure!(labels.contains(label.as_str()), "none of them has a label {label}");
    }
    Ok(())
}

#[test]
fn alerts_use_what_is_exported() -> Result<()> {
    let Some((objects, _)) = rendered()? else { return Ok(()) };
    let rules = rules(&objects)?;
    ensure!(alerts(rules).count() >= 20, "only {} alerts", alerts(rules).count());
    for alert in alerts(rules) {
        only_what_is_exported(text(alert, "expr")).with_context(|| text(alert, "alert").to_owned())?;
    }
    Ok(())
}

#[test]
fn panels_use_what_is_exported() -> Result<()> {
    let Some((objects, _)) = rendered()? else { return Ok(()) };
    let dashboard = dashboard(&objects)?;
    let all = expressions(&dashboard);
    ensure!(all.len() >= 40, "only {} expressions", all.len());
    for (title, expression) in &all {
        only_what_is_exported(expression).with_context(|| format!("panel {title}: {expression}"))?;
    }
    let variables: Vec<&str> =
        items(&dashboard["templating"]["list"]).map(|item| text(item, "name")).collect();
    ensure!(variables == ["datasource", "node"], "{variables:?}");
    let query = text(&dashboard["templating"]["list"][1]["query"], "query");
    let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(", node)"));
    only_what_is_exported(inner.with_context(|| query.to_owned())?)
}

/// The check detects series and labels that are not exported.
#[test]
fn what_is_not_exported_is_noticed() {
    let error_of =
        |expression: &str| only_what_is_exported(expression).expect_err("it is rejected").to_string();
    let of = r#"{job="a", namespace="n"}"#;
    assert!(only_what_is_exported(&format!("sum by (zone) (numacast_zone_resources{of})")).is_ok());
    assert!(error_of(&format!("numacast_scans{of}")).contains("nobody exports numacast_scans"));
    assert!(error_of(&format!("numacast_scan_duration_seconds{of}")).contains("nobody exports"));
    assert!(
        error_of(r#"numacast_fingerprint_withheld{job="a", namespace="n", zone="x"}"#)
            .contains("no label zone")
    );
    assert!(error_of(&format!("sum by (zone) (numacast_fingerprint_withheld{of})")).contains("label zone"));
    assert!(error_of(&format!("sum by (zones) (numacast_zone_resources{of})")).contains("label zones"));
    assert!(error_of("numacast_fingerprint_withheld").contains("every release"));
    assert!(error_of("1 > 0").contains("nothing"));
}

/// Prometheus can parse every expression, with Grafana's variables replaced.
#[test]
fn prometheus_can_read_it() -> Result<()> {
    let Some((objects, program)) = rendered()? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let plain = |expression: &str| expression.replace("$__rate_interval", "5m").replace("$node", "w1");
    let panels: Vec<Value> = expressions(&dashboard(&objects)?)
        .iter()
        .enumerate()
        .map(|(number, (_, expression))| json!({"record": format!("panel:{number}"), "expr": plain(expression)}))
        .collect();
    let panels = json!({"groups": [{"name": "panels", "rules": panels}]});
    std::fs::write(dir.path().join("panels.yaml"), panels.to_string())?;
    std::fs::write(dir.path().join("rules.yaml"), rules(&objects)?.to_string())?;
    std::fs::copy(chart().join("files/rules.yaml"), dir.path().join("plain.yaml"))?;
    for file in ["rules.yaml", "plain.yaml", "panels.yaml"] {
        promtool(&program, dir.path(), &["check", "rules", "--lint=all", "--lint-fatal", file])?;
    }
    Ok(())
}

/// Returns the part of a promtool test for one case.
fn unit(case: &Case, severity: &str, fires: bool) -> Value {
    let series = if fires { case.fires } else { case.quiet };
    let input: Vec<Value> = series
        .iter()
        .map(|(series, values)| json!({"series": case.with_targets(series), "values": values}))
        .collect();
    let mut labels: BTreeMap<String, String> = case.labels();
    labels.insert("severity".into(), severity.into());
    let alert = |at: u32, expected: Vec<Value>| json!({"eval_time": format!("{at}m"), "alertname": case.alert, "exp_alerts": expected});
    let mut checks = vec![alert(case.at, if fires { vec![json!({"exp_labels": labels})] } else { vec![] })];
    if let Some(before) = case.not_at.filter(|_| fires) {
        checks.push(alert(before, vec![]));
    }
    json!({"name": format!("{}, fires: {fires}", case.alert), "interval": "1m", "input_series": input,
        "alert_rule_test": checks})
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() -> Result<()> {
    let Some((objects, program)) = rendered()? else { return Ok(()) };
    let mut rules = rules(&objects)?.clone();
    let mut severities = BTreeMap::new();
    for group in rules["groups"].as_array_mut().context("no groups")? {
        for rule in group["rules"].as_array_mut().context("no rules")? {
            severities.insert(text(rule, "alert").to_owned(), text(&rule["labels"], "severity").to_owned());
            // The test would have to repeat annotations verbatim; they have a test of their own.
            rule.as_object_mut().context("no rule")?.remove("annotations");
        }
    }
    let tested: BTreeSet<&str> = CASES.iter().map(|case| case.alert).collect();
    let there: BTreeSet<&str> = severities.keys().map(String::as_str).collect();
    assert_eq!(tested, there, "cases in alerts.rs, and alerts");
    let mut tests = Vec::new();
    for case in CASES {
        ensure!(!case.quiet.is_empty() && !case.fires.is_empty(), "{}: a case without series", case.alert);
        tests.extend([true, false].map(|fires| unit(case, &severities[case.alert], fires)));
    }
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("rules.yaml"), rules.to_string())?;
    let tests = json!({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests});
    std::fs::write(dir.path().join("tests.yaml"), tests.to_string())?;
    promtool(&program, dir.path(), &["test", "rules", "tests.yaml"])
}

/// Annotations only use labels that the alert has, and each alert has all required fields.
#[test]
fn every_alert_says_what_it_is_about() -> Result<()> {
    let Some((objects, _)) = rendered()? else { return Ok(()) };
    for alert in alerts(rules(&objects)?) {
        let name = text(alert, "alert");
        ensure!(
            ["critical", "warning", "info"].contains(&text(&alert["labels"], "severity")),
            "{name}: severity"
        );
        let case =
            CASES.iter().find(|case| case.alert == name).with_context(|| format!("no case of {name}"))?;
        let labels = case.labels();
        for key in ["summary", "description", "runbook_url"] {
            let words = text(&alert["annotations"], key);
            ensure!(!words.is_empty(), "{name} has no {key}");
            for part in words.split("$labels.").skip(1) {
                let label: String =
                    part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                ensure!(labels.contains_key(&label), "{name}: {key} names {label}, which it does not have");
            }
        }
        let link = text(&alert["annotations"], "runbook_url");
        let anchor = link.rsplit_once("/docs/troubleshooting.md#").context("another runbook")?.1;
        ensure!(anchor == name.to_lowercase(), "{name}: {link}");
    }
    Ok(())
}

/// Each alert has a heading in the document, which the alert links to, and there are no other headings.
#[test]
fn the_document_explains_every_alert() -> Result<()> {
    let rules: Value = serde_saphyr::from_str(&std::fs::read_to_string(chart().join("files/rules.yaml"))?)?;
    let document = std::fs::read_to_string(repository().join("docs/troubleshooting.md"))?;
    let headings = document.lines().filter_map(|line| line.strip_prefix("### Numacast"));
    let headings: Vec<String> = headings.map(|rest| format!("Numacast{rest}")).collect();
    let names: Vec<&str> = alerts(&rules).map(|alert| text(alert, "alert")).collect();
    assert_eq!(headings, names, "headings of docs/troubleshooting.md, and alerts in their order");
    for section in document.split("\n### ").skip(1).filter(|section| section.starts_with("Numacast")) {
        let (meaning, remedy) =
            section.split_once("**Do**").with_context(|| format!("no remedy in: {section}"))?;
        ensure!(meaning.split_whitespace().count() > 8 && remedy.split_whitespace().count() > 3, "{section}");
    }
    Ok(())
}

#[test]
fn alerts_can_be_changed() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let on = ["--set", "prometheusRule.enabled=true"];
    let changed = helm.render(
        &[
            &on[..],
            &["--set", "prometheusRule.alerts.NumacastSlowWrites.for=1h"],
            &["--set", "prometheusRule.alerts.NumacastSlowWrites.labels.severity=info"],
            &["--set", "prometheusRule.alerts.NumacastFindings.enabled=false"],
            &["--set", "prometheusRule.alertLabels.team=nodes"],
            &["--set", "prometheusRule.runbookUrl=https://wiki.example/numacast"],
            &["--set-string", "prometheusRule.agentSelector=app=\"a\""],
        ]
        .concat(),
    )?;
    let rules = rules(&changed)?;
    let one = |name: &str| alerts(rules).find(|alert| text(alert, "alert") == name);
    let slow = one("NumacastSlowWrites").context("it is gone")?;
    assert_eq!((text(slow, "for"), text(&slow["labels"], "severity")), ("1h", "info"));
    assert_eq!(text(&slow["labels"], "team"), "nodes");
    assert_eq!(text(&slow["annotations"], "runbook_url"), "https://wiki.example/numacast#numacastslowwrites");
    ensure!(!text(&slow["annotations"], "summary").is_empty(), "the rest is as it was");
    ensure!(text(slow, "expr").contains(r#"{app="a"}"#), "{}", text(slow, "expr"));
    ensure!(one("NumacastFindings").is_none(), "it is switched off");

    let unknown = [&on[..], &["--set", "prometheusRule.alerts.NumacastSlow.for=1h"]].concat();
    let error = helm.render(&unknown).expect_err("it is rejected").to_string();
    ensure!(error.contains("there is no such alert; there are NumacastAgentDown, "), "{error}");

    for (without, left) in [("controller", "numacast-agent"), ("agent", "numacast-controller")] {
        let alone = helm.render(&[&on[..], &["--set", &format!("{without}.enabled=false")]].concat())?;
        let groups = &self::rules(&alone)?["groups"];
        assert_eq!(items(groups).map(|group| text(group, "name")).collect::<Vec<_>>(), [left]);
    }
    Ok(())
}

#[test]
fn monitors_find_the_pods_and_name_them() -> Result<()> {
    let Some(helm) = Helm::for_test()? else { return Ok(()) };
    let values = [
        "podMonitor.enabled=true",
        "podMonitor.interval=15s",
        "podMonitor.labels.release=prometheus",
        "podMonitor.tlsConfig.serverName=metrics.example",
        "metricsTls.secretName=certs",
        "scheduler.enabled=true",
    ];
    let values: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
    let objects = helm.render(&values)?;
    ensure!(objects.all("PodMonitor").count() == 3);
    let ca = json!({"secret": {"name": "certs", "key": "ca.crt"}});
    let ours = json!({"ca": ca, "serverName": "metrics.example"});
    for (component, kind, tls) in [
        ("agent", "DaemonSet", &ours),
        ("controller", "Deployment", &ours),
        ("scheduler", "Deployment", &json!({"insecureSkipVerify": true})),
    ] {
        let name = format!("numacast-{component}");
        let monitor = objects.one("PodMonitor", &name)?;
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let wanted = &monitor["spec"]["selector"]["matchLabels"];
        let pod = &objects.one(kind, &name)?["spec"]["template"];
        for (label, value) in wanted.as_object().context("it selects everything")? {
            assert_eq!(&pod["metadata"]["labels"][label], value, "{name}: {label}");
        }
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        assert_eq!((text(endpoint, "port"), text(endpoint, "scheme")), ("metrics", "https"));
        let port = items(&pod["spec"]["containers"][0]["ports"]).any(|port| port["name"] == "metrics");
        ensure!(port, "{name}: no port metrics");
        assert_eq!((text(endpoint, "interval"), text(endpoint, "path")), ("15s", "/metrics"));
        assert_eq!(endpoint["tlsConfig"], *tls, "{name}");
        assert_eq!(endpoint["relabelings"][0], json!({"targetLabel": "job", "replacement": name}));
        assert_eq!(text(&endpoint["relabelings"][1], "targetLabel"), "node");
    }
    let rejected = |value: &str| -> Result<String> {
        Ok(helm
            .render(&[&values[..], &["--set", value]].concat())
            .err()
            .context(value.to_owned())?
            .to_string())
    };
    let error = rejected("metricsTls.verifyClients=true")?;
    ensure!(error.contains("podMonitor.tlsConfig: with metricsTls.verifyClients"), "{error}");
    for section in ["config", "controller.config"] {
        let error = rejected(&format!("{section}.metrics.address=none"))?;
        ensure!(
            error.contains(&format!("with {section}.metrics.address: none there is nothing to scrape")),
            "{error}"
        );
    }
    Ok(())
}
