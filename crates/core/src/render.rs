//! Text for a terminal: styled lines, tables, and zones with their bars.
//!
//! Every character is one column wide, and none controls the terminal: names come from the cluster.

mod table;
mod text;
mod zones;

pub use table::{Column, Table};
pub use text::{Line, Style, page, printable};
pub use zones::{Resource, Zone, bar, gib, listed, panels, resource_label, zone_table};
