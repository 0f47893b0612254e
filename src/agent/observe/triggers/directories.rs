//! Watches the kubelet's directories, and that of the notify file, with inotify.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::{Pending, Trigger};

/// How often to check for directories that are missing or were replaced without an event.
const REARM: Duration = Duration::from_secs(5);
/// How long to wait if no inotify instance is available (the default limit is 128 of them).
const NO_INSTANCE: Duration = Duration::from_secs(30);

/// Buffer for the events of one read, at some 50 bytes each.
const BUFFER: usize = 16 << 10;
/// Maximum number of wakeups within [`WINDOW`]. An admission causes some ten in as many milliseconds.
const MAX_WAKEUPS: f64 = 30.0;
/// Approximate time in which wakeups are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// Delay before events are read if there are more wakeups than that, so that they are read in larger batches:
/// the kernel queues 16,384 of them, and reports an overflow.
const BATCH_DELAY: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(in crate::agent) struct Directories {
    /// The kubelet's root, with the checkpoints; often not visible in a pod.
    pub(in crate::agent) root: PathBuf,
    pub(in crate::agent) device_plugins: PathBuf,
    /// The directory of the podresources socket.
    pub(in crate::agent) socket: PathBuf,
    /// The file that is touched to request a scan; it need not exist.
    pub(in crate::agent) notify: Option<PathBuf>,
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
        // Missing directories are created in the root.
        let file = WatchMask::MOVED_TO | WatchMask::CREATE;
        let more = match self {
            Self::Root | Self::Socket => WatchMask::empty(),
            Self::Devices => WatchMask::DELETE,
            // Setting the modification time alone is reported as a modification.
            Self::Notify => WatchMask::CLOSE_WRITE | WatchMask::ATTRIB | WatchMask::MODIFY,
        };
        // Several kinds may share a directory, which has one watch.
        let dir = WatchMask::MASK_ADD | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
        file | more | dir
    }
}

/// Raises triggers for as long as it is polled.
pub(super) async fn keep_watching(directories: Directories, pending: Arc<Pending>) {
    let mut has_warned = false;
    loop {
        let Err(error) = watch(&directories, &pending).await else { continue };
        if !has_warned {
            warn!(
                "cannot watch the kubelet's directories ({error}); changes are found by polling until that works"
            );
            has_warned = true;
        }
        sleep(NO_INSTANCE).await;
    }
}

