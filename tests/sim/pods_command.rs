//! `numacast pods` with a simulated kubelet that serves pods encoded by Kubernetes' own types.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::support::{eventually, pod};
use numacast::core_v1::proto as core;
use numacast_sim::pods_api::SimPodsApi;
use prost::Message;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Upper bound for what takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Node {
    root: TempDir,
    kubelet: SimPodsApi,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("var/lib/kubelet/pods-api/pods-api.sock");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        Self { root, kubelet: SimPodsApi::start(socket).unwrap() }
    }

    /// Adds a pod of `fuzz/corpus/pods` and returns its namespace, name and UID.
    fn add(&self, name: &str) -> [String; 3] {
        let file = |extension: &str| {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/pods");
            std::fs::read(dir.join(name).with_extension(extension)).unwrap()
        };
        let pod: Value = serde_json::from_slice(&file("json")).unwrap();
        let field = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
        let identity = ["namespace", "name", "uid"].map(field);
        self.kubelet.set_encoded(&identity[2], file("pb"));
        identity
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command.arg("pods").args(args).arg("--host-root").arg(self.root.path());
        command.kill_on_drop(true).stdin(Stdio::null());
        command
    }

    async fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = tokio::time::timeout(TIMEOUT, self.command(args).output()).await.unwrap().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Returns the output of a successful command.
    async fn stdout(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args).await;
        assert_eq!((code, &*stderr), (Some(0), ""), "{args:?}");
        stdout
    }

    /// Returns the error, one line, of a command that fails.
    async fn error(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(args).await;
        assert_eq!((code, &*stdout), (Some(1), ""), "{args:?}");
        let error = stderr.strip_prefix("numacast: ").unwrap().trim_end().to_owned();
        assert!(!error.contains('\n'), "{stderr}");
        error
    }

    fn watch(&self, args: &[&str]) -> Watch {
        let mut command = self.command(&[&["watch"], args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watch { child, lines }
    }
}

struct Watch {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(TIMEOUT, self.lines.next_line()).await;
        line.expect("nothing is printed").unwrap().expect("the command exited")
    }

    async fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..count {
            lines.push(self.line().await);
        }
        lines
    }

    /// Returns the first `columns` columns of the next lines.
    async fn rows(&mut self, lines: usize, columns: usize) -> Vec<String> {
        let cut = |line: &String| line.split_whitespace().take(columns).collect::<Vec<_>>().join(" ");
        self.lines(lines).await.iter().map(cut).collect()
    }
}

fn annotated(mut pod: core::Pod, key: &str, value: &str) -> core::Pod {
    let metadata = pod.metadata.as_mut().unwrap();
    metadata.annotations.insert(key.to_owned(), value.to_owned().into());
    pod
}

#[tokio::test]
async fn a_pod_is_found_by_name_or_uid() {
    let node = Node::new();
    let mut pods: Vec<_> =
        ["static-worker", "completed", "limits", "podlevel"].iter().map(|name| node.add(name)).collect();
    pods.sort();
    let names: String = pods.iter().map(|[namespace, name, _]| format!("{namespace}/{name}\n")).collect();
    assert_eq!(node.stdout(&["list", "--output=name"]).await, names);
    assert_eq!(node.stdout(&["list", "-n", "missing", "-o", "name"]).await, "");
    for [namespace, name, uid] in &pods {
        for query in [&*format!("{namespace}/{name}"), name, uid] {
            let one = node.stdout(&["get", query, "-o", "name"]).await;
            assert_eq!(one, format!("{namespace}/{name}\n"), "{query}");
        }
        let row = node.stdout(&["get", name, "--no-headers"]).await;
        assert!(row.contains(uid.as_str()) && row.lines().count() == 1, "{row}");
    }
}

