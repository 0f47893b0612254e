//! Reservations: what pods are, or will be, allocated without the List showing it, subtracted from the zones.
//! There are two kinds:
//!
//! - For a consumer that reads the object for each pod it places, what the kubelet will allocate to bound pods
//!   and does not list yet: it would otherwise place a second pod where the first is about to be admitted. The
//!   zone that the kubelet will choose is not known in advance, so the full amount is subtracted from every zone.
//! - Always, for other pods, what their regular init containers keep (`NodeContext::leftover`), often in a
//!   single zone.

use std::collections::BTreeMap;
use std::fmt;

use super::lists;
use crate::machine::IdSet;
use crate::pod::PodName;
use crate::topology::{NodeExclusions, Zone};

/// What one pod is, or will be, allocated without the List showing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Namespace and name of the pod.
    pub pod: PodName,
    /// CPUs, bytes or devices by resource name; no zeros.
    pub amounts: BTreeMap<String, u64>,
    /// The zones it is subtracted from; `None` means every zone.
    pub zones: Option<IdSet>,
}

/// `ns/a: cpu 2, memory 1073741824 in every zone`.
impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = &self.pod;
        write!(f, "{namespace}/{name}: ")?;
        for (number, (resource, amount)) in self.amounts.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{resource} {amount}")?;
        }
        match &self.zones {
            Some(zones) => write!(f, " in zone {zones}"),
            None => f.write_str(" in every zone"),
        }
    }
}

/// Returns the part of `reservations` to subtract from the zones: resources that the zones list, without pods
/// excluded from the accounting.
pub(super) fn allowed(
    reservations: &[Reservation],
    exclude: &NodeExclusions,
    zones: &[Zone],
) -> Vec<Reservation> {
    let counted = reservations.iter().filter(|of| !exclude.pod(&of.pod.0, &of.pod.1));
    let listed = counted.map(|Reservation { pod, amounts, zones: of }| {
        let amounts = amounts.iter().filter(|(name, _)| lists(zones, name));
        let amounts = amounts.map(|(name, amount)| (name.clone(), *amount)).collect();
        Reservation { pod: pod.clone(), amounts, zones: of.clone() }
    });
    listed.filter(|of| !of.amounts.is_empty()).collect()
}

/// Returns the reserved totals by resource name.
#[must_use]
pub fn totals(reservations: &[Reservation]) -> BTreeMap<&str, u64> {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, amount) in reservations.iter().flat_map(|reservation| &reservation.amounts) {
        let total = totals.entry(name).or_default();
        *total = total.saturating_add(*amount);
    }
    totals
}

/// Subtracts the reservations from what is available in their zones, down to zero. Capacity and allocatable
/// stay.
pub(super) fn subtract(zones: &mut [Zone], reservations: &[Reservation]) {
    for reservation in reservations {
        let is_concerned = |zone: &Zone| reservation.zones.as_ref().is_none_or(|of| of.contains(zone.id));
        for zone in zones.iter_mut().filter(|zone| is_concerned(zone)) {
            for (name, amount) in &reservation.amounts {
                if let Some(amounts) = zone.resources.get_mut(name) {
                    amounts.available = amounts.available.saturating_sub(*amount);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::topology::Amounts;
    use crate::util::glob::PodPattern;

    const NAMES: [&str; 3] = ["cpu", "memory", "example.com/nic"];

    fn amount() -> impl Strategy<Value = u64> {
        prop_oneof![0..100_u64, Just(u64::MAX)]
    }

    fn zone() -> impl Strategy<Value = Zone> {
        let amounts = vec(amount(), NAMES.len());
        (amounts, 0..=NAMES.len()).prop_map(|(amounts, listed)| {
            let of = |available| Amounts { capacity: u64::MAX, allocatable: available, available };
            let all = NAMES.iter().zip(amounts).take(listed);
            Zone { resources: all.map(|(name, n)| ((*name).to_owned(), of(n))).collect(), ..Zone::default() }
        })
    }

    fn reservation() -> impl Strategy<Value = Reservation> {
        let amounts = btree_map(prop::sample::select(NAMES.map(str::to_owned).to_vec()), amount(), 0..3);
        let zones = prop::option::of(vec(0..5_u16, 0..3));
        (amounts, zones).prop_map(|(amounts, zones)| Reservation {
            pod: ("ns".into(), "a".into()),
            amounts,
            zones: zones.map(|zones| zones.into_iter().collect()),
        })
    }

    /// Generates zones with the IDs 0, 1 and so on.
    fn zones() -> impl Strategy<Value = Vec<Zone>> {
        vec(zone(), 0..5).prop_map(|mut zones| {
            (0..).zip(&mut zones).for_each(|(id, zone)| zone.id = id);
            zones
        })
    }

    #[test]
    fn reservations_are_limited_to_listed_resources_of_counted_pods() {
        let of = |pod: &str, amounts: &[(&str, u64)]| {
            let amounts = amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount));
            Reservation { pod: ("ns".into(), pod.into()), amounts: amounts.collect(), zones: None }
        };
        let all = [
            of("a", &[("cpu", 2), ("memory", 5), ("a.b/c", 1)]),
            of("b", &[("a.b/c", 1)]),
            of("mine", &[("cpu", 2)]),
        ];
        let resources = ["cpu", "memory"].map(|name| (name.to_owned(), Amounts::default())).into();
        let zones = [Zone::default(), Zone { resources, ..Zone::default() }];
        let mine = PodPattern { namespace: "ns".parse().unwrap(), name: "mine".parse().unwrap() };
        let exclude = NodeExclusions { pods: vec![mine], ..NodeExclusions::default() };
        let allowed = allowed(&all, &exclude, &zones);
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        assert_eq!(allowed, ["ns/a: cpu 2, memory 5 in every zone"]);
    }

    proptest! {
        #![proptest_config(crate::randomised::cases())]

        #[test]
        fn only_available_shrinks_and_at_most_by_the_sum(
            before in zones(),
            reservations in vec(reservation(), 0..5),
        ) {
            let mut after = before.clone();
            subtract(&mut after, &reservations);
            for (was, is) in before.iter().zip(&after) {
                let concerns = |of: &&Reservation| of.zones.as_ref().is_none_or(|ids| ids.contains(was.id));
                let own: Vec<Reservation> = reservations.iter().filter(concerns).cloned().collect();
                let totals = totals(&own);
                for (name, was) in &was.resources {
                    let taken = totals.get(name.as_str()).copied().unwrap_or_default().min(was.available);
                    let expected = Amounts { available: was.available - taken, ..*was };
                    prop_assert_eq!(is.resources[name], expected);
                }
                let rest = Zone { resources: was.resources.clone(), ..is.clone() };
                prop_assert_eq!(was, &rest);
            }
        }

        #[test]
        fn neither_order_nor_grouping_matters(
            before in zones(),
            reservations in vec(reservation(), 0..5),
            at in any::<prop::sample::Index>(),
        ) {
            let after = |parts: &[&[Reservation]]| {
                let mut zones = before.clone();
                parts.iter().for_each(|part| subtract(&mut zones, part));
                zones
            };
            let all = after(&[&reservations]);
            let mut reversed = reservations.clone();
            reversed.reverse();
            prop_assert_eq!(&after(&[&reversed]), &all);
            let (one, other) = reservations.split_at(at.index(reservations.len() + 1));
            prop_assert_eq!(after(&[one, other]), all);
        }
    }
}