async fn watch(directories: &Directories, pending: &Pending) -> io::Result<()> {
    let inotify = Inotify::init()?;
    let mut watched = WatchedDirectories::new(directories, inotify.watches());
    #[allow(
        deprecated,
        reason = "its successor is unsafe to call; an Inotify keeps its one descriptor while it lives"
    )]
    let mut inotify = AsyncFd::new(inotify)?;
    let mut buffer = vec![0_u8; BUFFER];
    let mut wakeups = Wakeups { at: Instant::now(), count: 0.0 };
    let mut rearm = tokio::time::interval(REARM);
    rearm.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut ready = tokio::select! {
            _ = rearm.tick() => {
                watched.rearm(pending);
                continue;
            }
            ready = inotify.readable_mut() => ready?,
        };
        match ready.get_inner_mut().read_events(&mut buffer) {
            Ok(events) => {
                for event in events {
                    if watched.handle(&event, pending) {
                        rearm.reset_immediately();
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => return Err(error),
        }
        let delay = wakeups.delay(Instant::now());
        // Even a sleep of zero lasts until the timer's next millisecond.
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }
}

struct Wakeups {
    at: Instant,
    count: f64,
}

impl Wakeups {
    /// Returns how long to let events accumulate before the next read.
    fn delay(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64() / WINDOW.as_secs_f64();
        self.count = self.count * (-passed).exp() + 1.0;
        self.at = now;
        if self.count > MAX_WAKEUPS { BATCH_DELAY } else { Duration::ZERO }
    }
}

/// Which directory each watch is on. Several kinds may share one.
struct WatchedDirectories {
    directories: Vec<(Kind, PathBuf)>,
    notify_name: Option<OsString>,
    watches: Watches,
    kinds: BTreeMap<Kind, WatchDescriptor>,
    warned: BTreeSet<Kind>,
}

impl WatchedDirectories {
    fn new(directories: &Directories, watches: Watches) -> Self {
        let Directories { root, device_plugins, socket, notify } = directories.clone();
        let mut directories =
            vec![(Kind::Devices, device_plugins), (Kind::Socket, socket), (Kind::Root, root)];
        let parent = |file: &Path| match file.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        directories.extend(notify.as_deref().map(|file| (Kind::Notify, parent(file))));
        let notify_name = notify.as_deref().and_then(Path::file_name).map(OsStr::to_owned);
        Self { directories, notify_name, watches, kinds: BTreeMap::new(), warned: BTreeSet::new() }
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
                    if error.kind() != io::ErrorKind::NotFound && self.warned.insert(*kind) {
                        warn!(
                            "cannot watch {} ({error}); changes in it are found by polling only",
                            dir.display()
                        );
                    }
                }
            }
        }
    }

    /// Raises the trigger of an event. Returns whether the watches have to be checked.
    fn handle(&mut self, event: &Event<&OsStr>, pending: &Pending) -> bool {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            pending.raise(Trigger::EVERYTHING);
            return false;
        }
        let is_gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
        // Another directory may be one of the missing ones.
        if event.mask.intersects(is_gone | EventMask::ISDIR) {
            return true;
        }
        for (kind, _) in self.kinds.iter().filter(|(_, descriptor)| **descriptor == event.wd) {
            let trigger = match kind {
                Kind::Notify if event.name == self.notify_name.as_deref() => Some(Trigger::NOTIFIED),
                kind => trigger_of(*kind, event.mask, event.name),
            };
            if let Some(trigger) = trigger {
                pending.raise(trigger);
            }
        }
        false
    }
}

fn trigger_of(kind: Kind, mask: EventMask, name: Option<&OsStr>) -> Option<Trigger> {
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

    #[test]
    fn events_are_batched_in_a_storm_and_not_during_admissions() {
        let start = Instant::now();
        let after = |millis: u64| start + Duration::from_millis(millis);
        let mut wakeups = Wakeups { at: start, count: 0.0 };
        assert!((0..10).all(|step| wakeups.delay(after(step)).is_zero()));
        // One admission after another, ten wakeups in five milliseconds each.
        for pod in 1..10 {
            assert!((0..10).all(|step| wakeups.delay(after(pod * 100 + step / 2)).is_zero()), "pod {pod}");
        }
        let delayed = (0..1000).filter(|step| !wakeups.delay(after(2000 + step / 10)).is_zero()).count();
        assert!(delayed > 900, "{delayed}");
        assert!(wakeups.delay(after(3000)).is_zero(), "it is over");
    }

    #[test]
    fn the_kubelets_files_have_their_triggers() {
        let name = |name: &'static str| Some(OsStr::new(name));
        let moved = EventMask::MOVED_TO;
        assert_eq!(trigger_of(Kind::Root, moved, name("memory_manager_state")), Some(Trigger::MEMORY));
        assert_eq!(trigger_of(Kind::Root, EventMask::CREATE, name("cpu_manager_state")), None);
        assert_eq!(trigger_of(Kind::Root, moved, name(".cpu_manager_state123")), None);
        assert_eq!(trigger_of(Kind::Root, moved, name("config.yaml")), None);
        assert_eq!(trigger_of(Kind::Devices, EventMask::CREATE, name("nic.sock")), Some(Trigger::DEVICES));
        assert_eq!(trigger_of(Kind::Socket, EventMask::DELETE, name("kubelet.sock")), None);
        assert_eq!(trigger_of(Kind::Socket, moved, name("kubelet.sock")), Some(Trigger::EVERYTHING));
        assert_eq!(trigger_of(Kind::Socket, moved, None), None);
    }
}
