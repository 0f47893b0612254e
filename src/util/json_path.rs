//! JSON paths, the subset of RFC 9535 that annotations need, and templates that build texts from the selected
//! values. Both are parsed with the configuration; errors include the character position.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Maximum number of steps in a path, and of parts in a template.
const STEPS: usize = 32;

/// A path: `$`, `.name`, `['name']`, `[0]`, and the wildcards `.*` and `[*]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    text: Box<str>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Name(Box<str>),
    Index(usize),
    Any,
}

/// A text with the placeholders `{}`, `{.a.b}` and `{1}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    pieces: Vec<Piece>,
}

/// The text is not a path or not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}: {reason}, at character {position}")]
pub struct PathError {
    text: String,
    what: &'static str,
    reason: &'static str,
    position: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    /// The value at this path below the node, without wildcards.
    Below(Vec<Step>),
    /// What the wildcard with this number matched, counted from 0.
    Matched(usize),
}

/// What a wildcard matched: a key or a position.
#[derive(Clone, Copy, Debug)]
pub enum Match<'a> {
    /// The key of a field.
    Key(&'a str),
    /// The position in an array.
    Position(usize),
}

/// A parser that reads from left to right.
struct Reader<'a> {
    text: &'a str,
    /// What is being parsed, for errors.
    what: &'static str,
    at: usize,
}

impl JsonPath {
    /// Returns the number of wildcards.
    #[must_use]
    pub fn wildcards(&self) -> usize {
        self.steps.iter().filter(|step| **step == Step::Any).count()
    }

    /// Calls `each` for every selected value, arrays in order and objects sorted by key, until it returns
    /// false. Steps only descend, so no part of the document is visited twice.
    pub fn select<'a>(&self, root: &'a Value, each: &mut dyn FnMut(&'a Value, &[Match<'a>]) -> bool) {
        select(&self.steps, root, &mut Vec::new(), each);
    }
}

impl FromStr for JsonPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let mut reader = Reader { text, what: "path", at: 0 };
        if !reader.take("$") {
            return Err(reader.wrong("it starts with `$`"));
        }
        let mut steps = Vec::new();
        while !reader.rest().is_empty() {
            steps.push(reader.step()?);
            if steps.len() > STEPS {
                return Err(reader.wrong("it has too many steps"));
            }
        }
        Ok(Self { text: text.into(), steps })
    }
}

/// The recursion depth is the length of the path.
fn select<'a>(
    steps: &[Step],
    node: &'a Value,
    matched: &mut Vec<Match<'a>>,
    each: &mut dyn FnMut(&'a Value, &[Match<'a>]) -> bool,
) -> bool {
    let Some((step, rest)) = steps.split_first() else { return each(node, matched) };
    let mut deeper = |matched: &mut Vec<Match<'a>>, what: Match<'a>, node: &'a Value| {
        matched.push(what);
        let goes_on = select(rest, node, matched, each);
        matched.pop();
        goes_on
    };
    match (step, node) {
        (Step::Any, Value::Object(fields)) => {
            fields.iter().all(|(key, node)| deeper(matched, Match::Key(key), node))
        }
        (Step::Any, Value::Array(items)) => {
            items.iter().enumerate().all(|(at, node)| deeper(matched, Match::Position(at), node))
        }
        (Step::Name(name), Value::Object(fields)) => {
            fields.get(&**name).is_none_or(|node| select(rest, node, matched, each))
        }
        (Step::Index(index), Value::Array(items)) => {
            items.get(*index).is_none_or(|node| select(rest, node, matched, each))
        }
        _ => true,
    }
}

impl Template {
    /// Maximum useful length of a filled text, in bytes.
    pub const LONGEST: usize = 256;

    /// Returns the highest wildcard number used; 0 if none.
    #[must_use]
    pub fn wildcards(&self) -> usize {
        let number = |piece: &Piece| if let Piece::Matched(index) = piece { index + 1 } else { 0 };
        self.pieces.iter().map(number).max().unwrap_or(0)
    }

    /// Returns true if the template has no placeholders.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    /// Fills in the placeholders; `None` if a value is missing or is neither a string nor a number. A text
    /// longer than [`Self::LONGEST`] bytes is truncated, but stays longer than that, so that callers can
    /// detect it.
    #[must_use]
    pub fn fill(&self, node: &Value, matched: &[Match<'_>]) -> Option<String> {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(plain) => add(&mut text, plain),
                Piece::Below(steps) => add(&mut text, &plain(below(steps, node)?)?),
                Piece::Matched(index) => match matched.get(*index)? {
                    Match::Key(key) => add(&mut text, key),
                    Match::Position(position) => add(&mut text, &position.to_string()),
                },
            }
        }
        Some(text)
    }
}

