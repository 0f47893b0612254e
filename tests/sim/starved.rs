//! The binary without any inotify instance available.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use numacast::sim::kubelet::{Options, PodSpec, Split};
use numacast::sim::node::SimNode;

use crate::support::machine;

/// Sets the inotify limit to zero for the current user namespace only.
const STARVE: &str = r#"echo 0 > /proc/sys/user/max_inotify_instances && exec "$0" "$@""#;

/// A process that is killed on drop.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_agent_without_inotify_sees_changes_by_polling() {
    let possible =
        Command::new("unshare").args(["--user", "--map-root-user", "sh", "-c", STARVE, "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var("CI").is_err(), "user namespaces are needed under CI=true");
        eprintln!("skipped: this machine lets nobody make a user namespace");
        return;
    }
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let node =
        SimNode::start("worker", &machine("two-by-eight"), anywhere, Options::default()).await.unwrap();
    let log = node.directory().join("agent.log");
    let mut child = Child(
        Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", STARVE, env!("CARGO_BIN_EXE_numacast"), "agent"])
            .args(["--node-name", "worker", "--metrics-address", "none", "--poll", "1s"])
            .args(node.flags())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap(),
    );
    for name in ["a", "b", "c"] {
        // The API server has no such pod, so only a poll of the kubelet finds it.
        node.kubelet.start_pod(PodSpec::guaranteed(name, 2, 1 << 30)).await.unwrap();
        let differences = || match node.server.topology("worker") {
            Some(object) => node.kubelet.expected().differences(&object, Split::PerNode),
            None => vec!["there is no object".to_owned()],
        };
        while !differences().is_empty() {
            assert!(child.0.try_wait().unwrap().is_none(), "the agent has ended");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("changes are seen by polling until that works"), "{log}");
}
