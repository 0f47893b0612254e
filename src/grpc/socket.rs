//! The socket file: put in place atomically, never removed, and restored if someone else removes it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::UnixListener;
use tracing::{info, warn};

use crate::util::log_throttle::LastLogged;

/// Maximum path length in `sockaddr_un`, without the trailing zero byte (unix(7)).
const PATH_LIMIT: usize = 107;
/// Mode of the socket's directory, if it is created here: only root and the socket's group may enter it.
const DIRECTORY_MODE: u32 = 0o750;
const PARENT_MODE: u32 = 0o755;
/// Prefix of a temporary socket name, followed by six hexadecimal digits. As long as `kubelet.sock`, so that
/// a path that is short enough stays so.
const TEMPORARY: &str = ".numa-";
const DIGITS: usize = 6;
/// Interval between probes of a socket that is not ours, in checks.
const PROBE_INTERVAL: u32 = 10;

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Socket {
    /// The socket file. Its directory is created if missing (mode 0750; missing parents 0755).
    pub path: PathBuf,
    /// The file's mode.
    pub mode: u32,
    /// The file's group, if other than the process's own.
    pub group: Option<u32>,
}

/// An error that prevents the socket from being served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {}: {reason}", path.display())]
pub struct ServeError {
    path: PathBuf,
    reason: String,
}

/// A file's identity: device and inode.
type Inode = (u64, u64);

#[derive(Debug)]
pub(super) struct SocketFile {
    socket: Socket,
    pub(super) listener: UnixListener,
    inode: Inode,
    /// For how many checks another file has been at the path.
    foreign_checks: u32,
    /// The failure to restore it.
    failure: LastLogged,
    /// Whether the path led to this socket at the last check.
    is_ours: bool,
}

impl SocketFile {
    /// Binds the socket and puts its file in place.
    pub(super) fn bind(socket: Socket) -> Result<Self, ServeError> {
        let (listener, inode) = bind(&socket)?;
        Ok(Self { socket, listener, inode, foreign_checks: 0, failure: LastLogged::default(), is_ours: true })
    }

    /// Checks whether the file is still ours; to be called every second. A missing path, or one that leads to
    /// a socket on which no process listens, is taken over; another process that serves there is left alone.
    /// Returns true if the path leads here now.
    pub(super) fn check(&mut self) -> bool {
        let path = &self.socket.path;
        match fs::symlink_metadata(path) {
            Ok(found) if inode(&found) == self.inode => {
                (self.foreign_checks, self.is_ours) = (0, true);
                self.failure.reset();
            }
            Ok(found) => {
                self.is_ours = false;
                let number = self.foreign_checks;
                self.foreign_checks = number.wrapping_add(1);
                if number.is_multiple_of(PROBE_INTERVAL) && is_socket(&found) && !is_alive(path) {
                    self.restore("replaced an unused socket that another process had put there");
                } else if number == 0 {
                    let kind = if is_socket(&found) { "socket" } else { "file" };
                    let path = path.display();
                    warn!(
                        "{path}: another process's {kind} is in its place now; new clients connect to that"
                    );
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                self.is_ours = false;
                self.restore("restored the socket, which another process had removed");
            }
            // The file may still exist, so do nothing.
            Err(_) => {}
        }
        self.is_ours
    }

    fn restore(&mut self, done: &str) {
        match Self::bind(self.socket.clone()) {
            Ok(restored) => {
                info!("{}: {done}", self.socket.path.display());
                *self = restored;
            }
            Err(error) if self.failure.is_new(()) => warn!("cannot restore the socket: {error}"),
            Err(_) => {}
        }
    }
}

fn is_socket(found: &Metadata) -> bool {
    found.file_type().is_socket()
}

fn inode(found: &Metadata) -> Inode {
    (found.dev(), found.ino())
}

/// Returns true if there is a socket file, and no process listens.
pub(super) fn is_left(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| is_socket(&found)) && !is_alive(path)
}

/// Returns true if a process listens on the socket. Never blocks: the listener's backlog may be full.
fn is_alive(path: &Path) -> bool {
    let connected = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)
        .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    !matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Listens under a temporary name, sets mode and group, and then renames it: no half-configured socket is
