use std::fmt::Write;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Used,
    Free,
    Good,
    Bad,
}

impl Style {
    /// Returns the parameter of the terminal's escape sequence (SGR).
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Bold => Some("1"),
            Self::Dim => Some("2"),
            Self::Used => Some("33"),
            Self::Free | Self::Good => Some("32"),
            Self::Bad => Some("31"),
        }
    }
}

/// A line of styled pieces. Every character that the demo prints is one column wide.
#[derive(Clone, Default)]
pub(super) struct Line(pub(super) Vec<(String, Style)>);

impl Line {
    pub(super) fn new(text: impl Into<String>, style: Style) -> Self {
        Self(vec![(text.into(), style)])
    }

    pub(super) fn add(mut self, text: impl Into<String>, style: Style) -> Self {
        self.0.push((text.into(), style));
        self
    }

    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| text.chars().count()).sum()
    }

    /// Truncates or pads the line to exactly `width` columns.
    pub(super) fn fitted(mut self, width: usize) -> Self {
        let fill = width.saturating_sub(self.width());
        self.0.push((" ".repeat(fill), Style::Plain));
        let mut left = width;
        for (text, _) in &mut self.0 {
            *text = text.chars().take(left).collect();
            left -= text.chars().count();
        }
        self
    }

    /// Appends the line to the page, truncated to `width` columns.
    pub(super) fn write(&self, width: usize, colour: bool, page: &mut String) {
        let mut left = width;
        let mut line = String::new();
        for (text, style) in &self.0 {
            let cut: String = text.chars().take(left).collect();
            left -= cut.chars().count();
            match style.code().filter(|_| colour && !cut.is_empty()) {
                // Writing to a String cannot fail.
                Some(code) => drop(write!(line, "\x1b[{code}m{cut}\x1b[0m")),
                None => line.push_str(&cut),
            }
        }
        page.push_str(line.trim_end());
    }
}
