//! Compiles `proto/` to Rust with protox: no `protoc` is needed on the machine. Of the kubelet's APIs these are
//! only the services: `numacast-core` has the messages. Compresses the files of the page of `numacast ui`.

use std::error::Error;
use std::fs::{create_dir_all, read, read_dir, write};
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

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
    compress_page(&Path::new(file!()).with_file_name("src/ui/page"))?;
    let proto = Path::new(file!()).with_file_name("proto");
    println!("cargo:rerun-if-changed={}", proto.display());
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for Set { folder, files, elsewhere } in SETS {
        let root = proto.join(folder);
        let target = out.join(folder);
        create_dir_all(&target)?;
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

/// Writes each file of a folder to the output folder `page`, as gzip.
fn compress_page(folder: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={}", folder.display());
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("page");
    create_dir_all(&out)?;
    for entry in read_dir(folder)? {
        let path = entry?.path();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&read(&path)?)?;
        write(out.join(path.file_name().ok_or("a file without a name")?), gzip.finish()?)?;
    }
    Ok(())
}
