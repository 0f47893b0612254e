//! `image/release`: with all parts it makes a release, and what is incomplete or cannot be installed is rejected.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::recipe::{ARCHITECTURE, BuildDir};
use crate::{file, part, repository, text_of};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The files of a release, as docs/release.md names them.
const FILES: [&str; 11] = [
    "SHA256SUMS",
    "image.txt",
    "numacast-VERSION-docs.tar.gz",
    "numacast-VERSION-image-ARCHITECTURE.tar",
    "numacast-VERSION-image-ARCHITECTURE.txt",
    "numacast-VERSION-image.cdx.json",
    "numacast-VERSION-linux-ARCHITECTURE.tar.gz",
    "numacast-VERSION-linux-ARCHITECTURE.txt",
    "numacast-VERSION-linux.cdx.json",
    "numacast-VERSION.tgz",
    "numacast.yaml",
];

fn name_of(file: &str) -> String {
    file.replace("VERSION", VERSION).replace("ARCHITECTURE", ARCHITECTURE)
}

/// The parts of a release, from fake builds.
struct Parts(BuildDir);

impl Parts {
    /// Builds them; `None` if Helm or jq is missing here.
    fn build() -> Option<Self> {
        let parts = Self::unbuilt()?;
        parts.build_binaries();
        Some(parts)
    }

    /// Prepares what the fake cargo returns as binaries, and the lists of crates.
    fn unbuilt() -> Option<Self> {
        let helm = part("helm")?;
        if Command::new("jq").arg("--version").output().is_err() {
            assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "CI=true, but jq is missing");
            eprintln!("skipped for lack of jq");
            return None;
        }
        let parts = Self(BuildDir::with(b""));
        std::os::unix::fs::symlink(helm.get_program(), parts.0.path("bin/helm")).unwrap();
        parts.write_binary("binary", VERSION, false);
        parts.write_binary("binary-demo", VERSION, true);
        fs::create_dir_all(parts.0.built("")).unwrap();
        parts.write_crates("numacast.cdx.json", &["kube"]);
        parts.write_crates("numacast-demo.cdx.json", &["kube", "numacast-sim"]);
        parts.pack_site(&[]);
        Some(parts)
    }

    /// Writes a script that acts like the binary.
    fn write_binary(&self, name: &str, version: &str, has_demo: bool) {
        let status = if has_demo { 0 } else { 2 };
        let script = format!("#!/bin/sh\n[ \"$1\" != demo ] || exit {status}\necho numacast {version}\n");
        fs::write(self.0.path(name), script).unwrap();
    }

    fn write_crates(&self, name: &str, crates: &[&str]) {
        let components: Vec<_> = crates.iter().map(|name| serde_json::json!({ "name": name })).collect();
        let component = serde_json::json!({ "name": "numacast", "version": VERSION });
        let list = serde_json::json!({ "metadata": { "component": component }, "components": components });
        fs::write(self.0.built(name), list.to_string()).unwrap();
    }

    /// Packs a site with an empty page for each document, except some.
    fn pack_site(&self, except: &[&str]) {
        let site = tempfile::tempdir().unwrap();
        let documents =
            Command::new("find").args([".", "-name", "*.md"]).current_dir(repository().join("docs")).output();
        let documents = String::from_utf8(documents.unwrap().stdout).unwrap();
        for document in documents.lines().chain(["index.md"]) {
            let page = site.path().join(document).with_extension("html");
            fs::create_dir_all(page.parent().unwrap()).unwrap();
            fs::write(page, "").unwrap();
        }
        for page in except {
            fs::remove_file(site.path().join(page)).unwrap();
        }
        let mut tar = Command::new("tar");
        tar.arg("-czf").arg(self.0.built("numacast-docs.tar.gz")).arg("-C").arg(site.path()).arg(".");
        assert!(tar.status().unwrap().success());
    }

    fn build_binaries(&self) {
        for arguments in [&[] as &[&str], &["--demo"]] {
            let output = self.0.command("build").args(arguments).output().unwrap();
            assert!(output.status.success(), "{}", text_of(&output));
        }
    }

    fn release(&self, arguments: &[&str]) -> Output {
        self.0.command("release").args(arguments).output().unwrap()
    }

    /// Returns the release's directory.
    fn directory(&self) -> PathBuf {
        self.0.path("target").join(format!("release-{VERSION}"))
    }

    /// Makes a release, which must succeed.
    #[track_caller]
    fn released(self) -> Self {
        let output = self.release(&[]);
        assert!(output.status.success(), "{}", text_of(&output));
        self
    }

    /// Makes or checks a release, which must fail, and returns the error.
    #[track_caller]
    fn error(&self, arguments: &[&str]) -> String {
        let output = self.release(arguments);
        let text = text_of(&output);
        assert!(!output.status.success(), "no error: {text}");
        assert!(text.lines().all(|line| line.starts_with("image/")), "{text}");
        text
    }
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_release_has_all_files() {
    let Some(parts) = Parts::build() else { return };
    let parts = parts.released();
    assert_eq!(names_in(&parts.directory()), FILES.map(name_of).into());
    assert!(parts.release(&["--check"]).status.success());
    let image = fs::read_to_string(parts.directory().join("image.txt")).unwrap();
    assert!(image.starts_with(&format!("ghcr.io/numacast/numacast:{VERSION}@sha256:")), "{image}");
}

