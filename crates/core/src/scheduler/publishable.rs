//! The complete result for one node, from which the object is made.

use super::reservation::subtract;
use super::{Fingerprint, Placement, PodFingerprint, Reservation};
use crate::topology::{Topology, Zone};

/// The content of a node's object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publishable {
    /// The zones, ascending by id.
    pub zones: Vec<Zone>,
    /// Names and values of the node's attributes, in a fixed order, without those of the fingerprint and the
    /// placement.
    pub attributes: Vec<(String, String)>,
    /// The fingerprint, if one is published.
    pub fingerprint: Option<PodFingerprint>,
    /// The placement, if one is published.
    pub placement: Option<Placement>,
}

impl Publishable {
    /// Combines a topology, minus `reservations`, with the fingerprint and the placement, if any.
    #[must_use]
    pub fn new(
        topology: &Topology,
        fingerprint: Option<PodFingerprint>,
        reservations: &[Reservation],
        placement: Option<Placement>,
    ) -> Self {
        let mut zones = topology.zones.clone();
        subtract(&mut zones, reservations);
        Self { zones, attributes: topology.attributes.clone(), fingerprint, placement }
    }

    /// Returns true if the fingerprint is withheld.
    #[must_use]
    pub fn is_withheld(&self) -> bool {
        self.fingerprint.is_some_and(|fingerprint| fingerprint.is_withheld())
    }

    /// Returns the same with its fingerprint, if any, withheld.
    #[must_use]
    pub fn withheld(&self) -> Self {
        let withheld = |of: PodFingerprint| PodFingerprint { value: Fingerprint::WITHHELD, ..of };
        Self { fingerprint: self.fingerprint.map(withheld), ..self.clone() }
    }

    /// Returns true if the zones and attributes are equal: only fingerprint or placement may differ.
    #[must_use]
    pub fn has_same_zones_and_attributes(&self, other: &Self) -> bool {
        self.zones == other.zones && self.attributes == other.attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::FingerprintMethod;
    use crate::topology::Amounts;

    fn publishable(value: Fingerprint, available: u64, placement: Option<Placement>) -> Publishable {
        let amounts = Amounts { capacity: 8, allocatable: 8, available };
        let zone = Zone { resources: [("cpu".to_owned(), amounts)].into(), ..Zone::default() };
        let topology = Topology { zones: vec![zone], ..Topology::default() };
        let fingerprint = PodFingerprint { value, method: FingerprintMethod::All };
        Publishable::new(&topology, Some(fingerprint), &[], placement)
    }

    #[test]
    fn only_the_fingerprint_is_withheld() {
        let published = publishable(Fingerprint::of([1]), 4, None);
        let withheld = published.withheld();
        assert!(withheld.is_withheld() && !published.is_withheld());
        assert_eq!(withheld, publishable(Fingerprint::WITHHELD, 4, None));
        let without = Publishable::new(&Topology::default(), None, &[], None);
        assert_eq!(without.withheld(), without);
    }

    #[test]
    fn reservations_are_subtracted_from_available() {
        let published = publishable(Fingerprint::of([1]), 4, None);
        let topology = Topology { zones: published.zones.clone(), ..Topology::default() };
        let reservation =
            Reservation { pod: ("ns".into(), "a".into()), amounts: [("cpu".into(), 3)].into(), zones: None };
        let reserved = Publishable::new(&topology, published.fingerprint, &[reservation], None);
        assert_eq!(reserved, publishable(Fingerprint::of([1]), 1, None));
    }

    #[test]
    fn zones_and_attributes_are_compared_without_fingerprint_and_placement() {
        let placement = Placement { metadata: "m".into(), vectors: [(0, "v".into())].into() };
        let published = publishable(Fingerprint::of([1]), 4, Some(placement));
        assert!(published.has_same_zones_and_attributes(&publishable(Fingerprint::of([2]), 4, None)));
        assert!(!published.has_same_zones_and_attributes(&publishable(Fingerprint::of([1]), 3, None)));
        let attributes = vec![("a".to_owned(), "b".to_owned())];
        let topology = Topology { zones: published.zones.clone(), attributes, ..Topology::default() };
        assert!(!published.has_same_zones_and_attributes(&Publishable::new(&topology, None, &[], None)));
    }
}
