//! Virtual time.

/// Microseconds since the beginning of the run.
pub(crate) type Time = u64;

/// One millisecond.
pub(crate) const MS: Time = 1_000;
/// One second.
pub(crate) const S: Time = 1_000_000;
/// Never.
pub(crate) const NEVER: Time = Time::MAX;

/// Seconds, for tables.
pub(crate) fn seconds(time: Time) -> f64 {
    time as f64 / S as f64
}

/// A range of durations to draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Time, pub(crate) Time);
