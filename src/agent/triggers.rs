//! The triggers of scans: files that the kubelet renames or creates.
//!
//! The kubelet writes its checkpoints by rename (`IN_MOVED_TO`), and creates its sockets like that, too. Only
//! directories are watched: a watch on a file dies with its inode. A directory that vanishes or is replaced
//! is watched again. Other triggers are the notify file and hardware hotplug.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::hotplug::Hotplug;

/// How often to check for directories that are missing or were replaced without an event.
const REARM: Duration = Duration::from_secs(5);
/// How long to wait if no inotify instance is available (the default limit is 128 of them).
const NO_INSTANCE: Duration = Duration::from_secs(30);

/// Buffer for the events of one read, at some 50 bytes each.
const BUFFER: usize = 16 << 10;
/// An admission causes some ten wakeups in as many milliseconds. If there are more wakeups than this...
const CALM: f64 = 30.0;
/// ...within about this time...
const MEMORY: Duration = Duration::from_millis(100);
/// ...events are read after this delay, in larger batches: the kernel queues 16,384 of them, and reports an
/// overflow.
const PORTION: Duration = Duration::from_millis(10);

/// Reasons to scan: a set, so that many of them cost no more than one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trigger(u8);

impl Trigger {
    /// `cpu_manager_state` was written.
    pub(super) const CPUS: Self = Self(1);
    /// `memory_manager_state` was written.
    pub(super) const MEMORY: Self = Self(2);
    /// Something changed in the device plugins' directory.
    pub(super) const DEVICES: Self = Self(4);
    /// `allocated_pods_state` was written (kubelet 1.33 and later): the last file of an admission. Alone it
    /// is no reason to scan, since it is written for every pod.
    pub(super) const ADMITTED: Self = Self(16);
    /// The kubelet or the hardware may have changed, or events may have been missed.
    pub(super) const EVERYTHING: Self = Self(8);
    /// The notify file was touched.
    pub(super) const NOTIFIED: Self = Self(32);

    /// Returns the union of both sets.
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the names of these reasons, as used in the metrics.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
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
    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The reasons that no scan has covered yet. None that is raised here is ever lost.
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
    /// Its root, with the checkpoints; often not visible in a pod.
    pub(super) root: PathBuf,
    /// Where device plugins register.
    pub(super) device_plugins: PathBuf,
    /// The directory of the podresources socket.
    pub(super) socket: PathBuf,
    /// The file that is touched to request a scan; it need not exist.
    pub(super) notify: Option<PathBuf>,
}

/// The stream of triggers.
#[derive(Debug)]
pub(super) struct Triggers {
    pending: Arc<Pending>,
    tasks: [JoinHandle<()>; 2],
}

impl Triggers {
    /// Starts watching the kubelet's directories.
    pub(super) fn start(directories: Directories) -> Self {
        let pending = Arc::new(Pending::default());
        let files = tokio::spawn(keep_watching(directories, Arc::clone(&pending)));
        let hardware = tokio::spawn(keep_listening(Arc::clone(&pending)));
        Self { pending, tasks: [files, hardware] }
    }

    /// Waits for the next reasons to scan; forever if nothing happens.
    pub(super) async fn next(&mut self) -> Trigger {
        self.pending.take(Trigger::ADMITTED).await
    }

    /// Waits for any further event of a burst, including the end of an admission.
    pub(super) async fn more(&mut self) -> Trigger {
        self.pending.take(Trigger::default()).await
    }
}

impl Drop for Triggers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Root,
    Devices,
    Socket,
    Notify,
}

impl Kind {
    /// Returns the events to watch. A narrower mask causes fewer wakeups.
    fn mask(self) -> WatchMask {
        let file = match self {
            // Missing directories are created in it.
            Self::Root => WatchMask::MOVED_TO | WatchMask::CREATE,
            Self::Devices => WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE,
            Self::Socket => WatchMask::MOVED_TO | WatchMask::CREATE,
            Self::Notify => {
                // Setting the modification time alone is reported as a modification.
                let touched = WatchMask::CLOSE_WRITE | WatchMask::ATTRIB | WatchMask::MODIFY;
                WatchMask::MOVED_TO | WatchMask::CREATE | touched
            }
        };
        // Several kinds may share a directory, which has one watch.
        file | WatchMask::MASK_ADD | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR
    }
}

async fn keep_listening(pending: Arc<Pending>) {
    let heard = async {
        let mut hotplug = Hotplug::listen()?;
        loop {
            hotplug.next().await?;
            pending.raise(Trigger::EVERYTHING);
        }
    };
    let Err::<(), io::Error>(error) = heard.await else { return };
    debug!("hotplug is not announced here ({error}): the poll finds it");
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
        sleep(NO_INSTANCE).await;
    }
}