#[test]
fn a_release_of_two_architectures_has_the_files_of_both() {
    let Some(parts) = Parts::build() else { return };
    let (other, machine) = if ARCHITECTURE == "amd64" { ("arm64", "aarch64") } else { ("amd64", "x86_64") };
    parts.0.add_program("uname", &format!("#!/bin/sh\necho {machine}\n"));
    parts.build_binaries();
    fs::remove_file(parts.0.path("bin/uname")).unwrap();

    let output = parts.release(&[ARCHITECTURE, other]);
    assert!(output.status.success(), "{}", text_of(&output));
    let mut expected: BTreeSet<_> = FILES.map(name_of).into();
    expected.extend(FILES.map(|file| name_of(&file.replace("ARCHITECTURE", other))));
    assert_eq!(names_in(&parts.directory()), expected);
    // A release for one lacks nothing, but has too much.
    assert!(parts.error(&["--check"]).contains("does not belong to a release"));
}

#[test]
fn the_document_names_all_files() {
    let document = file("docs/release.md");
    for name in FILES {
        assert!(document.contains(&format!("`{name}`")), "docs/release.md does not name {name}");
    }
}

#[test]
fn a_missing_changed_or_additional_file_is_reported() {
    let Some(parts) = Parts::build() else { return };
    let parts = parts.released();
    for name in FILES.map(name_of) {
        let path = parts.directory().join(&name);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = parts.error(&["--check"]);
        assert_eq!(error, format!("image/release: {name} is missing\n"));
        fs::write(&path, b"changed\n").unwrap();
        let error = parts.error(&["--check"]);
        assert!(
            name == "SHA256SUMS" || error.ends_with(&format!("{name} is not the one in SHA256SUMS\n")),
            "{error}"
        );
        fs::write(&path, content).unwrap();
    }
    fs::write(parts.directory().join("notes"), b"").unwrap();
    assert_eq!(parts.error(&["--check"]), "image/release: notes does not belong to a release\n");
}

