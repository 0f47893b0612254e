//! `numacast show` against a real API server, with the objects of several machines.

use std::io::BufRead;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use numacast::nrt::{FINGERPRINT, Version};
use numacast::scheduler::Fingerprint;
use serde_json::{Value, json};

use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts};

/// The name of a node, and the recording of its machine.
const NODES: [(&str, &str); 5] = [
    ("epyc-snc", "machine-snc-two-sockets"),
    ("grace", "machine-gb200"),
    ("plain", "machine-no-numa"),
    ("power9", "machine-power9"),
    ("xeon", "machine-two-by-eight"),
];

/// A cluster with these nodes' objects.
struct Fleet {
    cluster: Cluster,
    client: Client,
}

impl Fleet {
    async fn start(parts: &Parts) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        let fleet = Self { client: cluster.client(), cluster };
        for (name, recording) in NODES {
            fleet.apply(&object_of(name, recording)?, "numacast").await?;
        }
        Ok(fleet)
    }

    fn objects(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &Version::V1alpha2.resource())
    }

    async fn apply(&self, object: &Value, manager: &str) -> Result<()> {
        let name = object["metadata"]["name"].as_str().context("it has a name")?;
        let params = PatchParams::apply(manager).force();
        self.objects().patch(name, &params, &Patch::Apply(object)).await?;
        Ok(())
    }

    fn command(&self, args: &[&str]) -> Command {
        command(&self.cluster.admin_kubeconfig(), args)
    }

    /// Returns a command that runs `numacast` in a terminal of this size. `line` may begin with variables.
    fn terminal(&self, columns: u16, rows: u16, line: &str) -> Command {
        let (program, kubeconfig) = (env!("CARGO_BIN_EXE_numacast"), self.cluster.admin_kubeconfig());
        let (variables, words) = line.split_once("show").unwrap_or_default();
        let line = format!(
            "stty cols {columns} rows {rows}; {variables} exec {program} show{words} --kubeconfig {}",
            kubeconfig.display()
        );
        let mut command = tethered("script");
        command.args(["--quiet", "--flush", "--command", &line, "/dev/null"]);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        command
    }

    /// Returns what is shown in a terminal of this width.
    async fn in_terminal(&self, columns: u16, line: &str) -> Result<String> {
        let mut command = self.terminal(columns, 24, line);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok(String::from_utf8(output.stdout)?.replace("\r\n", "\n"))
    }

    /// Runs `numacast show`. Returns the exit code, standard output and standard error.
    async fn show(&self, args: &[&str]) -> Result<(Option<i32>, String, String)> {
        self.show_as(&self.cluster.admin_kubeconfig(), args).await
    }

    async fn show_as(&self, kubeconfig: &Path, args: &[&str]) -> Result<(Option<i32>, String, String)> {
        let mut command = command(kubeconfig, args);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }
}

fn command(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
    command.arg("show").args(args).arg("--kubeconfig").arg(kubeconfig);
    command
}

/// Returns text of a terminal without escape sequences.
fn without_colours(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest =
        parts.map(|part| part.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, rest)| rest));
    first + &rest.collect::<String>()
}

/// Returns the object that `numacast snapshot` computes from a recording.
pub(crate) fn object_of(name: &str, recording: &str) -> Result<Value> {
    let file = format!("{}/tests/replays/{recording}.json", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(env!("CARGO_BIN_EXE_numacast"))
        .args(["snapshot", "-o", "json", "--replay", &file])
        .output()?;
    let mut object: Value = serde_json::from_slice(&output.stdout)?;
    object["metadata"] = json!({"name": name});
    Ok(object)
}

/// Returns the attribute of a withheld fingerprint.
pub(crate) fn withheld() -> Value {
    json!({"name": FINGERPRINT, "value": Fingerprint::WITHHELD.to_string()})
}

pub(crate) fn add_attribute(object: &mut Value, attribute: Value) {
    object["attributes"].as_array_mut().into_iter().for_each(|all| all.push(attribute.clone()));
}

/// Returns the lines without their ends, the ages.
fn without_ages(text: &str) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((rest, age)) if age.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("{} AGE\n", rest.trim_end())
        }
        _ => format!("{}\n", line.trim_end()),
    };
    text.lines().map(line).collect()
}

