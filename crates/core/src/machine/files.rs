//! Sources of hardware information: the host's own files, or a recording of them.
//!
//! Paths are relative and start with `sys/` or `proc/`, so that both roots can be relocated.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use crate::util::file::read_bounded;

/// Maximum size of a file. Sysfs files have at most a few pages.
const FILE_LIMIT: u64 = 1 << 20;

/// A source of small text files.
pub trait HostFiles {
    /// Returns the text of a file.
    ///
    /// # Errors
    /// The I/O error, usually `NotFound`: on some machines almost any file is missing.
    fn read(&self, path: &str) -> io::Result<String>;

    /// Returns the names in a directory, ascending.
    ///
    /// # Errors
    /// The I/O error, usually `NotFound`.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
}

/// The host's own files, below roots that may be mount points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoots {
    /// The path of `/sys`.
    pub sys: PathBuf,
    /// The path of `/proc`.
    pub proc: PathBuf,
}

impl HostRoots {
    fn resolve(&self, path: &str) -> io::Result<PathBuf> {
        match path.split_once('/') {
            Some(("sys", rest)) => Ok(self.sys.join(rest)),
            Some(("proc", rest)) => Ok(self.proc.join(rest)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{path} is below neither root"))),
        }
    }
}

impl HostFiles for HostRoots {
    fn read(&self, path: &str) -> io::Result<String> {
        let bytes = read_bounded(&self.resolve(path)?, FILE_LIMIT)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(self.resolve(path)?)? {
            names.insert(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names.into_iter().collect())
    }
}

/// Recorded files. What is in none of the maps did not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedFiles {
    /// Path to text.
    pub read: BTreeMap<String, String>,
    /// Path to the I/O error.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, String>,
    /// Directory to the names in it. If a directory is missing here, its names are taken from the paths in
    /// `read`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub listed: BTreeMap<String, Vec<String>>,
}

impl HostFiles for RecordedFiles {
    fn read(&self, path: &str) -> io::Result<String> {
        self.check(path)?;
        self.read.get(path).cloned().ok_or_else(not_found)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.check(path)?;
        if let Some(names) = self.listed.get(path) {
            return Ok(names.clone());
        }
        let prefix = format!("{path}/");
        let names: BTreeSet<String> = self
            .read
            .range(prefix.clone()..)
            .take_while(|(file, _)| file.starts_with(&prefix))
            .filter_map(|(file, _)| file[prefix.len()..].split('/').next())
            .map(str::to_owned)
            .collect();
        if names.is_empty() { Err(not_found()) } else { Ok(names.into_iter().collect()) }
    }
}

impl RecordedFiles {
    /// Returns the recorded error of a path, if any.
    fn check(&self, path: &str) -> io::Result<()> {
        self.errors.get(path).map_or(Ok(()), |reason| Err(io::Error::other(reason.clone())))
    }
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

/// Forwards reads and records them.
#[derive(Debug)]
pub struct Recorder<F> {
    inner: F,
    files: RefCell<RecordedFiles>,
}

impl<F> Recorder<F> {
    /// Creates a recorder of what is read from `inner`.
    pub fn new(inner: F) -> Self {
        Self { inner, files: RefCell::default() }
    }

    /// Returns everything that was read.
    pub fn finish(self) -> RecordedFiles {
        self.files.into_inner()
    }
}

impl<F: HostFiles> HostFiles for Recorder<F> {
    fn read(&self, path: &str) -> io::Result<String> {
        let text = self.inner.read(path).inspect_err(|error| self.record_error(path, error))?;
        self.files.borrow_mut().read.insert(path.to_owned(), text.clone());
        Ok(text)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = self.inner.list(path).inspect_err(|error| self.record_error(path, error))?;
        // A listed name may never be read: then only its existence is known.
        self.files.borrow_mut().listed.insert(path.to_owned(), names.clone());
        Ok(names)
    }
}

impl<F> Recorder<F> {
    fn record_error(&self, path: &str, error: &io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            self.files.borrow_mut().errors.insert(path.to_owned(), error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_gives_the_texts_and_errors_of_the_host() {
        let root = tempfile::tempdir().unwrap();
        let pool = root.path().join("sys/hugepages/hugepages-2048kB");
        std::fs::create_dir_all(&pool).unwrap();
        std::fs::write(pool.join("nr_hugepages"), "3\n").unwrap();
        let host = HostRoots { sys: root.path().join("sys"), proc: root.path().join("proc") };
        let recorder = Recorder::new(host);
        let read_all = |files: &dyn Fn(&str) -> io::Result<String>| {
            ["sys/hugepages/hugepages-2048kB/nr_hugepages", "sys/hugepages", "proc/meminfo"]
                .map(|path| files(path).map_err(|error| error.to_string()))
        };
        let live = read_all(&|path| recorder.read(path));
        assert_eq!(recorder.list("sys/hugepages").unwrap(), ["hugepages-2048kB"]);
        let recording = recorder.finish();
        let replayed = read_all(&|path| recording.read(path));
        assert_eq!(live[0], Ok("3\n".to_owned()));
        assert_eq!(live[0], replayed[0]);
        assert!(live[1].as_ref().is_err_and(|error| error.contains("directory")), "{live:?}");
        assert_eq!(live[1], replayed[1], "an error is replayed with the kernel's message");
        assert!(recording.read("proc/meminfo").is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn a_recording_lists_directories_in_which_nothing_was_read() {
        let root = tempfile::tempdir().unwrap();
        for node in ["node0", "node3"] {
            std::fs::create_dir_all(root.path().join("sys").join(node)).unwrap();
        }
        let recorder = Recorder::new(HostRoots { sys: root.path().join("sys"), proc: root.path().into() });
        assert_eq!(recorder.list("sys/").unwrap(), ["node0", "node3"]);
        let recording = recorder.finish();
        assert_eq!(recording.list("sys/").unwrap(), ["node0", "node3"]);
        assert_eq!(RecordedFiles::default().list("sys/").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
