//! Commands that need neither a kubelet nor an API server.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::support::{FakeHost, Outcome, numacast};

#[test]
fn crd_prints_the_file() {
    let file = include_str!("../../crds/topology.node.k8s.io_noderesourcetopologies.yaml");
    assert_eq!(numacast(&["crd"]).success(), file);
}

#[test]
fn the_printed_defaults_are_valid_and_change_nothing() {
    let defaults = numacast(&["config", "defaults"]).success().to_owned();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &defaults).unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(numacast(&["config", "check", path]).success(), format!("{path} is valid\n"));
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
    };
    let with_file = numacast(&["config", "show", "--config", path]);
    let without = numacast(&["config", "show"]);
    assert_eq!(values(with_file.success()), values(without.success()));
}

#[test]
fn show_says_where_each_value_came_from() {
    let outcome =
        numacast(&["config", "show", "--kubelet-dir", "/data/kubelet", "--set", "publish.events=false"]);
    let text = outcome.success();
    let line = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("{key}:"))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("kubelet.dir"), "kubelet.dir: /data/kubelet # flag --kubelet-dir");
    assert_eq!(line("kubelet.socket"), "kubelet.socket: /data/kubelet/pod-resources/kubelet.sock # derived");
    assert_eq!(line("publish.events"), "publish.events: false # flag --set");
    assert_eq!(line("scan.poll"), "scan.poll: 5s # default");
}

/// Exclusions of every kind.
const EXCLUSIONS: [&str; 6] = [
    "--set",
    r#"exclude.resources={"*": [hugepages-1Gi], worker: [cpu], other: [memory]}"#,
    "--set",
    "exclude.pods=[{namespace: kube-*}, {name: 'debug-[0-9]'}]",
    "--set",
    "exclude.outsideNamespace=team",
];

#[test]
fn the_schema_is_for_the_file_that_defaults_prints() {
    let schema: serde_json::Value = serde_json::from_str(numacast(&["config", "schema"]).success()).unwrap();
    let defaults: serde_json::Value =
        serde_saphyr::from_str(numacast(&["config", "defaults"]).success()).unwrap();
    let known = |schema: &serde_json::Value, name: &str| schema["properties"][name].clone();
    for (name, value) in defaults.as_object().unwrap() {
        let section = known(&schema, name);
        assert!(section.is_object(), "{name}");
        for (key, value) in value.as_object().into_iter().flatten() {
            let inner = known(&section, key);
            assert!(inner.is_object(), "{name}.{key}");
            let properties = inner["properties"].is_object();
            for key in value.as_object().into_iter().flatten().map(|(key, _)| key).filter(|_| properties) {
                assert!(known(&inner, key).is_object(), "{name}.{key}");
            }
        }
    }
    assert_eq!(schema["additionalProperties"], false);
}

fn show(node: &[&str], settings: &[&str]) -> Outcome {
    numacast(&[&["config", "show"], node, settings].concat())
}

fn comments(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with('#')).collect()
}

#[test]
fn show_says_what_is_excluded_on_the_node() {
    let outcome = show(&["--node-name", "worker"], &EXCLUSIONS);
    let text = outcome.success();
    assert_eq!(
        comments(text),
        [
            "# On worker:",
            "# - no zone lists cpu, hugepages-1Gi",
            "# - the resources of pods kube-*/* count as free",
            "# - the resources of pods */debug-[0-9] count as free",
            "# - the resources of pods outside the namespace team count as free",
        ]
    );
    let value = r#"exclude.resources: {"*":["hugepages-1Gi"],"other":["memory"],"worker":["cpu"]}"#;
    assert!(text.contains(value), "{text}");
    let unknown = show(&[], &EXCLUSIONS[..2]);
    let expected =
        ["# On a node that no list names (NODE_NAME is not set):", "# - no zone lists hugepages-1Gi"];
    assert_eq!(comments(unknown.success()), expected);
    let elsewhere = show(&["--node-name", "a"], &["--set", "exclude.resources={b: [cpu]}"]);
    assert_eq!(comments(elsewhere.success()), ["# On a:", "# - nothing is excluded"]);
    assert_eq!(elsewhere.stderr, "");
    assert_eq!(comments(show(&[], &[]).success()), Vec::<&str>::new());
}

#[test]
fn what_is_shown_of_exclusions_is_a_value_again() {
    let first = show(&["--node-name", "worker"], &EXCLUSIONS);
    let line = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}: "))).unwrap();
        line.split("  #").next().unwrap().trim().to_owned()
    };
    let pods = format!("exclude.pods={}", line(first.success(), "exclude.pods"));
    let resources = format!("exclude.resources={}", line(first.success(), "exclude.resources"));
    let second = show(&["--node-name", "worker"], &["--set", &pods, "--set", &resources]);
    assert_eq!(comments(second.success()), comments(first.success())[..4]);
}

