//! The frames of a watch on pods.

use kube::core::Status;
use prost::Message;
use prost::bytes::Bytes;

use crate::cluster::protobuf::proto::{Object, WatchEvent};
use crate::cluster::protobuf::{DecodeError, open_as, quoted, status, version};

/// A decoded frame of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum PodFrame {
    /// A pod was added or changed: its bytes and version.
    Applied(Bytes, String),
    /// A pod was deleted: its last state and the version of the deletion.
    Deleted(Bytes, String),
    /// A bookmark with its version.
    Bookmark(String),
    /// An error event.
    Error(Box<Status>),
}

impl PodFrame {
    /// Decodes a frame.
    ///
    /// # Errors
    /// It is not a frame of a watch on pods.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let WatchEvent { kind, object } = WatchEvent::decode(frame)?;
        let object = object.unwrap_or_default().raw;
        if kind == "ERROR" {
            return Ok(Self::Error(Box::new(status(&open_as(&object, "Status")?)?)));
        }
        let pod = open_as(&object, "Pod")?;
        let version = version(&Object::decode(&*pod)?.metadata.unwrap_or_default().resource_version)?;
        match &*kind {
            b"ADDED" | b"MODIFIED" => Ok(Self::Applied(pod, version)),
            b"DELETED" => Ok(Self::Deleted(pod, version)),
            b"BOOKMARK" => Ok(Self::Bookmark(version)),
            event => Err(DecodeError::Event(quoted(event))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::frames::FrameSplitter;
    use crate::cluster::protobuf::samples::{enveloped, pod, record};
    use crate::core_v1::read_pod;
    use crate::pod::Wanted;

    /// Two pods were added or changed, one was deleted, then a bookmark.
    const WATCH: &[u8] = include_bytes!("../protobuf/captured/watch.pb");
    /// A watch from a version that was too old.
    const EXPIRED: &[u8] = include_bytes!("../protobuf/captured/watch-expired.pb");

    fn event(kind: &[u8], object: &[u8]) -> Vec<u8> {
        [record(1, kind), record(2, &record(1, object))].concat()
    }

    fn frames(stream: &[u8]) -> Vec<Vec<u8>> {
        let mut splitter = FrameSplitter::default();
        splitter.push(stream);
        std::iter::from_fn(|| splitter.take().unwrap().map(<[u8]>::to_vec)).collect()
    }

    #[test]
    fn a_watch_of_a_real_api_server_is_decoded() {
        let name = |pod: &[u8]| read_pod(pod, &Wanted::default()).unwrap().name;
        let short = |frame: &Vec<u8>| match PodFrame::decode(frame).unwrap() {
            PodFrame::Applied(pod, version) => [name(&pod), version],
            PodFrame::Deleted(pod, version) => [format!("-{}", name(&pod)), version],
            PodFrame::Bookmark(version) => ["bookmark".to_owned(), version],
            PodFrame::Error(status) => panic!("{status:?}"),
        };
        let events: Vec<String> = frames(WATCH).iter().flat_map(short).collect();
        assert_eq!(events, ["a", "221", "b", "222", "-b", "223", "bookmark", "223"]);
        let expired = frames(EXPIRED);
        let PodFrame::Error(status) = PodFrame::decode(&expired[0]).unwrap() else { panic!("{expired:?}") };
        assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
        assert_eq!(status.message, "too old resource version: 2 (229)");
    }

    #[test]
    fn a_truncated_frame_is_an_error() {
        // The last four bytes are two empty records of the envelope.
        for frame in frames(WATCH).iter().chain(&frames(EXPIRED)) {
            for cut in 0..frame.len() - 4 {
                assert!(PodFrame::decode(&frame[..cut]).is_err(), "{cut} of {frame:?}");
            }
        }
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let unknown = [record(99, b"new"), vec![0xf8, 6, 1]].concat();
        let object = enveloped("Pod", &pod("a", b""), &unknown);
        let frame = [unknown.clone(), event(b"ADDED", &object), unknown].concat();
        assert_eq!(PodFrame::decode(&frame), Ok(PodFrame::Applied(pod("a", b"").into(), "7".to_owned())));
    }

    #[test]
    fn other_events_and_objects_are_errors() {
        let pod = enveloped("Pod", &pod("a", b""), b"");
        let unknown = DecodeError::Event("RENAMED".to_owned());
        assert_eq!(PodFrame::decode(&event(b"RENAMED", &pod)), Err(unknown));
        assert!(matches!(PodFrame::decode(&event(b"ERROR", &pod)), Err(DecodeError::Kind(..))));
        let without_version = enveloped("Pod", &record(1, &record(1, b"a")), b"");
        assert_eq!(PodFrame::decode(&event(b"ADDED", &without_version)), Err(DecodeError::NoVersion));
    }
}
