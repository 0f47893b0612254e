//! How many pods of a shape fit within zones, and what is free but of no use to them. Pure.
//!
//! Only amounts count, not the kubelet's policies ([`crate::fit`] answers for one pod and one node). A device that
//! is in several zones counts in each.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::names::check_zone_resource;
use crate::nrt::Amounts;
use crate::quantity::{Quantity, in_binary_units, is_memory};
use crate::topology::Zone;

/// Maximum number of resources of a shape. Pods have a few.
pub const MAX_RESOURCES: usize = 16;

/// What each of several equal pods requests: CPUs, bytes or devices, all above 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape(BTreeMap<String, u64>);

/// The text is not a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// It has no resource.
    #[error("a shape has no resource: write one such as cpu=8,memory=16Gi,nvidia.com/gpu=1")]
    Empty,
    /// It has more than [`MAX_RESOURCES`].
    #[error("a shape has more than {MAX_RESOURCES} resources")]
    TooMany,
    /// A resource has no amount.
    #[error("{0:?} has no amount: write RESOURCE=QUANTITY such as cpu=8")]
    NoAmount(String),
    /// A name or an amount is wrong.
    #[error("{0}")]
    Invalid(String),
    /// A resource is there twice.
    #[error("the shape has {0} twice")]
    Twice(String),
    /// An amount is 0 or negative.
    #[error("the shape requests no {0}: leave it out, or write an amount above 0")]
    Zero(String),
    /// A part of a CPU is not exclusive.
    #[error("cpu={0} is not a whole number: only whole CPUs are exclusive, and aligned")]
    PartOfCpu(Quantity),
}

impl Shape {
    /// Creates a shape of whole CPUs, bytes and devices. Those of 0 are left out.
    ///
    /// # Errors
    /// If there are none, or too many.
    pub fn new(mut amounts: BTreeMap<String, u64>) -> Result<Self, ShapeError> {
        amounts.retain(|_, amount| *amount > 0);
        match amounts.len() {
            0 => Err(ShapeError::Empty),
            1..=MAX_RESOURCES => Ok(Self(amounts)),
            _ => Err(ShapeError::TooMany),
        }
    }

    /// Returns the resources and their amounts, sorted by name.
    pub fn amounts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, amount)| (&**name, *amount))
    }

    /// Returns how the shape fits a node with these zones.
    #[must_use]
    pub fn fragmentation(&self, zones: &[Zone]) -> Option<Fragmentation> {
        let of_zone = |zone: &Zone, name: &str| zone.resources.get(name).copied().unwrap_or_default();
        self.fragmentation_of(|name| zones.iter().map(|zone| of_zone(zone, name)).collect())
    }

    /// Returns how the shape fits a node, of whose resources `by_zone` returns what each zone has, always in the same
    /// order.
    ///
    /// `None` if the node is not for such pods: one would not fit even if nothing were in use and zones did not
    /// matter. What is free there is not stranded.
    #[must_use]
    pub fn fragmentation_of(&self, by_zone: impl Fn(&str) -> Vec<Amounts>) -> Option<Fragmentation> {
        let needs: Vec<Need> = self
            .amounts()
            .map(|(name, amount)| Need { amount: amount.into(), zones: by_zone(name) })
            .collect();
        if needs.iter().any(|need| need.sum(|of| of.allocatable) < need.amount) {
            return None;
        }
        let zones = needs.iter().map(|need| need.zones.len()).max().unwrap_or(0);
        let aligned: u128 =
            (0..zones).map(|zone| needs.iter().map(|need| need.pods_in(zone)).min().unwrap_or(0)).sum();
        let any = needs.iter().map(|need| need.free() / need.amount).min().unwrap_or(0);
        let stranded = self.0.keys().zip(&needs);
        let stranded = stranded
            .map(|(name, need)| (name.clone(), saturated(need.free().saturating_sub(aligned * need.amount))));
        Some(Fragmentation { aligned: saturated(aligned), any: saturated(any), stranded: stranded.collect() })
    }
}

