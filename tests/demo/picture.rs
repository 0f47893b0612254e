//! The picture of README: frames of a real run of the demo in a terminal, as an animated SVG.
//!
//! `NUMACAST_WRITE_DOCS=1 cargo test --features demo --test demo picture` draws it again.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::screen::{Piece, Screen, svg};

const FILE: &str = "docs/images/demo.svg";
/// Size of the terminal, in characters.
const COLUMNS: usize = 84;
const ROWS: usize = 26;
/// How many frames are drawn, and how long each is shown, in seconds.
const FRAMES: usize = 8;
const SECONDS: f64 = 1.5;
/// How an update begins and ends, if the terminal synchronizes them.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";

/// Returns the rows that show resources: a label, a bar and numbers.
fn resources(screen: &Screen) -> Vec<&Vec<Piece>> {
    let is_bar = |piece: &Piece| piece.text.contains(['█', '░']);
    screen.rows.values().filter(|row| row.iter().any(is_bar)).collect()
}

/// Takes the complete updates from the output, and adds those whose object is current and differs from the last one.
fn add_distinct(frames: &mut Vec<Screen>, output: &mut String) {
    while let Some((update, rest)) = output.split_once(END) {
        let update = update.split_once(BEGIN).map_or("", |(_, update)| update);
        let next = Screen::read(update, COLUMNS);
        let is_same = frames.last().is_some_and(|last| resources(last) == resources(&next));
        if update.contains("The object matches") && !is_same {
            frames.push(next);
        }
        *output = rest.to_owned();
    }
}

/// Runs the demo in a terminal until it has shown `count` states of the object.
fn run(count: usize) -> Vec<Screen> {
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

/// Draws the screens one after the other, for ever; without animations, the last one.
fn picture(screens: &[Screen]) -> String {
    let total = screens.len() as f64 * SECONDS;
    let style = format!(
        ".frame {{ visibility: hidden; animation: show {total}s steps(1) infinite }}\n\
         @keyframes show {{ 0% {{ visibility: visible }} {}% {{ visibility: hidden }} }}\n\
         @media (prefers-reduced-motion: reduce) {{ .frame {{ animation: none }} .frame:last-child {{ visibility: visible }} }}\n",
        100.0 / screens.len() as f64
    );
    let mut body = String::new();
    for (index, screen) in screens.iter().enumerate() {
        let delay = (index as f64 - screens.len() as f64) * SECONDS;
        let _ =
            writeln!(body, "<g class=\"frame\" style=\"animation-delay: {delay}s\">\n{}</g>", screen.svg());
    }
    svg(COLUMNS, ROWS, &style, &body)
}

#[test]
fn the_picture_shows_the_demo_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
        std::fs::write(path, picture(&run(FRAMES))).unwrap();
        return;
    }
    let picture = std::fs::read_to_string(path).unwrap();
    let frames = run(2);
    let first = &frames[0];
    let labels = resources(first).into_iter().filter_map(|row| row.first());
    let shown: Vec<&Piece> = labels.chain(first.rows.get(&0).into_iter().flatten()).collect();
    assert!(shown.len() > 8, "{first:?}");
    for Piece { text, .. } in shown.into_iter().filter(|piece| !piece.text.trim().is_empty()) {
        assert!(
            picture.contains(&format!(">{text}</text>")),
            "`{text}` is not in {FILE}: run `NUMACAST_WRITE_DOCS=1 cargo test --features demo --test demo picture`"
        );
    }
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
