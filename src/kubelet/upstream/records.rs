//! Single pods of an answer to `List`.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;

/// Of `ListPodResourcesResponse`, the records as they are.
#[derive(Clone, PartialEq, Message)]
struct Listed {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pods: Vec<Bytes>,
}

/// Of `PodResources`, whose it is.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
}

/// `GetPodResourcesResponse` around a record as it is.
#[derive(Clone, PartialEq, Message)]
struct Got {
    #[prost(bytes = "bytes", tag = "1")]
    pod: Bytes,
}

/// The records of a List by namespace and name. A name that is there twice is in none: only the kubelet can tell which of
/// two pods it means by it.
#[derive(Debug, Default)]
pub(super) struct Records(BTreeMap<(String, String), Option<Bytes>>);

impl Records {
    /// Of bytes that are no List there are none.
    pub(super) fn of(list: &Bytes) -> Self {
        let mut records = BTreeMap::new();
        for pod in Listed::decode(list.clone()).unwrap_or_default().pods {
            let Ok(named) = Named::decode(pod.clone()) else { continue };
            let known = records.entry((named.namespace, named.name));
            known.and_modify(|record| *record = None).or_insert(Some(pod));
        }
        Self(records)
    }

    /// What `Get` would answer, in bytes of its own: whoever keeps it does not keep the List.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Bytes> {
        let record = self.0.get(&(namespace.to_owned(), name.to_owned()))?.clone()?;
        Some(Got { pod: record }.encode_to_vec().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a pod with a field that nobody knows.
    fn pod(namespace: &str, name: &str, unknown: u8) -> Vec<u8> {
        let mut record = Named { name: name.to_owned(), namespace: namespace.to_owned() }.encode_to_vec();
        record.extend([15 << 3, unknown]);
        record
    }

    fn list(pods: &[Vec<u8>]) -> Bytes {
        Listed { pods: pods.iter().cloned().map(Bytes::from).collect() }.encode_to_vec().into()
    }

    #[test]
    fn a_record_is_an_answer_to_get_with_every_byte_it_has() {
        let pods = [pod("a", "x", 1), pod("b", "x", 2), pod("a", "y", 3)];
        let records = Records::of(&list(&pods));
        let wrapped = |record: &[u8]| [&[1 << 3 | 2, u8::try_from(record.len()).unwrap()], record].concat();
        assert_eq!(records.get("a", "x").unwrap(), wrapped(&pods[0]));
        assert_eq!(records.get("b", "x").unwrap(), wrapped(&pods[1]));
        assert_eq!(records.get("a", "y").unwrap(), wrapped(&pods[2]));
        assert_eq!(records.get("b", "y"), None);
    }

    #[test]
    fn two_pods_of_one_name_are_for_the_kubelet_to_tell_apart() {
        let twice = [pod("a", "x", 1), pod("a", "y", 2), pod("a", "x", 3)];
        let records = Records::of(&list(&twice));
        assert_eq!(records.get("a", "x"), None);
        assert!(records.get("a", "y").is_some());
    }

    #[test]
    fn bytes_that_are_no_list_have_no_records() {
        assert_eq!(Records::of(&Bytes::from_static(&[0x0a, 0xff])).get("", ""), None);
        // A pod that cannot be read does not hide the others.
        let broken = [vec![0x0a, 0xff], pod("a", "y", 2)];
        assert!(Records::of(&list(&broken)).get("a", "y").is_some());
    }
}
