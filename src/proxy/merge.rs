//! What is put into the kubelet's answers, and how: pure, but for the files of sysfs that tell where a card is.
//!
//! [`Rules`] say what is read of pods. Whenever pods or devices change they make a [`Plan`], and the plan is what every
//! answer goes through: only the containers that get something change, all else stays as it came, byte for byte.

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

pub use node::{Node, Pci};
pub use plan::Plan;
pub use problem::{Kind, Problem};
pub use rules::Rules;
pub use splice::{LeftOut, Listed, Merged, Version};

use crate::json_path::Template;
pub use crate::wire::WireError;

/// So many bytes an id may have.
const ID_LIMIT: usize = Template::LONGEST;
/// So many ids a pod may have.
const IDS_LIMIT: usize = 1024;
/// So many devices of one resource a pod may have that its containers do not ask for: who places pods may give more than one
/// device for a request (`ApplyForAll` of Koordinator's `device-allocate-hint`), or know of no request at all.
const UNASKED_LIMIT: usize = 16;
/// What all annotations together may add to an answer, in bytes, roughly. Many clients of the kubelet take no more than 4 MiB,
/// and a List of the kubelet alone may have most of that.
const NODE_BYTES: usize = 1 << 20;
/// Of so many types Koordinator's devices of a pod may be. There are three, and each is a resource in our tables.
const TYPES_LIMIT: usize = 16;
