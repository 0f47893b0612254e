//! Kubernetes quantities: `16Gi`, `500m`, `12k`, `4`.
//!
//! We publish plain integers only; other objects, pods and the kubelet's configuration use the whole
//! grammar of `k8s.io/apimachinery/pkg/api/resource`.

mod parsed;

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use parsed::Parsed;

/// Amounts of a node as a whole, by resource: `cpu` in millicores, memory and huge pages in bytes, others as counts.
pub type NodeAmounts = BTreeMap<String, u64>;

/// Billionths in one.
const NANO: i128 = 1_000_000_000;

/// A number of CPUs, bytes, pages or devices, exact to a billionth and rounded away from zero below that, as
/// in Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    /// Billionths, saturating above some 10^29 units.
    nano: i128,
}

/// The text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi")]
pub struct ParseQuantityError(String);

impl Quantity {
    /// Creates a quantity of whole units.
    #[must_use]
    pub const fn whole(value: u64) -> Self {
        Self { nano: value as i128 * NANO }
    }

    /// Returns the quantity rounded up to whole units; 0 for negative quantities.
    #[must_use]
    pub fn ceil(self) -> u64 {
        u64::try_from(ceil_div(self.nano.max(0), NANO)).unwrap_or(u64::MAX)
    }

    /// Returns the quantity rounded down to whole units; 0 for negative quantities.
    #[must_use]
    pub fn floor(self) -> u64 {
        u64::try_from(self.nano.max(0) / NANO).unwrap_or(u64::MAX)
    }

    /// Returns the amount of a node's resource, rounded up: millicores of `cpu`, whole units of others.
    #[must_use]
    pub fn of_node(self, resource: &str) -> u64 {
        if resource == "cpu" { self.ceil_milli() } else { self.ceil() }
    }

    /// Returns the quantity in thousandths, rounded up; 0 for negative quantities.
    #[must_use]
    pub fn ceil_milli(self) -> u64 {
        u64::try_from(ceil_div(self.nano.max(0), NANO / 1000)).unwrap_or(u64::MAX)
    }

    /// Returns the quantity in billionths, saturating above some 10^29 units.
    #[must_use]
    pub fn nano(self) -> i128 {
        self.nano
    }
}

/// Saturating.
impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        Self { nano: all.fold(0, |sum, Self { nano }| sum.saturating_add(nano)) }
    }
}

impl From<u64> for Quantity {
    fn from(value: u64) -> Self {
        Self::whole(value)
    }
}

/// As `ParseQuantity`, which accepts no surrounding white space.
impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Parsed::of(text)?.quantity())
    }
}

/// Returns `dividend / divisor` rounded up, for a positive divisor (the method of `i128` is unstable).
fn ceil_div(dividend: i128, divisor: i128) -> i128 {
    dividend / divisor + i128::from(dividend % divisor > 0)
}

/// Writes a plain number if the quantity is whole.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(NANO, ""), (1_000_000, "m"), (1000, "u"), (1, "n")];
        let (unit, suffix) = units.into_iter().find(|(unit, _)| self.nano % unit == 0).unwrap_or((1, "n"));
        write!(f, "{}{suffix}", self.nano / unit)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// As `UnmarshalJSON`: a string, with or without surrounding white space, or a number.
impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity::whole(value))
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity { nano: i128::from(value) * NANO })
            }
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Returns bytes as a quantity with the largest binary unit that divides them: `16Gi`, `1028Mi`, `1000`.
#[must_use]
pub fn in_binary_units(bytes: u64) -> String {
    let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

/// Returns the resource name of huge pages of `bytes`: `hugepages-2Mi`, `hugepages-1Gi`, `hugepages-64Ki`.
#[must_use]
pub fn hugepages_name(bytes: u64) -> String {
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    for (suffix, shift) in units {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("hugepages-{}{suffix}", bytes >> shift);
        }
    }
    format!("hugepages-{bytes}")
}

/// Returns true for `memory` and `hugepages-<size>`.
#[must_use]
pub fn is_memory(resource: &str) -> bool {
    resource == "memory" || is_huge_pages(resource)
}

