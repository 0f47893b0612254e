//! The binary without any inotify instance available.

use std::process::Command;
use std::time::Duration;

use numacast_sim::kubelet::{Options, PodSpec, Split};
use numacast_sim::node::SimNode;

use crate::support::{ANY_PORT, machine};

/// Sets the inotify limit to zero for the current user namespace only.
const WITHOUT_INOTIFY: &str = r#"echo 0 > /proc/sys/user/max_inotify_instances && exec "$0" "$@""#;

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
async fn without_inotify_changes_are_found_by_polling() {
    let check = ["--user", "--map-root-user", "sh", "-c", WITHOUT_INOTIFY, "true"];
    if !Command::new("unshare").args(check).output().is_ok_and(|output| output.status.success()) {
        assert!(
            !std::env::var("CI").is_ok_and(|ci| ci == "true"),
            "user namespaces are needed under CI=true"
        );
        eprintln!("skipped: this machine permits no user namespaces");
        return;
    }
    let machine = machine("two-by-eight");
    let node = SimNode::start("worker", &machine, ANY_PORT, Options::default()).await.unwrap();
    let log = node.directory().join("agent.log");
    let mut child = Child(
        Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", WITHOUT_INOTIFY])
            .args([env!("CARGO_BIN_EXE_numacast"), "agent"])
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
        for _ in 0..3000 {
            assert!(child.0.try_wait().unwrap().is_none(), "the agent exited");
            if differences().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(differences(), Vec::<String>::new());
    }
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("changes are found by polling until that works"), "{log}");
}
