//! `numacast pods` against a simulated kubelet that serves pods encoded by Kubernetes' own types.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use numacast::core_v1::proto as core;
use numacast::sim::pods_api::SimPodsApi;
use prost::Message;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Time after which a test is considered to hang.
const HANGS: Duration = Duration::from_secs(60);

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

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command.arg("pods").args(words).arg("--host-root").arg(self.root.path());
        command.kill_on_drop(true).stdin(Stdio::null());
        command
    }

    async fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let output = tokio::time::timeout(HANGS, self.command(words).output()).await.unwrap().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    async fn says(&self, words: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(words).await;
        assert_eq!((code, &*stderr), (Some(0), ""), "{words:?}");
        stdout
    }

    async fn refuses(&self, words: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(words).await;
        assert_eq!((code, &*stdout), (Some(1), ""), "{words:?}");
        let sentence = stderr.strip_prefix("numacast: ").unwrap().trim_end().to_owned();
        assert!(!sentence.contains('\n'), "{stderr}");
        sentence
    }

    fn watch(&self, words: &[&str]) -> Watch {
        let mut command = self.command(&[&["watch"], words].concat());
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
        let line = tokio::time::timeout(HANGS, self.lines.next_line()).await;
        line.expect("nothing is printed").unwrap().expect("it has ended")
    }

    async fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..count {
            lines.push(self.line().await);
        }
        lines
    }

    /// Returns the first `words` words of the next lines.
    async fn words(&mut self, lines: usize, words: usize) -> Vec<String> {
        let cut = |line: &String| line.split_whitespace().take(words).collect::<Vec<_>>().join(" ");
        self.lines(lines).await.iter().map(cut).collect()
    }
}

fn pod(name: &str, uid: &str, phase: &str) -> core::Pod {
    let metadata = core::ObjectMeta {
        name: name.into(),
        namespace: "default".into(),
        uid: uid.into(),
        ..core::ObjectMeta::default()
    };
    let status = core::PodStatus { phase: phase.into(), ..core::PodStatus::default() };
    core::Pod { metadata: Some(metadata), status: Some(status), ..core::Pod::default() }
}

fn annotated(mut pod: core::Pod, key: &str, value: &str) -> core::Pod {
    let metadata = pod.metadata.as_mut().unwrap();
    metadata.annotations.insert(key.to_owned(), value.to_owned().into());
    pod
}

#[tokio::test]
async fn pods_are_found_by_uid_and_name() {
    let node = Node::new();
    let mut pods: Vec<_> =
        ["static-worker", "completed", "limits", "podlevel"].iter().map(|name| node.add(name)).collect();
    pods.sort();
    let names: String = pods.iter().map(|[namespace, name, _]| format!("{namespace}/{name}\n")).collect();
    assert_eq!(node.says(&["list", "--output=name"]).await, names);
    assert_eq!(node.says(&["list", "-n", "nowhere", "-o", "name"]).await, "");
    for [namespace, name, uid] in &pods {
        for called in [&*format!("{namespace}/{name}"), name, uid] {
            let one = node.says(&["get", called, "-o", "name"]).await;
            assert_eq!(one, format!("{namespace}/{name}\n"), "{called}");
        }
        let row = node.says(&["get", name, "--no-headers"]).await;
        assert!(row.contains(uid.as_str()) && row.lines().count() == 1, "{row}");
    }
}