/// ever visible, and an old socket stays until the new one replaces it.
fn bind(socket: &Socket) -> Result<(UnixListener, Inode), ServeError> {
    let path = &socket.path;
    let error = |reason: String| ServeError { path: path.clone(), reason };
    let Some((directory, name)) = path.parent().zip(path.file_name()) else {
        return Err(error("it has no file name".into()));
    };
    let length = path.as_os_str().len().max(path.as_os_str().len() - name.len() + TEMPORARY.len() + DIGITS);
    if length > PATH_LIMIT {
        let reason = format!("it needs {length} bytes, and a socket's path has at most {PATH_LIMIT}");
        return Err(error(format!("{reason}; choose a shorter directory")));
    }
    if fs::symlink_metadata(path).is_ok_and(|found| !is_socket(&found)) {
        return Err(error("it is not a socket; remove it, or choose another directory".into()));
    }
    create(directory, socket.group).map_err(|e| error(format!("cannot create its directory: {e}")))?;
    remove_leftovers(directory);
    let number = fastrand::u32(..1 << (4 * DIGITS));
    let temporary = directory.join(format!("{TEMPORARY}{number:0width$x}", width = DIGITS));
    listen(socket, &temporary).map_err(|e| {
        let _ = fs::remove_file(&temporary);
        error(format!("cannot listen: {e}"))
    })
}

fn listen(socket: &Socket, temporary: &Path) -> io::Result<(UnixListener, Inode)> {
    let listener = StdListener::bind(temporary)?;
    listener.set_nonblocking(true)?;
    set_group(temporary, socket.group)?;
    fs::set_permissions(temporary, Permissions::from_mode(socket.mode))?;
    let inode = inode(&fs::symlink_metadata(temporary)?);
    let listener = UnixListener::from_std(listener)?;
    fs::rename(temporary, &socket.path)?;
    Ok((listener, inode))
}

/// Changes the group of the socket or its directory, if one is configured.
fn set_group(path: &Path, group: Option<u32>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let help = "run in that group (in a pod: supplementalGroups), or allow CAP_CHOWN";
            let text = format!("the socket cannot be given to group {group}: {error}; {help}");
            io::Error::new(error.kind(), text)
        }
        _ => error,
    };
    std::os::unix::fs::chown(path, None, Some(group)).map_err(explain)
}

/// Creates a directory and its missing parents, regardless of the umask. The group may enter the directory;
/// if its group cannot be set, it is removed again.
fn create(directory: &Path, group: Option<u32>) -> io::Result<()> {
    let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<_> = missing.map(Path::to_owned).collect();
    for path in missing.iter().rev() {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created?,
        }
        let is_own = path == directory;
        if is_own && let Err(error) = set_group(path, group) {
            let _ = fs::remove_dir(path);
            return Err(error);
        }
        fs::set_permissions(path, Permissions::from_mode(if is_own { DIRECTORY_MODE } else { PARENT_MODE }))?;
    }
    Ok(())
}

