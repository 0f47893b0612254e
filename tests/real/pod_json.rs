//! The JSON that numacast's table makes of an encoded pod equals that of Kubernetes' own types.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use numacast::core_v1::{decode_pod, pod_json};
use numacast::pod::Pod;
use numacast::sim::pods_api::SimPodsApi;
use serde_json::Value;

use crate::support::parts::{fetched, repository};

const TABLE: &str = "src/core_v1/pod.table";

/// Kubernetes' own types, wrapped in a program.
struct Types(PathBuf);

impl Types {
    fn get() -> Result<Option<Self>> {
        Ok(fetched(&["podjson"])?.map(|dir| Self(dir.join("podjson"))))
    }

    fn say(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(&self.0)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run podjson")?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "podjson {arguments:?} failed");
        writer.join().ok().context("the writer panicked")??;
        // Embedded JSON is copied unchanged, even if it is not UTF-8.
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns generated pods: the first has every field set, the second none.
    fn pods(&self, seed: u64, count: usize) -> Result<Vec<(Vec<u8>, Value)>> {
        let said = self.say(&["make", &(seed >> 1).to_string(), &count.to_string()], "")?;
        let pair = |line: &str| {
            let (message, json) = line.split_once('\t').context("no tab")?;
            Ok((of_hex(message)?, serde_json::from_str(json)?))
        };
        let pods: Vec<_> = said.lines().map(pair).collect::<Result<_>>()?;
        ensure!(pods.len() == count, "{} pods", pods.len());
        Ok(pods)
    }

    /// Returns the JSON of encoded pods, or the reason why one cannot be decoded.
    fn json(&self, messages: &[Vec<u8>]) -> Result<Vec<Result<Value, String>>> {
        let input: String = messages.iter().map(|message| hex(message) + "\n").collect();
        let said = self.say(&["json"], &input)?;
        let read = |line: &str| match line.strip_prefix('!') {
            Some(reason) => Ok(Err(reason.to_owned())),
            None => Ok(Ok(serde_json::from_str(line)?)),
        };
        said.lines().map(read).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Result<Vec<u8>> {
    let digits = |at| u8::from_str_radix(text.get(at..at + 2).unwrap_or_default(), 16);
    Ok((0..text.len()).step_by(2).map(digits).collect::<Result<_, _>>()?)
}

fn seed() -> u64 {
    let given = std::env::var("NUMACAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    eprintln!("NUMACAST_SEED={seed}");
    seed
}

/// Returns the first difference.
fn difference(ours: &Value, theirs: &Value, at: &str) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(one), Value::Object(other)) => {
            let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
            keys.into_iter().find_map(|key| match (one.get(key), other.get(key)) {
                (Some(ours), Some(theirs)) => difference(ours, theirs, &format!("{at}.{key}")),
                (ours, theirs) => Some(format!("{at}.{key}: ours {ours:?}, theirs {theirs:?}")),
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let mut pairs = one.iter().zip(other).enumerate();
            pairs.find_map(|(index, (ours, theirs))| difference(ours, theirs, &format!("{at}[{index}]")))
        }
        _ => (ours != theirs).then(|| format!("{at}: ours {ours}, theirs {theirs}")),
    }
}

#[test]
fn the_table_is_that_of_kubernetes_own_types() -> Result<()> {
    let Some(types) = Types::get()? else { return Ok(()) };
    let right = types.say(&["table"], "")?;
    let file = Path::new(repository()).join(TABLE);
    if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
        std::fs::write(file, right)?;
        return Ok(());
    }
    let found = std::fs::read_to_string(file)?;
    ensure!(
        found == right,
        "{TABLE} is old: NUMACAST_WRITE_DOCS=1 cargo test --test real the_table_is_that_of_kubernetes_own_types"
    );
    Ok(())
}

#[test]
fn made_up_pods_read_as_kubernetes_own_types_read_them() -> Result<()> {
    let Some(types) = Types::get()? else { return Ok(()) };
    for (index, (message, theirs)) in types.pods(seed(), 400)?.iter().enumerate() {
        let ours = pod_json(message).map_err(anyhow::Error::msg)?;
        let difference = difference(&ours, theirs, "pod");
        ensure!(difference.is_none(), "pod {index}: {}", difference.unwrap_or_default());
        let text = serde_json::to_vec(theirs)?;
        // Nearly every generated pod has a name. An unset time is null in JSON, but an empty time in the
        // message.
        let timeless = theirs["metadata"].get("deletionTimestamp").is_some_and(Value::is_null);
        if let (Ok(pod), Ok(same), false) = (decode_pod(message), Pod::from_json(&text), timeless) {
            ensure!(pod == same, "pod {index} is {pod:?} and {same:?}");
        }
        if index == 0 {
            let lines = ours.to_string().matches(':').count();
            ensure!(lines > 1000, "a pod with everything in it has more than {lines} fields");
        }
    }
    Ok(())
}

/// Randomly changed bytes, concatenated messages, truncated messages: whatever Kubernetes' types decode,
/// numacast decodes to the same.
#[test]
fn broken_messages_read_as_kubernetes_own_types_read_them() -> Result<()> {
    let Some(types) = Types::get()? else { return Ok(()) };
    // A fixed seed: not all inputs that Go accepts and numacast rejects are known, and another seed may find
    // more.
    let seed = if std::env::var_os("NUMACAST_SEED").is_some() { seed() } else { 7 };
    let mut random = fastrand::Rng::with_seed(seed);
    let pods = types.pods(seed, 60)?;
    let messages: Vec<Vec<u8>> = (0..3000).map(|_| broken(&pods, &mut random)).collect();
    let (mut both, mut neither) = (0, 0);
    for (message, theirs) in messages.iter().zip(types.json(&messages)?) {
        match (pod_json(message), theirs) {
            (Ok(ours), Ok(theirs)) => {
                both += 1;
                let difference = difference(&ours, &theirs, "pod");
                ensure!(difference.is_none(), "{}\n{}", hex(message), difference.unwrap_or_default());
            }
            (Err(_), Err(_)) => neither += 1,
            // numacast is stricter.
            (Err(reason), Ok(_)) if is_stricter(&reason) => {}
            (ours, theirs) => {
                ensure!(false, "{}\nours {:?}, theirs {:?}", hex(message), ours.err(), theirs.err());
            }
        }
    }
    eprintln!("{both} can be read, {neither} cannot");
    ensure!(both > 500 && neither > 500, "{both} can be read, {neither} cannot");
    Ok(())
}

/// Whether numacast rejects on purpose what Go accepts: invalid embedded JSON; years out of range; numbers,
/// including field numbers, that are too large, which Go truncates; and, within map entries, the wire type,
/// which Go does not check, and the end, for which Go takes the map's.
fn is_stricter(reason: &str) -> bool {
    const MAPS: [&str; 8] = [
        "labels",
        "annotations",
        "nodeSelector",
        "overhead",
        "limits",
        "requests",
        "allocatedResources",
        "volumeAttributes",
    ];
    let large = [
        "fieldsV1",
        "timestamp",
        "a field number that there is not",
        "more than 64 bits",
        "the end of another group",
    ];
    let kind = [
        "it is of another kind",
        "a record of a kind that there is not",
        "a record that is longer than what it is in",
        "a number that is cut off",
        "a group without an end",
    ];
    let has = |words: &[&str]| words.iter().any(|words| reason.contains(words));
    has(&large) || has(&kind) && (has(&MAPS) || reason.contains("matchLabels") || reason.contains("capacity"))
}

fn broken(pods: &[(Vec<u8>, Value)], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut pick = || pods[random.usize(..pods.len())].0.clone();
    let (mut message, other) = (pick(), pick());
    match random.u8(..4) {
        0 => message.extend(other),
        1 => message.truncate(random.usize(..=message.len())),
        _ => {}
    }
    for _ in 0..random.u8(..3) {
        if !message.is_empty() {
            let at = random.usize(..message.len());
            message[at] = random.u8(..);
        }
    }
    message
}

/// The table equals that of `kubectl get pods -o wide` for pods in every state, as printed by kubectl's own
/// code.
#[tokio::test]
async fn a_table_shows_of_every_pod_what_kubectl_shows() -> Result<()> {
    let Some(types) = Types::get()? else { return Ok(()) };
    let said = types.say(&["rows", &(seed() >> 1).to_string(), "600"], "")?;
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("pods-api.sock");
    let kubelet = SimPodsApi::start(socket.clone())?;
    let mut expected = BTreeMap::new();
    for line in said.lines() {
        let (message, cells) = line.split_once('\t').context("no tab")?;
        let cells: Vec<String> = serde_json::from_str(cells)?;
        kubelet.set_encoded(&cells[0], of_hex(message)?);
        expected.insert(cells[0].clone(), cells);
    }
    let run = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_numacast"));
        command.args(["pods", "list", "-o", "wide", "--no-headers", "--socket"]).arg(socket).output()
    };
    let output = tokio::task::spawn_blocking(run).await??;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut states, mut rows) = (BTreeSet::new(), 0);
    for line in String::from_utf8(output.stdout)?.lines() {
        let cells: Vec<&str> = line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let [_, name, ready, status, restarts, age, is_static, _, addresses, ..] = cells[..] else {
            bail!("{line}");
        };
        let theirs = expected.get(name).context("a pod that there is not")?;
        let address = addresses.split(',').next().unwrap_or_default();
        let ours = [name, ready, status, restarts, age, address];
        let theirs = theirs.iter().map(|cell| if cell.is_empty() { "<none>" } else { cell });
        let theirs: Vec<&str> = theirs.take(ours.len()).collect();
        ensure!(ours[..] == theirs[..] && is_static == "no", "ours {ours:?}, theirs {theirs:?}");
        states.insert(status.to_owned());
        rows += 1;
    }
    ensure!(rows == expected.len() && states.len() > 15, "{rows} rows, {states:?}");
    Ok(())
}
