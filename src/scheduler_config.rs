//! The configuration of a kube-scheduler with the plugin NodeResourceTopologyMatch: the profile that fits
//! ours, and what of an existing one contradicts it.
//!
//! Facts about the plugin are from scheduler-plugins v0.34.7 (`apis/config/v1`, `pkg/noderesourcetopology`).

mod check;
mod file;

use std::fmt::Write as _;

use thiserror::Error;

pub use check::disagreements;

use crate::config::{Config, Consumer};

/// The name of the plugin.
pub const PLUGIN: &str = "NodeResourceTopologyMatch";
/// The only version that kube-scheduler reads since 1.29.
const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
/// Maximum size of a file, in bytes.
pub const MAX_BYTES: u64 = 1 << 20;

/// Why there is nothing to print or to compare.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchedulerConfigError {
    /// Our configuration is for another scheduler.
    #[error(
        "`consumer` is {0}, which does not use the plugin NodeResourceTopologyMatch: set it to schedulerPlugins or \
         schedulerPluginsDirect"
    )]
    OtherConsumer(&'static str),
    /// The text is no YAML, or has other types.
    #[error("it is no KubeSchedulerConfiguration: {0}")]
    Malformed(String),
    /// It is another object.
    #[error("its kind is {0:?}, not KubeSchedulerConfiguration")]
    OtherKind(String),
}

/// Returns a KubeSchedulerConfiguration whose profile of this name fits the configuration, as YAML.
///
/// # Errors
/// If the configuration is for another scheduler.
pub fn profile(config: &Config, scheduler: &str) -> Result<String, SchedulerConfigError> {
    let caches = caches(config.consumer)?;
    let mut text = format!(
        "apiVersion: {API_VERSION}\nkind: KubeSchedulerConfiguration\n# Retry rejected pods soon after zones have changed.\n\
         podInitialBackoffSeconds: {}\npodMaxBackoffSeconds: {}\nprofiles:\n- schedulerName: {scheduler}\n  plugins:\n    \
         multiPoint:\n      enabled:\n      - name: {PLUGIN}\n  pluginConfig:\n  - name: {PLUGIN}\n    args:\n      \
         apiVersion: {API_VERSION}\n      kind: NodeResourceTopologyMatchArgs\n",
        check::INITIAL_BACKOFF,
        check::MAX_BACKOFF,
    );
    if caches {
        let informer = check::informer_mode(config.fingerprint.informer_mode);
        let _ = write!(
            text,
            "      cacheResyncPeriodSeconds: {}\n      cache:\n        foreignPodsDetect: All\n        \
             resyncMethod: Autodetect\n        informerMode: {informer}\n",
            resync_period(config),
        );
    } else {
        text.push_str("      discardReservedNodes: true\n");
    }
    text.push_str("      scoringStrategy:\n        type: LeastAllocated\n");
    Ok(text)
}

/// What a scheduler's profile has of the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `schedulerName` of the pods that it places.
    pub name: String,
    /// Whether it uses the plugin.
    pub has_plugin: bool,
    /// Whether the plugin has its overreserving cache, which ignores objects that are created later.
    pub over_reserves: bool,
}

/// Returns the profiles of a KubeSchedulerConfiguration.
///
/// # Errors
/// If the text is no KubeSchedulerConfiguration.
pub fn profiles(text: &str) -> Result<Vec<Profile>, SchedulerConfigError> {
    Ok(file::File::parse(text)?.summaries())
}

/// Returns true if the plugin shall have its overreserving cache.
fn caches(consumer: Consumer) -> Result<bool, SchedulerConfigError> {
    match consumer {
        Consumer::SchedulerPlugins => Ok(true),
        Consumer::SchedulerPluginsDirect => Ok(false),
        Consumer::Kai => Err(SchedulerConfigError::OtherConsumer("kai")),
        Consumer::KaiDirect => Err(SchedulerConfigError::OtherConsumer("kaiDirect")),
        Consumer::None => Err(SchedulerConfigError::OtherConsumer("none")),
    }
}

/// Returns the resync period in seconds: that of `controller.nudge`, or the one with which pods wait least.
fn resync_period(config: &Config) -> u64 {
    match config.controller.nudge {
        crate::config::Nudge::Every(period) => period.get().as_secs().max(1),
        crate::config::Nudge::Auto | crate::config::Nudge::Off => 1,
    }
}

#[cfg(test)]
mod tests;
