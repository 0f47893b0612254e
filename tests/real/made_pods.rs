//! Random pods, made with Kubernetes' own types, are parsed and printed as Kubernetes does.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use numacast::core_v1::decode_pod;
use numacast::pod::Pod;
use numacast_sim::pods_api::SimPodsApi;
use serde_json::Value;

use crate::support::parts::fetched;
use crate::support::seed;

/// A pod's message, and what Kubernetes' types make of it.
type MadePod = (Vec<u8>, String);

/// Returns random pods. `None` if the program that makes them cannot be built here.
fn made_pods(form: &str, count: usize) -> Result<Option<Vec<MadePod>>> {
    let Some(dir) = fetched(&["madepods"])? else { return Ok(None) };
    let mut command = Command::new(dir.join("madepods"));
    let output =
        command.arg(form).arg((seed("random pods") >> 1).to_string()).arg(count.to_string()).output()?;
    ensure!(output.status.success(), "madepods: {}", String::from_utf8_lossy(&output.stderr));
    let pair = |line: &str| {
        let (message, form) = line.split_once('\t').context("no tab")?;
        Ok((of_hex(message)?, form.to_owned()))
    };
    // Embedded JSON is copied unchanged, even if it is not UTF-8.
    let pods: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(pair).collect::<Result<_>>()?;
    ensure!(pods.len() == count, "{} pods", pods.len());
    Ok(Some(pods))
}

fn of_hex(text: &str) -> Result<Vec<u8>> {
    let digits = |at| u8::from_str_radix(text.get(at..at + 2).unwrap_or_default(), 16);
    Ok((0..text.len()).step_by(2).map(digits).collect::<Result<_, _>>()?)
}

#[test]
fn protocol_buffers_and_json_are_parsed_alike() -> Result<()> {
    let Some(pods) = made_pods("json", 400)? else { return Ok(()) };
    let mut compared = 0;
    for (index, (message, json)) in pods.iter().enumerate() {
        // An unset time is null in JSON, but an empty time in the message.
        let metadata = &serde_json::from_str::<Value>(json)?["metadata"];
        let has_unset_time = metadata.get("deletionTimestamp").is_some_and(Value::is_null);
        // Nearly every pod has a name.
        if let (Ok(pod), Ok(same), false) =
            (decode_pod(message), Pod::from_json(json.as_bytes()), has_unset_time)
        {
            ensure!(pod == same, "pod {index} is {pod:?} and {same:?}");
            compared += 1;
        }
    }
    ensure!(compared > 100, "{compared} pods");
    Ok(())
}

/// The table equals that of `kubectl get pods -o wide` for pods in every state, as printed by kubectl's own
/// code.
#[tokio::test]
async fn a_table_shows_the_cells_of_kubectl() -> Result<()> {
    let Some(lines) = made_pods("rows", 600)? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("pods-api.sock");
    let kubelet = SimPodsApi::start(socket.clone())?;
    let mut expected = BTreeMap::new();
    for (message, cells) in lines {
        let cells: Vec<String> = serde_json::from_str(&cells)?;
        kubelet.set_encoded(&cells[0], message);
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
        let theirs = expected.get(name).context("an unknown pod")?;
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
