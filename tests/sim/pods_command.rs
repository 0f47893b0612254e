//! `numacast pods` against a simulated kubelet that serves pods encoded by Kubernetes' own types.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use numacast::core_v1::proto as core;
use numacast::sim::pods_api::SimPodsApi;
use prost::Message;
use serde_json::{Value, json};
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

    /// Adds a pod of `fuzz/corpus/pods` and returns its JSON.
    fn add(&self, name: &str) -> Value {
        let file = |extension: &str| {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/pods");
            std::fs::read(dir.join(name).with_extension(extension)).unwrap()
        };
        let mut pod: Value = serde_json::from_slice(&file("json")).unwrap();
        self.kubelet.set_encoded(pod["metadata"]["uid"].as_str().unwrap(), file("pb"));
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod
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
async fn all_pods_are_printed_as_objects() {
    let node = Node::new();
    let mut pods: Vec<Value> =
        ["static-worker", "completed", "limits", "podlevel"].iter().map(|name| node.add(name)).collect();
    let name = |pod: &Value| {
        let word = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
        (word("namespace"), word("name"))
    };
    pods.sort_by_key(name);
    let list: Value = serde_json::from_str(&node.says(&["list", "-o", "json"]).await).unwrap();
    let expected =
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": pods});
    assert_eq!(list, expected);
    let yaml: Value = serde_saphyr::from_str(&node.says(&["list", "-o", "yaml"]).await).unwrap();
    assert_eq!(yaml, expected);
    let names: String =
        pods.iter().map(name).map(|(namespace, name)| format!("{namespace}/{name}\n")).collect();
    assert_eq!(node.says(&["list", "--output=name"]).await, names);
    assert_eq!(node.says(&["list", "-n", "nowhere", "-o", "name"]).await, "");
    for pod in &pods {
        let (namespace, name) = name(pod);
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        for called in [&*format!("{namespace}/{name}"), &name, uid] {
            let one: Value = serde_json::from_str(&node.says(&["get", called, "-o", "json"]).await).unwrap();
            assert_eq!(one, *pod, "{called}");
        }
        let row = node.says(&["get", &name, "--no-headers"]).await;
        assert!(row.contains(uid) && row.lines().count() == 1, "{row}");
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
async fn every_failure_is_one_sentence() {
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
    // Its node name has the wrong wire type, a field that our own pod record does not read.
    let message = pod("broken", "4", "Running").encode_to_vec();
    node.kubelet.set_encoded("4", [&message[..], &[0x12, 0x02, 0x50, 0x01]].concat());
    let (code, names, stderr) = node.run(&["list", "-o", "name"]).await;
    assert_eq!((code, names.lines().count()), (Some(1), 3), "the others are printed");
    let sentence = "numacast: the pod default/broken cannot be read: spec: nodeName: it is of another kind\n";
    assert_eq!(stderr, sentence);
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
async fn a_watch_prints_what_changes_and_nothing_twice() {
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
    assert!(said.lines().any(|line| line.ends_with("; trying on")), "{said}");
    assert!(said.trim_end().ends_with("pods-api.sock tells again"), "{said}");
}

#[tokio::test]
async fn a_watch_prints_objects_a_line_each() {
    let node = Node::new();
    let completed = node.add("completed");
    let mut watch = node.watch(&["-o", "json"]);
    let read = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    assert_eq!(read(watch.line().await), json!({"type": "ADDED", "object": completed}));
    node.kubelet.set(&pod("a", "1", "Running"));
    let added = read(watch.line().await);
    assert_eq!((&added["type"], &added["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("a")));
    node.kubelet.set(&pod("a", "1", "Running"));
    node.kubelet.set(&annotated(pod("a", "1", "Running"), "a", "b"));
    let modified = read(watch.line().await);
    assert_eq!(modified["type"], "MODIFIED");
    assert_eq!(modified["object"]["metadata"]["annotations"], json!({"a": "b"}));
    node.kubelet.remove(&pod("a", "1", ""));
    let deleted = read(watch.line().await);
    assert_eq!((&deleted["type"], &deleted["object"]["metadata"]["uid"]), (&json!("DELETED"), &json!("1")));
    let mut names = node.watch(&["-o", "name", "-n", "default"]);
    let name = completed["metadata"]["name"].as_str().unwrap();
    assert_eq!(names.line().await, format!("ADDED default/{name}"));
    node.kubelet.set(&pod("a", "5", "Running"));
    assert_eq!(names.line().await, "ADDED default/a");
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
    node.kubelet.refuse(Some(tonic::Status::failed_precondition("Kubelet is initializing")));
    let sentence = node.refuses(&["list"]).await;
    assert!(sentence.contains("cannot tell its pods yet: Kubelet is initializing"), "{sentence}");
    // Our own socket does not exist.
    let mut watch = node.watch(&["-o", "name"]);
    while node.kubelet.watches() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.kubelet.refuse(None);
    assert_eq!(watch.line().await, "ADDED default/a");
}
