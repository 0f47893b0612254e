//! Invalid input: each kind has its own error: what is wrong, where, and what to do.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use crate::support::{FakeHost, numacast};

#[test]
fn no_socket() {
    let host = FakeHost::two_nodes();
    let socket = host.socket();
    assert_eq!(
        host.numacast(&["snapshot"]).error(),
        format!(
            "numacast: there is no kubelet socket at {}: is the kubelet running, and is `kubelet.socket` right?",
            socket.display()
        )
    );
}

#[test]
fn a_socket_nobody_listens_on() {
    let host = FakeHost::two_nodes();
    let socket = host.socket();
    drop(UnixListener::bind(&socket).unwrap());
    assert_eq!(
        host.numacast(&["snapshot"]).error(),
        format!(
            "numacast: no process listens on {}: the kubelet is not running or is just starting",
            socket.display()
        )
    );
}

#[test]
fn a_file_that_is_no_socket() {
    let host = FakeHost::two_nodes();
    let socket = host.socket();
    std::fs::write(&socket, "").unwrap();
    let outcome = host.numacast(&["snapshot"]);
    let expected = format!("numacast: cannot connect to {}: it is not a socket", socket.display());
    assert_eq!(outcome.error(), expected);
}

/// Sends `words` on every connection, or nothing.
fn serve(socket: &std::path::Path, words: Option<&'static [u8]>) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut start = [0_u8; 24];
            let _ = stream.read(&mut start);
            match words {
                Some(words) => drop(stream.write_all(words)),
                None => silent.push(stream),
            }
        }
    });
}

#[test]
fn a_socket_that_is_no_grpc_server() {
    for words in [
        Some(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".as_slice()),
        Some(b"\x00\x01\x02garbage of another protocol altogether\n".as_slice()),
        Some(b"".as_slice()),
        None,
    ] {
        let host = FakeHost::two_nodes();
        let socket = host.socket();
        serve(&socket, words);
        let outcome = host.numacast(&["snapshot", "--set", "kubelet.timeout=300ms"]);
        let sentence = outcome.error();
        let expected =
            format!("numacast: {} is a socket, but no gRPC server responds on it (", socket.display());
        assert!(sentence.starts_with(&expected), "{words:?}: {sentence}");
        assert!(sentence.ends_with("); is `kubelet.socket` right?"), "{words:?}: {sentence}");
    }
}

#[test]
fn no_node_name() {
    assert_eq!(
        numacast(&["agent", "--once"]).error(),
        "numacast: the node's name is not known: set NODE_NAME (in a pod, from spec.nodeName) or --node-name"
    );
}

#[test]
fn no_way_to_the_api_server() {
    let outcome = numacast(&["agent", "--once", "--node-name", "n", "--kubeconfig", "/nowhere/kubeconfig"]);
    let sentence = outcome.error();
    assert!(
        sentence.starts_with("numacast: no way to reach the API server: /nowhere/kubeconfig: "),
        "{sentence}"
    );
    assert!(sentence.ends_with("; set --kubeconfig or run in a pod with a service account"), "{sentence}");
}

#[test]
fn an_unknown_config_key() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "kubelet:\n  sokcet: /run/kubelet.sock\n").unwrap();
    let path = file.path().to_str().unwrap();
    let expected =
        format!("numacast: unknown key `kubelet.sokcet` in file {path}; did you mean `kubelet.socket`?");
    assert_eq!(numacast(&["config", "check", path]).error(), expected);
    assert_eq!(numacast(&["agent", "--config", path]).error(), expected);
    assert_eq!(
        numacast(&["snapshot", "--set", "scan.pol=3s"]).error(),
        "numacast: unknown key `scan.pol` in flag --set; did you mean `scan.poll`?"
    );
}

#[test]
fn exclusions_that_cannot_work() {
    for (setting, sentence) in [
        (
            "exclude.pods=[{name: 'web-[0-9'}]",
            "`exclude.pods` in flag --set: `web-[0-9` is not a pattern: a class is written like [a-z] or [^0-9]; `\\[`, \
             `\\]` and `\\-` are the characters themselves",
        ),
        (
            "exclude.pods=[{namespacePattern: kube-system}]",
            "`exclude.pods` in flag --set: unknown field `namespacePattern`, expected `namespace` or `name`",
        ),
        (
            "exclude.pods=[{}]",
            "`exclude.pods` in flag --set: a pattern of pods needs `namespace`, `name` or both; `*` stands for every \
             name",
        ),
        (
            "exclude.resources={worker: [gpu]}",
            "`exclude.resources` in flag --set: `gpu` is not a resource of a zone; zones have cpu, memory, \
             hugepages-<size> such as hugepages-2Mi, and devices such as example.com/nic",
        ),
        (
            "excludeList={worker: [cpu]}",
            "unknown key `excludeList` in flag --set; did you mean `exclude.resources`?",
        ),
        (
            "exclude.podExclude=[]",
            "unknown key `exclude.podExclude` in flag --set; did you mean `exclude.pods`?",
        ),
    ] {
        assert_eq!(numacast(&["snapshot", "--set", setting]).error(), format!("numacast: {sentence}"));
    }
}

