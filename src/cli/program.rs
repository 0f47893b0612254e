//! The name under which users call the binary.

use std::path::Path;

/// The file that kubectl runs as its plugin.
const PLUGIN: &str = "kubectl-numacast";

/// Returns `kubectl numacast` if the binary was started as kubectl's plugin, else `numacast`.
pub(super) fn name() -> &'static str {
    let file = std::env::args_os().next();
    let is_plugin = file.is_some_and(|file| Path::new(&file).file_name().is_some_and(|name| name == PLUGIN));
    if is_plugin { "kubectl numacast" } else { "numacast" }
}