#[tokio::test]
async fn the_table_has_kubectls_columns_and_static() {
    let node = Node::new();
    node.kubelet.set(&pod("b", "uid-2", "Running"));
    let own = annotated(pod("a", "uid-1", "Succeeded"), "kubernetes.io/config.source", "file");
    node.kubelet.set(&own);
    let hostile = annotated(pod("c\u{1b}[2J", "uid-3", "Pending"), "kubernetes.io/config.mirror", "uid-9");
    node.kubelet.set(&hostile);
    let table = "\
NAMESPACE   NAME    READY   STATUS      RESTARTS   AGE         STATIC   UID
default     a       0/0     Succeeded   0          <unknown>   yes      uid-1
default     b       0/0     Running     0          <unknown>   no       uid-2
default     c\u{fffd}[2J   0/0     Pending     0          <unknown>   yes      uid-3
";
    assert_eq!(node.stdout(&["list"]).await, table);
    let wide = node.stdout(&["list", "-o", "wide", "--no-headers"]).await;
    assert_eq!(wide.lines().next().unwrap().split_whitespace().count(), 11, "{wide}");
    let (code, stdout, stderr) = node.run(&["list", "-n", "elsewhere"]).await;
    assert_eq!((code, &*stdout), (Some(0), ""));
    assert_eq!(stderr, "numacast: no pod of this node is in the namespace elsewhere\n");
}

#[tokio::test]
async fn every_error_is_one_line() {
    let mut node = Node::new();
    let uid = "0123456789abcdef0123456789abcdef";
    node.kubelet.set(&pod("a", uid, "Running"));
    let mut other = pod("a", "2", "Running");
    node.kubelet.set(&other);
    other.metadata.as_mut().unwrap().namespace = "other".into();
    other.metadata.as_mut().unwrap().uid = "3".into();
    node.kubelet.set(&other);
    for (what, text) in [("b", "no pod b"), ("x/a", "no pod x/a"), (&*uid.replace('0', "1"), "no pod 1123")] {
        let error = node.error(&["get", what]).await;
        assert!(error.contains(text), "{error}");
    }
    let error = node.error(&["get", "a"]).await;
    assert!(error.contains("several pods are called a") && error.contains("other/a (3)"), "{error}");
    assert_eq!(node.stdout(&["get", "a", "-n", "other", "-o", "name"]).await, "other/a\n");
    let error = node.error(&["get", uid, "-n", "other"]).await;
    assert!(error.contains("is in the namespace default"), "{error}");
    // Its conditions have the wrong wire type, a field that only the table reads.
    let message = pod("broken", "4", "Running").encode_to_vec();
    node.kubelet.set_encoded("4", [&message[..], &[0x1a, 0x02, 0x10, 0x01]].concat());
    let (code, rows, stderr) = node.run(&["list", "--no-headers"]).await;
    assert_eq!((code, rows.lines().count()), (Some(1), 3), "the others are printed");
    assert!(stderr.starts_with("numacast: the pod default/broken cannot be read: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    node.kubelet.remove_silently(&pod("broken", "4", ""));
    let missing: PathBuf = node.root.path().join("missing/a.sock");
    for verb in ["list", "watch"] {
        let error = node.error(&[verb, "--socket", missing.to_str().unwrap()]).await;
        assert!(error.contains("there is no Pods API socket at") && error.contains("podsApi"), "{error}");
    }
    node.kubelet.stop();
    for args in [&["list"][..], &["get", "a"], &["watch"]] {
        let error = node.error(args).await;
        assert!(error.contains("no process serves the Pods API here"), "{error}");
        assert!(error.contains("run/numacast/pods-api/pods-api.sock"), "{error}");
        assert!(error.contains("no process listens on"), "{error}");
    }
}

#[tokio::test]
async fn a_watch_prints_each_change_once() {
    let mut node = Node::new();
    for (name, uid) in [("a", "1"), ("b", "2")] {
        node.kubelet.set(&pod(name, uid, "Pending"));
    }
    let mut watch = node.watch(&[]);
    assert_eq!(watch.rows(1, 3).await, ["EVENT NAMESPACE NAME"]);
    assert_eq!(watch.rows(2, 5).await, ["ADDED default a 0/0 Pending", "ADDED default b 0/0 Pending"]);
    // A change that the table does not show prints no row.
    node.kubelet.set(&annotated(pod("a", "1", "Pending"), "a", "b"));
    node.kubelet.set(&pod("b", "2", "Running"));
    node.kubelet.set(&pod("c", "3", "Pending"));
    assert_eq!(watch.rows(2, 5).await, ["MODIFIED default b 0/0 Running", "ADDED default c 0/0 Pending"]);
    // After a restart of the kubelet only the changes made meanwhile are printed.
    node.kubelet.stop();
    node.kubelet.remove_silently(&pod("a", "1", ""));
    node.kubelet.set_silently(&pod("d", "4", "Pending"));
    node.kubelet.restart().unwrap();
    assert_eq!(watch.rows(2, 5).await, ["DELETED default a 0/0 Pending", "ADDED default d 0/0 Pending"]);
    node.kubelet.remove(&pod("b", "2", ""));
    assert_eq!(watch.rows(1, 5).await, ["DELETED default b 0/0 Running"]);
    watch.child.start_kill().unwrap();
    let output = watch.child.wait_with_output().await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.lines().any(|line| line.ends_with("; retrying")), "{stderr}");
    assert!(stderr.trim_end().ends_with("pods-api.sock responds again"), "{stderr}");
}

#[tokio::test]
async fn a_watch_with_output_name_prints_events_and_names() {
    let node = Node::new();
    let [namespace, name, _] = node.add("completed");
    let mut names = node.watch(&["-o", "name", "-n", "default"]);
    assert_eq!(names.line().await, format!("ADDED {namespace}/{name}"));
    node.kubelet.set(&pod("a", "5", "Running"));
    assert_eq!(names.line().await, "ADDED default/a");
    node.kubelet.set(&annotated(pod("a", "5", "Running"), "a", "b"));
    node.kubelet.remove(&pod("a", "5", ""));
    assert_eq!(names.line().await, "DELETED default/a");
}

#[tokio::test]
async fn a_watch_exits_silently_when_its_output_is_closed() {
    let node = Node::new();
    node.kubelet.set(&pod("a", "1", "Pending"));
    let mut watch = node.watch(&["-o", "name"]);
    watch.line().await;
    let Watch { child, lines } = watch;
    drop(lines);
    // A process started by another test holds the pipe until its exec, so the first line may still be
    // written.
    let pods = async {
        for uid in 2.. {
            node.kubelet.set(&pod("b", &uid.to_string(), "Pending"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let output = tokio::select! {
        output = tokio::time::timeout(TIMEOUT, child.wait_with_output()) => output.unwrap().unwrap(),
        () = pods => unreachable!(),
    };
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[tokio::test]
async fn a_watch_waits_for_a_starting_kubelet() {
    let node = Node::new();
    node.kubelet.set(&pod("a", "1", "Pending"));
    node.kubelet.fail_with(Some(tonic::Status::failed_precondition("Kubelet is initializing")));
    let error = node.error(&["list"]).await;
    assert!(error.contains("does not know its pods yet: Kubelet is initializing"), "{error}");
    // Numacast's own socket does not exist.
    let mut watch = node.watch(&["-o", "name"]);
    eventually("the command watches pods", async || (node.kubelet.watch_calls() > 0).then_some(())).await;
    node.kubelet.fail_with(None);
    assert_eq!(watch.line().await, "ADDED default/a");
}
