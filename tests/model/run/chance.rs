//! Virtual time and the only source of randomness.

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

/// The random number generator of one run.
#[derive(Debug)]
pub(crate) struct Dice(fastrand::Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn within(&mut self, span: Span) -> Time {
        if span.1 <= span.0 { span.0 } else { self.0.u64(span.0..=span.1) }
    }

    /// A number less than `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    /// Returns true with a probability of `times` in a thousand.
    pub(crate) fn per_mille(&mut self, times: u32) -> bool {
        self.0.u32(..1000) < times
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// An exponentially distributed duration, at most ten times the mean.
    pub(crate) fn about(&mut self, mean: Time) -> Time {
        let long = -(1.0 - self.0.f64()).ln();
        (mean as f64 * long.min(10.0)) as Time
    }

    pub(crate) fn seed(&mut self) -> u64 {
        self.0.u64(..)
    }
}
