//! Who may connect to a socket of ours.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Permissions of a socket. To connect is to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketMode {
    /// Root alone connects, as with the kubelet's sockets.
    pub(super) const ROOT: Self = Self(0o755);
    const GROUP_WRITES: u32 = 0o020;
    const OTHERS_WRITE: u32 = 0o002;

    /// As the kernel has them.
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
        // A number is refused: YAML 1.1 and 1.2 read a bare 0755 as two different ones.
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
