//! Name patterns with the semantics of Go's `path.Match`, for compatibility with RTE's `podExclude`. Glob
//! crates differ in classes, escapes and braces.

use std::fmt;
use std::str::{Chars, FromStr};

use serde::{Deserialize, Serialize};

use super::text::serialize_as_text;

/// A pattern: `*` matches any sequence of characters, `?` one character, `[a-c]` and `[^a-c]` one (not) of
/// these; `\` escapes the next character. The whole name has to match. As in Go, `*` and `?` do not match
/// `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Run,
    One,
    Exactly(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

const CLASS: &str =
    "a class is written like [a-z] or [^0-9]; `\\[`, `\\]` and `\\-` are the characters themselves";
const LAST_ESCAPE: &str = "a `\\` needs a character after it";
const EMPTY: &str = "a pattern must not be empty; write `*` for every name";

impl Pattern {
    /// Returns the pattern `*`.
    #[must_use]
    pub fn any() -> Self {
        Self { text: "*".to_owned(), parts: vec![Part::Run] }
    }

    /// Returns true if it matches the whole of `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (mut parts, mut rest) = (self.parts.as_slice(), name.chars());
        // Backtracking: on a mismatch after the last `*`, let that match one character more. Earlier ones
        // matched as little as possible, so giving them more would not help.
        let mut retry: Option<(&[Part], Chars<'_>)> = None;
        loop {
            let advanced = match parts.split_first() {
                Some((Part::Run, after)) => {
                    retry = Some((after, rest.clone()));
                    parts = after;
                    continue;
                }
                Some((part, after)) => rest.next().is_some_and(|c| part.matches(c)).then_some(after),
                None if rest.as_str().is_empty() => return true,
                None => None,
            };
            if let Some(after) = advanced {
                parts = after;
                continue;
            }
            let Some((after, from)) = &mut retry else { return false };
            if from.next().is_none_or(|c| c == '/') {
                return false;
            }
            (parts, rest) = (after, from.clone());
        }
    }
}

impl Part {
    fn matches(&self, c: char) -> bool {
        match self {
            Self::Run | Self::One => c != '/',
            Self::Exactly(expected) => c == *expected,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let explain = |reason: &str| format!("`{text}` is not a pattern: {reason}");
        if text.is_empty() {
            return Err(explain(EMPTY));
        }
        let mut parts = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            parts.push(match c {
                '*' => Part::Run,
                '?' => Part::One,
                '[' => class(&mut rest).map_err(explain)?,
                '\\' => Part::Exactly(rest.next().ok_or_else(|| explain(LAST_ESCAPE))?),
                c => Part::Exactly(c),
            });
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

/// Parses what follows a `[`, up to and including its `]`.
fn class(rest: &mut Chars<'_>) -> Result<Part, &'static str> {
    let negated = rest.as_str().starts_with('^');
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    while ranges.is_empty() || !rest.as_str().starts_with(']') {
        let low = member(rest)?;
        let high = if rest.as_str().starts_with('-') {
            rest.next();
            member(rest)?
        } else {
            low
        };
        ranges.push((low, high));
    }
    rest.next();
    Ok(Part::Class { negated, ranges })
}

/// Parses one character of a class.
fn member(rest: &mut Chars<'_>) -> Result<char, &'static str> {
    match rest.next() {
        None | Some(']' | '-') => Err(CLASS),
        Some('\\') => rest.next().ok_or(LAST_ESCAPE),
        Some(c) => Ok(c),
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

serialize_as_text!(Pattern);

/// A pattern of pods, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct PodPattern {
    /// The pattern of the namespace.
    pub namespace: Pattern,
    /// The pattern of the pod's name.
    pub name: Pattern,
}

impl PodPattern {
    /// Returns true if it matches the pod.
    #[must_use]
    pub fn matches(&self, namespace: &str, name: &str) -> bool {
        self.namespace.matches(namespace) && self.name.matches(name)
    }
}

impl fmt::Display for PodPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Either part may be omitted, but not both, which would match every pod by mistake.
#[derive(Deserialize)]
#[serde(rename = "a pattern of pods", deny_unknown_fields)]
struct Parts {
    #[serde(default)]
    namespace: Option<Pattern>,
    #[serde(default)]
    name: Option<Pattern>,
}

impl TryFrom<Parts> for PodPattern {
    type Error = &'static str;

    fn try_from(Parts { namespace, name }: Parts) -> Result<Self, Self::Error> {
        if namespace.is_none() && name.is_none() {
            return Err("a pattern of pods needs `namespace`, `name` or both; `*` stands for every name");
        }
        let or_any = |pattern: Option<Pattern>| pattern.unwrap_or_else(Pattern::any);
        Ok(Self { namespace: or_any(namespace), name: or_any(name) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 25] = [
        "", "web", "web-1", "web-12", "a", "b", "x", "ax", "dx", "*", "^", "!", "]", "[", "-", "ä", "a]",
        "{a,b}", "a/b", "a/ab", "aab", "xay", "aaab", "?", "[a",
    ];

    /// Patterns, and those of [`NAMES`] that match in Go 1.26's `path.Match`.
    const GO: [(&str, &[&str]); 32] = [
        ("web", &["web"]),
        ("web-?", &["web-1"]),
        ("web-*", &["web-1", "web-12"]),
        ("*-1", &["web-1"]),
        ("w*b-*1", &["web-1"]),
        ("*e*b*", &["web", "web-1", "web-12"]),
        ("?", &["a", "b", "x", "*", "^", "!", "]", "[", "-", "ä", "?"]),
        ("??", &["ax", "dx", "a]", "[a"]),
        ("[a-c]x", &["ax"]),
        ("[^a-c]x", &["dx"]),
        ("[abw]eb", &["web"]),
        ("[!a]", &["a", "!"]),
        ("[^^]", &["a", "b", "x", "*", "!", "]", "[", "-", "ä", "?"]),
        ("[a^]", &["a", "^"]),
        ("w[e]b", &["web"]),
        ("\\*", &["*"]),
        ("\\w\\e\\b", &["web"]),
        ("[\\]]", &["]"]),
        ("[\\-a]", &["a", "-"]),
        ("[a\\-z]", &["a", "-"]),
        ("[b-a]", &[]),
        ("a]", &["a]"]),
        ("{a,b}", &["{a,b}"]),
        ("[ä-ö]", &["ä"]),
        ("w?b*[0-9]", &["web-1", "web-12"]),
        ("*a*", &["a", "ax", "a]", "{a,b}", "aab", "xay", "aaab", "[a"]),
        ("*[^x]*b", &["web", "aab", "aaab"]),
        ("a?b", &["aab"]),
        ("a[/]b", &["a/b"]),
        ("[[]", &["["]),
        ("\\[a", &["[a"]),
        ("*ab", &["aab", "aaab"]),
    ];

    #[test]
    fn patterns_match_as_in_go() {
        for (text, expected) in GO {
            let pattern: Pattern = text.parse().unwrap();
            let found: Vec<&str> = NAMES.into_iter().filter(|name| pattern.matches(name)).collect();
            assert_eq!(found, expected, "{text}");
        }
        for text in ["*", "**"] {
            let pattern: Pattern = text.parse().unwrap();
            assert!(NAMES.iter().all(|name| pattern.matches(name) != name.contains('/')), "{text}");
        }
    }

    #[test]
    fn patterns_that_go_rejects_and_empty_ones_are_errors() {
        for (text, reason) in [
            ("a\\", LAST_ESCAPE),
            ("[a\\", LAST_ESCAPE),
            ("[", CLASS),
            ("[]", CLASS),
            ("[^]", CLASS),
            ("[a", CLASS),
            ("[a-", CLASS),
            ("web-1[", CLASS),
            ("*[", CLASS),
            ("[]a]", CLASS),
            ("[a-]", CLASS),
            ("[-a]", CLASS),
            ("[a-b-c]", CLASS),
            ("", EMPTY),
        ] {
            let error = text.parse::<Pattern>().unwrap_err();
            assert_eq!(error, format!("`{text}` is not a pattern: {reason}"));
        }
    }

    #[test]
    fn namespace_or_name_may_be_omitted() {
        let read = |json: &str| serde_json::from_str::<PodPattern>(json);
        let infra = read(r#"{"namespace": "kube-*"}"#).unwrap();
        assert_eq!(infra.to_string(), "kube-*/*");
        assert!(infra.matches("kube-system", "dns") && !infra.matches("default", "kube-system"));
        let dns = read(r#"{"name": "dns-?"}"#).unwrap();
        assert_eq!(dns.to_string(), "*/dns-?");
        assert!(dns.matches("default", "dns-1") && !dns.matches("dns-1", "web"));
        assert_eq!(read(&serde_json::to_string(&dns).unwrap()).unwrap(), dns);
        assert!(
            read("{}").unwrap_err().to_string().starts_with("a pattern of pods needs `namespace`, `name`")
        );
        let error = read(r#"{"namePattern": "dns"}"#).unwrap_err().to_string();
        assert!(error.starts_with("unknown field `namePattern`, expected `namespace` or `name`"), "{error}");
    }

    /// The definition, as a naive reference implementation.
    fn slow(parts: &[Part], name: &[char]) -> bool {
        match (parts.split_first(), name.split_first()) {
            (None, rest) => rest.is_none(),
            (Some((Part::Run, after)), rest) => {
                slow(after, name) || rest.is_some_and(|(c, tail)| *c != '/' && slow(parts, tail))
            }
            (Some((part, after)), Some((c, tail))) => part.matches(*c) && slow(after, tail),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #![proptest_config(crate::randomised::cases())]

        #[test]
        fn matching_equals_the_definition(text in "([ab*?]|\\[\\^?[ab]\\]){1,8}", name in "[abc]{0,9}") {
            let pattern: Pattern = text.parse().unwrap();
            let letters: Vec<char> = name.chars().collect();
            prop_assert_eq!(pattern.matches(&name), slow(&pattern.parts, &letters));
        }

        #[test]
        fn any_text_is_an_error_or_a_pattern_with_this_text(text in "[ab*?\\[\\]\\\\^-]{0,9}", name in "[ab-]{0,9}") {
            if let Ok(pattern) = text.parse::<Pattern>() {
                prop_assert_eq!(pattern.to_string(), text);
                let _ = pattern.matches(&name);
            }
        }
    }
}
