//! Plants what is wrong on described machines with a simulated kubelet, and mends it as the finding says.
//! `tests/real/node_checks.rs` does the same with real kubelets.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use numacast_sim::kubelet::{Call, Fault, Options, PodSpec, SimKubelet};
use numacast_sim::machine::{Device, MachineSpec};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::config::{Config, Period};
use crate::inspect::Mend;

const NIC: &str = "example.com/nic";

fn machine(name: &str) -> MachineSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/machines/{name}.yaml"));
    MachineSpec::read(&path).unwrap()
}

/// A described machine with a simulated kubelet.
struct Host {
    dir: TempDir,
    machine: MachineSpec,
    kubelet: SimKubelet,
    config: Config,
}

impl Host {
    fn on(name: &str) -> Self {
        Self::of(machine(name))
    }

    fn of(machine: MachineSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        machine.write_tree(dir.path()).unwrap();
        let root = dir.path().join("kubelet");
        let mut config = Config { node_name: "worker".into(), ..Config::default() };
        config.host.sys = Some(dir.path().join("sys"));
        config.host.proc = Some(dir.path().join("proc"));
        config.kubelet.dir = Some(root.clone());
        let kubelet = start(&machine, &root);
        Self { dir, machine, kubelet, config }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn write(&self, below: &str, text: &str) {
        let path = self.path(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    async fn report(&self) -> Report {
        check_node(&self.config.agent_settings(), None).await
    }

    async fn found(&self) -> Vec<&'static str> {
        self.report().await.findings.iter().map(|finding| finding.check).collect()
    }

    /// Returns the only finding of a check.
    async fn finding(&self, check: &str) -> Finding {
        let findings = self.report().await.findings;
        let mut of_check = findings.iter().filter(|finding| finding.check == check);
        let (first, second) = (of_check.next(), of_check.next());
        assert!(first.is_some() && second.is_none(), "{check}: {findings:#?}");
        let finding = first.unwrap().clone();
        assert_eq!(finding.place, "Node worker");
        finding
    }

    fn kubelet_config(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.path("kubelet/config.yaml")).unwrap()).unwrap()
    }

    /// Changes the kubelet's configuration file, later than the kubelet started.
    fn configure(&self, change: impl FnOnce(&mut Value)) {
        let mut config = self.kubelet_config();
        change(&mut config);
        let path = self.path("kubelet/config.yaml");
        std::fs::write(&path, config.to_string()).unwrap();
        let later = path.metadata().unwrap().modified().unwrap() + Duration::from_secs(60);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
    }

    fn set(&self, key: &str, value: Value) {
        self.configure(|config| config[key] = value);
    }

    /// Does what a finding says.
    fn mend(&self, finding: &Finding) {
        match &finding.mend {
            Mend::Run(command) => self.run(command),
            Mend::Do(text) => self.change(text),
        }
    }

    /// Runs a command. The node's `systemctl` does nothing.
    fn run(&self, command: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        self.write("bin/systemctl", "#!/bin/sh\necho \"$@\" >> \"$0.log\"\n");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.path("bin/systemctl"), executable).unwrap();
        let path = format!("{}:/usr/bin:/bin:/sbin:/usr/sbin", self.path("bin").display());
        let output = Command::new("sh").args(["-ec", command]).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// Changes the kubelet's configuration as a text says.
    fn change(&self, text: &str) {
        if let Some((_, rest)) = text.split_once("et `") {
            let setting = rest.split('`').next().unwrap();
            let setting: Value = serde_saphyr::from_str(setting).unwrap();
            return self.configure(|config| {
                let keys = setting.as_object().unwrap().clone();
                config.as_object_mut().unwrap().extend(keys);
            });
        }
        let words: Vec<&str> = text.split(' ').collect();
        assert_eq!((words[0], words[2]), ("Remove", "from"), "{text}");
        self.configure(|config| drop(config[words[3]].as_object_mut().unwrap().remove(words[1])));
    }

    /// Starts the kubelet anew, with the configuration in its file.
    fn restart(&mut self) {
        self.kubelet.stop();
        self.machine.kubelet = self.kubelet_config().as_object().unwrap().clone();
        self.kubelet = start(&self.machine, &self.path("kubelet"));
    }
}

