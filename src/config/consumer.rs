//! The consumer of the object, and the keys derived from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Config, FingerprintView, PodSource};

/// Who reads the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Consumer {
    /// The plugin `NodeResourceTopologyMatch` of scheduler-plugins.
    #[default]
    SchedulerPlugins,
    /// KAI-Scheduler.
    Kai,
    /// No scheduler.
    None,
}

/// How the plugin of scheduler-plugins reads the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Cache {
    /// At the ticks of its overreserving cache.
    #[default]
    OverReserve,
    /// For each pod that it places: its caches `DiscardReserved` and `Passthrough`.
    Direct,
}

impl Config {
    /// Fills in the keys derived from `consumer` and `cache` where they are not set.
    pub(super) fn follow_consumer(&mut self) {
        if self.consumer == Consumer::SchedulerPlugins {
            self.cache.get_or_insert_default();
        }
        let over_reserves = self.cache == Some(Cache::OverReserve);
        let reads_directly = self.cache == Some(Cache::Direct) || self.consumer == Consumer::Kai;
        let view = if over_reserves { FingerprintView::Scheduler } else { FingerprintView::None };
        self.fingerprint.view.get_or_insert(view);
        self.publish.placement.get_or_insert(over_reserves);
        let source = *self.pods.source.get_or_insert(PodSource::ApiServer);
        self.publish.reserve.get_or_insert(reads_directly && source.may_be_api_server());
    }

    /// Returns true if the object needs information about pods that only the API server has.
    #[must_use]
    pub fn needs_api_server_for_pods(&self) -> bool {
        self.fingerprint.view == Some(FingerprintView::Scheduler) || self.publish.reserve == Some(true)
    }

    /// Returns conflicts with the consumer in a resolved configuration: the key to report, and the reason.
    pub(super) fn conflicts_of_consumer(&self) -> Vec<(&'static str, &'static str)> {
        let mut conflicts = Vec::new();
        if self.cache.is_some() && self.consumer != Consumer::SchedulerPlugins {
            let cache = "only the plugin of scheduler-plugins has caches to choose from: leave it out, or set \
                         `consumer: schedulerPlugins`";
            conflicts.push(("cache", cache));
        }
        if self.pods.source.is_some_and(PodSource::may_be_api_server) {
            return conflicts;
        }
        if self.fingerprint.view == Some(FingerprintView::Scheduler) {
            let view = "the scheduler's view of pods needs the API server: set `pods.source: apiServer`, or `fingerprint.view` \
                        to kubelet or none";
            conflicts.push(("pods.source", view));
        }
        if self.publish.reserve == Some(true) {
            let reserve = "only the API server tells of a pod as soon as it is bound: set `pods.source: apiServer`, or \
                           `publish.reserve: false`";
            conflicts.push(("publish.reserve", reserve));
        }
        conflicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Resolved = (Option<FingerprintView>, Option<PodSource>, Option<bool>, Option<bool>);

    fn resolved(change: impl FnOnce(&mut Config)) -> Resolved {
        let mut config = Config::default();
        change(&mut config);
        let Config { fingerprint, pods, publish, .. } = config.resolved();
        (fingerprint.view, pods.source, publish.placement, publish.reserve)
    }

    #[test]
    fn keys_follow_from_who_reads_the_object() {
        use FingerprintView::{None as NoView, Scheduler};
        let follow = |view, placement, reserve| {
            (Some(view), Some(PodSource::ApiServer), Some(placement), Some(reserve))
        };
        assert_eq!(resolved(|_| {}), follow(Scheduler, true, false));
        assert_eq!(resolved(|c| c.cache = Some(Cache::OverReserve)), follow(Scheduler, true, false));
        assert_eq!(resolved(|c| c.cache = Some(Cache::Direct)), follow(NoView, false, true));
        assert_eq!(resolved(|c| c.consumer = Consumer::Kai), follow(NoView, false, true));
        assert_eq!(resolved(|c| c.consumer = Consumer::None), follow(NoView, false, false));
    }

    #[test]
    fn a_key_that_is_set_wins() {
        let set = resolved(|c| {
            c.consumer = Consumer::Kai;
            c.fingerprint.view = Some(FingerprintView::Kubelet);
            c.publish.placement = Some(true);
            c.pods.source = Some(PodSource::PodsApi);
        });
        let kubelet = Some(FingerprintView::Kubelet);
        // Without a source that reports bindings nothing is reserved.
        assert_eq!(set, (kubelet, Some(PodSource::PodsApi), Some(true), Some(false)));
        assert_eq!(resolved(|c| c.publish.reserve = Some(true)).3, Some(true));
    }

    #[test]
    fn what_contradicts_the_choice_is_named() {
        let keys = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            let conflicts = config.resolved().conflicts_of_consumer();
            conflicts.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert!(keys(|c| c.cache = Some(Cache::Direct)).is_empty());
        let cache_of_kai = |c: &mut Config| (c.consumer, c.cache) = (Consumer::Kai, Some(Cache::Direct));
        assert_eq!(keys(cache_of_kai), ["cache"]);
        assert_eq!(keys(|c| c.pods.source = Some(PodSource::None)), ["pods.source"]);
        let nobody = |c: &mut Config| (c.consumer, c.pods.source) = (Consumer::Kai, Some(PodSource::None));
        assert!(keys(nobody).is_empty());
        let reserve = |c: &mut Config| {
            (c.consumer, c.pods.source) = (Consumer::None, Some(PodSource::Kubelet));
            c.publish.reserve = Some(true);
        };
        assert_eq!(keys(reserve), ["publish.reserve"]);
        assert!(keys(|c| c.publish.reserve = Some(true)).is_empty(), "both contracts at once");
    }
}
