//! The triggers of scans: files that the kubelet renames or creates.
//!
//! The kubelet writes its checkpoints by rename (`IN_MOVED_TO`), and creates its sockets like that, too. Only
//! directories are watched: a watch on a file dies with its inode. A directory that vanishes or is replaced
//! is watched again. Other triggers are the notify file and hardware hotplug.

mod directories;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::hotplug::Hotplug;
use crate::util::task::Task;

pub(in crate::agent) use directories::Directories;

/// A burst of triggers has ended when none came for this long, or when the kubelet has recorded the pod as
/// admitted. For one pod the kubelet writes its checkpoints up to eight times, some 0.5 ms apart: first it
/// releases what an earlier pod left, then it allocates devices, CPUs and memory.
const BURST_GAP: Duration = Duration::from_millis(2);
/// Maximum length of a burst.
const BURST_LIMIT: Duration = Duration::from_millis(10);

/// Reasons to scan: a set, so that many of them cost no more than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Trigger(u8);

impl Trigger {
    pub(in crate::agent) const CPUS: Self = Self(1);
    pub(in crate::agent) const MEMORY: Self = Self(2);
    pub(in crate::agent) const DEVICES: Self = Self(4);
    /// `allocated_pods_state` was written (kubelet 1.33 and later): the last file of an admission. Alone it
    /// is no reason to scan, since it is written for every pod.
    pub(in crate::agent) const ADMITTED: Self = Self(16);
    /// The kubelet or the hardware may have changed, or events may have been missed.
    pub(in crate::agent) const EVERYTHING: Self = Self(8);
    pub(in crate::agent) const NOTIFIED: Self = Self(32);

    pub(in crate::agent) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the names of these reasons, as used in the metrics.
    pub(in crate::agent) fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [
            (Self::CPUS, "cpus"),
            (Self::MEMORY, "memory"),
            (Self::DEVICES, "devices"),
            (Self::EVERYTHING, "everything"),
            (Self::NOTIFIED, "notified"),
        ];
        names.into_iter().filter(move |(reason, _)| self.has(*reason)).map(|(_, name)| name)
    }

    /// Returns true if every reason of `other` is among these.
    pub(in crate::agent) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The reasons that no scan has covered yet. None is lost until it is taken.
#[derive(Debug, Default)]
pub(super) struct Pending {
    reasons: AtomicU8,
    raised: Notify,
}

impl Pending {
    pub(super) fn raise(&self, trigger: Trigger) {
        self.reasons.fetch_or(trigger.0, Ordering::Relaxed);
        self.raised.notify_one();
    }

    /// Waits for a reason other than `ignored`, which is discarded if it comes alone.
    pub(super) async fn take(&self, ignored: Trigger) -> Trigger {
        loop {
            let reasons = Trigger(self.reasons.swap(0, Ordering::Relaxed));
            if reasons != Trigger::default() && reasons != ignored {
                return reasons;
            }
            self.raised.notified().await;
        }
    }
}

#[derive(Debug)]
pub(in crate::agent) struct Triggers {
    pending: Arc<Pending>,
    _tasks: [Task; 2],
}

impl Triggers {
    pub(in crate::agent) fn start(directories: Directories) -> Self {
        let pending = Arc::new(Pending::default());
        let files = Task::spawn(directories::keep_watching(directories, Arc::clone(&pending)));
        let hardware = Task::spawn(keep_listening(Arc::clone(&pending)));
        Self { pending, _tasks: [files, hardware] }
    }

    pub(in crate::agent) async fn next(&mut self) -> Trigger {
        self.pending.take(Trigger::ADMITTED).await
    }

    /// Waits for the end of a burst that began with `reasons`, and returns all of its reasons.
    pub(in crate::agent) async fn burst(&mut self, mut reasons: Trigger) -> Trigger {
        let end = Instant::now() + BURST_LIMIT;
        // A new kubelet and a completed admission are scanned at once.
        while !reasons.has(Trigger::EVERYTHING) && !reasons.has(Trigger::ADMITTED) {
            let gap = (Instant::now() + BURST_GAP).min(end);
            tokio::select! {
                more = self.pending.take(Trigger::default()) => reasons = reasons.and(more),
                () = sleep_until(gap) => break,
            }
        }
        reasons
    }
}

