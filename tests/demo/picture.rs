//! The picture of README: frames of a real run of the demo in a terminal, as an animated SVG.
//!
//! `NUMACAST_WRITE_DOCS=1 cargo test --features demo --test demo picture` draws it again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

const FILE: &str = "docs/images/demo.svg";
/// Size of the terminal, in characters.
const COLUMNS: usize = 84;
const ROWS: usize = 26;
/// Size of a character, in pixels.
const WIDTH: f64 = 8.0;
const HEIGHT: f64 = 17.0;
/// How many frames are drawn, and how long each is shown, in seconds.
const FRAMES: usize = 8;
const SECONDS: f64 = 1.5;
/// How a frame begins and ends: a synchronized update of the terminal.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";

/// Text of one style.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    column: usize,
    text: String,
    /// The parameter of the escape sequence (SGR); empty for plain text.
    style: String,
}

/// A screen: the pieces of each row.
type Frame = BTreeMap<usize, Vec<Piece>>;

/// Returns the screen that an update draws.
fn frame(update: &str) -> Frame {
    let mut frame = Frame::new();
    let (mut row, mut column, mut style) = (0, 0, String::new());
    for part in update.split("\x1b[") {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(part.len());
        let (parameter, rest) = part.split_at(end);
        match rest.chars().next() {
            Some('H') => {
                let number = parameter.split(';').next().unwrap_or_default();
                (row, column) = (number.parse::<usize>().unwrap_or(1) - 1, 0);
            }
            Some('m') => style = if parameter == "0" { String::new() } else { parameter.to_owned() },
            _ => {}
        }
        let text = rest.get(1..).unwrap_or_default();
        if !text.is_empty() {
            let piece = Piece { column, text: text.to_owned(), style: style.clone() };
            column += text.chars().count();
            frame.entry(row).or_default().push(piece);
        }
    }
    frame
}

/// Returns the rows that show resources: a label, a bar and numbers.
fn resources(frame: &Frame) -> Vec<&Vec<Piece>> {
    let is_bar = |piece: &Piece| piece.text.contains(['█', '░']);
    frame.values().filter(|row| row.iter().any(is_bar)).collect()
}

/// Takes the complete updates from the output, and adds those whose object is current and differs from the last one.
fn add_distinct(frames: &mut Vec<Frame>, output: &mut String) {
    while let Some((update, rest)) = output.split_once(END) {
        let update = update.split_once(BEGIN).map_or("", |(_, update)| update);
        let next = frame(update);
        let is_same = frames.last().is_some_and(|last| resources(last) == resources(&next));
        if update.contains("The object matches") && !is_same {
            frames.push(next);
        }
        *output = rest.to_owned();
    }
}

/// Runs the demo in a terminal until it has shown `count` states of the object.
fn run(count: usize) -> Vec<Frame> {
    let program = env!("CARGO_BIN_EXE_numacast");
    let line = format!("stty cols {COLUMNS} rows {ROWS}; exec {program} demo --seed 42");
    let mut terminal = Command::new("script")
        .args(["--quiet", "--flush", "--command", &line, "/dev/null"])
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(terminal.stdout.take().unwrap());
    let (mut frames, mut output) = (Vec::new(), String::new());
    while frames.len() < count {
        // An update ends with this letter, so no character is cut in two.
        let mut bytes = Vec::new();
        let read = stdout.read_until(b'l', &mut bytes).unwrap();
        assert!(read > 0, "the demo has ended: {output}");
        output += std::str::from_utf8(&bytes).unwrap();
        add_distinct(&mut frames, &mut output);
    }
    terminal.stdin.take().unwrap().write_all(b"q").unwrap();
    std::io::copy(&mut stdout, &mut std::io::sink()).unwrap();
    assert!(terminal.wait().unwrap().success());
    frames.truncate(count);
    frames
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

/// Draws the frames one after the other, for ever; without animations, the last one.
fn svg(frames: &[Frame]) -> String {
    let (width, height) = (20.0 + COLUMNS as f64 * WIDTH, 20.0 + ROWS as f64 * HEIGHT);
    let total = frames.len() as f64 * SECONDS;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>\n\
         text {{ font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d0d7de; white-space: pre }}\n\
         rect {{ fill: #0d1117 }}\n\
         .s1 {{ font-weight: bold; fill: #ffffff }}\n\
         .s2 {{ fill: #8b949e }}\n\
         .s31 {{ fill: #ff7b72 }}\n\
         .s32 {{ fill: #56d364 }}\n\
         .s33 {{ fill: #e3b341 }}\n\
         .frame {{ visibility: hidden; animation: show {total}s steps(1) infinite }}\n\
         @keyframes show {{ 0% {{ visibility: visible }} {}% {{ visibility: hidden }} }}\n\
         @media (prefers-reduced-motion: reduce) {{ .frame {{ animation: none }} .frame:last-child {{ visibility: visible }} }}\n\
         </style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n",
        100.0 / frames.len() as f64
    );
    for (index, frame) in frames.iter().enumerate() {
        let delay = (index as f64 - frames.len() as f64) * SECONDS;
        let _ = writeln!(svg, "<g class=\"frame\" style=\"animation-delay: {delay}s\">");
        for (row, pieces) in frame {
            pieces.iter().for_each(|piece| draw(piece, *row, &mut svg));
        }
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_shows_the_demo_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
        std::fs::write(path, svg(&run(FRAMES))).unwrap();
        return;
    }
    let picture = std::fs::read_to_string(path).unwrap();
    let frames = run(2);
    let first = &frames[0];
    let labels = resources(first).into_iter().filter_map(|row| row.first());
    let shown: Vec<&Piece> = labels.chain(first.get(&0).into_iter().flatten()).collect();
    assert!(shown.len() > 8, "{first:?}");
    for Piece { text, .. } in shown.into_iter().filter(|piece| !piece.text.trim().is_empty()) {
        assert!(
            picture.contains(&format!(">{text}</text>")),
            "`{text}` is not in {FILE}: run `NUMACAST_WRITE_DOCS=1 cargo test --features demo --test demo picture`"
        );
    }
}

#[test]
fn an_update_is_read_row_by_row() {
    let update =
        "\x1b[1;1Htitle\x1b[K\x1b[3;1H  cpu \x1b[33m██\x1b[0m\x1b[32m░░\x1b[0m 1 free\x1b[K\x1b[4;1H\x1b[J";
    let piece =
        |column, text: &str, style: &str| Piece { column, text: text.to_owned(), style: style.to_owned() };
    let cpu =
        vec![piece(0, "  cpu ", ""), piece(6, "██", "33"), piece(8, "░░", "32"), piece(10, " 1 free", "")];
    let read = frame(update);
    assert_eq!(read, Frame::from([(0, vec![piece(0, "title", "")]), (2, cpu.clone())]));
    assert_eq!(resources(&read), [&cpu]);
}

#[test]
fn frames_that_show_the_same_object_are_one() {
    let update = |bar: &str, status: &str| format!("{BEGIN}\x1b[1;1H{bar}\x1b[2;1H{status}{END}");
    let mut output = [
        update("█░", "wrong"),
        update("█░", "The object matches"),
        update("█░", "The object matches the kubelet"),
        update("██", "The object matches"),
        format!("{BEGIN}\x1b[1;1H░"),
    ]
    .concat();
    let mut frames = Vec::new();
    add_distinct(&mut frames, &mut output);
    assert_eq!((frames.len(), output.as_str()), (2, "\x1b[?2026h\x1b[1;1H░"));
}