/// Fails with both texts if they differ.
/// Returns what `docs/tools.md` shows as the output of a command.
fn documented(command: &str) -> Result<String> {
    let text = include_str!("../../docs/tools.md");
    let (_, after) = text.split_once(&format!("$ {command}\n")).context("the document has the command")?;
    let (output, _) = after.split_once("```").context("the block ends")?;
    Ok(output.to_owned())
}

fn same(found: &str, expected: &str) -> Result<()> {
    ensure!(found == expected, "found:\n{found}\nexpected:\n{expected}");
    Ok(())
}

const IN_80_COLUMNS: &str = "\
NODE      POLICY            CPU           MEMORY  DEVICES   STATUS       CHANGED
epyc-snc  restrict…   26/30 (8)    28/30Gi (7.7)  gpu 2/4…  OK AGE
grace     single-n…   10/14 (6)   126/126Gi (31)  gpu 3/4…  OK AGE
plain     none          0/3 (0)  7.8/7.8Gi (7.8)  nic 1/1…  Withheld AGE
power9    best-eff…  20/24 (11)     25/27Gi (12)  bridge …  OtherWriter AGE
xeon      best-eff…   10/14 (6)     23/25Gi (12)  bridge …  OK AGE
";

const IN_200_COLUMNS: &str = "\
NODE       POLICY             ZONES          CPU            MEMORY   DEVICES                       STATUS        CHANGED
epyc-snc   restricted             4    26/30 (8)     28/30Gi (7.7)   gpu 2/4 (1), nic 1/2 (1)      OK AGE
grace      single-numa-node      34    10/14 (6)    126/126Gi (31)   gpu 3/4 (2)                   OK AGE
plain      none                   1      0/3 (0)   7.8/7.8Gi (7.8)   nic 1/1 (1)                   Withheld AGE
power9     best-effort/pod        2   20/24 (11)      25/27Gi (12)   bridge 0/2 (0), nic 1/2 (1)   OtherWriter AGE
xeon       best-effort            2    10/14 (6)      23/25Gi (12)   bridge 2/4 (1), nic 3/4 (2)   OK AGE
";

#[tokio::test]
async fn a_fleet_is_a_table() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let fleet = Fleet::start(&parts).await?;
    let mut plain = object_of("plain", "machine-no-numa")?;
    add_attribute(&mut plain, withheld());
    fleet.apply(&plain, "numacast").await?;
    fleet.apply(&object_of("power9", "machine-power9")?, "nfd").await?;
    let (code, piped, errors) = fleet.show(&[]).await?;
    ensure!(code == Some(0) && errors.is_empty(), "{code:?}: {errors}");
    same(&without_ages(&piped), IN_200_COLUMNS)?;
    for (columns, expected) in [(80, IN_80_COLUMNS), (200, IN_200_COLUMNS)] {
        let shown = fleet.in_terminal(columns, "show").await?;
        ensure!(shown.contains("\x1b[32mOK\x1b[0m"), "no colours: {shown}");
        same(&without_ages(&without_colours(&shown)), expected)?;
    }
    let plain = fleet.in_terminal(200, "NO_COLOR=1 show").await?;
    ensure!(!plain.contains('\x1b'), "{plain}");

    let hostile = json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": "z"}, "zones": [{"name": "rack", "type": "Node"}],
        "attributes": [{"name": "topologyManagerPolicy", "value": "\u{1b}[2J\u{7}\u{202e}漢"}]});
    fleet.apply(&hostile, "numacast").await?;
    let (_, table, _) = fleet.show(&["z", "-o", "table", "--no-headers"]).await?;
    same(&without_ages(&table), "z   ?[2J???   0   -   -   -   Unreadable AGE\n")?;
    let picture = fleet.in_terminal(80, "NO_COLOR=1 show z").await?;
    ensure!(
        !picture.contains('\x1b') && picture.contains("\nthe zone \"rack\" has no id in its name\n"),
        "{picture}"
    );

    let (_, wide, _) = fleet.show(&["-o", "wide", "--no-headers"]).await?;
    let writers = wide.lines().filter_map(|line| line.split_whitespace().last());
    ensure!(
        writers.eq(["numacast", "numacast", "numacast", "numacast,nfd", "numacast", "numacast"]),
        "{wide}"
    );

    let names = async |args: &[&str]| -> Result<Vec<String>> {
        let (_, text, _) = fleet.show(&[&["-o", "name"], args].concat()).await?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let all = ["epyc-snc", "grace", "plain", "power9", "xeon", "z"];
    ensure!(names(&[]).await? == all);
    let by_cpu = names(&["--sort-by", "free-cpu"]).await?;
    ensure!(by_cpu == ["epyc-snc", "power9", "grace", "xeon", "plain", "z"], "{by_cpu:?}");
    let by_block = names(&["--sort-by", "largest-cpu"]).await?;
    ensure!(by_block == ["power9", "epyc-snc", "grace", "xeon", "plain", "z"], "{by_block:?}");
    ensure!(names(&["xeon", "grace", "xeon"]).await? == ["grace", "xeon"]);

    let nodes: Api<Node> = Api::all(fleet.client.clone());
    for (name, pool) in [("xeon", "a"), ("grace", "b"), ("without-an-object", "a"), ("another", "c")] {
        let node = json!({"metadata": {"name": name, "labels": {"pool": pool}}});
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    }
    ensure!(names(&["-l", "pool=a"]).await? == ["xeon"]);
    ensure!(names(&["-l", "pool in (a, b)"]).await? == ["grace", "xeon"]);
    for (selector, expected) in [
        ("pool=d", "numacast: no Node has these labels\n"),
        ("pool=c", "numacast: no Node with these labels has an object: do agents run on them?\n"),
    ] {
        let (code, out, errors) = fleet.show(&["-l", selector]).await?;
        ensure!(code == Some(0) && out.is_empty() && errors == expected, "{code:?}, {out}, {errors}");
    }
    let (code, _, errors) = fleet.show(&["-l", "pool in"]).await?;
    ensure!(code == Some(1) && errors.starts_with("numacast: the API server rejected"), "{errors}");
    Ok(())
}