async fn keep_listening(pending: Arc<Pending>) {
    let listened = async {
        let mut hotplug = Hotplug::listen()?;
        loop {
            hotplug.next().await?;
            pending.raise(Trigger::EVERYTHING);
        }
    };
    let Err::<(), io::Error>(error) = listened.await else { return };
    debug!("cannot listen for hotplug events ({error}); changes are found by polling");
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
            notify: None,
        }
    }

    fn rename(dir: &Path, name: &str) {
        std::fs::write(dir.join(".tmp"), "x").unwrap();
        std::fs::rename(dir.join(".tmp"), dir.join(name)).unwrap();
    }

    #[tokio::test]
    async fn renames_in_directories_that_come_and_go_are_triggers() {
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
    async fn a_directory_that_is_replaced_while_it_is_open_is_watched_again() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("device-plugins");
        std::fs::create_dir(&dir).unwrap();
        let mut triggers = Triggers::start(below(root.path()));
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        // The kernel reports the removal of a directory only when it is no longer open.
        let open = std::fs::File::open(&dir).unwrap();
        std::fs::remove_dir(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        rename(&dir, "kubelet_internal_checkpoint");
        assert_eq!(triggers.next().await, Trigger::DEVICES);
        drop(open);
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
        assert_eq!(triggers.pending.take(Trigger::default()).await, Trigger::ADMITTED);
    }

    #[tokio::test]
    async fn two_kinds_may_share_a_directory() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().to_owned();
        let both = Directories {
            root: dir.clone(),
            device_plugins: dir.join("device-plugins"),
            socket: dir.clone(),
            notify: None,
        };
        let mut triggers = Triggers::start(both);
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        rename(&dir, "memory_manager_state");
        let seen = triggers.next().await;
        assert!(seen.has(Trigger::MEMORY), "{seen:?}");
    }

    #[tokio::test]
    async fn the_notify_file_is_a_reason_however_it_is_touched() {
        let root = tempfile::tempdir().unwrap();
        // It shares its directory with the checkpoints, and neither hides the other.
        let file = root.path().join("notify");
        let directories = Directories { notify: Some(file.clone()), ..below(root.path()) };
        let mut triggers = Triggers::start(directories);
        assert_eq!(triggers.next().await, Trigger::EVERYTHING);
        std::fs::write(root.path().join("another"), "").unwrap();
        rename(root.path(), "cpu_manager_state");
        assert_eq!(triggers.next().await, Trigger::CPUS);
        let created = std::fs::File::create(&file).unwrap();
        assert_eq!(triggers.next().await, Trigger::NOTIFIED, "created");
        let epoch = std::time::SystemTime::UNIX_EPOCH;
        created.set_times(std::fs::FileTimes::new().set_accessed(epoch).set_modified(epoch)).unwrap();
        assert_eq!(triggers.next().await, Trigger::NOTIFIED, "touched");
        created.set_modified(epoch).unwrap();
        assert_eq!(triggers.next().await, Trigger::NOTIFIED, "touched otherwise");
        drop(created);
        assert_eq!(triggers.next().await, Trigger::NOTIFIED, "closed");
        rename(root.path(), "notify");
        assert_eq!(triggers.next().await, Trigger::NOTIFIED, "replaced");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "x").unwrap();
        assert_eq!(triggers.next().await, Trigger::NOTIFIED, "created again");
    }

    #[test]
    fn a_set_has_all_of_its_reasons() {
        let both = Trigger::CPUS.and(Trigger::DEVICES);
        assert!(both.has(Trigger::CPUS) && both.has(Trigger::DEVICES) && !both.has(Trigger::MEMORY));
    }
}
