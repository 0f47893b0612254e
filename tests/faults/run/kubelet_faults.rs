//! Faults of the kubelet, its socket and its files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use numacast_sim::kubelet::{Call, Fault};

use super::environment::{Environment, KubeletState, text};
use super::fault_kind::FaultKind;
use super::pause;

pub(super) fn any_call(rng: &mut Rng) -> Call {
    if rng.u8(0..3) > 0 { Call::List } else { Call::Allocatable }
}

/// Injects faults into a few calls to the kubelet and makes the agent scan.
pub(super) async fn fail_calls(env: &Environment, rng: &mut Rng, draw: impl Fn(&mut Rng) -> (Call, Fault)) {
    let kubelet = &env.node.kubelet;
    for _ in 0..rng.u8(1..4) {
        let (call, fault) = draw(rng);
        kubelet.fail_next(call, rng.usize(1..3), &fault);
        env.change_device(rng);
        pause(rng, 700).await;
    }
    kubelet.clear_faults();
}

/// Bytes that are no response: random bytes, wrong wire types, invalid text, invalid lengths.
pub(super) fn invalid_bytes(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(0..6) {
        0 => (0..rng.usize(1..400)).map(|_| rng.u8(..)).collect(),
        // Field 1 as a number.
        1 => vec![0x08, 0x01],
        // A pod whose name is invalid UTF-8.
        2 => vec![0x0a, 0x03, 0x0a, 0x01, 0xff],
        // A pod that is longer than the message.
        3 => vec![0x0a, 0x7f, 0x01],
        // A number that does not end.
        4 => vec![0xff; 20],
        // The end of a group that was not started.
        _ => vec![0x0c],
    }
}

/// Damages some of the managers' checkpoints.
pub(super) fn damage_checkpoints(kind: FaultKind, root: &Path, rng: &mut Rng) -> io::Result<()> {
    let all = ["cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint"];
    for name in all {
        if rng.u8(0..3) == 0 {
            continue;
        }
        let path = root.join(name);
        let temporary = path.with_file_name(".damaged");
        match kind {
            FaultKind::CheckpointMissing => {
                fs::remove_file(&path)?;
                continue;
            }
            // A symlink to itself is unreadable even for root.
            FaultKind::CheckpointUnreadable => std::os::unix::fs::symlink(&path, &temporary)?,
            FaultKind::CheckpointTooLarge => fs::File::create(&temporary)?.set_len(17 << 20)?,
            _ => fs::write(&temporary, invalid_checkpoint(rng, &path))?,
        }
        fs::rename(&temporary, &path)?;
    }
    Ok(())
}

/// Truncated, empty or random content, or a document of the wrong form.
fn invalid_checkpoint(rng: &mut Rng, path: &Path) -> Vec<u8> {
    let mut content = fs::read(path).unwrap_or_default();
    match rng.u8(0..4) {
        0 => content.truncate(content.len() / 2),
        1 => content.clear(),
        2 => content = (0..200).map(|_| rng.u8(..)).collect(),
        _ => content = b"{\"entries\": 7, \"machineState\": [], \"Data\": null, \"policyName\": {}}".to_vec(),
    }
    content
}

/// Causes more inotify events at once than the kernel queues for a slow reader.
pub(super) async fn event_storm(root: PathBuf, count: u32) -> Result<(), String> {
    let rename = move || -> io::Result<()> {
        let (one, other) = (root.join(".storm"), root.join("device-plugins/.storm"));
        fs::write(&one, "")?;
        for _ in 0..count / 2 {
            fs::rename(&one, &other)?;
            fs::rename(&other, &one)?;
        }
        fs::remove_file(&one)
    };
    tokio::task::spawn_blocking(rename).await.map_err(text)?.map_err(text)
}

/// Restarts the kubelet; managers, pods and plugins are back one by one.
pub(super) async fn restart(env: &Environment, rng: &mut Rng, killed: bool) -> Result<(), String> {
    env.kubelet.set(KubeletState::Down);
    if killed {
        env.node.kubelet.kill()
    } else {
        env.node.kubelet.stop()
    }
    pause(rng, 500).await;
    boot(env, rng).await?;
    become_ready(env, rng).await
}

/// Kills the kubelet a few times at random moments of its start.
pub(super) async fn crash_loop(env: &Environment, rng: &mut Rng) -> Result<(), String> {
    for _ in 0..rng.u8(1..4) {
        env.kubelet.set(KubeletState::Down);
        env.node.kubelet.kill();
        pause(rng, 200).await;
        boot(env, rng).await?;
        if rng.bool() {
            env.node.kubelet.set_ready(true, false);
            pause(rng, 100).await;
        }
    }
    restart(env, rng, true).await
}

async fn boot(env: &Environment, rng: &mut Rng) -> Result<(), String> {
    env.kubelet.set(KubeletState::Starting);
    env.node.kubelet.boot().map_err(text)?;
    env.record("the kubelet starts".to_owned());
    pause(rng, 200).await;
    Ok(())
}

/// Starts the managers, lists the pods and registers the device plugins in any order; then the kubelet admits
/// pods again.
async fn become_ready(env: &Environment, rng: &mut Rng) -> Result<(), String> {
    let kubelet = &env.node.kubelet;
    let mut parts = ["managers", "pods", "example.com/nic", "example.com/bridge"];
    // The managers mostly come first, the pods mostly last.
    let first = usize::from(rng.u8(0..3) > 0);
    rng.shuffle(&mut parts[first..]);
    if rng.u8(0..3) > 0 {
        parts.sort_by_key(|part| *part == "pods");
    }
    let (mut managers, mut pods) = (false, false);
    for part in parts {
        pause(rng, 300).await;
        match part {
            "managers" => managers = true,
            "pods" => {
                pods = true;
                // For a moment it lists only some of them, as real ones do (tests/real/order.rs).
                kubelet.fail_next(Call::List, rng.usize(0..3), &Fault::Partial(rng.usize(0..4)));
                kubelet.set_ready(managers, pods);
                for _ in 0..rng.u8(1..4) {
                    // Hooks make the agent scan at this moment.
                    fs::write(env.notify_file(), "now").map_err(text)?;
                    pause(rng, 100).await;
                }
                kubelet.clear_faults();
            }
            resource => drop(kubelet.register_plugin(resource, true)),
        }
        kubelet.set_ready(managers, pods);
        env.record(format!("ready: {part}"));
        if managers && pods {
            env.kubelet.set(KubeletState::Up);
        }
    }
    Ok(())
}
