//! The kubelet's effective configuration: a file, drop-ins merged over it, and flags over both.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Map, Value};

use super::command_line::CommandLine;
use super::mounts::Mounts;
use super::{KubeletConfig, from_value, parse_mapping, read_text};

const MAX_DROP_INS: usize = 1000;

const ROOT_DIR: &str = "/var/lib/kubelet";

/// Where to find the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFiles {
    /// The configuration file. If not set, that of the command line, or else `config.yaml` in `kubelet_dir`.
    pub file: Option<PathBuf>,
    /// The directory of drop-ins. If not set, that of the command line, or else none.
    pub dir: Option<PathBuf>,
    /// Where the kubelet's root directory is mounted.
    pub kubelet_dir: PathBuf,
    /// Where the host's `/` is mounted.
    pub host_root: PathBuf,
    /// Where the host's `/proc` is mounted.
    pub proc: PathBuf,
    /// The node's name.
    pub node: String,
    /// The mounts at the start of this process.
    pub mounts: Mounts,
}

impl ConfigFiles {
    /// Returns a file or directory that changed after `start`, if any: a kubelet started then may run with
    /// its earlier contents.
    #[must_use]
    pub fn changed_since(&self, start: SystemTime) -> Option<PathBuf> {
        let (_, file, dir) = self.locate();
        let changed =
            |path: &PathBuf| path.metadata().and_then(|of| of.modified()).is_ok_and(|at| at > start);
        let drop_ins = dir.as_deref().and_then(|dir| drop_ins(dir).ok());
        let DropIns { files, dirs } = drop_ins.unwrap_or_default();
        // Deleting a file changes its directory.
        file.into_iter().chain(files).chain(dirs).chain(dir).find(changed)
    }

    /// Returns the configuration file, if there is any.
    #[must_use]
    pub fn located(&self) -> Option<PathBuf> {
        self.locate().1
    }

    /// Returns the kubelet's `--root-dir`, if its command line is found and has one.
    #[must_use]
    pub fn root_dir(&self) -> Option<PathBuf> {
        CommandLine::find(&self.proc, &self.node)?.root_dir.map(PathBuf::from)
    }

    /// Returns the file or directory that was replaced, if any: if it is mounted by itself, as into a
    /// container, the mount keeps showing the old one for the container's lifetime.
    #[must_use]
    pub fn replaced(&self) -> Option<PathBuf> {
        let (_, file, dir) = self.locate();
        file.into_iter().chain(dir).find(|path| self.is_replaced(path))
    }

    /// Returns true if the file at this path was unlinked from its file system or renamed.
    fn is_replaced(&self, path: &Path) -> bool {
        let has_no_name = path.metadata().is_ok_and(|of| of.nlink() == 0);
        has_no_name || self.mounts.has_changed(path, &Mounts::read())
    }

    /// Fails if the path was replaced: only a new container would see the new file.
    fn check(&self, path: &Path) -> Result<(), String> {
        match self.is_replaced(path) {
            true => Err("it was replaced on the host, and only a new container sees the new one".to_owned()),
            false => Ok(()),
        }
    }

    /// Reads the configuration. The second value lists invalid keys, which were left at their default.
    ///
    /// # Errors
    /// One sentence, if a file cannot be read or is not a mapping. Merging only the other files would give a
    /// different configuration.
    pub fn read(&self) -> Result<(KubeletConfig, Vec<String>), String> {
        let (line, file, dir) = self.locate();
        let mut place = "the kubelet's command line".to_owned();
        let mut config = Value::Object(Map::new());
        if let Some(file) = file {
            place = file.display().to_string();
            self.check(&file).map_err(|reason| unread(&file, &reason))?;
            merge(&mut config, read(&file)?);
        }
        if let Some(dir) = dir {
            // A removed directory would look empty.
            self.check(&dir).map_err(|reason| unread_drop_ins(&dir, &reason))?;
            for file in drop_ins(&dir)?.files {
                merge(&mut config, read(&file)?);
            }
            place = format!("{place} with the drop-ins of {}", dir.display());
        }
        if let (Some(line), Value::Object(keys)) = (line, &mut config) {
            // Not merged: a flag that sets a map replaces the file's map entirely.
            keys.extend(line.keys);
        }
        let (config, errors) = from_value(&config);
        Ok((config, errors.into_iter().map(|error| format!("{place}: {error}")).collect()))
    }

