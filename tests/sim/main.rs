//! The agent and its parts with a simulated kubelet over a unix socket and a simulated API server, over TCP or
//! within this process, and with faults that real servers do not produce on demand.

#![allow(clippy::unwrap_used)] // a failing test shows where

mod agent;
mod annotations;
mod ca;
mod consumers;
mod environment;
mod faults;
mod fingerprint;
mod fleet_load;
mod health;
mod http_server;
mod koordinator_devices;
mod list_watch;
mod metrics;
mod model;
mod nudges;
mod pod_watch;
mod podresources_client;
mod pods_api_client;
mod pods_api_server;
mod pods_api_source;
mod pods_command;
mod proxy_restarts;
mod publisher;
mod random_walk;
mod released_resources;
mod reload;
mod shared_client;
mod simulated_kubelet;
mod snapshot;
mod support;
mod tls;
mod walk;
mod without_inotify;
