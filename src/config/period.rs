use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::util::serialize_as_text;

/// A positive duration, written like `500ms`, `10s`, `5m` or `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(Duration);

/// Maximum period: no key has a use for a longer one.
const MAX_PERIOD: Duration = Duration::from_secs(24 * 60 * 60);

impl Period {
    pub(super) const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    pub(super) const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns it as a [`Duration`].
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || format!("`{text}` is not a duration such as 500ms, 10s or 5m");
        let signed: jiff::SignedDuration = text.parse().map_err(|_| error())?;
        let duration = Duration::try_from(signed).map_err(|_| error())?;
        match duration {
            Duration::ZERO => Err(format!("`{text}` must be longer than 0")),
            _ if duration > MAX_PERIOD => Err(format!("`{text}` must not be longer than a day")),
            _ => Ok(Self(duration)),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::SignedDuration::try_from(self.0) {
            Ok(signed) => write!(f, "{signed:#}"),
            Err(_) => write!(f, "{}s", self.0.as_secs()),
        }
    }
}

serialize_as_text!(Period);

impl JsonSchema for Period {
    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "minLength": 2})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_parsed_from_what_it_prints() {
        for (text, seconds) in
            [("10s", 10.0), ("500ms", 0.5), ("5m", 300.0), ("1h 30m", 5400.0), ("1m30s", 90.0)]
        {
            let period: Period = text.parse().unwrap();
            assert!((period.get().as_secs_f64() - seconds).abs() < 1e-9, "{text}");
            assert_eq!(period.to_string().parse::<Period>().unwrap(), period);
        }
        assert_eq!(Period::seconds(600).to_string(), "10m");
        for text in ["soon", "", "-1s", "0s", "10", "25h"] {
            assert!(text.parse::<Period>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
    }
}
