//! The program when its output cannot be written.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::{
    fs::File,
    io::pipe,
    process::{Command, Output, Stdio},
};

/// Commands that print many lines and need no cluster.
const COMMANDS: [&str; 3] = [
    "connect milan --fabric --cluster-id home -o yaml",
    "crds",
    "completion bash",
];

fn print_to(stdout: impl Into<Stdio>, command: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_liqo-csi"))
        .args(command.split(' '))
        .stdout(stdout)
        .output()
        .unwrap()
}

/// As with `| head -1`.
#[test]
fn a_command_goes_on_if_nobody_reads_its_output() {
    for command in COMMANDS {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let output = print_to(writer, command);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{command}: {output:?}"
        );
    }
}

#[test]
fn output_that_is_lost_is_a_failure() {
    for command in COMMANDS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = print_to(full, command);
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {why}");
        assert!(
            why.starts_with("liqo-csi: the output could not be written"),
            "{command}: {why}"
        );
    }
}
