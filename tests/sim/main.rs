//! The agent and its parts against the simulated kubelet and API server: real sockets, real gRPC and HTTP,
//! and faults that real servers do not produce on demand.

#![allow(clippy::unwrap_used)] // a failing test shows where

mod agent;
mod annotated;
mod client;
mod consumers;
mod contract;
mod demo;
mod devices;
mod faults;
mod fleet_load;
mod health;
mod metrics;
mod model;
mod nudges;
mod pods_api;
mod pods_client;
mod pods_command;
mod pods_served;
mod pods_watched;
mod publisher;
mod release;
mod reload;
mod restarts;
mod shared_client;
mod snapshot;
mod sources;
mod starved;
mod support;
mod tls;
mod truth;
mod walk;
