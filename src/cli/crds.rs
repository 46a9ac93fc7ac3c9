//! `liqo-csi crds`: the custom resource definitions, ready for `kubectl apply`.
//! The chart has the same texts. The definition of `NamespaceOffloading`, which is Liqo's kind as well,
//! is applied by the chart only if none exists.

use kube::CustomResourceExt;

use super::Outcome;
use crate::api::{
    namespace_offloading::NamespaceOffloading, remote_cluster::RemoteCluster, volume_move::VolumeMove,
};

const HEADER: &str = "# Printed by `liqo-csi crds`; do not edit.\n";
const OFFLOADING_HEADER: &str = "# Printed by `liqo-csi crds --offloading`; do not edit. For `kubectl create`: Liqo \
                                 defines the\n# same kind, and its definition must not be overwritten.\n";

const EXAMPLES: &str = "\
Examples:
  liqo-csi crds | kubectl apply -f -
  liqo-csi crds --offloading | kubectl create -f -";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Print only the definition of `NamespaceOffloadings`, for `kubectl create -f -`, which does not
    /// change the one that Liqo has installed.
    #[arg(long)]
    offloading: bool,
}

pub(super) fn run(args: &Args) -> Outcome {
    let text = if args.offloading { offloading()? } else { text()? };
    print!("{text}");
    Ok(())
}

fn text() -> Result<String, serde_saphyr::ser::Error> {
    let definitions = [RemoteCluster::crd(), VolumeMove::crd()];
    let texts: Result<Vec<String>, _> = definitions.iter().map(serde_saphyr::to_string).collect();
    Ok(format!("{HEADER}{}", texts?.join("---\n")))
}

fn offloading() -> Result<String, serde_saphyr::ser::Error> {
    let text = serde_saphyr::to_string(&NamespaceOffloading::crd())?;
    Ok(format!("{OFFLOADING_HEADER}{text}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_crds_of_the_chart_equal_the_printed_ones() {
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

    #[test]
    fn no_enum_has_null() {
        for text in [super::text(), super::offloading()] {
            assert!(
                !text.unwrap().lines().any(|line| line.trim() == "- null"),
                "kubectl apply of a List refuses it: #[schemars(with = …)] names the type without Option"
            );
        }
    }

    #[test]
    fn numbers_have_formats_that_kubernetes_knows() {
        for text in [super::text(), super::offloading()] {
            assert!(
                !text.unwrap().contains("format: uint"),
                "the API server warns of it at each installation: #[schemars(with = …)] names a signed type"
            );
        }
    }

    #[test]
    fn the_offloading_crd_of_the_chart_equals_the_printed_one() {
        let path = "deploy/chart/liqo-csi/files/namespaceoffloadings.yaml";
        let kept = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/deploy/chart/liqo-csi/files/namespaceoffloadings.yaml"
        ))
        .unwrap_or_default();
        assert!(
            kept == super::offloading().unwrap(),
            "{path} is not what the program prints; refresh it: cargo run -- crds --offloading > {path}"
        );
        assert!(
            !super::text().unwrap().contains("namespaceoffloadings"),
            "Liqo's definition would be overwritten"
        );
    }
}
