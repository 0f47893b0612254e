//! What makes the agent look: files that the kubelet renames or creates.
//!
//! The kubelet writes its state by rename (`IN_MOVED_TO`), and so it makes its sockets. Only directories are
//! watched: a watch on a file dies with its inode. A directory that vanishes or is replaced is watched again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use futures::StreamExt;
use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

/// How often to look for directories that are missing or were replaced without a word.
const REARM: Duration = Duration::from_secs(1);
/// How long to wait when the kernel gives us no inotify instance (the default limit is 128 of them).
const NO_INSTANCE: Duration = Duration::from_secs(30);

/// Why to look: a set of reasons, so that many of them cost no more than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trigger(u8);

impl Trigger {
    /// `cpu_manager_state` was written.
    pub(super) const CPUS: Self = Self(1);
    /// `memory_manager_state` was written.
    pub(super) const MEMORY: Self = Self(2);
    /// Something happened in the device plugins' directory.
    pub(super) const DEVICES: Self = Self(4);
    /// `allocated_pods_state` was written (kubelet 1.33 and later): the last file of an admission. By itself it is no
    /// reason to look, since it is written for every pod.
    pub(super) const ADMITTED: Self = Self(16);
    /// The kubelet may be another, or anything may have happened unseen.
    pub(super) const EVERYTHING: Self = Self(8);

    /// Both sets of reasons.
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Is every reason of `other` among these?
    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The reasons that nobody has looked for yet. Nothing that is raised here is ever lost.
#[derive(Debug, Default)]
struct Pending {
    reasons: AtomicU8,
    raised: Notify,
}

impl Pending {
    fn raise(&self, trigger: Trigger) {
        self.reasons.fetch_or(trigger.0, Ordering::Relaxed);
        self.raised.notify_one();
    }

    /// Waits for a reason other than `ignored`.
    async fn take(&self, ignored: Trigger) -> Trigger {
        loop {
            let reasons = Trigger(self.reasons.swap(0, Ordering::Relaxed));
            if reasons != Trigger::default() && reasons != ignored {
                return reasons;
            }
            self.raised.notified().await;
        }
    }
}

/// The kubelet's directories.
#[derive(Clone, Debug)]
pub(super) struct Directories {
    /// Its root, with the state files; often not visible in a pod.
    pub(super) root: PathBuf,
    /// Where device plugins register.
    pub(super) device_plugins: PathBuf,
    /// Where the podresources socket lies.
    pub(super) socket: PathBuf,
}

/// The stream of triggers.
#[derive(Debug)]
pub(super) struct Triggers {
    pending: Arc<Pending>,
    task: JoinHandle<()>,
}

impl Triggers {
    /// Watches the kubelet's directories from now on.
    pub(super) fn start(directories: Directories) -> Self {
        let pending = Arc::new(Pending::default());
        let task = tokio::spawn(keep_watching(directories, Arc::clone(&pending)));
        Self { pending, task }
    }

    /// The next reasons to look; waits for ever if nothing happens.
    pub(super) async fn next(&mut self) -> Trigger {
        self.pending.take(Trigger::ADMITTED).await
    }

    /// Any further event of a burst, the end of an admission too.
    pub(super) async fn more(&mut self) -> Trigger {
        self.pending.take(Trigger::default()).await
    }
}

impl Drop for Triggers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Root,
    Devices,
    Socket,
}

async fn keep_watching(directories: Directories, pending: Arc<Pending>) {
    let mut told = false;
    loop {
        let Err(error) = watch(&directories, &pending).await else { continue };
        if !told {
            warn!(
                "cannot watch the kubelet's directories ({error}); changes are seen by polling until that works"
            );
            told = true;
        }
        tokio::time::sleep(NO_INSTANCE).await;
    }
}

