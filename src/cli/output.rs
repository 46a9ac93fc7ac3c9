//! What the commands print. std's macros panic if that fails, as with `liqo-csi connect … | head -1`, and a command
//! would stop between two writes to the cluster. These go on; the exit code then says that output is missing.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    sync::OnceLock,
};

/// Why output of this process is missing, if it is.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

macro_rules! print {
    ($($text:tt)*) => { $crate::cli::output::stdout(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::cli::output::stdout(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::cli::output::stderr(format_args!($($text)*)) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::output::stderr(format_args!("{}\n", format_args!($($text)*))) };
}

pub(super) fn stdout(text: fmt::Arguments<'_>) {
    // The test harness captures only std's.
    if cfg!(test) {
        std::print!("{text}");
    } else if let Err(error) = io::stdout().write_fmt(text) {
        let _first = FAILURE.set(error);
    }
}

pub(super) fn stderr(text: fmt::Arguments<'_>) {
    if cfg!(test) {
        std::eprint!("{text}");
    } else {
        // There is nowhere else to print it.
        let _written = io::stderr().write_fmt(text);
    }
}

/// Why the output is incomplete, although the reader wanted all of it.
pub(super) fn failure() -> Option<&'static io::Error> {
    if let Err(error) = io::stdout().flush() {
        let _first = FAILURE.set(error);
    }
    FAILURE
        .get()
        .filter(|error| error.kind() != ErrorKind::BrokenPipe)
}
