//! Percentages.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A percentage, 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    pub(super) const fn of(percent: u8) -> Self {
        Self(percent)
    }

    /// Returns the value, 0 to 100.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().ok().filter(|number| *number <= 100);
        number.map(Self).ok_or_else(|| format!("`{text}` is no whole number from 0 to 100"))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Percent;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 0 to 100")
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Percent, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Percent, E> {
                self.visit_str(&number.to_string())
            }
            // Flags are text.
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Percent, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_written_as_a_number_and_read_from_a_flag_as_well() {
        assert_eq!(serde_json::to_string(&Percent(20)).unwrap(), "20");
        let read = |yaml: &str| serde_saphyr::from_str::<Percent>(yaml).map_err(|error| error.to_string());
        for (yaml, percent) in [("0", 0), ("20", 20), ("100", 100), ("'7'", 7)] {
            assert_eq!(read(yaml), Ok(Percent(percent)), "{yaml}");
        }
        for yaml in ["101", "-1", "20%", "2.5", "true"] {
            assert!(read(yaml).is_err(), "{yaml}");
        }
        assert!(read("101").unwrap_err().contains("`101` is no whole number from 0 to 100"));
    }
}
