//! The command line: the real binary, its output and its exit codes.

#![allow(clippy::unwrap_used)] // a failing test shows where

mod bad_input;
mod commands;
mod completion;
mod documents;
mod exit_codes;
mod plugin;
mod replays;
mod support;
