//! The program when its output cannot be written.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::{
    fs::File,
    io::pipe,
    process::{Command, Output, Stdio},
};

/// Runs a command that prints many lines and needs no cluster.
fn print_to(stdout: impl Into<Stdio>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_liqo-csi"))
        .args([
            "connect",
            "milan",
            "--fabric",
            "--cluster-id",
            "home",
            "-o",
            "yaml",
        ])
        .stdout(stdout)
        .output()
        .unwrap()
}

/// As with `| head -1`.
#[test]
fn a_command_goes_on_if_nobody_reads_its_output() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let output = print_to(writer);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn output_that_is_lost_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = print_to(full);
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    assert!(
        why.starts_with("liqo-csi: the output could not be written"),
        "{why}"
    );
}