impl Default for Template {
    /// `{}`: the node itself.
    fn default() -> Self {
        Self { text: "{}".into(), pieces: vec![Piece::Below(Vec::new())] }
    }
}

impl FromStr for Template {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let mut reader = Reader { text, what: "template", at: 0 };
        let mut pieces = Vec::new();
        while !reader.rest().is_empty() {
            let plain = reader.rest().find(['{', '}']).unwrap_or(reader.rest().len());
            if plain > 0 {
                pieces.push(Piece::Text(reader.rest()[..plain].into()));
                reader.at += plain;
                continue;
            }
            if !reader.take("{") {
                return Err(reader.wrong("a `}` without a `{`"));
            }
            pieces.push(reader.placeholder()?);
            if !reader.take("}") {
                return Err(reader.wrong("a placeholder is `{}`, `{.name}` or `{1}`"));
            }
            if pieces.len() > STEPS {
                return Err(reader.wrong("it has too many parts"));
            }
        }
        match pieces.is_empty() {
            true => Err(reader.wrong("it is empty")),
            false => Ok(Self { text: text.into(), pieces }),
        }
    }
}

/// Both are serialized as text.
macro_rules! written {
    ($($value:ty),*) => {$(
        impl fmt::Display for $value {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl Serialize for $value {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.text)
            }
        }

        impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
written!(JsonPath, Template);

/// Appends `more`, but no more than needed to exceed [`Template::LONGEST`].
fn add(text: &mut String, more: &str) {
    let Some(room) = Template::LONGEST.checked_sub(text.len()) else { return };
    let mut ends = more.char_indices().map(|(at, c)| at + c.len_utf8());
    text.push_str(&more[..ends.find(|end| *end > room).unwrap_or(more.len())]);
}

/// Returns the value at a path below a node, without wildcards.
fn below<'a>(steps: &[Step], node: &'a Value) -> Option<&'a Value> {
    steps.iter().try_fold(node, |node, step| match step {
        Step::Name(name) => node.as_object()?.get(&**name),
        Step::Index(index) => node.as_array()?.get(*index),
        Step::Any => None,
    })
}

