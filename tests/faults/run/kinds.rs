//! The kinds of faults.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::discovery::ApiResource;
use numacast::nrt::NodeResourceTopology;
use numacast::sim::api_server::{self, NODES, Rule, TOPOLOGIES};
use numacast::sim::kubelet::{Call, Fault};
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Code;

use super::world::{Kubelet, NODE, World};
use super::{DEADLINE, POLL, REFRESH, SETTLE};

/// The side of a fault. Two simultaneous faults are never on the same side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The kubelet, its sockets and files: its responses may be incorrect.
    Kubelet,
    /// The API server and its clients.
    Cluster,
}

macro_rules! kinds {
    ($($kind:ident $name:literal $side:ident $bound:ident,)*) => {
        /// One kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind { $($kind,)* }

        impl Kind {
            /// All kinds.
            pub(crate) const ALL: &[Self] = &[$(Self::$kind,)*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            pub(crate) fn side(self) -> Side {
                match self { $(Self::$kind => Side::$side,)* }
            }

            /// How long after the fault's end the object may be incorrect.
            pub(crate) fn bound(self) -> Duration {
                match self { $(Self::$kind => $bound,)* }
            }
        }
    };
}

/// Slack for a busy machine.
const SLACK: Duration = Duration::from_secs(2);
/// The longest delay between two failing scans, give or take a tenth, plus the scan; or a poll, if that is
/// longer.
const RESCAN: Duration = Duration::from_millis(5_500).saturating_add(DEADLINE).saturating_add(SLACK);
/// Like [`RESCAN`], plus the wait for a restarted kubelet whose pods disappeared while it was down.
const RESTART: Duration = RESCAN.saturating_add(SETTLE);
/// Like [`RESCAN`], plus the ten times longer period in which an agent that knows no earlier pods checks a
/// recently started kubelet against the object.
const BOTH: Duration = RESCAN.saturating_add(SETTLE.saturating_mul(10));
/// The longest delay between two failing writes, give or take a tenth, plus the write.
const REWRITE: Duration = Duration::from_secs(11).saturating_add(DEADLINE).saturating_add(SLACK);
/// Nothing failed, but there may have been no event either: the next poll, give or take a tenth, plus one
/// scan.
const SOON: Duration = POLL.saturating_add(SLACK);
/// Another client wrote or deleted the object: the next refresh, give or take a tenth, corrects it at the
/// latest. An object that is deleted repeatedly is recreated ten seconds later.
const NEXT_REFRESH: Duration = REFRESH
    .saturating_add(DEADLINE.saturating_mul(2))
    .saturating_add(SLACK)
    .saturating_add(Duration::from_secs(11));

/// A write with the old Node's uid may have happened in between: the garbage collector deletes the object,
/// and the next refresh recreates it.
const REMADE: Duration = REWRITE.saturating_add(NEXT_REFRESH);

kinds! {
    Nothing "nothing" Cluster SOON,
    Restart "kubelet restarts" Kubelet RESTART,
    Killed "kubelet killed (kill -9)" Kubelet RESTART,
    CrashLoop "kubelet in a crash loop" Kubelet RESTART,
    SocketGone "socket gone and back" Kubelet RESTART,
    DirectoryGone "pod-resources directory removed" Kubelet RESTART,
    PluginDirectoryGone "device-plugins directory removed" Kubelet RESCAN,
    ConnectionsCut "connection to the kubelet cut" Kubelet RESCAN,
    Partial "List partial" Kubelet RESCAN,
    Empty "List empty" Kubelet RESCAN,
    Slow "kubelet slow" Kubelet RESCAN,
    Late "List late, with an old answer" Kubelet RESCAN,
    Silent "kubelet never answers" Kubelet RESCAN,
    Oversize "answer over-size" Kubelet RESCAN,
    RateLimited "rate-limited" Kubelet RESCAN,
    Refused "kubelet answers with an error" Kubelet RESCAN,
    Garbage "answer garbage" Kubelet RESCAN,
    CutShort "connection cut in mid-answer" Kubelet RESCAN,
    NoInventory "inventory empty" Kubelet RESCAN,
    DevicesFlap "devices flap" Kubelet RESCAN,
    PluginFlaps "device plugin away and back" Kubelet RESCAN,
    StateGarbage "state files garbage" Kubelet RESCAN,
    StateMissing "state files missing" Kubelet RESCAN,
    StateUnreadable "state files unreadable" Kubelet RESCAN,
    StateOversize "state files over-size" Kubelet RESCAN,
    Storm "event storm" Kubelet RESCAN,
    NotifyFull "disk of the notify file full" Kubelet RESCAN,
    BothRestart "kubelet and agent restart" Kubelet BOTH,
    AgentRestarts "agent restarts" Cluster RESCAN,
    ServerDown "API server down" Cluster REWRITE,
    ServerSlow "API server slow" Cluster REWRITE,
    ServerFrozen "API server frozen" Cluster REWRITE,
    ServerSilent "API server never answers" Cluster REWRITE,
    Unauthorized "401" Cluster REWRITE,
    Forbidden "403" Cluster REWRITE,
    Conflict "409" Cluster REWRITE,
    Invalid "422" Cluster REWRITE,
    TooMany "429" Cluster REWRITE,
    ServerError "500, 503, 504" Cluster REWRITE,
    CutBefore "API connection cut before the work" Cluster REWRITE,
    CutAfter "API connection cut after the work" Cluster REWRITE,
    WatchGone "watches cut, history forgotten (410)" Cluster REWRITE,
    Edited "object edited by a person" Cluster NEXT_REFRESH,
    Deleted "object deleted" Cluster NEXT_REFRESH,
    CompetingPublisher "another manager rewrites it" Cluster REWRITE,
    NodeAgain "Node deleted and made again" Cluster REMADE,
    Uninstalled "CRD uninstalled and installed" Cluster REWRITE,
}

impl Kind {
    /// Injects the fault and returns when it is over.
    ///
    /// # Errors
    /// When the simulation fails.
    pub(crate) async fn happen(self, world: &World, rng: &mut Rng) -> Result<(), String> {
        let kubelet = &world.node.kubelet;
        let server = &world.node.server;
        world.note(format!("FAULT: {}", self.name()));
        match self {
            Self::Nothing => pause(rng, 300).await,
            Self::Restart | Self::Killed => restart(world, rng, self == Self::Killed).await?,
            Self::CrashLoop => crash_loop(world, rng).await?,
            Self::SocketGone => {
                let _ = fs::remove_file(kubelet.socket());
                pause(rng, 500).await;
                kubelet.listen_again().map_err(text)?;
            }
            Self::DirectoryGone => {
                remove(&kubelet.root().join("pod-resources"))?;
                pause(rng, 1200).await;
                kubelet.listen_again().map_err(text)?;
            }
            Self::PluginDirectoryGone => {
                remove(&kubelet.root().join("device-plugins"))?;
                pause(rng, 1200).await;
                kubelet.write_again().map_err(text)?;
            }
            Self::ConnectionsCut => {
                for _ in 0..rng.u8(1..4) {
                    kubelet.cut_connections();
                    pause(rng, 200).await;
                }
            }
            Self::Partial => wrong(world, rng, |rng| (Call::List, Fault::Partial(rng.usize(0..4)))).await,
            Self::Empty => wrong(world, rng, |_| (Call::List, Fault::Empty)).await,
            Self::Slow => wrong(world, rng, |rng| (either(rng), Fault::Delay(up_to(rng, 400)))).await,
            Self::Late => wrong(world, rng, |rng| (either(rng), Fault::Late(up_to(rng, 400)))).await,
            Self::Silent => wrong(world, rng, |rng| (either(rng), Fault::Hang)).await,
            Self::Oversize => wrong(world, rng, |rng| (either(rng), Fault::Oversize(17 << 20))).await,
            Self::RateLimited => {
                let limited = || Fault::Status(Code::ResourceExhausted, "rejected by rate limit".into());
                wrong(world, rng, |rng| (either(rng), limited())).await;
            }
            Self::Refused => {
                let codes = [
                    Code::Unavailable,
                    Code::Internal,
                    Code::Unknown,
                    Code::DeadlineExceeded,
                    Code::Cancelled,
                ];
                wrong(world, rng, |rng| {
                    (
                        either(rng),
                        Fault::Status(codes[rng.usize(0..codes.len())], "something is wrong".into()),
                    )
                })
                .await;
            }
            Self::Garbage => wrong(world, rng, |rng| (either(rng), Fault::Bytes(garbage(rng)))).await,
            Self::CutShort => wrong(world, rng, |rng| (either(rng), Fault::CutShort)).await,
            Self::NoInventory => wrong(world, rng, |_| (Call::Allocatable, Fault::Empty)).await,
            Self::DevicesFlap => {
                for _ in 0..rng.u8(3..12) {
                    world.change_device(rng);
                    pause(rng, 40).await;
                }
            }
            Self::PluginFlaps => {
                for _ in 0..rng.u8(1..4) {
                    let resource = world.plugin(rng);
                    kubelet.register_plugin(resource, false);
                    pause(rng, 300).await;
                    kubelet.register_plugin(resource, true);
                    pause(rng, 50).await;
                }
            }
            Self::StateGarbage | Self::StateMissing | Self::StateUnreadable | Self::StateOversize => {
                self.spoil(kubelet.root(), rng).map_err(text)?;
                pause(rng, 800).await;
                kubelet.write_again().map_err(text)?;
            }
            Self::Storm => storm(kubelet.root().to_owned(), rng.u32(20_000..60_000)).await?,
            Self::NotifyFull => {
                // Writes to the file now go to a device that is always full, and cause no event.
                let file = world.notify_file();
                let _ = fs::remove_file(&file);
                std::os::unix::fs::symlink("/dev/full", &file).map_err(text)?;
                pause(rng, 300).await;
                world.live(rng).await;
                if fs::write(&file, "now").is_ok() {
                    return Err("the disk of the notify file is not full".to_owned());
                }
                pause(rng, 300).await;
                fs::remove_file(&file).map_err(text)?;
            }
            Self::BothRestart => {
                let (mut one, mut other) = (rng.fork(), rng.fork());
                let agent = async {
                    pause(&mut one, 600).await;
                    restart_agent(world, &mut one).await
                };
                let killed = other.bool();
                let (agent, kubelet) = tokio::join!(agent, restart(world, &mut other, killed));
                agent.and(kubelet)?;
            }
            Self::AgentRestarts => restart_agent(world, rng).await?,
            Self::ServerDown => {
                server.stop();
                pause(rng, 2500).await;
                server.resume().await.map_err(text)?;
            }
            Self::ServerSlow => {
                let fault = api_server::Fault::Delay(up_to(rng, 450));
                server.inject(Rule { verb: None, resource: None, times: None, fault });
                pause(rng, 2500).await;
                server.clear_faults();
            }
            Self::ServerFrozen => {
                server.set_frozen(true);
                pause(rng, 2500).await;
                server.set_frozen(false);
            }
            Self::ServerSilent => fail(world, rng, &[api_server::Fault::Hang]).await,
            Self::Unauthorized => fail(world, rng, &[api_server::Fault::Status(401)]).await,
            Self::Conflict => fail(world, rng, &[api_server::Fault::Status(409)]).await,
            Self::Invalid => fail(world, rng, &[api_server::Fault::Status(422)]).await,
            Self::TooMany => fail(world, rng, &[api_server::Fault::TooManyRequests { retry_after: 1 }]).await,
            Self::ServerError => fail(world, rng, &[500, 503, 504].map(api_server::Fault::Status)).await,
            Self::CutBefore => fail(world, rng, &[api_server::Fault::Cut]).await,
            Self::CutAfter => fail(world, rng, &[api_server::Fault::CutAfterwards]).await,
            Self::Forbidden => {
                let verbs: &[&str] = if rng.bool() { &["patch"] } else { &["patch", "get", "watch", "list"] };
                verbs.iter().for_each(|verb| server.set_denied(verb, TOPOLOGIES.plural, true));
                pause(rng, 2000).await;
                verbs.iter().for_each(|verb| server.set_denied(verb, TOPOLOGIES.plural, false));
            }
            Self::WatchGone => {
                for _ in 0..rng.u8(1..3) {
                    server.compact_history();
                    server.cut_connections();
                    pause(rng, 400).await;
                }
            }
            Self::Edited => {
                pause(rng, 300).await;
                edit(world, rng, "kubectl-edit").await?;
            }
            Self::Deleted => {
                pause(rng, 300).await;
                server.delete(&TOPOLOGIES, "", NODE);
            }
            Self::CompetingPublisher => {
                for _ in 0..rng.u8(3..15) {
                    edit(world, rng, "another-exporter").await?;
                    pause(rng, 250).await;
                }
            }
            Self::NodeAgain => {
                server.delete(&NODES, "", NODE);
                pause(rng, 1000).await;
                world.register_node()?;
            }
            Self::Uninstalled => {
                server.delete(&TOPOLOGIES, "", NODE);
                server.set_installed(false);
                pause(rng, 2000).await;
                server.set_installed(true);
            }
        }
        world.note(format!("over: {}", self.name()));
        Ok(())
    }

    /// Returns true if the kubelet restarts during the fault.
    pub(crate) fn is_restart(self) -> bool {
        matches!(self, Self::Restart | Self::Killed | Self::CrashLoop | Self::BothRestart)
    }

    /// Returns true if both faults can happen at once.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        self.side() != other.side()
    }

    /// Returns true if the fault can have an effect on this node.
    pub(crate) fn fits(self, world: &World) -> bool {
        let of_state = matches!(
            self,
            Self::StateGarbage | Self::StateMissing | Self::StateUnreadable | Self::StateOversize
        );
        world.variant.state_files || !of_state
    }

    /// Damages some of the managers' checkpoints.
    fn spoil(self, root: &Path, rng: &mut Rng) -> io::Result<()> {
        let all = ["cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint"];
        for name in all {
            if rng.u8(0..3) == 0 {
                continue;
            }
            let path = root.join(name);
            let temporary = path.with_file_name(".spoilt");
            match self {
                Self::StateMissing => {
                    fs::remove_file(&path)?;
                    continue;
                }
                // A symlink to itself is unreadable even for root.
                Self::StateUnreadable => std::os::unix::fs::symlink(&path, &temporary)?,
                Self::StateOversize => fs::File::create(&temporary)?.set_len(17 << 20)?,
                _ => fs::write(&temporary, state_garbage(rng, &path))?,
            }
            fs::rename(&temporary, &path)?;
        }
        Ok(())
    }
}

