//! The socket's file: put in place at once and whole, never taken away, and put back when somebody else took it away.

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

/// What `sockaddr_un` has room for, without the zero behind it (unix(7)).
const LONGEST: usize = 107;
/// Of a directory that we make: what stands in the kubelet's place is for root and a group.
const OWN: u32 = 0o750;
/// Of those above it.
const ABOVE: u32 = 0o755;
/// The name of a socket that is not in place yet: this, and six hexadecimal digits. As long as `kubelet.sock`, so that a
/// path that is short enough stays so.
const TEMPORARY: &str = ".numa-";
const DIGITS: usize = 6;
/// Between two looks at a socket that is not ours, in looks.
const SELDOM: u32 = 10;

/// A file, whatever its name is.
type Inode = (u64, u64);

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct Place {
    socket: Socket,
    pub(super) listener: UnixListener,
    inode: Inode,
    /// Somebody else's file has been at the path for so many looks.
    taken: u32,
    /// It cannot be put back: said once.
    told: bool,
}

impl Place {
    /// Binds and puts in place.
    pub(super) fn take(socket: Socket) -> Result<Self, ServeError> {
        let (listener, inode) = bind(&socket)?;
        Ok(Self { socket, listener, inode, taken: 0, told: false })
    }

    /// Looks whether the file is still ours; to be called each second. A path that is gone, or that leads to a socket
    /// nobody listens on, is taken again; another process that serves there is left alone.
    pub(super) fn look(&mut self) {
        let path = &self.socket.path;
        match fs::symlink_metadata(path) {
            Ok(found) if inode(&found) == self.inode => (self.taken, self.told) = (0, false),
            Ok(found) => {
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
            Err(error) if is_gone(&error) => self.retake("somebody removed"),
            // It may be there: no reason to do anything.
            Err(_) => {}
        }
    }

    fn retake(&mut self, why: &str) {
        match bind(&self.socket) {
            Ok((listener, inode)) => {
                info!("{why} {}; it is back", self.socket.path.display());
                *self = Self { socket: self.socket.clone(), listener, inode, taken: 0, told: false };
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

/// Does anybody listen there? Never waits: a listener may have its hands full.
fn is_alive(path: &Path) -> bool {
    let connected = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)
        .and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    !matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Listens under a temporary name, with the mode and the group as they shall be, and gives it its name then: nobody ever
/// sees half of it, and an old socket is there until the new one is.
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
    make(directory).map_err(|error| explain("cannot make its directory", error))?;
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
    if let Some(group) = socket.group {
        std::os::unix::fs::chown(temporary, None, Some(group))
            .map_err(|error| explain_group(group, error))?;
    }
    fs::set_permissions(temporary, Permissions::from_mode(socket.mode))?;
    let inode = inode(&fs::symlink_metadata(temporary)?);
    let listener = UnixListener::from_std(listener)?;
    fs::rename(temporary, &socket.path)?;
    Ok((listener, inode))
}

fn explain_group(group: u32, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let what = "cannot be given to group";
    let help = "make us a member of it (in a pod: supplementalGroups), or allow CAP_CHOWN";
    io::Error::new(error.kind(), format!("the socket {what} {group}: {error}; {help}"))
}

/// Makes a directory and those above it, as far as they are missing, whatever the umask is.
fn make(directory: &Path) -> io::Result<()> {
    let missing = directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<_> = missing.map(Path::to_owned).collect();
    for path in missing.iter().rev() {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        let mode = if path == directory { OWN } else { ABOVE };
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn temporary() -> PathBuf {
    format!("{TEMPORARY}{:0width$x}", fastrand::u32(..1 << (4 * DIGITS)), width = DIGITS).into()
}

/// Removes what a process of ours left behind that died before its socket was in place. One that is just being put in
/// place listens already.
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
            // Dead, not gone.
            let refused = UnixStream::connect(&socket.path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
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
        place.look();
        let inode = place.inode;
        fs::remove_file(&socket.path).unwrap();
        place.look();
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
        (0..2 * SELDOM).for_each(|_| old.look());
        assert_eq!(inode(&fs::symlink_metadata(&socket.path).unwrap()), new.inode);
        drop(new);
        (0..SELDOM).for_each(|_| old.look());
        assert_eq!(inode(&fs::symlink_metadata(&socket.path).unwrap()), old.inode, "it died");
        // A file is not ours to remove.
        fs::remove_file(&socket.path).unwrap();
        fs::write(&socket.path, "mine").unwrap();
        (0..2 * SELDOM).for_each(|_| old.look());
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
