//! What the kubelet will give to pods that are bound and that its List does not show yet, taken from the zones.
//!
//! Who reads the object for each pod that it places would place a second one where the first is about to be admitted. The
//! zone that the kubelet will choose is not known before, so the whole amount is taken from every zone.

use std::collections::BTreeMap;
use std::fmt;

use super::contract::lists;
use crate::pod::PodName;
use crate::topology::{Exclude, Zone};

/// What one pod will have, as far as the List does not show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Namespace and name of the pod.
    pub pod: PodName,
    /// CPUs, bytes or devices by the name of the resource; no zeros.
    pub amounts: BTreeMap<String, u64>,
}

/// `ns/a: cpu 2, memory 1073741824`.
impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = &self.pod;
        write!(f, "{namespace}/{name}: ")?;
        for (number, (resource, amount)) in self.amounts.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{resource} {amount}")?;
        }
        Ok(())
    }
}

/// Those of `reservations` that the zones can lack: of resources that they list, and without pods whose resources are to
/// look free.
#[must_use]
pub fn allowed(reservations: &[Reservation], exclude: &Exclude, zones: &[Zone]) -> Vec<Reservation> {
    let counted = reservations.iter().filter(|of| !exclude.pod(&of.pod.0, &of.pod.1));
    let listed = counted.map(|Reservation { pod, amounts }| {
        let amounts = amounts.iter().filter(|(name, _)| lists(zones, name));
        Reservation { pod: pod.clone(), amounts: amounts.map(|(name, n)| (name.clone(), *n)).collect() }
    });
    listed.filter(|of| !of.amounts.is_empty()).collect()
}

/// The sums of what is reserved, by the name of the resource.
#[must_use]
pub fn totals(reservations: &[Reservation]) -> BTreeMap<&str, u64> {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, amount) in reservations.iter().flat_map(|reservation| &reservation.amounts) {
        let total = totals.entry(name).or_default();
        *total = total.saturating_add(*amount);
    }
    totals
}

/// Takes what is reserved from what is available in every zone, as far as there is any. Capacity and allocatable stay.
pub fn reserve(zones: &mut [Zone], reservations: &[Reservation]) {
    for (name, amount) in totals(reservations) {
        for amounts in zones.iter_mut().filter_map(|zone| zone.resources.get_mut(name)) {
            amounts.available = amounts.available.saturating_sub(amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::pattern::PodPattern;
    use crate::topology::Amounts;

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
        amounts.prop_map(|amounts| Reservation { pod: ("ns".into(), "a".into()), amounts })
    }

    #[test]
    fn zones_lack_what_they_list_of_pods_that_count() {
        let of = |pod: &str, amounts: &[(&str, u64)]| {
            let amounts = amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount));
            Reservation { pod: ("ns".into(), pod.into()), amounts: amounts.collect() }
        };
        let all = [
            of("a", &[("cpu", 2), ("memory", 5), ("a.b/c", 1)]),
            of("b", &[("a.b/c", 1)]),
            of("mine", &[("cpu", 2)]),
        ];
        let resources = ["cpu", "memory"].map(|name| (name.to_owned(), Amounts::default())).into();
        let zones = [Zone::default(), Zone { resources, ..Zone::default() }];
        let mine = PodPattern { namespace: "ns".parse().unwrap(), name: "mine".parse().unwrap() };
        let exclude = Exclude { pods: vec![mine], ..Exclude::default() };
        let told: Vec<String> = allowed(&all, &exclude, &zones).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["ns/a: cpu 2, memory 5"]);
    }

    proptest! {
        #![proptest_config(crate::randomised::cases())]

        #[test]
        fn only_what_is_available_shrinks_and_by_the_sum_at_most(
            before in vec(zone(), 0..5),
            reservations in vec(reservation(), 0..5),
        ) {
            let mut after = before.clone();
            reserve(&mut after, &reservations);
            let totals = totals(&reservations);
            for (was, is) in before.iter().zip(&after) {
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
            before in vec(zone(), 0..5),
            reservations in vec(reservation(), 0..5),
            at in any::<prop::sample::Index>(),
        ) {
            let after = |parts: &[&[Reservation]]| {
                let mut zones = before.clone();
                parts.iter().for_each(|part| reserve(&mut zones, part));
                zones
            };
            let all = after(&[&reservations]);
            let mut turned = reservations.clone();
            turned.reverse();
            prop_assert_eq!(&after(&[&turned]), &all);
            let (one, other) = reservations.split_at(at.index(reservations.len() + 1));
            prop_assert_eq!(after(&[one, other]), all);
        }
    }
}
