//! Reimplements `ParseQuantity`, `Value` and `MilliValue` of `k8s.io/apimachinery/pkg/api/resource`
//! (apimachinery v0.37.0: quantity.go, amount.go, scale_int.go, suffix.go; unchanged since v0.33).
//!
//! Go stores a quantity in one of two representations, and the results for numbers that do not fit 64 bits
//! depend on which. The kubelet and the scheduler rely on these results, so both are reimplemented.
//! Everything runs in time linear in the length of the text.

use std::iter::repeat_n;

use super::{ParseQuantityError, Quantity};

/// Go keeps no digits below a billionth.
const NANO: i32 = -9;

/// The multiplier of a suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A power of ten.
    Ten(i32),
    /// A power of two.
    Two(u32),
}

const DECIMAL_SUFFIXES: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

const BINARY_SUFFIXES: [(&str, u32); 6] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// A parsed quantity with Go's semantics.
#[derive(Debug)]
pub struct Parsed(Amount);

#[derive(Debug)]
enum Amount {
    /// `int64Amount`.
    Small {
        /// To be multiplied by ten to the power of `scale`.
        value: i64,
        /// At least -9 (billionths).
        scale: i32,
    },
    /// `infDecAmount`.
    Large {
        /// Rounded away from zero to billionths.
        number: Decimal,
        /// It exceeded the maximum for binary suffixes and was capped.
        capped: bool,
    },
}

fn unit(suffix: &str) -> Option<Unit> {
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Some(Unit::Ten(*exponent));
    }
    if let Some((_, bits)) = BINARY_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Some(Unit::Two(*bits));
    }
    let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    // Go truncates to 32 bits as well.
    Some(Unit::Ten(exponent as i32))
}

/// The parts that `parseQuantityString` finds in a text.
struct Parts<'a> {
    negative: bool,
    /// Everything before the suffix, without the sign.
    number: &'a str,
    /// The digits before the point, without leading zeros; `0` if there are no others.
    whole: &'a str,
    /// The digits after the point.
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let (whole, rest) = leading_digits(unsigned);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => leading_digits(rest),
            None => ("", rest),
        };
        let after = suffix.trim_start_matches(|letter| "eEinumkKMGTP".contains(letter));
        let exponent = after.strip_prefix(['+', '-']).unwrap_or(after);
        if !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            digits => digits,
        };
        let number = &unsigned[..unsigned.len() - suffix.len()];
        Some(Self { negative: text.starts_with('-'), number, whole, fraction, suffix })
    }

    /// Returns the amount if Go represents it in 64 bits.
    fn small(&self, unit: Unit) -> Option<Amount> {
        let length = self.whole.len() + self.fraction.len();
        let (longest, factor, exponent) = match unit {
            Unit::Ten(exponent) => (18, 1, exponent),
            Unit::Two(bits) if self.fraction.is_empty() => {
                (14_usize.checked_sub(bits as usize * 3 / 10)?, 1 << bits, 0)
            }
            Unit::Two(_) => return None,
        };
        if length > longest {
            return None;
        }
        let scale = exponent.wrapping_sub(self.fraction.len() as i32);
        if scale < NANO {
            return None;
        }
        let digits = self.whole.bytes().chain(self.fraction.bytes());
        let written = digits.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        let value = written.checked_mul(factor)?;
        Some(Amount::Small { value: if self.negative { -value } else { value }, scale })
    }

    /// Returns an amount of any size.
    fn large(&self, unit: Unit) -> Option<Amount> {
        if !self.number.bytes().any(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = self.whole.bytes().chain(self.fraction.bytes()).map(|digit| digit - b'0').collect();
        let mut number = Decimal { negative: self.negative, digits, exponent: -(self.fraction.len() as i64) };
        match unit {
            Unit::Ten(exponent) => number.exponent += i64::from(exponent),
            Unit::Two(bits) => number.multiply(1 << bits),
        }
        number.trim();
        number.round_up();
        let largest = i128::from(i64::MAX) * 1_000_000_000;
        let capped = matches!(unit, Unit::Two(_)) && number.saturated(NANO.into()) > largest;
        if capped {
            number = Decimal::largest(self.negative);
        }
        Some(Amount::Large { number, capped })
    }
}

fn leading_digits(text: &str) -> (&str, &str) {
    text.split_at(text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len())
}

impl Parsed {
    /// Parses a text like `ParseQuantity`, which accepts no surrounding white space.
    ///
    /// # Errors
    /// The text is not a quantity.
    pub fn of(text: &str) -> Result<Self, ParseQuantityError> {
        Self::read(text).ok_or_else(|| ParseQuantityError(text.chars().take(64).collect()))
    }

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let parts = Parts::of(text)?;
        let unit = unit(parts.suffix)?;
        parts.small(unit).or_else(|| parts.large(unit)).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn quantity(&self) -> Quantity {
        let nano = match &self.0 {
            Amount::Small { value, scale } => nano(*value, *scale),
            Amount::Large { number, .. } => number.nano(),
        };
        Quantity { nano }
    }

    /// `Value()`, which the kubelet and the scheduler use: the number rounded up; for numbers that do not fit
    /// 64 bits, the result of Go's arithmetic.
    #[must_use]
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// `MilliValue()`: as [`Parsed::value`], in thousandths.
    #[must_use]
    pub fn milli_value(&self) -> i64 {
        self.scaled(-3)
    }

    fn scaled(&self, to: i32) -> i64 {
        match &self.0 {
            Amount::Small { value, scale } => scaled(*value, *scale, to),
            Amount::Large { number, capped } => number.scaled(to, *capped),
        }
    }
}

