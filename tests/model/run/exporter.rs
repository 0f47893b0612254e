//! Who publishes the object.

use std::time::Duration;

use numacast::controller::Plan;
use numacast::scheduler::{Informer, Terms, View};

use super::chance::{MS, S, Time};
use super::ours::{Flaw, Nudges, Ours};
use super::peers::{Nfd, Rte};
use super::plugin;
use super::world::{Signal, World};

/// One kind of exporter.
pub(crate) trait Exporter {
    /// Something happened that it hears of.
    fn hear(&mut self, world: &mut World, signal: Signal);
}

/// None at all.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Exporter for Nobody {
    fn hear(&mut self, _: &mut World, _: Signal) {}
}

/// The exporters there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Who {
    /// There is neither an exporter nor the plugin.
    Nobody,
    /// NFD's topology updater.
    Nfd,
    /// RTE, a scan per second.
    Rte,
    /// numacast in the kubelet's view.
    KubeletView(Nudges),
    /// numacast in the scheduler's view, with this patience.
    Ours(Nudges, Time),
    /// The same with something wrong.
    Broken(Flaw),
}

/// numacast without nudges.
pub(crate) const QUIET: Nudges = Nudges::Plan(None);

/// numacast as it comes.
pub(crate) fn usual() -> Nudges {
    Nudges::Plan(Some(Plan::default()))
}

/// Its patience.
pub(crate) const PATIENCE: Time = 20 * MS;

impl Who {
    pub(crate) fn name(self) -> String {
        let nudges = |nudges| match nudges {
            Nudges::Plan(None) => "no nudge".to_owned(),
            Nudges::Plan(Some(_)) => "nudges".to_owned(),
            Nudges::Each(each, _) => format!("a nudge each {:.1} s", super::chance::seconds(each)),
        };
        match self {
            Self::Nobody => "none, no plugin".into(),
            Self::Nfd => "NFD's updater".into(),
            Self::Rte => "RTE, 1 s".into(),
            Self::KubeletView(how) => format!("numacast, kubelet's view, {}", nudges(how)),
            Self::Ours(how, _) => format!("numacast, {}", nudges(how)),
            Self::Broken(flaw) => format!("broken: {}", flaw.name()),
        }
    }

    /// A new one, set up for this informer of the plugin.
    pub(crate) fn exporter(self, informer: plugin::Informer) -> Box<dyn Exporter> {
        let terms = |view, patience| Terms {
            view,
            informer: match informer {
                plugin::Informer::Dedicated => Informer::Dedicated,
                plugin::Informer::Shared => Informer::Shared,
            },
            patience: Duration::from_micros(patience),
            ..Terms::default()
        };
        let scheduler = View::Scheduler;
        match self {
            Self::Nobody => Box::new(Nobody),
            Self::Nfd => Box::new(Nfd::new(2)),
            Self::Rte => Box::new(Rte::new(S)),
            Self::KubeletView(how) => Box::new(Ours::new(terms(View::Kubelet, PATIENCE), how, Flaw::None)),
            Self::Ours(how, patience) => Box::new(Ours::new(terms(scheduler, patience), how, Flaw::None)),
            Self::Broken(flaw) => Box::new(Ours::new(terms(scheduler, PATIENCE), usual(), flaw)),
        }
    }
}
