//! numacast's logic without I/O that is not in `numacast-core`, compiled from its own sources, with their unit
//! tests. Anything that needs connections, file watches, the API server or the simulation is excluded; tests
//! that need it must be elsewhere.

#![cfg_attr(test, allow(clippy::unwrap_used))] // a failing test shows where
#![allow(dead_code, unused_imports)] // their users are not included
#![forbid(unsafe_code)]

// An inline module, so that its submodules resolve to numacast's source files.
#[path = "../../src"]
mod src {
    // Only the parts of these directories that do no I/O. What else they need of them has a stand-in.

    pub mod agent {
        mod live_object;
        mod reconcile;
        mod reused_names;

        mod metrics {
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum Outcome {
                Success,
                ObjectUnknown,
                ConfigUnknown,
                PodAdmission,
                KubeletNotReady,
                Failed,
            }
        }

        mod observe {
            mod hotplug;
            mod poll_interval;
            mod scan;

            pub(super) use poll_interval::PollInterval;
            pub use scan::{ConfigConfidence, ConfigStatus, Depth, Inventory, Scan};
        }

        mod publish {
            mod competing_managers;
            mod drift;
            mod field_manager;
            mod object;
        }

        mod report {
            mod change_log;

            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Reason {
                NodeUnreadable,
                KubeletStateIncomplete,
                NodesNotPublished,
                PoliciesUnknown,
                PodsUnknown,
                PodAdmissionTimeout,
            }
        }

        pub mod settings {
            use std::time::Duration;

            use crate::pod_source::PodSources;
            use crate::scheduler::GateSettings;

            pub struct Settings {
                pub node: String,
                pub kubelet_config: ConfigSources,
                pub needs_policies: bool,
                pub poll: Duration,
                pub restart_wait: Duration,
                pub pods: PodSources,
                pub gate: GateSettings,
            }

            pub struct ConfigSources;

            impl ConfigSources {
                pub fn is_configured(&self) -> bool {
                    true
                }
            }
        }
    }

    pub mod cluster {
        mod koordinator_devices {
            mod object;

            pub use object::{Device, KoordinatorDevices};
        }

        pub use koordinator_devices::{Device, KoordinatorDevices};

        pub const FIELD_MANAGER: &str = "numacast";

        #[derive(Clone)]
        pub struct Cluster;

        impl Cluster {
            pub async fn kubelet_version(&self, _node: &str) -> Result<String, String> {
                std::future::pending().await
            }
        }
    }

    pub mod config {
        use std::time::Duration;

        use crate::agent::settings::{ConfigSources, Settings};
        use crate::pod_source::{PodSourceKind, PodSources};
        use crate::scheduler::GateSettings;

        #[derive(Default)]
        pub struct Config {
            pub node_name: String,
        }

        impl Config {
            pub fn agent_settings(&self) -> Settings {
                Settings {
                    node: self.node_name.clone(),
                    kubelet_config: ConfigSources,
                    needs_policies: true,
                    poll: Duration::from_secs(5),
                    restart_wait: Duration::from_secs(30),
                    pods: PodSources { order: vec![PodSourceKind::ApiServer] },
                    gate: GateSettings::default(),
                }
            }
        }
    }

    pub mod grpc {
        mod message;

        pub use message::{Message, MessageStream};
    }

    pub mod kubelet {
        mod client_error;
        mod instance;
        mod refresh;

        pub use client_error::ClientError;
        pub use instance::KubeletInstance;
        pub use numacast_core::kubelet::*;
        pub use refresh::Refresh;
    }

    pub mod pod_source {
        mod cache;
        mod kind;
        #[cfg(test)]
        mod samples;

        pub use cache::{PodCache, PodView, RELEASE_TIMEOUT};
        pub use kind::PodSourceKind;
        pub use selector::PodSources;

        mod metrics {
            pub struct PodSourceMetrics;

            impl PodSourceMetrics {
                pub fn count_error(&self, _source: &str) {}

                pub fn set_source(&self, _source: &str, _up: bool) {}
            }
        }

        mod selector {
            use std::sync::Arc;

            use super::PodSourceKind;
            use crate::cluster::Cluster;
            use crate::kubelet::Refresh;
            use crate::pod::PodEvent;

            pub struct PodSources {
                pub order: Vec<PodSourceKind>,
            }

            pub struct SourceSelector {
                pub refresh: Arc<Refresh>,
            }

            impl SourceSelector {
                pub fn new(_sources: PodSources, _node: String, _cluster: Option<Cluster>) -> Self {
                    Self { refresh: Arc::default() }
                }

                pub fn source(&self) -> PodSourceKind {
                    PodSourceKind::ApiServer
                }

                pub async fn next(&mut self) -> Result<PodEvent, String> {
                    std::future::pending().await
                }
            }
        }
    }

    pub mod pods_api {
        mod entries;
        mod pod_info;
        pub mod proto;
        mod store;
        mod watch_cache;
        mod watchers;

        #[cfg(test)]
        mod tests;
    }

    pub mod proxy {
        mod allocations;
        pub mod annotations;
        pub mod merge;
        #[cfg(test)]
        mod tests;

        pub use allocations::Allocations;
    }

    pub mod util {
        pub(crate) mod backoff;
        pub mod log_throttle;
        pub(crate) mod sync;
        pub mod task;

        pub use numacast_core::util::{file, glob, json_path, text, wire};
    }
}

#[cfg(test)]
#[path = "../../crates/core/src/randomised.rs"]
mod randomised;

use numacast_core::names;
pub use numacast_core::{
    claims, core_v1, machine, nrt, pod, publishers, quantity, scheduler, topology, watch_event,
};
pub use src::{agent, cluster, config, grpc, kubelet, pod_source, pods_api, proxy, util};
