//! A node's own cgroups. The kubelet applies an in-place resize to a pod's cgroup, and panics there if it
//! manages no cgroups.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A cgroup of one name in every hierarchy, with everything below it; removed when dropped.
#[derive(Debug)]
pub(crate) struct Cgroups {
    name: String,
    places: Vec<PathBuf>,
}

impl Cgroups {
    /// Creates the cgroups. `None`: this machine has no v1 hierarchies, or cgroups cannot be created there.
    pub(crate) fn make(name: &str) -> Option<Self> {
        let mut made = Self { name: name.to_owned(), places: Vec::new() };
        for hierarchy in hierarchies() {
            let place = hierarchy.join(name);
            std::fs::create_dir(&place).ok()?; // dropping `made` removes what was created so far
            made.places.push(place);
        }
        (!made.places.is_empty()).then_some(made)
    }

    /// Returns the kubelet's `cgroupRoot`.
    pub(crate) fn root(&self) -> String {
        format!("/{}", self.name)
    }
}

#[allow(dead_code, reason = "only `make e2e` runs containers")]
impl Cgroups {
    /// Creates a cgroup below one that exists, in every hierarchy. Processes can run in both and in those below them:
    /// a new cgroup has no CPUs.
    pub(crate) fn fill(path: &Path) -> Result<()> {
        let below = path.strip_prefix("/").unwrap_or(path);
        for hierarchy in hierarchies() {
            let place = hierarchy.join(below);
            std::fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
            if !hierarchy.join("cpuset.cpus").exists() {
                continue;
            }
            let mut place = hierarchy.clone();
            for name in below {
                let parent = place.clone();
                place.push(name);
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    let value = std::fs::read(parent.join(file))?;
                    std::fs::write(place.join(file), value)
                        .with_context(|| format!("{}", place.display()))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.places.iter().for_each(|place| remove(place));
    }
}

/// Removes a cgroup and those below it. No process runs in them, so the kernel should allow it; if not,
/// a harmless empty cgroup remains.
fn remove(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(place);
}

/// Returns where hierarchies are mounted; empty if all are v2, which no test has been run with.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of_kind = |wanted: &'static str| {
        mounts.lines().filter_map(move |line| {
            let mut fields = line.split(' ').skip(1);
            let (place, kind) = (fields.next()?, fields.next()?);
            (kind == wanted).then(|| PathBuf::from(place))
        })
    };
    let first: Vec<PathBuf> = of_kind("cgroup").collect();
    // The kubelet uses the v2 hierarchy beside the v1 ones.
    if first.is_empty() { first } else { first.into_iter().chain(of_kind("cgroup2")).collect() }
}
