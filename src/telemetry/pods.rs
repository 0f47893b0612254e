//! Metrics of the pod sources.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::metrics::docs::{POD_SOURCE, POD_SOURCE_ERRORS};
use super::metrics::{Counts, Label, register};
use crate::pod_source::Tally;

/// Counters of the pod sources. Clones share the same counters.
#[derive(Clone, Debug, Default)]
pub struct PodSourceCounts {
    up: Family<Label<&'static str>, Gauge>,
    errors: Counts,
}

impl PodSourceCounts {
    pub(super) fn register(&self, registry: &mut Registry) {
        register(registry, &POD_SOURCE, self.up.clone());
        register(registry, &POD_SOURCE_ERRORS, self.errors.clone());
    }
}

impl Tally for PodSourceCounts {
    fn told(&self, source: &'static str, up: bool) {
        if self.up.get(&[("source", source)]).is_none() {
            // Only one source is in use at a time.
            self.up.clear();
        }
        self.up.get_or_create(&[("source", source)]).set(i64::from(up));
    }

    fn untold(&self, source: &'static str) {
        self.errors.get_or_create(&[("source", source)]).inc();
    }
}