#[test]
fn addresses_and_certificates_that_cannot_work() {
    for (arguments, sentence) in [
        (
            vec!["--health-address", "localhost:9743"],
            "`health.address` in flag --health-address: `localhost:9743` is neither an IP address with a port, such as \
             127.0.0.1:9742, nor a port on all addresses, such as :9742, nor none",
        ),
        (vec!["--set", "metrics.tls.certFile=/c"], "`metrics.tls` in flag --set: missing field `keyFile`"),
        (
            vec!["--set", "metrics.tls={clientCaFile: /ca}"],
            "`metrics.tls` in flag --set: missing field `certFile`",
        ),
        (
            vec![
                "--health-address",
                "127.0.0.1:9742",
                "--set",
                "metrics.tls.certFile=/c",
                "--set",
                "metrics.tls.keyFile=/k",
            ],
            "`health.address` in flag --health-address: health is plain HTTP and cannot share the address of metrics \
             with TLS; choose another one, or none",
        ),
        (
            vec!["--set", "metrics.tls.cert=/c"],
            "`metrics.tls` in flag --set: unknown field `cert`, expected one of `certFile`, `keyFile`, `clientCaFile`",
        ),
    ] {
        let words = [&["agent", "--node-name", "n"], arguments.as_slice()].concat();
        assert_eq!(numacast(&words).error(), format!("numacast: {sentence}"));
    }
}

#[test]
fn a_recording_that_is_none() {
    let outcome = numacast(&["snapshot", "--replay", "/nowhere.json"]);
    assert!(outcome.error().starts_with("numacast: cannot read the recording /nowhere.json: No such file"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"format": 99}"#).unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(
        numacast(&["snapshot", "--replay", path]).error(),
        format!("numacast: the recording {path} has the format 99; this numacast reads formats up to 1")
    );
}

#[test]
fn without_a_name_the_hosts_own_list_of_exclusions_counts() {
    let host = FakeHost::two_nodes();
    host.socket();
    let file = host.path("bug.json");
    let lists = "exclude.resources={worker-1: [memory], worker-2: [cpu], Worker-1.example: []}";
    let words = ["snapshot", "--record", file.to_str().unwrap(), "--set"];
    let rejected = host.numacast(&[words.as_slice(), &[lists]].concat());
    assert!(rejected.error().contains("`Worker-1.example` is not a node name"), "{rejected:?}");
    let lists = lists.replace(", Worker-1.example: []", "");
    let sentence = host.numacast(&[words.as_slice(), &[&lists]].concat()).error().to_owned();
    assert!(sentence.contains("there is no kubelet socket"), "{sentence}");
    let recording: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(recording["exclude"], serde_json::json!({"resources": ["memory"]}));
}

#[test]
fn the_agent_warns_of_what_it_excludes() {
    let words = ["agent", "--once", "--node-name", "a", "--kubeconfig", "/nowhere", "--set"];
    let warnings = |lists: &str| {
        let outcome = numacast(&[words.as_slice(), &[lists]].concat());
        outcome.stderr.matches("memory is excluded: under the policy single-numa-node").count()
    };
    assert_eq!(warnings("exclude.resources={a: [memory], '*': [memory]}"), 1);
    assert_eq!(warnings("exclude.resources={b: [memory]}"), 0);
}

#[test]
fn what_failed_is_recorded_too() {
    let host = FakeHost::two_nodes();
    host.socket();
    let file = host.path("bug.json");
    let path = file.to_str().unwrap();
    let sentence = host.numacast(&["snapshot", "--record", path]).error().to_owned();
    assert!(sentence.contains("there is no kubelet socket"), "{sentence}");
    assert_eq!(numacast(&["snapshot", "--replay", path]).error(), sentence, "the replay fails the same way");
    let recording = std::fs::read_to_string(&file).unwrap();
    assert!(recording.contains("sys/devices/system/node/node1/cpulist"), "{recording}");
}

#[test]
fn a_policy_without_its_scope_and_a_fingerprint_without_its_place() {
    let host = FakeHost::two_nodes();
    let error = |words: &[&str]| host.numacast(&[&["config", "show"], words].concat()).error().to_owned();
    let message = error(&["--topology-manager-policy", "restricted"]);
    assert_eq!(
        message,
        "numacast: `kubelet.configOverrides` in flag --topology-manager-policy: consumers misread a policy without its \
         scope: set topologyManagerScope as well"
    );
    let message = error(&["--topology-manager-scope", "pod"]);
    assert!(message.contains("a scope has no meaning without a policy"), "{message}");
    let message = error(&["--topology-manager-policy", "strict", "--topology-manager-scope", "pod"]);
    assert!(message.contains("unknown value `strict`, expected one of none, best-effort"), "{message}");
    let message = error(&["--set", "kubelet.address=https://10.0.0.7"]);
    let expected = "`https://10.0.0.7` is not a valid address; use for example 10.0.0.7, ";
    assert!(message.contains(expected), "{message}");
    let message = error(&["--set", "kubelet.config.file=/x"]);
    assert!(message.contains("did you mean `kubelet.configFile`?"), "{message}");
    let message = error(&[
        "--set",
        "publish.apiVersion=v1alpha1",
        "--set",
        "fingerprint.method=with-exclusive-resources",
    ]);
    assert!(message.contains("v1alpha1 has a place for the fingerprint of all pods only"), "{message}");
}