/// What a pod needs of a resource, above 0, and what each zone has. Sums of 64-bit numbers do not overflow.
struct Need {
    amount: u128,
    zones: Vec<Amounts>,
}

impl Need {
    fn sum(&self, of: fn(&Amounts) -> u64) -> u128 {
        self.zones.iter().map(|amounts| u128::from(of(amounts))).sum()
    }

    fn free(&self) -> u128 {
        self.sum(|of| of.available)
    }

    /// Returns for how many pods a zone has enough.
    fn pods_in(&self, zone: usize) -> u128 {
        self.zones.get(zone).map_or(0, |amounts| u128::from(amounts.available)) / self.amount
    }
}

fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// How a shape fits a node, or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragmentation {
    /// How many pods fit, each within one zone.
    pub aligned: u64,
    /// How many pods would fit if zones did not matter: as many as each resource's total allows. Never less than
    /// `aligned`.
    pub any: u64,
    /// What is free less what `aligned` pods request, by resource of the shape: no such pod can use it within one
    /// zone. In each zone it is less than a pod's request of at least one resource.
    pub stranded: BTreeMap<String, u64>,
}

impl Fragmentation {
    /// Adds that of another node.
    pub fn add(&mut self, other: &Self) {
        self.aligned = self.aligned.saturating_add(other.aligned);
        self.any = self.any.saturating_add(other.any);
        for (name, amount) in &other.stranded {
            let sum = self.stranded.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    /// Returns how many more pods would fit if zones did not matter.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.any.saturating_sub(self.aligned)
    }
}

/// Returns the zone with the most free CPUs, of these the one with the most free memory: the largest pod that fits
/// within one zone gets what is free there.
#[must_use]
pub fn largest_block(zones: &[Zone]) -> Option<&Zone> {
    let free = |zone: &Zone, name| zone.resources.get(name).map_or(0, |amounts| amounts.available);
    // Of equal ones the first, unlike `max_by_key`.
    zones.iter().rev().max_by_key(|zone| (free(zone, "cpu"), free(zone, "memory")))
}

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut amounts = BTreeMap::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            if amounts.len() == MAX_RESOURCES {
                return Err(ShapeError::TooMany);
            }
            let (name, amount) = read(part)?;
            if amounts.insert(name.to_owned(), amount).is_some() {
                return Err(ShapeError::Twice(name.to_owned()));
            }
        }
        Self::new(amounts)
    }
}

/// Reads `RESOURCE=QUANTITY`.
fn read(part: &str) -> Result<(&str, u64), ShapeError> {
    let Some((name, quantity)) = part.split_once('=') else {
        return Err(ShapeError::NoAmount(part.to_owned()));
    };
    check_zone_resource(name).map_err(ShapeError::Invalid)?;
    let quantity: Quantity =
        quantity.parse().map_err(|error| ShapeError::Invalid(format!("the amount of {name}: {error}")))?;
    match quantity.ceil() {
        0 => Err(ShapeError::Zero(name.to_owned())),
        _ if name == "cpu" && quantity.nano() % Quantity::whole(1).nano() != 0 => {
            Err(ShapeError::PartOfCpu(quantity))
        }
        amount => Ok((name, amount)),
    }
}

