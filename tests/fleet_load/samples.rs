//! Samples in the Prometheus text format, as the API server and numacast expose them.

use std::collections::BTreeMap;

/// Some samples of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples(Vec<Sample>);

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Samples {
    /// Parses the samples whose names are in `names`; other lines are skipped.
    pub(crate) fn read(text: &str, names: &[&str]) -> Self {
        let named = |line: &&str| names.contains(&line.split(['{', ' ']).next().unwrap_or_default());
        Self(text.lines().filter(named).filter_map(read_line).collect())
    }

    /// Returns the sum of the samples with this name whose labels match `chosen`.
    pub(crate) fn sum(&self, name: &str, chosen: impl Fn(&BTreeMap<String, String>) -> bool) -> f64 {
        let chosen = self.0.iter().filter(|sample| sample.name == name && chosen(&sample.labels));
        chosen.map(|sample| sample.value).sum()
    }

    /// Returns the sum of the samples with this name and this label.
    pub(crate) fn with(&self, name: &str, label: &str, value: &str) -> f64 {
        self.sum(name, |labels| labels.get(label).is_some_and(|is| is == value))
    }

    /// Returns the increases since `before`. A counter missing there started at 0.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let earlier = |sample: &Sample| {
            let same = before.0.iter().find(|old| old.name == sample.name && old.labels == sample.labels);
            same.map_or(0.0, |old| old.value)
        };
        let counted =
            self.0.iter().map(|sample| Sample { value: sample.value - earlier(sample), ..sample.clone() });
        Self(counted.collect())
    }
}

/// Parses `name{label="value",other="value"} 12`, optionally with a timestamp.
fn read_line(line: &str) -> Option<Sample> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => read_labels(inner)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Returns the labels and the text after the closing brace. Values may contain braces, commas and escaped
/// quotes.
fn read_labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let end = end_of_value(rest)?;
        labels.insert(name.to_owned(), rest[..end].replace("\\\"", "\"").replace("\\\\", "\\"));
        text = &rest[end + 1..];
    }
}

/// Returns the position of a value's closing quote.
fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the program has no test harness
mod tests {
    use super::*;

    const TEXT: &str = "# HELP calls_total calls\n# TYPE calls_total counter\n\
        calls_total{index=\"f:spec.nodeName\",resource=\"pods\"} 100\n\
        calls_total{index=\"\",resource=\"pods\"} 2e+03\n\
        calls_total{resource=\"a\\\"b},c\"} 3 1690000000\n\
        calls_total_other 7\nplain 1.5\n";

    #[test]
    fn samples_are_summed_by_label() {
        let samples = Samples::read(TEXT, &["calls_total", "plain"]);
        assert_eq!(samples.with("calls_total", "resource", "pods"), 2100.0);
        assert_eq!(samples.with("calls_total", "index", "f:spec.nodeName"), 100.0);
        assert_eq!(samples.with("calls_total", "resource", "a\"b},c"), 3.0);
        assert_eq!(samples.sum("plain", |_| true), 1.5);
        assert_eq!(samples.sum("calls_total_other", |_| true), 0.0);
    }

    #[test]
    fn counters_are_compared_by_all_their_labels() {
        let before = Samples::read("calls_total{resource=\"pods\",index=\"\"} 1500\n", &["calls_total"]);
        let now = Samples::read(TEXT, &["calls_total"]);
        assert_eq!(now.since(&before).with("calls_total", "resource", "pods"), 600.0);
    }
}
