//! The controller's part of the configuration.

use std::time::Duration;

use super::garbage::Rules;
use super::nudge::Plan;
use crate::config::{ApiVersion, Config, Nudge, SchedulerPods};
use crate::nrt::{Form, Version};

/// Minimum interval between passes over all objects.
const SHORTEST: Duration = Duration::from_secs(1);

/// The controller's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This replica's identity, for the Lease and in Events.
    pub identity: String,
    /// The namespace of the DaemonSet and the Lease.
    pub namespace: String,
    /// The agents' DaemonSet; without it, silent agents are not detected.
    pub daemon_set: Option<String>,
    /// The Lease for leader election; without it, every replica leads.
    pub lease: Option<String>,
    /// Delete nothing.
    pub dry_run: bool,
    /// When objects may be deleted.
    pub garbage: Rules,
    /// How long an agent may be silent before it is reported.
    pub silent_after: Duration,
    /// Interval of the sums over all objects.
    pub fleet_interval: Duration,
    /// When to nudge while pods are pending because of the scheduler plugin; never if `None`.
    pub nudge: Option<Plan>,
    /// The scheduler's pods. If set, objects created after they started are reported.
    pub scheduler: Option<SchedulerPods>,
    /// The API version in which objects are read.
    pub form: Form,
    /// Whether to post Kubernetes Events.
    pub events: bool,
}

/// The namespace is unknown.
#[derive(Debug, thiserror::Error)]
#[error(
    "the namespace of the agents' DaemonSet and of the Lease is not known: set POD_NAMESPACE (in a pod, from \
     metadata.namespace), `controller.namespace` or --namespace"
)]
pub struct NoNamespace;

impl Settings {
    /// Returns the controller's part of a configuration; `pod` is the name of its own pod, if any.
    ///
    /// # Errors
    /// If the DaemonSet or the Lease is set, but not the namespace.
    pub fn from_config(config: &Config, pod: Option<&str>) -> Result<Self, NoNamespace> {
        let given = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        let controller = &config.controller;
        let (daemon_set, lease) = (given(&controller.daemon_set), given(&controller.lease));
        if controller.namespace.is_empty() && (daemon_set.is_some() || lease.is_some()) {
            return Err(NoNamespace);
        }
        let version = match config.publish.api_version {
            ApiVersion::V1alpha1 => Version::V1alpha1,
            ApiVersion::V1alpha2 => Version::V1alpha2,
        };
        Ok(Self {
            // A restarted pod gets a new identity: its predecessor may still be running.
            identity: format!("{}_{:016x}", pod.unwrap_or("numacast"), fastrand::u64(..)),
            namespace: controller.namespace.clone(),
            daemon_set,
            lease,
            dry_run: controller.dry_run,
            garbage: Rules {
                interval: controller.garbage.interval.get().max(SHORTEST),
                grace: controller.garbage.grace.get(),
                most: controller.garbage.most.get(),
            },
            silent_after: controller.silent.after.get(),
            fleet_interval: controller.fleet.interval.get().max(SHORTEST),
            nudge: match controller.nudge {
                _ if controller.dry_run => None,
                Nudge::Auto => Some(Plan::default()),
                Nudge::Every(period) => Some(Plan::of_period(period.get())),
                Nudge::Off => None,
            },
            scheduler: controller.scheduler.clone(),
            form: Form { version, policies: false },
            events: config.publish.events,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nudges_follow_the_configuration_and_a_dry_run_has_none() {
        let plan = |nudge: &str, dry_run: bool| {
            let mut config = Config::default();
            config.controller.namespace = "numacast".to_owned();
            config.controller.nudge = nudge.parse().unwrap();
            config.controller.dry_run = dry_run;
            Settings::from_config(&config, None).unwrap().nudge
        };
        assert_eq!(plan("auto", false), Some(Plan::default()));
        assert_eq!(plan("5s", false), Some(Plan::of_period(Duration::from_secs(5))));
        assert_eq!(plan("off", false), None);
        assert_eq!(plan("auto", true), None);
    }

    #[test]
    fn passes_over_all_objects_keep_their_distance() {
        let mut config = Config::default();
        config.controller.namespace = "numacast".to_owned();
        config.controller.garbage.interval = "1ms".parse().unwrap();
        config.controller.fleet.interval = "1ms".parse().unwrap();
        let settings = Settings::from_config(&config, None).unwrap();
        assert_eq!((settings.garbage.interval, settings.fleet_interval), (SHORTEST, SHORTEST));
    }
}
