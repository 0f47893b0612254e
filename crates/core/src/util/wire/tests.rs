use proptest::prelude::*;
use prost::Message;

use super::*;

/// Returns the field numbers and values of a message, or the error.
fn read(bytes: &[u8]) -> Result<Vec<(u32, Value)>, WireError> {
    fields(bytes).map(|field| field.map(|field| (field.number, field.value))).collect()
}

fn error(bytes: &[u8]) -> (&'static str, usize) {
    let error = read(bytes).unwrap_err();
    (error.reason, error.at)
}

#[test]
fn every_wire_type_is_read() {
    let bytes = [
        &[0x08, 0x96, 0x01][..],               // 1: 150
        &[0x12, 0x02, b'h', b'i'],             // 2: "hi"
        &[0x1d, 1, 2, 3, 4],                   // 3: four bytes
        &[0x21, 1, 2, 3, 4, 5, 6, 7, 8],       // 4: eight bytes
        &[0x2b, 0x08, 0x01, 0x33, 0x34, 0x2c], // 5: a group with 1: 1 and an empty group
        &[0xf8, 0xff, 0xff, 0xff, 0x0f, 0x00], // the highest number there is
        &[0x82, 0x00, 0x80, 0x00],             // a key and a length that are longer than they have to be
    ]
    .concat();
    let expected = [
        (1, Value::Varint(150)),
        (2, Value::Bytes(5..7)),
        (3, Value::Other),
        (4, Value::Other),
        (5, Value::Other),
        ((1 << 29) - 1, Value::Varint(0)),
    ];
    assert_eq!(read(&bytes[..33]).unwrap(), expected);
    assert_eq!(error(&bytes[33..]), ("an invalid field number", 0), "number 0, written in two bytes");
    let inner: Vec<u32> = fields_in(&bytes, 22..26).map(|field| field.unwrap().number).collect();
    assert_eq!(inner, [1, 6], "the fields of the group");
    let long = [0x8a, 0x00, 0x81, 0x00, b'x'];
    let field = fields(&long).next().unwrap().unwrap();
    assert_eq!((field.number, field.record, field.value), (1, 0..5, Value::Bytes(4..5)));
}

#[test]
fn a_group_may_contain_every_wire_type() {
    let records = [
        &[0x08, 0x01][..],               // 1: 1
        &[0x12, 0x01, b'x'],             // 2: "x"
        &[0x1d, 1, 2, 3, 4],             // 3: four bytes
        &[0x21, 1, 2, 3, 4, 5, 6, 7, 8], // 4: eight bytes
    ]
    .concat();
    let group = [&[0x2b][..], &records, &[0x2c]].concat();
    assert_eq!(read(&group).unwrap(), [(5, Value::Other)]);
}

#[test]
fn invalid_messages_are_errors_with_a_position() {
    let cut = "a truncated number";
    assert_eq!(error(&[0x80]), (cut, 0));
    assert_eq!(error(&[0x08]), (cut, 1));
    assert_eq!(error(&[0x08, 0xff]), (cut, 1));
    assert_eq!(error(&[0x0d, 1, 2, 3]), (cut, 1));
    assert_eq!(error(&[0x09, 1, 2, 3, 4, 5, 6, 7]), (cut, 1));
    assert_eq!(error(&[0x00, 0x00]), ("an invalid field number", 0));
    assert_eq!(error(&[0x80, 0x80, 0x80, 0x80, 0x10]), ("an invalid field number", 0));
    assert_eq!(error(&[0x0e]), ("an unknown wire type", 0));
    assert_eq!(error(&[0x0c]), ("an unknown wire type", 0), "the end of no group");
    assert_eq!(error(&[0x0a, 0x01]), ("a field that exceeds its message", 1));
    let most = [&[0x0a][..], &[0xff; 9], &[0x01]].concat();
    assert_eq!(error(&most), ("a field that exceeds its message", 1));
    let more = [&[0x08][..], &[0xff; 9], &[0x02]].concat();
    assert_eq!(error(&more), ("a number of more than 64 bits", 1));
    assert_eq!(error(&[0x0b, 0x08, 0x00]), ("a group without end", 1));
    assert_eq!(error(&[0x0b, 0x14]), ("the end of another group", 1));
    // A part ends at its end, though the bytes continue.
    let part = fields_in(&[0x08, 0x80, 0x01], 0..2).next().unwrap();
    assert_eq!(part.unwrap_err().reason, cut);
    assert_eq!(fields_in(&[0x08, 0x01], 5..9).next(), None, "nothing beyond the bytes");
    let mut after = fields(&[0x0e, 0x08, 0x01]);
    assert!(
        after.next().is_some_and(|field| field.is_err()) && after.next().is_none(),
        "an error is the end"
    );
}

