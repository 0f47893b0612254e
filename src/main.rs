//! The numacast binary.

fn main() {}
