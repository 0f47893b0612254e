//! The commands as a person runs them: the real binary, its output and its exit codes.

#![allow(clippy::unwrap_used)] // a test that fails says where

mod bad_input;
mod commands;
mod documents;
mod replays;
mod support;
