//! Reads the checkpoints' files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Checkpoints, parse_cpu_checkpoint, parse_device_checkpoint, parse_memory_checkpoint};
use crate::util::file::{FileVersion, read_bounded, version};

/// Maximum file size: for 500 pods with their device plugins' responses the files have a few MiB.
const FILE_LIMIT: u64 = 16 << 20;

/// The paths of the managers' checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPaths {
    /// The CPU Manager's file.
    pub cpus: PathBuf,
    /// The Memory Manager's file.
    pub memory: PathBuf,
    /// The device manager's file.
    pub devices: PathBuf,
}

impl CheckpointPaths {
    /// Returns the kubelet's own paths in its root directory and its device plugin directory.
    #[must_use]
    pub fn new(root: &Path, device_plugins: &Path) -> Self {
        Self {
            cpus: root.join("cpu_manager_state"),
            memory: root.join("memory_manager_state"),
            devices: device_plugins.join("kubelet_internal_checkpoint"),
        }
    }
}

/// Reads the managers' checkpoints again whenever one of the files is replaced.
#[derive(Debug)]
pub struct CheckpointReader {
    paths: CheckpointPaths,
    /// Of the files last read.
    versions: [Option<FileVersion>; 3],
    checkpoints: Option<Arc<Checkpoints>>,
    errors: Vec<String>,
}

impl CheckpointReader {
    /// Returns a reader that has read nothing yet.
    #[must_use]
    pub fn new(paths: CheckpointPaths) -> Self {
        Self { paths, versions: [None; 3], checkpoints: None, errors: Vec::new() }
    }

    /// Returns the current checkpoints; `None` if none of them can be read. [`Checkpoints::names`] is
    /// preserved for pods that still have entries.
    pub fn read(&mut self) -> Option<&mut Arc<Checkpoints>> {
        let CheckpointPaths { cpus, memory, devices } = &self.paths;
        let versions = [version(cpus), version(memory), version(devices)];
        if versions != self.versions {
            let (mut checkpoints, errors) = read_checkpoints(&self.paths);
            if let (Some(new), Some(old)) = (&mut checkpoints, &self.checkpoints) {
                let still = old.names.iter().filter(|(uid, _)| new.pods.contains_key(*uid));
                new.names = still.map(|(uid, name)| (uid.clone(), name.clone())).collect();
            }
            (self.checkpoints, self.errors, self.versions) = (checkpoints.map(Arc::new), errors, versions);
        }
        self.checkpoints.as_mut()
    }

    /// Returns true if the CPU Manager's file exists. The kubelet writes one under every policy.
    #[must_use]
    pub fn has_cpu_checkpoint(&self) -> bool {
        self.versions[0].is_some()
    }

    /// Returns the errors of the files last read, one sentence each.
    #[must_use]
    pub fn errors(&self) -> &[String] {
        &self.errors
    }
}

/// Reads the checkpoints once. The second value has an error for each file that exists and cannot be read or
/// parsed.
#[must_use]
pub fn read_checkpoints(paths: &CheckpointPaths) -> (Option<Checkpoints>, Vec<String>) {
    let (mut checkpoints, mut is_any, mut errors) = (Checkpoints::default(), false, Vec::new());
    // All are read before the first is parsed, so that they are of the same time.
    let files =
        [&paths.cpus, &paths.memory, &paths.devices].map(|path| (path, read_bounded(path, FILE_LIMIT)));
    let parsers = [parse_cpu_checkpoint, parse_memory_checkpoint, parse_device_checkpoint];
    for ((path, text), parse) in files.into_iter().zip(parsers) {
        let parsed = match text {
            Ok(text) => {
                is_any = true;
                parse(&text, &mut checkpoints)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = parsed {
            let path = path.display();
            errors.push(format!("cannot read the checkpoint {path}: {reason}; continuing without it"));
        }
    }
    (is_any.then_some(checkpoints), errors)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CPUS, DEVICES, MEMORY};
    use super::*;

    #[test]
    fn an_invalid_checkpoint_is_an_error_and_the_others_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let paths = CheckpointPaths::new(dir.path(), dir.path());
        assert_eq!(read_checkpoints(&paths), (None, vec![]), "missing is normal");
        std::fs::write(&paths.cpus, CPUS.replace("1-4", "four")).unwrap();
        std::fs::write(&paths.memory, MEMORY).unwrap();
        let (checkpoints, errors) = read_checkpoints(&paths);
        assert_eq!(
            errors,
            [format!(
                "cannot read the checkpoint {}: `four` is not a list of ids such as 0-3,8; continuing without it",
                paths.cpus.display()
            )]
        );
        assert_eq!(checkpoints.unwrap().pods["u1"].len(), 1);
    }

    #[test]
    fn a_missing_cpu_checkpoint_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let paths = CheckpointPaths::new(dir.path(), &dir.path().join("device-plugins"));
        std::fs::create_dir(dir.path().join("device-plugins")).unwrap();
        std::fs::write(&paths.devices, DEVICES).unwrap();
        let mut reader = CheckpointReader::new(paths.clone());
        assert!(reader.read().is_some() && !reader.has_cpu_checkpoint());
        std::fs::write(&paths.cpus, CPUS).unwrap();
        assert!(reader.read().is_some() && reader.has_cpu_checkpoint());
    }

    #[test]
    fn replaced_files_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let paths = CheckpointPaths::new(dir.path(), dir.path());
        let mut reader = CheckpointReader::new(paths.clone());
        assert_eq!(reader.read(), None);
        let replace = |text: &str| {
            std::fs::write(dir.path().join("new"), text).unwrap();
            std::fs::rename(dir.path().join("new"), &paths.cpus).unwrap();
        };
        replace(CPUS);
        let name = |uid: &str| (uid.to_owned(), ("ns".to_owned(), format!("pod-{uid}")));
        Arc::make_mut(reader.read().unwrap()).names = [name("u1"), name("u9")].into();
        assert_eq!(reader.read().unwrap().names.len(), 2, "unchanged files are not read again");
        replace(&CPUS.replace("1-4", "1-3"));
        let checkpoints = reader.read().unwrap();
        assert_eq!(checkpoints.pods["u1"][0].cpus.to_string(), "1-3");
        assert_eq!(checkpoints.names, [name("u1")].into(), "u9 has no entry any more");
    }
}
