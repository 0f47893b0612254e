//! Metrics of the process itself, with the standard Prometheus names. Collected only on a scrape.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::docs::{CPU_SECONDS, MAX_FDS, OPEN_FDS, RESIDENT, START_TIME, VIRTUAL};
use super::{counter, gauge};

/// Unit of CPU times in `/proc`, on all supported architectures: proc(5), `USER_HZ`.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads `/proc` of the container, not that of the host.
#[derive(Debug)]
pub(in crate::telemetry) struct Process {
    proc: PathBuf,
}

impl Default for Process {
    fn default() -> Self {
        Self { proc: "/proc".into() }
    }
}

/// Values at one moment; `None` if unreadable.
#[derive(Debug, Default, PartialEq)]
struct Figures {
    cpu: Option<f64>,
    start: Option<f64>,
    resident: Option<u64>,
    virtual_memory: Option<u64>,
    open: Option<u64>,
    most_open: Option<u64>,
}

impl Process {
    fn figures(&self) -> Figures {
        let read = |file: &str| fs::read_to_string(self.proc.join(file)).unwrap_or_default();
        let (stat, status, limits) = (read("self/stat"), read("self/status"), read("self/limits"));
        let ticks = |field| stat_field(&stat, field).map(|ticks| ticks as f64 / TICKS_PER_SECOND);
        let boot = word(&read("stat"), "btime ", 0);
        Figures {
            cpu: ticks(14).zip(ticks(15)).map(|(user, system)| user + system),
            start: boot.zip(ticks(22)).map(|(boot, ticks)| boot as f64 + ticks),
            resident: word(&status, "VmRSS:", 0).map(|kib| kib * 1024),
            virtual_memory: word(&status, "VmSize:", 0).map(|kib| kib * 1024),
            // Without the descriptor opened to count them.
            open: fs::read_dir(self.proc.join("self/fd"))
                .ok()
                .map(|dir| (dir.count() as u64).saturating_sub(1)),
            most_open: word(&limits, "Max open files", 0),
        }
    }
}

/// Returns a numbered field of `/proc/self/stat`. The second is the name, in parentheses and with arbitrary
/// characters.
fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(number.checked_sub(3)?)?.parse().ok()
}

/// Returns the number at word `index` after `start` in the line that starts with it.
fn word(text: &str, start: &str, index: usize) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(start))?;
    line.split_whitespace().nth(index)?.parse().ok()
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Figures { cpu, start, resident, virtual_memory, open, most_open } = self.figures();
        counter(&mut encoder, &CPU_SECONDS, cpu)?;
        gauge(&mut encoder, &RESIDENT, resident)?;
        gauge(&mut encoder, &VIRTUAL, virtual_memory)?;
        gauge(&mut encoder, &OPEN_FDS, open)?;
        gauge(&mut encoder, &MAX_FDS, most_open)?;
        gauge(&mut encoder, &START_TIME, start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_the_kernel_writes_them() {
        let proc = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = proc.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let process = Process { proc: proc.path().to_owned() };
        assert_eq!(process.figures(), Figures::default());
        let head = "7 (a b) S) R 1 7 7 0 -1 4194304 100 0 0 0";
        write("self/stat", &format!("{head} 150 25 0 0 20 0 1 0 250 3133440 404 18446744073709551615 0\n"));
        write("self/status", "Name:\ta\nVmSize:\t    3060 kB\nVmRSS:\t    1616 kB\nThreads:\t1\n");
        let limit = "Max open files            20000                30000                files     \n";
        write("self/limits", &format!("Limit   Soft Limit   Hard Limit   Units\n{limit}"));
        write("self/fd/0", "");
        write("self/fd/1", "");
        write("stat", "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n");
        let expected = Figures {
            cpu: Some(1.75),
            start: Some(1_700_000_002.5),
            resident: Some(1616 << 10),
            virtual_memory: Some(3060 << 10),
            open: Some(1),
            most_open: Some(20_000),
        };
        assert_eq!(process.figures(), expected);
    }

    #[test]
    fn our_own_process_has_every_figure() {
        let Figures { cpu, start, resident, virtual_memory, open, most_open } = Process::default().figures();
        assert!(cpu.is_some() && start.is_some_and(|start| start > 1e9));
        assert!(resident.unwrap() > 1 << 20 && resident < virtual_memory);
        assert!(open.unwrap() > 2 && most_open.is_none_or(|most| open.unwrap() < most));
    }
}
