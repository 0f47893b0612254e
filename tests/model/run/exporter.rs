//! The exporters, which publish the object.

use std::time::Duration;

use numacast::scheduler::{FingerprintView, GateSettings, Informer};

use super::agent::Agent;
use super::bug::Bug;
use super::cluster::NodeId;
use super::peers::{Nfd, Rte};
use super::plugin;
use super::simulation::{ExporterInput, Simulation};
use super::time::{MS, S, Time};

/// An exporter.
pub(crate) trait Exporter {
    fn handle(&mut self, sim: &mut Simulation, input: ExporterInput);
}

/// No exporter.
#[derive(Debug)]
pub(crate) struct NoExporter;

impl Exporter for NoExporter {
    fn handle(&mut self, _: &mut Simulation, _: ExporterInput) {}
}

/// The kinds of exporters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ExporterKind {
    /// Neither an exporter nor the plugin.
    None,
    /// NFD's topology updater.
    Nfd,
    /// RTE with one scan per second.
    Rte,
    /// numacast with the kubelet's view.
    KubeletView,
    /// numacast with the scheduler's view. `withhold_after`: how long a bound pod may be unaccounted for;
    /// `write_delay`: how long a write that only makes the fingerprint match waits for the next change.
    Numacast { withhold_after: Time, write_delay: Time },
    /// numacast for plugins that read the object directly, with or without reservations.
    Direct { reserves: bool },
    /// numacast with the scheduler's view and a deliberate bug.
    WithBug(Bug),
}

/// How long a restarted kubelet is not trusted about pods that it does not list.
pub(crate) const SETTLE: Time = 20 * S;
/// numacast's own defaults.
pub(crate) const WITHHOLD_AFTER: Time = 50 * MS;
pub(crate) const WRITE_DELAY: Time = 50 * MS;

impl ExporterKind {
    /// numacast with its defaults.
    pub(crate) const DEFAULT: Self =
        Self::Numacast { withhold_after: WITHHOLD_AFTER, write_delay: WRITE_DELAY };

    pub(crate) fn name(self) -> String {
        match self {
            Self::None => "none, no plugin".into(),
            Self::Nfd => "NFD's updater".into(),
            Self::Rte => "RTE, 1 s".into(),
            Self::KubeletView => "numacast, kubelet's view".into(),
            Self::Numacast { .. } => "numacast".into(),
            Self::Direct { reserves: true } => "numacast, reservations".into(),
            Self::Direct { reserves: false } => "numacast, no reservations".into(),
            Self::WithBug(bug) => format!("broken: {}", bug.name()),
        }
    }

    /// Creates an exporter for each node, configured for this informer of the plugin.
    pub(crate) fn create(self, informer: plugin::Informer, nodes: usize) -> Vec<Box<dyn Exporter>> {
        (0..nodes).map(|node| self.create_for(informer, node)).collect()
    }

    fn create_for(self, informer: plugin::Informer, node: NodeId) -> Box<dyn Exporter> {
        let settings = |view, withhold_after| GateSettings {
            view,
            informer: match informer {
                plugin::Informer::Dedicated => Informer::Dedicated,
                plugin::Informer::Shared => Informer::Shared,
            },
            withhold_after: Duration::from_micros(withhold_after),
            ..GateSettings::default()
        };
        let agent = |view, withhold_after, write_delay, bug| {
            Box::new(Agent::new(node, settings(view, withhold_after), write_delay, bug))
        };
        match self {
            Self::None => Box::new(NoExporter),
            Self::Nfd => Box::new(Nfd::new(node, 2)),
            Self::Rte => Box::new(Rte::new(node, S)),
            Self::KubeletView => agent(FingerprintView::Kubelet, WITHHOLD_AFTER, 0, Bug::None),
            Self::Numacast { withhold_after, write_delay } => {
                agent(FingerprintView::Scheduler, withhold_after, write_delay, Bug::None)
            }
            Self::Direct { reserves } => {
                let settings = settings(FingerprintView::None, WITHHOLD_AFTER);
                let settings = GateSettings { reserve: reserves, ..settings };
                Box::new(Agent::new(node, settings, 0, Bug::None))
            }
            Self::WithBug(bug) => agent(FingerprintView::Scheduler, WITHHOLD_AFTER, 0, bug),
        }
    }
}