#[test]
fn an_exclusion_is_valid_and_comes_with_a_warning() {
    let text =
        "exclude:\n  resources: {'*': [memory], worker: [example.com/nic]}\n  pods: [{name: a}, {name: b}]\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let outcome = numacast(&["config", "check", path]);
    assert_eq!(outcome.success(), format!("{path} is valid\n"));
    let starts = [
        "numacast: warning: every node: memory is excluded: under the policy single-numa-node",
        "numacast: warning: node worker: example.com/nic is excluded: the scheduler plugin does not check it",
        "numacast: warning: pods */a, */b are excluded: what they are allocated looks free",
    ];
    assert_eq!(outcome.stderr.lines().count(), starts.len(), "{}", outcome.stderr);
    for (line, start) in outcome.stderr.lines().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
    let on_a = numacast(&["config", "show", "--config", path, "--node-name", "a"]);
    assert_eq!(on_a.stderr.lines().count(), 2, "{}", on_a.stderr);
}

#[test]
fn explain_says_what_an_exclusion_does() {
    let outcome = numacast(&["config", "explain", "exclude.pods"]);
    let text = outcome.success().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.starts_with("exclude.pods Pods whose resources count as free"), "{text}");
    for words in [
        "Default: []",
        "(`TopologyAffinityError`)",
        "The fingerprint still includes these pods",
        "RTE's omits them",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("exclude.resources"), "{text}");
    let all = numacast(&["config", "explain"]);
    assert!(all.success().lines().all(|line| line.chars().count() <= 104), "{}", all.stdout);
    for line in numacast(&["config", "show"]).success().lines() {
        let key = line.split(':').next().unwrap();
        assert!(all.stdout.lines().any(|line| line == key), "{key}");
    }
    assert_eq!(
        numacast(&["config", "explain", "excludeList"]).error(),
        "numacast: unknown key `excludeList` in the command line; did you mean `exclude.resources`?"
    );
}

#[test]
fn the_help_of_a_flag_is_the_text_of_its_key() {
    let help = numacast(&["agent", "--help"]).success().split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "--poll <TIME> How often the node is read if nothing happens",
        "[key: scan.poll]",
        "--topology-manager-policy <POLICY> topologyManagerPolicy of kubelet.configOverrides",
        "--node-name <NAME> The node's name in the cluster [environment: NODE_NAME]",
    ] {
        assert!(help.contains(words), "{words}: {help}");
    }
}

/// Returns the log of an agent without a kubelet, up to the error about it. The agent listens before it looks
/// for the kubelet.
fn first_words(arguments: &[&str]) -> Vec<String> {
    let host = FakeHost::two_nodes();
    let socket = host.socket();
    // No server listens there; without a kubelet nothing is ever published.
    host.write("kubeconfig", KUBECONFIG);
    let mut agent = Command::new(env!("CARGO_BIN_EXE_numacast"))
        .args(["agent", "--node-name", "worker", "--metrics-address", "none", "--health-address", "none"])
        .arg("--host-root")
        .arg(host.root())
        .arg("--kubeconfig")
        .arg(host.path("kubeconfig"))
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
    let missing = format!("there is no kubelet socket at {}", socket.display());
    let mut until = Vec::new();
    for line in lines {
        let found = line.contains(&missing);
        until.push(line);
        if found {
            break;
        }
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(until.last().is_some_and(|line| line.contains(&missing)), "{until:#?}");
    until
}

fn count(lines: &[String], words: &str) -> usize {
    lines.iter().filter(|line| line.contains(words)).count()
}

#[test]
fn a_taken_port_is_a_warning_and_the_agent_goes_on() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (key, what) in [("metrics.address", "metrics are"), ("health.address", "health is")] {
        let lines = first_words(&["--set", &format!("{key}={address}")]);
        let warning = format!("{what} not served: cannot listen on {address}: ");
        assert_eq!(count(&lines, &warning), 1, "{lines:#?}");
        assert_eq!(count(&lines, &format!("; set `{key}` to another address, or to none")), 1, "{lines:#?}");
    }
}

#[test]
fn one_address_serves_metrics_and_health() {
    let any = "127.0.0.1:0";
    let lines =
        first_words(&["--set", &format!("metrics.address={any}"), "--set", &format!("health.address={any}")]);
    assert_eq!(
        count(&lines, "/metrics, /livez, /readyz and /startupz at http://127.0.0.1:"),
        1,
        "{lines:#?}"
    );
}

#[test]
fn a_certificate_that_is_missing_is_a_warning_and_may_come_later() {
    let mut arguments = vec!["--set", "metrics.address=127.0.0.1:0"];
    arguments.extend(["--set", "metrics.tls.certFile=/nowhere/c", "--set", "metrics.tls.keyFile=/nowhere/k"]);
    let lines = first_words(&arguments);
    let warning = "cannot read /nowhere/c: No such file or directory (os error 2); metrics are not served until \
                   this is fixed";
    assert_eq!(count(&lines, warning), 1, "{lines:#?}");
    assert_eq!(count(&lines, "/metrics at https://127.0.0.1:"), 1, "{lines:#?}");
}

