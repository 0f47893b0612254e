//! Who publishes the object.

use super::world::{Signal, World};

/// One kind of exporter.
pub trait Exporter {
    /// Something happened that it hears of.
    fn hear(&mut self, world: &mut World, signal: Signal);
}

/// None at all.
#[derive(Debug)]
pub struct Nobody;

impl Exporter for Nobody {
    fn hear(&mut self, _: &mut World, _: Signal) {}
}