#[test]
fn a_missing_part_or_architecture_is_reported() {
    let Some(parts) = Parts::build() else { return };
    let other = if ARCHITECTURE == "amd64" { "arm64" } else { "amd64" };
    let error = parts.error(&[ARCHITECTURE, other]);
    assert!(
        error.contains(&format!("numacast-demo-{other}.tar.gz is missing: run 'make release'")),
        "{error}"
    );
    assert!(
        parts.error(&["--check"]).ends_with(&format!("release-{VERSION} is missing: run 'make release'\n"))
    );
    assert!(parts.error(&["s390x"]).ends_with("'s390x' is not supported: only amd64 and arm64 are\n"));
    // The binaries themselves are in the archives.
    let binaries = ["numacast", "numacast-demo"].map(|name| format!("{name}-{ARCHITECTURE}"));
    for name in names_in(&parts.0.built("")).into_iter().filter(|name| !binaries.contains(name)) {
        let path = parts.0.built(&name);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = parts.error(&[]);
        assert!(error.ends_with(&format!("/{name} is missing: run 'make release'\n")), "{error}");
        assert!(!parts.directory().exists(), "without {name}");
        fs::write(&path, content).unwrap();
    }
}

/// A fault, by which a file of the build directory is changed: its name, what is replaced by what, and a part of the error.
type Fault = (&'static str, &'static str, &'static str, &'static str);

/// Before the build, in the binaries and in the image.
const FAULTS_OF_THE_BUILD: [Fault; 9] = [
    ("binary", VERSION, "0.0.9", "-image-ARCHITECTURE.txt says 'numacast 0.0.9' and not 'numacast VERSION'"),
    (
        "binary-demo",
        VERSION,
        "0.0.9",
        "-linux-ARCHITECTURE.txt says 'numacast 0.0.9' and not 'numacast VERSION'",
    ),
    (
        "man/numacast.1",
        "numacast 0",
        "numacast 1",
        "-linux-ARCHITECTURE.tar.gz has no man page of numacast VERSION",
    ),
    (
        "man/numacast.1",
        r"\-pods",
        r"\-pods\-list",
        "-linux-ARCHITECTURE.tar.gz has no man page numacast-pods-list",
    ),
    ("binary", "exit 2", "exit 0", "-image-ARCHITECTURE.tar has the demo"),
    ("binary-demo", "exit 0", "exit 2", "-linux-ARCHITECTURE.tar.gz has no demo"),
    (
        "bin/buildah",
        "name=${layout#*:}",
        "name=${layout##*:}",
        "is called 'VERSION' and not 'ghcr.io/numacast/numacast:VERSION'",
    ),
    (
        "bin/buildah",
        r#""architecture":"'$architecture'""#,
        r#""architecture":"s390x""#,
        "is 's390x VERSION' and not 'ARCHITECTURE VERSION'",
    ),
    ("bin/buildah", "sha256:%064d", "%064d", "image.txt has no digest of ghcr.io/numacast/numacast:VERSION"),
];

/// After the build, in its results.
const FAULTS_OF_THE_PARTS: [Fault; 6] = [
    (
        "numacast-ARCHITECTURE.txt",
        "revision: 0",
        "revision: 1",
        "is of commit 1123456789 and not of 0123456789",
    ),
    (
        "numacast-demo-ARCHITECTURE.txt",
        "revision: 0",
        "revision: 1",
        "is of commit 1123456789 and not of 0123456789",
    ),
    ("numacast-ARCHITECTURE.txt", "image: sha256:", "image: sha512:", "has not the image's digest sha256:"),
    ("numacast-demo-ARCHITECTURE.txt", "sha256: ", "sha256: 0", "describes another binary"),
    ("numacast-demo-ARCHITECTURE.txt", "target: ", "target: powerpc-", "is not of a build for ARCHITECTURE"),
    ("numacast.cdx.json", "kube", "cube", "is not the list of crates of numacast VERSION"),
];

/// Replaces text in a file, which must have it.
#[track_caller]
fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from} is not in {}", path.display());
    fs::write(path, text.replace(from, to)).unwrap();
}

