//! Who publishes the object.

use std::time::Duration;

use numacast::scheduler::{Informer, Terms, View};

use super::chance::{MS, S, Time};
use super::cluster::NodeId;
use super::ours::{Flaw, Ours};
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
    KubeletView,
    /// numacast in the scheduler's view: how long a bound pod may be unaccounted, and how long what says nothing but
    /// that the pods agree waits for what follows.
    Ours { patience: Time, join: Time },
    /// numacast for those who read the object directly, with reservations or without.
    Direct { reserves: bool },
    /// numacast in the scheduler's view with something wrong.
    Broken(Flaw),
}

/// numacast's own.
pub(crate) const PATIENCE: Time = 50 * MS;
pub(crate) const JOIN: Time = 50 * MS;

impl Who {
    /// numacast as it comes.
    pub(crate) const USUAL: Self = Self::Ours { patience: PATIENCE, join: JOIN };

    pub(crate) fn name(self) -> String {
        match self {
            Self::Nobody => "none, no plugin".into(),
            Self::Nfd => "NFD's updater".into(),
            Self::Rte => "RTE, 1 s".into(),
            Self::KubeletView => "numacast, kubelet's view".into(),
            Self::Ours { .. } => "numacast".into(),
            Self::Direct { reserves: true } => "numacast, reservations".into(),
            Self::Direct { reserves: false } => "numacast, no reservations".into(),
            Self::Broken(flaw) => format!("broken: {}", flaw.name()),
        }
    }

    /// One for each node, set up for this informer of the plugin.
    pub(crate) fn exporters(self, informer: plugin::Informer, nodes: usize) -> Vec<Box<dyn Exporter>> {
        (0..nodes).map(|node| self.exporter(informer, node)).collect()
    }

    fn exporter(self, informer: plugin::Informer, node: NodeId) -> Box<dyn Exporter> {
        let terms = |view, patience| Terms {
            view,
            informer: match informer {
                plugin::Informer::Dedicated => Informer::Dedicated,
                plugin::Informer::Shared => Informer::Shared,
            },
            patience: Duration::from_micros(patience),
            ..Terms::default()
        };
        let ours = |view, patience, join, flaw| Box::new(Ours::new(node, terms(view, patience), join, flaw));
        match self {
            Self::Nobody => Box::new(Nobody),
            Self::Nfd => Box::new(Nfd::new(node, 2)),
            Self::Rte => Box::new(Rte::new(node, S)),
            Self::KubeletView => ours(View::Kubelet, PATIENCE, 0, Flaw::None),
            Self::Ours { patience, join } => ours(View::Scheduler, patience, join, Flaw::None),
            Self::Direct { reserves } => {
                let terms = Terms { reserve: reserves, ..terms(View::None, PATIENCE) };
                Box::new(Ours::new(node, terms, 0, Flaw::None))
            }
            Self::Broken(flaw) => ours(View::Scheduler, PATIENCE, 0, flaw),
        }
    }
}
