//! The images that the nodes get: no registry is asked.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::tools::output_of;
use crate::{Options, support};

/// The image of sandboxes and of the pods under test.
pub(crate) const PAUSE: &str = "numacast.test/pause:1";
/// A client of the Pods API and PodInfo.
pub(crate) const CLIENT: &str = "numacast.test/pods:1";

/// Returns the archive that `make image` makes.
pub(crate) fn default_archive() -> PathBuf {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap_or(Path::new("target"));
    target.join(format!("image/numacast-{architecture}.tar"))
}

/// Returns the archives of all images; those that are not numacast's are made of one program each.
pub(crate) async fn archives(options: &Options, dir: &Path, programs: &Path) -> Result<Vec<PathBuf>> {
    let image = options.image.clone().unwrap_or_else(default_archive);
    let scheduler = scheduler_image(programs)?;
    let pause = make(dir, PAUSE, &programs.join("pause"), "/pause")?;
    let scheduler = make(dir, &scheduler, &programs.join("scheduler"), "/bin/kube-scheduler")?;
    let client = make(dir, CLIENT, &programs.join("pods"), "/pods")?;
    Ok(vec![image, pause, scheduler, client])
}

/// Returns the scheduler's image as the chart names it for this cluster's version.
fn scheduler_image(programs: &Path) -> Result<String> {
    let mut command = Command::new(programs.join("helm"));
    command.args(["template", "numacast"]).arg(support::parts::repository().join("charts/numacast"));
    command.args(["--set", "scheduler.enabled=true", "--show-only", "templates/scheduler.yaml"]);
    command.args(["--kube-version", &kubernetes(programs)?]);
    let text = output_of(&mut command)?;
    // The init container has numacast's.
    let mut images = text.lines().filter_map(|line| line.trim().strip_prefix("image: "));
    let image = images.find(|image| image.contains("scheduler-plugins"));
    Ok(image.context("the chart's scheduler has no image")?.trim_matches('"').to_owned())
}

/// Returns the version of Kubernetes, by which the directory of its programs is named.
fn kubernetes(programs: &Path) -> Result<String> {
    let name = programs.file_name().context("the programs are in no directory")?;
    Ok(name.to_string_lossy().into_owned())
}

/// Makes an image of one static program.
fn make(dir: &Path, name: &str, program: &Path, place: &str) -> Result<PathBuf> {
    let context = dir.join("image").join(name.replace(['/', ':'], "-"));
    std::fs::create_dir_all(&context)?;
    std::fs::copy(program, context.join("program"))?;
    let containerfile = format!("FROM scratch\nCOPY program {place}\nENTRYPOINT [\"{place}\"]\n");
    std::fs::write(context.join("Containerfile"), containerfile)?;
    let archive = PathBuf::from(format!("{}.tar", context.display()));
    let storage = context.join("storage");
    let buildah = |arguments: &[&str]| {
        let mut command = Command::new("buildah");
        command.args(["--log-level", "error", "--storage-driver", "vfs"]);
        command.arg("--root").arg(storage.join("root")).arg("--runroot").arg(storage.join("run"));
        output_of(command.args(arguments))
    };
    let context = context.display().to_string();
    buildah(&["bud", "--isolation", "chroot", "--quiet", "--layers=false", "--tag", name, &context])?;
    buildah(&["push", "--quiet", name, &format!("docker-archive:{}:{name}", archive.display())])?;
    std::fs::remove_dir_all(&storage)?;
    Ok(archive)
}
