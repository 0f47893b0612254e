//! A node's own place in the machine's cgroups. A kubelet applies an in-place resize to a pod's cgroup, and one
//! that keeps none panics there.

use std::path::{Path, PathBuf};

/// A cgroup of one name in every hierarchy, with everything below it; it goes with this value.
#[derive(Debug)]
pub(crate) struct Cgroups {
    name: String,
    places: Vec<PathBuf>,
}

impl Cgroups {
    /// Makes them. `None`: this machine has no hierarchies of version 1, or lets nobody make anything there.
    pub(crate) fn make(name: &str) -> Option<Self> {
        let mut made = Self { name: name.to_owned(), places: Vec::new() };
        for hierarchy in hierarchies() {
            let place = hierarchy.join(name);
            std::fs::create_dir(&place).ok()?; // what was made so far goes with `made`
            made.places.push(place);
        }
        (!made.places.is_empty()).then_some(made)
    }

    /// As `cgroupRoot` of a kubelet names them.
    pub(crate) fn root(&self) -> String {
        format!("/{}", self.name)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.places.iter().for_each(|place| remove(place));
    }
}

/// Removes a cgroup and those below it. Nothing runs in them, so that the kernel has no reason to refuse; if it
/// does, an empty cgroup stays, which harms nobody.
fn remove(place: &Path) {
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(place);
}

/// Where hierarchies are mounted; none where they are all of version 2, in which no test has been run.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of_kind = |wanted: &'static str| {
        mounts.lines().filter_map(move |line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            (kind == wanted).then(|| PathBuf::from(place))
        })
    };
    let first: Vec<PathBuf> = of_kind("cgroup").collect();
    // Beside those of version 1 the kubelet uses that of version 2 too.
    if first.is_empty() { first } else { first.into_iter().chain(of_kind("cgroup2")).collect() }
}
