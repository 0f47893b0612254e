//! Tests with real components: the agent beside a real kubelet on a described machine, writing to a real API
//! server.
//!
//! Where they cannot run, the tests print one line and pass, except under `CI=true`.
//!
//! - zones: `steps`, `init_containers`, `memory_groups`, `pod_level`, `steady`, `restarts`, `faults`; their oracle: `harness`
//! - pods: `fingerprint`, `sources`, `pod_list`, `protobuf`, `made_pods`, `quantities`
//! - the kubelet: `configuration`, `order`, `doctor_node`; claims: `dra`, `claims`, `claim_reads`
//! - the proxy and the Pods API: `proxy`, `clients`, `pods_served`, `hostile`, `standalone`
//! - the object: `publisher`, `neighbours`, `refusals`, `admitted`, `kubectl`; for KAI-Scheduler: `kai`
//! - the controller: `controller`
//! - commands for people: `show`, `fit`, `doctor`, `pictures`; in a real browser: `ui`
//! - the chart: `chart`, `rendered`, `security`, `migration`, `docs`

mod admitted;
mod chart;
mod claim_reads;
mod claims;
mod clients;
mod completion;
mod configuration;
mod controller;
mod docs;
mod doctor;
mod doctor_node;
mod dra;
mod faults;
mod fingerprint;
mod fit;
mod harness;
mod hostile;
mod init_containers;
mod kai;
mod kubectl;
mod made_pods;
mod memory_groups;
mod migration;
mod neighbours;
mod order;
mod pictures;
mod pod_level;
mod pod_list;
mod pods_served;
mod protobuf;
mod proxy;
mod publisher;
mod quantities;
mod refusals;
mod rendered;
mod restarts;
#[path = "../demo/screen.rs"]
mod screen;
mod security;
mod show;
#[path = "../sim/support.rs"]
#[allow(dead_code, clippy::unwrap_used)] // the simulation tests use the rest
mod sim_node;
mod sources;
mod standalone;
mod steady;
mod steps;
mod support;
mod ui;
