//! What standard output is: a terminal with a size and colours, or a file or pipe.

use std::io::{IsTerminal, stdout};

use jiff::Timestamp;

/// The size of a terminal that does not report any, such as a serial console.
const SIZE: (usize, usize) = (80, 24);

/// Standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terminal {
    /// Columns and rows; `None` if it is not a terminal.
    pub(super) size: Option<(usize, usize)>,
    /// Whether text may have colours.
    pub(super) colour: bool,
}

impl Terminal {
    /// Returns what standard output is now: a window may change its size.
    pub(super) fn now() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let size = stdout().is_terminal().then(|| {
            let size = rustix::termios::tcgetwinsize(stdout()).ok();
            let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
            size.map_or(SIZE, |size| (size.ws_col.into(), size.ws_row.into()))
        });
        // https://no-color.org
        Self { size, colour: size.is_some() && !is_set("NO_COLOR") && !is_dumb }
    }

    /// Returns the number of columns: without a terminal nothing is shortened.
    pub(super) fn width(self) -> usize {
        self.size.map_or(usize::MAX, |(width, _)| width)
    }
}

#[allow(clippy::disallowed_methods, reason = "objects have their times by the wall clock")]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}
