//! The tests of the calculations of `make fleet-load`.

#[allow(dead_code)] // the rest is for the program
#[path = "../fleet_load/figures.rs"]
mod figures;
#[allow(dead_code)] // also
#[path = "../fleet_load/samples.rs"]
mod samples;
