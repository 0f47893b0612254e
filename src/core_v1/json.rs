//! Conversion of a pod from the Pods API's message to JSON.
//!
//! The output is that of Go's types (`json.Marshal` of a `corev1.Pod`). Instead of a type for each of a pod's
//! 150 messages, a table generated from Go's types contains the fields' names and when they are omitted.

use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::text;
use crate::quantity::Parsed;
use crate::util::wire::{Value, WireError, fields, fields_in};

/// The table. Each message has a line with its name, followed by a line for each field: its number, its name
/// (`-` for an embedded message, whose fields are inlined), and its kind. Prefixes of the kind: `?` omitted
/// if empty, `*` optional, `[]` a list, `{}` a map with string keys.
const TABLE: &str = include_str!("pod.table");

/// Maximum number of values, more than in any pod that an API server accepts: an empty record of two bytes
/// can become a dozen fields.
const MOST: usize = 500_000;

/// Go's zero time: the beginning of the year 1.
const NO_TIME: i64 = -62_135_596_800;

#[derive(Debug)]
struct Message {
    name: &'static str,
    /// In the order of the table.
    fields: Vec<Field>,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    number: u32,
    /// `None` for an embedded message, whose fields are inlined.
    name: Option<&'static str>,
    /// Whether it is omitted if empty.
    omitted: bool,
    shape: Shape,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Always present, possibly empty.
    One,
    /// Optional; absent differs from empty.
    Maybe,
    List,
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Bool,
    Int32,
    Int64,
    Time,
    Quantity,
    IntOrString,
    /// Already JSON.
    Json,
    /// The index of the message in the table.
    Message(usize),
}

/// Converts a serialized pod, as the Pods API returns it, to JSON. Unknown fields (of a newer Kubernetes) are
/// omitted, as are `apiVersion` and `kind`, which are not part of the message.
///
/// # Errors
/// If the bytes are invalid.
pub fn pod_json(bytes: &[u8]) -> Result<Json, String> {
    let table = table();
    let mut reader = Reader { bytes, table, left: MOST };
    let mut pod = Map::new();
    let message = table.first().ok_or("there is no table of a pod's fields")?;
    reader.message(message, 0..bytes.len(), &mut pod)?;
    Ok(Json::Object(pod))
}

fn table() -> &'static [Message] {
    static PARSED: OnceLock<Vec<Message>> = OnceLock::new();
    PARSED.get_or_init(|| parse(TABLE))
}

fn parse(text: &'static str) -> Vec<Message> {
    let lines = || text.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = lines().filter(|line| !line.contains(' ')).collect();
    let mut messages: Vec<Message> = Vec::with_capacity(names.len());
    for line in lines() {
        match (line.contains(' '), messages.last_mut()) {
            (false, _) => messages.push(Message { name: line, fields: Vec::new() }),
            (true, Some(message)) => message.fields.extend(field(line, &names)),
            (true, None) => {}
        }
    }
    messages
}

fn field(line: &'static str, names: &[&str]) -> Option<Field> {
    let mut words = line.split(' ');
    let (number, name, kind) = (words.next()?, words.next()?, words.next()?);
    let (omitted, kind) = strip(kind, "?");
    let marks = [("*", Shape::Maybe), ("[]", Shape::List), ("{}", Shape::Map)];
    let marked = marks.into_iter().find_map(|(mark, shape)| Some((shape, kind.strip_prefix(mark)?)));
    let (shape, kind) = marked.unwrap_or((Shape::One, kind));
    let kind = match kind {
        "string" => Kind::Text,
        "bool" => Kind::Bool,
        "int32" => Kind::Int32,
        "int64" => Kind::Int64,
        "time" => Kind::Time,
        "quantity" => Kind::Quantity,
        "intOrString" => Kind::IntOrString,
        "json" => Kind::Json,
        message => Kind::Message(names.iter().position(|name| *name == message)?),
    };
    let name = (name != "-").then_some(name);
    Some(Field { number: number.parse().ok()?, name, omitted, shape, kind })
}

fn strip<'a>(text: &'a str, mark: &str) -> (bool, &'a str) {
    text.strip_prefix(mark).map_or((false, text), |rest| (true, rest))
}

/// Reads messages. The nesting depth is limited by the table, not by the input.
struct Reader<'a> {
    bytes: &'a [u8],
    table: &'static [Message],
    /// Number of values that may still be read.
    left: usize,
}

type Part = std::ops::Range<usize>;

