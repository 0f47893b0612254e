//! The item of a JSON list that is just arriving. One that is too large is left out: its creator must not be
//! able to hide all others.

use tracing::warn;

/// Maximum size of an item in JSON. etcd accepts 1.5 MiB by default, and JSON writers of Go escape characters
/// such as `<` as six bytes: 9 MiB.
pub(crate) const LARGEST: usize = 10 << 20;

/// What is kept of an item that is too large, to find its name. Kubernetes writes names first.
const BEGINNING: usize = 1 << 10;

/// Buffers one item after the other.
#[derive(Debug, Default)]
pub(crate) struct OneItem {
    /// The item so far, or the beginning of one that is too large.
    bytes: Vec<u8>,
    too_large: bool,
    /// The number of items that were left out, and the name of the first one.
    left_out: usize,
    first: Option<String>,
}

impl OneItem {
    /// Appends bytes of the item.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.too_large {
            return;
        }
        let room = LARGEST - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            self.too_large = true;
            self.bytes.truncate(BEGINNING);
        }
    }

    /// Ends the item and passes it to `read`. Returns `None` if it is too large.
    pub(crate) fn end<R>(&mut self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let read = (!self.too_large).then(|| read(&self.bytes));
        if self.too_large {
            self.left_out += 1;
            let name = || name(&self.bytes).unwrap_or_else(|| "without a known name".to_owned());
            self.first.get_or_insert_with(name);
        }
        self.bytes.clear();
        self.too_large = false;
        read
    }

    /// Returns a message about the items that were left out, if there are any.
    pub(crate) fn left_out(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        let more = match self.left_out - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("{first}{more}: larger than {LARGEST} bytes in JSON and left out"))
    }
}

/// Logs that items were left out: once, until a list has none.
#[derive(Debug, Default)]
pub(crate) struct LeftOutLog {
    logged: bool,
}

impl LeftOutLog {
    /// Logs the [message](OneItem::left_out) of a list, if there is one and the last list had none.
    pub(crate) fn log(&mut self, list: &str, message: Option<String>) {
        if let (false, Some(message)) = (self.logged, &message) {
            warn!("{list}: {message}");
        }
        self.logged = message.is_some();
    }
}

/// Returns namespace and name from the beginning of an object as Kubernetes writes it in a list.
fn name(beginning: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(beginning);
    let (name, rest) = text.strip_prefix(r#"{"metadata":{"name":""#)?.split_once('"')?;
    let namespace = rest.split_once(r#""namespace":""#).and_then(|(_, rest)| rest.split_once('"'));
    Some(namespace.map_or_else(|| name.to_owned(), |(namespace, _)| format!("{namespace}/{name}")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a pod as Go writes it, whose arguments are this many characters that are escaped.
    fn escaped_pod(name: &str, characters: usize) -> String {
        let text = r"\u003c".repeat(characters);
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"3"}},"spec":{{"containers":[{{"name":"c","args":["]}}\"{text}"]}}]}}}}"#
        )
    }

    /// Characters that fit into etcd's limit of 1.5 MiB.
    const ETCD: usize = 1_450_000;

    /// Returns pods of which only `too-large` exceeds [`LARGEST`]; `large` is as large as etcd accepts.
    pub(crate) fn pods() -> [String; 4] {
        let sizes = [("a", 0), ("large", ETCD), ("too-large", LARGEST / 6), ("b", 0)];
        sizes.map(|(name, characters)| escaped_pod(name, characters))
    }

    #[test]
    fn an_item_that_is_just_small_enough_is_read_whatever_its_pieces() {
        for (size, expected) in [(LARGEST, Some(LARGEST)), (LARGEST + 1, None)] {
            let mut item = OneItem::default();
            for piece in vec![b'x'; size].chunks(999_983) {
                item.push(piece);
            }
            assert_eq!(item.end(<[u8]>::len), expected);
            assert_eq!(item.left_out().is_none(), expected.is_some());
            item.push(b"next");
            assert_eq!(item.end(<[u8]>::to_vec), Some(b"next".to_vec()));
        }
    }

    #[test]
    fn what_is_left_out_is_named() {
        let mut item = OneItem::default();
        for start in [r#"{"metadata":{"name":"a","generateName":"b","namespace":"ns","uid":"u"}"#, "{"] {
            item.push(start.as_bytes());
            item.push(&vec![b'x'; LARGEST]);
            assert_eq!(item.end(|_| ()), None);
        }
        let expected = "ns/a and 1 more: larger than 10485760 bytes in JSON and left out";
        assert_eq!(item.left_out().as_deref(), Some(expected));
        assert_eq!(name(br#"{"metadata":{"name":"node","uid":"u""#).as_deref(), Some("node"));
        assert_eq!(name(br#"{"spec":{"name":"a"}"#), None);
    }
}
