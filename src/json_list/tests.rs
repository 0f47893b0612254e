use serde_json::json;

use super::*;

/// Returns the items of a list that arrives in chunks of this size, and its end.
fn split(text: &str, size: usize) -> Result<(Vec<String>, List), String> {
    let (mut list, mut items) = (ListSplitter::default(), Vec::new());
    for piece in text.as_bytes().chunks(size) {
        list.push(piece, |item| {
            items.push(String::from_utf8(item.to_vec()).unwrap());
            Ok(())
        })?;
    }
    list.finish().map(|list| (items, list))
}

/// Returns a pod as Go writes it, whose arguments are this many characters that are escaped.
fn escaped_pod(name: &str, characters: usize) -> String {
    let text = r"\u003c".repeat(characters);
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"3"}},"spec":{{"containers":[{{"name":"c","args":["]}}\"{text}"]}}]}}}}"#
    )
}

/// Characters that fit into etcd's limit of 1.5 MiB.
const ETCD: usize = 1_450_000;

/// Returns pods of which only `too-large` exceeds [`MAX_ITEM_BYTES`]; `large` is as large as etcd accepts.
pub(crate) fn pods() -> [String; 4] {
    let sizes = [("a", 0), ("large", ETCD), ("too-large", MAX_ITEM_BYTES / 6), ("b", 0)];
    sizes.map(|(name, characters)| escaped_pod(name, characters))
}

#[test]
fn a_list_is_split_whatever_the_chunks() {
    let items = [r#"{"a":"]}\"[{\\","b":[[1],{}]}"#, r#"{}"#, r#"{"items":[{"c":"\\"}]}"#];
    let text = format!(
        "{{\"kind\":\"PodList\",\"metadata\":{{\"resourceVersion\":\"7\",\"x\":\"[\"}},\"items\":[ {},{} ,\n{}]}}\n",
        items[0], items[1], items[2]
    );
    for size in 1..text.len() + 1 {
        let (found, list) = split(&text, size).unwrap();
        assert_eq!(found, items, "{size}");
        assert_eq!(list, List { version: Some("7".to_owned()), has_items: true, omitted: None });
    }
}

#[test]
fn only_the_array_of_the_list_itself_has_items() {
    let pod = |name: &str| {
        json!({"metadata": {"name": name, "namespace": "ns", "annotations": {
            "items": "[{\"]}\\", "\\": "\\\"", "x": "{".repeat(300),
        }}, "spec": {"items": [{"name": "not a pod"}], "containers": [{}], "x": [[[]]]}})
        .to_string()
    };
    let pods = ["a", "b\u{e9}\"]}", "c"].map(pod);
    let items = pods.join(",");
    let metadata = r#""kind":"items","metadata":{"items":[{"a":1}]}"#;
    let lists = [
        format!(r#"{{{metadata},"items":[{items}],"apiVersion":"items"}}"#),
        format!(r#" {{ "items" : [ {items} ] , {metadata}, "x": [1, "]"] }} "#),
    ];
    for list in lists {
        for size in [1, 2, 3, 7, 64, 1_000_000] {
            assert_eq!(split(&list, size).unwrap().0, pods, "{size}: {list}");
        }
    }
}

#[test]
fn items_may_be_null_or_missing() {
    for (items, has_items) in [(",\"items\":null", true), (",\"items\":[]", true), ("", false)] {
        let text = format!("{{\"metadata\":{{\"resourceVersion\":\"7\"}}{items}}}");
        let expected = List { version: Some("7".to_owned()), has_items, omitted: None };
        assert_eq!(split(&text, 3), Ok((Vec::new(), expected)));
    }
    assert_eq!(split(r#"{"metadata":{},"items":[]}"#, 9).unwrap().1.version, None);
}

#[test]
fn an_incomplete_or_invalid_list_is_an_error() {
    let whole = r#"{"metadata":{"resourceVersion":"7"},"items":[{"a":1},{"b":2}]}"#;
    for end in 0..whole.len() {
        assert!(split(&whole[..end], 5).is_err(), "{}", &whole[..end]);
    }
    let two = r#"{"items":[]}{"items":[]}"#;
    for invalid in ["}", "[]", "null", "nonsense", r#"{"items":[[]]}"#, r#"["items",[{}]]"#, two] {
        assert!(split(invalid, 4).is_err(), "{invalid}");
    }
}

#[test]
fn an_item_that_is_too_large_hides_no_other() {
    let pods = pods();
    let text =
        format!("{{\"metadata\":{{\"resourceVersion\":\"7\"}},\"items\":[{}],\"x\":1}}", pods.join(","));
    let (items, list) = split(&text, 1 << 16).unwrap();
    assert!(items == [&*pods[0], &*pods[1], &*pods[3]], "{} items", items.len());
    assert_eq!(list.version.as_deref(), Some("7"));
    assert!(list.omitted.unwrap().starts_with("ns/too-large: larger than"));
}

#[test]
fn an_endless_list_takes_bounded_memory() {
    let mut list = ListSplitter::default();
    list.push(br#"{"items":[{"a":""#, |_| Ok(())).unwrap();
    let piece = vec![b'x'; MAX_ITEM_BYTES];
    (0..3).for_each(|_| list.push(&piece, |_| Ok(())).unwrap());
    assert!(list.finish().is_err(), "it is incomplete");
    let mut list = ListSplitter::default();
    list.push(br#"{"metadata":""#, |_| Ok(())).unwrap();
    assert!(list.push(&piece, |_| Ok(())).unwrap_err().contains("larger than"));
}

#[test]
fn an_item_of_maximum_size_is_kept_whatever_its_chunks() {
    for (size, is_kept) in [(MAX_ITEM_BYTES, true), (MAX_ITEM_BYTES + 1, false)] {
        let item = format!(r#"{{"a":"{}"}}"#, "x".repeat(size - 8));
        assert_eq!(item.len(), size);
        let (items, list) = split(&format!(r#"{{"items":[{item},{{"next":1}}]}}"#), 999_983).unwrap();
        assert_eq!(items.len(), 1 + usize::from(is_kept));
        assert_eq!((items[0] == item, list.omitted.is_none()), (is_kept, is_kept));
        assert_eq!(items.last().map(String::as_str), Some(r#"{"next":1}"#));
    }
}

#[test]
fn an_omitted_item_is_named() {
    let large = format!(r#""spec":"{}"}}"#, "x".repeat(MAX_ITEM_BYTES));
    let named = r#"{"metadata":{"name":"a","generateName":"b","namespace":"ns","uid":"u"},"#;
    let text = format!(r#"{{"items":[{named}{large},{{{large}]}}"#);
    let expected = "ns/a and 1 more: larger than 10485760 bytes in JSON and left out";
    assert_eq!(split(&text, 1 << 16).unwrap().1.omitted.as_deref(), Some(expected));
    assert_eq!(name(br#"{"metadata":{"name":"node","uid":"u""#).as_deref(), Some("node"));
    assert_eq!(name(br#"{"spec":{"name":"a"}"#), None);
}
