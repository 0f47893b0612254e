//! Dotted paths into JSON documents: `devices.*.uuid`. They are parsed with the configuration.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::text::serialize_as_text;

/// Maximum number of steps in a path.
const MAX_STEPS: usize = 32;
/// Characters that a name contains only behind a backslash. Among them are those of other path languages, so
/// that `$.a[*]` is an error instead of a name.
const SPECIAL: &[char] = &['.', '*', '\\', '$', '[', ']', '{', '}'];

/// A path: names of fields and positions in lists, separated by dots. `*` stands for every field or element.
/// A backslash escapes a special character in a name, as in kubectl (`nvidia\.com/gpu`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    text: Box<str>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A field, or a position in a list.
    Name(Box<str>),
    Any,
}

impl JsonPath {
    /// Returns true if the path has a wildcard.
    #[must_use]
    pub fn has_wildcard(&self) -> bool {
        self.steps.contains(&Step::Any)
    }

    /// Returns true if the path is `*`.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.steps == [Step::Any]
    }

    /// Calls `each` for every selected value, lists in order and objects sorted by key, until it returns
    /// false; with the key of the first field that a wildcard matched. Steps only descend, so no part of the
    /// document is visited twice.
    pub fn select<'a>(&self, root: &'a Value, each: &mut dyn FnMut(&'a Value, Option<&'a str>) -> bool) {
        select(&self.steps, root, None, each);
    }

    /// Returns the first selected value.
    #[must_use]
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        let mut found = None;
        self.select(root, &mut |value, _| {
            found = Some(value);
            false
        });
        found
    }
}

/// The recursion depth is the length of the path.
fn select<'a>(
    steps: &[Step],
    value: &'a Value,
    key: Option<&'a str>,
    each: &mut dyn FnMut(&'a Value, Option<&'a str>) -> bool,
) -> bool {
    let Some((step, rest)) = steps.split_first() else { return each(value, key) };
    match (step, value) {
        (Step::Any, Value::Object(fields)) => {
            fields.iter().all(|(name, value)| select(rest, value, key.or(Some(name)), each))
        }
        (Step::Any, Value::Array(items)) => items.iter().all(|value| select(rest, value, key, each)),
        (Step::Any, _) => true,
        (Step::Name(name), _) => child(value, name).is_none_or(|value| select(rest, value, key, each)),
    }
}

fn child<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields.get(name),
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => None,
    }
}

impl FromStr for JsonPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error =
            |reason: &str| format!("`{text}` is not a path: {reason}; write one such as `devices.*.uuid`");
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            let (step, more) = step(rest).map_err(error)?;
            steps.push(step);
            if steps.len() > MAX_STEPS {
                return Err(error("it has too many steps"));
            }
            match more {
                Some(more) => rest = more,
                None => return Ok(Self { text: text.into(), steps }),
            }
        }
    }
}

/// Parses the first step of a path. Returns the text behind the dot that follows it, if there is one.
fn step(text: &str) -> Result<(Step, Option<&str>), &'static str> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let end = rest.find(SPECIAL).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        let mut behind = rest[end..].chars();
        match behind.next() {
            None | Some('.') if name.is_empty() => return Err("a name is missing"),
            None => return Ok((Step::Name(name.into()), None)),
            Some('.') => return Ok((Step::Name(name.into()), Some(behind.as_str()))),
            Some('\\') => match behind.next().filter(|next| SPECIAL.contains(next)) {
                Some(escaped) => name.push(escaped),
                None => return Err("`\\` must be followed by a special character"),
            },
            Some('*') if name.is_empty() => {
                return match behind.next() {
                    None => Ok((Step::Any, None)),
                    Some('.') => Ok((Step::Any, Some(behind.as_str()))),
                    Some(_) => Err("`*` must be a step of its own"),
                };
            }
            Some(_) => return Err("a special character in a name needs a `\\`"),
        }
        rest = behind.as_str();
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

