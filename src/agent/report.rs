//! Reports what the agent does: log, Events, metrics and the status file.

mod change_log;
mod events;
mod status_file;

use std::sync::Arc;

use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::agent::metrics::Metrics;
use crate::agent::observe::Scan;
use crate::agent::settings::Settings;
use crate::pod::PodName;
use crate::scheduler::{Decision, Publishable, Reservation, Verdict, WithholdReason, totals};

pub(super) use events::{EventRecorder, Reason};
pub(super) use status_file::replace;

use change_log::ChangeLog;
use status_file::StatusFile;

#[derive(Debug)]
pub(super) struct Reporter {
    node: String,
    metrics: Arc<Metrics>,
    events: EventRecorder,
    /// The last error of a scan, until one is accepted.
    pub(super) scan_error: watch::Sender<Option<String>>,
    status_file: Option<StatusFile>,
    changes: ChangeLog,
    reservations: Vec<Reservation>,
    /// The pods that the last state did not account for.
    unaccounted: Vec<PodName>,
}

impl Reporter {
    pub(super) fn new(settings: &Settings, metrics: Arc<Metrics>, events: EventRecorder) -> Self {
        Self {
            node: settings.node.clone(),
            metrics,
            events,
            scan_error: watch::Sender::new(None),
            status_file: settings.status_file.clone().map(StatusFile::start),
            changes: ChangeLog::default(),
            reservations: Vec::new(),
            unaccounted: Vec::new(),
        }
    }

    pub(super) fn report(&self, notes: &[String], warnings: &[String], events: Vec<(Reason, String)>) {
        for note in notes {
            info!("{note}");
        }
        for warning in warnings {
            warn!("{warning}");
        }
        for (reason, note) in events {
            self.events.post(reason, note);
        }
    }

    /// Reports the newest state, computed from `scan`. `covered_pods` returns those of the fingerprint.
    pub(super) fn publish(
        &mut self,
        publishable: &Publishable,
        verdict: &Verdict,
        is_new: bool,
        scan: &Scan,
        covered_pods: impl FnOnce() -> Vec<PodName>,
    ) {
        if is_new || self.unaccounted != verdict.unaccounted {
            match verdict.decision {
                Decision::Withhold(WithholdReason::PodsUnknown) => {
                    debug!("the fingerprint is withheld: the node's pods are unknown");
                }
                Decision::Withhold(WithholdReason::UnaccountedPods) => {
                    debug!("the fingerprint is withheld for {:?}", verdict.unaccounted);
                }
                Decision::Publish | Decision::Wait => {}
            }
            if let (Some(file), Some(fingerprint)) = (&self.status_file, verdict.fingerprint) {
                file.write(&self.node, fingerprint, covered_pods(), verdict);
            }
            self.unaccounted.clone_from(&verdict.unaccounted);
        }
        self.set_reservations(&verdict.reservations);
        if is_new {
            for line in self.changes.record(publishable, &scan.usage, &scan.inventory.machine) {
                info!("{line}");
            }
            self.metrics.changed(publishable);
        }
    }

    fn set_reservations(&mut self, reservations: &[Reservation]) {
        if reservations == self.reservations {
            return;
        }
        let is_known = |pod: &PodName| self.reservations.iter().any(|before| before.pod == *pod);
        for reservation in reservations.iter().filter(|reservation| !is_known(&reservation.pod)) {
            info!("reserved for the pod {reservation}");
        }
        self.metrics.reserved(&totals(reservations));
        self.reservations = reservations.to_vec();
    }
}
