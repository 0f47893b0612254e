//! The pods of one node that have ended, from a watch that sends nothing else.

use std::collections::BTreeSet;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, ResourceExt};

use super::{Cluster, chain};

/// Namespace and name of pods.
pub type PodNames = BTreeSet<(String, String)>;

impl Cluster {
    /// Follows the pods of `node` that are `Succeeded` or `Failed`: the whole set after each change. An error is one
    /// sentence, and the watch goes on after a back-off.
    pub fn ended_pods(&self, node: &str) -> impl Stream<Item = Result<PodNames, String>> + Send + 'static {
        // A phase is one of five; those that are left say that all containers have ended for good.
        let selector =
            format!("spec.nodeName={node},status.phase!=Pending,status.phase!=Running,status.phase!=Unknown");
        let pods: Api<PartialObjectMeta<Pod>> = Api::all(self.client.clone());
        let events = watcher(pods, Config::default().fields(&selector)).default_backoff();
        let mut ended = Ended::default();
        events.filter_map(move |event| {
            let news = match event {
                Ok(event) => ended.take(event).map(Ok),
                Err(error) => Some(Err(format!("cannot watch the node's ended pods: {}", chain(&error)))),
            };
            std::future::ready(news)
        })
    }
}

/// The set, and the one that is being listed anew.
#[derive(Debug, Default)]
struct Ended {
    now: PodNames,
    listed: PodNames,
}

impl Ended {
    /// Takes an event in; the set, if it may be another now.
    fn take(&mut self, event: Event<PartialObjectMeta<Pod>>) -> Option<PodNames> {
        let name = |pod: &PartialObjectMeta<Pod>| (pod.namespace().unwrap_or_default(), pod.name_any());
        match event {
            Event::Init => self.listed = PodNames::new(),
            Event::InitApply(pod) => drop(self.listed.insert(name(&pod))),
            Event::InitDone => self.now = std::mem::take(&mut self.listed),
            Event::Apply(pod) => drop(self.now.insert(name(&pod))),
            Event::Delete(pod) => drop(self.now.remove(&name(&pod))),
        }
        // While the list is coming in, the old set holds.
        self.listed.is_empty().then(|| self.now.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(set: &PodNames) -> Vec<&str> {
        set.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn a_new_list_replaces_the_set_when_it_is_complete() {
        let pod = |name: &str| PartialObjectMeta::<Pod> {
            metadata: kube::api::ObjectMeta { name: Some(name.into()), ..Default::default() },
            ..Default::default()
        };
        let mut ended = Ended::default();
        let mut take = |event| ended.take(event).map(|set| names(&set).join(","));
        assert_eq!(take(Event::Apply(pod("a"))), Some("a".into()));
        assert_eq!(take(Event::Apply(pod("b"))), Some("a,b".into()));
        assert_eq!(take(Event::Delete(pod("a"))), Some("b".into()));
        assert_eq!(take(Event::Init), Some("b".into()), "the old set holds");
        assert_eq!(take(Event::InitApply(pod("c"))), None);
        assert_eq!(take(Event::InitDone), Some("c".into()), "b is gone");
        take(Event::Init);
        assert_eq!(take(Event::InitDone), Some(String::new()));
    }
}
