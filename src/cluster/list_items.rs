//! Splits a JSON list while it arrives: only one item is buffered and decoded at a time.

use serde::Deserialize;

use crate::one_item::{LARGEST, OneItem};

/// A streaming splitter. In a Kubernetes list only `items` is an array at the top level.
#[derive(Debug, Default)]
pub(super) struct ListItems {
    /// The number of open objects and arrays.
    depth: usize,
    /// Inside a string.
    text: bool,
    /// After a `\` in a string.
    escaped: bool,
    /// Inside the array of items.
    within: bool,
    /// The item read so far.
    item: OneItem,
    /// The list without its items.
    list: Vec<u8>,
}

#[derive(Deserialize)]
struct List {
    metadata: ListMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

impl ListItems {
    /// Adds the next chunk, and passes each complete item to `take`, except those that are too large.
    ///
    /// # Errors
    /// The chunk is invalid, or `take` fails.
    pub(super) fn push(
        &mut self,
        piece: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        for byte in piece {
            let before = self.level();
            self.step(*byte)?;
            match (before, self.level()) {
                (0, _) | (_, 0) => self.list.push(*byte),
                // Between two items.
                (1, 1) => {}
                (_, after) => {
                    self.item.push(std::slice::from_ref(byte));
                    if after == 1 {
                        self.item.end(&mut take).transpose()?;
                    }
                }
            }
        }
        match self.list.len() > LARGEST {
            true => Err(format!("it is larger than {LARGEST} bytes without its items")),
            false => Ok(()),
        }
    }

    /// Returns 0 outside the array of items, 1 in it, and more in an item.
    fn level(&self) -> usize {
        if self.within { self.depth - 1 } else { 0 }
    }

    fn step(&mut self, byte: u8) -> Result<(), String> {
        if self.text {
            self.text = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return Ok(());
        }
        match byte {
            b'"' => self.text = true,
            b'{' | b'[' => {
                self.within |= byte == b'[' && self.depth == 1;
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.checked_sub(1).ok_or("it is no JSON")?;
                self.within &= self.depth > 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the version of the list, after the last chunk, and a message about items that were too large.
    ///
    /// # Errors
    /// The list is invalid or incomplete.
    pub(super) fn finish(self) -> Result<(String, Option<String>), String> {
        let list: List = serde_json::from_slice(&self.list).map_err(|error| error.to_string())?;
        Ok((list.metadata.resource_version, self.item.left_out()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_item;

    /// Returns the items and the version of a list that arrives in chunks of this size.
    fn split(text: &str, size: usize) -> Result<(Vec<String>, String), String> {
        let (mut list, mut items) = (ListItems::default(), Vec::new());
        for piece in text.as_bytes().chunks(size) {
            list.push(piece, |item| {
                items.push(String::from_utf8(item.to_vec()).unwrap());
                Ok(())
            })?;
        }
        list.finish().map(|(version, _)| (items, version))
    }

    #[test]
    fn a_list_is_taken_apart_wherever_its_pieces_end() {
        let items = [r#"{"a":"]}\"[{\\","b":[[1],{}]}"#, r#"{}"#, r#"{"items":[{"c":"\\"}]}"#];
        let text = format!(
            "{{\"kind\":\"PodList\",\"metadata\":{{\"resourceVersion\":\"7\",\"x\":\"[\"}},\"items\":[ {},{} ,\n{}]}}\n",
            items[0], items[1], items[2]
        );
        for size in 1..text.len() + 1 {
            let (found, version) = split(&text, size).unwrap();
            assert_eq!((found.as_slice(), version.as_str()), (&items.map(str::to_owned)[..], "7"), "{size}");
        }
    }

    #[test]
    fn a_list_of_nothing_may_be_null_or_missing() {
        for items in [",\"items\":null", ",\"items\":[]", ""] {
            let text = format!("{{\"metadata\":{{\"resourceVersion\":\"7\"}}{items}}}");
            assert_eq!(split(&text, 3), Ok((Vec::new(), "7".to_owned())));
        }
    }

    #[test]
    fn a_list_that_breaks_off_is_none() {
        let whole = r#"{"metadata":{"resourceVersion":"7"},"items":[{"a":1},{"b":2}]}"#;
        for end in 0..whole.len() {
            assert!(split(&whole[..end], 5).is_err(), "{}", &whole[..end]);
        }
        assert!(split("}", 1).is_err());
        assert!(split(r#"{"metadata":{},"items":[]}"#, 9).is_err(), "without a version nothing can follow");
    }

    #[test]
    fn an_item_that_is_too_large_hides_no_other() {
        let pods = one_item::tests::pods();
        let text =
            format!("{{\"metadata\":{{\"resourceVersion\":\"7\"}},\"items\":[{}],\"x\":1}}", pods.join(","));
        let (mut list, mut items) = (ListItems::default(), Vec::new());
        for piece in text.as_bytes().chunks(1 << 16) {
            let take = |item: &[u8]| {
                items.push(String::from_utf8(item.to_vec()).unwrap());
                Ok(())
            };
            list.push(piece, take).unwrap();
        }
        let (version, left_out) = list.finish().unwrap();
        assert!(items == [&*pods[0], &*pods[1], &*pods[3]] && version == "7", "{} items", items.len());
        assert!(left_out.unwrap().starts_with("ns/too-large: larger than"));
    }

    #[test]
    fn what_has_no_end_fills_no_memory() {
        let mut list = ListItems::default();
        list.push(br#"{"items":[{"a":""#, |_| Ok(())).unwrap();
        let piece = vec![b'x'; LARGEST];
        (0..3).for_each(|_| list.push(&piece, |_| Ok(())).unwrap());
        assert!(list.finish().is_err(), "it is incomplete");
        let mut list = ListItems::default();
        list.push(br#"{"metadata":""#, |_| Ok(())).unwrap();
        assert!(list.push(&piece, |_| Ok(())).unwrap_err().contains("larger than"));
    }
}
