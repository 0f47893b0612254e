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

use super::{ServeError, Socket};

/// Maximum path length in `sockaddr_un`, without the trailing zero byte (unix(7)).
const LONGEST: usize = 107;
/// Mode of the socket's directory, if we create it: the kubelet socket's stand-in is for root and the
/// socket's group only.
const OWN: u32 = 0o750;
/// Mode of created parent directories.
const ABOVE: u32 = 0o755;
/// Prefix of a temporary socket name, followed by six hexadecimal digits. As long as `kubelet.sock`, so that
/// a path that is short enough stays so.
const TEMPORARY: &str = ".numa-";
const DIGITS: usize = 6;
/// Interval between probes of a socket that is not ours, in checks.
const SELDOM: u32 = 10;

/// A file's identity: device and inode.
type Inode = (u64, u64);

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct Place {
    socket: Socket,
    pub(super) listener: UnixListener,
    inode: Inode,
    /// For how many checks another file has been at the path.
    taken: u32,
    /// Whether the failure to restore it has been logged.
    told: bool,
    /// Whether the path led to this socket at the last check.
    held: bool,
}

impl Place {
    /// Binds the socket and puts its file in place.
    pub(super) fn take(socket: Socket) -> Result<Self, ServeError> {
        let (listener, inode) = bind(&socket)?;
        Ok(Self { socket, listener, inode, taken: 0, told: false, held: true })
    }

    /// Checks whether the file is still ours; to be called every second. A missing path, or one that leads to
    /// a socket nobody listens on, is taken over; another process that serves there is left alone. Returns
    /// true if the path leads here now.
    pub(super) fn look(&mut self) -> bool {
        let path = &self.socket.path;
        match fs::symlink_metadata(path) {
            Ok(found) if inode(&found) == self.inode => {
                (self.taken, self.told, self.held) = (0, false, true);
            }
            Ok(found) => {
                self.held = false;
                let (first, look) = (self.taken == 0, self.taken.is_multiple_of(SELDOM));
                self.taken = self.taken.wrapping_add(1);
                if look && is_socket(&found) && !is_alive(path) {
                    self.retake("a socket that nobody listens on took the place of");
                } else if first {
                    warn!(
                        "{}: somebody else's {} is in this place now; who connects from now on is not ours",
                        path.display(),
                        if is_socket(&found) { "socket" } else { "file" }
                    );
                }
            }
            Err(error) if is_gone(&error) => {
                self.held = false;
                self.retake("somebody removed");
            }
            // The file may still exist, so do nothing.
            Err(_) => {}
        }
        self.held
    }

