//! Kubernetes quantities: `16Gi`, `500m`, `12k`, `4`.
//!
//! We write plain integers only; other people's objects and the kubelet's configuration use suffixes.
//! The grammar is that of `k8s.io/apimachinery/pkg/api/resource`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of CPUs, bytes, pages or devices, exact to a thousandth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    milli: i128,
}

/// The text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi")]
pub struct ParseQuantityError(String);

/// Suffix and the number of thousandths one unit of it is worth.
const SUFFIXES: [(&str, i128); 14] = [
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("Ei", 1000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("", 1000),
];

impl Quantity {
    /// The whole number `value`.
    #[must_use]
    pub fn whole(value: u64) -> Self {
        Self { milli: i128::from(value) * 1000 }
    }

    /// The smallest whole number that is not below the quantity; negative quantities give 0.
    #[must_use]
    pub fn ceil(self) -> u64 {
        u64::try_from(ceil_div(self.milli.max(0), 1000)).unwrap_or(u64::MAX)
    }

    /// Thousandths.
    #[must_use]
    pub fn milli(self) -> i128 {
        self.milli
    }
}

impl From<u64> for Quantity {
    fn from(value: u64) -> Self {
        Self::whole(value)
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseQuantityError(text.chars().take(64).collect());
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-'))
            .unwrap_or(trimmed.len());
        let (number, suffix) = trimmed.split_at(split);
        let unit = match SUFFIXES.iter().find(|(name, _)| *name == suffix) {
            Some((_, unit)) => *unit,
            None => exponent(suffix).ok_or_else(error)?,
        };
        let milli = scale(number, unit).ok_or_else(error)?;
        Ok(Self { milli })
    }
}

/// `e3` and `E3`: the thousandths that 10^3 is worth.
fn exponent(suffix: &str) -> Option<i128> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let power: u32 = digits.parse().ok()?;
    10_i128.checked_pow(power)?.checked_mul(1000)
}

/// `number` (decimal, perhaps signed, perhaps with a fraction) times `unit`, rounded up like upstream does.
fn scale(number: &str, unit: i128) -> Option<i128> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let sensible = |part: &str| part.len() <= 24 && part.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !sensible(whole) || !sensible(fraction) {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Twelve digits of a fraction are far below a byte of an exbibyte's thousandth that we care for.
    let fraction = &fraction[..fraction.len().min(12)];
    let part: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let denominator = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let total = whole.checked_mul(unit)?.checked_add(ceil_div(part.checked_mul(unit)?, denominator))?;
    Some(if negative { -total } else { total })
}

/// `dividend / divisor` rounded up, for a positive divisor (the method of `i128` is unstable).
fn ceil_div(dividend: i128, divisor: i128) -> i128 {
    dividend / divisor + i128::from(dividend % divisor > 0)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli % 1000 == 0 { write!(f, "{}", self.milli / 1000) } else { write!(f, "{}m", self.milli) }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity::whole(value))
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity { milli: i128::from(value) * 1000 })
            }
            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                value.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// The name Kubernetes gives to huge pages of `bytes`: `hugepages-2Mi`, `hugepages-1Gi`, `hugepages-64Ki`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn milli(text: &str) -> i128 {
        text.parse::<Quantity>().unwrap_or_else(|e| panic!("{e}")).milli()
    }

    #[test]
    fn suffixes_fractions_and_exponents_are_read() {
        for (text, expected) in [
            ("4", 4000),
            ("500m", 500),
            ("12k", 12_000_000),
            ("64G", 64_000_000_000_000),
            ("1.5Gi", 1_610_612_736_000),
            ("0.1", 100),
            (".5", 500),
            ("2e3", 2_000_000),
            ("-3", -3000),
            ("100Mi", 104_857_600_000),
            ("0.0001", 1),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_text_in_the_sentence() {
        for text in ["", "Gi", "1Xi", "1..2", "--1", "1e99", "9999999999999999999999999", "1 Gi"] {
            let error = text.parse::<Quantity>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn whole_numbers_print_plainly_and_ceil_rounds_up() {
        assert_eq!(Quantity::whole(17_179_869_184).to_string(), "17179869184");
        assert_eq!("1500m".parse::<Quantity>().unwrap().to_string(), "1500m");
        assert_eq!("1500m".parse::<Quantity>().unwrap().ceil(), 2);
        assert_eq!("-1".parse::<Quantity>().unwrap().ceil(), 0);
    }

    #[test]
    fn hugepages_are_named_as_kubernetes_names_them() {
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