/// Asserts that a release is rejected with one error for each fault.
#[track_caller]
fn assert_reported(parts: &Parts, faults: &[Fault]) {
    let error = parts.error(&[]);
    for (name, _, _, expected) in faults {
        assert!(error.contains(&name_of(expected)), "{name}: {expected} is not in:\n{error}");
    }
    assert_eq!(error.lines().count(), faults.len(), "{error}");
    assert!(!parts.directory().exists());
}

#[test]
fn all_faults_of_the_build_are_reported() {
    let Some(parts) = Parts::unbuilt() else { return };
    for (name, from, to, _) in FAULTS_OF_THE_BUILD {
        replace(&parts.0.path(name), from, to);
    }
    parts.build_binaries();
    assert_reported(&parts, &FAULTS_OF_THE_BUILD);
}

#[test]
fn all_faults_of_the_parts_are_reported() {
    let Some(parts) = Parts::build() else { return };
    for (name, from, to, _) in FAULTS_OF_THE_PARTS {
        replace(&parts.0.built(&name_of(name)), from, to);
    }
    assert_reported(&parts, &FAULTS_OF_THE_PARTS);
}

#[test]
fn a_failed_push_is_reported() {
    let Some(parts) = Parts::build() else { return };
    replace(&parts.0.path("bin/buildah"), "printf 'sha256:%064d' 1 >\"$2\"", ":");
    assert!(parts.error(&[]).starts_with("image/push: buildah pushed nothing to oci:"));
}

#[test]
fn an_archive_without_the_licence_is_reported() {
    let Some(parts) = Parts::build() else { return };
    let archive = parts.0.built(&format!("numacast-demo-{ARCHITECTURE}.tar.gz"));
    let unpacked = tempfile::tempdir().unwrap();
    for action in [&["-xzf"] as &[&str], &["--exclude=LICENSE", "-czf"]] {
        let mut tar = Command::new("tar");
        tar.args(action).arg(&archive).arg("-C").arg(unpacked.path());
        let done = tar.args(if action.len() > 1 { &["."] as &[&str] } else { &[] }).status();
        assert!(done.unwrap().success());
    }
    let error = parts.error(&[]);
    let expected =
        ".tar.gz has not exactly the binary, the licence, the man pages and what completes the plugin\n";
    assert!(error.ends_with(expected), "{error}");
}

/// What krew reads: the form is that of its own v1alpha2 types.
#[test]
fn the_manifest_of_the_plugin_fits_the_archives() {
    let Some(parts) = Parts::build() else { return };
    let parts = parts.released();
    let text = fs::read_to_string(parts.directory().join("numacast.yaml")).unwrap();
    let manifest: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(manifest["metadata"]["name"], "numacast", "krew requires the name of the file");
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let [platform] = manifest["spec"]["platforms"].as_array().unwrap().as_slice() else {
        panic!("not one platform: {text}")
    };
    let labels = serde_json::json!({"os": "linux", "arch": ARCHITECTURE});
    assert_eq!(platform["selector"]["matchLabels"], labels);
    let archive = name_of("numacast-VERSION-linux-ARCHITECTURE.tar.gz");
    assert!(platform["uri"].as_str().unwrap().ends_with(&format!("/v{VERSION}/{archive}")), "{text}");
    let sums = fs::read_to_string(parts.directory().join("SHA256SUMS")).unwrap();
    let line = format!("{}  {archive}", platform["sha256"].as_str().unwrap());
    assert!(sums.lines().any(|sum| sum == line), "{line} is not in\n{sums}");
    let binary = platform["bin"].as_str().unwrap();
    let listed =
        Command::new("tar").arg("-tzf").arg(parts.directory().join(archive)).output().unwrap().stdout;
    assert!(String::from_utf8(listed).unwrap().lines().any(|file| file == binary), "{binary}");
}

