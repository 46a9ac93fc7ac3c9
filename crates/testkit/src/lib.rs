//! What tests of several crates share. So far that is only the features that they ask of
//! third-party crates: see `Cargo.toml`.
