//! Applies changes of the configuration file to a running process, and handles its signals.
//!
//! The file is read again periodically and at SIGHUP. If it has changed, all layers (file, environment,
//! flags) are merged again. A changed log level applies at once, in the agent also changed exclusions
//! (`Reload::is_live`); for any other changed key the log says that it requires a restart. If the
//! file is invalid, the last configuration stays. SIGUSR1 toggles the log level `debug`.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::{info, warn};

use super::flags::{Given, finish};
use crate::config::{Config, Effective, Origin, Shown};
use crate::telemetry::{LogSwitch, start_logs};
use crate::topology::ZoneRules;

/// Interval at which the file is read again. A changed ConfigMap arrives about a minute later anyway, and each
/// read costs an idle node CPU time.
const INTERVAL: Duration = Duration::from_secs(10);
/// Minimum age of the file when it is read again: a newer one may be incomplete.
const SETTLED: Duration = Duration::from_secs(1);

/// Applies the changes that a running process can apply, and logs the others.
pub(super) struct Reload {
    given: Given,
    running: Effective,
    logs: LogSwitch,
    /// Set for the agent only.
    rules: Option<watch::Sender<ZoneRules>>,
    /// The file's contents when last read, or the error if it could not be read.
    last_read: Option<Result<String, String>>,
}

impl Reload {
    /// Reads the configuration and starts the logs.
    pub(super) fn new(given: Given) -> anyhow::Result<(Config, Self)> {
        let running = given.effective()?;
        let config = running.config.clone();
        let logs = start_logs(config.log.level, config.log.format);
        Ok((config, Self { given, running, logs, rules: None, last_read: None }))
    }

    /// Returns those of the keys that are set to false, other than by default.
    pub(super) fn set_to_false(&self, keys: &[&'static str]) -> Vec<&'static str> {
        let is_off = |key: &str| {
            let mut shown = self.running.values.iter().filter(|shown| shown.key.name == key);
            shown.any(|shown| shown.origin != Origin::Default && shown.value == false)
        };
        keys.iter().copied().filter(|key| is_off(key)).collect()
    }

    /// Starts listening for changes. New rules are sent to the agent through `rules`; without them, only the
    /// log level can change.
    pub(super) fn start(mut self, rules: Option<watch::Sender<ZoneRules>>) -> anyhow::Result<()> {
        let listen = |kind| signal(kind).map_err(|error| anyhow!("cannot listen for signals: {error}"));
        let signals = (listen(SignalKind::hangup())?, listen(SignalKind::user_defined1())?);
        self.rules = rules;
        drop(tokio::spawn(self.run(signals)));
        Ok(())
    }

    /// Returns true if a change of the key takes effect immediately.
    fn is_live(&self, key: &str) -> bool {
        let of_agent = key.starts_with("exclude.");
        key == "log.level" || (self.rules.is_some() && of_agent)
    }

    async fn run(mut self, (mut hangup, mut toggle): (Signal, Signal)) {
        // The file may have changed since the process read it at startup.
        self.read(false);
        let mut ticks = interval_at(Instant::now() + INTERVAL, INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.read_if_settled(),
                Some(()) = hangup.recv() => self.read(true),
                Some(()) = toggle.recv() => {
                    let level = self.logs.toggle_debug();
                    info!("the log level is {} by SIGUSR1", name(&level));
                }
            }
        }
    }

    fn read_if_settled(&mut self) {
        if self.given.file.as_deref().is_some_and(is_settled) {
            self.read(false);
        }
    }

    /// Reads the file and applies its changes. If requested by SIGHUP, always logs a line.
    fn read(&mut self, is_requested: bool) {
        let Some(file) = &self.given.file else {
            if is_requested {
                info!("there is no configuration file to read again: --config names one");
            }
            return;
        };
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
        if self.last_read.as_ref() == Some(&text) {
            if is_requested {
                info!("the configuration {} is unchanged", file.display());
            }
            return;
        }
        let layers = self.given.layers(text.as_deref().ok());
        let file = file.clone();
        self.last_read = Some(text);
        match layers.and_then(|layers| finish(layers, "; ")) {
            Ok(effective) => self.apply(&effective, &file, is_requested),
            Err(error) => warn!("{error}; the configuration read before stays in effect"),
        }
    }

    fn apply(&mut self, effective: &Effective, file: &Path, is_requested: bool) {
        let changed: Vec<&str> = changes(&self.running, effective);
        let (live, others): (Vec<&str>, Vec<&str>) = changed.into_iter().partition(|key| self.is_live(key));
        if !others.is_empty() {
            warn!("{} changed in {}: restart numacast to apply it", list(&others), file.display());
        }
        if live.is_empty() {
            if is_requested {
                info!("nothing changed in {} that takes effect without a restart", file.display());
            }
            return;
        }
        let before = self.running.config.clone();
        let Config { log, exclude, .. } = &effective.config;
        self.running.config.log.level = log.level;
        self.running.config.exclude = exclude.clone();
        for (index, shown) in effective.values.iter().enumerate() {
            if self.is_live(&shown.key.name) {
                self.running.values[index] = shown.clone();
            }
        }
        if before.log.level != log.level {
            self.logs.set(log.level);
        }
        self.send_rules();
        info!("{} changed in {} and is in effect now", list(&live), file.display());
    }

    fn send_rules(&self) {
        let Some(sender) = &self.rules else { return };
        let rules = self.running.config.agent_settings().rules;
        if *sender.borrow() == rules {
            return;
        }
        for warning in rules.exclude.warnings() {
            warn!("{warning}");
        }
        sender.send_replace(rules);
    }
}

/// Returns false if the file was written just now. A missing file counts as settled, so that it is reported.
#[allow(
    clippy::disallowed_methods,
    reason = "a file's time is of the wall clock; after a jump the file is read a moment sooner or later"
)]
fn is_settled(file: &Path) -> bool {
    let Ok(modified) = file.metadata().and_then(|metadata| metadata.modified()) else { return true };
    // A time in the future was set by another clock.
    SystemTime::now().duration_since(modified).map_or(true, |age| age >= SETTLED)
}

/// Returns the keys whose values differ, except those derived from other keys in both.
fn changes(before: &Effective, after: &Effective) -> Vec<&'static str> {
    let pairs = before.values.iter().zip(&after.values);
    let differs = |(old, new): &(&Shown, &Shown)| {
        old.value != new.value && !(old.origin == Origin::Derived && new.origin == Origin::Derived)
    };
    pairs.filter(differs).map(|(_, new)| new.key.name.as_str()).collect()
}

fn list(keys: &[&str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

fn name(level: &impl serde::Serialize) -> String {
    serde_json::to_value(level).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[allow(clippy::disallowed_methods, reason = "of a file's time")]
    #[test]
    fn a_file_that_was_written_just_now_is_not_read_yet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("numacast.yaml");
        assert!(is_settled(&path), "a missing file is an error to report");
        let file = File::create(&path).unwrap();
        assert!(!is_settled(&path));
        let now = SystemTime::now();
        for modified in [now - SETTLED, now + Duration::from_secs(3600)] {
            file.set_modified(modified).unwrap();
            assert!(is_settled(&path), "{modified:?}");
        }
    }
}
