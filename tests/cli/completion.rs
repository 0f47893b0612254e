//! Completion: by the hidden command that all scripts ask, and by real shells in a terminal.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::numacast;

/// Returns the candidates for the last word, without their help, and the directive.
fn candidates(words: &[&str]) -> (Vec<String>, String) {
    let outcome = numacast(&[&["__complete"], words].concat());
    assert_eq!(outcome.stderr, "");
    let mut lines: Vec<String> =
        outcome.success().lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect();
    let directive = lines.pop().unwrap();
    (lines, directive)
}

#[test]
fn commands_values_and_files_are_completed() {
    let expect = |words: &[&str], expected: &[&str], directive: &str| {
        let (found, printed) = candidates(words);
        assert_eq!(found, expected, "{words:?}");
        assert_eq!(printed, directive, "{words:?}");
    };
    expect(&["con"], &["config", "controller"], ":4");
    expect(&["config", "sch"], &["schema", "scheduler"], ":4");
    expect(&["completion", ""], &["bash", "zsh", "fish", "kubectl"], ":4");
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("inner")).unwrap();
    let start = format!("{}/", dir.path().display());
    expect(&["config", "check", &start], &[&format!("{start}inner/")], ":6");
    expect(&["crd", "nonsense", ""], &[], ":4");
}

#[test]
fn flags_are_offered_after_a_dash_only() {
    assert_eq!(candidates(&["purge", "--dr"]).0, ["--dry-run"]);
    let (flags, _) = candidates(&["purge", "-"]);
    assert!(
        flags.iter().any(|flag| flag == "-n") && flags.iter().any(|flag| flag == "--context"),
        "{flags:?}"
    );
    assert_eq!(candidates(&["purge", ""]).0, [""; 0]);
}

/// A name as EKS has it, and one that would write to the terminal.
const CONTEXT: &str = "arn:aws:eks:eu-west-1:1:cluster/a";

/// Writes a kubeconfig whose cluster is at this address.
fn kubeconfig(dir: &Path, address: &str) -> PathBuf {
    let file = dir.join("kubeconfig");
    let context = |name: &str| serde_json::json!({"name": name, "context": {"cluster": "a", "user": "a"}});
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": CONTEXT,
        "clusters": [{"name": "a", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [context(CONTEXT), context("other"), context("\u{1b}[2J")],
    });
    fs::write(&file, text.to_string()).unwrap();
    file
}

#[test]
fn contexts_are_those_of_the_kubeconfig_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = kubeconfig(dir.path(), "127.0.0.1:1");
    let file = file.to_str().unwrap();
    let of = |words: &[&str]| candidates(words).0;
    assert_eq!(of(&["wait", "--kubeconfig", file, "--context", ""]), [CONTEXT, "other"]);
    assert_eq!(of(&["wait", &format!("--kubeconfig={file}"), "--context", "o"]), ["other"]);
    assert_eq!(of(&["wait", "--kubeconfig", file, "--context=o"]), ["--context=other"]);
    assert_eq!(of(&["wait", "--context", ""]), [""; 0], "without a kubeconfig");
}

/// Neither a server that refuses connections nor one that never answers prints anything.
#[test]
fn an_api_server_that_fails_has_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in ["127.0.0.1:1".to_owned(), silent.local_addr().unwrap().to_string()] {
        let file = kubeconfig(dir.path(), &address);
        // One command's flag is a path, the other's is a text.
        for command in ["wait", "controller"] {
            let words = [command, "--kubeconfig", file.to_str().unwrap(), "--namespace", ""];
            assert_eq!(candidates(&words), (Vec::new(), ":4".to_owned()), "{command} {address}");
        }
    }
}