#[tokio::test]
async fn a_table_shows_what_kubectl_shows_and_which_pods_are_static() {
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
    assert_eq!(node.says(&["list"]).await, table);
    let wide = node.says(&["list", "-o", "wide", "--no-headers"]).await;
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
    for (what, words) in [("b", "no pod b"), ("x/a", "no pod x/a"), (&*uid.replace('0', "1"), "no pod 1123")]
    {
        let sentence = node.refuses(&["get", what]).await;
        assert!(sentence.contains(words), "{sentence}");
    }
    let sentence = node.refuses(&["get", "a"]).await;
    assert!(sentence.contains("several pods are called a") && sentence.contains("other/a (3)"), "{sentence}");
    assert_eq!(node.says(&["get", "a", "-n", "other", "-o", "name"]).await, "other/a\n");
    let sentence = node.refuses(&["get", uid, "-n", "other"]).await;
    assert!(sentence.contains("is in the namespace default"), "{sentence}");
    // Its conditions have the wrong wire type, a field that only the table reads.
    let message = pod("broken", "4", "Running").encode_to_vec();
    node.kubelet.set_encoded("4", [&message[..], &[0x1a, 0x02, 0x10, 0x01]].concat());
    let (code, rows, stderr) = node.run(&["list", "--no-headers"]).await;
    assert_eq!((code, rows.lines().count()), (Some(1), 3), "the others are printed");
    assert!(stderr.starts_with("numacast: the pod default/broken cannot be read: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    node.kubelet.remove_silently(&pod("broken", "4", ""));
    let nowhere: PathBuf = node.root.path().join("nowhere/a.sock");
    for verb in ["list", "watch"] {
        let sentence = node.refuses(&[verb, "--socket", nowhere.to_str().unwrap()]).await;
        assert!(
            sentence.contains("there is no Pods API socket at") && sentence.contains("podsApi"),
            "{sentence}"
        );
    }
    node.kubelet.stop();
    for words in [&["list"][..], &["get", "a"], &["watch"]] {
        let sentence = node.refuses(words).await;
        assert!(sentence.contains("nobody serves the Pods API here"), "{sentence}");
        assert!(sentence.contains("run/numacast/pods-api/pods-api.sock"), "{sentence}");
        assert!(sentence.contains("nobody listens on"), "{sentence}");
    }
}

#[tokio::test]
async fn a_watch_prints_each_change_once() {
    let mut node = Node::new();
    for (name, uid) in [("a", "1"), ("b", "2")] {
        node.kubelet.set(&pod(name, uid, "Pending"));
    }
    let mut watch = node.watch(&[]);
    assert_eq!(watch.words(1, 3).await, ["EVENT NAMESPACE NAME"]);
    assert_eq!(watch.words(2, 5).await, ["ADDED default a 0/0 Pending", "ADDED default b 0/0 Pending"]);
    // A change that the table does not show prints no row.
    node.kubelet.set(&annotated(pod("a", "1", "Pending"), "a", "b"));
    node.kubelet.set(&pod("b", "2", "Running"));
    node.kubelet.set(&pod("c", "3", "Pending"));
    assert_eq!(watch.words(2, 5).await, ["MODIFIED default b 0/0 Running", "ADDED default c 0/0 Pending"]);
    // Another kubelet: only the changes made meanwhile are printed.
    node.kubelet.stop();
    node.kubelet.remove_silently(&pod("a", "1", ""));
    node.kubelet.set_silently(&pod("d", "4", "Pending"));
    node.kubelet.restart().unwrap();
    assert_eq!(watch.words(2, 5).await, ["DELETED default a 0/0 Pending", "ADDED default d 0/0 Pending"]);
    node.kubelet.remove(&pod("b", "2", ""));
    assert_eq!(watch.words(1, 5).await, ["DELETED default b 0/0 Running"]);
    watch.child.start_kill().unwrap();
    let output = watch.child.wait_with_output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.lines().any(|line| line.ends_with("; retrying")), "{said}");
    assert!(said.trim_end().ends_with("pods-api.sock responds again"), "{said}");
}

#[tokio::test]
async fn a_watch_may_print_names_only() {
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
async fn a_watch_ends_quietly_when_nobody_reads() {
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
        output = tokio::time::timeout(HANGS, child.wait_with_output()) => output.unwrap().unwrap(),
        () = pods => unreachable!(),
    };
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[tokio::test]
async fn a_watch_waits_for_a_kubelet_that_is_just_starting() {
    let node = Node::new();
    node.kubelet.set(&pod("a", "1", "Pending"));
    node.kubelet.fail_with(Some(tonic::Status::failed_precondition("Kubelet is initializing")));
    let sentence = node.refuses(&["list"]).await;
    assert!(sentence.contains("does not know its pods yet: Kubelet is initializing"), "{sentence}");
    // Our own socket does not exist.
    let mut watch = node.watch(&["-o", "name"]);
    while node.kubelet.watch_calls() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.kubelet.fail_with(None);
    assert_eq!(watch.line().await, "ADDED default/a");
}