async fn watch(directories: &Directories, pending: &Pending) -> io::Result<()> {
    let inotify = Inotify::init()?;
    let mut armed = Armed::new(directories, inotify.watches());
    #[allow(
        deprecated,
        reason = "its successor is unsafe to call; an Inotify keeps its one descriptor while it lives"
    )]
    let mut inotify = AsyncFd::new(inotify)?;
    let mut buffer = vec![0_u8; BUFFER];
    let mut storm = Storm::new(Instant::now());
    let mut rearm = tokio::time::interval(REARM);
    rearm.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut ready = tokio::select! {
            _ = rearm.tick() => {
                armed.rearm(pending);
                continue;
            }
            ready = inotify.readable_mut() => ready?,
        };
        match ready.get_inner_mut().read_events(&mut buffer) {
            Ok(events) => {
                for event in events {
                    if armed.digest(&event, pending) {
                        rearm.reset_immediately();
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => return Err(error),
        }
        let pause = storm.pause(Instant::now());
        // Even a sleep of zero lasts until the timer's next millisecond.
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
}

/// Detects a storm of events.
struct Storm {
    at: Instant,
    wakes: f64,
}

impl Storm {
    fn new(at: Instant) -> Self {
        Self { at, wakes: 0.0 }
    }

    /// Returns how long to let events accumulate before the next read.
    fn pause(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64() / MEMORY.as_secs_f64();
        self.wakes = self.wakes * (-passed).exp() + 1.0;
        self.at = now;
        if self.wakes > CALM { PORTION } else { Duration::ZERO }
    }
}

/// Which directory each watch is on. Several kinds may share one.
struct Armed {
    directories: Vec<(Kind, PathBuf)>,
    /// The notify file's name in its directory.
    notify: Option<OsString>,
    watches: Watches,
    kinds: BTreeMap<Kind, WatchDescriptor>,
    told: BTreeSet<Kind>,
}

impl Armed {
    fn new(directories: &Directories, watches: Watches) -> Self {
        let Directories { root, device_plugins, socket, notify } = directories.clone();
        let mut directories =
            vec![(Kind::Devices, device_plugins), (Kind::Socket, socket), (Kind::Root, root)];
        let parent = |file: &Path| match file.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        directories.extend(notify.as_deref().map(|file| (Kind::Notify, parent(file))));
        let notify = notify.as_deref().and_then(Path::file_name).map(OsStr::to_owned);
        Self { directories, notify, watches, kinds: BTreeMap::new(), told: BTreeSet::new() }
    }

    /// Watches every directory that exists. If a path gets another watch than before, its directory was
    /// replaced: the kernel may not have reported that, since the old directory may still be open.
    fn rearm(&mut self, pending: &Pending) {
        for (kind, dir) in &self.directories {
            match self.watches.add(dir, kind.mask()) {
                Ok(descriptor) if self.kinds.get(kind) == Some(&descriptor) => {}
                Ok(descriptor) => {
                    debug!("watching {}", dir.display());
                    let old = self.kinds.insert(*kind, descriptor);
                    let unused = old.filter(|old| self.kinds.values().all(|used| used != old));
                    // It is already gone if its directory is.
                    drop(unused.map(|old| self.watches.remove(old)));
                    // Covers what happened in the directory before the watch was set.
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

    /// Raises the reason that an event stands for. Returns whether the watches have to be checked.
    fn digest(&mut self, event: &Event<&OsStr>, pending: &Pending) -> bool {
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
            let meaning = match kind {
                Kind::Notify if event.name == self.notify.as_deref() => Some(Trigger::NOTIFIED),
                kind => meaning(*kind, event.mask, event.name),
            };
            if let Some(trigger) = meaning {
                pending.raise(trigger);
            }
        }
        false
    }
}

/// Returns the reason that an event in a directory of this kind stands for.
fn meaning(kind: Kind, mask: EventMask, name: Option<&OsStr>) -> Option<Trigger> {
    let name = name?.to_str()?;
    // Temporary files: their rename follows.
    if name.starts_with('.') {
        return None;
    }
    let moved = mask.contains(EventMask::MOVED_TO);
    match (kind, name) {
        (Kind::Root, "cpu_manager_state") if moved => Some(Trigger::CPUS),
        (Kind::Root, "memory_manager_state") if moved => Some(Trigger::MEMORY),
        (Kind::Root, "allocated_pods_state") if moved => Some(Trigger::ADMITTED),
        (Kind::Devices, _) if moved || mask.intersects(EventMask::CREATE | EventMask::DELETE) => {
            Some(Trigger::DEVICES)
        }
        // The kubelet removes its socket only when it starts; the new socket is the signal.
        (Kind::Socket, _) if moved || mask.contains(EventMask::CREATE) => Some(Trigger::EVERYTHING),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
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
        // The kernel reports the removal of a directory only when it is no longer open.
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
    fn a_storm_is_read_in_portions_and_an_admission_is_not() {
        let start = Instant::now();
        let after = |millis: u64| start + Duration::from_millis(millis);
        let mut storm = Storm::new(start);
        assert!((0..10).all(|step| storm.pause(after(step)).is_zero()));
        // One admission after another, ten wakes in five milliseconds each.
        for pod in 1..10 {
            assert!((0..10).all(|step| storm.pause(after(pod * 100 + step / 2)).is_zero()), "pod {pod}");
        }
        let paused = (0..1000).filter(|step| !storm.pause(after(2000 + step / 10)).is_zero()).count();
        assert!(paused > 900, "{paused}");
        assert!(storm.pause(after(3000)).is_zero(), "it is over");
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