/// A credential plugin that hangs, perhaps for a login in a browser, is not waited for.
#[test]
fn a_credential_plugin_that_hangs_has_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = kubeconfig(dir.path(), "127.0.0.1:1");
    let pid = dir.path().join("pid");
    let exec = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never",
        "args": ["-c", format!("echo $$ >{}; exec sleep 60", pid.display())],
    });
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["users"][0]["user"] = serde_json::json!({ "exec": exec });
    fs::write(&file, config.to_string()).unwrap();
    assert_eq!(
        candidates(&["wait", "--kubeconfig", file.to_str().unwrap(), "--namespace", ""]),
        (Vec::new(), ":4".to_owned())
    );
    let kill = Command::new("kill").arg(fs::read_to_string(pid).unwrap().trim()).status();
    assert!(kill.unwrap().success(), "the plugin has ended: numacast has waited for it");
}

struct Shell {
    name: &'static str,
    /// How it is started without this machine's configuration.
    command: &'static str,
    setup: &'static str,
}

const SHELLS: [Shell; 3] = [
    Shell { name: "bash", command: "bash --norc -i", setup: "source <(numacast completion bash)" },
    Shell {
        name: "zsh",
        command: "zsh -f -i",
        setup: "autoload -U compinit; compinit -u -D; source <(numacast completion zsh)",
    },
    Shell { name: "fish", command: "fish --no-config -i", setup: "numacast completion fish | source" },
];

/// A home in which the shells find the binary as `numacast`.
fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_numacast"), home.path().join("numacast")).unwrap();
    home
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Types each line into the shell, in a terminal, with a tab at its end, and returns what became of it.
fn completed(shell: &Shell, home: &Path, lines: &[String]) -> Vec<String> {
    let result = |number: usize| home.join(format!("{}-{number}", shell.name));
    let mut keys = format!("{}\n", shell.setup);
    for (number, line) in lines.iter().enumerate() {
        // Ctrl-A and Ctrl-E: to the line's start and end. The completed line is printed instead of run.
        keys += &format!("{line}\t\u{1}echo \u{5}>{}\n", result(number).display());
    }
    keys += "exit\n";
    let path = format!("{}:{}", home.display(), std::env::var("PATH").unwrap());
    let mut terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", shell.command, "/dev/null"])
        .env_clear()
        .env("PATH", path)
        .env("HOME", home)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    terminal.stdin.take().unwrap().write_all(keys.as_bytes()).unwrap();
    let screen = terminal.wait_with_output().unwrap().stdout;
    let read = |number| {
        fs::read_to_string(result(number))
            .unwrap_or_else(|error| panic!("{error} of {}: {}", shell.name, String::from_utf8_lossy(&screen)))
    };
    (0..lines.len()).map(|number| read(number).trim_end().to_owned()).collect()
}

#[test]
fn shells_complete_what_is_typed() {
    let home = home();
    let file = kubeconfig(home.path(), "127.0.0.1:1");
    let file = file.display();
    let typed = [
        "numacast compl".to_owned(),
        "numacast purge --dr".to_owned(),
        format!("numacast wait --kubeconfig {file} --context arn:aws:eks:e"),
        format!("numacast config check {}/nu", home.path().display()),
    ];
    let expected = [
        "numacast completion".to_owned(),
        "numacast purge --dry-run".to_owned(),
        format!("numacast wait --kubeconfig {file} --context {CONTEXT}"),
        format!("numacast config check {}/numacast", home.path().display()),
    ];
    for shell in &SHELLS {
        if !is_installed(shell.name) || !is_installed("script") {
            assert!(shell.name != "bash", "Bash and script (bsdutils) are on every Debian");
            eprintln!("skipped for lack of {}: completion in it", shell.name);
            continue;
        }
        assert_eq!(completed(shell, home.path(), &typed), expected, "{}", shell.name);
    }
}

/// `kubectl_complete-numacast`, which kubectl runs: beside it is the plugin.
#[test]
fn the_executable_for_kubectl_completes_the_plugin() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_numacast"), dir.path().join("kubectl-numacast")).unwrap();
    let script = dir.path().join("kubectl_complete-numacast");
    fs::write(&script, numacast(&["completion", "kubectl"]).success()).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").arg(&script).args(["purge", "--dr"]).env("PATH", path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("--dry-run\t") && text.ends_with("\n:4\n"), "{text}");
}
