//! Commands that need neither a kubelet nor an API server.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::support::{FakeHost, numacast};

#[test]
fn crd_prints_the_file() {
    let file = include_str!("../../crds/topology.node.k8s.io_noderesourcetopologies.yaml");
    assert_eq!(numacast(&["crd"]).success(), file);
}

#[test]
fn the_printed_defaults_are_a_right_configuration_that_changes_nothing() {
    let defaults = numacast(&["config", "defaults"]).success().to_owned();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &defaults).unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(numacast(&["config", "check", path]).success(), format!("{path} is right\n"));
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
        numacast(&["config", "show", "--kubelet-dir", "/data/kubelet", "--set", "zones.fillers=false"]);
    let text = outcome.success();
    let line = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("{key}:"))).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("kubelet.dir"), "kubelet.dir: /data/kubelet # flag --kubelet-dir");
    assert_eq!(line("kubelet.socket"), "kubelet.socket: /data/kubelet/pod-resources/kubelet.sock # derived");
    assert_eq!(line("zones.fillers"), "zones.fillers: false # flag --set");
    assert_eq!(line("scan.poll"), "scan.poll: 5s # default");
}

#[test]
fn help_names_every_verb() {
    let outcome = numacast(&["--help"]);
    for verb in ["agent", "snapshot", "demo", "crd", "config"] {
        assert!(outcome.success().contains(&format!("  {verb} ")), "{verb}");
    }
}

#[test]
fn a_taken_metrics_port_is_a_warning_and_the_agent_goes_on() {
    let host = FakeHost::two_nodes();
    let socket = host.socket();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    // Nobody answers there; nothing is ever published, for want of a kubelet.
    host.write("kubeconfig", KUBECONFIG);
    let mut agent = Command::new(env!("CARGO_BIN_EXE_numacast"))
        .args(["agent", "--node-name", "worker", "--metrics-address", &address, "--host-root"])
        .arg(host.root())
        .arg("--kubeconfig")
        .arg(host.path("kubeconfig"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(agent.stderr.take().unwrap()).lines().map_while(Result::ok);
    // The agent looks for the kubelet after it gave up the port.
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
    let warning = format!("metrics are not served: cannot listen on {address}: ");
    assert_eq!(until.iter().filter(|line| line.contains(&warning)).count(), 1, "{until:#?}");
}

const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "a",
"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "a", "user": {}}],
"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}"#;
