//! Compiles `proto/` to Rust with protox: no `protoc` is needed on the machine.

use std::error::Error;
use std::path::{Path, PathBuf};

/// Some packages have the same name, so each folder below `proto/` gets an output folder of its own.
const SETS: [(&str, &[&str]); 4] = [
    ("podresources", &["v1.proto", "v1alpha1.proto"]),
    ("pods", &["v1alpha1.proto"]),
    ("core", &["v1.proto", "row.proto", "envelope.proto"]),
    ("podinfo", &["v1alpha1.proto"]),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // Only the simulation serves these APIs.
    let server = std::env::var_os("CARGO_FEATURE_SIM").is_some();
    for (set, files) in SETS {
        let root = Path::new("proto").join(set);
        let target = out.join(set);
        std::fs::create_dir_all(&target)?;
        let descriptors = protox::compile(files, [&root])?;
        tonic_prost_build::configure()
            .build_server(server)
            .build_transport(false)
            // Ordered, so that output is deterministic.
            .btree_map(".")
            // A dependency is not worth two numbers.
            .extern_path(".google.protobuf.Timestamp", "crate::pods_api::proto::Timestamp")
            // Pods are passed on in their original bytes.
            .bytes(".")
            .out_dir(&target)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
