//! Merges allocations into the kubelet's responses: only the pods and containers that get something change,
//! everything else stays as it was, byte for byte. Pure.

mod editor;
mod message;

use std::ops::Range;

use prost::bytes::Bytes;

use super::allocations::{AllocatedDevice, Allocations};
pub use crate::util::wire::WireError;

use editor::ResponseEditor;
use message::{field, mark_devices, pod_name, put_devices, submessages};

/// The version of the podresources API of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodResourcesVersion {
    /// CPUs, memory and devices.
    V1,
    /// Devices only, without topology.
    V1alpha1,
}

/// A response with the allocations merged in.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The response: the very same bytes if nothing was merged.
    pub bytes: Bytes,
    /// Number of devices that were added.
    pub devices: usize,
    /// Allocations that were not added.
    pub omitted: Omitted,
    /// The pods in the response.
    pub listed: ListedPods,
}

/// Numbers of ids that are allocated to the pods of a response but were not added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omitted {
    /// The kubelet already lists the device, for any pod.
    pub listed: usize,
    /// The kubelet itself allocated devices of this resource to the pod: those are the pod's devices.
    pub allocated: usize,
    /// A resource claim of the pod has the device.
    pub claimed: usize,
    /// The response does not have the container.
    pub no_container: usize,
}

impl Omitted {
    /// Returns the name and the number of each reason, for metrics.
    #[must_use]
    pub const fn reasons(&self) -> [(&'static str, usize); 4] {
        [
            ("listed", self.listed),
            ("allocated", self.allocated),
            ("claimed", self.claimed),
            ("container_not_listed", self.no_container),
        ]
    }
}

/// The pods of a response, in its order: where their names are in the kubelet's bytes.
#[derive(Clone, Debug, Default)]
pub struct ListedPods {
    bytes: Bytes,
    /// Namespace and name.
    names: Vec<(Range<usize>, Range<usize>)>,
}

impl ListedPods {
    /// Returns namespaces and names. A name that is not UTF-8 cannot be a pod's and is skipped.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |range: &Range<usize>| str::from_utf8(&self.bytes[range.clone()]).ok();
        self.names.iter().filter_map(move |(namespace, name)| text(namespace).zip(text(name)))
    }
}

impl Merged {
    fn unchanged(bytes: &Bytes, listed: ListedPods) -> Self {
        Self { bytes: bytes.clone(), devices: 0, omitted: Omitted::default(), listed }
    }
}

impl Allocations {
    /// Merges the allocations into a `ListPodResourcesResponse`.
    ///
    /// # Errors
    /// If the kubelet's response is not such a message.
    pub fn merge_list(&self, bytes: &Bytes, version: PodResourcesVersion) -> Result<Merged, WireError> {
        let (mut names, mut messages, mut allocated) = (Vec::new(), Vec::new(), Vec::new());
        for message in submessages(bytes, 0..bytes.len(), field::PODS) {
            let message = message?;
            let (namespace, name) = pod_name(bytes, std::slice::from_ref(&message))?;
            if let Some(pod) = self.pod(&bytes[namespace.clone()], &bytes[name.clone()]) {
                allocated.push((pod, messages.len()));
            }
            names.push((namespace, name));
            messages.push(message);
        }
        let listed = ListedPods { bytes: bytes.clone(), names };
        if allocated.is_empty() {
            return Ok(Merged::unchanged(bytes, listed));
        }
        let mut editor = ResponseEditor::new(self, bytes, version);
        editor.mark_listed(&messages)?;
        let mut is_done = vec![false; self.pods.len()];
        for (pod, message) in allocated {
            // If two pods share a name, it is unknown which one is meant, but only one is.
            if !is_done[pod] {
                is_done[pod] = editor.edit(&self.pods[pod], std::slice::from_ref(&messages[message]))?;
            }
        }
        editor.finish(listed)
    }

    /// Merges the allocations into a `GetPodResourcesResponse`.
    ///
    /// # Errors
    /// As [`Allocations::merge_list`].
    pub fn merge_get(&self, bytes: &Bytes) -> Result<Merged, WireError> {
        // There is one pod. If it comes in several records, they are the pieces of one message.
        let parts = submessages(bytes, 0..bytes.len(), field::PODS).collect::<Result<Vec<_>, _>>()?;
        if parts.is_empty() {
            return Ok(Merged::unchanged(bytes, ListedPods::default()));
        }
        let (namespace, name) = pod_name(bytes, &parts)?;
        let pod = self.pod(&bytes[namespace.clone()], &bytes[name.clone()]);
        let listed = ListedPods { bytes: bytes.clone(), names: vec![(namespace, name)] };
        let Some(pod) = pod else { return Ok(Merged::unchanged(bytes, listed)) };
        let mut editor = ResponseEditor::new(self, bytes, PodResourcesVersion::V1);
        editor.mark_listed(&parts)?;
        editor.edit(&self.pods[pod], &parts)?;
        editor.finish(listed)
    }

    /// Adds the node's devices to an `AllocatableResourcesResponse`, except those it already has.
    ///
    /// # Errors
    /// As [`Allocations::merge_list`].
    pub fn merge_allocatable(&self, bytes: &Bytes) -> Result<Merged, WireError> {
        let (table, listed) = (&self.allocatable, ListedPods::default());
        if table.devices.is_empty() {
            return Ok(Merged::unchanged(bytes, listed));
        }
        let mut marks = vec![false; table.devices.len()];
        for message in submessages(bytes, 0..bytes.len(), field::ALLOCATABLE_DEVICES) {
            mark_devices(table, bytes, &message?, &mut marks)?;
        }
        let missing = (0..table.devices.len()).filter(|device| !marks[*device]);
        let missing: Vec<_> = missing.map(|device| AllocatedDevice { device, part: None }).collect();
        let omitted = Omitted { listed: table.devices.len() - missing.len(), ..Omitted::default() };
        if missing.is_empty() {
            return Ok(Merged { omitted, ..Merged::unchanged(bytes, listed) });
        }
        let mut all = bytes.to_vec();
        put_devices(&mut all, table, &missing, field::ALLOCATABLE_DEVICES, PodResourcesVersion::V1);
        Ok(Merged { bytes: all.into(), devices: missing.len(), omitted, listed })
    }
}