/// As it is parsed.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, amount)) in self.amounts().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match is_memory(name) {
                true => write!(f, "{comma}{name}={}", in_binary_units(amount))?,
                false => write!(f, "{comma}{name}={amount}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RESOURCES: [&str; 3] = ["cpu", "memory", "example.com/gpu"];

    fn shape(text: &str) -> Shape {
        text.parse().unwrap()
    }

    /// Returns zones of 16 allocatable units of each resource, with these free.
    fn zones(free: &[[u64; 3]]) -> Vec<Zone> {
        let amounts = |available| Amounts { capacity: 16, allocatable: 16.max(available), available };
        let zone = |(id, free): (usize, &[u64; 3])| Zone {
            id: u16::try_from(id).unwrap(),
            resources: RESOURCES
                .iter()
                .zip(free)
                .map(|(name, free)| ((*name).into(), amounts(*free)))
                .collect(),
            ..Zone::default()
        };
        free.iter().enumerate().map(zone).collect()
    }

    fn stranded(amounts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn a_shape_is_parsed_from_what_it_prints() {
        for (text, printed) in [
            ("cpu=8,memory=16Gi,nvidia.com/gpu=1", "cpu=8,memory=16Gi,nvidia.com/gpu=1"),
            ("memory=1024Mi,cpu=8000m", "cpu=8,memory=1Gi"),
            ("hugepages-1Gi=2Gi", "hugepages-1Gi=2Gi"),
            ("memory=1.5", "memory=2"),
        ] {
            assert_eq!(shape(text).to_string(), printed);
            assert_eq!(shape(printed), shape(text));
        }
    }

    #[test]
    fn what_is_no_shape_is_said_in_a_sentence() {
        let many: Vec<String> = (0..=MAX_RESOURCES).map(|n| format!("example.com/n{n}=1")).collect();
        for (text, words) in [
            ("", "a shape has no resource: write one such as cpu=8"),
            ("cpu", "\"cpu\" has no amount: write RESOURCE=QUANTITY"),
            ("cpu=8,", "\"\" has no amount"),
            ("\u{1b}[2J", "\"\\u{1b}[2J\" has no amount"),
            ("gpu=1", "`gpu` is not a resource of a zone"),
            ("hugepages-1024Mi=1Gi", "write `hugepages-1Gi`"),
            ("cpu=many", "the amount of cpu: `many` is not a Kubernetes quantity"),
            ("cpu=1,cpu=2", "the shape has cpu twice"),
            ("memory=0", "the shape requests no memory"),
            ("cpu=-1", "the shape requests no cpu"),
            ("cpu=500m", "cpu=500m is not a whole number"),
            (&many.join(","), "a shape has more than 16 resources"),
        ] {
            let error = text.parse::<Shape>().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\u{1b}'), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_free_beside_nothing_is_stranded() {
        let pod = shape("cpu=4,example.com/gpu=1");
        let of = |free: &[[u64; 3]]| pod.fragmentation(&zones(free)).unwrap();
        // CPUs in one zone, GPUs in the other.
        let split =
            Fragmentation { aligned: 0, any: 2, stranded: stranded(&[("cpu", 8), ("example.com/gpu", 2)]) };
        assert_eq!(of(&[[8, 0, 0], [0, 0, 2]]), split);
        // Two halves.
        assert_eq!((of(&[[2, 0, 1], [2, 0, 0]]).aligned, of(&[[2, 0, 1], [2, 0, 0]]).any), (0, 1));
        // All is used up to what is left over.
        let full =
            Fragmentation { aligned: 2, any: 2, stranded: stranded(&[("cpu", 1), ("example.com/gpu", 0)]) };
        assert_eq!(of(&[[4, 0, 1], [5, 0, 1]]), full);
        assert_eq!(split.lost(), 2);
        let mut both = split;
        both.add(&full);
        assert_eq!(
            (both.aligned, both.any, &both.stranded),
            (2, 4, &stranded(&[("cpu", 9), ("example.com/gpu", 2)]))
        );
    }

    #[test]
    fn a_node_that_is_too_small_is_not_for_the_shape() {
        let free = zones(&[[16, 16, 16], [16, 16, 16]]);
        assert_eq!(shape("cpu=33").fragmentation(&free), None);
        assert_eq!(shape("cpu=1,example.com/nic=1").fragmentation(&free), None);
        assert_eq!(shape("cpu=1").fragmentation(&[]), None);
        // Larger than a zone: it can never be aligned, and all is stranded.
        let large = shape("cpu=32").fragmentation(&free).unwrap();
        assert_eq!((large.aligned, large.any, large.stranded["cpu"]), (0, 1, 32));
        // Nothing is free now.
        assert_eq!(shape("cpu=32").fragmentation(&zones(&[[0; 3], [0; 3]])).unwrap().stranded["cpu"], 0);
    }

    #[test]
    fn the_largest_block_has_the_most_cpus_and_then_memory() {
        let largest = |free: &[[u64; 3]]| largest_block(&zones(free)).map(|zone| zone.id);
        assert_eq!(largest(&[[1, 9, 9], [4, 2, 0], [4, 3, 0], [4, 3, 0]]), Some(2));
        assert_eq!(largest(&[]), None);
    }

    fn amounts() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 0..20_u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
    }

    proptest! {
        #[test]
        fn aligned_pods_fit_and_no_other_does(
            free in prop::collection::vec([amounts(), amounts(), amounts()], 1..5),
            request in [0..6_u64, 0..6_u64, 0..6_u64],
        ) {
            let request: BTreeMap<String, u64> =
                RESOURCES.iter().zip(request).map(|(name, amount)| ((*name).to_owned(), amount)).collect();
            prop_assume!(request.values().any(|amount| *amount > 0));
            let (shape, zones) = (Shape::new(request).unwrap(), zones(&free));
            let fragmentation = shape.fragmentation(&zones).unwrap();
            let available = |zone: &Zone, name: &str| u128::from(zone.resources[name].available);
            // Zone by zone: as many as fit, and not one more.
            let fits = |zone: &Zone, pods: u128| {
                shape.amounts().all(|(name, amount)| u128::from(amount) * pods <= available(zone, name))
            };
            let mut left: BTreeMap<&str, u128> = BTreeMap::new();
            let mut aligned = 0_u128;
            for zone in &zones {
                let pods = shape.amounts().map(|(name, amount)| available(zone, name) / u128::from(amount)).min();
                let pods = pods.unwrap();
                prop_assert!(fits(zone, pods) && !fits(zone, pods + 1));
                let rest = |name: &str, amount: u64| available(zone, name) - u128::from(amount) * pods;
                // What is left of the scarcest resource of a zone is less than a pod's.
                prop_assert!(shape.amounts().any(|(name, amount)| rest(name, amount) < u128::from(amount)));
                for (name, amount) in shape.amounts() {
                    *left.entry(name).or_default() += rest(name, amount);
                }
                aligned += pods;
            }
            prop_assert_eq!(fragmentation.aligned, saturated(aligned));
            prop_assert!(fragmentation.aligned <= fragmentation.any);
            let left: BTreeMap<String, u64> =
                left.into_iter().map(|(name, left)| (name.to_owned(), saturated(left))).collect();
            prop_assert_eq!(&fragmentation.stranded, &left);
            // In one zone nothing is lost.
            if zones.len() == 1 {
                prop_assert_eq!(fragmentation.lost(), 0);
            }
        }

        #[test]
        fn the_order_of_zones_does_not_matter_and_one_zone_instead_loses_nothing(
            free in prop::collection::vec([0..20_u64, 0..20_u64, 0..20_u64], 1..5),
            request in [1..6_u64, 1..6_u64, 0..6_u64],
        ) {
            let request = RESOURCES.iter().zip(request).map(|(name, amount)| ((*name).to_owned(), amount));
            let shape = Shape::new(request.collect()).unwrap();
            let mut zones = zones(&free);
            let fragmentation = shape.fragmentation(&zones).unwrap();
            zones.reverse();
            prop_assert_eq!(shape.fragmentation(&zones).unwrap(), fragmentation.clone());
            let mut one = Zone::default();
            for (name, amounts) in zones.iter().flat_map(|zone| &zone.resources) {
                let sum = one.resources.entry(name.clone()).or_default();
                *sum = sum.plus(*amounts);
            }
            let one = shape.fragmentation(&[one]).unwrap();
            prop_assert_eq!((one.aligned, one.any), (fragmentation.any, fragmentation.any));
            // More pods leave less.
            prop_assert!(one.stranded.iter().all(|(name, left)| *left <= fragmentation.stranded[name]));
        }
    }
}
