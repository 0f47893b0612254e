//! The pod sources to use, and how to reach them.

use std::path::PathBuf;
use std::time::Duration;

use super::kind::PodSourceKind;
use super::kubelet_port::KubeletPort;
use super::shared_informer::SharedInformer;
use crate::pod::Wanted;

/// The sources to use, and how to reach them.
#[derive(Clone, Debug, Default)]
pub struct PodSources {
    /// The sources, in order of preference.
    pub order: Vec<PodSourceKind>,
    /// The socket of the Pods API.
    pub socket: PathBuf,
    /// The deadline of a call to the kubelet.
    pub timeout: Duration,
    /// How often `/pods` is read.
    pub interval: Duration,
    /// The address of `/pods`.
    pub port: KubeletPort,
    /// The optional parts of a pod to keep.
    pub wanted: Wanted,
    /// Shares the sources with others in this process, if set.
    pub informer: Option<SharedInformer>,
}
