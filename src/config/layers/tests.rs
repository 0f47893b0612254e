use super::*;
use crate::config::DraSource::{Auto, Off};
use crate::config::Endpoint;

fn file(yaml: &str) -> Result<Effective, Vec<String>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), yaml).unwrap();
    let place = file.path().display().to_string();
    let plain = |errors: Vec<ConfigError>| {
        errors.iter().map(|error| error.to_string().replace(&place, "FILE")).collect()
    };
    Layers::default().file(file.path()).finish().map_err(plain)
}

fn flag() -> Origin {
    Origin::Flag("--set".to_owned())
}

/// Sets one key as on a command line.
fn typed(key: &str, text: &str) -> Result<Config, String> {
    let effective = Layers::default().typed(key, text, flag()).finish();
    let explain =
        |errors: Vec<ConfigError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    effective.map(|effective| effective.config).map_err(explain)
}

#[test]
fn the_later_layer_wins_and_every_value_has_its_origin() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "kubelet: {address: from-file, dir: /k}\nscan: {poll: 1s}\n";
    std::fs::write(file.path(), text).unwrap();
    let effective = Layers::default()
        .file(file.path())
        .typed("kubelet.address", "from-env", Origin::Environment("NODE_ADDRESS"))
        .typed("scan.poll", "2s", Origin::Flag("--poll".into()))
        .finish()
        .unwrap();
    assert_eq!(effective.config.kubelet.address, Some("from-env".parse().unwrap()));
    assert_eq!(effective.config.scan.poll, "2s".parse().unwrap());
    let shown = |name: &str| {
        let found = effective.values.iter().find(|shown| shown.key.name == name).unwrap();
        (found.value.clone(), found.origin.to_string())
    };
    assert_eq!(shown("kubelet.address"), ("from-env".into(), "environment NODE_ADDRESS".into()));
    assert_eq!(shown("scan.poll"), ("2s".into(), "flag --poll".into()));
    assert_eq!(shown("kubelet.dir"), ("/k".into(), format!("file {}", file.path().display())));
    assert_eq!(shown("kubelet.socket"), ("/k/pod-resources/kubelet.sock".into(), "derived".into()));
    assert_eq!(shown("fingerprint.view"), ("scheduler".into(), "derived".into()));
    assert_eq!(shown("log.level"), ("info".into(), "default".into()));
}

#[test]
fn an_unknown_key_fails_with_a_suggestion() {
    let text = "kubelet: {sokcet: /x}\nnodeName: a\nconsumr: kai\npoll: 1s\nxyzzy: 1\n";
    assert_eq!(
        file(text).unwrap_err(),
        [
            "unknown key `consumr` in file FILE; did you mean `consumer`?",
            "unknown key `kubelet.sokcet` in file FILE; did you mean `kubelet.socket`?",
            "unknown key `nodeName` in file FILE; did you mean `--node-name`?",
            "unknown key `poll` in file FILE; did you mean `scan.poll`?",
            "unknown key `xyzzy` in file FILE; `numacast config defaults` lists the keys",
        ]
    );
}

#[test]
fn an_invalid_value_is_reported_with_its_key() {
    let errors = file("scan: {poll: soon}\nlog: {level: loud}\nhealth: 3\npublish: {ownerReference: 1}\n");
    assert_eq!(
        errors.unwrap_err(),
        [
            "`health` in file FILE: this is a section; its keys go below it",
            "`log.level` in file FILE: unknown variant `loud`, expected one of `error`, `warn`, `info`, `debug`, `trace`",
            "`publish.ownerReference` in file FILE: invalid type: integer `1`, expected a boolean",
            "`scan.poll` in file FILE: `soon` is not a duration such as 500ms, 10s or 5m",
        ]
    );
}

#[test]
fn metrics_are_switched_off_by_a_word_that_yaml_does_not_change() {
    let nowhere = file("metrics: {address: none}").unwrap().config.metrics.address;
    assert_eq!(nowhere, Endpoint::Nowhere);
    for (value, name) in [("off", "boolean `false`"), ("9742", "integer `9742`")] {
        let expected =
            "expected an IP address with a port, such as 127.0.0.1:9742, a port such as \":9742\", or none";
        assert_eq!(
            file(&format!("metrics: {{address: {value}}}")).unwrap_err(),
            [format!("`metrics.address` in file FILE: invalid type: {name}, {expected}")]
        );
    }
}

