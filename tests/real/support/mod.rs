//! Test support: a real API server, a real kubelet on a described machine, the agent under test, and an
//! oracle that reads the kubelet's own state files.

pub(crate) mod agent;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod browser;
#[allow(dead_code, reason = "not every test program uses everything")]
#[path = "../../sim/ca.rs"]
pub(crate) mod ca;
pub(crate) mod cgroups;
pub(crate) mod chart;
pub(crate) mod cluster;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod document;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod dra;
pub(crate) mod driven;
#[allow(dead_code, reason = "the test injects a few, the program all")]
pub(crate) mod faults;
pub(crate) mod fingerprint;
pub(crate) mod history;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod kai;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod koordinator;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod metrics;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod neighbours;
pub(crate) mod node;
pub(crate) mod nrt;
pub(crate) mod operator;
pub(crate) mod oracle;
pub(crate) mod parts;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod podresources;
pub(crate) mod pods;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod pods_clients;
pub(crate) mod prober;
pub(crate) mod process;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod proxy;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod python;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod seed;
pub(crate) mod tokens;
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) mod ui;
#[allow(dead_code, reason = "not every test program uses everything")]
#[path = "../../soak/usage.rs"]
pub(crate) mod usage;
pub(crate) mod wait;
pub(crate) mod walk;

pub(crate) use cluster::Cluster;
pub(crate) use node::{RealNode, Stop};
pub(crate) use nrt::Observer;
pub(crate) use parts::{Needs, Parts};
pub(crate) use pods::pod;
#[allow(unused_imports, reason = "not every test program uses everything")]
pub(crate) use seed::seed;