#[tokio::test]
async fn a_shape_shows_what_is_stranded() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let fleet = Fleet::start(&parts).await?;
    let shape = "cpu=5,memory=4Gi,example.com/nic=1";
    let (code, shown, errors) = fleet.show(&["--shape", shape]).await?;
    ensure!(code == Some(0) && errors.is_empty(), "{code:?}: {errors}");
    same(&without_ages(&shown), &without_ages(&documented(&format!("numacast show --shape {shape}"))?))?;

    let names = async |by: &str| -> Result<String> {
        let (_, text, _) = fleet.show(&["-o", "name", "--shape", shape, "--sort-by", by]).await?;
        Ok(text.lines().collect::<Vec<_>>().join(" "))
    };
    let (by_pods, by_stranded) = (names("pods").await?, names("stranded").await?);
    ensure!(by_pods == "epyc-snc power9 xeon grace plain", "{by_pods}");
    ensure!(by_stranded == "xeon epyc-snc power9 grace plain", "{by_stranded}");

    let (code, _, errors) = fleet.show(&["--shape", "running"]).await?;
    let none =
        "numacast: no running pod has exclusive CPUs: name a shape such as --shape cpu=8,memory=16Gi\n";
    ensure!(code == Some(1) && errors == none, "{code:?}: {errors}");
    for (name, cpus) in [("a", "2"), ("b", "3"), ("c", "2")] {
        let resources = json!({"cpu": cpus, "memory": "1Gi"});
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"nodeName": "xeon",
            "containers": [{"name": "c", "image": "a", "resources": {"limits": resources}}]}}))?;
        let pods: Api<Pod> = Api::default_namespaced(fleet.client.clone());
        pods.create(&PostParams::default(), &pod).await?;
        let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
        pods.patch_status(name, &PatchParams::default(), &running).await?;
    }
    let (_, shown, errors) = fleet.show(&["xeon", "--shape", "running"]).await?;
    let summary =
        "\ncpu=2,memory=1Gi (requested by 2 running pods): 5 pods fit, 5 if zones did not matter; stranded: ";
    ensure!(shown.contains(summary) && shown.starts_with("NODE "), "{shown}{errors}");
    Ok(())
}

