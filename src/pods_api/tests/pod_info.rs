//! The messages of `PodInfo`.

use super::*;

#[test]
fn conditions_are_the_same_in_json_and_protobuf() {
    let moment = |seconds: u64, nanos: u64| {
        let mut out = Vec::new();
        put_number(&mut out, 1, seconds);
        // Go writes zero nanoseconds too.
        put_number(&mut out, 2, nanos);
        out
    };
    let mut condition = Vec::new();
    put_bytes(&mut condition, 1, b"example.com/gate");
    put_bytes(&mut condition, 2, b"False");
    put_bytes(&mut condition, 3, b"");
    put_bytes(&mut condition, 4, &moment(1_700_000_000, 500_000_000));
    put_bytes(&mut condition, 5, b"");
    put_bytes(&mut condition, 6, "not yet \u{e9}".as_bytes());
    put_number(&mut condition, 7, 0);
    let newer = [&condition[..], &[0xa2, 0x06, 1, b'x']].concat();
    let (mut metadata, mut status, mut message) = (Vec::new(), Vec::new(), Vec::new());
    for (number, text) in [(1, "etcd-worker"), (2, "generated"), (3, "kube-system"), (5, "u")] {
        put_bytes(&mut metadata, number, text.as_bytes());
    }
    put_bytes(&mut metadata, 9, &moment(1_700_000_060, 0));
    let mut entry = Vec::new();
    put_bytes(&mut entry, 1, b"kubernetes.io/config.source");
    put_bytes(&mut entry, 2, b"file");
    put_bytes(&mut metadata, 12, &entry);
    put_bytes(&mut status, 1, b"Running");
    put_bytes(&mut status, 2, &condition);
    put_bytes(&mut message, 1, &metadata);
    put_bytes(&mut message, 3, &status);
    let encoded = |raw| Pod { raw: Some(Box::new(raw)), ..Pod::default() };
    let info = PodInfo::of(&encoded(RawPod::Protobuf(message.clone().into()))).unwrap();
    let item = json!({
        "metadata": {
            "name": "etcd-worker", "namespace": "kube-system", "uid": "u", "deletionTimestamp": "2023-11-14T22:14:20Z",
            "annotations": {"kubernetes.io/config.source": "file"},
        },
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [{
            "type": "example.com/gate", "status": "False", "lastProbeTime": null,
            "lastTransitionTime": "2023-11-14T22:13:20.5Z", "message": "not yet \u{e9}",
        }]},
    });
    assert_eq!(info, PodInfo::of(&encoded(RawPod::Json(item.to_string().into()))).unwrap());
    let shown = PodConditions::decode(&*info.encode_to_vec()).unwrap();
    assert!(shown.r#static);
    assert_eq!((&*shown.phase, shown.deletion_timestamp.unwrap().seconds), ("Running", 1_700_000_060));
    let [shown] = &shown.conditions[..] else { panic!("{shown:?}") };
    assert_eq!((&*shown.r#type, &*shown.status, &*shown.reason), ("example.com/gate", "False", ""));
    assert_eq!((shown.last_probe_time, &*shown.message), (None, "not yet \u{e9}"));
    let at = shown.last_transition_time.unwrap();
    assert_eq!((at.seconds, at.nanos), (1_700_000_000, 500_000_000));
    // Fields that only newer kubelets set are kept.
    put_bytes(&mut message, 3, &{
        let mut status = Vec::new();
        put_bytes(&mut status, 2, &newer);
        status
    });
    let bytes = PodInfo::of(&encoded(RawPod::Protobuf(message.into()))).unwrap().encode_to_vec();
    assert!(bytes.windows(4).any(|bytes| bytes == [0xa2, 0x06, 1, b'x']));
}

#[test]
fn invalid_utf_8_is_replaced() {
    let mut invalid = pod("a", &[], "Running", "");
    let mut status = Vec::new();
    put_bytes(&mut status, 1, b"Run\xffning");
    let Some(RawPod::Protobuf(bytes)) = invalid.raw.as_deref() else { panic!("it is encoded") };
    let mut message = bytes.to_vec();
    put_bytes(&mut message, 3, &status);
    invalid.raw = Some(Box::new(RawPod::Protobuf(message.into())));
    let shown = PodConditions::decode(&*PodInfo::of(&invalid).unwrap().encode_to_vec()).unwrap();
    assert_eq!(shown.phase, "Run\u{fffd}ning");
}