async fn watch(directories: &Directories, pending: &Pending) -> io::Result<()> {
    let inotify = Inotify::init()?;
    let mut armed = Armed::new(directories, inotify.watches());
    let mut stream = inotify.into_event_stream([0_u8; 4096])?;
    let mut rearm = tokio::time::interval(REARM);
    rearm.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = rearm.tick() => armed.rearm(pending),
            event = stream.next() => {
                let Some(event) = event else { return Ok(()) };
                if armed.digest(&event?, pending) {
                    rearm.reset_immediately();
                }
            }
        }
    }
}

/// Which directory each watch is on. Two kinds may share one.
struct Armed {
    directories: [(Kind, PathBuf); 3],
    watches: Watches,
    kinds: BTreeMap<Kind, WatchDescriptor>,
    told: BTreeSet<Kind>,
}

impl Armed {
    fn new(directories: &Directories, watches: Watches) -> Self {
        let Directories { root, device_plugins, socket } = directories.clone();
        let directories = [(Kind::Devices, device_plugins), (Kind::Socket, socket), (Kind::Root, root)];
        Self { directories, watches, kinds: BTreeMap::new(), told: BTreeSet::new() }
    }

    /// Watches every directory that is there. A path that gives another watch than before was replaced: the
    /// kernel need not have told, since somebody may hold the old directory open.
    fn rearm(&mut self, pending: &Pending) {
        let mask = WatchMask::MOVED_TO
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        for (kind, dir) in &self.directories {
            match self.watches.add(dir, mask) {
                Ok(descriptor) if self.kinds.get(kind) == Some(&descriptor) => {}
                Ok(descriptor) => {
                    debug!("watching {}", dir.display());
                    let old = self.kinds.insert(*kind, descriptor);
                    let unused = old.filter(|old| self.kinds.values().all(|used| used != old));
                    // It is gone already if its directory is.
                    drop(unused.map(|old| self.watches.remove(old)));
                    // Whatever happened in there before the watch was set.
                    pending.raise(Trigger::EVERYTHING);
                }
                Err(error) => {
                    self.kinds.remove(kind);
                    if error.kind() != io::ErrorKind::NotFound && self.told.insert(*kind) {
                        warn!(
                            "cannot watch {} ({error}); changes in it are seen by polling only",
                            dir.display()
                        );
                    }
                }
            }
        }
    }

    /// Raises what an event means; returns whether the watches have to be looked at.
    fn digest(&mut self, event: &Event<std::ffi::OsString>, pending: &Pending) -> bool {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            pending.raise(Trigger::EVERYTHING);
            return false;
        }
        if event.mask.intersects(EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED) {
            return true;
        }
        if event.mask.contains(EventMask::ISDIR) {
            // One of the missing directories may be back.
            return true;
        }
        for (kind, _) in self.kinds.iter().filter(|(_, descriptor)| **descriptor == event.wd) {
            if let Some(trigger) = meaning(*kind, event.mask, event.name.as_deref()) {
                pending.raise(trigger);
            }
        }
        false
    }
}