#[tokio::test]
async fn objects_are_printed_as_by_kubectl() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let fleet = Fleet::start(&parts).await?;
    for nodes in [&[][..], &["xeon"], &["xeon", "grace"]] {
        let kubectl = async |output: &'static str| -> Result<String> {
            let mut command = Command::new(parts.program("kubectl"));
            command.args(["get", "noderesourcetopologies", "-o", output]).args(nodes);
            command.arg("--kubeconfig").arg(fleet.cluster.admin_kubeconfig());
            command.arg("--cache-dir").arg(fleet.cluster.dir().join("cache"));
            let output = tokio::task::spawn_blocking(move || command.output()).await??;
            Ok(String::from_utf8(output.stdout)?)
        };
        let (_, json, _) = fleet.show(&[nodes, &["-o", "json"]].concat()).await?;
        same(&json, &kubectl("json").await?)?;
        let (_, yaml, _) = fleet.show(&[nodes, &["-o", "yaml"]].concat()).await?;
        let of = |text: &str| serde_saphyr::from_str::<Value>(text);
        ensure!(of(&yaml)? == of(&kubectl("yaml").await?)?, "{yaml}");
    }
    for (name, _) in NODES {
        fleet.objects().delete(name, &DeleteParams::default()).await?;
    }
    let (code, json, errors) = fleet.show(&["-o", "json"]).await?;
    ensure!(code == Some(0) && serde_json::from_str::<Value>(&json)?["items"] == json!([]), "{json}");
    ensure!(errors == "numacast: there are no objects: do agents run in this cluster?\n", "{errors}");
    Ok(())
}

/// Without its first line, which has ages.
const PICTURE: &str = "\
CPU Manager static, Memory Manager Static, reserved CPUs 0,8

node-0   train
  distances 10 21
  cpu       █████████████████░░░░░░░░░░░░░░░░░░░░░░░    3 used    4 free
  memory    ████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  1.3 used 11.3 free GiB
  1Gi pages ████████████████████░░░░░░░░░░░░░░░░░░░░    1 used    1 free GiB
  2Mi pages █░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░    0 used    1 free GiB
  bridge    ████████████████████░░░░░░░░░░░░░░░░░░░░    1 used    1 free
  nic       ████████████████████░░░░░░░░░░░░░░░░░░░░    1 used    1 free

node-1
  distances 21 10
  cpu       █████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░    1 used    6 free
  memory    █░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  0.5 used   12 free GiB
  1Gi pages ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░    0 used    2 free GiB
  2Mi pages ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░    0 used    1 free GiB
  bridge    ████████████████████░░░░░░░░░░░░░░░░░░░░    1 used    1 free
  nic       ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░    0 used    2 free

ZONES   POD             CONTAINER   CPUS   MEMORY   DEVICES
0       default/train   main        2      1 GiB    1 nic
";

#[tokio::test]
async fn a_node_is_a_picture() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let fleet = Fleet::start(&parts).await?;
    // A node with this policy has a container in one zone, and only node-0 has that much in use.
    let mut xeon = object_of("xeon", "machine-two-by-eight")?;
    xeon["attributes"][0]["value"] = json!("single-numa-node");
    fleet.apply(&xeon, "numacast").await?;
    let resources = json!({"cpu": "2", "memory": "1Gi", "example.com/nic": "1"});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "train"},
        "spec": {"nodeName": "xeon", "containers": [
            {"name": "main", "image": "a", "resources": {"limits": resources, "requests": resources}}]},
    }))?;
    Api::default_namespaced(fleet.client.clone()).create(&PostParams::default(), &pod).await?;
    let (code, shown, errors) = fleet.show(&["xeon", "nowhere"]).await?;
    let missing = "numacast: the node nowhere has no object: does an agent run on it?\n";
    ensure!(code == Some(1) && errors == missing, "{code:?}: {errors}");
    let (title, rest) = shown.split_once('\n').context("it is one line")?;
    ensure!(title.starts_with("xeon  single-numa-node, scope container, 2 zones  changed "), "{title}");
    same(rest, PICTURE)?;
    let title = fleet.in_terminal(80, "show xeon").await?;
    ensure!(title.starts_with("\x1b[1mxeon\x1b[0m  single-numa-node, "), "{title}");

    let limited = fleet.cluster.kubeconfig_as("nobody", &["system:authenticated"])?;
    let (code, _, errors) = fleet.show_as(&limited, &["xeon"]).await?;
    ensure!(code == Some(1) && errors.starts_with("numacast: RBAC denied the request"), "{errors}");
    Ok(())
}

