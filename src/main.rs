//! The `liqo-csi` binary.

fn main() {}