/// Returns billionths, saturating.
fn nano(value: i64, scale: i32) -> i128 {
    let power = u32::try_from(i64::from(scale) - i64::from(NANO)).unwrap_or(0);
    let unit = 10_i128.checked_pow(power).unwrap_or(i128::MAX);
    i128::from(value).saturating_mul(unit)
}

/// `AsScaledInt64`: rounds away from zero. A result that does not fit is truncated to 64 bits for some powers
/// and 0 for all others.
fn scaled(value: i64, scale: i32, to: i32) -> i64 {
    if scale < to {
        let unit = 10_i64.pow(scale.abs_diff(to));
        return value / unit + (value % unit).signum();
    }
    // For the very largest exponents Go gets a negative power, and leaves the value unchanged.
    match u32::try_from(scale.wrapping_sub(to)).unwrap_or(0) {
        power @ (0..=3 | 6 | 9) => value.wrapping_mul(10_i64.pow(power)),
        power => 10_i64.checked_pow(power).and_then(|unit| value.checked_mul(unit)).unwrap_or(0),
    }
}

/// A decimal number of any size: `digits` times ten to the power of `exponent`.
#[derive(Debug)]
struct Decimal {
    negative: bool,
    /// From the most to the least significant, each below ten. Trimmed: neither the first nor the last is
    /// zero, and zero has no digits.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Returns `i64::MAX`, or its negative.
    fn largest(negative: bool) -> Self {
        let digits = i64::MAX.to_string().into_bytes().into_iter().map(|digit| digit - b'0').collect();
        Self { negative, digits, exponent: 0 }
    }

    fn trim(&mut self) {
        let leading = self.digits.iter().take_while(|digit| **digit == 0).count();
        self.digits.drain(..leading);
        while self.digits.last() == Some(&0) {
            self.digits.pop();
            self.exponent += 1;
        }
    }

    /// Returns the number of digits before the point; zero or negative for a number below one.
    fn integer_digits(&self) -> i64 {
        self.digits.len() as i64 + self.exponent
    }

    fn multiply(&mut self, factor: u64) {
        let mut carry = 0_u128;
        for digit in self.digits.iter_mut().rev() {
            carry += u128::from(*digit) * u128::from(factor);
            *digit = (carry % 10) as u8;
            carry /= 10;
        }
        let mut leading = Vec::new();
        while carry > 0 {
            leading.push((carry % 10) as u8);
            carry /= 10;
        }
        self.digits.splice(..0, leading.into_iter().rev());
    }

    /// Rounds away from zero to a billionth.
    fn round_up(&mut self) {
        let excess = i64::from(NANO) - self.exponent;
        if excess <= 0 || self.digits.is_empty() {
            return;
        }
        let kept = usize::try_from(self.digits.len() as i64 - excess).unwrap_or(0);
        self.digits.truncate(kept);
        self.exponent = i64::from(NANO);
        // What was dropped is not zero, because the last digit was not.
        match self.digits.iter().rposition(|digit| *digit < 9) {
            Some(at) => {
                self.digits[at] += 1;
                self.digits[at + 1..].fill(0);
            }
            None => {
                self.digits.fill(0);
                self.digits.insert(0, 1);
            }
        }
        self.trim();
    }

    /// Returns the digits of the number at or above ten to the power of `power`, and the number of zeros that
    /// follow down to it.
    fn above(&self, power: i64) -> (&[u8], u32) {
        let kept = (self.integer_digits() - power).clamp(0, self.digits.len() as i64);
        let zeros = (self.exponent - power).max(0);
        // The digits are no more than the text's; more zeros than this do not change the results.
        (&self.digits[..kept as usize], zeros.min(1000) as u32)
    }

    /// Returns the low 64 bits of the number divided by ten to the power of `power`, rounded down.
    fn low_bits(&self, power: i64) -> i64 {
        let (digits, zeros) = self.above(power);
        let low = digits.iter().fold(0_u64, |low, digit| low.wrapping_mul(10).wrapping_add((*digit).into()));
        low.wrapping_mul(10_u64.wrapping_pow(zeros)) as i64
    }

    /// Returns the absolute number divided by ten to the power of `power`, rounded down and saturating.
    fn saturated(&self, power: i64) -> i128 {
        let (digits, zeros) = self.above(power);
        let mut all =
            digits.iter().copied().chain(repeat_n(0, if digits.is_empty() { 0 } else { zeros as usize }));
        let sum = all.try_fold(0_i128, |sum, digit| sum.checked_mul(10)?.checked_add(digit.into()));
        sum.unwrap_or(i128::MAX)
    }

    /// Returns billionths, saturating.
    fn nano(&self) -> i128 {
        let nano = self.saturated(NANO.into());
        if self.negative { -nano } else { nano }
    }

    /// `scaledValue`. Go intends to round up, but not so for negative numbers: it truncates to 64 bits first,
    /// then rounds towards zero and adds one.
    fn scaled(&self, to: i32, capped: bool) -> i64 {
        if capped {
            let low = self.low_bits(to.into());
            return if self.negative { low.wrapping_neg() } else { low };
        }
        if self.negative {
            let (nano, unit) = (self.low_bits(NANO.into()).wrapping_neg(), 10_i64.pow(to.abs_diff(NANO)));
            return nano / unit + i64::from(nano % unit != 0);
        }
        let (digits, _) = self.above(to.into());
        self.low_bits(to.into()).wrapping_add(i64::from(digits.len() < self.digits.len()))
    }
}