    /// Returns the kubelet's command line, its configuration file and the directory of its drop-ins, if any.
    fn locate(&self) -> (Option<CommandLine>, Option<PathBuf>, Option<PathBuf>) {
        let line = CommandLine::find(&self.proc, &self.node);
        let (file, dir) = match &line {
            Some(line) => {
                let on_host = |path: &Option<String>| path.as_deref().map(|path| self.on_host(path, line));
                (on_host(&line.config), on_host(&line.config_dir))
            }
            None => (Some(self.kubelet_dir.join("config.yaml")), None),
        };
        (line, self.file.clone().or(file), self.dir.clone().or(dir))
    }

    /// Maps a path of the kubelet to one of this process.
    fn on_host(&self, path: &str, line: &CommandLine) -> PathBuf {
        let path = Path::new(path);
        let root = line.root_dir.as_deref().unwrap_or(ROOT_DIR);
        match path.strip_prefix(root) {
            Ok(rest) => self.kubelet_dir.join(rest),
            Err(_) => self.host_root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }
}

fn unread(file: &Path, reason: &str) -> String {
    format!("cannot read the kubelet's configuration {}: {reason}", file.display())
}

fn unread_drop_ins(dir: &Path, reason: &str) -> String {
    format!("cannot read the kubelet's drop-ins in {}: {reason}", dir.display())
}

fn read(file: &Path) -> Result<Value, String> {
    read_text(file).and_then(|text| parse_mapping(&text)).map_err(|reason| unread(file, &reason))
}

#[derive(Default)]
struct DropIns {
    /// The files `*.conf` in the order in which the kubelet merges them: by name, with a directory's files at
    /// its place.
    files: Vec<PathBuf>,
    /// The directories below the searched one.
    dirs: Vec<PathBuf>,
}

/// Returns the drop-ins in `dir` and below.
fn drop_ins(dir: &Path) -> Result<DropIns, String> {
    let mut found = DropIns::default();
    walk(dir, &mut found).map_err(|error| unread_drop_ins(dir, &error.to_string()))?;
    if found.files.len() > MAX_DROP_INS {
        return Err(format!("there are more than {MAX_DROP_INS} drop-ins in {}", dir.display()));
    }
    Ok(found)
}

fn walk(dir: &Path, found: &mut DropIns) -> std::io::Result<()> {
    let mut entries = std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        if found.files.len() > MAX_DROP_INS {
            break;
        }
        // As in the kubelet, symlinks to directories are not followed; symlinks to files are read.
        if entry.file_type()?.is_dir() {
            found.dirs.push(entry.path());
            walk(&entry.path(), found)?;
        } else if entry.path().extension() == Some(OsStr::new("conf")) {
            found.files.push(entry.path());
        }
    }
    Ok(())
}