    fn retake(&mut self, why: &str) {
        match bind(&self.socket) {
            Ok((listener, inode)) => {
                info!("{why} {}; it is back", self.socket.path.display());
                let socket = self.socket.clone();
                *self = Self { socket, listener, inode, taken: 0, told: false, held: true };
            }
            Err(error) if !self.told => {
                warn!("{why} the socket: {error}");
                self.told = true;
            }
            Err(_) => {}
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn is_socket(found: &Metadata) -> bool {
    found.file_type().is_socket()
}

fn inode(found: &Metadata) -> Inode {
    (found.dev(), found.ino())
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
    let explain = |what: &str, source: io::Error| ServeError::new(path, format!("{what}: {source}"));
    let Some((directory, name)) = path.parent().zip(path.file_name()) else {
        return Err(ServeError::new(path, "this is no name of a file".into()));
    };
    let length = path.as_os_str().len().max(path.as_os_str().len() - name.len() + TEMPORARY.len() + DIGITS);
    if length > LONGEST {
        let what = format!("a socket's path has at most {LONGEST} bytes, this needs {length}");
        return Err(ServeError::new(path, format!("{what}; give it a shorter directory")));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !is_socket(&found) => {
            let what = "something that is no socket lies there; remove it, or give another directory";
            return Err(ServeError::new(path, what.into()));
        }
        _ => {}
    }
    make(directory, socket.group).map_err(|error| explain("cannot make its directory", error))?;
    sweep(directory);
    let temporary = directory.join(temporary());
    let bound = listen(socket, &temporary).map_err(|error| explain("cannot listen there", error));
    if bound.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    bound
}

fn listen(socket: &Socket, temporary: &Path) -> io::Result<(UnixListener, Inode)> {
    let listener = StdListener::bind(temporary)?;
    listener.set_nonblocking(true)?;
    give(temporary, socket.group)?;
    fs::set_permissions(temporary, Permissions::from_mode(socket.mode))?;
    let inode = inode(&fs::symlink_metadata(temporary)?);
    let listener = UnixListener::from_std(listener)?;
    fs::rename(temporary, &socket.path)?;
    Ok((listener, inode))
}

/// Changes the group of the socket or its directory, if one is configured.
fn give(path: &Path, group: Option<u32>) -> io::Result<()> {
    let Some(group) = group else { return Ok(()) };
    std::os::unix::fs::chown(path, None, Some(group)).map_err(|error| explain_group(group, error))
}

fn explain_group(group: u32, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let what = "cannot be given to group";
    let help = "make us a member of it (in a pod: supplementalGroups), or allow CAP_CHOWN";
    io::Error::new(error.kind(), format!("the socket {what} {group}: {error}; {help}"))
}

/// Creates a directory and its missing parents, regardless of the umask. The group may enter the directory;
/// if its group cannot be set, it is removed again.
fn make(directory: &Path, group: Option<u32>) -> io::Result<()> {
    let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<_> = missing.map(Path::to_owned).collect();
    for path in missing.iter().rev() {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        let is_own = path == directory;
        if is_own && let Err(error) = give(path, group) {
            let _ = fs::remove_dir(path);
            return Err(error);
        }
        fs::set_permissions(path, Permissions::from_mode(if is_own { OWN } else { ABOVE }))?;
    }
    Ok(())
}

fn temporary() -> PathBuf {
    format!("{TEMPORARY}{:0width$x}", fastrand::u32(..1 << (4 * DIGITS)), width = DIGITS).into()
}

/// Removes sockets left by one of our processes that died before its socket was in place. A socket that is
/// just being put in place is already listening.
fn sweep(directory: &Path) {
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

    fn place(dir: &TempDir) -> Socket {
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
    async fn it_is_put_in_place_with_its_mode_and_stays() {
        let dir = TempDir::new().unwrap();
        for wanted in [0o755, 0o660] {
            let socket =
                Socket { mode: wanted, group: Some(rustix::process::getgid().as_raw()), ..place(&dir) };
            let place = Place::take(socket.clone()).unwrap();
            assert_eq!(mode(&socket.path), wanted);
            assert_eq!((mode(&dir.path().join("a")), mode(&dir.path().join("a/b"))), (0o755, 0o750));
            UnixStream::connect(&socket.path).unwrap();
            assert_eq!(names(&socket), ["kubelet.sock"]);
            drop(place);
            // Nothing listens, but the file is still there.
            let refused = UnixStream::connect(&socket.path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    #[tokio::test]
    async fn the_group_gets_to_the_socket() {
        let dir = TempDir::new().unwrap();
        let own = rustix::process::getgid().as_raw();
        // Only root may set any group.
        let group = if rustix::process::geteuid().is_root() { own + 2000 } else { own };
        let socket = Socket { mode: 0o660, group: Some(group), ..place(&dir) };
        let _place = Place::take(socket.clone()).unwrap();
        let owners = [&*dir.path().join("a"), socket.path.parent().unwrap(), &socket.path];
        let groups = owners.map(|path| fs::metadata(path).unwrap().gid());
        assert_eq!(groups, [own, group, group]);
        assert_eq!(mode(&dir.path().join("a/b")), 0o750);
        // An existing directory keeps its owners.
        let socket = Socket { path: dir.path().join("a/kubelet.sock"), ..socket };
        let _other = Place::take(socket).unwrap();
        assert_eq!(fs::metadata(dir.path().join("a")).unwrap().gid(), own);
    }

    #[tokio::test]
    async fn what_a_crash_left_behind_is_removed_and_nothing_else() {
        let dir = TempDir::new().unwrap();
        let socket = place(&dir);
        fs::create_dir_all(socket.path.parent().unwrap()).unwrap();
        let beside = |name: &str| socket.path.with_file_name(name);
        drop(StdListener::bind(beside(".numa-0123af")).unwrap());
        drop(StdListener::bind(beside(".numa-0123ag")).unwrap());
        fs::write(beside(".numa-000000"), "a file").unwrap();
        let alive = StdListener::bind(beside(".numa-aaaaaa")).unwrap();
        let _place = Place::take(socket.clone()).unwrap();
        assert_eq!(names(&socket), [".numa-000000", ".numa-0123ag", ".numa-aaaaaa", "kubelet.sock"]);
        drop(alive);
    }

    #[tokio::test]
    async fn a_path_that_is_gone_is_taken_again() {
        let dir = TempDir::new().unwrap();
        let socket = place(&dir);
        let mut place = Place::take(socket.clone()).unwrap();
        assert!(place.look());
        let inode = place.inode;
        fs::remove_file(&socket.path).unwrap();
        assert!(place.look());
        UnixStream::connect(&socket.path).unwrap();
        assert_ne!(place.inode, inode);
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        place.look();
        UnixStream::connect(&socket.path).unwrap();
        let inode = place.inode;
        place.look();
        assert_eq!(place.inode, inode, "all is well");
    }

    #[tokio::test]
    async fn another_process_is_left_alone_while_it_lives() {
        let dir = TempDir::new().unwrap();
        let socket = place(&dir);
        let mut old = Place::take(socket.clone()).unwrap();
        let new = Place::take(socket.clone()).unwrap();
        assert!((0..2 * SELDOM).all(|_| !old.look()), "it does not lead here");
        assert_eq!(inode(&fs::symlink_metadata(&socket.path).unwrap()), new.inode);
        drop(new);
        assert!((0..SELDOM).any(|_| old.look()));
        assert_eq!(inode(&fs::symlink_metadata(&socket.path).unwrap()), old.inode, "it died");
        // A regular file is not ours to remove.
        fs::remove_file(&socket.path).unwrap();
        fs::write(&socket.path, "mine").unwrap();
        assert!((0..2 * SELDOM).all(|_| !old.look()));
        assert_eq!(fs::read(&socket.path).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn what_cannot_be_is_one_sentence() {
        let dir = TempDir::new().unwrap();
        let refused = |path: PathBuf, group| {
            let error = Place::take(Socket { path, mode: 0o755, group }).unwrap_err().to_string();
            error.replace(dir.path().to_str().unwrap(), "/run")
        };
        let long = dir.path().join("x".repeat(100)).join("kubelet.sock");
        let length = long.as_os_str().len();
        assert!(refused(long, None).ends_with(&format!(
            "a socket's path has at most 107 bytes, this needs {length}; give it a shorter directory"
        )));
        fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(
            refused(dir.path().join("file"), None),
            "cannot serve /run/file: something that is no socket lies there; remove it, or give another directory"
        );
        assert_eq!(
            refused(dir.path().join("file/kubelet.sock"), None),
            "cannot serve /run/file/kubelet.sock: cannot listen there: Not a directory (os error 20)"
        );
        assert_eq!(
            refused("/proc/numacast/kubelet.sock".into(), None),
            "cannot serve /proc/numacast/kubelet.sock: cannot make its directory: No such file or directory (os error 2)"
        );
        assert!(refused("/proc/kubelet.sock".into(), None).contains("cannot listen there"));
        assert_eq!(refused("/".into(), None), "cannot serve /: this is no name of a file");
    }
}
