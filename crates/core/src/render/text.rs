use std::fmt::Write;

/// How a piece of a line looks in a terminal with colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// As the terminal shows text.
    #[default]
    Plain,
    /// Titles and headings.
    Bold,
    /// What is less important.
    Dim,
    /// What is in use, in a bar.
    Used,
    /// What is free, in a bar.
    Free,
    /// As it should be.
    Good,
    /// Neither good nor bad: a guess, or worth a look.
    Warning,
    /// Not as it should be.
    Bad,
}

impl Style {
    /// Returns the parameter of the terminal's escape sequence (SGR).
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Bold => Some("1"),
            Self::Dim => Some("2"),
            Self::Used | Self::Warning => Some("33"),
            Self::Free | Self::Good => Some("32"),
            Self::Bad => Some("31"),
        }
    }
}

/// Returns the text with `?` for what is not printable ASCII, apart from the characters that bars and tables are
/// drawn with.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { '?' }).collect()
}

fn is_printable(c: char) -> bool {
    // Box drawing and block elements: one column in every terminal.
    matches!(c, ' '..='~' | '…' | '\u{2500}'..='\u{259f}')
}

/// A line of styled pieces, with only [`printable`] characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<(String, Style)>);

impl Line {
    /// Returns a line of one piece.
    #[must_use]
    pub fn new(text: impl AsRef<str>, style: Style) -> Self {
        Self::default().add(text, style)
    }

    /// Appends a piece.
    #[must_use]
    pub fn add(mut self, text: impl AsRef<str>, style: Style) -> Self {
        self.0.push((printable(text.as_ref()), style));
        self
    }

    /// Appends the pieces of another line.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn width(&self) -> usize {
        self.0.iter().map(|(text, _)| text.chars().count()).sum()
    }

    /// Returns the text without its styles.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// Truncates or pads the line to exactly `width` columns.
    #[must_use]
    pub fn fitted(mut self, width: usize) -> Self {
        let fill = width.saturating_sub(self.width());
        self.0.push((" ".repeat(fill), Style::Plain));
        self.cut(width);
        self
    }

    /// Shortens a line of more than `width` columns, so that it ends in `…`.
    #[must_use]
    pub fn shortened(mut self, width: usize) -> Self {
        if self.width() > width && width > 0 {
            self.cut(width - 1);
            let style = self.0.last().map_or(Style::Plain, |(_, style)| *style);
            self.0.push(("…".to_owned(), style));
        }
        self.cut(width);
        self
    }

    /// Breaks a line of more than `width` columns at spaces. All but the first of the lines are indented by two more
    /// columns. Words are not broken.
    #[must_use]
    pub fn wrapped(self, width: usize) -> Vec<Self> {
        if self.width() <= width {
            return vec![self];
        }
        let pieces = self.0.iter();
        let all: Vec<(char, Style)> =
            pieces.flat_map(|(text, style)| text.chars().map(|c| (c, *style))).collect();
        let is_space = |at: &usize| all[*at].0 == ' ';
        let own = (0..all.len()).take_while(is_space).count();
        let (mut lines, mut start, mut text) = (Vec::new(), 0, own);
        while start < all.len() {
            let indent = if lines.is_empty() { 0 } else { own + 2 };
            let most = (start + width.saturating_sub(indent)).max(text);
            let fits = (all.len() <= most).then_some(all.len());
            let before = || (text + 1..=most).rev().find(is_space);
            let after = || (most + 1..all.len()).find(is_space);
            let end = fits.or_else(before).or_else(after).unwrap_or(all.len());
            let line = Self::new(" ".repeat(indent), Style::Plain);
            lines.push(all[start..end].iter().fold(line, |line, (c, style)| line.add_char(*c, *style)));
            start = (end..all.len()).find(|at| !is_space(at)).unwrap_or(all.len());
            text = start;
        }
        lines
    }

    /// Appends a character to the last piece, if that has this style.
    fn add_char(mut self, c: char, style: Style) -> Self {
        match self.0.last_mut() {
            Some((text, last)) if *last == style => text.push(c),
            _ => self.0.push((c.to_string(), style)),
        }
        self
    }

    /// Removes what is beyond `width` columns.
    fn cut(&mut self, width: usize) {
        let mut left = width;
        for (text, _) in &mut self.0 {
            *text = text.chars().take(left).collect();
            left -= text.chars().count();
        }
        self.0.retain(|(text, _)| !text.is_empty());
    }

    /// Appends the line to the page, truncated to `width` columns.
    pub fn write(&self, width: usize, colour: bool, page: &mut String) {
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

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Self::new(text, Style::Plain)
    }
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Self::new(text, Style::Plain)
    }
}

/// Returns the lines as text of at most `width` columns, without a newline after the last one.
#[must_use]
pub fn page<'a>(lines: impl IntoIterator<Item = &'a Line>, width: usize, colour: bool) -> String {
    let mut page = String::new();
    for (number, line) in lines.into_iter().enumerate() {
        if number > 0 {
            page.push('\n');
        }
        line.write(width, colour, &mut page);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_the_cluster_controls_the_terminal() {
        let hostile = "a\x1b[2Jb\r\n\u{9b}c\u{202e}d\u{7f}\u{200b}漢é█─";
        assert_eq!(printable(hostile), "a?[2Jb???c?d????█─");
        let line = Line::new(hostile, Style::Bad).add(hostile, Style::Plain);
        assert_eq!(line.width(), 2 * hostile.chars().count());
        let page = page([&line, &Line::from(hostile)], usize::MAX, true);
        assert_eq!(page.matches('\x1b').count(), 2, "only that of the style, and its end: {page:?}");
        assert_eq!(page.lines().count(), 2);
    }

    #[test]
    fn a_long_line_is_broken_at_spaces() {
        let text = |line: Line, width| page(&line.wrapped(width), usize::MAX, true);
        let line = || Line::new("  one two", Style::Bad).add(" three  four", Style::Plain);
        assert_eq!(text(line(), 21), "\x1b[31m  one two\x1b[0m three  four");
        assert_eq!(text(line(), 20), "\x1b[31m  one two\x1b[0m three\n    four");
        assert_eq!(text(line(), 9), "\x1b[31m  one two\x1b[0m\n    three\n    four");
        assert_eq!(text(line(), 8), "\x1b[31m  one\x1b[0m\n    \x1b[31mtwo\x1b[0m\n    three\n    four");
        assert_eq!(text(line(), 0), text(line(), 8));
        assert_eq!(text(Line::from("abc"), 1), "abc");
        assert_eq!(text(Line::from("    "), 1), "");
    }

    #[test]
    fn a_shortened_line_ends_in_an_ellipsis() {
        let line = || Line::new("worker", Style::Bold).add("-12", Style::Bad);
        assert_eq!(line().shortened(9), line());
        assert_eq!(line().shortened(8).text(), "worker-…");
        assert_eq!(line().shortened(6), Line::new("worke", Style::Bold).add("…", Style::Bold));
        assert_eq!((line().shortened(1).text(), line().shortened(0).text()), ("…".into(), String::new()));
    }
}