#[test]
fn a_part_is_read_by_itself_at_any_position() {
    let before = [0x08; 12];
    let reason = |part: &[u8]| {
        let bytes = [&before[..], part, &[0x08; 12]].concat();
        let error = fields_in(&bytes, 12..12 + part.len()).next().unwrap().unwrap_err();
        (error.reason, error.at)
    };
    assert_eq!(reason(&[0x08]), ("a truncated number", 13));
    assert_eq!(reason(&[0x08, 0xff]), ("a truncated number", 13));
    let more = [&[0x08][..], &[0xff; 9], &[0x02]].concat();
    assert_eq!(reason(&more), ("a number of more than 64 bits", 13));
    assert_eq!(reason(&[0x0a, 2, b'x']), ("a field that exceeds its message", 13));
}

#[test]
fn a_header_is_read_as_soon_as_it_is_complete() {
    let text = [0x92, 0x01, 0x80, 0x80, 0x01, b'x'];
    let expected = Head { number: 18, is_bytes: true, before: 5, length: 1 << 14 };
    assert_eq!(head(&text), Ok(Some(expected)), "most of the text is missing");
    for cut in 0..5 {
        assert_eq!(head(&text[..cut]), Ok(None), "{cut} bytes");
    }
    let number = |bytes: &[u8]| {
        let head = head(bytes).unwrap().unwrap();
        assert!(head.number == 1 && !head.is_bytes, "{head:?}");
        (head.before, head.length)
    };
    assert_eq!(number(&[0x08, 0x96, 0x01, 0x08]), (1, 2));
    assert_eq!((number(&[0x09]), number(&[0x0d])), ((1, 8), (1, 4)));

    let error = |bytes: &[u8]| head(bytes).unwrap_err();
    for none in [&[0x00][..], &[0x80, 0x80, 0x80, 0x80, 0x10]] {
        assert_eq!(error(none), WireError { reason: "an invalid field number", at: 0 });
    }
    let highest = Head { number: (1 << 29) - 1, is_bytes: false, before: 5, length: 8 };
    assert_eq!(head(&[0xf9, 0xff, 0xff, 0xff, 0x0f]), Ok(Some(highest)));
    for kind in [GROUP, GROUP_END, 6, 7] {
        let error = error(&[0x08 | kind as u8]);
        assert_eq!(error, WireError { reason: "an unknown wire type", at: 0 });
    }
    let endless = |length| [&[0x0a][..], &vec![0xff; length]].concat();
    assert_eq!(head(&endless(9)), Ok(None));
    assert_eq!(error(&endless(10)), WireError { reason: "a number of more than 64 bits", at: 1 });
}

#[test]
fn nested_groups_are_limited() {
    let nested = |depth: usize| [vec![0x0b; depth], vec![0x0c; depth]].concat();
    assert!(read(&nested(MAX_GROUPS)).is_ok());
    assert_eq!(error(&nested(MAX_GROUPS + 1)), ("too many nested groups", MAX_GROUPS));
    assert!(read(&nested(1 << 20)).is_err(), "a mebibyte of them does not recurse");
}

#[test]
fn numbers_are_encoded_as_in_prost() {
    for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut ours = Vec::new();
        put_varint(&mut ours, value);
        let mut theirs = Vec::new();
        prost::encoding::encode_varint(value, &mut theirs);
        assert_eq!(ours, theirs);
    }
}

/// Generates bytes that often, but not always, are valid fields.
fn any_records() -> impl Strategy<Value = Vec<u8>> {
    let some = prop_oneof![
        any::<(u8, u8)>().prop_map(|(key, value)| vec![key, value & 7]),
        (1..9_u32, any::<u64>()).prop_map(|(number, value)| {
            let mut out = Vec::new();
            put_number(&mut out, number, value);
            out
        }),
        (1..9_u32, proptest::collection::vec(any::<u8>(), 0..9)).prop_map(|(number, bytes)| {
            let mut out = Vec::new();
            put_bytes(&mut out, number, &bytes);
            out
        }),
        (1..9_u8).prop_map(|number| vec![number << 3 | 3, 0x08, 0x05, number << 3 | 4]),
        (1..9_u8).prop_map(|number| vec![number << 3 | 5, 1, 2, 3, 4]),
    ];
    proptest::collection::vec(some, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(crate::randomised::cases())]

    /// prost skips unknown fields: here all of them are unknown.
    #[test]
    fn messages_are_valid_exactly_if_prost_accepts_them(bytes in any_records()) {
        prop_assert_eq!(read(&bytes).is_ok(), <() as Message>::decode(&bytes[..]).is_ok(), "{:?}", bytes);
    }

    #[test]
    fn fields_are_adjacent_and_contain_their_values(bytes in any_records()) {
        let mut end = 0;
        for field in fields(&bytes) {
            let Ok(Field { record, value, .. }) = field else { break };
            prop_assert_eq!(record.start, end);
            if let Value::Bytes(content) = value {
                prop_assert!(record.start < content.start && content.end <= record.end);
            }
            end = record.end;
        }
        prop_assert!(end == bytes.len() || read(&bytes).is_err());
    }
}
