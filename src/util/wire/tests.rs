use proptest::prelude::*;
use prost::Message;

use super::*;

/// Returns the field numbers and values of a message, or the error.
fn read(bytes: &[u8]) -> Result<Vec<(u32, Value)>, WireError> {
    fields(bytes).map(|field| field.map(|field| (field.number, field.value))).collect()
}

fn wrong(bytes: &[u8]) -> (&'static str, usize) {
    let error = read(bytes).unwrap_err();
    (error.reason, error.at)
}

#[test]
fn every_kind_of_record_is_read() {
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
        (3, Value::Fixed32(0x0403_0201)),
        (4, Value::Fixed64(0x0807_0605_0403_0201)),
        (5, Value::Group(22..26)),
        ((1 << 29) - 1, Value::Varint(0)),
    ];
    assert_eq!(read(&bytes[..33]).unwrap(), expected);
    assert_eq!(
        wrong(&bytes[33..]),
        ("a field number that there is not", 0),
        "number 0, written in two bytes"
    );
    let inner: Vec<u32> = fields_in(&bytes, 22..26).map(|field| field.unwrap().number).collect();
    assert_eq!(inner, [1, 6], "the records of the group");
    let long = [0x8a, 0x00, 0x81, 0x00, b'x'];
    let field = fields(&long).next().unwrap().unwrap();
    assert_eq!((field.number, field.record, field.value), (1, 0..5, Value::Bytes(4..5)));
}

#[test]
fn a_group_may_have_every_kind_of_record() {
    let records = [
        &[0x08, 0x01][..],               // 1: 1
        &[0x12, 0x01, b'x'],             // 2: "x"
        &[0x1d, 1, 2, 3, 4],             // 3: four bytes
        &[0x21, 1, 2, 3, 4, 5, 6, 7, 8], // 4: eight bytes
    ]
    .concat();
    let group = [&[0x2b][..], &records, &[0x2c]].concat();
    assert_eq!(read(&group).unwrap(), [(5, Value::Group(1..group.len() - 1))]);
}

#[test]
fn what_is_no_message_is_refused_and_the_place_named() {
    let cut = "a number that is cut off";
    assert_eq!(wrong(&[0x80]), (cut, 0));
    assert_eq!(wrong(&[0x08]), (cut, 1));
    assert_eq!(wrong(&[0x08, 0xff]), (cut, 1));
    assert_eq!(wrong(&[0x0d, 1, 2, 3]), (cut, 1));
    assert_eq!(wrong(&[0x09, 1, 2, 3, 4, 5, 6, 7]), (cut, 1));
    assert_eq!(wrong(&[0x00, 0x00]), ("a field number that there is not", 0));
    assert_eq!(wrong(&[0x80, 0x80, 0x80, 0x80, 0x10]), ("a field number that there is not", 0));
    assert_eq!(wrong(&[0x0e]), ("a record of a kind that there is not", 0));
    assert_eq!(wrong(&[0x0c]), ("a record of a kind that there is not", 0), "the end of no group");
    assert_eq!(wrong(&[0x0a, 0x01]), ("a record that is longer than what it is in", 1));
    let most = [&[0x0a][..], &[0xff; 9], &[0x01]].concat();
    assert_eq!(wrong(&most), ("a record that is longer than what it is in", 1));
    let more = [&[0x08][..], &[0xff; 9], &[0x02]].concat();
    assert_eq!(wrong(&more), ("a number of more than 64 bits", 1));
    assert_eq!(wrong(&[0x0b, 0x08, 0x00]), ("a group without an end", 1));
    assert_eq!(wrong(&[0x0b, 0x14]), ("the end of another group", 1));
    // A part ends at its end, though the bytes continue.
    let part = fields_in(&[0x08, 0x80, 0x01], 0..2).next().unwrap();
    assert_eq!(part.unwrap_err().reason, cut);
    assert_eq!(fields_in(&[0x08, 0x01], 5..9).next(), None, "beyond the bytes is nothing");
    let mut after = fields(&[0x0e, 0x08, 0x01]);
    assert!(
        after.next().is_some_and(|field| field.is_err()) && after.next().is_none(),
        "an error is the end"
    );
}

#[test]
fn a_part_is_judged_by_itself_wherever_it_lies() {
    let before = [0x08; 12];
    let reason = |part: &[u8]| {
        let bytes = [&before[..], part, &[0x08; 12]].concat();
        let error = fields_in(&bytes, 12..12 + part.len()).next().unwrap().unwrap_err();
        (error.reason, error.at)
    };
    assert_eq!(reason(&[0x08]), ("a number that is cut off", 13));
    assert_eq!(reason(&[0x08, 0xff]), ("a number that is cut off", 13));
    let more = [&[0x08][..], &[0xff; 9], &[0x02]].concat();
    assert_eq!(reason(&more), ("a number of more than 64 bits", 13));
    assert_eq!(reason(&[0x0a, 2, b'x']), ("a record that is longer than what it is in", 13));
}

#[test]
fn how_a_record_begins_is_told_as_soon_as_it_is_there() {
    let text = [0x92, 0x01, 0x80, 0x80, 0x01, b'x'];
    let expected = Head { number: 18, is_bytes: true, before: 5, length: 1 << 14 };
    assert_eq!(head(&text), Ok(Some(expected)), "most of the text is still to come");
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

    let wrong = |bytes: &[u8]| head(bytes).unwrap_err();
    for none in [&[0x00][..], &[0x80, 0x80, 0x80, 0x80, 0x10]] {
        assert_eq!(wrong(none), WireError { reason: "a field number that there is not", at: 0 });
    }
    let highest = Head { number: (1 << 29) - 1, is_bytes: false, before: 5, length: 8 };
    assert_eq!(head(&[0xf9, 0xff, 0xff, 0xff, 0x0f]), Ok(Some(highest)));
    for kind in [GROUP, GROUP_END, 6, 7] {
        let error = wrong(&[0x08 | kind as u8]);
        assert_eq!(error, WireError { reason: "a record of a kind that there is not", at: 0 });
    }
    let endless = |length| [&[0x0a][..], &vec![0xff; length]].concat();
    assert_eq!(head(&endless(9)), Ok(None));
    assert_eq!(wrong(&endless(10)), WireError { reason: "a number of more than 64 bits", at: 1 });
}

#[test]
fn groups_in_each_other_are_bounded() {
    let nested = |depth: usize| [vec![0x0b; depth], vec![0x0c; depth]].concat();
    assert!(read(&nested(GROUPS)).is_ok());
    assert_eq!(wrong(&nested(GROUPS + 1)), ("too many groups in each other", GROUPS));
    assert!(read(&nested(1 << 20)).is_err(), "a mebibyte of them is no deeper");
}

#[test]
fn numbers_are_written_as_prost_writes_them() {
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
    fn a_message_is_what_prost_takes_for_one(bytes in any_records()) {
        prop_assert_eq!(read(&bytes).is_ok(), <() as Message>::decode(&bytes[..]).is_ok(), "{:?}", bytes);
    }

    #[test]
    fn records_lie_side_by_side_and_what_they_say_lies_in_them(bytes in any_records()) {
        let mut end = 0;
        for field in fields(&bytes) {
            let Ok(Field { record, value, .. }) = field else { break };
            prop_assert_eq!(record.start, end);
            if let Value::Bytes(content) | Value::Group(content) = value {
                prop_assert!(record.start < content.start && content.end <= record.end);
            }
            end = record.end;
        }
        prop_assert!(end == bytes.len() || read(&bytes).is_err());
    }
}
