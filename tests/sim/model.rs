//! The short form of `make model`, and the tests of the model.

#[allow(dead_code)] // the rest is for the long form
#[path = "../model/run/mod.rs"]
mod run;
