//! Metrics of the process itself, with the standard Prometheus names. Read on each scrape, from `/proc` of
//! the container, not that of the host.

use std::fs;
use std::path::Path;

use prometheus_client::metrics::MetricType::{Counter, Gauge};

use super::registry::{Registry, label};

const PROC: &str = "/proc";
/// Unit of CPU times in `/proc`, on all supported architectures: proc(5), `USER_HZ`.
const TICKS_PER_SECOND: f64 = 100.0;

impl Registry {
    /// Returns a registry with the metrics that every command has: its version and its use of resources.
    #[must_use]
    pub fn of_process() -> Self {
        let mut registry = Self::default();
        register(&mut registry);
        registry
    }
}

fn register(registry: &mut Registry) {
    registry
        .gauges("numacast_build_info", "Always 1", [label("version", "")])
        .with([env!("CARGO_PKG_VERSION")])
        .set(1);
    registry.computed(
        "process_cpu_seconds_total",
        Counter,
        "CPU time of the process, user and system",
        || cpu_seconds(Path::new(PROC)),
    );
    registry.computed("process_resident_memory_bytes", Gauge, "Resident memory of the process", || {
        resident_bytes(Path::new(PROC))
    });
    registry.computed("process_open_fds", Gauge, "Open file descriptors of the process", || {
        open_fds(Path::new(PROC))
    });
    registry.computed("process_start_time_seconds", Gauge, "Start of the process, as Unix time", || {
        start_time(Path::new(PROC))
    });
}

fn cpu_seconds(proc: &Path) -> Option<f64> {
    let stat = read(proc, "self/stat")?;
    Some((stat_field(&stat, 14)? + stat_field(&stat, 15)?) / TICKS_PER_SECOND)
}

fn start_time(proc: &Path) -> Option<f64> {
    let boot = number_after(&read(proc, "stat")?, "btime ")?;
    Some(boot + stat_field(&read(proc, "self/stat")?, 22)? / TICKS_PER_SECOND)
}

fn resident_bytes(proc: &Path) -> Option<f64> {
    number_after(&read(proc, "self/status")?, "VmRSS:").map(|kib| kib * 1024.0)
}

fn open_fds(proc: &Path) -> Option<f64> {
    let count = fs::read_dir(proc.join("self/fd")).ok()?.count();
    // Without the descriptor opened to count them.
    Some(count.saturating_sub(1) as f64)
}

fn read(proc: &Path, file: &str) -> Option<String> {
    fs::read_to_string(proc.join(file)).ok()
}

/// Returns a numbered field of `/proc/self/stat`. The second is the name, in parentheses and with arbitrary
/// characters.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(number.checked_sub(3)?)?.parse().ok()
}

fn number_after(text: &str, start: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(start))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(proc: &Path) -> [Option<f64>; 4] {
        [cpu_seconds(proc), resident_bytes(proc), open_fds(proc), start_time(proc)]
    }

    #[test]
    fn values_are_read_as_the_kernel_writes_them() {
        let proc = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = proc.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(all(proc.path()), [None; 4]);
        let head = "7 (a b) S) R 1 7 7 0 -1 4194304 100 0 0 0";
        write("self/stat", &format!("{head} 150 25 0 0 20 0 1 0 250 3133440 404 18446744073709551615 0\n"));
        write("self/status", "Name:\ta\nVmSize:\t    3060 kB\nVmRSS:\t    1616 kB\nThreads:\t1\n");
        write("self/fd/0", "");
        write("self/fd/1", "");
        write("stat", "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n");
        let expected = [1.75, 1616.0 * 1024.0, 1.0, 1_700_000_002.5];
        assert_eq!(all(proc.path()), expected.map(Some));
    }

    #[test]
    fn our_own_process_has_all_values() {
        let [cpu, resident, fds, start] = all(Path::new(PROC)).map(Option::unwrap);
        assert!(cpu >= 0.0 && resident > 1048576.0 && fds > 2.0 && start > 1e9);
    }
}
