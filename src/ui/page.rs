//! The files of the page: plain HTML, CSS and JavaScript modules.

/// A file of the page.
pub(super) struct File {
    pub(super) path: &'static str,
    pub(super) kind: &'static str,
    /// Compressed with gzip, which all browsers accept: the binary is smaller.
    pub(super) gzip: &'static [u8],
}

macro_rules! file {
    ($path:literal, $kind:expr, $name:literal) => {
        File { path: $path, kind: $kind, gzip: include_bytes!(concat!(env!("OUT_DIR"), "/page/", $name)) }
    };
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page itself.
pub(super) static INDEX: File = file!("/", HTML, "index.html");

/// The page that asks for a token.
pub(super) const LOGIN: &str = include_str!("page/login.html");

/// What it loads.
pub(super) static FILES: [File; 8] = [
    file!("/style.css", "text/css; charset=utf-8", "style.css"),
    file!("/icon.svg", "image/svg+xml", "icon.svg"),
    file!("/login.js", SCRIPT, "login.js"),
    file!("/app.js", SCRIPT, "app.js"),
    file!("/fleet.js", SCRIPT, "fleet.js"),
    file!("/map.js", SCRIPT, "map.js"),
    file!("/panel.js", SCRIPT, "panel.js"),
    file!("/text.js", SCRIPT, "text.js"),
];