#[tokio::test]
async fn a_watch_adds_lines() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let fleet = Fleet::start(&parts).await?;
    let (dir, log) = (fleet.cluster.dir(), |name: &str| fleet.cluster.dir().join(format!("{name}.log")));
    let _table = Process::start("table", dir, fleet.command(&["--watch"]))?;
    let _picture = Process::start("picture", dir, fleet.command(&["--watch", "xeon", "later"]))?;
    let lines = |name: &str| -> Result<Vec<String>> {
        Ok(std::fs::read_to_string(log(name))?.lines().map(str::to_owned).collect())
    };
    until("the table was printed", async || {
        let lines = lines("table")?;
        ensure!(lines.len() == 1 + NODES.len() && lines[0].starts_with("NODE "), "{lines:?}");
        Ok(())
    })
    .await?;
    until("the picture was printed", async || {
        let lines = lines("picture")?;
        ensure!(lines.iter().any(|line| line == "numacast: the node later has no object yet"), "{lines:?}");
        ensure!(lines.iter().filter(|line| line.starts_with("xeon ")).count() == 1, "{lines:?}");
        Ok(())
    })
    .await?;

    let mut xeon = object_of("xeon", "machine-two-by-eight")?;
    add_attribute(&mut xeon, withheld());
    fleet.apply(&xeon, "numacast").await?;
    fleet.apply(&object_of("later", "machine-no-numa")?, "numacast").await?;
    fleet.objects().delete("plain", &DeleteParams::default()).await?;
    until("the changes were printed", async || {
        let lines = lines("table")?;
        let rows: Vec<(&str, &str)> =
            lines.iter().skip(1 + NODES.len()).map(|line| node_and_status(line)).collect();
        ensure!(rows == [("xeon", "Withheld"), ("later", "OK"), ("plain", "Deleted")], "{rows:?}");
        Ok(())
    })
    .await?;
    until("the new pictures were printed", async || {
        let lines = lines("picture")?;
        let count = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
        ensure!(
            (count("xeon "), count("later "), count("The fingerprint is withheld")) == (2, 1, 1),
            "{lines:?}"
        );
        Ok(())
    })
    .await
}

/// Returns the first column, and the last but one.
fn node_and_status(line: &str) -> (&str, &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[0], words[words.len() - 2])
}

#[tokio::test]
async fn a_watch_redraws_the_terminal() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let fleet = Fleet::start(&parts).await?;
    let command = fleet.terminal(80, 5, "show --watch");
    let (mut script, _input, output) = Process::start_with_pipes("script", fleet.cluster.dir(), command)?;
    let mut screens = Screens::of(output);
    let first = screens.next().await?;
    let first: Vec<&str> =
        first.lines().map(|line| line.split_whitespace().next().unwrap_or_default()).collect();
    // Five rows: the last one is for the cursor, so there are headings, two nodes and a sentence.
    ensure!(first == ["NODE", "epyc-snc", "grace", "and"], "{first:?}");
    fleet.objects().delete("epyc-snc", &DeleteParams::default()).await?;
    loop {
        script.still_runs()?;
        let next = screens.next().await?;
        if !next.contains("epyc-snc") {
            ensure!(
                next.contains("\ngrace ") && next.contains("\nplain ") && next.contains("and 2 more"),
                "{next}"
            );
            return Ok(());
        }
    }
}

/// What a terminal shows after each redraw.
struct Screens {
    updates: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Screens {
    fn of(output: std::process::ChildStdout) -> Self {
        let (sender, updates) = tokio::sync::mpsc::unbounded_channel();
        std::thread::spawn(move || {
            // A redraw ends by clearing what is below.
            for update in std::io::BufReader::new(output).split(b'J') {
                let Ok(update) = update else { return };
                let text = String::from_utf8_lossy(&update).replace("\r\n", "\n");
                let text = without_colours(&text);
                // The first one is preceded by clearing the screen.
                if !text.is_empty() && sender.send(text).is_err() {
                    return;
                }
            }
        });
        Self { updates }
    }

    async fn next(&mut self) -> Result<String> {
        self.updates.recv().await.context("the terminal has ended")
    }
}
