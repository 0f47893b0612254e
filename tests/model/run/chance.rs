//! Virtual time and the one source of chance.

/// Microseconds since the beginning of the run.
pub type Time = u64;

/// One millisecond.
pub const MS: Time = 1_000;
/// One second.
pub const S: Time = 1_000_000;
/// Never.
pub const NEVER: Time = Time::MAX;

/// Seconds, for tables.
pub fn seconds(time: Time) -> f64 {
    time as f64 / S as f64
}

/// A span of time to draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Time, pub Time);

/// The dice of one run.
#[derive(Debug)]
pub struct Dice(fastrand::Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub fn within(&mut self, span: Span) -> Time {
        if span.1 <= span.0 { span.0 } else { self.0.u64(span.0..=span.1) }
    }

    /// Less than `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.usize(..bound)
    }

    /// So many times in a thousand.
    pub fn per_mille(&mut self, times: u32) -> bool {
        self.0.u32(..1000) < times
    }

    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// Exponentially distributed, at most ten times the mean.
    pub fn about(&mut self, mean: Time) -> Time {
        let long = -(1.0 - self.0.f64()).ln();
        (mean as f64 * long.min(10.0)) as Time
    }

    pub fn seed(&mut self) -> u64 {
        self.0.u64(..)
    }
}
