//! Compiles the messages of `proto/` to Rust with protox: no `protoc` is needed on the machine. The services are
//! compiled by numacast's own build script.

use std::error::Error;
use std::path::{Path, PathBuf};

const PROTO: &str = "../../proto";

/// Some packages have the same name, so each folder below `proto/` gets an output folder of its own.
const SETS: [(&str, &[&str]); 3] = [
    ("podresources", &["v1.proto", "v1alpha1.proto"]),
    ("pods", &["v1alpha1.proto"]),
    ("core", &["v1.proto", "placed.proto", "inspected.proto"]),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (set, files) in SETS {
        let root = Path::new(PROTO).join(set);
        let target = out.join(set);
        std::fs::create_dir_all(&target)?;
        let descriptors = protox::compile(files, [&root])?;
        prost_build::Config::new()
            // Ordered, so that output is deterministic.
            .btree_map(["."])
            // Pods are passed on in their original bytes.
            .bytes(["."])
            .out_dir(&target)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
