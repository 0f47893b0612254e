//! Tests on real parts: the agent beside a real kubelet on a described machine, writing to a real API server.
//!
//! Where these cannot run the tests say so in one line and pass, except under `CI=true`.

mod harness;
mod restarts;
mod steady;
mod steps;
mod support;
