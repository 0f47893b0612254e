//! The records of single pods in a response to `List`.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;

/// `ListPodResourcesResponse` with encoded records.
#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pods: Vec<Bytes>,
}

/// The identity fields of `PodResources`.
#[derive(Clone, PartialEq, Message)]
struct Identity {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
}

/// `GetPodResourcesResponse` with an encoded record.
#[derive(Clone, PartialEq, Message)]
struct GetResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pod: Bytes,
}

/// The records of a List by namespace and name. `None` for a name that occurs twice: only the kubelet knows
/// which of the two pods `Get` returns.
#[derive(Debug, Default)]
pub(super) struct Records(BTreeMap<(String, String), Option<Bytes>>);

impl Records {
    /// Returns the records of a List; empty if it cannot be decoded.
    pub(super) fn of(list: &Bytes) -> Self {
        let mut records = BTreeMap::new();
        for pod in List::decode(list.clone()).unwrap_or_default().pods {
            let Ok(identity) = Identity::decode(pod.clone()) else { continue };
            let known = records.entry((identity.namespace, identity.name));
            known.and_modify(|record| *record = None).or_insert(Some(pod));
        }
        Self(records)
    }

    /// Returns the response to `Get` in a buffer of its own, so that keeping it does not keep the List alive.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Bytes> {
        let record = self.0.get(&(namespace.to_owned(), name.to_owned()))?.clone()?;
        Some(GetResponse { pod: record }.encode_to_vec().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod's record with an unknown field.
    fn pod(namespace: &str, name: &str, unknown: u8) -> Vec<u8> {
        let mut record = Identity { name: name.to_owned(), namespace: namespace.to_owned() }.encode_to_vec();
        record.extend([15 << 3, unknown]);
        record
    }

    fn list(pods: &[Vec<u8>]) -> Bytes {
        List { pods: pods.iter().cloned().map(Bytes::from).collect() }.encode_to_vec().into()
    }

    #[test]
    fn a_record_is_a_get_response_with_all_of_its_bytes() {
        let pods = [pod("a", "x", 1), pod("b", "x", 2), pod("a", "y", 3)];
        let records = Records::of(&list(&pods));
        let wrapped = |record: &[u8]| [&[1 << 3 | 2, u8::try_from(record.len()).unwrap()], record].concat();
        assert_eq!(records.get("a", "x").unwrap(), wrapped(&pods[0]));
        assert_eq!(records.get("b", "x").unwrap(), wrapped(&pods[1]));
        assert_eq!(records.get("a", "y").unwrap(), wrapped(&pods[2]));
        assert_eq!(records.get("b", "y"), None);
    }

    #[test]
    fn a_name_that_occurs_twice_has_no_record() {
        let twice = [pod("a", "x", 1), pod("a", "y", 2), pod("a", "x", 3)];
        let records = Records::of(&list(&twice));
        assert_eq!(records.get("a", "x"), None);
        assert!(records.get("a", "y").is_some());
    }

    #[test]
    fn invalid_bytes_have_no_records() {
        assert_eq!(Records::of(&Bytes::from_static(&[0x0a, 0xff])).get("", ""), None);
        // A record that cannot be decoded does not hide the others.
        let broken = [vec![0x0a, 0xff], pod("a", "y", 2)];
        assert!(Records::of(&list(&broken)).get("a", "y").is_some());
    }
}