/// Truncated, empty or random content, or a document of the wrong form.
fn state_garbage(rng: &mut Rng, path: &Path) -> Vec<u8> {
    let mut content = fs::read(path).unwrap_or_default();
    match rng.u8(0..4) {
        0 => content.truncate(content.len() / 2),
        1 => content.clear(),
        2 => content = (0..200).map(|_| rng.u8(..)).collect(),
        _ => content = b"{\"entries\": 7, \"machineState\": [], \"Data\": null, \"policyName\": {}}".to_vec(),
    }
    content
}

async fn pause(rng: &mut Rng, most: u64) {
    sleep(up_to(rng, most)).await;
}

fn up_to(rng: &mut Rng, milliseconds: u64) -> Duration {
    Duration::from_millis(rng.u64(0..=milliseconds))
}

fn either(rng: &mut Rng) -> Call {
    if rng.u8(0..3) > 0 { Call::List } else { Call::Allocatable }
}

/// Injects faults into a few calls to the kubelet and makes the agent scan.
async fn wrong(world: &World, rng: &mut Rng, draw: impl Fn(&mut Rng) -> (Call, Fault)) {
    let kubelet = &world.node.kubelet;
    for _ in 0..rng.u8(1..4) {
        let (call, fault) = draw(rng);
        kubelet.fail_next(call, rng.usize(1..3), &fault);
        world.change_device(rng);
        pause(rng, 700).await;
    }
    kubelet.clear_faults();
}