#[test]
fn consumers_that_there_are_not_and_reservations_without_a_source() {
    let host = FakeHost::two_nodes();
    let show = |words: &[&str]| host.numacast(&[&["config", "show"], words].concat());
    assert_eq!(
        show(&["--set", "cache=direct"]).error(),
        "numacast: unknown key `cache` in flag --set; did you mean `consumer`?"
    );
    let message = show(&["--set", "consumer=volcano"]).error().to_owned();
    assert!(
        message.contains(
            "unknown variant `volcano`, expected one of `schedulerPlugins`, `schedulerPluginsDirect`"
        ),
        "{message}"
    );
    let words = ["consumer=kai", "pods.source=podsApi"];
    let message = show(&words.map(|word| ["--set", word]).concat()).error().to_owned();
    assert!(
        message.contains("`pods.source` in flag --set: pods are annotated for KAI-Scheduler"),
        "{message}"
    );
    let message = show(&["--set", "publish.reserve=true"]).error().to_owned();
    assert!(message.contains("consumer"), "{message}");
    let shown = show(&["--set", "consumer=kai"]).stdout;
    let line = shown.lines().find(|shown| shown.starts_with("fingerprint.view: none"));
    assert!(line.is_some_and(|line| line.ends_with("# derived")), "{line:?} in {shown}");
}

#[test]
fn an_agent_has_something_to_do() {
    let message =
        numacast(&["agent", "--node-name", "worker", "--set", "publish.to=none"]).error().to_owned();
    assert!(message.contains("`publish.to` in flag --set: the agent would do nothing"), "{message}");
    let set = ["--set", "publish.to=none", "--set", "podsApi.enabled=true"];
    let message =
        numacast(&[&["agent", "--node-name", "worker", "--once"], &set[..]].concat()).error().to_owned();
    assert!(
        message.contains("--once cannot be used with `publish.to: none`, which publishes nothing"),
        "{message}"
    );
    let message = numacast(&["agent", "--set", "publish.to=topology.yaml"]).error().to_owned();
    assert!(message.contains("neither apiServer, nor none, nor the absolute path"), "{message}");
}

/// `numacast pods` on a host without a Pods API server.
#[test]
fn nobody_serves_the_pods_api() {
    let host = FakeHost::two_nodes();
    let [ours, theirs] = ["run/numacast/pods-api/pods-api.sock", "var/lib/kubelet/pods-api/pods-api.sock"]
        .map(|path| host.path(path));
    let advice = "kubelet 1.36 and later create it (in 1.36 with the feature gate PodsAPI); numacast creates it if \
                  `podsApi.enabled` is set; is the path right?";
    assert_eq!(
        host.numacast(&["pods", "list"]).error(),
        format!(
            "numacast: no process serves the Pods API here: there is no Pods API socket at {}; there is no Pods API socket \
             at {}: {advice}",
            ours.display(),
            theirs.display()
        )
    );
    std::fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    let socket = theirs.to_str().unwrap();
    let rejected = |words: &[&str]| {
        let outcome = host.numacast(&[&["pods", "list", "--socket", socket], words].concat());
        outcome.error().strip_prefix("numacast: ").unwrap().to_owned()
    };
    drop(UnixListener::bind(&theirs).unwrap());
    let nobody = format!(
        "no process listens on {socket}: its server is not running, is just starting, or no longer serves the Pods API"
    );
    assert_eq!(rejected(&[]), nobody);
    for (words, reason) in [
        // It is a race whether the response is read before the connection is closed.
        (Some(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]), "no gRPC server"),
        (None, "within 300ms"),
    ] {
        std::fs::remove_file(&theirs).unwrap();
        serve(&theirs, words);
        let sentence = rejected(&["--set", "kubelet.timeout=300ms"]);
        assert!(sentence.contains(socket) && sentence.contains(reason), "{sentence}");
    }
}

#[test]
fn pods_with_flags_that_there_are_not() {
    for words in [&["pods"][..], &["pods", "get"], &["pods", "list", "-o", "xml"], &["pods", "list", "a"]] {
        assert_eq!(numacast(words).code, Some(2), "{words:?}");
    }
    let error = numacast(&["pods", "list", "--set", "kubelet.timout=1s"]);
    assert!(error.error().contains("kubelet.timeout"), "{error:?}");
}
