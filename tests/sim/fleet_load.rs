//! The tests of what `make fleet-load` reckons with.

#[allow(dead_code)] // what only the program needs
#[path = "../fleet_load/figures.rs"]
mod figures;
#[allow(dead_code)] // likewise
#[path = "../fleet_load/samples.rs"]
mod samples;