#[test]
fn claims_are_switched_off_with_and_without_quotes() {
    for (value, expected) in [("off", Off), ("'off'", Off), ("auto", Auto), ("on", Auto)] {
        let source = file(&format!("dra: {{source: {value}}}")).unwrap().config.dra.source;
        assert_eq!(source, expected, "{value}");
    }
    assert_eq!(
        file("dra: {source: none}").unwrap_err(),
        ["`dra.source` in file FILE: unknown variant `none`, expected `auto` or `off`"]
    );
}

#[test]
fn tls_needs_a_certificate_and_its_key_and_an_address_without_probes() {
    let tls = |tls: &str| file(&format!("metrics: {{tls: {{{tls}}}}}"));
    let missing = |field: &str| vec![format!("`metrics.tls` in file FILE: missing field `{field}`")];
    assert_eq!(tls("certFile: /c").unwrap_err(), missing("keyFile"));
    assert_eq!(tls("keyFile: /k").unwrap_err(), missing("certFile"));
    assert_eq!(tls("clientCaFile: /ca").unwrap_err(), missing("certFile"));
    assert!(tls("certFile: /c, keyFile: /k, clientCaFile: /ca").is_ok());
    let shared =
        |tls: &str| file(&format!("metrics: {{address: '[::1]:1', {tls}}}\nhealth: {{address: '[::1]:1'}}"));
    assert_eq!(
        shared("tls: {certFile: /c, keyFile: /k}").unwrap_err(),
        [
            "`health.address` in file FILE: health is plain HTTP and cannot share the address of metrics with TLS; \
              choose another one, or none"
        ]
    );
    assert!(shared("tls: null").is_ok());
}

#[test]
fn former_keys_of_the_kubelets_configuration_lead_to_theirs() {
    let errors =
        file("kubelet: {config: {source: none, file: /a, dir: /b, overrides: {cpuManagerPolicy: none}}}");
    let renamed = |old: &str, new: &str| {
        format!("unknown key `kubelet.config.{old}` in file FILE; did you mean `kubelet.{new}`?")
    };
    assert_eq!(
        errors.unwrap_err(),
        [
            renamed("dir", "configDir"),
            renamed("file", "configFile"),
            renamed("overrides", "configOverrides"),
            renamed("source", "configSource"),
        ]
    );
}

#[test]
fn names_of_nfd_and_rte_lead_to_ours() {
    let peers = "excludeList: {'*': [cpu]}\nresourceExclude: {a: [cpu]}\nwatch-namespace: x\n\
                 podExclude: [{namespacePattern: a, namePattern: b}]\nresourceMonitor.namespace: x\n";
    let mut suggested: Vec<(String, String)> = Vec::new();
    for error in file(peers).unwrap_err() {
        let (start, suggestion) = error.split_once("; did you mean ").unwrap();
        let key = start.strip_prefix("unknown key ").unwrap().split(' ').next().unwrap();
        suggested.push((key.to_owned(), suggestion.to_owned()));
    }
    suggested.sort();
    let expected = [
        ("`excludeList`", "`exclude.resources`?"),
        ("`podExclude`", "`exclude.pods`?"),
        ("`resourceExclude`", "`exclude.resources`?"),
        ("`resourceMonitor.namespace`", "`exclude.outsideNamespace`?"),
        ("`watch-namespace`", "`exclude.outsideNamespace`?"),
    ];
    assert_eq!(suggested, expected.map(|(key, ours)| (key.to_owned(), ours.to_owned())));
}