/// krew itself installs the archive, and the link that it makes is what kubectl runs as its plugin.
#[test]
fn krew_installs_the_plugin() {
    let (Some(parts), Some(mut krew)) = (Parts::build(), part("krew")) else { return };
    let parts = parts.released();
    let root = tempfile::tempdir().unwrap();
    // Without it krew wants an index.
    fs::create_dir_all(root.path().join("index/default/.git")).unwrap();
    krew.env("KREW_ROOT", root.path()).env("KREW_NO_UPGRADE_CHECK", "1").arg("install");
    krew.arg("--manifest").arg(parts.directory().join("numacast.yaml"));
    krew.arg("--archive").arg(parts.directory().join(name_of("numacast-VERSION-linux-ARCHITECTURE.tar.gz")));
    let output = krew.output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let said = Command::new(root.path().join("bin/kubectl-numacast")).arg("--version").output().unwrap();
    assert_eq!(text_of(&said), format!("numacast {VERSION}\n"));
}

#[test]
fn a_manifest_of_other_archives_is_reported() {
    let Some(parts) = Parts::build() else { return };
    let parts = parts.released();
    replace(&parts.directory().join("numacast.yaml"), "sha256: ", "sha256: 0");
    let sums = "sha256sum -- $(ls | grep -v SHA256SUMS) >SHA256SUMS";
    assert!(Command::new("sh").args(["-c", sums]).current_dir(parts.directory()).status().unwrap().success());
    let expected = "image/release: numacast.yaml is not the manifest of these archives\n";
    assert_eq!(parts.error(&["--check"]), expected);
}

#[test]
fn a_site_without_a_page_is_reported() {
    let Some(parts) = Parts::build() else { return };
    let missing = ["scheduler.html", "index.html"];
    parts.pack_site(&missing);
    let error = parts.error(&[]);
    for page in missing {
        let expected = format!("image/release: numacast-{VERSION}-docs.tar.gz has no page {page}\n");
        assert!(error.contains(&expected), "{page} is not in:\n{error}");
    }
}

/// Replaces the chart of a release by a changed copy of ours.
fn replace_chart(release: &Path, change: impl Fn(&Path)) {
    let chart = tempfile::tempdir().unwrap();
    let copied =
        Command::new("cp").arg("-r").arg(repository().join("charts/numacast")).arg(chart.path()).status();
    assert!(copied.unwrap().success());
    let chart = chart.path().join("numacast");
    change(&chart);
    let mut helm = part("helm").unwrap();
    let packaged = helm.arg("package").arg(chart).arg("--destination").arg(release).output();
    assert!(packaged.unwrap().status.success());
    let sums = "sha256sum -- $(ls | grep -v SHA256SUMS) >SHA256SUMS";
    assert!(Command::new("sh").args(["-c", sums]).current_dir(release).status().unwrap().success());
}

#[test]
fn a_chart_that_cannot_be_installed_is_reported() {
    let Some(parts) = Parts::build() else { return };
    let parts = parts.released();
    replace_chart(&parts.directory(), |chart| {
        fs::write(chart.join("templates/broken.yaml"), "{{ broken }}\n").unwrap();
    });
    let error = parts.error(&["--check"]);
    for command in ["lint", "template"] {
        let expected = format!("image/release: helm {command} rejects numacast-{VERSION}.tgz: ");
        let line = error.lines().find_map(|line| line.strip_prefix(&expected));
        assert!(line.is_some_and(|line| line.contains("broken")), "helm {command} is not in:\n{error}");
    }
}

#[test]
fn a_chart_for_another_image_is_reported() {
    let Some(parts) = Parts::build() else { return };
    let parts = parts.released();
    replace_chart(&parts.directory(), |chart| {
        replace(&chart.join("Chart.yaml"), &format!("appVersion: {VERSION}"), "appVersion: 0.0.9");
    });
    let expected = format!(
        "image/release: the pods of numacast-{VERSION}.tgz have the image 'ghcr.io/numacast/numacast:0.0.9' and not \
         'ghcr.io/numacast/numacast:{VERSION}'\n"
    );
    assert_eq!(parts.error(&["--check"]), expected);
}
