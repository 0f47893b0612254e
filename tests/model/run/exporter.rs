//! The exporters, which publish the object.

use std::time::Duration;

use numacast::scheduler::{FingerprintView, GateSettings, Informer};

use super::chance::{MS, S, Time};
use super::cluster::NodeId;
use super::ours::{Flaw, Ours};
use super::peers::{Nfd, Rte};
use super::plugin;
use super::world::{Signal, World};

/// An exporter.
pub(crate) trait Exporter {
    /// Handles a signal.
    fn hear(&mut self, world: &mut World, signal: Signal);
}

/// No exporter.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Exporter for Nobody {
    fn hear(&mut self, _: &mut World, _: Signal) {}
}

/// The kinds of exporters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Who {
    /// Neither an exporter nor the plugin.
    Nobody,
    /// NFD's topology updater.
    Nfd,
    /// RTE with one scan per second.
    Rte,
    /// numacast with the kubelet's view.
    KubeletView,
    /// numacast with the scheduler's view. `patience`: how long a bound pod may be unaccounted for; `join`:
    /// how long a write that only makes the fingerprint agree waits for the next change.
    Ours { patience: Time, join: Time },
    /// numacast for plugins that read the object directly, with or without reservations.
    Direct { reserves: bool },
    /// numacast with the scheduler's view and a deliberate bug.
    Broken(Flaw),
}

/// How long a restarted kubelet is not trusted about pods that it does not list.
pub(crate) const SETTLE: Time = 20 * S;
/// numacast's own defaults.
pub(crate) const PATIENCE: Time = 50 * MS;
pub(crate) const JOIN: Time = 50 * MS;

impl Who {
    /// numacast with its defaults.
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

    /// Creates an exporter for each node, configured for this informer of the plugin.
    pub(crate) fn exporters(self, informer: plugin::Informer, nodes: usize) -> Vec<Box<dyn Exporter>> {
        (0..nodes).map(|node| self.exporter(informer, node)).collect()
    }

    fn exporter(self, informer: plugin::Informer, node: NodeId) -> Box<dyn Exporter> {
        let settings = |view, patience| GateSettings {
            view,
            informer: match informer {
                plugin::Informer::Dedicated => Informer::Dedicated,
                plugin::Informer::Shared => Informer::Shared,
            },
            withhold_after: Duration::from_micros(patience),
            ..GateSettings::default()
        };
        let ours = |view, patience, join, flaw| Box::new(Ours::new(node, settings(view, patience), join, flaw));
        match self {
            Self::Nobody => Box::new(Nobody),
            Self::Nfd => Box::new(Nfd::new(node, 2)),
            Self::Rte => Box::new(Rte::new(node, S)),
            Self::KubeletView => ours(FingerprintView::Kubelet, PATIENCE, 0, Flaw::None),
            Self::Ours { patience, join } => ours(FingerprintView::Scheduler, patience, join, Flaw::None),
            Self::Direct { reserves } => {
                let settings = settings(FingerprintView::None, PATIENCE);
                let settings = GateSettings { reserve: reserves, ..settings };
                Box::new(Ours::new(node, settings, 0, Flaw::None))
            }
            Self::Broken(flaw) => ours(FingerprintView::Scheduler, PATIENCE, 0, flaw),
        }
    }
}
