//! `liqo-csi crds`: the custom resource definitions, ready for `kubectl apply`.
//! The chart carries the same text.

use std::io::Write;

use kube::CustomResourceExt;

use super::Outcome;
use crate::api::{remote_cluster::RemoteCluster, volume_move::VolumeMove};

const HEADER: &str = "# Printed by `liqo-csi crds`; do not edit.\n";

pub(super) fn run() -> Outcome {
    std::io::stdout().write_all(text()?.as_bytes())?;
    Ok(())
}

fn text() -> Result<String, serde_saphyr::ser::Error> {
    let definitions = [RemoteCluster::crd(), VolumeMove::crd()];
    let texts: Result<Vec<String>, _> = definitions.iter().map(serde_saphyr::to_string).collect();
    Ok(format!("{HEADER}{}", texts?.join("---\n")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_chart_carries_what_is_printed() {
        let path = "deploy/chart/liqo-csi/crds/definitions.yaml";
        let kept = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/deploy/chart/liqo-csi/crds/definitions.yaml"
        ))
        .unwrap_or_default();
        assert!(
            kept == super::text().unwrap(),
            "{path} is not what the program prints; refresh it: cargo run -- crds > {path} && make chart-manifests"
        );
    }
}
