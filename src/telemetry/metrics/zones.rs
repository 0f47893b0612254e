//! Gauges of the zones of the last topology. Encoded only on a scrape; series of removed zones disappear.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::docs::{ALLOCATABLE, AVAILABLE, CAPACITY, Doc};
use crate::nrt::zone_name;
use crate::topology::{Amounts, Zone};

/// Maximum number of resources per zone (of at most 64 zones); the rest is omitted. A node has about ten.
const MOST_RESOURCES: usize = 128;
/// Maximum length of a resource name: a DNS name, a slash and 63 characters.
const RESOURCE_NAME: usize = 317;

/// The current zones, shared with the agent's loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Zones(Arc<Mutex<Vec<Zone>>>);

impl Zones {
    pub(super) fn set(&self, zones: &[Zone]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = zones.to_vec();
    }
}

/// Returns the resources to expose, native ones first, so that excess devices are what is omitted.
fn shown(zone: &Zone) -> impl Iterator<Item = (&String, &Amounts)> {
    let native = zone.resources.iter().filter(|(name, _)| !name.contains('/'));
    let devices = zone.resources.iter().filter(|(name, _)| name.contains('/'));
    native.chain(devices).take(MOST_RESOURCES)
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    doc: &Doc,
    zones: &[Zone],
    amount: impl Fn(&Amounts) -> u64,
) -> fmt::Result {
    let help = format!("{}.", doc.help);
    let mut family = encoder.encode_descriptor(doc.family(), &help, None, MetricType::Gauge)?;
    for zone in zones {
        let name = zone_name(zone.id);
        for (resource, amounts) in shown(zone) {
            let resource: String = resource.chars().take(RESOURCE_NAME).collect();
            let labels = [("zone", name.clone()), ("resource", resource)];
            family.encode_family(&labels)?.encode_gauge(&amount(amounts))?;
        }
    }
    Ok(())
}

impl Collector for Zones {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let zones = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        encode(&mut encoder, &CAPACITY, &zones, |amounts| amounts.capacity)?;
        encode(&mut encoder, &ALLOCATABLE, &zones, |amounts| amounts.allocatable)?;
        encode(&mut encoder, &AVAILABLE, &zones, |amounts| amounts.available)
    }
}
