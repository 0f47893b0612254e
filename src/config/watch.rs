//! Notices that a file may say something else.
//!
//! Its directory is watched, not the file: an editor replaces the file, and a ConfigMap or Secret volume the symlink
//! `..data` beside it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask, Watches};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// How often to look without being told: the directory may be another by now, or the file a link to somewhere else.
const LOOK: Duration = Duration::from_secs(10);
/// A file that was written just now may be half written. The end of the writing is an event of its own.
const SETTLED: Duration = Duration::from_secs(1);

/// Waits for changes of one file. Whoever waits has to look whether there is one.
#[derive(Debug)]
pub struct FileWatch {
    file: PathBuf,
    events: Option<(Watches, EventStream<[u8; 1024]>)>,
    look: Interval,
}

impl FileWatch {
    /// Watches from now on; needs the runtime. Without inotify there is a look every ten seconds.
    #[must_use]
    pub fn new(file: &Path) -> Self {
        let events = Inotify::init().and_then(|inotify| {
            let watches = inotify.watches();
            Ok((watches, inotify.into_event_stream([0_u8; 1024])?))
        });
        let mut look = interval_at(Instant::now() + LOOK, LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Self { file: file.to_owned(), events: events.ok(), look };
        watch.arm();
        watch
    }

    /// The end of writing, and renames. Not the creation: a file that was just created is empty still.
    fn arm(&mut self) {
        let Some((watches, _)) = &mut self.events else { return };
        let dir = self.file.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        // Where it is missing, the next look finds it.
        let _ = watches.add(dir, WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO);
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a file's time is of the wall clock; after a jump the file is read a moment sooner or later"
    )]
    fn is_settled(&self) -> bool {
        let Ok(modified) = self.file.metadata().and_then(|metadata| metadata.modified()) else { return true };
        // A time in the future is one of another clock.
        SystemTime::now().duration_since(modified).map_or(true, |age| age >= SETTLED)
    }

    /// Completes when it is time to look. May be dropped and called again.
    pub async fn changed(&mut self) {
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
                _ = self.look.tick() => {
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

    /// Far less than a look: what is seen by then was told by the kernel.
    const TOLD: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_write_a_rename_and_a_swap_of_the_data_are_seen() {
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
        timeout(TOLD, watch.changed()).await.unwrap();
        assert_eq!(fs::read_to_string(at("numacast.yaml")).unwrap(), "b");
        fs::write(at("plain"), "c").unwrap();
        timeout(TOLD, watch.changed()).await.unwrap();
        fs::rename(at("plain"), at("numacast.yaml")).unwrap();
        timeout(TOLD, watch.changed()).await.unwrap();
    }

    #[allow(clippy::disallowed_methods, reason = "of a file's time")]
    #[tokio::test(start_paused = true)]
    async fn a_directory_that_comes_later_is_looked_at_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("later/numacast.yaml");
        let mut watch = FileWatch::new(&file);
        let start = Instant::now();
        watch.changed().await;
        assert_eq!(start.elapsed(), LOOK);
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, "a").unwrap();
        let long_ago = SystemTime::now() - SETTLED;
        fs::File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
        watch.changed().await;
        assert_eq!(start.elapsed(), 2 * LOOK);
    }
}
