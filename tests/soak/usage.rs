//! Memory and CPU time of a process, from `/proc`.

use std::time::Duration;

use anyhow::{Context, Result};

/// Returns the number after this name in `/proc/<process>/status`: KiB for memory.
pub(crate) fn status(process: u32, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let word = line.and_then(|line| line.split_whitespace().next());
    Ok(word.with_context(|| format!("no {name} in the status of process {process}"))?.parse()?)
}

/// Returns a memory figure of `/proc/<process>/status`, such as `VmRSS`, in bytes.
pub(crate) fn memory(process: u32, name: &str) -> Result<usize> {
    Ok(usize::try_from(status(process, name)?)? << 10)
}

/// Returns the CPU time that its threads have used so far, from the kernel's scheduler statistics (nanoseconds).
pub(crate) fn cpu(process: u32) -> Result<Duration> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        total += text.split_whitespace().next().context("an empty schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}