fn start(machine: &MachineSpec, root: &Path) -> SimKubelet {
    SimKubelet::start(machine, root, Options { limited: false, ..Options::default() }).unwrap()
}

/// What is known to be unusual about the described machines.
fn unusual(name: &str) -> &'static [&'static str] {
    match name {
        "arm64-pages" => &["HugePagesOnOneNode"],
        "beyond-63" => &["DevicesOnUnknownNodes", "NumaNodesNotPublished"],
        "hotplug" | "power9" => &["CpusOffline"],
        "memory-less" | "memory-less-bare" => &["NumaNodeWithoutMemory"],
        "power9-gpus" => &["DevicesOnUnknownNodes", "NumaNodesNotPublished"],
        _ => &[],
    }
}

#[tokio::test]
async fn nothing_is_found_on_nodes_that_are_well() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines");
    let (mut wrong, mut well) = (Vec::new(), 0);
    for (name, machine) in MachineSpec::read_all(&dir).unwrap() {
        let host = Host::of(machine);
        host.kubelet.start_pod(PodSpec::guaranteed("a", 1, 1 << 30)).await.unwrap();
        let report = host.report().await;
        let mut found: Vec<&str> = report.findings.iter().map(|finding| finding.check).collect();
        found.sort_unstable();
        well += usize::from(found.is_empty());
        if found != unusual(&name) || !report.unchecked.is_empty() {
            wrong.push(format!("{name}: {report:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(well > 15, "{well}");
}

/// As in the agent's pod by default.
#[tokio::test]
async fn checkpoints_that_are_not_mounted_are_unchecked() {
    let mut host = Host::on("two-by-eight");
    let kubelet = &mut host.config.kubelet;
    kubelet.socket = Some(host.kubelet.socket());
    kubelet.device_plugins_dir = Some(host.kubelet.root().join("device-plugins"));
    kubelet.config_file = Some(host.kubelet.root().join("config.yaml"));
    kubelet.dir = Some(host.kubelet.root().join("nowhere"));
    let report = host.report().await;
    assert_eq!(report.findings, []);
    assert_eq!(report.unchecked.len(), 1);
    assert_eq!(report.unchecked[0].what, "the checkpoints of the kubelet's managers");
}

#[tokio::test]
async fn a_recording_tells_the_same() {
    let host = Host::on("power9");
    host.set("reservedSystemCPUs", json!("0-3,92"));
    let recording = Recording::take(&host.config.agent_settings(), None).await;
    let file = host.path("recording.json");
    recording.write(&file).unwrap();
    let report = check_recording(&Recording::read(&file).unwrap());
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.check).collect();
    assert_eq!(found, ["ReservedCpusOffline", "CpusOffline"]);
    assert_eq!(report.unchecked, []);
    let live = host.report().await.findings;
    assert!(report.findings.iter().all(|finding| live.iter().any(|it| it.what == finding.what)), "{live:#?}");
}

#[test]
fn every_check_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<&str> = checks().iter().map(|check| check.name).collect();
    assert_eq!(names.len(), checks().len());
}

#[test]
fn the_document_lists_every_check() {
    crate::generated::section("docs/doctor.md", "checks of a node", &crate::inspect::doctor::table(checks()));
}

// ---- the socket

#[tokio::test]
async fn a_kubelet_that_is_not_there_is_found() {
    let host = Host::on("two-by-eight");
    host.kubelet.stop();
    let missing = host.finding("SocketMissing").await;
    assert_eq!(missing.mend, Mend::Run("systemctl start kubelet".to_owned()));
    host.mend(&missing);
    assert_eq!(std::fs::read_to_string(host.path("bin/systemctl.log")).unwrap(), "start kubelet\n");
    host.kubelet.listen_again().unwrap();
    assert_eq!(host.found().await, [""; 0]);

    host.kubelet.kill();
    assert_eq!(host.finding("KubeletDown").await.mend, Mend::Run("systemctl restart kubelet".to_owned()));
    host.kubelet.listen_again().unwrap();
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn the_root_directory_of_another_kubelet_is_named() {
    let host = Host::on("two-by-eight");
    host.kubelet.stop();
    host.write("proc/30/cmdline", "kubelet\0--root-dir=/data/kubelet\0");
    let mend = Mend::Do("Set `kubelet.dir: /data/kubelet`, the kubelet's --root-dir.".to_owned());
    assert_eq!(host.finding("SocketMissing").await.mend, mend);
}

#[tokio::test]
async fn what_is_not_the_kubelets_socket_is_found() {
    let mut host = Host::on("two-by-eight");
    host.kubelet.stop();
    host.write("kubelet/pod-resources/kubelet.sock", "");
    let finding = host.finding("SocketInvalid").await;
    assert!(finding.what.ends_with("it is not a socket"), "{}", finding.what);
    host.mend(&finding);
    assert!(!host.kubelet.socket().exists());
    host.kubelet.listen_again().unwrap();
    assert_eq!(host.found().await, [""; 0]);

    let registration = host.path("kubelet/device-plugins/other.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&registration).unwrap();
    host.config.kubelet.socket = Some(registration);
    host.config.kubelet.timeout = "200ms".parse::<Period>().unwrap();
    let finding = host.finding("KubeletSilent").await;
    assert!(finding.what.contains("no gRPC server responds"), "{}", finding.what);
}

#[tokio::test]
async fn a_kubelet_that_responds_with_errors_is_found() {
    let mut host = Host::on("two-by-eight");
    let unimplemented = Fault::Status(tonic::Code::Unimplemented, "unknown method".into());
    host.kubelet.fail_next(Call::Allocatable, 9, &unimplemented);
    let found = host.finding("KubeletTooOld").await;
    assert!(found.what.contains("does not serve GetAllocatableResources"), "{}", found.what);
    host.kubelet.clear_faults();
    for call in [Call::List, Call::Allocatable] {
        host.kubelet.fail_next(call, 99, &Fault::rate_limited());
    }
    assert_eq!(host.finding("KubeletOverloaded").await.severity, crate::inspect::Severity::Warning);
    host.kubelet.clear_faults();
    host.kubelet.fail_next(Call::List, 9, &Fault::Status(tonic::Code::Internal, "broken".into()));
    assert!(host.finding("KubeletError").await.what.ends_with("broken"));
    host.kubelet.clear_faults();
    host.config.kubelet.timeout = "200ms".parse::<Period>().unwrap();
    host.kubelet.fail_next(Call::List, 9, &Fault::Hang);
    host.finding("KubeletSilent").await;
    host.kubelet.clear_faults();
    host.config.kubelet.timeout = "10s".parse::<Period>().unwrap();
    assert_eq!(host.found().await, [""; 0]);
}

// ---- the configuration

/// Sets keys of the kubelet's configuration that is not in effect yet, expects one finding, and mends it.
async fn planted(machine: &str, keys: Value, check: &str, what: &str) -> Finding {
    let host = Host::on(machine);
    host.configure(|config| config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone()));
    let finding = host.finding(check).await;
    assert_eq!(finding.what, what);
    host.mend(&finding);
    let mut found = host.found().await;
    // The checkpoint is that of the running kubelet, with the former reservations.
    if found[0] == "MemoryCheckpointOutdated" {
        host.mend(&host.finding(found[0]).await);
        found = host.found().await;
    }
    assert_eq!(found, ["ConfigNotInEffect"], "{finding:#?}");
    finding
}

#[tokio::test]
async fn a_configuration_that_cannot_be_read_is_found() {
    let host = Host::on("two-by-eight");
    let file = host.path("kubelet/config.yaml");
    std::fs::rename(&file, host.path("elsewhere")).unwrap();
    let finding = host.finding("ConfigUnreadable").await;
    assert!(finding.what.contains("config.yaml: No such file"), "{}", finding.what);
    std::fs::rename(host.path("elsewhere"), &file).unwrap();
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn a_configuration_that_is_not_to_be_read_is_unchecked() {
    let mut host = Host::on("two-by-eight");
    host.config.kubelet.config_source = crate::agent::ConfigSource::None;
    let report = host.report().await;
    assert_eq!(report.findings, []);
    assert_eq!(report.unchecked[0].what, "the kubelet's configuration");
    assert_eq!(report.unchecked.len(), 1);
}

#[tokio::test]
async fn a_changed_configuration_is_found_until_the_kubelet_restarts() {
    let host = Host::on("two-by-eight");
    host.set("systemReserved", json!({"memory": "924Mi", "cpu": "much"}));
    let finding = host.finding("ConfigKeyInvalid").await;
    assert!(finding.what.contains("systemReserved.cpu: `much` is not"), "{}", finding.what);
    host.set("systemReserved", json!({"memory": "924Mi"}));
    let finding = host.finding("ConfigNotInEffect").await;
    assert_eq!(finding.mend, Mend::Run("systemctl restart kubelet".to_owned()));
}

#[tokio::test]
async fn overrides_that_differ_are_found() {
    let mut host = Host::on("two-by-eight");
    host.config.kubelet.config_overrides.topology_manager_policy = Some("restricted".into());
    host.config.kubelet.config_overrides.topology_manager_scope = Some("container".into());
    let finding = host.finding("OverrideDiffers").await;
    let what = "`kubelet.configOverrides.topologyManagerPolicy` is restricted, the kubelet's topologyManagerPolicy is \
                best-effort";
    assert_eq!(finding.what, what);
    host.config.kubelet.config_overrides.topology_manager_policy = Some("best-effort".into());
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn policies_that_do_not_align_are_found() {
    let mut host = Host::on("two-by-eight");
    host.set("topologyManagerPolicy", json!("single-numa-node"));
    host.set("cpuManagerPolicy", json!("none"));
    host.set("memoryManagerPolicy", json!("None"));
    host.restart();
    let finding = host.finding("CpuManagerNotStatic").await;
    assert_eq!(finding.what, "topologyManagerPolicy is single-numa-node, but cpuManagerPolicy is none");
    host.mend(&finding);
    host.mend(&host.finding("MemoryManagerNotStatic").await);
    // As the text says, the checkpoint is deleted.
    host.finding("CheckpointOfOtherPolicy").await;
    host.restart();
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn unknown_policies_are_found() {
    let what = "topologyManagerPolicy is `single-numa`, but must be one of none, best-effort, restricted, single-numa-node";
    let finding =
        planted("two-by-eight", json!({"topologyManagerPolicy": "single-numa"}), "PolicyUnknown", what).await;
    assert!(
        finding.mend.text().starts_with("Set `topologyManagerPolicy: single-numa-node` in /"),
        "{finding:#?}"
    );
    let what = "topologyManagerScope is `Pod`, but must be one of container, pod";
    planted("two-by-eight", json!({"topologyManagerScope": "Pod"}), "PolicyUnknown", what).await;
}

#[tokio::test]
async fn invalid_options_are_found() {
    for (options, what) in [
        (json!({"full-pcpu-only": "true"}), "the CPU Manager has no option full-pcpu-only"),
        (
            json!({"full-pcpus-only": "yes"}),
            "the CPU Manager's option full-pcpus-only is `yes`, not true or false",
        ),
        (
            json!({"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"}),
            "the CPU Manager's options full-pcpus-only and distribute-cpus-across-cores exclude each other",
        ),
        (
            json!({"distribute-cpus-across-numa": "1", "prefer-align-cpus-by-uncorecache": "t"}),
            "the CPU Manager's options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa exclude each \
             other",
        ),
    ] {
        let keys = json!({"cpuManagerPolicyOptions": options, "reservedSystemCPUs": "0,4"});
        planted("two-by-eight", keys, "OptionsInvalid", what).await;
    }
    let keys = json!({"cpuManagerPolicyOptions": {"align-by-socket": "true"}, "topologyManagerPolicy": "single-numa-node"});
    let what = "the CPU Manager's option align-by-socket and topologyManagerPolicy single-numa-node exclude each other";
    planted("two-by-eight", keys, "OptionsInvalid", what).await;
    for (option, value, what) in [
        ("closest", "true", "the Topology Manager has no option closest"),
        (
            "prefer-closest-numa-nodes",
            "yes",
            "the Topology Manager's option prefer-closest-numa-nodes is `yes`, not true or false",
        ),
        (
            "max-allowable-numa-nodes",
            "4",
            "the Topology Manager's option max-allowable-numa-nodes is `4`, not a number of at least 8",
        ),
    ] {
        planted(
            "two-by-eight",
            json!({"topologyManagerPolicyOptions": {option: value}}),
            "OptionsInvalid",
            what,
        )
        .await;
    }
}

#[tokio::test]
async fn options_without_their_policy_are_found() {
    let mut host = Host::on("two-by-eight");
    host.set("cpuManagerPolicy", json!("none"));
    host.restart();
    host.set("cpuManagerPolicyOptions", json!({"full-pcpus-only": "true"}));
    let finding = host.finding("OptionsInvalid").await;
    assert_eq!(finding.what, "cpuManagerPolicyOptions are set, but cpuManagerPolicy is none");
    host.mend(&finding);
    assert_eq!(host.found().await, ["ConfigNotInEffect"]);
}

#[tokio::test]
async fn more_numa_nodes_than_the_kubelet_accepts_are_found() {
    let what = "topologyManagerPolicy is single-numa-node with at most 8 NUMA nodes, and the machine has 34";
    planted("gb200", json!({"topologyManagerPolicyOptions": {}}), "TooManyNumaNodes", what).await;
}

// ---- reserved memory

#[tokio::test]
async fn reserved_memory_that_a_kubelet_rejects_is_found() {
    let reserved = |entries: &[(u64, &str)]| {
        let entry = |(node, memory): &(u64, &str)| json!({"numaNode": node, "limits": {"memory": memory}});
        json!({"reservedMemory": entries.iter().map(entry).collect::<Vec<_>>()})
    };
    let what =
        "reservedMemory is 512Mi in all, but kubeReserved, systemReserved and evictionHard reserve 1Gi";
    let finding = planted("two-by-eight", reserved(&[(1, "512Mi")]), "ReservedMemorySum", what).await;
    let setting = "reservedMemory: [{numaNode: 0, limits: {memory: \"512Mi\"}}, {numaNode: 1, limits: {memory: \"512Mi\"}}]";
    assert!(finding.mend.text().contains(setting) || finding.mend.text().contains("1Gi"), "{finding:#?}");
    let what = "reservedMemory is 0 in all, but kubeReserved, systemReserved and evictionHard reserve 1Gi";
    planted("two-by-eight", reserved(&[]), "ReservedMemorySum", what).await;
    let what =
        "reservedMemory is 1Gi in all, but kubeReserved, systemReserved and evictionHard reserve 1124Mi";
    planted("two-by-eight", json!({"kubeReserved": {"memory": "100Mi"}}), "ReservedMemorySum", what).await;
    let what = "reservedMemory names NUMA node 2, and the machine has 0-1";
    planted("two-by-eight", reserved(&[(0, "512Mi"), (2, "512Mi")]), "ReservedMemoryNode", what).await;
    let mut keys = reserved(&[(0, "20Gi")]);
    keys["systemReserved"] = json!({"memory": "20380Mi"});
    let what = "reservedMemory is 20Gi on NUMA node 0, which has 13Gi beside its huge pages";
    planted("two-by-eight", keys, "ReservedMemoryExceeds", what).await;
    let pages = json!({"reservedMemory": [
        {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}},
    ]});
    let what = "reservedMemory has hugepages-2Mi, which kubeReserved and systemReserved cannot have, so the sums differ";
    planted("two-by-eight", pages, "ReservedMemorySum", what).await;
}

// ---- CPUs

#[tokio::test]
async fn reserved_cpus_that_do_not_fit_the_machine_are_found() {
    let what = "reservedSystemCPUs has CPUs 99, and only 0-15 are online";
    planted("two-by-eight", json!({"reservedSystemCPUs": "0,8,99"}), "ReservedCpusOffline", what).await;
    let what = "cpuManagerPolicy is static, but neither reservedSystemCPUs nor kubeReserved or systemReserved has CPUs";
    planted("two-by-eight", json!({"reservedSystemCPUs": ""}), "ReservedCpusMissing", what).await;
    let options = json!({"full-pcpus-only": "true"});
    let keys = json!({"reservedSystemCPUs": "0", "cpuManagerPolicyOptions": options});
    let host = Host::on("two-by-eight");
    let split = host.machine.cores(&host.machine.nodes[0])[0].clone();
    let what = format!("CPUs 0 are reserved, but not CPUs {} of the same cores", split[1]);
    planted("two-by-eight", keys, "ReservedCpusSplitCores", &what).await;
    let all = &host.machine.nodes[1].cpus;
    let what = format!("the reserved CPUs {all} are all CPUs of NUMA node 1");
    planted("two-by-eight", json!({"reservedSystemCPUs": all.to_string()}), "ReservedCpusTakeNode", &what)
        .await;
}

#[tokio::test]
async fn cores_of_different_sizes_are_found() {
    let host = Host::on("hybrid");
    host.set("cpuManagerPolicyOptions", json!({"full-pcpus-only": "true"}));
    let finding = host.finding("CoresUneven").await;
    assert_eq!(finding.what, "cores have 1 to 2 online CPUs, and the kubelet takes 1 for each core");
    host.set("cpuManagerPolicyOptions", json!({}));
    assert_eq!(host.found().await, ["ConfigNotInEffect"]);
}

#[tokio::test]
async fn isolated_cpus_that_are_shared_are_found() {
    let host = Host::on("two-by-eight");
    host.write("sys/devices/system/cpu/isolated", "4-5\n");
    let what = "the isolated CPUs 4-5 are in the kubelet's shared pool";
    assert_eq!(host.finding("IsolatedCpusShared").await.what, what);
    host.write("sys/devices/system/cpu/isolated", "\n");
    assert_eq!(host.found().await, [""; 0]);
}

// ---- checkpoints

/// Expects one finding, and that its command removes these checkpoints, which a new kubelet writes.
async fn outdated(host: &mut Host, check: &str, files: &[&str]) -> Finding {
    let finding = host.finding(check).await;
    host.kubelet.stop();
    host.mend(&finding);
    assert_eq!(
        std::fs::read_to_string(host.path("bin/systemctl.log")).unwrap(),
        "stop kubelet\nstart kubelet\n"
    );
    for file in files {
        assert!(!host.path("kubelet").join(file).exists(), "{file}");
    }
    host.restart();
    finding
}

#[tokio::test]
async fn invalid_checkpoints_are_found() {
    for (file, check) in [
        ("cpu_manager_state", "CheckpointInvalid"),
        ("memory_manager_state", "CheckpointInvalid"),
        ("device-plugins/kubelet_internal_checkpoint", "DeviceCheckpointInvalid"),
    ] {
        let mut host = Host::on("two-by-eight");
        host.write(&format!("kubelet/{file}"), "{\"policyName\":");
        outdated(&mut host, check, &[file]).await;
        assert_eq!(host.found().await, [""; 0]);
    }
}

#[tokio::test]
async fn checkpoints_of_another_policy_are_found() {
    let mut host = Host::on("two-by-eight");
    host.set("topologyManagerPolicy", json!("none"));
    host.set("cpuManagerPolicy", json!("none"));
    let finding = outdated(&mut host, "CheckpointOfOtherPolicy", &["cpu_manager_state"]).await;
    assert!(
        finding.what.starts_with("cpuManagerPolicy is none, but the CPU Manager's checkpoint /"),
        "{finding:#?}"
    );
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn reserved_cpus_that_pods_have_are_found() {
    let mut host = Host::on("two-by-eight");
    let allocations = host.kubelet.start_pod(PodSpec::guaranteed("a", 2, 1 << 30)).await.unwrap();
    let used = &allocations[0].cpus;
    host.set("reservedSystemCPUs", json!(format!("0,8,{used}")));
    let finding = outdated(&mut host, "CpuCheckpointOutdated", &["cpu_manager_state"]).await;
    assert!(
        finding.what.ends_with(&format!("CPUs {used} are reserved, and allocated to pods in the checkpoint")),
        "{}",
        finding.what
    );
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn memory_that_changed_while_the_kubelet_was_down_is_found() {
    let mut host = Host::on("drift");
    host.kubelet.stop();
    host.machine = host.machine.later().unwrap();
    host.machine.write_tree(host.dir.path()).unwrap();
    assert_eq!(host.found().await, ["MemoryCheckpointOutdated", "SocketMissing"]);
    let finding = outdated(&mut host, "MemoryCheckpointOutdated", &["memory_manager_state"]).await;
    let what = "it has 8Gi of memory on NUMA node 0, and the node has 8388568Ki";
    assert!(finding.what.ends_with(what), "{}", finding.what);
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn another_reservation_than_the_checkpoints_is_found() {
    let mut host = Host::on("two-by-eight");
    host.set("reservedMemory", json!([{"numaNode": 0, "limits": {"memory": "1Gi"}}]));
    let finding = outdated(&mut host, "MemoryCheckpointOutdated", &["memory_manager_state"]).await;
    let what = "it reserves 512Mi of memory on NUMA node 0, and reservedMemory 1Gi";
    assert!(finding.what.ends_with(what), "{}", finding.what);
    assert_eq!(host.found().await, [""; 0]);
}

// ---- the hardware

#[tokio::test]
async fn hardware_that_changed_since_the_kubelet_started_is_found() {
    let cases = [
        (
            "hotplug",
            "the kubelet offers CPUs 3, which are not online, the kubelet does not know CPUs 6-9; or",
        ),
        ("late-gpu-memory", "the kubelet does not know the memory of NUMA node 2,10; or"),
    ];
    for (name, what) in cases {
        let mut host = Host::on(name);
        host.machine = host.machine.later().unwrap();
        host.machine.write_tree(host.dir.path()).unwrap();
        let finding =
            outdated(&mut host, "HardwareChanged", &["cpu_manager_state", "memory_manager_state"]).await;
        assert!(finding.what.starts_with(what), "{}", finding.what);
        let left = host.found().await;
        assert!(left.iter().all(|check| *check == "CpusOffline"), "{name}: {left:?}");
    }
}

#[tokio::test]
async fn the_sysfs_of_another_machine_is_found() {
    let host = Host::on("two-by-eight");
    machine("no-numa").write_tree(host.dir.path()).unwrap();
    let finding = host.finding("HardwareChanged").await;
    assert!(finding.what.ends_with("or `host.sys` is not the host's /sys"), "{}", finding.what);
    assert!(finding.what.contains("memory of NUMA node 1, which does not exist"), "{}", finding.what);
}

#[tokio::test]
async fn hardware_that_cannot_be_read_is_found() {
    let mut host = Host::on("two-by-eight");
    host.config.host.sys = Some(host.path("nowhere"));
    assert!(host.finding("HardwareUnreadable").await.what.contains("is `host.sys` right?"));
    host.config.host.sys = Some(host.path("sys"));
    host.write("sys/devices/system/node/node1/distance", "21\n");
    assert!(
        host.finding("HardwareFileInvalid")
            .await
            .what
            .starts_with("sys/devices/system/node/node1/distance: ")
    );
    std::fs::remove_file(host.path("sys/devices/system/node/node1/distance")).unwrap();
    assert_eq!(host.finding("DistancesMissing").await.what, "NUMA nodes 1 have no distances");
}

#[tokio::test]
async fn offline_cpus_are_found() {
    let mut host = Host::on("power9");
    host.mend(&host.finding("CpusOffline").await);
    let offline = host.machine.nodes[1].offline_cpus.clone();
    for cpu in offline.iter() {
        let online = std::fs::read_to_string(host.path(&format!("sys/devices/system/cpu/cpu{cpu}/online")));
        assert_eq!(online.unwrap(), "1\n", "{cpu}");
    }
    // As the kernel would.
    let node = &mut host.machine.nodes[1];
    node.cpus.union_with(&std::mem::take(&mut node.offline_cpus));
    host.machine.write_tree(host.dir.path()).unwrap();
    outdated(&mut host, "HardwareChanged", &["cpu_manager_state"]).await;
    assert_eq!(host.found().await, [""; 0]);
}

// ---- huge pages

#[tokio::test]
async fn huge_pages_on_one_node_are_spread() {
    let mut host = Host::on("two-by-eight");
    for node in &mut host.machine.nodes {
        let pages = if node.id == 0 { 1025 } else { 0 };
        node.hugepages = [("2Mi".to_owned(), pages)].into();
    }
    host.machine.write_tree(host.dir.path()).unwrap();
    host.restart();
    let finding = host.finding("HugePagesOnOneNode").await;
    assert_eq!(finding.what, "all pages of hugepages-2Mi are on NUMA node 0");
    host.mend(&finding);
    // The kubelet does not know that yet.
    let found = host.finding("HugePagesChanged").await;
    assert_eq!(found.what, "NUMA node 0 has 1026Mi of hugepages-2Mi, and the kubelet knows of 2050Mi");
    for (node, pages) in [(0, 513), (1, 512)] {
        host.machine.nodes[node].hugepages = [("2Mi".to_owned(), pages)].into();
    }
    outdated(&mut host, "HugePagesChanged", &["memory_manager_state"]).await;
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn surplus_huge_pages_are_found() {
    let host = Host::on("two-by-eight");
    let pool = "sys/devices/system/node/node1/hugepages/hugepages-2048kB";
    host.write(&format!("{pool}/surplus_hugepages"), "3\n");
    let finding = host.finding("HugePagesSurplus").await;
    assert_eq!(finding.what, "3 pages of hugepages-2Mi on NUMA node 1 are above the pool");
    host.mend(&finding);
    let limit = host.path("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages");
    assert_eq!(std::fs::read_to_string(limit).unwrap(), "0\n");
}

// ---- the kernel, and devices

#[tokio::test]
async fn settings_of_the_kernel_are_found() {
    let host = Host::on("hbm");
    host.write("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n");
    let what = "the controllers of cgroup v2 are `cpu io memory`, without cpuset";
    assert_eq!(host.finding("CpusetMissing").await.what, what);
    host.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n");
    host.write("proc/sys/kernel/numa_balancing", "1\n");
    host.mend(&host.finding("NumaBalancing").await);
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn an_agent_without_inotify_is_found() {
    let host = Host::on("two-by-eight");
    let mut facts = NodeFacts::read(&host.config.agent_settings(), None).await;
    assert_eq!(facts.inotify_error, None);
    facts.inotify_error = Some("Too many open files (os error 24)".to_owned());
    assert_eq!(report(&facts).findings[0].check, "InotifyExhausted");
}

#[tokio::test]
async fn devices_that_cannot_be_aligned_are_found() {
    let host = Host::on("two-by-eight");
    let device = |numa| Device { id: "odd".into(), numa, unhealthy: false };
    host.kubelet.offer_devices("example.com/odd", &[device(vec![7])]);
    let what = "devices of example.com/odd are on NUMA node 7, which has no zone";
    assert_eq!(host.finding("DevicesOnUnknownNodes").await.what, what);
    host.kubelet.offer_devices("example.com/odd", &[device(vec![1])]);
    assert_eq!(host.found().await, [""; 0]);

    let address = "sys/bus/pci/devices/0000:17:00.0";
    host.write(&format!("{address}/class"), "0x020000\n");
    host.write(&format!("{address}/numa_node"), "-1\n");
    let what = "the NUMA node of the PCI devices 0000:17:00.0 is unknown";
    assert_eq!(host.finding("PciDevicesWithoutNode").await.what, what);
    host.write(&format!("{address}/numa_node"), "1\n");
    assert_eq!(host.found().await, [""; 0]);
}

#[tokio::test]
async fn plugins_without_healthy_devices_are_found() {
    let host = Host::on("two-by-eight");
    let checkpoint = std::fs::read(host.path("kubelet/device-plugins/kubelet_internal_checkpoint")).unwrap();
    let devices: Vec<String> =
        host.machine.devices[0].devices.iter().map(|device| device.id.clone()).collect();
    for device in &devices {
        host.kubelet.set_device_health(NIC, device, false);
    }
    // Unlike the simulated kubelet, a real one keeps the resource in its checkpoint.
    host.write(
        "kubelet/device-plugins/kubelet_internal_checkpoint",
        std::str::from_utf8(&checkpoint).unwrap(),
    );
    let what = format!("the device plugin of {NIC} has no healthy device, or does not run");
    assert_eq!(host.finding("PluginWithoutDevices").await.what, what);
    for device in &devices {
        host.kubelet.set_device_health(NIC, device, true);
    }
    assert_eq!(host.found().await, [""; 0]);
}

/// Whatever is in a recording, the checks end with sentences.
#[test]
fn unusual_recordings_are_checked() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replays");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "json")) {
        for finding in check_recording(&Recording::read(&file).unwrap()).findings {
            assert!(
                !finding.what.is_empty() && !finding.mend.text().is_empty(),
                "{}: {finding:?}",
                file.display()
            );
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
}