/// Bytes that are no response: random bytes, wrong wire types, invalid text, invalid lengths.
fn garbage(rng: &mut Rng) -> Vec<u8> {
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

async fn restart_agent(world: &World, rng: &mut Rng) -> Result<(), String> {
    world.stop_agent().await?;
    world.note("the agent has stopped".to_owned());
    pause(rng, 300).await;
    world.start_agent();
    world.note("the agent starts".to_owned());
    Ok(())
}

/// Restarts the kubelet; its parts come back one by one.
async fn restart(world: &World, rng: &mut Rng, killed: bool) -> Result<(), String> {
    world.kubelet.set(Kubelet::Down);
    if killed {
        world.node.kubelet.kill()
    } else {
        world.node.kubelet.stop()
    }
    pause(rng, 500).await;
    boot(world, rng).await?;
    be_ready(world, rng).await
}

async fn boot(world: &World, rng: &mut Rng) -> Result<(), String> {
    world.kubelet.set(Kubelet::Starting);
    world.node.kubelet.boot().map_err(text)?;
    world.note("the kubelet starts".to_owned());
    pause(rng, 200).await;
    Ok(())
}

/// Brings back the managers, the pods and the device plugins in any order; then the kubelet admits pods
/// again.
async fn be_ready(world: &World, rng: &mut Rng) -> Result<(), String> {
    let kubelet = &world.node.kubelet;
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
                    fs::write(world.notify_file(), "now").map_err(text)?;
                    pause(rng, 100).await;
                }
                kubelet.clear_faults();
            }
            resource => drop(kubelet.register_plugin(resource, true)),
        }
        kubelet.set_ready(managers, pods);
        world.note(format!("{part}: back"));
        if managers && pods {
            world.kubelet.set(Kubelet::Up);
        }
    }
    Ok(())
}

