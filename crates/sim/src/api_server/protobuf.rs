//! Encodes pods as protocol buffers like a real API server (seen with 1.36): from JSON objects, by tables of
//! their fields. Shares no code with the decoder.

use numacast_core::util::wire::{put_bytes, put_number};
use serde_json::{Map, Value};

/// The media type in the `Accept` header of clients that want protocol buffers.
pub(super) const CONTENT: &str = "application/vnd.kubernetes.protobuf";

/// One field of a message: its JSON name, its number and its type.
type Field = (&'static str, u32, Form);

/// The type of a field.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Number,
    Flag,
    /// RFC 3339 in JSON, seconds since 1970 in protocol buffers.
    Time,
    Texts,
    One(&'static [Field]),
    Each(&'static [Field]),
    /// A map from string to string.
    Map,
    /// A map from string to quantity.
    Amounts,
}
use Form::{Amounts, Each, Flag, Number, One, Text, Texts, Time};

const POD: &[Field] =
    &[("metadata", 1, One(OBJECT_META)), ("spec", 2, One(POD_SPEC)), ("status", 3, One(POD_STATUS))];

const OBJECT_META: &[Field] = &[
    ("name", 1, Text),
    ("generateName", 2, Text),
    ("namespace", 3, Text),
    ("uid", 5, Text),
    ("resourceVersion", 6, Text),
    ("generation", 7, Number),
    ("creationTimestamp", 8, Time),
    ("deletionTimestamp", 9, Time),
    ("deletionGracePeriodSeconds", 10, Number),
    ("labels", 11, Form::Map),
    ("annotations", 12, Form::Map),
    ("ownerReferences", 13, Each(OWNER)),
    ("finalizers", 14, Texts),
];

const OWNER: &[Field] = &[
    ("kind", 1, Text),
    ("name", 3, Text),
    ("uid", 4, Text),
    ("apiVersion", 5, Text),
    ("controller", 6, Flag),
    ("blockOwnerDeletion", 7, Flag),
];

const POD_SPEC: &[Field] = &[
    ("containers", 2, Each(CONTAINER)),
    ("restartPolicy", 3, Text),
    ("terminationGracePeriodSeconds", 4, Number),
    ("nodeSelector", 7, Form::Map),
    ("serviceAccountName", 8, Text),
    ("nodeName", 10, Text),
    ("hostNetwork", 11, Flag),
    ("schedulerName", 19, Text),
    ("initContainers", 20, Each(CONTAINER)),
    ("tolerations", 22, Each(TOLERATION)),
    ("priorityClassName", 24, Text),
    ("priority", 25, Number),
    ("runtimeClassName", 29, Text),
    ("overhead", 32, Amounts),
    ("resources", 40, One(RESOURCES)),
];

const TOLERATION: &[Field] = &[
    ("key", 1, Text),
    ("operator", 2, Text),
    ("value", 3, Text),
    ("effect", 4, Text),
    ("tolerationSeconds", 5, Number),
];

const CONTAINER: &[Field] = &[
    ("name", 1, Text),
    ("image", 2, Text),
    ("command", 3, Texts),
    ("args", 4, Texts),
    ("env", 7, Each(&[("name", 1, Text), ("value", 2, Text)])),
    ("resources", 8, One(RESOURCES)),
    ("imagePullPolicy", 14, Text),
    ("restartPolicy", 24, Text),
];

const RESOURCES: &[Field] = &[("limits", 1, Amounts), ("requests", 2, Amounts)];

const POD_STATUS: &[Field] = &[
    ("phase", 1, Text),
    ("conditions", 2, Each(CONDITION)),
    ("message", 3, Text),
    ("reason", 4, Text),
    ("hostIP", 5, Text),
    ("podIP", 6, Text),
    ("startTime", 7, Time),
    ("containerStatuses", 8, Each(CONTAINER_STATUS)),
    ("qosClass", 9, Text),
    ("initContainerStatuses", 10, Each(CONTAINER_STATUS)),
    ("podIPs", 12, Each(&[("ip", 1, Text)])),
    ("observedGeneration", 17, Number),
];

const CONDITION: &[Field] = &[
    ("type", 1, Text),
    ("status", 2, Text),
    ("lastProbeTime", 3, Time),
    ("lastTransitionTime", 4, Time),
    ("reason", 5, Text),
    ("message", 6, Text),
    ("observedGeneration", 7, Number),
];

const CONTAINER_STATUS: &[Field] = &[
    ("name", 1, Text),
    ("state", 2, One(STATE)),
    ("lastState", 3, One(STATE)),
    ("ready", 4, Flag),
    ("restartCount", 5, Number),
    ("image", 6, Text),
    ("imageID", 7, Text),
    ("containerID", 8, Text),
    ("started", 9, Flag),
];

const STATE: &[Field] = &[
    ("waiting", 1, One(&[("reason", 1, Text), ("message", 2, Text)])),
    ("running", 2, One(&[("startedAt", 1, Time)])),
    (
        "terminated",
        3,
        One(&[
            ("exitCode", 1, Number),
            ("signal", 2, Number),
            ("reason", 3, Text),
            ("message", 4, Text),
            ("startedAt", 5, Time),
            ("finishedAt", 6, Time),
            ("containerID", 7, Text),
        ]),
    ),
];

const STATUS: &[Field] = &[
    ("status", 2, Text),
    ("message", 3, Text),
    ("reason", 4, Text),
    (
        "details",
        5,
        One(&[("name", 1, Text), ("group", 2, Text), ("kind", 3, Text), ("retryAfterSeconds", 5, Number)]),
    ),
    ("code", 6, Number),
];

const LIST_META: &[Field] =
    &[("resourceVersion", 2, Text), ("continue", 3, Text), ("remainingItemCount", 4, Number)];

const POD_LIST: &[Field] = &[("metadata", 1, One(LIST_META)), ("items", 2, Each(POD))];

/// Encodes a pod, a pod list or a status with its envelope. `None` for anything else.
pub(super) fn enveloped(object: &Value) -> Option<Vec<u8>> {
    // Pods may be stored without a kind.
    let kind = object["kind"].as_str().unwrap_or("Pod");
    let fields = match kind {
        "Pod" => POD,
        "PodList" => POD_LIST,
        "Status" => STATUS,
        _ => return None,
    };
    let mut type_meta = Vec::new();
    put_bytes(&mut type_meta, 1, b"v1");
    put_bytes(&mut type_meta, 2, kind.as_bytes());
    let mut out = b"k8s\0".to_vec();
    put_bytes(&mut out, 1, &type_meta);
    put_bytes(&mut out, 2, &message(object, fields));
    put_bytes(&mut out, 3, b"");
    put_bytes(&mut out, 4, b"");
    Some(out)
}

/// Encodes a watch event, preceded by its length.
pub(super) fn frame(event: &str, object: &Value) -> Option<Vec<u8>> {
    let object = enveloped(object)?;
    let mut raw = Vec::new();
    put_bytes(&mut raw, 1, &object);
    let mut message = Vec::new();
    put_bytes(&mut message, 1, event.as_bytes());
    put_bytes(&mut message, 2, &raw);
    let mut out = u32::try_from(message.len()).ok()?.to_be_bytes().to_vec();
    out.extend(message);
    Some(out)
}

fn message(object: &Value, fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, number, form) in fields {
        let value = &object[*name];
        if !value.is_null() {
            put(&mut out, *number, value, *form);
        }
    }
    out
}

/// Writes a field. Values of the wrong type are omitted or zero; a real API server does not accept such
/// objects.
fn put(out: &mut Vec<u8>, number: u32, value: &Value, form: Form) {
    let nothing = Map::new();
    let entries = value.as_object().unwrap_or(&nothing);
    match form {
        Text => put_bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Number => put_number(out, number, value.as_i64().unwrap_or_default() as u64),
        Flag => put_number(out, number, value.as_bool().unwrap_or_default().into()),
        Time => {
            let time: Option<jiff::Timestamp> = value.as_str().and_then(|text| text.parse().ok());
            let mut inner = Vec::new();
            put_number(&mut inner, 1, time.map_or(0, jiff::Timestamp::as_second) as u64);
            put_number(&mut inner, 2, 0);
            put_bytes(out, number, &inner);
        }
        One(fields) => put_bytes(out, number, &message(value, fields)),
        Texts | Each(_) => {
            let one = if let Each(fields) = form { One(fields) } else { Text };
            value.as_array().into_iter().flatten().for_each(|value| put(out, number, value, one));
        }
        Form::Map => entries.iter().for_each(|(key, value)| {
            if let Some(text) = value.as_str() {
                put_entry(out, number, key, text.as_bytes());
            }
        }),
        Amounts => entries.iter().for_each(|(key, value)| {
            let amount = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let mut quantity = Vec::new();
            put_bytes(&mut quantity, 1, amount.as_bytes());
            put_entry(out, number, key, &quantity);
        }),
    }
}

fn put_entry(out: &mut Vec<u8>, number: u32, key: &str, value: &[u8]) {
    let mut entry = Vec::new();
    put_bytes(&mut entry, 1, key.as_bytes());
    put_bytes(&mut entry, 2, value);
    put_bytes(out, number, &entry);
}
