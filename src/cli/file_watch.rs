//! Detects possible changes of a file.
//!
//! Watches the directory instead of the file: an editor replaces the file, and a ConfigMap or Secret volume
//! the symlink `..data` next to it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask, Watches};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Interval of checks without an event: the directory may have been replaced, or the file may be a link to
/// another directory.
const CHECK: Duration = Duration::from_secs(10);
/// Minimum age of the file when a check reports it: a newer one may be incomplete. The end of the write is an
/// event of its own.
const SETTLED: Duration = Duration::from_secs(1);

/// Waits for changes of one file. Callers must check whether it really changed.
#[derive(Debug)]
pub(super) struct FileWatch {
    file: PathBuf,
    events: Option<(Watches, EventStream<[u8; 1024]>)>,
    checks: Interval,
}

impl FileWatch {
    /// Starts watching; requires the Tokio runtime. Without inotify, the file is only checked every ten
    /// seconds.
    pub(super) fn new(file: &Path) -> Self {
        let events = Inotify::init().and_then(|inotify| {
            let watches = inotify.watches();
            Ok((watches, inotify.into_event_stream([0_u8; 1024])?))
        });
        let mut checks = interval_at(Instant::now() + CHECK, CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Self { file: file.to_owned(), events: events.ok(), checks };
        watch.arm();
        watch
    }

    /// Watches for the end of writes and for renames, but not for creation: a new file is still empty.
    fn arm(&mut self) {
        let Some((watches, _)) = &mut self.events else { return };
        let dir = self.file.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        // If the directory is missing, the next check tries again.
        let _ = watches.add(dir, WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO);
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a file's time is of the wall clock; after a jump the file is read a moment sooner or later"
    )]
    fn is_settled(&self) -> bool {
        let Ok(modified) = self.file.metadata().and_then(|metadata| metadata.modified()) else { return true };
        // A time in the future was set by another clock.
        SystemTime::now().duration_since(modified).map_or(true, |age| age >= SETTLED)
    }

    /// Completes when the file should be read. Cancel safe.
    pub(super) async fn changed(&mut self) {
        loop {
            let event = async {
                match &mut self.events {
                    Some((_, stream)) => stream.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = event => match event {
                    Some(Ok(_)) => return,
                    _ => self.events = None,
                },
                _ = self.checks.tick() => {
                    self.arm();
                    if self.is_settled() {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tokio::time::timeout;

    use super::*;

    /// Much shorter than the interval, so that what is seen by then is from inotify.
    const SEEN: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_write_a_rename_and_a_swap_of_a_volume_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (volume, text) in [("..1", "a"), ("..2", "b")] {
            fs::create_dir(at(volume)).unwrap();
            fs::write(at(volume).join("numacast.yaml"), text).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/numacast.yaml", at("numacast.yaml")).unwrap();
        let mut watch = FileWatch::new(&at("numacast.yaml"));
        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        timeout(SEEN, watch.changed()).await.unwrap();
        assert_eq!(fs::read_to_string(at("numacast.yaml")).unwrap(), "b");
        fs::write(at("plain"), "c").unwrap();
        timeout(SEEN, watch.changed()).await.unwrap();
        fs::rename(at("plain"), at("numacast.yaml")).unwrap();
        timeout(SEEN, watch.changed()).await.unwrap();
    }

    #[allow(clippy::disallowed_methods, reason = "of a file's time")]
    #[tokio::test(start_paused = true)]
    async fn a_directory_that_is_created_later_is_checked_periodically() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("later/numacast.yaml");
        let mut watch = FileWatch::new(&file);
        let start = Instant::now();
        watch.changed().await;
        assert_eq!(start.elapsed(), CHECK);
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, "a").unwrap();
        let long_ago = SystemTime::now() - SETTLED;
        fs::File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
        watch.changed().await;
        assert_eq!(start.elapsed(), 2 * CHECK);
    }
}
