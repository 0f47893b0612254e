//! Commands that need neither a kubelet nor an API server.

use crate::support::numacast;

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
