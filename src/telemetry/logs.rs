//! Logs, and their level, which may change while the process runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only errors of libraries: numacast logs its own problems as `warn`.
    Error,
    /// Problems that may need an operator.
    Warn,
    /// Changes.
    #[default]
    Info,
    /// What was read and decided.
    Debug,
    /// As debug, and what libraries log.
    Trace,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For collectors.
    Json,
}

/// Changes the log level at run time. Disabled events cost nothing in between: `tracing` caches at each call
/// site that it is disabled.
#[derive(Debug)]
pub struct LogSwitch {
    filter: Handle<Targets, Registry>,
    configured: LogLevel,
    /// Whether the level is at least debug, whatever is configured.
    is_debugging: bool,
}

impl LogSwitch {
    /// Sets the configured level.
    pub fn set(&mut self, level: LogLevel) {
        self.configured = level;
        self.apply();
    }

    /// Switches between debug and the configured level; returns the level now in effect.
    pub fn toggle_debug(&mut self) -> LogLevel {
        self.is_debugging = !self.is_debugging;
        self.apply()
    }

    fn apply(&self) -> LogLevel {
        let level = match self.is_debugging {
            true => self.configured.max(LogLevel::Debug),
            false => self.configured,
        };
        // Fails only if another subscriber was installed first.
        let _ = self.filter.reload(filter(level));
        level
    }
}

/// Starts logging to standard error; standard output is reserved for the commands' output.
pub fn start_logs(level: LogLevel, format: LogFormat) -> LogSwitch {
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
            fmt::layer().with_writer(std::io::stderr).with_ansi(colour).with_target(false).boxed()
        }
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(std::io::stderr).boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter(level));
    // A second call (tests in one process) keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter)).try_init();
    LogSwitch { filter: handle, configured: level, is_debugging: false }
}

/// Returns the filter for a level, which applies to this crate. Libraries log warnings at most, except at
/// trace.
fn filter(chosen: LogLevel) -> Targets {
    let (ours, libraries) = match chosen {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::WARN),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    // These targets log every failed attempt; numacast logs the failure itself, once.
    let attempts = if chosen == LogLevel::Trace { LevelFilter::TRACE } else { LevelFilter::OFF };
    Targets::new()
        .with_default(libraries)
        .with_target("kube_client::client::builder", attempts)
        .with_target("kube_runtime::watcher", attempts)
        .with_target("numacast", ours)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_level_is_ours_and_libraries_stay_quiet() {
        for (chosen, ours, theirs) in [
            (LogLevel::Error, Level::ERROR, Level::ERROR),
            (LogLevel::Info, Level::INFO, Level::WARN),
            (LogLevel::Debug, Level::DEBUG, Level::WARN),
            (LogLevel::Trace, Level::TRACE, Level::TRACE),
        ] {
            let filter = filter(chosen);
            let most = |target: &str| {
                let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
                levels.into_iter().rfind(|level| filter.would_enable(target, level))
            };
            assert_eq!(most("numacast::agent"), Some(ours), "{chosen:?}");
            assert_eq!(most("h2::codec"), Some(theirs), "{chosen:?}");
            let attempts = (chosen == LogLevel::Trace).then_some(Level::TRACE);
            assert_eq!(most("kube_client::client::builder"), attempts, "{chosen:?}");
            assert_eq!(most("kube_runtime::watcher"), attempts, "{chosen:?}");
        }
    }
}