/// Kills the kubelet a few times at random moments of its startup.
async fn crash_loop(world: &World, rng: &mut Rng) -> Result<(), String> {
    for _ in 0..rng.u8(1..4) {
        world.kubelet.set(Kubelet::Down);
        world.node.kubelet.kill();
        pause(rng, 200).await;
        boot(world, rng).await?;
        if rng.bool() {
            world.node.kubelet.set_ready(true, false);
            pause(rng, 100).await;
        }
    }
    restart(world, rng, true).await
}

fn remove(directory: &Path) -> Result<(), String> {
    fs::remove_dir_all(directory).map_err(text)
}

/// Causes more inotify events at once than the kernel queues for a slow reader.
async fn storm(root: std::path::PathBuf, count: u32) -> Result<(), String> {
    let blow = move || -> io::Result<()> {
        let (one, other) = (root.join(".storm"), root.join("device-plugins/.storm"));
        fs::write(&one, "")?;
        for _ in 0..count / 2 {
            fs::rename(&one, &other)?;
            fs::rename(&other, &one)?;
        }
        fs::remove_file(&one)
    };
    tokio::task::spawn_blocking(blow).await.map_err(text)?.map_err(text)
}

/// Injects faults into a few requests, either for the object or of any kind.
async fn fail(world: &World, rng: &mut Rng, faults: &[api_server::Fault]) {
    let server = &world.node.server;
    let everything = rng.u8(0..4) == 0;
    for _ in 0..rng.u8(1..4) {
        let fault = faults[rng.usize(0..faults.len())].clone();
        let resource = (!everything).then_some(TOPOLOGIES.plural);
        server.inject(Rule { verb: None, resource, times: Some(rng.usize(1..4)), fault });
        world.change_device(rng);
        pause(rng, 800).await;
    }
    server.clear_faults();
}

/// Changes the numbers in the object as another manager.
async fn edit(world: &World, rng: &mut Rng, manager: &str) -> Result<(), String> {
    let Some(object) = world.node.server.get(&TOPOLOGIES, "", NODE) else { return Ok(()) };
    let mut zones = object["zones"].clone();
    if rng.u8(0..4) == 0 {
        zones = Value::Array(zones.as_array().into_iter().flatten().take(1).cloned().collect());
    }
    for zone in zones.as_array_mut().into_iter().flatten() {
        for resource in zone["resources"].as_array_mut().into_iter().flatten() {
            resource["available"] = json!(rng.u8(0..9).to_string());
        }
    }
    let api: Api<DynamicObject> =
        Api::all_with(world.client.clone(), &ApiResource::erase::<NodeResourceTopology>(&()));
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    world.note(format!("{manager} writes"));
    match api.patch(NODE, &params, &Patch::Merge(json!({"zones": zones}))).await {
        Ok(_) => Ok(()),
        // It was deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
