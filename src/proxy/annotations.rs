//! Reads the annotations with which schedulers allocate devices, CPUs and memory to pods. Pure, except that
//! the locations of PCI devices are read from sysfs.
//!
//! [`Rules`] define which annotations are read. Whenever pods or devices change, [`Rules::read`] makes the
//! [`Allocations`](super::Allocations) that are merged into responses. Annotations are untrusted: anybody who
//! creates a pod can write them.
//!
//! **To support another annotation format**, extend `mapping.rs` if one more field of a mapping can express
//! it. Otherwise, such as for several types of device or another rule for containers:
//!
//! 1. add a file beside `mapping.rs` (with several types of device, `koordinator.rs` is the closer example).
//!    Its function parses the annotation, stops after `MAX_IDS + 1` entries (one too many is an error), and
//!    passes the devices of each resource, a `RequestedDevice` for each, to `PodReader::allocate`, which
//!    chooses the containers by their requests, or to `PodReader::allocate_to`, which takes a container's
//!    name. Call it in `Rules::read_pod`;
//! 2. add a switch to [`Annotations`] (a configuration key) and to [`Annotations::are_merged`], without which
//!    nothing is read;
//! 3. add the annotation's own key to [`Rules::keys`]: other annotations are not kept;
//! 4. if it needs Koordinator's Device, include it in `reads_devices` (`src/config/settings.rs`) and in the
//!    chart's permission to read Devices.

mod budget;
mod config;
mod containers;
mod error;
mod koordinator;
mod mapping;
mod node_devices;
mod pci;
mod pod_reader;
mod resource_names;
mod rules;

pub use config::{AnnotationMapping, Annotations, Koordinator};
pub use error::{AnnotationError, ErrorKind};
pub use node_devices::NodeDevices;
pub use pci::PciDevices;
pub use rules::Rules;
#[cfg(test)]
pub(super) use rules::part_number;

/// Maximum length of an id in bytes.
pub(super) const MAX_ID_BYTES: usize = 256;
/// Maximum number of ids per pod.
const MAX_IDS: usize = 1024;
/// Maximum number of a pod's devices of one resource that are merged beyond its containers' requests, or if
/// none requests any: the scheduler may allocate more than one device for a request (`ApplyForAll` of
/// Koordinator's `device-allocate-hint`), or know no request at all. A container that the annotation names
/// gets this many, or as many as it requests if that is more.
const MAX_UNREQUESTED: usize = 16;
/// Approximate number of bytes that all annotations together may add to a response. Many clients of the
/// kubelet accept no more than 4 MiB, and a List of the kubelet alone may have most of that.
pub(super) const MAX_ADDED_BYTES: usize = 1 << 20;
