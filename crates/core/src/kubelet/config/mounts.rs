//! The mounts of this process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// By mount point, the path of the mounted file or directory in its file system at the time of reading. If a
/// file or directory mounted by itself is moved or removed, it stays visible through the mount; only this
/// path changes (`mountinfo` in proc_pid_mountinfo(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts(BTreeMap<PathBuf, PathBuf>);

impl Mounts {
    /// Returns the mounts of this process; empty if the kernel does not provide them.
    #[must_use]
    pub fn read() -> Self {
        std::fs::read_to_string("/proc/self/mountinfo").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let mount = |line: &str| {
            let mut fields = line.split(' ').skip(3);
            let (shown, at) = (fields.next()?, fields.next()?);
            Some((unescaped(at), unescaped(shown)))
        };
        // Of two mounts at one path, the later one is visible.
        Self(text.lines().filter_map(mount).collect())
    }

    /// Returns true if what is mounted at `path` was moved or removed since.
    pub(super) fn has_changed(&self, path: &Path, now: &Self) -> bool {
        let shown = |mounts: &Self| mounts.0.get(path).cloned();
        shown(self).is_some_and(|before| shown(now).is_some_and(|now| now != before))
    }
}

/// Undoes the octal escapes of space, tab, newline and backslash.
fn unescaped(text: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the kernel's format; `//deleted` marks a removed path.
    fn mounts(shown: &str) -> Mounts {
        Mounts::parse(&format!(
            "63 43 254:0 / / rw - ext4 /dev/vda rw\n64 43 254:0 {shown} /host/conf.d rw,relatime - ext4 /dev/vda rw\n\
             65 43 254:0 /etc/a\\040b /a\\040b rw - ext4 /dev/vda rw\n"
        ))
    }

    #[test]
    fn a_moved_or_removed_directory_has_changed() {
        let (before, dir) = (mounts("/etc/conf.d"), Path::new("/host/conf.d"));
        assert!(!before.has_changed(dir, &before));
        for shown in ["/etc/conf.d.old", "/etc/conf.d//deleted", "/etc/conf.d.old//deleted"] {
            assert!(before.has_changed(dir, &mounts(shown)), "{shown}");
            assert!(!before.has_changed(Path::new("/a b"), &mounts(shown)));
        }
        assert!(!before.has_changed(Path::new("/elsewhere"), &Mounts::default()));
        assert!(!before.has_changed(dir, &Mounts::default()), "the mounts are unknown");
    }

    #[test]
    fn the_mounts_of_this_process_are_read() {
        assert!(Mounts::read().0.contains_key(Path::new("/")));
    }
}