/// What an event in a directory of this kind tells.
fn meaning(kind: Kind, mask: EventMask, name: Option<&OsStr>) -> Option<Trigger> {
    let name = name?.to_str()?;
    // Temporary files: their rename follows.
    if name.starts_with('.') {
        return None;
    }
    match kind {
        Kind::Root if !mask.contains(EventMask::MOVED_TO) => None,
        Kind::Root if name == "cpu_manager_state" => Some(Trigger::CPUS),
        Kind::Root if name == "memory_manager_state" => Some(Trigger::MEMORY),
        Kind::Root if name == "allocated_pods_state" => Some(Trigger::ADMITTED),
        Kind::Root => None,
        Kind::Devices => Some(Trigger::DEVICES),
        // The kubelet removes its socket only when it starts; what counts is the new one.
        Kind::Socket if mask.contains(EventMask::DELETE) => None,
        Kind::Socket => Some(Trigger::EVERYTHING),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn below(root: &Path) -> Directories {
        Directories {
            root: root.to_owned(),
            device_plugins: root.join("device-plugins"),
            socket: root.join("pod-resources"),
        }
    }

    fn rename(dir: &Path, name: &str) {
        std::fs::write(dir.join(".tmp"), "x").unwrap();
        std::fs::rename(dir.join(".tmp"), dir.join(name)).unwrap();
    }

    #[tokio::test]
    async fn renames_in_directories_that_come_and_go_are_seen() {
        let root = tempfile::tempdir().unwrap();
        let mut triggers = Triggers::start(below(root.path()));
        // Root is watched at once, the other two are missing.
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        std::fs::write(root.path().join("noise"), "x").unwrap();
        rename(root.path(), "cpu_manager_state");
        assert_eq!(triggers.next().await, Trigger::CPUS);
        for _ in 0..2 {
            let dir = root.path().join("pod-resources");
            std::fs::create_dir(&dir).unwrap();
            assert_eq!(triggers.next().await, Trigger::EVERYTHING);
            rename(&dir, "kubelet.sock");
            assert_eq!(triggers.next().await, Trigger::EVERYTHING);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[tokio::test]
    async fn a_directory_that_is_replaced_while_somebody_holds_it_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("device-plugins");
        std::fs::create_dir(&dir).unwrap();
        let mut triggers = Triggers::start(below(root.path()));
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        // The kernel tells of a directory's end only when the last holder lets it go.
        let held = std::fs::File::open(&dir).unwrap();
        std::fs::remove_dir(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        rename(&dir, "kubelet_internal_checkpoint");
        assert_eq!(triggers.next().await, Trigger::DEVICES);
        drop(held);
    }

    #[tokio::test]
    async fn the_end_of_an_admission_is_no_reason_by_itself() {
        let root = tempfile::tempdir().unwrap();
        let mut triggers = Triggers::start(below(root.path()));
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        rename(root.path(), "allocated_pods_state");
        rename(root.path(), "cpu_manager_state");
        assert!(triggers.next().await.has(Trigger::CPUS));
        rename(root.path(), "allocated_pods_state");
        assert_eq!(triggers.more().await, Trigger::ADMITTED);
    }

    #[tokio::test]
    async fn one_directory_may_be_two() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().to_owned();
        let both = Directories {
            root: dir.clone(),
            device_plugins: dir.join("device-plugins"),
            socket: dir.clone(),
        };
        let mut triggers = Triggers::start(both);
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        rename(&dir, "memory_manager_state");
        let seen = triggers.next().await;
        assert!(seen.has(Trigger::MEMORY), "{seen:?}");
    }

    #[test]
    fn many_reasons_cost_no_more_than_one() {
        let both = Trigger::CPUS.and(Trigger::DEVICES);
        assert!(both.has(Trigger::CPUS) && both.has(Trigger::DEVICES) && !both.has(Trigger::MEMORY));
    }

    #[test]
    fn events_mean_what_the_kubelet_does() {
        let name = |name: &'static str| Some(OsStr::new(name));
        let moved = EventMask::MOVED_TO;
        assert_eq!(meaning(Kind::Root, moved, name("memory_manager_state")), Some(Trigger::MEMORY));
        assert_eq!(meaning(Kind::Root, EventMask::CREATE, name("cpu_manager_state")), None);
        assert_eq!(meaning(Kind::Root, moved, name(".cpu_manager_state123")), None);
        assert_eq!(meaning(Kind::Root, moved, name("config.yaml")), None);
        assert_eq!(meaning(Kind::Devices, EventMask::CREATE, name("nic.sock")), Some(Trigger::DEVICES));
        assert_eq!(meaning(Kind::Socket, EventMask::DELETE, name("kubelet.sock")), None);
        assert_eq!(meaning(Kind::Socket, moved, name("kubelet.sock")), Some(Trigger::EVERYTHING));
        assert_eq!(meaning(Kind::Socket, moved, None), None);
    }
}
