//! What makes the agent look: files that the kubelet renames or creates.
//!
//! The kubelet writes its state by rename (`IN_MOVED_TO`), and so it makes its sockets. Only directories are
//! watched: a watch on a file dies with its inode. A directory that vanishes is watched again when it is back.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

/// How often to look for a directory that is missing.
const REARM: Duration = Duration::from_secs(1);

/// The kubelet's state files in its root directory; everything else there is noise.
const STATE_FILES: [&str; 2] = ["cpu_manager_state", "memory_manager_state"];

/// Why to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    inventory: bool,
}

impl Trigger {
    /// The first look.
    pub(super) const START: Self = Self { inventory: true };
    /// The slow poll.
    pub(super) const POLL: Self = Self { inventory: true };
    const USAGE: Self = Self { inventory: false };
    const INVENTORY: Self = Self { inventory: true };

    /// Both reasons.
    pub(super) fn and(self, other: Self) -> Self {
        Self { inventory: self.inventory || other.inventory }
    }

    /// May hardware, allocatable or configuration have changed?
    pub(super) fn inventory(self) -> bool {
        self.inventory
    }
}

/// The stream of triggers.
#[derive(Debug)]
pub(super) struct Triggers {
    events: mpsc::Receiver<Trigger>,
    task: JoinHandle<()>,
}

impl Triggers {
    /// Watches the kubelet's directories from now on.
    pub(super) fn start(kubelet_dir: PathBuf, socket: &Path) -> Self {
        // A full queue loses nothing: a trigger that waits there makes the agent look anyway.
        let (sender, events) = mpsc::channel(64);
        let watched = vec![
            Watched { kind: Kind::Devices, dir: kubelet_dir.join("device-plugins") },
            Watched { kind: Kind::Socket, dir: socket.parent().unwrap_or(Path::new("/")).to_owned() },
            Watched { kind: Kind::Root, dir: kubelet_dir },
        ];
        let task = tokio::spawn(async move {
            if let Err(error) = watch(watched, &sender).await {
                warn!("cannot watch the kubelet's directories ({error}); changes are seen by polling only");
                // Keep the channel open: its end would read as an endless stream of triggers.
                sender.closed().await;
            }
        });
        Self { events, task }
    }

    /// The next reason to look; waits for ever if nothing happens.
    pub(super) async fn next(&mut self) -> Trigger {
        match self.events.recv().await {
            Some(trigger) => trigger,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Triggers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Root,
    Devices,
    Socket,
}

#[derive(Debug)]
struct Watched {
    kind: Kind,
    dir: PathBuf,
}

async fn watch(dirs: Vec<Watched>, sender: &mpsc::Sender<Trigger>) -> std::io::Result<()> {
    let inotify = Inotify::init()?;
    let mut watches = inotify.watches();
    let mut stream = inotify.into_event_stream([0_u8; 4096])?;
    let mut armed: HashMap<WatchDescriptor, usize> = HashMap::new();
    let mut rearm = tokio::time::interval(REARM);
    rearm.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let missing = armed.len() < dirs.len();
        tokio::select! {
            _ = rearm.tick(), if missing => {
                for (index, watched) in dirs.iter().enumerate() {
                    if armed.values().any(|armed| *armed == index) {
                        continue;
                    }
                    let mask = WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE
                        | WatchMask::DELETE_SELF | WatchMask::MOVE_SELF | WatchMask::ONLYDIR;
                    if let Ok(descriptor) = watches.add(&watched.dir, mask) {
                        debug!("watching {}", watched.dir.display());
                        armed.insert(descriptor, index);
                        // Whatever happened in there before the watch was set.
                        let _ = sender.try_send(Trigger::INVENTORY);
                    }
                }
            }
            event = stream.next() => {
                let Some(event) = event else { return Ok(()) };
                let event = event?;
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    let _ = sender.try_send(Trigger::INVENTORY);
                    continue;
                }
                let Some(index) = armed.get(&event.wd).copied() else { continue };
                if event.mask.intersects(EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED) {
                    // The watch stays on the old inode after a rename: drop it and arm the path again.
                    let _ = watches.remove(event.wd.clone());
                    armed.remove(&event.wd);
                    rearm.reset_immediately();
                    continue;
                }
                if event.mask.contains(EventMask::ISDIR) {
                    // One of the missing directories may be back.
                    rearm.reset_immediately();
                    continue;
                }
                if let Some(trigger) = meaning(dirs[index].kind, event.mask, event.name.as_deref()) {
                    let _ = sender.try_send(trigger);
                }
            }
        }
    }
}

/// What an event in a directory of this kind tells.
fn meaning(kind: Kind, mask: EventMask, name: Option<&OsStr>) -> Option<Trigger> {
    let name = name?.to_str()?;
    // Temporary files: their rename follows.
    if name.starts_with('.') {
        return None;
    }
    let moved = mask.contains(EventMask::MOVED_TO);
    match kind {
        Kind::Root if moved && STATE_FILES.contains(&name) => Some(Trigger::USAGE),
        Kind::Root if name == "config.yaml" => Some(Trigger::INVENTORY),
        Kind::Root => None,
        Kind::Devices => Some(Trigger::INVENTORY),
        // The kubelet removes its socket only when it starts; what counts is the new one.
        Kind::Socket if mask.contains(EventMask::DELETE) => None,
        Kind::Socket => Some(Trigger::INVENTORY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn renames_in_directories_that_come_and_go_are_seen() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("pod-resources/kubelet.sock");
        let mut triggers = Triggers::start(root.path().to_owned(), &socket);
        // Root is watched at once, the other two are missing.
        assert_eq!(triggers.next().await, Trigger::INVENTORY);
        let rename = |dir: &Path, name: &str| {
            std::fs::write(dir.join(".tmp"), "x").unwrap();
            std::fs::rename(dir.join(".tmp"), dir.join(name)).unwrap();
        };
        std::fs::write(root.path().join("noise"), "x").unwrap();
        rename(root.path(), "cpu_manager_state");
        assert_eq!(triggers.next().await, Trigger::USAGE);
        for _ in 0..2 {
            let dir = root.path().join("pod-resources");
            std::fs::create_dir(&dir).unwrap();
            assert_eq!(triggers.next().await, Trigger::INVENTORY);
            rename(&dir, "kubelet.sock");
            assert_eq!(triggers.next().await, Trigger::INVENTORY);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn events_mean_what_the_kubelet_does() {
        let name = |name: &'static str| Some(OsStr::new(name));
        let moved = EventMask::MOVED_TO;
        assert_eq!(meaning(Kind::Root, moved, name("memory_manager_state")), Some(Trigger::USAGE));
        assert_eq!(meaning(Kind::Root, EventMask::CREATE, name("cpu_manager_state")), None);
        assert_eq!(meaning(Kind::Root, moved, name(".cpu_manager_state123")), None);
        assert_eq!(meaning(Kind::Root, moved, name("config.yaml")), Some(Trigger::INVENTORY));
        assert_eq!(meaning(Kind::Devices, EventMask::CREATE, name("nic.sock")), Some(Trigger::INVENTORY));
        assert_eq!(meaning(Kind::Socket, EventMask::DELETE, name("kubelet.sock")), None);
        assert_eq!(meaning(Kind::Socket, moved, name("kubelet.sock")), Some(Trigger::INVENTORY));
        assert_eq!(meaning(Kind::Socket, moved, None), None);
    }
}