serialize_as_text!(JsonPath);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn path(text: &str) -> JsonPath {
        text.parse().unwrap()
    }

    /// Returns what a path selects, as `key=value`.
    fn selected(text: &str, document: &Value) -> Vec<String> {
        let mut selected = Vec::new();
        path(text).select(document, &mut |value, key| {
            selected.push(format!("{}={value}", key.unwrap_or_default()));
            true
        });
        selected
    }

    #[test]
    fn lists_are_selected_in_order_and_fields_by_key() {
        let document: Value = serde_json::from_str(
            r#"{"gpus": [{"uuid": "a"}, {"uuid": "b"}], "nvidia.com/gpu": {"next": [1], "main": [2, 3]},
                "*": 4, "0": 5, "none": null}"#,
        )
        .unwrap();
        for (path, expected) in [
            ("gpus.*.uuid", &["=\"a\"", "=\"b\""][..]),
            ("gpus.1.uuid", &["=\"b\""]),
            (r"nvidia\.com/gpu.*.*", &["main=2", "main=3", "next=1"]),
            (r"nvidia\.com/gpu.*.0", &["main=2", "next=1"]),
            (r"\*", &["=4"]),
            ("0", &["=5"]),
            ("none", &["=null"]),
        ] {
            assert_eq!(selected(path, &document), expected, "{path}");
        }
        for nothing in ["missing", "gpus.uuid", "gpus.2", "gpus.-1", "0.0", "0.*", "gpus.0.uuid.a"] {
            assert!(selected(nothing, &document).is_empty(), "{nothing}");
        }
        assert_eq!(path("gpus.*.uuid").first(&document), Some(&json!("a")));
        assert_eq!(path("missing").first(&document), None);
        assert_eq!(selected("*.*", &json!([{"main": 1}, {"next": 2}])), ["main=1", "next=2"]);
        assert_eq!(selected("*.*", &json!({"main": {"x": 1}})), ["main=1"], "the first key");
    }

    #[test]
    fn selecting_ends_when_the_caller_has_enough() {
        let document = json!([[1, 2, 3], [4, 5, 6]]);
        let mut seen = 0;
        path("*.*").select(&document, &mut |_, _| {
            seen += 1;
            seen < 4
        });
        assert_eq!(seen, 4);
    }

    #[test]
    fn other_texts_are_rejected() {
        for (text, reason) in [
            ("", "a name is missing"),
            ("a.", "a name is missing"),
            ("a..b", "a name is missing"),
            (".a", "a name is missing"),
            ("$.a", "a special character in a name needs a `\\`"),
            ("a[0]", "a special character in a name needs a `\\`"),
            ("a*", "a special character in a name needs a `\\`"),
            ("*a", "`*` must be a step of its own"),
            ("**", "`*` must be a step of its own"),
            (r"a\b", "`\\` must be followed by a special character"),
            ("a\\", "`\\` must be followed by a special character"),
        ] {
            let expected = format!("`{text}` is not a path: {reason}; write one such as `devices.*.uuid`");
            assert_eq!(text.parse::<JsonPath>().unwrap_err(), expected);
        }
        assert!(vec!["a"; 33].join(".").parse::<JsonPath>().is_err());
        assert!(vec!["a"; 32].join(".").parse::<JsonPath>().is_ok());
        assert!(path("a.*").has_wildcard() && !path("a.*").is_wildcard() && path("*").is_wildcard());
        assert!(!path(r"a.\*").has_wildcard());
    }

    #[test]
    fn a_path_is_written_as_it_was_read() {
        for text in ["a", r"a\.b/c.0.*.*", "ä b"] {
            let read: JsonPath = serde_json::from_value(text.into()).unwrap();
            assert_eq!(read.to_string(), text);
            assert_eq!(serde_json::to_value(&read).unwrap(), text);
        }
        assert!(serde_json::from_value::<JsonPath>(json!(3)).is_err());
    }
}
