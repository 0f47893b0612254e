//! Locates the real programs and checks whether this machine can run them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use anyhow::{Context, Result, bail, ensure};

/// What a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// etcd and an API server.
    #[allow(dead_code, reason = "for tests that need no node")]
    ApiServer,
    /// An API server with etcd, and a kubelet on a described machine.
    Kubelet,
}

/// The real programs.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    dir: PathBuf,
    /// The kubelet and the API server of version `NUMACAST_KUBERNETES`, if set.
    chosen: Vec<PathBuf>,
}

/// The exit status of `tests/parts/build` if it cannot build on this machine.
const CANNOT_BUILD: i32 = 69;

impl Parts {
    /// Builds missing programs. `None`: they cannot run here, which is printed once, and an error under
    /// `CI=true`.
    pub(crate) fn for_test(needs: Needs) -> Result<Option<Self>> {
        let version = std::env::var("NUMACAST_KUBERNETES").ok();
        let chosen = |program: &str| version.as_ref().map(|version| format!("{program}@{version}"));
        let chosen: Vec<String> = ["kubelet", "kube-apiserver"].into_iter().filter_map(chosen).collect();
        let found = match missing(needs) {
            Some(why) => Err(why),
            None => build(&chosen.iter().map(String::as_str).collect::<Vec<_>>())?,
        };
        let paths = |output: &String| output.lines().take(chosen.len()).map(PathBuf::from).collect();
        let chosen = found.as_ref().map(paths).unwrap_or_default();
        Ok(dir_of(found)?.map(|dir| Self { dir, chosen }))
    }

    /// Like [`Parts::for_test`], with Helm.
    #[allow(dead_code, reason = "not every test program uses everything")]
    pub(crate) fn with_helm(needs: Needs) -> Result<Option<Self>> {
        Self::with(needs, &["helm"])
    }

    /// Like [`Parts::for_test`], with podresources clients in Go and Python.
    #[allow(dead_code, reason = "not every test program uses everything")]
    pub(crate) fn with_clients(needs: Needs) -> Result<Option<Self>> {
        Self::with(needs, &["podresources", "grpcio"])
    }

    /// Like [`Parts::for_test`], with the podresources client in Go, and clients as their projects release them.
    #[allow(dead_code, reason = "not every test program uses everything")]
    pub(crate) fn with_released_clients(needs: Needs) -> Result<Option<Self>> {
        Self::with(needs, &["podresources", "multus", "nfd-topology-updater"])
    }

    /// Like [`Parts::for_test`], with Pods API clients in Go and Python.
    #[allow(dead_code, reason = "not every test program uses everything")]
    pub(crate) fn with_pods_clients(needs: Needs) -> Result<Option<Self>> {
        Self::with(needs, &["pods", "grpcio-pods"])
    }

    /// Like [`Parts::for_test`], with a driver for Dynamic Resource Allocation, the podresources client in
    /// Go, and Helm.
    #[allow(dead_code, reason = "not every test program uses everything")]
    pub(crate) fn with_dra_driver(needs: Needs) -> Result<Option<Self>> {
        Self::with(needs, &["dra-driver", "podresources", "helm"])
    }

    #[allow(dead_code, reason = "not every test program uses everything")]
    fn with(needs: Needs, more: &[&str]) -> Result<Option<Self>> {
        let Some(parts) = Self::for_test(needs)? else { return Ok(None) };
        Ok(fetched(more)?.map(|_| parts))
    }

    /// Returns a program's path: of an explicitly selected version first, then from `KUBEBUILDER_ASSETS`.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        if let Some(path) = self.chosen.iter().find(|path| path.ends_with(name)) {
            return path.clone();
        }
        let set = std::env::var_os("KUBEBUILDER_ASSETS").map(|dir| Path::new(&dir).join(name));
        set.filter(|path| path.is_file()).unwrap_or_else(|| self.dir.join(name))
    }
}

/// Builds `names`, parts that need neither root nor Go, and returns their directory. `None` as for
/// [`Parts::for_test`].
#[allow(dead_code, reason = "not every test program uses everything")]
pub(crate) fn fetched(names: &[&str]) -> Result<Option<PathBuf>> {
    dir_of(build(&[&["--only"], names].concat())?)
}

/// Returns the directory that the script printed, or handles its failure.
fn dir_of(found: Result<String, String>) -> Result<Option<PathBuf>> {
    match found {
        Ok(output) => {
            let dir = output.lines().last().context("tests/parts/build names no directory")?;
            Ok(Some(PathBuf::from(dir)))
        }
        Err(why) if std::env::var("CI").is_ok_and(|ci| ci == "true") => {
            bail!("the real parts cannot run, and CI=true: {why}")
        }
        Err(why) => {
            print_once(&why);
            Ok(None)
        }
    }
}

/// Returns the `kubelet` or `kube-apiserver` of a minor version, such as `1.33`; builds it if missing.
pub(crate) fn program_of(version: &str, name: &str) -> Result<PathBuf> {
    let output = build(&["--only", &format!("{name}@{version}")])?.map_err(anyhow::Error::msg)?;
    Ok(PathBuf::from(output.lines().next().context("tests/parts/build names no program")?))
}

/// Returns the path of a file in `tests/parts/`.
pub(crate) fn script(name: &str) -> PathBuf {
    repository().join("tests/parts").join(name)
}

/// Returns the repository's directory.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns why this machine cannot run the programs, as far as is known before the build.
fn missing(needs: Needs) -> Option<String> {
    static KUBELET: OnceLock<Option<String>> = OnceLock::new();
    match needs {
        Needs::ApiServer => None,
        Needs::Kubelet => KUBELET.get_or_init(missing_for_kubelet).clone(),
    }
}

fn missing_for_kubelet() -> Option<String> {
    let can = |program: &str, args: &[&str]| {
        let status = Command::new(program).args(args).stderr(std::process::Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !can("unshare", &["-m", "--propagation", "private", "true"]) {
        return Some("a described machine needs a mount namespace, and so root with CAP_SYS_ADMIN".into());
    }
    let places = ["/sys/devices/system/node", "/sys/devices/system/cpu", "/sys/bus/node/devices"];
    let absent = places.iter().find(|place| !Path::new(place).is_dir())?;
    Some(format!("a described machine is mounted over {absent}, which does not exist here"))
}

/// Builds what is missing and returns the script's output. The inner error is the reason why nothing can be
/// built here. Once per process and set of arguments.
fn build(arguments: &[&str]) -> Result<Result<String, String>> {
    static BUILT: Mutex<BTreeMap<Vec<String>, Result<String, String>>> = Mutex::new(BTreeMap::new());
    let key: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    // Others wait meanwhile, as they would for the script's lock.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = built.get(&key) {
        return Ok(known.clone());
    }
    let found = run_build(arguments)?;
    built.insert(key, found.clone());
    Ok(found)
}

fn run_build(arguments: &[&str]) -> Result<Result<String, String>> {
    let output = Command::new(script("build")).args(arguments).output();
    let output = output.context("cannot run tests/parts/build")?;
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.code() == Some(CANNOT_BUILD) {
        return Ok(Err(error));
    }
    ensure!(output.status.success(), "{error}");
    Ok(Ok(String::from_utf8(output.stdout)?))
}

/// Prints one line for all tests together, directly to stderr, as the test harness would capture it.
fn print_once(why: &str) {
    static PRINTED: Once = Once::new();
    PRINTED.call_once(|| {
        let _ =
            writeln!(std::io::stderr(), "tests with real components are skipped (reported as passed): {why}");
    });
}
