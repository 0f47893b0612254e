//! Configuration of a served socket: its path and permissions.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Kubelet;
use crate::grpc::Socket;

/// A served socket, as configured by `proxy` and by `podsApi`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedSocket {
    /// The socket's path.
    pub path: PathBuf,
    /// The file permissions.
    pub mode: SocketMode,
    /// The owning group; that of the process if unset.
    pub group: Option<u32>,
    /// The keys to report for an invalid directory and an invalid mode.
    pub(super) keys: [&'static str; 2],
}

impl ServedSocket {
    /// Returns conflicts with the kubelet of a resolved configuration: the key to report, and the reason.
    pub(super) fn conflicts(&self, kubelet: &Kubelet) -> Vec<(&'static str, &'static str)> {
        let [dir, mode] = self.keys;
        let mut conflicts = Vec::new();
        if !self.path.is_absolute() || self.path.components().any(|part| part == Component::ParentDir) {
            conflicts.push((dir, "it must be an absolute path without `..`"));
        }
        if self.path.parent().is_some_and(|ours| meets(ours, &directories(kubelet))) {
            conflicts.push((
                dir,
                "that is a directory in which the kubelet makes sockets, or holds one, or is in one; ours needs a directory \
                 of its own",
            ));
        }
        if self.group.is_some() && !self.mode.lets_a_group_in() {
            conflicts
                .push((mode, "it lets no group connect, so the group would have no effect; write \"0660\""));
        }
        conflicts
    }
}

impl From<ServedSocket> for Socket {
    fn from(served: ServedSocket) -> Self {
        Self { path: served.path, mode: served.mode.get(), group: served.group }
    }
}

/// Returns the directories in which the kubelet creates sockets; in some of them it removes all other files.
fn directories(kubelet: &Kubelet) -> Vec<PathBuf> {
    let parent = |socket: &Option<PathBuf>| Some(socket.as_deref()?.parent()?.to_owned());
    let below = |name| kubelet.dir.as_ref().map(|dir| dir.join(name));
    let all = [
        parent(&kubelet.socket),
        parent(&kubelet.pods_socket),
        kubelet.device_plugins.clone(),
        below("pod-resources"),
        below("pods-api"),
    ];
    all.into_iter().flatten().collect()
}

/// Returns true if `ours` is one of the directories, or one contains the other.
fn meets(ours: &Path, theirs: &[PathBuf]) -> bool {
    theirs.iter().any(|theirs| ours.starts_with(theirs) || theirs.starts_with(ours))
}

/// File permissions of a socket. Connecting requires write permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketMode {
    /// Only root may connect, as with the kubelet's sockets.
    pub(super) const ROOT: Self = Self(0o755);
    const GROUP_WRITES: u32 = 0o020;
    const OTHERS_WRITE: u32 = 0o002;

    /// Returns the permission bits.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    pub(super) const fn lets_a_group_in(self) -> bool {
        self.0 & Self::GROUP_WRITES != 0
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        match mode {
            None => Err(format!("`{text}` is no file mode; write octal digits such as \"0755\" or \"0660\"")),
            Some(mode) if mode & Self::OTHERS_WRITE != 0 => Err(format!(
                "`{text}` lets every user of the node see what runs there, and consumers refuse such a socket; write \
                 \"0755\", or \"0660\" with a group"
            )),
            Some(mode) if mode & 0o200 == 0 => {
                Err(format!("`{text}` lets not even the owner connect; write \"0755\" or \"0660\""))
            }
            Some(mode) => Ok(Self(mode)),
        }
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for SocketMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = SocketMode;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a file mode in quotes, such as \"0755\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<SocketMode, E> {
                text.parse().map_err(E::custom)
            }
        }
        // Numbers are rejected: YAML 1.1 and 1.2 parse a bare 0755 differently.
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_written_in_octal_and_lets_nobody_else_in() {
        let read = |yaml: &str| serde_saphyr::from_str::<SocketMode>(yaml).map_err(|error| error.to_string());
        for (yaml, mode) in [("'0755'", 0o755), ("\"660\"", 0o660), ("'0775'", 0o775), ("'0200'", 0o200)] {
            assert_eq!(read(yaml), Ok(SocketMode(mode)), "{yaml}");
        }
        for (yaml, reason) in [
            ("'0777'", "every user of the node"),
            ("'0666'", "every user of the node"),
            ("'0055'", "not even the owner"),
            ("'0o660'", "no file mode"),
            ("'01755'", "no file mode"),
            ("'rw'", "no file mode"),
            ("660", "in quotes"),
            ("true", "in quotes"),
        ] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains(reason), "{yaml}: {error}");
        }
        assert_eq!(SocketMode(0o660).to_string(), "0660");
    }
}
