//! `image/build` with stand-ins for cargo and buildah.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::{file, repository, said};

/// Copies a file as the binary, and records its arguments.
const CARGO: &str = r#"#!/bin/sh
printf '%s\n' "$@" >"$SEEN/cargo"
printf '%s' "$CARGO_ENCODED_RUSTFLAGS" >"$SEEN/flags"
while [ "$1" != --target ]; do shift; done
triple=$2
mkdir -p "$CARGO_TARGET_DIR/$triple/release"
cp "$BINARY" "$CARGO_TARGET_DIR/$triple/release/numacast"
"#;

/// Records its arguments and the files to copy. The image that it pushes is a file with a new timestamp.
const BUILDAH: &str = r#"#!/bin/sh
[ "$*" != --version ] || exit 0
printf '%s\n' "$@" >>"$SEEN/buildah"
for last; do :; done
case " $* " in
*' bud '*) ls "$last" >"$SEEN/context" ;;
*' push '*)
    layout=${last#oci:}
    layout=${layout%:*}
    mkdir -p "$layout"
    echo '{"manifests":[{"digest":"sha256:0123"}]}' >"$layout/index.json"
    ;;
esac
"#;

/// Prints prepared output for any binary.
const READELF: &str = "#!/bin/sh\ncat \"$SEEN/elf\"\n";

/// A directory for the stand-ins and their records.
struct Bench(TempDir);

impl Bench {
    /// Creates a bench whose cargo produces this binary.
    fn with(binary: &[u8]) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        for (name, text) in [("cargo", CARGO), ("buildah", BUILDAH), ("readelf", READELF)] {
            let path = bench.path("bin").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        std::fs::write(bench.path("binary"), binary).unwrap();
        std::fs::write(bench.path("elf"), "  LOAD  0x000000\n").unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn saw(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn build(&self, arguments: &[&str], most: u32) -> Output {
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        Command::new(repository().join("image/build"))
            .args(arguments)
            .env("PATH", path)
            .env("SEEN", self.0.path())
            .env("BINARY", self.path("binary"))
            .env("CARGO_TARGET_DIR", self.path("target"))
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("NUMACAST_REVISION", "0123456789")
            .env("NUMACAST_MAX_BYTES", most.to_string())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn refusal(&self, most: u32) -> String {
        let output = self.build(&[], most);
        assert!(!output.status.success(), "{}", said(&output));
        assert_eq!(self.saw("buildah"), "", "an image was made of it");
        said(&output)
    }
}

const ENOUGH: u32 = 1 << 20;

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
fn the_image_is_from_scratch_and_runs_nothing() {
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
fn the_image_says_what_it_is() {
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
fn the_recipe_gives_the_image_all_that_it_takes() {
    let bench = Bench::with(b"numacast");
    let output = bench.build(&[], ENOUGH);
    assert!(output.status.success(), "{}", said(&output));

    let all = instructions();
    let copied: Vec<_> = arguments_of(&all, "COPY")[0].split(' ').filter(|word| *word != "/").collect();
    assert_eq!(bench.saw("context").lines().collect::<Vec<_>>(), copied);
    let asked = bench.saw("buildah");
    for argument in arguments_of(&all, "ARG") {
        assert!(asked.contains(&format!("--build-arg\n{argument}=")), "{argument} is not in:\n{asked}");
    }
    let version = format!("VERSION={}\n", env!("CARGO_PKG_VERSION"));
    for words in
        [&version, "REVISION=0123456789\n", "CREATED=2023-11-14T22:13:20Z\n", "--timestamp\n1700000000\n"]
    {
        assert!(asked.contains(words), "{words} is not in:\n{asked}");
    }
}

#[test]
fn the_binary_is_built_as_it_ships() {
    let bench = Bench::with(b"numacast");
    let output = bench.build(&["--binary"], ENOUGH);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(bench.saw("buildah"), "");

    let asked = bench.saw("cargo");
    for word in ["--locked", "--release", "--no-default-features", "--target"] {
        assert!(asked.lines().any(|line| line == word), "{word} is not in:\n{asked}");
    }
    let flags = bench.saw("flags");
    let flags: Vec<_> = flags.split('\x1f').collect();
    assert!(flags.contains(&"-Ctarget-feature=+crt-static"), "{flags:?}");
    let sources = format!("--remap-path-prefix={}=/numacast", repository().display());
    assert!(flags.contains(&&*sources), "{flags:?}");

    let path = said(&Output { stderr: Vec::new(), ..output });
    let binary = Path::new(path.trim());
    assert_eq!(std::fs::read(binary).unwrap(), b"numacast");
    let described = std::fs::read_to_string(binary.with_extension("txt")).unwrap();
    for key in ["sha256: ", "revision: 0123456789\n", "rustc: ", "cc: ", "ld: ", "libc: "] {
        assert!(described.contains(key), "{key} is not in:\n{described}");
    }
}

#[test]
fn the_archive_has_the_same_bytes_at_another_time() {
    let bench = Bench::with(b"numacast");
    let archive = |bench: &Bench| {
        let output = bench.build(&[], ENOUGH);
        let path = String::from_utf8(output.stdout).unwrap();
        std::fs::read(path.trim()).unwrap_or_else(|_| panic!("no archive: {path}"))
    };
    let first = archive(&bench);
    // Timestamps in an archive have a resolution of one second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(!first.is_empty() && first == archive(&bench));
}

#[test]
fn a_binary_that_is_too_large_is_no_image() {
    let bench = Bench::with(&[0; 1 << 14]);
    assert!(bench.refusal(1 << 14).contains("more than 16384"));
}

#[test]
fn a_binary_that_needs_libraries_is_no_image() {
    for needs in ["  INTERP  0x000318\n", " 0x01 (NEEDED)  Shared library: [libc.so.6]\n"] {
        let bench = Bench::with(b"numacast");
        std::fs::write(bench.path("elf"), needs).unwrap();
        assert!(bench.refusal(ENOUGH).contains("is not static"));
    }
}

#[test]
fn a_binary_with_paths_of_the_build_is_rejected() {
    let bench = Bench::with(format!("panicked at {}/src/cli.rs:1:2", repository().display()).as_bytes());
    let refusal = bench.refusal(ENOUGH);
    assert!(
        refusal.contains("has the path") && refusal.contains(&*repository().to_string_lossy()),
        "{refusal}"
    );
}

/// The scripts that `make` targets run exist and are executable.
#[test]
fn every_script_can_be_run() {
    for name in ["build", "push", "sbom", "twice", "notes", "version"] {
        let script = repository().join("image").join(name);
        let mode =
            std::fs::metadata(&script).unwrap_or_else(|error| panic!("{name}: {error}")).permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{name}");
        let output = Command::new("bash").arg("-n").arg(&script).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    for script in ["image/build", "image/sbom", "image/twice"] {
        assert!(file("Makefile").lines().any(|line| line.trim() == script), "{script}");
    }
}
