//! Where in an annotation the devices are: a part of JSON path (RFC 9535), and templates that make texts of what lies
//! there. Both are read when the configuration is; errors say at which character.

use std::borrow::Cow;

use serde_json::Value;

/// So many steps a path may have, and so many parts a template.
const STEPS: usize = 32;

/// A path: `$`, `.name`, `['name']`, `[0]`, and the wildcards `.*` and `[*]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Name(Box<str>),
    Index(usize),
    Any,
}

/// A text with `{}`, `{.a.b}` and `{1}` in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    /// What lies there below the node; no step is a wildcard.
    Below(Path),
    /// What this wildcard matched, counted from 0.
    Matched(usize),
}

/// What a wildcard matched: a key or a position.
#[derive(Clone, Copy, Debug)]
pub(super) enum Match<'a> {
    Key(&'a str),
    Position(usize),
}

/// Text that is read from left to right.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Path {
    /// Reads one; the error says what is wrong, and where.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0 };
        if !reader.take("$") {
            return Err(reader.wrong("a path starts with `$`"));
        }
        reader.path()
    }

    /// How many wildcards it has.
    pub(super) fn wildcards(&self) -> usize {
        self.0.iter().filter(|step| **step == Step::Any).count()
    }

    /// Everything that it selects in a document, in the document's order, until `each` has enough. Steps only ever lead
    /// down, so no part of the document is met twice.
    pub(super) fn select<'a>(&self, root: &'a Value, each: &mut dyn FnMut(&'a Value, &[Match<'a>]) -> bool) {
        select(&self.0, root, &mut Vec::new(), each);
    }

    /// What lies at a path without wildcards.
    fn at<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(root, |node, step| match step {
            Step::Name(name) => node.as_object()?.get(&**name),
            Step::Index(index) => node.as_array()?.get(*index),
            Step::Any => None,
        })
    }
}

/// The recursion is as deep as the path is long.
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
    /// Reads one, for a path with so many wildcards; the error says what is wrong, and where.
    pub(super) fn new(text: &str, wildcards: usize) -> Result<Self, String> {
        let mut reader = Reader { text, at: 0 };
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
            pieces.push(reader.placeholder(wildcards)?);
            if !reader.take("}") {
                return Err(reader.wrong("a placeholder ends with `}`"));
            }
            if pieces.len() > STEPS {
                return Err(reader.wrong("too many parts"));
            }
        }
        Ok(Self(pieces))
    }

    /// Does it make the same text of everything?
    pub(super) fn is_fixed(&self) -> bool {
        self.0.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    /// The node itself.
    pub(super) fn itself() -> Self {
        Self(vec![Piece::Below(Path(Vec::new()))])
    }

    /// The text; `None` where something that it is made of is missing, or neither a text nor a number.
    pub(super) fn fill(&self, node: &Value, matched: &[Match<'_>]) -> Option<String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Below(path) => text.push_str(&plain(path.at(node)?)?),
                Piece::Matched(index) => match matched.get(*index)? {
                    Match::Key(key) => text.push_str(key),
                    Match::Position(position) => text.push_str(&position.to_string()),
                },
            }
        }
        Some(text)
    }
}

/// A text or a number as text.
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

    /// `what` at this character.
    fn wrong(&self, what: &str) -> String {
        let position = self.text[..self.at].chars().count() + 1;
        format!("{what}, at character {position} of `{}`", self.text)
    }

    /// All steps up to the end.
    fn path(&mut self) -> Result<Path, String> {
        let mut steps = Vec::new();
        while !self.rest().is_empty() {
            steps.push(self.step()?);
            if steps.len() > STEPS {
                return Err(self.wrong("too many steps"));
            }
        }
        Ok(Path(steps))
    }

    fn step(&mut self) -> Result<Step, String> {
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

    fn bracketed(&mut self) -> Result<Step, String> {
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

    /// What is between `{` and `}`.
    fn placeholder(&mut self, wildcards: usize) -> Result<Piece, String> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            return match self.rest()[..digits].parse::<usize>() {
                Ok(number) if (1..=wildcards).contains(&number) => {
                    self.at += digits;
                    Ok(Piece::Matched(number - 1))
                }
                _ => Err(self.wrong(&format!("the path has {wildcards} wildcards, counted from 1"))),
            };
        }
        let mut steps = Vec::new();
        while !self.rest().is_empty() && !self.rest().starts_with('}') {
            match self.step()? {
                Step::Any => return Err(self.wrong("a placeholder has no wildcard")),
                step => steps.push(step),
            }
            if steps.len() > STEPS {
                return Err(self.wrong("too many steps"));
            }
        }
        Ok(Piece::Below(Path(steps)))
    }
}
