//! Pods for tests.

use crate::pod::{Annotation, Pod};

/// Returns a pod with an annotation of this length.
pub(super) fn annotated(name: &str, length: usize) -> Pod {
    let annotations = [("a".into(), Annotation::of(&"x".repeat(length)))].into();
    let (namespace, uid) = ("ns".to_owned(), format!("uid-{name}"));
    Pod { namespace, name: name.to_owned(), uid, annotations, ..Pod::default() }
}
