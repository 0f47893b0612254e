//! Sets of small ids (CPUs, NUMA nodes) as bitmaps, in the kernel's `cpulist` syntax.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The id of a CPU or a NUMA node. Linux supports at most 8,192 CPUs and 1,024 nodes.
pub type Id = u16;

/// A set of ids. Its size depends on the highest id: 128 bytes for a thousand CPUs.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdSet {
    /// Bit `i % 64` of word `i / 64`. The last word is never 0, so that equal sets have equal words.
    words: Vec<u64>,
}

/// The text is not a list of ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of ids such as 0-3,8")]
pub struct ParseIdSetError(String);

impl IdSet {
    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds one id.
    pub fn insert(&mut self, id: Id) {
        self.insert_range(id, id);
    }

    /// Adds every id from `first` to `last`, word by word: a file may repeat `0-65535` a hundred thousand
    /// times.
    fn insert_range(&mut self, first: Id, last: Id) {
        let ((from, _), (to, _)) = (position(first), position(last));
        if to >= self.words.len() {
            self.words.resize(to + 1, 0);
        }
        for word in from..=to {
            let low = if word == from { first % 64 } else { 0 };
            let high = if word == to { last % 64 } else { 63 };
            self.words[word] |= (u64::MAX >> (63 - high)) & (u64::MAX << low);
        }
    }

    /// Adds every id of the range.
    pub fn extend(&mut self, ids: std::ops::Range<Id>) {
        if let Some(last) = ids.end.checked_sub(1).filter(|last| *last >= ids.start) {
            self.insert_range(ids.start, last);
        }
    }

    /// Returns true if `id` is in the set.
    #[must_use]
    pub fn contains(&self, id: Id) -> bool {
        let (word, bit) = position(id);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Adds every id of `other`.
    pub fn union_with(&mut self, other: &Self) {
        if other.words.len() > self.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine |= theirs;
        }
    }

    /// Returns true if the sets share an id.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Returns the number of ids in both sets.
    #[must_use]
    pub fn common(&self, other: &Self) -> u64 {
        self.words.iter().zip(&other.words).map(|(a, b)| u64::from((a & b).count_ones())).sum()
    }

    /// Returns the ids in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::trimmed(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// Returns the ids of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let theirs = other.words.iter().chain(std::iter::repeat(&0));
        Self::trimmed(self.words.iter().zip(theirs).map(|(a, b)| a & !b).collect())
    }

    /// Iterates over the ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Id> + '_ {
        (0_u16..).zip(&self.words).flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let lowest = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(index * 64 + lowest as Id)
            })
        })
    }

    /// Returns the highest id.
    #[must_use]
    pub fn last(&self) -> Option<Id> {
        let word = self.words.last()?;
        let index = Id::try_from(self.words.len() - 1).ok()?;
        Id::try_from(63 - word.leading_zeros()).ok().map(|bit| index * 64 + bit)
    }

    /// Returns the ids 0 to 63 as a bit mask.
    #[must_use]
    pub fn low_mask(&self) -> u64 {
        self.words.first().copied().unwrap_or(0)
    }

    fn trimmed(mut words: Vec<u64>) -> Self {
        while words.last() == Some(&0) {
            words.pop();
        }
        Self { words }
    }
}

fn position(id: Id) -> (usize, u64) {
    (usize::from(id / 64), 1 << (id % 64))
}

impl FromIterator<Id> for IdSet {
    fn from_iter<I: IntoIterator<Item = Id>>(ids: I) -> Self {
        let mut set = Self::new();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

impl FromStr for IdSet {
    type Err = ParseIdSetError;

    /// Parses the kernel's `cpulist` syntax; blank text is the empty set.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseIdSetError(text.trim().chars().take(64).collect());
        let mut set = Self::new();
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(set);
        }
        for part in trimmed.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: Id = first.trim().parse().map_err(|_| error())?;
            let last: Id = last.trim().parse().map_err(|_| error())?;
            if first > last {
                return Err(error());
            }
            set.insert_range(first, last);
        }
        Ok(set)
    }
}

impl fmt::Display for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while ids.next_if_eq(&last.saturating_add(1)).is_some() {
                last += 1;
            }
            if first == last {
                write!(f, "{comma}{first}")?
            } else {
                write!(f, "{comma}{first}-{last}")?
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for IdSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IdSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = IdSet;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of ids such as \"0-3,8\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<IdSet, E> {
                text.parse().map_err(E::custom)
            }
            // YAML parses a list of one id as a number.
            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<IdSet, E> {
                let id = Id::try_from(id).map_err(E::custom)?;
                Ok([id].into_iter().collect())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> IdSet {
        text.parse().unwrap()
    }

    #[test]
    fn cpulists_are_parsed_and_formatted_as_in_the_kernel() {
        for text in ["", "0", "0-3", "0-3,8", "0,2,4", "63-64", "0-7,16-23,1023", "65535"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set(" 3,1,2\n").to_string(), "1-3");
        assert_eq!(set("\n"), IdSet::new());
    }

    #[test]
    fn a_range_equals_its_ids() {
        for first in [0, 1, 62, 63, 64, 65, 127, 128, 65_535] {
            for last in [0, 1, 63, 64, 100, 127, 191, 192, 65_535].into_iter().filter(|last| *last >= first) {
                let mut range = set("3");
                range.insert_range(first, last);
                let expected: IdSet = (first..=last).chain([3]).collect();
                assert!(range == expected, "{first}-{last}");
            }
        }
    }

    #[test]
    fn malformed_lists_are_errors() {
        for text in ["a", "1-", "3-1", "1,,2", "70000", "-1", "(null)", "0-3:1/2"] {
            assert!(text.parse::<IdSet>().is_err(), "{text}");
        }
    }

    #[test]
    fn set_operations_keep_equal_sets_equal() {
        let (a, b) = (set("0-9,100"), set("5-12,200"));
        assert_eq!(a.intersection(&b), set("5-9"));
        assert!(a.intersects(&b) && !a.intersects(&set("10-99,101")) && !a.intersects(&IdSet::new()));
        assert_eq!(a.difference(&b), set("0-4,100"));
        assert_eq!(a.difference(&a), IdSet::new());
        assert!(a.difference(&a).is_empty());
        let mut union = a.clone();
        union.union_with(&b);
        assert_eq!(union, set("0-12,100,200"));
        assert_eq!(union.len(), 15);
        assert_eq!(union.last(), Some(200));
        assert_eq!(IdSet::new().last(), None);
        assert!(union.contains(200) && !union.contains(199) && !union.contains(60_000));
    }
}