const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "a",
"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "a", "user": {}}],
"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}"#;

#[test]
fn the_configuration_of_a_scheduler_is_printed_and_compared() {
    let printed = numacast(&["config", "scheduler", "--name", "numa"]).success().to_owned();
    assert!(printed.contains("schedulerName: numa\n"), "{printed}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let check = ["config", "scheduler", "--check", path];
    std::fs::write(file.path(), &printed).unwrap();
    assert_eq!(numacast(&check).success(), format!("{path} fits the configuration\n"));

    let other = numacast(&[&check[..], &["--set", "fingerprint.informerMode=shared"]].concat());
    assert_eq!((other.code, other.stdout.lines().count()), (Some(1), 1), "{other:?}");
    assert!(other.stdout.starts_with("profile numa: cache.informerMode is Dedicated"), "{other:?}");

    std::fs::write(file.path(), "kind: Pod\n").unwrap();
    let expected = format!("numacast: {path}: its kind is \"Pod\", not KubeSchedulerConfiguration");
    assert_eq!(numacast(&check).error_with(2), expected);
    let error = numacast(&["config", "scheduler", "--check", "/nonexistent"]);
    assert!(error.error_with(2).starts_with("numacast: cannot read /nonexistent: "), "{error:?}");
    let error = numacast(&["config", "scheduler", "--set", "consumer=kai"]);
    assert!(error.error().contains("set it to schedulerPlugins"), "{error:?}");
    assert!(numacast(&["config", "scheduler", "--name", "a b"]).error().contains("--name a b"));
}

#[test]
fn show_rejects_what_cannot_be_shown() {
    for (args, expected) in [
        (
            &["--watch", "-o", "json"][..],
            "numacast: --watch prints tables and pictures; `kubectl get node-res-topo --watch` prints the others",
        ),
        (&["--sort-by", "free-cpu", "-o", "yaml"], "numacast: --sort-by is only for tables and names"),
        (&["--sort-by", "free-cpu", "worker"], "numacast: --sort-by is only for tables and names"),
        (&["--sort-by", "pods"], "numacast: --sort-by pods and stranded need a --shape"),
        (&["--shape", "cpu=1", "-o", "json"], "numacast: --shape is only for tables and names"),
        (&["worker", "../pods"], "numacast: \"../pods\" cannot be the name of a node"),
    ] {
        assert_eq!(numacast(&[&["show"], args].concat()).error(), expected);
    }
    let shape = numacast(&["show", "--shape", "cpu=500m"]);
    let expected = "'cpu=500m' for '--shape <SHAPE>': cpu=500m is not a whole number";
    assert!(shape.code == Some(2) && shape.stderr.contains(expected), "{}", shape.stderr);
    let both = numacast(&["show", "worker", "-l", "a=b"]);
    assert_eq!(both.code, Some(2));
    let expected = "'[NODE]...' cannot be used with '--selector <SELECTOR>'";
    assert!(both.stderr.contains(expected), "{}", both.stderr);
}

#[test]
fn show_needs_a_kubeconfig_that_exists() {
    let outcome = numacast(&["show", "--kubeconfig", "/nonexistent"]);
    let expected = "numacast: no way to reach the API server: /nonexistent: ";
    assert!(outcome.error().starts_with(expected), "{}", outcome.error());
}

#[test]
fn snapshot_draws_a_recording() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/replays/machine-two-by-eight.json");
    let outcome = numacast(&["snapshot", "--replay", file, "-o", "picture"]);
    let text = outcome.success();
    assert!(text.starts_with("worker  best-effort, scope container, 2 zones\n\nnode-0   "), "{text}");
    assert!(text.contains("\n  CPUs 0-7, distances 10 21\n  cpu       ███"), "{text}");
    assert!(text.contains("\n0       default/"), "{text}");
}

#[test]
fn snapshot_draws_who_has_what_claims_hold() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/replays/dra-claims-read.json");
    let outcome = numacast(&["snapshot", "--replay", file, "-o", "picture"]);
    let text = outcome.success();
    assert!(text.contains("\nnode-0   db train web\n") && text.contains("\n  gpu.example.com ██"), "{text}");
    let table = text.lines().skip_while(|line| !line.starts_with("ZONES")).map(str::trim_end);
    let expected = [
        "ZONES   POD             CONTAINER      CPUS   MEMORY   DEVICES",
        "0       default/db      (claim gpus)   -      -        gpu.example.com gpu-0,gpu-1",
        "0       default/train   (claim cpus)   1-2    -        -",
        "0       default/web     (claim gpus)   -      -        gpu.example.com gpu-0,gpu-1",
    ];
    assert_eq!(table.collect::<Vec<_>>(), expected);
}
