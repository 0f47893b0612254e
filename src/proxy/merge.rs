//! What is merged into the kubelet's responses, and how. Pure, except that the locations of cards are read
//! from sysfs.
//!
//! [`Rules`] define what is read from pods. Whenever pods or devices change, they make a [`Plan`], and every
//! response goes through the plan: only the containers that get something change, everything else stays as it
//! was, byte for byte.

mod annotations;
mod attribution;
mod budget;
mod koordinator;
mod names;
mod node;
mod plan;
mod problem;
mod rules;
mod splice;
#[cfg(test)]
mod tests;

pub use annotations::{AnnotationMapping, Annotations, Koordinator};
pub use node::{Node, Pci};
pub use plan::Plan;
pub use problem::{Kind, Problem};
pub use rules::Rules;
pub use splice::{LeftOut, Listed, Merged, Version};

use crate::util::json_path::Template;
pub use crate::util::wire::WireError;

/// Maximum length of an id in bytes.
const ID_LIMIT: usize = Template::LONGEST;
/// Maximum number of ids per pod.
const IDS_LIMIT: usize = 1024;
/// Maximum number of a pod's devices of one resource beyond its containers' requests: the scheduler may
/// allocate more than one device for a request (`ApplyForAll` of Koordinator's `device-allocate-hint`), or
/// know no request at all.
const UNASKED_LIMIT: usize = 16;
/// Approximate number of bytes that all annotations together may add to a response. Many clients of the
/// kubelet accept no more than 4 MiB, and a List of the kubelet alone may have most of that.
const NODE_BYTES: usize = 1 << 20;
/// Maximum number of types of a pod's Koordinator devices. There are three, and each is a resource in our
/// tables.
const TYPES_LIMIT: usize = 16;
