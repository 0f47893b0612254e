//! What the process tells about itself.

pub mod health;
pub mod metrics;
pub mod server;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::config::{Log, LogFormat, LogLevel};

/// Starts logging to standard error: standard output belongs to the commands.
pub fn start_logs(log: &Log) {
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
            fmt::layer().with_writer(std::io::stderr).with_ansi(colour).with_target(false).boxed()
        }
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(std::io::stderr).boxed(),
    };
    // A second start (tests in one process) keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter(log.level))).try_init();
}

/// The level is ours. Of the libraries below us only warnings matter, except to someone who asks for everything.
fn filter(chosen: LogLevel) -> Targets {
    let others =
        if chosen == LogLevel::Trace { LevelFilter::TRACE } else { level(chosen).min(LevelFilter::WARN) };
    Targets::new().with_default(others).with_target("numacast", level(chosen))
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
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
        }
    }
}
