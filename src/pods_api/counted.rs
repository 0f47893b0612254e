//! Metrics of calls and watches.

use std::time::Duration;

use tonic::Code;

use super::service::{INFO, PODS};
use super::watchers::Tally;
use crate::grpc::{self, Offence, Peer, code_name};
use crate::telemetry::pods_api::{Call, Metrics};

/// Counts calls.
pub(super) struct Counted(pub(super) Metrics);

impl grpc::Observer for Counted {
    fn finished(&self, path: &str, _: &Peer, code: Code, _: usize, _: Duration) {
        let (service, method) = grpc::names(path);
        let version = match service {
            PODS => "v1alpha1",
            INFO => "podinfo.v1alpha1",
            _ => return,
        };
        let call = match method {
            "ListPods" | "ListPodConditions" => Call::List,
            "GetPod" | "GetPodConditions" => Call::Get,
            "WatchPods" | "WatchPodConditions" => Call::Watch,
            _ => return,
        };
        // The kubelet does not count calls rejected by its limiter.
        if code != Code::ResourceExhausted || call == Call::Watch {
            self.0.answered(call, version, code_name(code));
        }
    }

    fn connections(&self, count: usize) {
        self.0.connections(count);
    }

    fn offence(&self, offence: Offence, _: &Peer) {
        self.0.cut(offence.as_str());
    }
}

/// Counts the watchers of one service.
#[derive(Debug)]
pub(super) struct Watching {
    pub(super) version: &'static str,
    pub(super) metrics: Metrics,
}

impl Tally for Watching {
    fn watchers(&self, more: i64) {
        self.metrics.watchers(self.version, more);
    }

    fn cut(&self, watchers: usize) {
        self.metrics.dropped(watchers);
    }

    fn heard(&self, after: Duration) {
        self.metrics.heard(after);
    }
}