/// Returns a string or a number as text.
fn plain(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn take(&mut self, start: &str) -> bool {
        let found = self.rest().starts_with(start);
        self.at += if found { start.len() } else { 0 };
        found
    }

    /// Returns an error at the current position.
    fn wrong(&self, reason: &'static str) -> PathError {
        let position = self.text[..self.at].chars().count() + 1;
        PathError { text: self.text.to_owned(), what: self.what, reason, position }
    }

    fn step(&mut self) -> Result<Step, PathError> {
        if self.rest().starts_with("..") {
            return Err(self.wrong("`..` is not supported"));
        }
        if self.take(".*") || self.take("[*]") {
            return Ok(Step::Any);
        }
        if self.take(".") {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let end = self.rest().find(|c| !is_name(c)).unwrap_or(self.rest().len());
            if end == 0 || self.rest().starts_with(|c: char| c.is_ascii_digit()) {
                return Err(self.wrong("a name such as `.gpu`; others are written like `['a/b']`"));
            }
            let name = &self.rest()[..end];
            self.at += end;
            return Ok(Step::Name(name.into()));
        }
        if !self.take("[") {
            return Err(self.wrong("a step is `.name`, `['name']`, `[0]`, `.*` or `[*]`"));
        }
        let step = self.bracketed()?;
        if !self.take("]") {
            return Err(self.wrong("a `[` is closed by `]`"));
        }
        Ok(step)
    }

    fn bracketed(&mut self) -> Result<Step, PathError> {
        for quote in ["'", "\""] {
            if !self.take(quote) {
                continue;
            }
            let Some(end) = self.rest().find(quote) else {
                return Err(self.wrong("a name that is not closed"));
            };
            let name = &self.rest()[..end];
            if name.contains('\\') {
                return Err(self.wrong("`\\` in a name is not supported"));
            }
            self.at += end + quote.len();
            return Ok(Step::Name(name.into()));
        }
        let end = self.rest().find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest().len());
        match self.rest()[..end].parse() {
            Ok(index) => {
                self.at += end;
                Ok(Step::Index(index))
            }
            Err(_) => Err(self.wrong("in brackets is a name in quotes, a position such as `[0]`, or `*`")),
        }
    }

    /// Parses the content of `{` and `}`.
    fn placeholder(&mut self) -> Result<Piece, PathError> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            return match self.rest()[..digits].parse::<usize>() {
                Ok(number) if (1..=STEPS).contains(&number) => {
                    self.at += digits;
                    Ok(Piece::Matched(number - 1))
                }
                _ => Err(self.wrong("wildcards are counted from 1")),
            };
        }
        let mut steps = Vec::new();
        while self.rest().starts_with(['.', '[']) {
            match self.step()? {
                Step::Any => return Err(self.wrong("a placeholder has no wildcard")),
                step => steps.push(step),
            }
            if steps.len() > STEPS {
                return Err(self.wrong("it has too many steps"));
            }
        }
        Ok(Piece::Below(steps))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns what a path selects, each filled into a template.
    fn found(path: &str, template: &str, document: &Value) -> Vec<Option<String>> {
        let (path, template): (JsonPath, Template) = (path.parse().unwrap(), template.parse().unwrap());
        let mut found = Vec::new();
        path.select(document, &mut |node, matched| {
            found.push(template.fill(node, matched));
            true
        });
        found
    }

    fn texts(path: &str, template: &str, document: &Value) -> Vec<String> {
        found(path, template, document).into_iter().map(|text| text.unwrap_or("-".into())).collect()
    }

    #[test]
    fn paths_select_lists_in_order_and_fields_by_their_keys() {
        let document = json!({
            "gpus": [{"uuid": "GPU-a", "n": 0}, {"uuid": "GPU-b", "n": 1}],
            "by/name": {"main": ["x", "y"], "other": ["z"]},
            "plain": "p", "number": 7, "none": null,
        });
        let of = |path: &str, template: &str| texts(path, template, &document);
        assert_eq!(of("$.plain", "{}"), ["p"]);
        assert_eq!(of("$.number", "n{}"), ["n7"]);
        assert_eq!(of("$.none", "{}"), ["-"]);
        assert_eq!(of("$.gpus[1].uuid", "{}"), ["GPU-b"]);
        assert_eq!(of("$.gpus[*].uuid", "{}"), ["GPU-a", "GPU-b"]);
        assert_eq!(of("$.gpus[*]", "{.uuid}::{.n}/{1}"), ["GPU-a::0/0", "GPU-b::1/1"]);
        assert_eq!(of("$['by/name'].*[*]", "{1}-{2}-{}"), ["main-0-x", "main-1-y", "other-0-z"]);
        let parsed = serde_json::from_str(r#"{"b": ["2", "1"], "a": ["3"]}"#).unwrap();
        assert_eq!(texts("$.*[*]", "{}", &parsed), ["3", "2", "1"]);
        assert_eq!(of("$[\"by/name\"].main[0]", "{}"), ["x"]);
        assert_eq!(of("$['by/name'].*", "{[0]}"), ["x", "z"]);
        assert_eq!(of("$.gpus[*]", "{['uuid']}"), ["GPU-a", "GPU-b"]);
        assert_eq!(of("$.gpus[*]", "{.uuid.deeper}"), ["-", "-"]);
        assert_eq!(of("$", "{.plain}"), ["p"]);
        for nothing in ["$.missing", "$.plain.x", "$.gpus.uuid", "$.gpus[2]", "$.number[0]", "$.plain[*]"] {
            assert!(of(nothing, "{}").is_empty(), "{nothing}");
        }
    }

    #[test]
    fn whoever_has_enough_ends_it() {
        let document = json!({"a": [[1, 2, 3], [4, 5, 6]]});
        let path: JsonPath = "$.a[*][*]".parse().unwrap();
        let mut seen = 0;
        path.select(&document, &mut |_, _| {
            seen += 1;
            seen < 4
        });
        assert_eq!(seen, 4);
    }

    #[test]
    fn texts_that_are_too_long_end_where_that_is_seen() {
        let key = "ä".repeat(30_000);
        let document = json!({ key.as_str(): ["x", "x"] });
        for (template, longest) in [("{1}", 258), ("{}{1}", 257), ("{1}{1}{1}{}", 258)] {
            for text in texts("$.*[*]", template, &document) {
                assert_eq!(text.len(), longest, "{template}");
            }
        }
        let exact = "x".repeat(Template::LONGEST);
        assert_eq!(texts("$", "{}", &json!(exact)), [exact.as_str()]);
        assert_eq!(texts("$", "{.a}{.b}", &json!({"a": exact, "b": "ü"})), [format!("{exact}ü")]);
    }

    #[test]
    fn what_is_no_path_is_refused_and_the_place_named() {
        let error = |text: &str| text.parse::<JsonPath>().unwrap_err().to_string();
        for (text, reason) in [
            ("", "`` is no path: it starts with `$`, at character 1"),
            ("a.b", "`a.b` is no path: it starts with `$`, at character 1"),
            ("$a", "`$a` is no path: a step is `.name`, `['name']`, `[0]`, `.*` or `[*]`, at character 2"),
            ("$..a", "`$..a` is no path: `..` is not supported, at character 2"),
            (
                "$.a.",
                "`$.a.` is no path: a name such as `.gpu`; others are written like `['a/b']`, at character 5",
            ),
            (
                "$.a-b",
                "`$.a-b` is no path: a step is `.name`, `['name']`, `[0]`, `.*` or `[*]`, at character 4",
            ),
            (
                "$.0",
                "`$.0` is no path: a name such as `.gpu`; others are written like `['a/b']`, at character 3",
            ),
            ("$['ä", "`$['ä` is no path: a name that is not closed, at character 4"),
            ("$['a'", "`$['a'` is no path: a `[` is closed by `]`, at character 6"),
            ("$['a\\n']", "`$['a\\n']` is no path: `\\` in a name is not supported, at character 4"),
        ] {
            assert_eq!(error(text), reason);
        }
        for text in
            ["$[", "$[]", "$[-1]", "$[1:2]", "$[?@.a]", "$[99999999999999999999]", "$[1", "$.*.", "$[*"]
        {
            assert!(error(text).contains("is no path: "), "{text}");
        }
        assert!(error(&format!("${}", ".a".repeat(33))).contains("too many steps"));
        assert!(format!("${}", ".a".repeat(32)).parse::<JsonPath>().is_ok());
        let wildcards = |text: &str| text.parse::<JsonPath>().unwrap().wildcards();
        assert_eq!((wildcards("$.*.a_1[*]['*']"), wildcards("$.a[0]")), (2, 0));
    }

    #[test]
    fn what_is_no_template_is_refused_and_the_place_named() {
        let error = |text: &str| text.parse::<Template>().unwrap_err().to_string();
        for (text, reason) in [
            ("", "`` is no template: it is empty, at character 1"),
            ("a}", "`a}` is no template: a `}` without a `{`, at character 2"),
            ("a{", "`a{` is no template: a placeholder is `{}`, `{.name}` or `{1}`, at character 3"),
            ("{a}", "`{a}` is no template: a placeholder is `{}`, `{.name}` or `{1}`, at character 2"),
            ("{0}", "`{0}` is no template: wildcards are counted from 1, at character 2"),
            ("{.*}", "`{.*}` is no template: a placeholder has no wildcard, at character 4"),
            ("{.a", "`{.a` is no template: a placeholder is `{}`, `{.name}` or `{1}`, at character 4"),
        ] {
            assert_eq!(error(text), reason);
        }
        for text in ["{99999999999999999999}", "{{}}", "{1", "{.}", "{[}"] {
            assert!(error(text).contains("is no template: "), "{text}");
        }
        assert!(error(&"{}".repeat(33)).contains("too many parts"));
        assert!(error(&format!("{{{}}}", ".a".repeat(33))).contains("too many steps"));
        assert!(error("{33}").contains("wildcards are counted from 1"));
        for most in ["{}".repeat(32), format!("{{{}}}", ".a".repeat(32)), "{32}".to_owned()] {
            assert!(most.parse::<Template>().is_ok(), "{most}");
        }
        let template = |text: &str| text.parse::<Template>().unwrap();
        assert_eq!((template("a{2}b{1}").wildcards(), template("{}").wildcards()), (2, 0));
        assert!(template("main").is_fixed() && !template("x{}").is_fixed());
        assert_eq!(Template::default(), template("{}"));
    }

    #[test]
    fn both_are_written_as_they_were_read() {
        for text in ["$", "$.a['b c'][0].*[*]", "$[\"a\"]"] {
            let path: JsonPath = serde_json::from_value(text.into()).unwrap();
            assert_eq!(
                (path.to_string().as_str(), serde_json::to_value(&path).unwrap()),
                (text, text.into())
            );
        }
        let template: Template = serde_json::from_value("{.a}-{1}".into()).unwrap();
        assert_eq!(serde_json::to_value(&template).unwrap(), "{.a}-{1}");
        assert!(serde_json::from_value::<Template>(json!(3)).is_err());
    }
}
