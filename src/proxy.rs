//! The podresources API, served again with the devices that were allocated by annotation in it.

pub mod merge;
