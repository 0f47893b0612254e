//! What a terminal shows, and pictures of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Size of a character, in pixels.
const WIDTH: f64 = 8.0;
const HEIGHT: f64 = 17.0;

/// Text of one style.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) column: usize,
    pub(crate) text: String,
    /// The parameter of the escape sequence (SGR); empty for plain text.
    pub(crate) style: String,
}

/// The pieces of each row of a terminal.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Screen {
    pub(crate) rows: BTreeMap<usize, Vec<Piece>>,
}

impl Screen {
    /// Reads what a program printed to a terminal of `columns` columns. Text is wrapped there, as terminals do.
    pub(crate) fn read(output: &str, columns: usize) -> Self {
        let mut screen = Self::default();
        let (mut row, mut column, mut style) = (0, 0, String::new());
        for (number, part) in output.split("\x1b[").enumerate() {
            let mut text = part;
            if number > 0 {
                let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(part.len());
                text = part.get(end + 1..).unwrap_or_default();
                match part.get(end..=end) {
                    Some("H") => {
                        let number = part[..end].split(';').next().unwrap_or_default();
                        (row, column) = (number.parse::<usize>().unwrap_or(1) - 1, 0);
                    }
                    Some("m") => style = part[..end].trim_start_matches('0').to_owned(),
                    _ => {}
                }
            }
            for (number, line) in text.split("\r\n").enumerate() {
                if number > 0 {
                    (row, column) = (row + 1, 0);
                }
                let mut left: Vec<char> = line.chars().collect();
                while !left.is_empty() {
                    if column == columns {
                        (row, column) = (row + 1, 0);
                    }
                    let text: String = left.drain(..left.len().min(columns - column)).collect();
                    let width = text.chars().count();
                    screen.rows.entry(row).or_default().push(Piece { column, text, style: style.clone() });
                    column += width;
                }
            }
        }
        screen
    }

    /// Returns the number of rows, the last one with text included.
    pub(crate) fn height(&self) -> usize {
        self.rows.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    /// Returns the elements of the text.
    pub(crate) fn svg(&self) -> String {
        let mut svg = String::new();
        for (row, pieces) in &self.rows {
            pieces.iter().for_each(|piece| draw(piece, *row, &mut svg));
        }
        svg
    }
}

/// Draws a piece: bars as rectangles, since their characters are not equally wide in every font.
fn draw(piece: &Piece, row: usize, svg: &mut String) {
    let (x, y) = (10.0 + piece.column as f64 * WIDTH, 10.0 + row as f64 * HEIGHT);
    let width = piece.text.chars().count() as f64 * WIDTH;
    let class = format!("s{}", piece.style);
    if piece.text.starts_with(['█', '░']) {
        let opacity = if piece.text.starts_with('█') { 1.0 } else { 0.35 };
        let height = HEIGHT - 5.0;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"{height}\" opacity=\"{opacity}\"/>",
            y + 2.0
        );
    } else if !piece.text.trim().is_empty() {
        let text = piece.text.replace('&', "&amp;").replace('<', "&lt;");
        let y = y + HEIGHT - 5.0;
        let _ =
            writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" textLength=\"{width}\">{text}</text>");
    }
}

/// Returns a picture of a terminal of this size: `body` consists of what [`Screen::svg`] returns.
pub(crate) fn svg(columns: usize, rows: usize, style: &str, body: &str) -> String {
    let (width, height) = (20.0 + columns as f64 * WIDTH, 20.0 + rows as f64 * HEIGHT);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>\n\
         text {{ font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d0d7de; white-space: pre }}\n\
         rect {{ fill: #0d1117 }}\n\
         .s1 {{ font-weight: bold; fill: #ffffff }}\n\
         .s2 {{ fill: #8b949e }}\n\
         .s31 {{ fill: #ff7b72 }}\n\
         .s32 {{ fill: #56d364 }}\n\
         .s33 {{ fill: #e3b341 }}\n\
         {style}\
         </style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n\
         {body}\
         </svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(column: usize, text: &str, style: &str) -> Piece {
        Piece { column, text: text.to_owned(), style: style.to_owned() }
    }

    #[test]
    fn an_update_is_read_row_by_row() {
        let update = "\x1b[1;1Htitle\x1b[K\x1b[3;1H  cpu \x1b[33m██\x1b[0m\x1b[32m░░\x1b[0m 1 free\x1b[K\x1b[4;1H\x1b[J";
        let cpu = vec![
            piece(0, "  cpu ", ""),
            piece(6, "██", "33"),
            piece(8, "░░", "32"),
            piece(10, " 1 free", ""),
        ];
        let read = Screen::read(update, 80);
        assert_eq!(read.rows, [(0, vec![piece(0, "title", "")]), (2, cpu)].into());
    }

    #[test]
    fn lines_are_wrapped_as_by_a_terminal() {
        let read = Screen::read("ab\r\n\r\n\x1b[1mcdefgh\x1b[0mi\r\n", 4);
        let wrapped = vec![piece(0, "gh", "1"), piece(2, "i", "")];
        assert_eq!(
            read.rows,
            [(0, vec![piece(0, "ab", "")]), (2, vec![piece(0, "cdef", "1")]), (3, wrapped)].into()
        );
        assert_eq!(read.height(), 4);
    }

    #[test]
    fn text_is_escaped_and_bars_are_rectangles() {
        let drawn = Screen::read("\x1b[33m█\x1b[0m a <&", 80).svg();
        assert!(drawn.contains("<rect class=\"s33\" x=\"10\""), "{drawn}");
        assert!(drawn.contains("> a &lt;&amp;</text>"), "{drawn}");
    }
}
