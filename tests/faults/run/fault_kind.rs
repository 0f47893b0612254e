//! The kinds of faults, with the time after which the object must be correct again.

use std::fs;
use std::time::Duration;

use fastrand::Rng;
use numacast_sim::api_server::{self, NODES, Rule, TOPOLOGIES};
use numacast_sim::kubelet::{Call, Fault};
use tonic::Code;

use super::cluster_faults::{edit, fail_requests};
use super::environment::{Environment, NODE, text};
use super::kubelet_faults::{
    any_call, crash_loop, damage_checkpoints, event_storm, fail_calls, invalid_bytes, restart,
};
use super::{POLL, REFRESH, RESTART_WAIT, TIMEOUT, pause, up_to};

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
        pub(crate) enum FaultKind { $($kind,)* }

        impl FaultKind {
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
const RESCAN: Duration = Duration::from_millis(5_500).saturating_add(TIMEOUT).saturating_add(SLACK);
/// Like [`RESCAN`], plus the wait for a restarted kubelet whose pods disappeared while it was down.
const RESTART: Duration = RESCAN.saturating_add(RESTART_WAIT);
/// Like [`RESCAN`], plus the ten times longer period in which an agent that knows no earlier pods checks a
/// recently started kubelet against the object.
const BOTH_RESTART: Duration = RESCAN.saturating_add(RESTART_WAIT.saturating_mul(10));
/// The longest delay between two failing writes, give or take a tenth, plus the write.
const REWRITE: Duration = Duration::from_secs(11).saturating_add(TIMEOUT).saturating_add(SLACK);
/// Nothing failed, but there may have been no event either: the next poll, give or take a tenth, plus one
/// scan.
const NEXT_POLL: Duration = POLL.saturating_add(SLACK);
/// Another client wrote or deleted the object: the next refresh, give or take a tenth, corrects it at the
/// latest. An object that is deleted repeatedly is recreated ten seconds later.
const NEXT_REFRESH: Duration = REFRESH
    .saturating_add(TIMEOUT.saturating_mul(2))
    .saturating_add(SLACK)
    .saturating_add(Duration::from_secs(11));
/// A write with the old Node's UID may have happened in between: the garbage collector deletes the object,
/// and the next refresh recreates it.
const RECREATE: Duration = REWRITE.saturating_add(NEXT_REFRESH);

kinds! {
    NoFault "no fault" Cluster NEXT_POLL,
    Restart "kubelet restarts" Kubelet RESTART,
    Killed "kubelet killed (kill -9)" Kubelet RESTART,
    CrashLoop "kubelet in a crash loop" Kubelet RESTART,
    SocketRemoved "socket removed and created" Kubelet RESTART,
    SocketDirRemoved "pod-resources directory removed" Kubelet RESTART,
    PluginDirRemoved "device-plugins directory removed" Kubelet RESCAN,
    ConnectionLost "connection to the kubelet lost" Kubelet RESCAN,
    PartialList "List partial" Kubelet RESCAN,
    EmptyList "List empty" Kubelet RESCAN,
    Slow "kubelet slow" Kubelet RESCAN,
    Stale "response late and old" Kubelet RESCAN,
    NoResponse "no response" Kubelet RESCAN,
    TooLarge "response too large" Kubelet RESCAN,
    RateLimited "rate-limited" Kubelet RESCAN,
    ErrorStatus "response is an error" Kubelet RESCAN,
    InvalidBytes "response invalid" Kubelet RESCAN,
    CutShort "connection lost within a response" Kubelet RESCAN,
    NoInventory "inventory empty" Kubelet RESCAN,
    DeviceHealth "devices change their health" Kubelet RESCAN,
    PluginRestarts "device plugin restarts" Kubelet RESCAN,
    CheckpointInvalid "checkpoints invalid" Kubelet RESCAN,
    CheckpointMissing "checkpoints missing" Kubelet RESCAN,
    CheckpointUnreadable "checkpoints unreadable" Kubelet RESCAN,
    CheckpointTooLarge "checkpoints too large" Kubelet RESCAN,
    EventStorm "event storm" Kubelet RESCAN,
    NotifyFileFull "disk of the notify file full" Kubelet RESCAN,
    BothRestart "kubelet and agent restart" Kubelet BOTH_RESTART,
    AgentRestarts "agent restarts" Cluster RESCAN,
    ServerDown "API server down" Cluster REWRITE,
    ServerSlow "API server slow" Cluster REWRITE,
    ServerFrozen "API server frozen" Cluster REWRITE,
    ServerSilent "API server sends no response" Cluster REWRITE,
    Unauthorized "401" Cluster REWRITE,
    Forbidden "403" Cluster REWRITE,
    Conflict "409" Cluster REWRITE,
    Unprocessable "422" Cluster REWRITE,
    TooManyRequests "429" Cluster REWRITE,
    ServerError "500, 503, 504" Cluster REWRITE,
    LostBefore "connection lost before the request" Cluster REWRITE,
    LostAfter "connection lost after the request" Cluster REWRITE,
    HistoryCompacted "watches lost, history compacted (410)" Cluster REWRITE,
    Edited "object edited" Cluster NEXT_REFRESH,
    Deleted "object deleted" Cluster NEXT_REFRESH,
    OtherManager "another manager writes the object" Cluster REWRITE,
    NodeRecreated "Node deleted and created" Cluster RECREATE,
    CrdReinstalled "CRD uninstalled and installed" Cluster REWRITE,
}

impl FaultKind {
    /// Injects the fault and returns when it is over.
    ///
    /// # Errors
    /// When the simulation fails.
    pub(super) async fn inject(self, env: &Environment, rng: &mut Rng) -> Result<(), String> {
        env.record(format!("FAULT: {}", self.name()));
        match self.side() {
            Side::Kubelet => self.inject_into_kubelet(env, rng).await?,
            Side::Cluster => self.inject_into_cluster(env, rng).await?,
        }
        env.record(format!("end of the fault: {}", self.name()));
        Ok(())
    }

    async fn inject_into_kubelet(self, env: &Environment, rng: &mut Rng) -> Result<(), String> {
        let kubelet = &env.node.kubelet;
        match self {
            Self::Restart | Self::Killed => restart(env, rng, self == Self::Killed).await?,
            Self::CrashLoop => crash_loop(env, rng).await?,
            Self::SocketRemoved => {
                let _ = fs::remove_file(kubelet.socket());
                pause(rng, 500).await;
                kubelet.listen_again().map_err(text)?;
            }
            Self::SocketDirRemoved => {
                fs::remove_dir_all(kubelet.root().join("pod-resources")).map_err(text)?;
                pause(rng, 1200).await;
                kubelet.listen_again().map_err(text)?;
            }
            Self::PluginDirRemoved => {
                fs::remove_dir_all(kubelet.root().join("device-plugins")).map_err(text)?;
                pause(rng, 1200).await;
                kubelet.write_again().map_err(text)?;
            }
            Self::ConnectionLost => {
                for _ in 0..rng.u8(1..4) {
                    kubelet.cut_connections();
                    pause(rng, 200).await;
                }
            }
            Self::PartialList => {
                fail_calls(env, rng, |rng| (Call::List, Fault::Partial(rng.usize(0..4)))).await;
            }
            Self::EmptyList => fail_calls(env, rng, |_| (Call::List, Fault::Empty)).await,
            Self::Slow => fail_calls(env, rng, |rng| (any_call(rng), Fault::Delay(up_to(rng, 400)))).await,
            Self::Stale => fail_calls(env, rng, |rng| (any_call(rng), Fault::Stale(up_to(rng, 400)))).await,
            Self::NoResponse => fail_calls(env, rng, |rng| (any_call(rng), Fault::Hang)).await,
            Self::TooLarge => fail_calls(env, rng, |rng| (any_call(rng), Fault::Oversize(17 << 20))).await,
            Self::RateLimited => fail_calls(env, rng, |rng| (any_call(rng), Fault::rate_limited())).await,
            Self::ErrorStatus => {
                let codes = [
                    Code::Unavailable,
                    Code::Internal,
                    Code::Unknown,
                    Code::DeadlineExceeded,
                    Code::Cancelled,
                ];
                let draw = |rng: &mut Rng| {
                    let call = any_call(rng);
                    (call, Fault::Status(codes[rng.usize(0..codes.len())], "something is wrong".into()))
                };
                fail_calls(env, rng, draw).await;
            }
            Self::InvalidBytes => {
                fail_calls(env, rng, |rng| (any_call(rng), Fault::Bytes(invalid_bytes(rng)))).await;
            }
            Self::CutShort => fail_calls(env, rng, |rng| (any_call(rng), Fault::CutShort)).await,
            Self::NoInventory => fail_calls(env, rng, |_| (Call::Allocatable, Fault::Empty)).await,
            Self::DeviceHealth => {
                for _ in 0..rng.u8(3..12) {
                    env.change_device(rng);
                    pause(rng, 40).await;
                }
            }
            Self::PluginRestarts => {
                for _ in 0..rng.u8(1..4) {
                    let resource = env.plugin(rng);
                    kubelet.register_plugin(resource, false);
                    pause(rng, 300).await;
                    kubelet.register_plugin(resource, true);
                    pause(rng, 50).await;
                }
            }
            Self::CheckpointInvalid
            | Self::CheckpointMissing
            | Self::CheckpointUnreadable
            | Self::CheckpointTooLarge => {
                damage_checkpoints(self, kubelet.root(), rng).map_err(text)?;
                pause(rng, 800).await;
                kubelet.write_again().map_err(text)?;
            }
            Self::EventStorm => event_storm(kubelet.root().to_owned(), rng.u32(20_000..60_000)).await?,
            Self::NotifyFileFull => {
                // Writes to the file now go to a device that is always full, and cause no event.
                let file = env.notify_file();
                let _ = fs::remove_file(&file);
                std::os::unix::fs::symlink("/dev/full", &file).map_err(text)?;
                pause(rng, 300).await;
                env.change_workload(rng).await;
                if fs::write(&file, "now").is_ok() {
                    return Err("the disk of the notify file is not full".to_owned());
                }
                pause(rng, 300).await;
                fs::remove_file(&file).map_err(text)?;
            }
            Self::BothRestart => {
                let (mut of_agent, mut of_kubelet) = (rng.fork(), rng.fork());
                let agent = async {
                    pause(&mut of_agent, 600).await;
                    env.restart_agent(&mut of_agent).await
                };
                let killed = of_kubelet.bool();
                let (agent, kubelet) = tokio::join!(agent, restart(env, &mut of_kubelet, killed));
                agent.and(kubelet)?;
            }
            _ => return Err(format!("{self:?} is not a fault of the kubelet")),
        }
        Ok(())
    }

    async fn inject_into_cluster(self, env: &Environment, rng: &mut Rng) -> Result<(), String> {
        use api_server::Fault;
        let server = &env.node.server;
        match self {
            Self::NoFault => pause(rng, 300).await,
            Self::AgentRestarts => env.restart_agent(rng).await?,
            Self::ServerDown => {
                server.stop();
                pause(rng, 2500).await;
                server.resume();
            }
            Self::ServerSlow => {
                let fault = Fault::Delay(up_to(rng, 450));
                server.inject(Rule { verb: None, resource: None, times: None, fault });
                pause(rng, 2500).await;
                server.clear_faults();
            }
            Self::ServerFrozen => {
                server.set_frozen(true);
                pause(rng, 2500).await;
                server.set_frozen(false);
            }
            Self::ServerSilent => fail_requests(env, rng, &[Fault::Hang]).await,
            Self::Unauthorized => fail_requests(env, rng, &[Fault::Status(401)]).await,
            Self::Conflict => fail_requests(env, rng, &[Fault::Status(409)]).await,
            Self::Unprocessable => fail_requests(env, rng, &[Fault::Status(422)]).await,
            Self::TooManyRequests => {
                fail_requests(env, rng, &[Fault::TooManyRequests { retry_after: 1 }]).await;
            }
            Self::ServerError => fail_requests(env, rng, &[500, 503, 504].map(Fault::Status)).await,
            Self::LostBefore => fail_requests(env, rng, &[Fault::Cut]).await,
            Self::LostAfter => fail_requests(env, rng, &[Fault::CutAfterwards]).await,
            Self::Forbidden => {
                let verbs: &[&str] = if rng.bool() { &["patch"] } else { &["patch", "get", "watch", "list"] };
                verbs.iter().for_each(|verb| server.set_denied(verb, TOPOLOGIES.plural, true));
                pause(rng, 2000).await;
                verbs.iter().for_each(|verb| server.set_denied(verb, TOPOLOGIES.plural, false));
            }
            Self::HistoryCompacted => {
                for _ in 0..rng.u8(1..3) {
                    server.compact_history();
                    server.cut_connections();
                    pause(rng, 400).await;
                }
            }
            Self::Edited => {
                pause(rng, 300).await;
                edit(env, rng, "kubectl-edit").await?;
            }
            Self::Deleted => {
                pause(rng, 300).await;
                server.delete(&TOPOLOGIES, "", NODE);
            }
            Self::OtherManager => {
                for _ in 0..rng.u8(3..15) {
                    edit(env, rng, "another-exporter").await?;
                    pause(rng, 250).await;
                }
            }
            Self::NodeRecreated => {
                server.delete(&NODES, "", NODE);
                pause(rng, 1000).await;
                env.register_node()?;
            }
            Self::CrdReinstalled => {
                server.delete(&TOPOLOGIES, "", NODE);
                server.set_installed(false);
                pause(rng, 2000).await;
                server.set_installed(true);
            }
            _ => return Err(format!("{self:?} is not a fault of the cluster")),
        }
        Ok(())
    }

    /// Returns true if the kubelet restarts during the fault.
    pub(super) fn is_restart(self) -> bool {
        matches!(self, Self::Restart | Self::Killed | Self::CrashLoop | Self::BothRestart)
    }

    /// Returns true if the fault can have an effect on this node.
    pub(super) fn applies_to(self, env: &Environment) -> bool {
        let needs_checkpoints = matches!(
            self,
            Self::CheckpointInvalid
                | Self::CheckpointMissing
                | Self::CheckpointUnreadable
                | Self::CheckpointTooLarge
        );
        env.variant.checkpoints || !needs_checkpoints
    }
}
