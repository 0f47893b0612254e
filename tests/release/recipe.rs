//! `image/build` with fake cargo, buildah and readelf.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::{file, repository, text_of};

/// Copies a file as the binary, another one with the feature `demo`, and records its arguments. Run, it copies man
/// pages.
const CARGO: &str = r#"#!/bin/sh
if [ "$1" = run ]; then
    for last; do :; done
    cp "$RECORDS"/man/* "$last"
    exit
fi
printf '%s\n' "$@" >"$RECORDS/cargo"
printf '%s' "$CARGO_ENCODED_RUSTFLAGS" >"$RECORDS/flags"
case " $* " in *' --features demo '*) BINARY=$BINARY-demo ;; esac
while [ "$1" != --target ]; do shift; done
triple=$2
mkdir -p "$CARGO_TARGET_DIR/$triple/release"
cp "$BINARY" "$CARGO_TARGET_DIR/$triple/release/numacast"
"#;

/// Records its arguments and the files to copy. The image that it pushes has them in its only layer; its file
/// has a new timestamp.
const BUILDAH: &str = r#"#!/bin/sh
[ "$*" != --version ] || exit 0
printf '%s\n' "$@" >>"$RECORDS/buildah"
for last; do :; done
# Stores the standard input in the layout and prints its digest.
blob() {
    cat >"$RECORDS/blob"
    digest=$(sha256sum <"$RECORDS/blob" | cut -c -64)
    mkdir -p "$layout/blobs/sha256"
    mv "$RECORDS/blob" "$layout/blobs/sha256/$digest"
    echo "sha256:$digest"
}
case " $* " in
*' bud '*)
    ls "$last" >"$RECORDS/context"
    tar --create --mtime @0 --directory "$last" . >"$RECORDS/layer"
    ;;
*' manifest push '*)
    while [ "$1" != --digestfile ]; do shift; done
    printf 'sha256:%064d' 1 >"$2"
    ;;
*' push '*)
    layout=${last#oci:}
    name=${layout#*:}
    layout=${layout%%:*}
    architecture=$(sed -n 's|^linux/||p' "$RECORDS/buildah" | tail -n 1)
    config=$(echo '{"architecture":"'$architecture'","config":{"Labels":{"org.opencontainers.image.version":"'${name##*:}'"}}}' | blob)
    layer=$(blob <"$RECORDS/layer")
    manifest=$(echo '{"config":{"digest":"'$config'"},"layers":[{"digest":"'$layer'"}]}' | blob)
    echo '{"manifests":[{"digest":"'$manifest'","annotations":{"org.opencontainers.image.ref.name":"'$name'"}}]}' >"$layout/index.json"
    ;;
esac
"#;

/// Prints prepared output for any binary.
const READELF: &str = "#!/bin/sh\ncat \"$RECORDS/elf\"\n";

/// This machine's architecture as container images name it.
pub(crate) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// A directory for the fake programs and their records.
pub(crate) struct BuildDir(TempDir);

impl BuildDir {
    /// Creates a directory whose cargo produces this binary, and one that ends with ` with demo`.
    pub(crate) fn with(binary: &[u8]) -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(dir.path("bin")).unwrap();
        for (name, text) in [("cargo", CARGO), ("buildah", BUILDAH), ("readelf", READELF)] {
            dir.add_program(name, text);
        }
        std::fs::write(dir.path("binary"), binary).unwrap();
        std::fs::write(dir.path("binary-demo"), [binary, b" with demo"].concat()).unwrap();
        std::fs::create_dir(dir.path("man")).unwrap();
        let page = concat!(
            ".TH numacast 1  \"numacast ",
            env!("CARGO_PKG_VERSION"),
            "\" \n.TP\nnumacast\\-pods(1)\n"
        );
        std::fs::write(dir.path("man/numacast.1"), page).unwrap();
        std::fs::write(dir.path("man/numacast-pods.1"), ".TH numacast-pods 1\n").unwrap();
        std::fs::write(dir.path("elf"), "  LOAD  0x000000\n").unwrap();
        dir
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Adds a fake program.
    pub(crate) fn add_program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Returns the path of a result of the build.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        self.path("target/image").join(name)
    }

    fn record(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn build(&self, arguments: &[&str], max_bytes: u32) -> Output {
        self.command("build")
            .args(arguments)
            .env("NUMACAST_MAX_BYTES", max_bytes.to_string())
            .output()
            .unwrap()
    }

    /// Returns a script of `image/` that runs with the fake programs.
    pub(crate) fn command(&self, script: &str) -> Command {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(repository().join("image").join(script));
        command
            .env("PATH", path)
            .env("RECORDS", self.0.path())
            .env("BINARY", self.path("binary"))
            .env("CARGO_TARGET_DIR", self.path("target"))
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("NUMACAST_REVISION", "0123456789");
        command
    }

    /// Builds, which must fail, and returns the error.
    #[track_caller]
    fn build_error(&self, max_bytes: u32) -> String {
        let output = self.build(&[], max_bytes);
        assert!(!output.status.success(), "{}", text_of(&output));
        assert_eq!(self.record("buildah"), "", "an image was built");
        text_of(&output)
    }
}

const LARGE: u32 = 1 << 20;

/// Returns the Containerfile's instructions, each on one line.
fn instructions() -> Vec<String> {
    let text = file("image/Containerfile").replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

fn arguments_of<'a>(instructions: &'a [String], keyword: &str) -> Vec<&'a str> {
    instructions.iter().filter_map(|line| line.strip_prefix(keyword)?.strip_prefix(' ')).collect()
}

#[test]
fn the_image_is_from_scratch_and_has_a_numeric_user() {
    let all = instructions();
    assert_eq!(all[0], "FROM scratch");
    assert_eq!(arguments_of(&all, "FROM").len(), 1);
    for keyword in ["RUN", "ADD", "SHELL", "VOLUME"] {
        assert!(arguments_of(&all, keyword).is_empty(), "{keyword}");
    }
    assert_eq!(arguments_of(&all, "ENTRYPOINT"), ["[\"/numacast\"]"]);
    // The kubelet can only verify that the user is not root if it is numeric.
    let user = arguments_of(&all, "USER")[0].split(':').map(|id| id.parse::<u32>().unwrap());
    assert!(user.clone().count() == 2 && user.min().unwrap() > 0);
}

#[test]
fn the_image_has_all_labels() {
    let all = instructions();
    let labels = arguments_of(&all, "LABEL").join(" ");
    for label in [
        "title",
        "description",
        "licenses",
        "url",
        "source",
        "documentation",
        "version",
        "revision",
        "created",
    ] {
        assert!(labels.contains(&format!("org.opencontainers.image.{label}=")), "{label}");
    }
    let manifest = file("Cargo.toml");
    for key in ["license", "repository"] {
        let prefix = format!("{key} = ");
        let value = manifest.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap();
        assert!(labels.contains(&format!("={value}")), "{value} is not in {labels}");
    }
}

#[test]
fn the_image_gets_all_files_and_arguments() {
    let dir = BuildDir::with(b"numacast");
    let output = dir.build(&[], LARGE);
    assert!(output.status.success(), "{}", text_of(&output));

    let all = instructions();
    let copied: Vec<_> = arguments_of(&all, "COPY")[0].split(' ').filter(|word| *word != "/").collect();
    assert_eq!(dir.record("context").lines().collect::<Vec<_>>(), copied);
    let arguments = dir.record("buildah");
    for argument in arguments_of(&all, "ARG") {
        let expected = format!("--build-arg\n{argument}=");
        assert!(arguments.contains(&expected), "{argument} is not in:\n{arguments}");
    }
    let version = format!("VERSION={}\n", env!("CARGO_PKG_VERSION"));
    for text in
        [&version, "REVISION=0123456789\n", "CREATED=2023-11-14T22:13:20Z\n", "--timestamp\n1700000000\n"]
    {
        assert!(arguments.contains(text), "{text} is not in:\n{arguments}");
    }
}

#[test]
fn the_binary_is_static_and_described() {
    let dir = BuildDir::with(b"numacast");
    let output = dir.build(&["--binary"], LARGE);
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(dir.record("buildah"), "");

    let arguments = dir.record("cargo");
    for word in ["--locked", "--release", "--target"] {
        assert!(arguments.lines().any(|line| line == word), "{word} is not in:\n{arguments}");
    }
    let flags = dir.record("flags");
    let flags: Vec<_> = flags.split('\x1f').collect();
    assert!(flags.contains(&"-Ctarget-feature=+crt-static"), "{flags:?}");
    let sources = format!("--remap-path-prefix={}=/numacast", repository().display());
    assert!(flags.contains(&&*sources), "{flags:?}");

    let path = text_of(&Output { stderr: Vec::new(), ..output });
    let binary = Path::new(path.trim());
    assert_eq!(std::fs::read(binary).unwrap(), b"numacast");
    let described = std::fs::read_to_string(binary.with_extension("txt")).unwrap();
    for key in ["sha256: ", "revision: 0123456789\n", "rustc: ", "cc: ", "ld: ", "libc: "] {
        assert!(described.contains(key), "{key} is not in:\n{described}");
    }
}

#[test]
fn the_archives_do_not_depend_on_the_time() {
    let dir = BuildDir::with(b"numacast");
    let archives = |dir: &BuildDir| {
        [&[] as &[&str], &["--demo"]].map(|arguments| {
            let output = dir.build(arguments, LARGE);
            let path = String::from_utf8(output.stdout).unwrap();
            std::fs::read(path.trim()).unwrap_or_else(|_| panic!("no archive: {path}"))
        })
    };
    let first = archives(&dir);
    // Timestamps in an archive have a resolution of one second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(first.iter().all(|archive| !archive.is_empty()) && first == archives(&dir));
}

#[test]
fn the_image_has_no_demo_and_the_download_has_it() {
    let dir = BuildDir::with(b"numacast");
    for (arguments, has_demo) in [(&[] as &[&str], false), (&["--demo"], true)] {
        assert!(dir.build(arguments, LARGE).status.success());
        assert_eq!(dir.record("cargo").contains("--features\ndemo\n"), has_demo, "{arguments:?}");
    }
    let packed = Command::new("tar")
        .args(["--to-stdout", "-xzf"])
        .arg(dir.built(&format!("numacast-demo-{ARCHITECTURE}.tar.gz")))
        .arg("numacast")
        .output()
        .unwrap();
    assert_eq!(text_of(&packed), "numacast with demo");
}

#[test]
fn a_binary_that_is_too_large_is_rejected() {
    let dir = BuildDir::with(&[0; 1 << 14]);
    assert!(dir.build_error(1 << 14).contains("more than 16384"));
}

#[test]
fn a_binary_that_needs_libraries_is_rejected() {
    for needs in ["  INTERP  0x000318\n", " 0x01 (NEEDED)  Shared library: [libc.so.6]\n"] {
        let dir = BuildDir::with(b"numacast");
        std::fs::write(dir.path("elf"), needs).unwrap();
        assert!(dir.build_error(LARGE).contains("is not static"));
    }
}

#[test]
fn a_binary_with_paths_of_the_build_is_rejected() {
    let dir = BuildDir::with(format!("panicked at {}/src/cli.rs:1:2", repository().display()).as_bytes());
    let error = dir.build_error(LARGE);
    let path = repository().to_string_lossy();
    assert!(error.contains("has the path") && error.contains(&*path), "{error}");
}

#[test]
fn every_script_is_executable_and_valid() {
    for name in ["build", "docs", "push", "release", "sbom", "twice", "notes", "version"] {
        let script = repository().join("image").join(name);
        let mode =
            std::fs::metadata(&script).unwrap_or_else(|error| panic!("{name}: {error}")).permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{name}");
        let output = Command::new("bash").arg("-n").arg(&script).output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
    }
    for script in ["image/build", "image/build --demo", "image/release", "image/sbom", "image/twice"] {
        assert!(file("Makefile").lines().any(|line| line.trim() == script), "{script}");
    }
}
