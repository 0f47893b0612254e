//! The item of a list that is just arriving.

/// Maximum size of an item in JSON. etcd accepts 1.5 MiB by default, and JSON writers of Go escape characters
/// such as `<` as six bytes: 9 MiB.
pub(crate) const MAX_ITEM_BYTES: usize = 10 << 20;

/// What is kept of an item that is too large, to find its name. Kubernetes writes names first.
const KEPT_BYTES: usize = 1 << 10;

/// Buffers one item after the other.
#[derive(Debug, Default)]
pub(super) struct ItemBuffer {
    /// The item so far, or the beginning of one that is too large.
    bytes: Vec<u8>,
    is_too_large: bool,
    /// The number of items that were too large, and the name of the first one.
    omitted: usize,
    first: Option<String>,
}

impl ItemBuffer {
    /// Appends bytes of the item.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.is_too_large {
            return;
        }
        let room = MAX_ITEM_BYTES - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            self.is_too_large = true;
            self.bytes.truncate(KEPT_BYTES);
        }
    }

    /// Ends the item and passes it to `take`. Returns `None` if it is too large.
    pub(super) fn end<R>(&mut self, take: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let result = (!self.is_too_large).then(|| take(&self.bytes));
        if self.is_too_large {
            self.omitted += 1;
            let name = || name(&self.bytes).unwrap_or_else(|| "without a known name".to_owned());
            self.first.get_or_insert_with(name);
        }
        self.bytes.clear();
        self.is_too_large = false;
        result
    }

    /// Returns a message about the items that were too large, if there are any.
    pub(super) fn omitted(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        let more = match self.omitted - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("{first}{more}: larger than {MAX_ITEM_BYTES} bytes in JSON and left out"))
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
mod tests {
    use super::*;

    #[test]
    fn an_item_of_maximum_size_is_kept_whatever_its_chunks() {
        for (size, expected) in [(MAX_ITEM_BYTES, Some(MAX_ITEM_BYTES)), (MAX_ITEM_BYTES + 1, None)] {
            let mut item = ItemBuffer::default();
            for piece in vec![b'x'; size].chunks(999_983) {
                item.push(piece);
            }
            assert_eq!(item.end(<[u8]>::len), expected);
            assert_eq!(item.omitted().is_none(), expected.is_some());
            item.push(b"next");
            assert_eq!(item.end(<[u8]>::to_vec), Some(b"next".to_vec()));
        }
    }

    #[test]
    fn an_omitted_item_is_named() {
        let mut item = ItemBuffer::default();
        for start in [r#"{"metadata":{"name":"a","generateName":"b","namespace":"ns","uid":"u"}"#, "{"] {
            item.push(start.as_bytes());
            item.push(&vec![b'x'; MAX_ITEM_BYTES]);
            assert_eq!(item.end(|_| ()), None);
        }
        let expected = "ns/a and 1 more: larger than 10485760 bytes in JSON and left out";
        assert_eq!(item.omitted().as_deref(), Some(expected));
        assert_eq!(name(br#"{"metadata":{"name":"node","uid":"u""#).as_deref(), Some("node"));
        assert_eq!(name(br#"{"spec":{"name":"a"}"#), None);
    }
}
