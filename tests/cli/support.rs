//! A directory in place of a host, and the binary run on it.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use tempfile::TempDir;

/// A host without a kubelet: two NUMA nodes in a directory.
pub(crate) struct FakeHost {
    root: TempDir,
}

impl FakeHost {
    pub(crate) fn two_nodes() -> Self {
        let host = Self { root: tempfile::tempdir().unwrap() };
        host.write("sys/devices/system/node/online", "0-1\n");
        for (id, cpus, distance) in [(0, "0-3", "10 21"), (1, "4-7", "21 10")] {
            let node = format!("sys/devices/system/node/node{id}");
            host.write(&format!("{node}/cpulist"), &format!("{cpus}\n"));
            host.write(&format!("{node}/meminfo"), &format!("Node {id} MemTotal:  8388608 kB\n"));
            host.write(&format!("{node}/distance"), &format!("{distance}\n"));
            host.write(&format!("{node}/hugepages/hugepages-2048kB/nr_hugepages"), "256\n");
        }
        host.write("sys/devices/system/cpu/online", "0-7\n");
        host.write("proc/meminfo", "MemTotal:  16777216 kB\n");
        host.write("proc/sys/kernel/hostname", "Worker-1\n");
        host
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    pub(crate) fn write(&self, below: &str, text: &str) {
        let path = self.path(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        let socket = self.path("var/lib/kubelet/pod-resources/kubelet.sock");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        socket
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Runs `numacast <words>` on this host.
    pub(crate) fn numacast(&self, words: &[&str]) -> Outcome {
        let mut all = words.to_vec();
        let root = self.root().to_str().unwrap();
        all.extend(["--host-root", root]);
        numacast(&all)
    }
}

/// The result of a run of the binary.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Returns the single error of a failed run.
    #[track_caller]
    pub(crate) fn error(&self) -> &str {
        self.error_with(1)
    }

    /// Returns the single error of a run that failed with this exit code.
    #[track_caller]
    pub(crate) fn error_with(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        let mut lines = self.stderr.lines().filter(|line| line.starts_with("numacast: "));
        let sentence = lines.next().unwrap_or_else(|| panic!("no sentence in {self:?}"));
        assert_eq!(lines.next(), None, "one sentence only: {self:?}");
        sentence
    }

    #[track_caller]
    pub(crate) fn success(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }
}

/// Runs `numacast <words>` without this machine's environment.
pub(crate) fn numacast(words: &[&str]) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_numacast"))
        .args(words)
        .env_remove("NODE_NAME")
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