/// Merges as the kubelet does (RFC 7396): maps are merged, null removes a key, everything else replaces.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().and_then(|map| map.remove(&key))),
            value => merge(&mut target[key], value),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde_json::json;

    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        fn new(files: &[(&str, &str)]) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            files.iter().for_each(|(path, text)| host.write(path, text));
            host
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn files(&self) -> ConfigFiles {
            ConfigFiles {
                kubelet_dir: self.0.path().join("k"),
                host_root: self.0.path().to_owned(),
                proc: self.0.path().join("proc"),
                node: "worker".into(),
                ..ConfigFiles::default()
            }
        }

        fn read(&self, files: &ConfigFiles) -> Result<KubeletConfig, String> {
            let place = format!("{}/", self.0.path().display());
            let (config, errors) = files.read().map_err(|error| error.replace(&place, ""))?;
            assert_eq!(errors, Vec::<String>::new());
            Ok(config)
        }
    }

    #[test]
    fn a_file_replaced_under_its_mount_is_an_error() {
        use std::os::fd::AsRawFd as _;
        let host = Host::new(&[("k/config.yaml", "cpuManagerPolicy: static")]);
        // Like a mount, a file descriptor keeps showing an unlinked file.
        let open = std::fs::File::open(host.0.path().join("k/config.yaml")).unwrap();
        let mounted = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let files = ConfigFiles { file: Some(mounted.clone()), ..host.files() };
        assert!(files.read().is_ok());
        assert_eq!(files.replaced(), None);
        host.write("k/new", "cpuManagerPolicy: none");
        std::fs::rename(host.0.path().join("k/new"), host.0.path().join("k/config.yaml")).unwrap();
        assert_eq!(files.replaced(), Some(mounted));
        let error = files.read().unwrap_err();
        assert!(
            error.ends_with("it was replaced on the host, and only a new container sees the new one"),
            "{error}"
        );
        assert!(host.files().read().is_ok(), "its name leads to the new one");
    }

    #[test]
    fn a_directory_removed_under_its_mount_is_an_error() {
        use std::os::fd::AsRawFd as _;
        let host =
            Host::new(&[("k/config.yaml", "kind: x"), ("d/a.conf", "topologyManagerPolicy: restricted")]);
        let open = std::fs::File::open(host.0.path().join("d")).unwrap();
        let mounted = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let files = ConfigFiles { dir: Some(mounted.clone()), ..host.files() };
        assert_eq!(host.read(&files).unwrap().topology_manager_policy, "restricted");
        assert_eq!(files.replaced(), None);
        std::fs::remove_dir_all(host.0.path().join("d")).unwrap();
        host.write("d/a.conf", "topologyManagerPolicy: best-effort");
        let error = files.read().unwrap_err();
        let why = "it was replaced on the host, and only a new container sees the new one";
        let place = mounted.display();
        assert_eq!(error, format!("cannot read the kubelet's drop-ins in {place}: {why}"));
        assert_eq!(files.replaced(), Some(mounted));
    }

    #[test]
    fn patches_merge_maps_and_replace_the_rest() {
        // The examples of RFC 7396, appendix A.
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!({"a": "b"}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = target.clone();
            merge(&mut merged, patch.clone());
            assert_eq!(merged, result, "{target} {patch}");
        }
    }

    #[test]
    fn drop_ins_are_merged_in_the_kubelets_order() {
        let host = Host::new(&[
            ("k/config.yaml", "cpuManagerPolicy: static\nkubeReserved: {cpu: 2, memory: 1Gi}\n"),
            ("d/20.conf", "topologyManagerScope: pod\nkubeReserved: {cpu: 3}\n"),
            ("d/10.conf", "topologyManagerScope: container\ntopologyManagerPolicy: restricted\n"),
            ("d/15/z.conf", "topologyManagerPolicy: best-effort\n"),
            ("d/30.yaml", "topologyManagerPolicy: none\n"),
            ("d/25.conf", "cpuManagerPolicy: null\nfeatureGates: {New: true}\n"),
        ]);
        std::fs::create_dir_all(host.0.path().join("else")).unwrap();
        host.write("else/x", "memoryManagerPolicy: Static\n");
        std::os::unix::fs::symlink("../else/x", host.0.path().join("d/12.conf")).unwrap();
        let files = ConfigFiles { dir: Some(host.0.path().join("d")), ..host.files() };
        let config = host.read(&files).unwrap();
        assert_eq!(config.cpu_manager_policy, "none", "null is the default");
        assert_eq!(config.memory_manager_policy, "Static");
        assert_eq!(config.topology_manager_policy, "best-effort");
        assert_eq!(config.topology_manager_scope, "pod");
        assert_eq!(config.reserved_cpu_count, 3);
        let without = host.read(&host.files()).unwrap();
        assert_eq!((without.cpu_manager_policy.as_str(), without.reserved_cpu_count), ("static", 2));
    }

    #[test]
    fn the_command_line_has_the_paths_and_wins() {
        let host = Host::new(&[
            (
                "proc/7/cmdline",
                "kubelet\0--config=/etc/k.yaml\0--config-dir=/var/lib/kubelet/d\0--kube-reserved=memory=1Gi\0",
            ),
            ("etc/k.yaml", "topologyManagerPolicy: restricted\nkubeReserved: {cpu: 4}\n"),
            ("k/d/a.conf", "topologyManagerScope: pod\n"),
            ("k/config.yaml", "topologyManagerPolicy: best-effort\n"),
        ]);
        let config = host.read(&host.files()).unwrap();
        assert_eq!(config.topology_manager_policy, "restricted");
        assert_eq!(config.topology_manager_scope, "pod");
        assert_eq!(config.reserved_cpu_count, 0, "the flag's map has no cpu");
        let file = ConfigFiles { file: Some(host.0.path().join("k/config.yaml")), ..host.files() };
        assert_eq!(
            host.read(&file).unwrap().topology_manager_policy,
            "best-effort",
            "the configured file wins"
        );
        host.write("proc/7/cmdline", "kubelet\0--root-dir=/data\0--config\0/data/d/a.conf\0");
        assert_eq!(host.read(&host.files()).unwrap().topology_manager_scope, "pod");
        host.write("proc/7/cmdline", "kubelet\0--cpu-manager-policy=static\0");
        let config = host.read(&host.files()).unwrap();
        assert_eq!(
            (config.cpu_manager_policy.as_str(), config.topology_manager_policy.as_str()),
            ("static", "none")
        );
    }

    #[test]
    fn a_file_that_changed_since_is_found() {
        let all = ["k/config.yaml", "d/a.conf", "d/sub/b.conf", "d/sub", "d"];
        let host = Host::new(&[(all[0], ""), (all[1], ""), (all[2], "")]);
        let at = |path: &str| host.0.path().join(path);
        let (before, start) = (Duration::from_secs(1_000_000), Duration::from_secs(2_000_000));
        let set = |path: &str, time: Duration| {
            std::fs::File::open(at(path)).unwrap().set_modified(UNIX_EPOCH + time).unwrap();
        };
        all.iter().for_each(|path| set(path, before));
        let files = ConfigFiles { dir: Some(at("d")), ..host.files() };
        let changed = || files.changed_since(UNIX_EPOCH + start);
        assert_eq!(changed(), None);
        for path in all {
            set(path, start + before);
            assert_eq!(changed(), Some(at(path)));
            set(path, before);
        }
        assert_eq!(ConfigFiles { file: Some(at("none")), ..host.files() }.changed_since(UNIX_EPOCH), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let host = Host::new(&[("k/config.yaml", "a: 1\n"), ("d/a.conf", "- b\n")]);
        let files = ConfigFiles { dir: Some(host.0.path().join("d")), ..host.files() };
        assert_eq!(
            host.read(&files).unwrap_err(),
            "cannot read the kubelet's configuration d/a.conf: it is not a mapping of keys"
        );
        let files = ConfigFiles { dir: Some(host.0.path().join("e")), ..host.files() };
        let error = host.read(&files).unwrap_err();
        assert!(error.starts_with("cannot read the kubelet's drop-ins in e: No such file"), "{error}");
        let files = ConfigFiles { file: Some(host.0.path().join("x")), ..host.files() };
        let error = host.read(&files).unwrap_err();
        assert!(error.starts_with("cannot read the kubelet's configuration x: No such file"), "{error}");
    }
}
