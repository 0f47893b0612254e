//! `numacast demo` without a terminal.

#![allow(clippy::unwrap_used)] // a failing test reports its location

mod picture;
mod screen;

use std::process::{Command, Output};

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_numacast")).arg("demo").args(args).output().unwrap()
}

#[test]
fn without_a_terminal_one_page_is_printed() {
    for zones in ["2", "4"] {
        let output = demo(&["--zones", zones, "--seed", "42"]);
        let page = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(
            page.starts_with(&format!("numacast demo  sim-node, {zones} NUMA zones, seed 42\n")),
            "{page}"
        );
        assert!(page.contains("\nThe object matches the kubelet's own state.  "), "{page}");
        let last = zones.parse::<u16>().unwrap() - 1;
        assert!(page.contains(&format!("\nnode-{last}")), "{page}");
        assert!(!page.contains('\x1b'), "no colours in a pipe");
    }
}

#[test]
fn an_address_in_use_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let output = demo(&["--once", "--addr", &address]);
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "numacast: cannot listen on {address}: Address already in use (os error 98); choose another address \
         with --addr\n"
    );
    assert_eq!(error, expected);
}