/// Removes sockets left by one of our processes that died before its socket was in place. A socket that is
/// just being put in place is already listening.
fn remove_leftovers(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY));
        let ours = digits.is_some_and(|digits| {
            digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        });
        if ours && entry.file_type().is_ok_and(|kind| kind.is_socket()) && !is_alive(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tempfile::TempDir;

    use super::*;

    fn socket_in(dir: &TempDir) -> Socket {
        Socket { path: dir.path().join("a/b/kubelet.sock"), mode: 0o755, group: None }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(socket: &Socket) -> Vec<String> {
        let entries = fs::read_dir(socket.path.parent().unwrap()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn the_file_has_its_mode_and_is_not_removed() {
        let dir = TempDir::new().unwrap();
        for wanted in [0o755, 0o660] {
            let socket =
                Socket { mode: wanted, group: Some(rustix::process::getgid().as_raw()), ..socket_in(&dir) };
            let file = SocketFile::bind(socket.clone()).unwrap();
            assert_eq!(mode(&socket.path), wanted);
            assert_eq!((mode(&dir.path().join("a")), mode(&dir.path().join("a/b"))), (0o755, 0o750));
            UnixStream::connect(&socket.path).unwrap();
            assert_eq!(names(&socket), ["kubelet.sock"]);
            drop(file);
            // Nothing listens, but the file is still there.
            let refused = UnixStream::connect(&socket.path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    #[tokio::test]
    async fn the_group_can_reach_the_socket() {
        let dir = TempDir::new().unwrap();
        let own = rustix::process::getgid().as_raw();
        // Only root may set any group.
        let group = if rustix::process::geteuid().is_root() { own + 2000 } else { own };
        let socket = Socket { mode: 0o660, group: Some(group), ..socket_in(&dir) };
        let _file = SocketFile::bind(socket.clone()).unwrap();
        let owners = [&*dir.path().join("a"), socket.path.parent().unwrap(), &socket.path];
        let groups = owners.map(|path| fs::metadata(path).unwrap().gid());
        assert_eq!(groups, [own, group, group]);
        assert_eq!(mode(&dir.path().join("a/b")), 0o750);
        // An existing directory keeps its owners.
        let socket = Socket { path: dir.path().join("a/kubelet.sock"), ..socket };
        let _other = SocketFile::bind(socket).unwrap();
        assert_eq!(fs::metadata(dir.path().join("a")).unwrap().gid(), own);
    }

    #[tokio::test]
    async fn only_leftovers_of_a_crash_are_removed() {
        let dir = TempDir::new().unwrap();
        let socket = socket_in(&dir);
        fs::create_dir_all(socket.path.parent().unwrap()).unwrap();
        let beside = |name: &str| socket.path.with_file_name(name);
        drop(StdListener::bind(beside(".numa-0123af")).unwrap());
        drop(StdListener::bind(beside(".numa-0123ag")).unwrap());
        fs::write(beside(".numa-000000"), "a file").unwrap();
        let alive = StdListener::bind(beside(".numa-aaaaaa")).unwrap();
        let _file = SocketFile::bind(socket.clone()).unwrap();
        assert_eq!(names(&socket), [".numa-000000", ".numa-0123ag", ".numa-aaaaaa", "kubelet.sock"]);
        drop(alive);
    }

    #[tokio::test]
    async fn a_removed_file_is_restored() {
        let dir = TempDir::new().unwrap();
        let socket = socket_in(&dir);
        let mut file = SocketFile::bind(socket.clone()).unwrap();
        assert!(file.check());
        let inode = file.inode;
        fs::remove_file(&socket.path).unwrap();
        assert!(file.check());
        UnixStream::connect(&socket.path).unwrap();
        assert_ne!(file.inode, inode);
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        file.check();
        UnixStream::connect(&socket.path).unwrap();
        let inode = file.inode;
        file.check();
        assert_eq!(file.inode, inode, "nothing changed");
    }

    #[tokio::test]
    async fn a_file_of_another_process_is_replaced_when_it_is_dead() {
        let dir = TempDir::new().unwrap();
        let socket = socket_in(&dir);
        let mut old = SocketFile::bind(socket.clone()).unwrap();
        let new = SocketFile::bind(socket.clone()).unwrap();
        assert!((0..2 * PROBE_INTERVAL).all(|_| !old.check()), "the path does not lead here");
        assert_eq!(inode(&fs::symlink_metadata(&socket.path).unwrap()), new.inode);
        drop(new);
        assert!((0..PROBE_INTERVAL).any(|_| old.check()));
        assert_eq!(inode(&fs::symlink_metadata(&socket.path).unwrap()), old.inode, "the other process ended");
        // A regular file is not ours to remove.
        fs::remove_file(&socket.path).unwrap();
        fs::write(&socket.path, "mine").unwrap();
        assert!((0..2 * PROBE_INTERVAL).all(|_| !old.check()));
        assert_eq!(fs::read(&socket.path).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn every_error_is_one_sentence() {
        let dir = TempDir::new().unwrap();
        let error_of = |path: PathBuf, group| {
            let error = SocketFile::bind(Socket { path, mode: 0o755, group }).unwrap_err().to_string();
            error.replace(dir.path().to_str().unwrap(), "/run")
        };
        let long = dir.path().join("x".repeat(100)).join("kubelet.sock");
        let length = long.as_os_str().len();
        assert!(error_of(long, None).ends_with(&format!(
            "it needs {length} bytes, and a socket's path has at most 107; choose a shorter directory"
        )));
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(
            error_of(dir.path().join("file"), None),
            "cannot serve /run/file: it is not a socket; remove it, or choose another directory"
        );
        assert_eq!(
            error_of(dir.path().join("file/kubelet.sock"), None),
            "cannot serve /run/file/kubelet.sock: cannot listen: Not a directory (os error 20)"
        );
        assert_eq!(
            error_of("/proc/numacast/kubelet.sock".into(), None),
            "cannot serve /proc/numacast/kubelet.sock: cannot create its directory: No such file or directory (os error 2)"
        );
        assert!(error_of("/proc/kubelet.sock".into(), None).contains("cannot listen: "));
        assert_eq!(error_of("/".into(), None), "cannot serve /: it has no file name");
    }
}
