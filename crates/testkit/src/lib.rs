//! Shared by tests of several crates. So far only the features of third-party crates that tests need: see
//! `Cargo.toml`.
