//! Compiles the services of `proto/` that the simulated kubelet serves. `numacast-core` has the messages.

use std::error::Error;
use std::path::{Path, PathBuf};

const PROTO: &str = "../../proto";

/// A folder below `proto/`, its files, and their packages with the modules of the messages. Some packages have
/// the same name, so each folder gets an output folder of its own.
type Set = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const SETS: [Set; 2] = [
    (
        "podresources",
        &["v1.proto", "v1alpha1.proto"],
        &[
            (".v1", "::numacast_core::kubelet::proto::v1"),
            (".v1alpha1", "::numacast_core::kubelet::proto::v1alpha1"),
        ],
    ),
    ("pods", &["v1alpha1.proto"], &[(".v1alpha1", "::numacast_core::kubelet::proto::pods")]),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (folder, files, packages) in SETS {
        let target = out.join(folder);
        std::fs::create_dir_all(&target)?;
        let descriptors = protox::compile(files, [Path::new(PROTO).join(folder)])?;
        let mut builder =
            tonic_prost_build::configure().build_client(false).build_transport(false).out_dir(&target);
        for (package, path) in packages {
            builder = builder.extern_path(*package, *path);
        }
        builder.compile_fds(descriptors)?;
    }
    Ok(())
}