#[test]
fn maps_and_lists_are_replaced_as_a_whole() {
    let place = tempfile::NamedTempFile::new().unwrap();
    let text = "exclude:\n  resources: {'*': [cpu], a: [memory]}\n  pods:\n  - name: x-*\n";
    std::fs::write(place.path(), text).unwrap();
    let layers = || Layers::default().file(place.path());
    let exclude = layers().finish().unwrap().config.exclude;
    assert_eq!(exclude.resources_of("a").collect::<Vec<_>>(), ["cpu", "memory"]);
    assert_eq!(exclude.pods[0].to_string(), "*/x-*");
    let effective = layers().typed("exclude.resources", r#"{"b": ["memory"]}"#, flag()).finish().unwrap();
    let exclude = &effective.config.exclude;
    assert_eq!(exclude.resources.keys().collect::<Vec<_>>(), ["b"], "replaced, not merged");
    assert_eq!(exclude.pods.len(), 1);
    let shown = effective.values.iter().find(|shown| shown.key.name == "exclude.resources").unwrap();
    assert_eq!((shown.value.to_string(), &shown.origin), (r#"{"b":["memory"]}"#.to_owned(), &flag()));
    let cleared = layers().typed("exclude.pods", "[]", flag()).finish().unwrap();
    assert!(cleared.config.exclude.pods.is_empty());
}

#[test]
fn a_flag_can_set_one_entry_of_a_map() {
    let layers = Layers::default().text("metrics: {tls: {certFile: /a, keyFile: /b}}", Path::new("f"));
    let tls = layers.typed("metrics.tls.keyFile", "/c", flag()).finish().unwrap().config.metrics.tls.unwrap();
    assert_eq!((tls.cert_file, tls.key_file), ("/a".into(), "/c".into()));
    let error = typed("kubelet.configOverrides.topologyManagerPolicy", "restricted").unwrap_err();
    let start = "`kubelet.configOverrides` in flag --set: consumers misread a policy";
    assert!(error.starts_with(start), "{error}");
    let options = "kubelet.configOverrides.topologyManagerPolicyOptions";
    let overrides = typed(options, "{max-allowable-numa-nodes: '16'}").unwrap().kubelet.config_overrides;
    assert_eq!(overrides.topology_manager_policy_options["max-allowable-numa-nodes"], "16");
    assert!(typed("metrics.tls.cert", "/c").unwrap_err().contains("unknown field `cert`"));
    let list = Layers::default().text("exclude: {pods: [{name: x}]}", Path::new("f"));
    let errors = list.typed("exclude.pods.name", "y", flag()).finish().unwrap_err();
    assert!(errors[0].to_string().starts_with("unknown key `exclude.pods.name` in flag --set"), "{errors:?}");
}

#[test]
fn a_typed_value_has_the_type_of_its_key() {
    assert!(!typed("publish.events", "false").unwrap().publish.events);
    assert_eq!(typed("proxy.group", "2000").unwrap().proxy.group, Some(2000));
    assert_eq!(typed("controller.garbage.maxPercent", "50").unwrap().controller.garbage.max_percent, 50);
    assert_eq!(typed("controller.lease", "true").unwrap().controller.lease, "true");
    assert_eq!(typed("controller.lease", "{a").unwrap().controller.lease, "{a");
    for (key, text, start) in [
        ("exclude.pods", "[{name: x}", "this is not valid YAML: "),
        ("exclude.resources", "cpu", "invalid type: string"),
        ("exclude.pods", "[{name: 'x['}]", "`x[` is not a pattern: a class"),
    ] {
        let error = typed(key, text).unwrap_err();
        assert!(error.starts_with(&format!("`{key}` in flag --set: {start}")), "{error}");
    }
}

#[test]
fn an_empty_file_sets_nothing_and_an_invalid_one_is_an_error() {
    for text in ["# nothing\n", "log:\n", "exclude:\n  pods:\n  resources:\n"] {
        assert_eq!(file(text).unwrap().config, Config::default());
    }
    let errors = file("exclude: {resources: {*: [cpu]}}\n").unwrap_err();
    assert!(errors[0].ends_with("; a `*` needs quotes: \"*\""), "{errors:?}");
    let errors = file("- a\n").unwrap_err();
    assert!(errors[0].starts_with("the configuration FILE is not a YAML mapping"), "{errors:?}");
    let errors = Layers::default().file(Path::new("/nowhere.yaml")).finish().unwrap_err();
    assert!(errors[0].to_string().starts_with("cannot read the configuration /nowhere.yaml: No such file"));
}
