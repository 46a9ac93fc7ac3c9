//! gRPC types generated from `proto/`: CSI and the kubelet's plugin registration. Used only by `src/csi`,
//! which serves them, and by the node plugin's client of real drivers.

use std::fmt;

/// CSI 1.13, package `csi.v1`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]
pub mod csi {
    tonic::include_proto!("csi.v1");
    include!(concat!(env!("OUT_DIR"), "/redacted.rs"));
}

/// The kubelet's `pluginregistration`, served on sockets in `plugins_registry`.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Debug output of a map of secrets: their number, never their values.
struct Redacted(usize);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} redacted]", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::csi::NodeStageVolumeRequest;

    #[test]
    fn debug_output_names_secrets_but_never_shows_them() {
        let request = NodeStageVolumeRequest {
            volume_id: "vol".into(),
            secrets: [("password".to_owned(), "hunter2".to_owned())].into(),
            ..Default::default()
        };
        let shown = format!("{request:?}");
        assert!(shown.contains("volume_id: \"vol\""), "{shown}");
        assert!(shown.contains("secrets: [1 redacted]"), "{shown}");
        assert!(
            !shown.contains("hunter2") && !shown.contains("password"),
            "{shown}"
        );
    }
}
