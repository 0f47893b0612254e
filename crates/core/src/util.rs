//! Helpers: files, name patterns, JSON paths, texts and the protocol buffers wire format.

pub mod file;
pub mod glob;
pub mod json_path;
pub mod text;
pub mod wire;
