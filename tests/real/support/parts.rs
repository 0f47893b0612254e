//! Where the real programs are, and whether this machine can run them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::{Semaphore, SemaphorePermit};

/// What a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// etcd and an API server.
    #[allow(dead_code, reason = "for tests that need no node")]
    ApiServer,
    /// These and a kubelet on a described machine.
    Kubelet,
}

/// The real programs, for three tests at a time: they wait for most of their time, but more kubelets under load share two
/// cores badly.
#[derive(Debug)]
pub(crate) struct Parts {
    dir: PathBuf,
    /// The kubelet and the API server of the version that `NUMACAST_KUBERNETES` names, where it names one.
    chosen: Vec<PathBuf>,
    _turn: SemaphorePermit<'static>,
}

static TURNS: Semaphore = Semaphore::const_new(3);

/// The exit status by which `tests/parts/build` says that it cannot build here at all.
const CANNOT_BUILD: i32 = 69;

impl Parts {
    /// Waits for this test's turn and sees to it that every program is built. `None`: they cannot run here,
    /// which has been said, and is an error where `CI=true`.
    pub(crate) async fn for_test(needs: Needs) -> Result<Option<Self>> {
        let turn = TURNS.acquire().await?;
        let version = std::env::var("NUMACAST_KUBERNETES").ok();
        let chosen = |program: &str| version.as_ref().map(|version| format!("{program}@{version}"));
        let chosen: Vec<String> = ["kubelet", "kube-apiserver"].into_iter().filter_map(chosen).collect();
        let found = match missing(needs) {
            Some(why) => Err(why),
            None => build(&chosen.iter().map(String::as_str).collect::<Vec<_>>())?,
        };
        let paths = |said: &String| said.lines().take(chosen.len()).map(PathBuf::from).collect();
        let chosen = found.as_ref().map(paths).unwrap_or_default();
        Ok(dir_of(found)?.map(|dir| Self { dir, chosen, _turn: turn }))
    }

    /// As [`Parts::for_test`], and Helm beside them.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) async fn with_helm(needs: Needs) -> Result<Option<Self>> {
        let Some(parts) = Self::for_test(needs).await? else { return Ok(None) };
        Ok(fetched(&["helm"])?.map(|_| parts))
    }

    /// As [`Parts::for_test`], and clients of the podresources socket in Go and Python beside them.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) async fn with_clients(needs: Needs) -> Result<Option<Self>> {
        let Some(parts) = Self::for_test(needs).await? else { return Ok(None) };
        Ok(fetched(&["podresources", "grpcio"])?.map(|_| parts))
    }

    /// As [`Parts::for_test`], and clients of the Pods API in Go and Python beside them.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) async fn with_pods_clients(needs: Needs) -> Result<Option<Self>> {
        let Some(parts) = Self::for_test(needs).await? else { return Ok(None) };
        Ok(fetched(&["pods", "grpcio-pods"])?.map(|_| parts))
    }

    /// A program's path; what the person brought along comes first, but for another version that was asked for.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        if let Some(path) = self.chosen.iter().find(|path| path.ends_with(name)) {
            return path.clone();
        }
        let given = std::env::var_os("KUBEBUILDER_ASSETS").map(|dir| Path::new(&dir).join(name));
        given.filter(|path| path.is_file()).unwrap_or_else(|| self.dir.join(name))
    }
}

/// The directory in which `names`, parts that need neither root nor Go, are then. `None` as for [`Parts::for_test`].
#[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
pub(crate) fn fetched(names: &[&str]) -> Result<Option<PathBuf>> {
    dir_of(build(&[&["--only"], names].concat())?)
}

/// The directory that the script named, or what follows from its being unable to.
fn dir_of(found: Result<String, String>) -> Result<Option<PathBuf>> {
    match found {
        Ok(said) => {
            let dir = said.lines().last().context("tests/parts/build names no directory")?;
            Ok(Some(PathBuf::from(dir)))
        }
        Err(why) if std::env::var("CI").is_ok_and(|ci| ci == "true") => {
            bail!("the real parts cannot run, and CI=true: {why}")
        }
        Err(why) => {
            say_once(&why);
            Ok(None)
        }
    }
}

/// The `kubelet` or `kube-apiserver` of a minor version, such as `1.33`, built where it is missing.
pub(crate) fn program_of(version: &str, name: &str) -> Result<PathBuf> {
    let said = build(&["--only", &format!("{name}@{version}")])?.map_err(anyhow::Error::msg)?;
    Ok(PathBuf::from(said.lines().next().context("tests/parts/build names no program")?))
}

/// A file of `tests/parts/`.
pub(crate) fn script(name: &str) -> PathBuf {
    repository().join("tests/parts").join(name)
}

/// The directory of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Why the machine cannot run the parts, as far as that shows before anything is built.
fn missing(needs: Needs) -> Option<String> {
    if needs == Needs::ApiServer {
        return None;
    }
    let can = |program: &str, args: &[&str]| {
        let status = Command::new(program).args(args).stderr(std::process::Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !can("unshare", &["-m", "--propagation", "private", "true"]) {
        return Some("a described machine needs a mount namespace, and so root with CAP_SYS_ADMIN".into());
    }
    let places = ["/sys/devices/system/node", "/sys/devices/system/cpu", "/sys/bus/node/devices"];
    let absent = places.iter().find(|place| !Path::new(place).is_dir())?;
    Some(format!("a described machine is put over {absent}, which this kernel does not have"))
}

/// Builds what is missing and gives what the script says. The inner error says why nothing can be built here.
fn build(arguments: &[&str]) -> Result<Result<String, String>> {
    let output = Command::new(script("build")).args(arguments).output();
    let output = output.context("cannot run tests/parts/build")?;
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.code() == Some(CANNOT_BUILD) {
        return Ok(Err(complaint));
    }
    ensure!(output.status.success(), "{complaint}");
    Ok(Ok(String::from_utf8(output.stdout)?))
}

/// One line for all tests together, past the test harness, which would keep it to itself.
fn say_once(why: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let _ = writeln!(std::io::stderr(), "skipped, passing: the tests on real parts: {why}");
    });
}
