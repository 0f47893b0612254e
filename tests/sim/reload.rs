//! What the binary reloads while it runs: its configuration file and signals.

use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::Duration;

use numacast_sim::api_server::ApiServer;
use numacast_sim::kubelet::PodSpec;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use crate::support::Node;

/// Upper bound for events that take twice the interval, 20 seconds, at most.
const TIMEOUT: Duration = Duration::from_secs(60);
const TOKEN: &str = "a-secret-token";

/// A running binary between a simulated kubelet and API server.
struct Environment {
    node: Node,
    api: ApiServer,
    agent: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Environment {
    /// Starts the agent with this configuration file and waits for its first object.
    async fn start(config: &str, flags: &[&str]) -> Self {
        let env = Self::spawn(config, flags).await;
        env.wait_for(|| env.api.topology("worker").is_some()).await;
        env
    }

    /// Starts the agent. Its log has to be read, since the agent blocks when the pipe is full.
    async fn spawn(config: &str, flags: &[&str]) -> Self {
        let node = Node::start();
        let api = ApiServer::start_on_any_port(0).await.unwrap();
        api.add_node("worker").unwrap();
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": api.url()}}],
            "users": [{"name": "a", "user": {"token": TOKEN}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        std::fs::create_dir(node.root().join("etc")).unwrap();
        std::fs::write(node.root().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        std::fs::write(node.root().join("etc/numacast.yaml"), config).unwrap();
        let mut agent = Command::new(env!("CARGO_BIN_EXE_numacast"))
            .args(["agent", "--node-name", "worker", "--metrics-address", "none", "--health-address", "none"])
            .arg("--host-root")
            .arg(node.root())
            .arg("--kubeconfig")
            .arg(node.root().join("kubeconfig"))
            .arg("--config")
            .arg(node.root().join("etc/numacast.yaml"))
            .args(flags)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = BufReader::new(agent.stderr.take().unwrap()).lines();
        Self { node, api, agent, log }
    }

    async fn wait_for(&self, condition: impl Fn() -> bool) {
        let poll = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(TIMEOUT, poll).await.unwrap();
    }

    /// Replaces the configuration file by a rename, as editors do.
    fn configure(&self, text: &str) {
        let at = |name: &str| self.node.root().join("etc").join(name);
        std::fs::write(at(".new"), text).unwrap();
        std::fs::rename(at(".new"), at("numacast.yaml")).unwrap();
    }

    /// Replaces the configuration file and has it read at once.
    fn reload(&self, text: &str) {
        self.configure(text);
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.agent.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Returns the log lines up to the first that contains `text`.
    async fn lines_until(&mut self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let read = async {
            while let Some(line) = self.log.next_line().await.unwrap() {
                let found = line.contains(text);
                lines.push(line);
                if found {
                    return;
                }
            }
        };
        let ended = timeout(TIMEOUT, read).await;
        assert!(ended.is_ok() && lines.last().is_some_and(|line| line.contains(text)), "{text}: {lines:#?}");
        lines
    }

    /// Starts a pod and returns the log lines up to the agent's report of it.
    async fn start_pod(&mut self, name: &str) -> Vec<String> {
        self.node.kubelet.start_pod(PodSpec::guaranteed(name, 1, 1 << 30)).await.unwrap();
        self.lines_until(" free").await
    }
}

fn any(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

#[tokio::test]
async fn the_log_level_changes_with_the_file() {
    let mut env = Environment::start("log: {level: info}\n", &[]).await;
    assert!(!any(&env.start_pod("a").await, "DEBUG"));
    env.configure("log: {level: debug}\n");
    env.lines_until("`log.level` changed in ").await;
    env.start_pod("b").await;
    env.lines_until("DEBUG").await;
    env.reload("log: {level: info}\n");
    env.lines_until("`log.level` changed in ").await;
    assert!(!any(&env.start_pod("c").await, "DEBUG"));
}

#[tokio::test]
async fn a_swapped_volume_of_a_config_map_is_read_again() {
    let mut env = Environment::start("log: {level: info}\n", &[]).await;
    let etc = env.node.root().join("etc");
    for (volume, level) in [("..1", "info"), ("..2", "debug")] {
        std::fs::create_dir(etc.join(volume)).unwrap();
        std::fs::write(etc.join(volume).join("numacast.yaml"), format!("log: {{level: {level}}}\n")).unwrap();
    }
    symlink("..1", etc.join("..data")).unwrap();
    symlink("..data/numacast.yaml", etc.join(".new")).unwrap();
    std::fs::rename(etc.join(".new"), etc.join("numacast.yaml")).unwrap();
    symlink("..2", etc.join("..data_tmp")).unwrap();
    std::fs::rename(etc.join("..data_tmp"), etc.join("..data")).unwrap();
    env.lines_until("`log.level` changed in ").await;
}

#[tokio::test]
async fn a_flag_takes_precedence_over_a_changed_file() {
    let mut env = Environment::start("", &["--log-level", "info"]).await;
    env.reload("log: {level: debug}\nexclude: {resources: {other: [cpu]}}\n");
    let lines = env.lines_until(" changed in ").await;
    assert!(any(&lines, "`exclude.resources` changed in ") && !any(&lines, "`log.level`"), "{lines:#?}");
    assert!(!any(&env.start_pod("a").await, "DEBUG"));
}

#[tokio::test]
async fn sigusr1_switches_the_log_level_to_debug_and_back() {
    let mut env = Environment::start("", &[]).await;
    assert!(!any(&env.start_pod("a").await, "DEBUG"));
    env.signal(Signal::USR1);
    env.lines_until("the log level is debug by SIGUSR1").await;
    env.start_pod("b").await;
    env.lines_until("DEBUG").await;
    env.signal(Signal::USR1);
    env.lines_until("the log level is info by SIGUSR1").await;
    assert!(!any(&env.start_pod("c").await, "DEBUG"));
}

#[tokio::test]
async fn sigusr1_works_for_the_proxy_and_the_pods_api_server() {
    let node = Node::start();
    for (verb, flags) in
        [("proxy", ["--set", "proxy.annotations.koordinator=[]"]), ("pods-api", ["--source", "podsApi"])]
    {
        let mut server = Command::new(env!("CARGO_BIN_EXE_numacast"))
            .args([verb, "--set", "metrics.address=none", "--set", "health.address=none"])
            .args(flags)
            .arg("--host-root")
            .arg(node.root())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap()).lines();
        let mut signalled = false;
        loop {
            let line = timeout(TIMEOUT, log.next_line()).await.unwrap().unwrap().expect("the server runs");
            if line.contains("the log level is debug by SIGUSR1") {
                break;
            }
            // It listens for signals before its socket is there.
            if !signalled && line.contains(" at ") && line.contains(".sock") {
                let id = server.id().unwrap();
                kill_process(Pid::from_raw(id as i32).unwrap(), Signal::USR1).unwrap();
                signalled = true;
            }
        }
    }
}

#[tokio::test]
async fn changed_exclusions_apply_and_other_keys_need_a_restart() {
    let mut env = Environment::start("", &[]).await;
    env.reload("exclude: {resources: {worker: [example.com/nic]}}\nscan: {poll: 1s, notifyFile: /n}\n");
    let lines = env.lines_until(" and is in effect now").await;
    assert!(any(&lines, "`scan.notifyFile`, `scan.poll` changed in "), "{lines:#?}");
    assert!(any(&lines, ": restart numacast to apply it"), "{lines:#?}");
    let lists_nics = |env: &Environment| {
        let zones = env.api.topology("worker").unwrap().spec.zones;
        zones.iter().any(|zone| zone.resources.iter().flatten().any(|r| r.name == "example.com/nic"))
    };
    env.wait_for(|| !lists_nics(&env)).await;
    env.reload("");
    env.wait_for(|| lists_nics(&env)).await;
    // Keys that were never applied are not reported when they are removed.
    assert!(!any(&env.lines_until("`exclude.resources` changed in ").await, "scan.poll"));
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_is_reported_once() {
    let mut env = Environment::start("exclude: {resources: {worker: [example.com/nic]}}\n", &[]).await;
    env.reload("log: {level: loud}\nexclude: {}\nscna: 1\n");
    let lines = env.lines_until("; the configuration read before stays in effect").await;
    let error = lines.last().unwrap();
    assert!(error.contains("`loud`") && error.contains("unknown key `scna`"), "{error}");
    env.reload("log: {level: loud}\nexclude: {}\nscna: 1\n");
    assert!(!any(&env.lines_until(" is unchanged").await, "stays in effect"));
    std::fs::remove_file(env.node.root().join("etc/numacast.yaml")).unwrap();
    env.signal(Signal::HUP);
    let lines = env.lines_until("; the configuration read before stays in effect").await;
    assert!(any(&lines, "cannot read the configuration "), "{lines:#?}");
    let zones = env.api.topology("worker").unwrap().spec.zones;
    assert!(zones[0].resources.iter().flatten().all(|r| r.name != "example.com/nic"));
    assert_eq!(env.agent.try_wait().unwrap(), None, "the agent runs");
}

#[tokio::test]
async fn no_token_is_logged_at_level_trace() {
    let mut env = Environment::spawn("log: {level: trace, format: json}\n", &[]).await;
    let mut lines = env.lines_until("\"published version ").await;
    env.agent.kill().await.unwrap();
    while let Some(line) = env.log.next_line().await.unwrap() {
        lines.push(line);
    }
    assert!(any(&lines, r#""level":"TRACE""#) && any(&lines, "kube"), "libraries log, too");
    assert!(!any(&lines, TOKEN));
}