impl Reader<'_> {
    /// Reads a message into `object`, which may already have some of its fields: a message may be encoded in
    /// pieces.
    fn message(
        &mut self,
        message: &Message,
        part: Part,
        object: &mut Map<String, Json>,
    ) -> Result<(), String> {
        for record in fields_in(self.bytes, part) {
            let record = record.map_err(|error| wrong(message, error))?;
            let known = message.fields.iter().find(|field| field.number == record.number);
            if let Some(field) = known {
                self.field(field, record.value, object).map_err(|reason| match field.name {
                    Some(name) => format!("{name}: {reason}"),
                    None => reason,
                })?;
            }
        }
        self.complete(message, object)
    }

    fn field(&mut self, field: &Field, value: Value, object: &mut Map<String, Json>) -> Result<(), String> {
        self.count()?;
        let Some(name) = field.name else {
            return match (field.kind, value) {
                (Kind::Message(number), Value::Bytes(part)) => {
                    self.message(&self.table[number], part, object)
                }
                _ => Err(other_kind()),
            };
        };
        match field.shape {
            Shape::One | Shape::Maybe => {
                let before = object.remove(name);
                let read = self.one(field.kind, value, before)?;
                if !(field.omitted && field.shape == Shape::One && is_empty(&read)) {
                    object.insert(name.to_owned(), read);
                }
            }
            Shape::List => {
                let mut items = Vec::new();
                match (field.kind, value) {
                    (Kind::Int32 | Kind::Int64, Value::Bytes(part)) => {
                        self.packed(field.kind, part, &mut items)?;
                    }
                    (kind, value) => items.push(self.one(kind, value, None)?),
                }
                match object.get_mut(name) {
                    Some(Json::Array(list)) => list.append(&mut items),
                    // Missing, or null because an earlier piece had none.
                    _ => drop(object.insert(name.to_owned(), Json::Array(items))),
                }
            }
            Shape::Map => {
                let Value::Bytes(part) = value else { return Err(other_kind()) };
                let (key, value) = self.entry(field.kind, part)?;
                match object.get_mut(name) {
                    Some(Json::Object(map)) => drop(map.insert(key, value)),
                    _ => drop(object.insert(name.to_owned(), Json::Object(Map::from_iter([(key, value)])))),
                }
            }
        }
        Ok(())
    }

    /// Reads the value of a record; `before` is that of an earlier record of the same field.
    fn one(&mut self, kind: Kind, value: Value, before: Option<Json>) -> Result<Json, String> {
        Ok(match (kind, value) {
            (Kind::Text, Value::Bytes(part)) => Json::String(text(&self.bytes[part]).into_owned()),
            (Kind::Bool, Value::Varint(value)) => Json::Bool(value != 0),
            (Kind::Int32 | Kind::Int64, Value::Varint(value)) => whole(kind, value),
            (Kind::Time, Value::Bytes(part)) => time(&self.bytes[part])?,
            (Kind::Quantity, Value::Bytes(part)) => quantity(&self.bytes[part])?,
            (Kind::IntOrString, Value::Bytes(part)) => int_or_string(&self.bytes[part])?,
            (Kind::Json, Value::Bytes(part)) => json(&self.bytes[part])?,
            (Kind::Message(number), Value::Bytes(part)) => {
                let mut object = match before {
                    Some(Json::Object(object)) => object,
                    _ => Map::new(),
                };
                self.message(&self.table[number], part, &mut object)?;
                Json::Object(object)
            }
            _ => return Err(other_kind()),
        })
    }

    /// Reads packed numbers.
    fn packed(&mut self, kind: Kind, part: Part, list: &mut Vec<Json>) -> Result<(), String> {
        let mut rest = &self.bytes[part];
        while !rest.is_empty() {
            self.count()?;
            let value = prost::encoding::decode_varint(&mut rest).map_err(|error| error.to_string())?;
            list.push(whole(kind, value));
        }
        Ok(())
    }

    /// Reads the key and value of a map entry.
    fn entry(&mut self, kind: Kind, part: Part) -> Result<(String, Json), String> {
        let (mut key, mut entry) = (String::new(), None);
        for record in fields_in(self.bytes, part) {
            let record = record.map_err(|error| error.to_string())?;
            match (record.number, record.value) {
                (1, Value::Bytes(part)) => key = text(&self.bytes[part]).into_owned(),
                (2, value) => entry = Some(self.one(kind, value, None)?),
                (1, _) => return Err(other_kind()),
                _ => {}
            }
        }
        let value = match entry {
            Some(value) => value,
            None => self.nothing(kind)?,
        };
        Ok((key, value))
    }

    /// Adds the fields that are always present, with their zero values.
    fn complete(&mut self, message: &Message, object: &mut Map<String, Json>) -> Result<(), String> {
        for field in &message.fields {
            match (field.name, field.kind) {
                (None, Kind::Message(number)) => self.complete(&self.table[number], object)?,
                (Some(name), kind) if !field.omitted && !object.contains_key(name) => {
                    self.count()?;
                    let value = match field.shape {
                        Shape::One => self.nothing(kind)?,
                        Shape::Maybe | Shape::List | Shape::Map => Json::Null,
                    };
                    object.insert(name.to_owned(), value);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the zero value of a kind.
    fn nothing(&mut self, kind: Kind) -> Result<Json, String> {
        Ok(match kind {
            Kind::Text => Json::String(String::new()),
            Kind::Bool => Json::Bool(false),
            Kind::Int32 | Kind::Int64 | Kind::IntOrString => 0.into(),
            Kind::Time | Kind::Json => Json::Null,
            Kind::Quantity => "0".into(),
            Kind::Message(number) => {
                let mut object = Map::new();
                self.complete(&self.table[number], &mut object)?;
                Json::Object(object)
            }
        })
    }

    fn count(&mut self) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or_else(|| format!("it has more than {MOST} values"))?;
        Ok(())
    }
}

fn wrong(message: &Message, error: WireError) -> String {
    format!("{}: {error}", message.name)
}

fn other_kind() -> String {
    "it is of another kind".to_owned()
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Bool(value) => !value,
        Json::Number(value) => value.as_i64() == Some(0),
        Json::String(value) => value.is_empty(),
        Json::Array(_) | Json::Object(_) => false,
    }
}

/// Converts an integer. For 32 bits, the upper half is dropped.
#[allow(clippy::cast_possible_truncation, reason = "as Go does")]
fn whole(kind: Kind, value: u64) -> Json {
    match kind {
        Kind::Int32 => (value as i32).into(),
        _ => value.cast_signed().into(),
    }
}

/// Reads a time in seconds; Go drops fractions.
fn time(bytes: &[u8]) -> Result<Json, String> {
    let mut seconds = if bytes.is_empty() { NO_TIME } else { 0 };
    for record in fields(bytes) {
        let record = record.map_err(|error| error.to_string())?;
        match (record.number, record.value) {
            (1, Value::Varint(value)) => seconds = value.cast_signed(),
            (1, _) => return Err(other_kind()),
            _ => {}
        }
    }
    match seconds {
        NO_TIME => Ok(Json::Null),
        seconds => match Timestamp::from_second(seconds) {
            Ok(time) => Ok(Json::String(time.to_string())),
            Err(error) => Err(error.to_string()),
        },
    }
}

/// Reads a quantity and formats it in Go's canonical form, which may differ from the input.
fn quantity(bytes: &[u8]) -> Result<Json, String> {
    let mut quantity = "0".to_owned();
    for record in fields(bytes) {
        let record = record.map_err(|error| error.to_string())?;
        match (record.number, record.value) {
            (1, Value::Bytes(part)) => {
                let parsed = text(&bytes[part]);
                quantity = Parsed::of(&parsed).map_err(|error| error.to_string())?.canonical();
            }
            (1, _) => return Err(other_kind()),
            _ => {}
        }
    }
    Ok(Json::String(quantity))
}

fn int_or_string(bytes: &[u8]) -> Result<Json, String> {
    let (mut kind, mut number, mut string) = (0, 0.into(), String::new());
    for record in fields(bytes) {
        let record = record.map_err(|error| error.to_string())?;
        match (record.number, record.value) {
            (1, Value::Varint(value)) => kind = value,
            (2, Value::Varint(value)) => number = whole(Kind::Int32, value),
            (3, Value::Bytes(part)) => string = text(&bytes[part]).into_owned(),
            (1..=3, _) => return Err(other_kind()),
            _ => {}
        }
    }
    match kind {
        0 => Ok(number),
        1 => Ok(Json::String(string)),
        _ => Err("it is neither a number nor a text".to_owned()),
    }
}

/// Reads a value that is already JSON (`managedFields`).
fn json(bytes: &[u8]) -> Result<Json, String> {
    let mut raw = Json::Null;
    for record in fields(bytes) {
        let record = record.map_err(|error| error.to_string())?;
        match (record.number, record.value) {
            (1, Value::Bytes(part)) if part.is_empty() => raw = Json::Null,
            (1, Value::Bytes(part)) => {
                raw = serde_json::from_slice(&bytes[part]).map_err(|error| error.to_string())?;
            }
            (1, _) => return Err(other_kind()),
            _ => {}
        }
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::util::wire::{put_bytes, put_number};

    fn message(records: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|(number, content)| put_bytes(&mut out, *number, content));
        out
    }

    #[test]
    fn every_line_of_the_table_is_understood() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        let (fields, messages): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(' '));
        assert_eq!(table().len(), messages.len());
        assert_eq!(table().iter().map(|message| message.fields.len()).sum::<usize>(), fields.len());
        assert_eq!(table()[0].name, "Pod");
    }

    #[test]
    fn what_there_always_is_is_there_in_an_empty_message() {
        let empty = pod_json(&[]).unwrap();
        assert_eq!(empty, json!({"metadata": {}, "spec": {"containers": null}, "status": {}}));
        let container = message(&[(2, &message(&[(2, b"")]))]);
        let pod = pod_json(&container).unwrap();
        assert_eq!(pod["spec"], json!({"containers": [{"name": "", "resources": {}}]}));
        // Most of its fields are in an embedded message, which is missing here.
        let ephemeral = message(&[(2, &message(&[(34, &message(&[(2, b"a")]))]))]);
        let ephemeral = pod_json(&ephemeral).unwrap()["spec"]["ephemeralContainers"][0].take();
        assert_eq!(ephemeral, json!({"name": "", "resources": {}, "targetContainerName": "a"}));
    }

    #[test]
    fn a_message_in_pieces_is_one() {
        let name = message(&[(1, &message(&[(1, b"a"), (14, b"x")]))]);
        let labels = message(&[(1, &message(&[(11, &message(&[(1, b"k"), (2, b"v")])), (14, b"y")]))]);
        let pod = pod_json(&[name, labels].concat()).unwrap();
        assert_eq!(pod["metadata"], json!({"name": "a", "finalizers": ["x", "y"], "labels": {"k": "v"}}));
    }

    #[test]
    fn what_is_no_text_is_written_as_go_writes_it() {
        let pod = pod_json(&message(&[(1, &message(&[(1, b"a\xff\xf0\x9f\x98b")]))])).unwrap();
        assert_eq!(pod["metadata"]["name"], "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}b");
    }

    #[test]
    fn quantities_are_written_as_go_writes_them_again() {
        let pod = |amount: &[u8]| {
            let limit = message(&[(1, b"cpu"), (2, &message(&[(1, amount)]))]);
            let container = message(&[(8, &message(&[(1, &limit)]))]);
            pod_json(&message(&[(2, &message(&[(2, &container)]))]))
        };
        for (from, to) in [
            ("419591000", "419591k"),
            ("-1000", "-1k"),
            ("1024Ki", "1Mi"),
            ("5e-1", "500e-3"),
            ("0.5", "500m"),
        ] {
            let limits = &pod(from.as_bytes()).unwrap()["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(*limits, json!({"cpu": to}), "{from}");
        }
        for nonsense in [&b""[..], b"1 ", b"1.5.5", b"\xff"] {
            let error = pod(nonsense).unwrap_err();
            assert!(error.ends_with("is not a Kubernetes quantity such as 4, 500m, 64Mi or 16Gi"), "{error}");
        }
    }

    fn number(tag: u32, value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, tag, value);
        out
    }

    /// Returns the `metadata` of a pod whose metadata message has this content.
    fn with_metadata(content: &[u8]) -> Result<Json, String> {
        Ok(pod_json(&message(&[(1, content)]))?["metadata"].take())
    }

    /// Returns the only container of a pod, whose message has this content.
    fn with_container(content: &[u8]) -> Result<Json, String> {
        Ok(pod_json(&message(&[(2, &message(&[(2, content)]))]))?["spec"]["containers"][0].take())
    }

    /// Returns the port of a probe.
    fn with_port(port: &[u8]) -> Result<Json, String> {
        let probe = message(&[(1, &message(&[(3, &message(&[(1, port)]))]))]);
        Ok(with_container(&message(&[(10, &probe)]))?["livenessProbe"]["tcpSocket"]["port"].take())
    }

    fn with_managed_fields(fields: &[u8]) -> Result<Json, String> {
        Ok(with_metadata(&message(&[(17, &message(&[(7, fields)]))]))?["managedFields"][0]["fieldsV1"].take())
    }

    #[test]
    fn lists_of_numbers_may_be_packed_or_not() {
        let groups = |content: &[u8]| -> Result<Json, String> {
            let context = message(&[(14, content)]);
            Ok(pod_json(&message(&[(2, &context)]))?["spec"]["securityContext"]["supplementalGroups"].take())
        };
        let packed = message(&[(4, &[1, 0x80, 0x01])]);
        assert_eq!(groups(&[packed, number(4, 7)].concat()), Ok(json!([1, 128, 7])));
        assert!(groups(&message(&[(4, &[0x80])])).is_err(), "half a number");
    }

    #[test]
    fn what_is_empty_is_left_out_where_go_leaves_it_out() {
        let empty = [message(&[(1, b"")]), number(7, 0)].concat();
        assert_eq!(with_metadata(&empty), Ok(json!({})), "name and generation");
        assert_eq!(with_metadata(&[empty, number(7, 3)].concat()), Ok(json!({"generation": 3})));
        assert_eq!(with_container(&number(16, 0)), Ok(json!({"name": "", "resources": {}})), "stdin");
        assert_eq!(with_container(&number(16, 1)).unwrap()["stdin"], true);
    }

    #[test]
    fn labels_are_the_last_of_each_key() {
        let label = |key: &[u8], value: &[u8]| message(&[(11, &message(&[(1, key), (2, value)]))]);
        let labels = [label(b"a", b"1"), label(b"b", b"2"), label(b"a", b"3")].concat();
        assert_eq!(with_metadata(&labels), Ok(json!({"labels": {"a": "3", "b": "2"}})));
    }

    #[test]
    fn times_are_seconds_and_the_year_1_is_none() {
        let deleted =
            |time: &[u8]| Ok::<_, String>(with_metadata(&message(&[(9, time)]))?["deletionTimestamp"].take());
        assert_eq!(deleted(&number(1, 86_400)), Ok(json!("1970-01-02T00:00:00Z")));
        assert_eq!(deleted(&number(1, (-62_135_596_800_i64).cast_unsigned())), Ok(Json::Null));
        assert_eq!(deleted(&[]), Ok(Json::Null));
        // Only nanoseconds.
        assert_eq!(deleted(&number(2, 5)), Ok(json!("1970-01-01T00:00:00Z")));
    }

    #[test]
    fn ports_are_numbers_or_names() {
        assert_eq!(
            with_port(&[number(1, 0), number(2, (1 << 32) + 80), message(&[(3, b"x")])].concat()),
            Ok(json!(80))
        );
        assert_eq!(
            with_port(&[number(1, 1), number(2, 80), message(&[(3, b"http")])].concat()),
            Ok(json!("http"))
        );
        assert_eq!(with_port(&[]), Ok(json!(0)));
        assert!(with_port(&number(1, 2)).is_err(), "neither");
    }

    #[test]
    fn what_is_json_already_is_that() {
        assert_eq!(with_managed_fields(&message(&[(1, br#"{"f:a":{}}"#)])), Ok(json!({"f:a": {}})));
        assert_eq!(with_managed_fields(&message(&[(1, b"")])), Ok(Json::Null));
        assert!(with_managed_fields(&message(&[(1, b"{")])).is_err());
    }

    #[test]
    fn what_is_of_another_kind_is_refused() {
        let (one, text) = (number(1, 7), message(&[(1, b"x")]));
        let cases = [
            ("a label's key", with_metadata(&message(&[(11, &one)]))),
            ("a time", with_metadata(&message(&[(9, &text)]))),
            ("a quantity", with_container(&message(&[(8, &message(&[(1, &message(&[(2, &one)]))]))]))),
            ("a port's kind", with_port(&text)),
            ("a port's name", with_port(&number(3, 7))),
            ("managed fields", with_managed_fields(&one)),
            ("a probe's handler", with_container(&message(&[(10, &one)]))),
            ("a boolean", with_container(&message(&[(16, b"x")]))),
        ];
        for (what, read) in cases {
            assert!(
                read.as_ref().is_err_and(|error| error.ends_with("it is of another kind")),
                "{what}: {read:?}"
            );
        }
    }

    #[test]
    fn rubbish_is_refused_with_a_reason() {
        let one = number(1, 7);
        let deleted = message(&[(1, &message(&[(9, &number(1, i64::MAX.cast_unsigned()))]))]);
        for (bytes, reason) in [
            (&[0x0a, 0x05, 0x0a][..], "Pod: the bytes are no protocol buffers message"),
            (&one, "metadata: it is of another kind"),
            (&message(&[(1, &one)]), "metadata: name: it is of another kind"),
            (&deleted, "metadata: deletionTimestamp: "),
        ] {
            let error = pod_json(bytes).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
        let many = [0x12, 0x00].repeat(MOST + 1);
        assert!(pod_json(&many).unwrap_err().contains("more than"));
    }
}
