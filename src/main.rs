//! The `liqo-csi` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    liqo_csi::cli::run()
}
