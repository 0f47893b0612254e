//! The short form of `make model`, and the tests of the model itself.

#[allow(dead_code)] // what only the long form needs
#[path = "../model/run/mod.rs"]
mod run;
