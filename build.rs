//! Compiles `proto/` to Rust with protox: no `protoc` is needed on the machine. Of the kubelet's APIs these are
//! only the services: `numacast-core` has the messages.

use std::error::Error;
use std::path::{Path, PathBuf};

/// A folder below `proto/` and its files. Some packages have the same name, so each folder gets an output
/// folder of its own.
struct Set {
    folder: &'static str,
    files: &'static [&'static str],
    /// Packages whose messages are elsewhere, and where.
    elsewhere: &'static [(&'static str, &'static str)],
}

const SETS: [Set; 4] = [
    Set {
        folder: "podresources",
        files: &["v1.proto", "v1alpha1.proto"],
        elsewhere: &[
            (".v1", "::numacast_core::kubelet::proto::v1"),
            (".v1alpha1", "::numacast_core::kubelet::proto::v1alpha1"),
        ],
    },
    Set {
        folder: "pods",
        files: &["v1alpha1.proto"],
        elsewhere: &[(".v1alpha1", "::numacast_core::kubelet::proto::pods")],
    },
    Set { folder: "core", files: &["row.proto", "envelope.proto"], elsewhere: &[] },
    Set {
        folder: "podinfo",
        files: &["v1alpha1.proto"],
        // Two numbers are not worth a dependency.
        elsewhere: &[(".google.protobuf.Timestamp", "crate::pods_api::proto::Timestamp")],
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    // Beside this file: tests/pure uses it too, from its own directory.
    let proto = Path::new(file!()).with_file_name("proto");
    println!("cargo:rerun-if-changed={}", proto.display());
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for Set { folder, files, elsewhere } in SETS {
        let root = proto.join(folder);
        let target = out.join(folder);
        std::fs::create_dir_all(&target)?;
        let descriptors = protox::compile(files, [&root])?;
        let mut builder = tonic_prost_build::configure()
            .build_server(false)
            .build_transport(false)
            // Ordered, so that output is deterministic.
            .btree_map(".")
            // Pods are passed on in their original bytes.
            .bytes(".")
            .out_dir(&target);
        for (package, path) in elsewhere {
            builder = builder.extern_path(package, path);
        }
        builder.compile_fds(descriptors)?;
    }
    Ok(())
}
