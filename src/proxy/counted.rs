//! Counts kubelet calls and client requests in the metrics.

use std::time::Duration;

use tonic::Code;

use super::service::{V1, V1ALPHA1};
use crate::grpc::{self, Offence, Peer};
use crate::kubelet::{Ask, Ended, Observer};
use crate::telemetry::proxy::{Answered, Metrics};

/// Observes both the kubelet calls and the client requests.
pub(super) struct Counted(Metrics);

impl Counted {
    pub(super) const fn new(metrics: Metrics) -> Self {
        Self(metrics)
    }
}

impl Observer for Counted {
    fn started(&self, _: &Ask, in_flight: usize) {
        self.0.in_flight(in_flight);
    }

    fn ended(&self, ended: &Ended<'_>) {
        let Ended { ask, took, error, shared_by } = *ended;
        let rpc = match ask {
            Ask::List => "List",
            Ask::ListV1alpha1 => "ListV1alpha1",
            Ask::Allocatable => "GetAllocatableResources",
            Ask::Get { .. } => "Get",
        };
        self.0.called(rpc, took, error, shared_by);
    }
}

impl grpc::Observer for Counted {
    fn finished(&self, path: &str, peer: &Peer, code: Code, _: usize, took: Duration) {
        let (service, method) = grpc::names(path);
        let version = match service {
            V1 => "v1",
            V1ALPHA1 => "v1alpha1",
            _ => "other",
        };
        let rpc = match method {
            "List" => "List",
            "Get" => "Get",
            "GetAllocatableResources" => "GetAllocatableResources",
            _ => "other",
        };
        let answered = Answered { rpc, version, code: grpc::code_name(code), client: &peer.name, took };
        self.0.answered(&answered);
    }

    fn connections(&self, count: usize) {
        self.0.connections(count);
    }

    fn offence(&self, offence: Offence, _: &Peer) {
        self.0.cut(offence.as_str());
    }
}
