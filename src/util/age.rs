//! Ages as kubectl prints them.

use jiff::Timestamp;

/// Formats the time since `then` as kubectl does (`duration.HumanDuration`).
pub(crate) fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    /// The longest duration that Go can represent, in seconds.
    const MAX_SECONDS: i64 = i64::MAX / 1_000_000_000;
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let Some(then) = then else { return "<unknown>".to_owned() };
    let seconds = now.duration_since(then).as_secs().min(MAX_SECONDS);
    // The second unit is omitted if it is zero.
    let two = |unit: i64, name: char, per: i64, small: char| match (seconds % unit) / per {
        0 => format!("{}{name}", seconds / unit),
        rest => format!("{}{name}{rest}{small}", seconds / unit),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(MINUTE, 'm', 1, 's'),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(HOUR, 'h', MINUTE, 'm'),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(DAY, 'd', HOUR, 'h'),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(YEAR, 'y', DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_or_two_units() {
        let now: Timestamp = "2026-11-22T03:00:00Z".parse().unwrap();
        for (seconds, expected) in [
            (-7200, "<invalid>"),
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_071_999, "729d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
            (40_000_000_000, "292y"),
        ] {
            let then = Timestamp::from_second(now.as_second() - seconds).unwrap();
            assert_eq!(age(Some(then), now), expected, "{seconds}");
        }
        assert_eq!(age(None, now), "<unknown>");
    }
}
