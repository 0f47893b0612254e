//! Documents generated from the code. `NUMACAST_WRITE_DOCS=1 cargo test --lib the_document` writes them all.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Checks, or writes, the part of a document between `<!-- name -->` and `<!-- end of name -->`.
pub(crate) fn section(file: &str, name: &str, right: &str) {
    // Tests run in parallel, and a document may have several sections.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let (start, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
    let (before, rest) = text.split_once(&start).unwrap();
    let (_, after) = rest.split_once(&end).unwrap();
    whole(file, &[before, &start, right, &end, after].concat());
}

/// Checks, or writes, a whole document.
pub(crate) fn whole(file: &str, right: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
        std::fs::write(path, right).unwrap();
        return;
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text == right, "{file} is old: run `NUMACAST_WRITE_DOCS=1 cargo test --lib the_document`");
}
