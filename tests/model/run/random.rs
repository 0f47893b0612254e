//! The only source of randomness.

use super::time::{Span, Time};

/// The random number generator of one run.
#[derive(Debug)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
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

    pub(crate) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// An exponentially distributed duration, at most ten times the mean.
    pub(crate) fn exponential(&mut self, mean: Time) -> Time {
        let factor = -(1.0 - self.0.f64()).ln();
        (mean as f64 * factor.min(10.0)) as Time
    }

    pub(crate) fn seed(&mut self) -> u64 {
        self.0.u64(..)
    }
}