/// Returns true for the name of a huge pages resource.
#[must_use]
pub fn is_huge_pages(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Go's results, written by `tests/real/quantities.rs`. Each line has the text, `Value()`, `MilliValue()`
    /// and `Sign()`, separated by tabs, or only the text if it is not a quantity. Upstream's own tables come
    /// first.
    const VECTORS: &str = include_str!("../../../tests/vectors/quantities.tsv");

    #[test]
    fn texts_are_parsed_as_in_go() {
        let mut lines = 0;
        for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
            let (text, expected) = line.split_once('\t').unwrap_or((line, ""));
            let ours = Parsed::of(text).map(|parsed| {
                let sign = parsed.quantity().nano().signum();
                format!("{}\t{}\t{sign}", parsed.value(), parsed.milli_value())
            });
            assert_eq!(ours.unwrap_or_default(), expected, "{text:?}");
            lines += 1;
        }
        assert!(lines > 3000, "{lines}");
    }

    #[test]
    fn other_json_values_are_errors() {
        assert_eq!(Quantity::from(7), Quantity::whole(7));
        let error = serde_json::from_str::<Quantity>("[4]").unwrap_err().to_string();
        assert!(error.contains("expected a Kubernetes quantity such as 4, 500m"), "{error}");
    }

    #[test]
    fn numbers_of_any_length_are_parsed_fast() {
        let long = "9".repeat(100_000);
        for suffix in ["", "Ei", "e-2147483648", "e2147483647", "n"] {
            assert!(Parsed::of(&format!("{long}{suffix}")).is_ok(), "{suffix}");
            assert!(Parsed::of(&format!("0.{long}{suffix}")).is_ok(), "{suffix}");
            assert!(Parsed::of(&format!("{}1{suffix}", "0".repeat(100_000))).is_ok(), "{suffix}");
        }
        assert_eq!(format!("{long}E").parse::<Quantity>().unwrap().nano(), i128::MAX);
        assert_eq!(format!("-{long}").parse::<Quantity>().unwrap().nano(), -i128::MAX);
        assert_eq!(format!("0.{long}Ki").parse::<Quantity>().unwrap(), Quantity::whole(1024));
    }

    #[test]
    fn invalid_texts_are_errors_with_the_text() {
        for text in ["", "Ei", "1Xi", "1..2", "--1", "1e", "1e99999999999999999999", "1 Gi", " 1", "1é"] {
            let error = text.parse::<Quantity>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn whole_numbers_print_plainly_and_ceil_rounds_up() {
        assert_eq!(Quantity::whole(17_179_869_184).to_string(), "17179869184");
        for (text, plain, ceil) in [
            ("1500m", "1500m", 2),
            ("500e-3", "500m", 1),
            ("1.00001", "1000010u", 2),
            ("3.001n", "4n", 1),
            ("16Gi", "17179869184", 17_179_869_184),
            ("-0.5", "-500m", 0),
            ("20E", "20000000000000000000", u64::MAX),
        ] {
            let quantity: Quantity = text.parse().unwrap();
            assert_eq!((quantity.to_string().as_str(), quantity.ceil()), (plain, ceil));
            assert_eq!(plain.parse(), Ok(quantity), "{text}");
        }
        let sum: Quantity =
            ["0.4m", "0.6m", "1"].map(|text| text.parse::<Quantity>().unwrap()).into_iter().sum();
        assert_eq!(sum.to_string(), "1001m");
    }

    #[test]
    fn json_may_have_a_number_or_surrounding_space() {
        let read = |json: &str| serde_json::from_str::<Quantity>(json).map(|quantity| quantity.to_string());
        for (json, text) in
            [("3", "3"), ("-3", "-3"), ("0.25", "250m"), ("1e3", "1000"), ("\" 2Ki\\n\"", "2048")]
        {
            assert_eq!(read(json).unwrap(), text);
        }
        assert!(["[]", "true", "\"\"", "\"1 0\""].iter().all(|json| read(json).is_err()));
    }

    #[test]
    fn bytes_have_the_largest_unit_that_divides_them() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (1 << 10, "1Ki"),
            (16 << 30, "16Gi"),
            ((1 << 30) + (4 << 20), "1028Mi"),
        ] {
            assert_eq!(in_binary_units(bytes), text);
        }
    }

    #[test]
    fn hugepages_are_named_as_in_kubernetes() {
        for (kib, name) in [
            (2048, "hugepages-2Mi"),
            (1_048_576, "hugepages-1Gi"),
            (64, "hugepages-64Ki"),
            (16_777_216, "hugepages-16Gi"),
            (32_768, "hugepages-32Mi"),
        ] {
            assert_eq!(hugepages_name(kib << 10), name);
        }
    }
}
