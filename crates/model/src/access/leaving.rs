//! Whether a cluster may be disconnected: not while it has data of this home cluster, in any state.

/// An object that blocks the disconnect, or one that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DisconnectBlocker {
    /// The volume of a claim at home.
    Volume { claim: String, state: String },
    /// Data whose claim at home is deleted, and whose PV at home is retained.
    Kept { volume: String },
    /// A claim in the remote cluster that this driver created: bound, or superseded by a move.
    Twin { claim: String, superseded: bool },
    /// A `PersistentVolume` in the remote cluster that holds data of this home cluster and has no claim any
    /// more.
    Released { volume: String, data_of: String },
    /// A snapshot, at home or in the remote cluster.
    Snapshot { name: String },
    /// The retained data of a snapshot in the remote cluster, by the id of the snapshot.
    Content { name: String, data_of: String },
    /// A namespace that is offloaded to the cluster.
    Namespace { name: String },
    /// A remote namespace that the fabric of this home cluster created.
    RemoteNamespace { name: String },
    /// What cannot be read, and why.
    Unknown { what: String },
}

/// Why a cluster cannot be disconnected, and what the user can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockerText {
    pub what: String,
    pub way_out: String,
}

impl DisconnectBlocker {
    fn held(&self, cluster: &str) -> BlockerText {
        let (what, way_out) = match self {
            Self::Volume { claim, state } => (
                format!("the volume of the claim {claim} ({state})"),
                "move it (liqo-csi move volume), or delete the claim".to_owned(),
            ),
            Self::Kept { volume } => (
                format!("data that the PersistentVolume {volume} at home retains"),
                format!("set its reclaim policy to Delete to delete the data, or bind it to a claim: kubectl describe pv {volume}"),
            ),
            Self::Twin { claim, superseded: true } => (
                format!("the claim {claim} in {cluster}, superseded by a move, with its data"),
                format!("check the volume where it is now, then in {cluster}: kubectl delete pvc {}", in_namespace(claim)),
            ),
            Self::Twin { claim, superseded: false } => (
                format!("the claim {claim} in {cluster}, which serves this home cluster"),
                "liqo-csi volumes -A shows the claim at home that it serves; after some time the driver deletes one that serves none, \
                 unless it may hold data (liqo-csi doctor)"
                    .to_owned(),
            ),
            Self::Released { volume, data_of } => (
                format!("the PersistentVolume {volume} in {cluster}, with data of {data_of}"),
                format!("if the data is no longer needed, in {cluster}: kubectl delete pv {volume}, and delete it in the real storage"),
            ),
            Self::Snapshot { name } => (
                format!("the snapshot {name}"),
                "delete it, or restore it elsewhere first".to_owned(),
            ),
            Self::Content { name, data_of } => (
                format!("the VolumeSnapshotContent {name} in {cluster}, with the data of the snapshot {data_of}"),
                format!("if no home cluster needs the data, in {cluster}: kubectl delete volumesnapshotcontent {name}"),
            ),
            Self::Namespace { name } => (
                format!("the namespace {name}, which is offloaded to {cluster}"),
                format!("liqo-csi unoffload namespace {name}, or exclude the cluster by the selector of its NamespaceOffloading"),
            ),
            Self::RemoteNamespace { name } => (
                format!("the namespace {name} in {cluster}, which the fabric of this home cluster created"),
                format!("unoffload its namespace at home; if there is none, check its contents and delete it in {cluster}"),
            ),
            Self::Unknown { what } => (
                format!("cannot determine {what}"),
                "fix that and run this again; for a cluster that no longer exists: --local-only --the-cluster-is-gone".to_owned(),
            ),
        };
        BlockerText { what, way_out }
    }
}

/// `-n namespace name`, the arguments of kubectl.
fn in_namespace(name: &str) -> String {
    match name.split_once('/') {
        Some((namespace, name)) => format!("-n {namespace} {name}"),
        None => name.to_owned(),
    }
}

/// Whether the driver's objects in both clusters may be deleted; if not, what blocks it.
pub fn may_disconnect(cluster: &str, mut found: Vec<DisconnectBlocker>) -> Result<(), Vec<BlockerText>> {
    found.sort();
    found.dedup();
    if found.is_empty() {
        return Ok(());
    }
    Err(found.iter().map(|one| one.held(cluster)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_without_objects_can_be_disconnected() {
        assert_eq!(may_disconnect("milan", Vec::new()), Ok(()));
    }

    #[test]
    fn each_remaining_object_blocks_disconnecting_and_has_a_way_out() {
        let all = [
            DisconnectBlocker::Volume {
                claim: "shop/data".into(),
                state: "Bound".into(),
            },
            DisconnectBlocker::Kept {
                volume: "pvc-1".into(),
            },
            DisconnectBlocker::Twin {
                claim: "shop/data".into(),
                superseded: false,
            },
            DisconnectBlocker::Twin {
                claim: "shop/old".into(),
                superseded: true,
            },
            DisconnectBlocker::Released {
                volume: "real-1".into(),
                data_of: "home/pvc-1".into(),
            },
            DisconnectBlocker::Snapshot {
                name: "shop/before".into(),
            },
            DisconnectBlocker::Content {
                name: "content-1".into(),
                data_of: "s1:milan:shop:x".into(),
            },
            DisconnectBlocker::Namespace { name: "shop".into() },
            DisconnectBlocker::RemoteNamespace {
                name: "shop-home".into(),
            },
            DisconnectBlocker::Unknown {
                what: "which volumes there are".into(),
            },
        ];
        for one in all {
            let held = may_disconnect("milan", vec![one.clone(), one.clone()]).unwrap_err();
            assert_eq!(held.len(), 1, "{one:?} is named once");
            assert!(!held[0].what.is_empty() && !held[0].way_out.is_empty(), "{one:?}");
        }
    }

    #[test]
    fn the_way_out_is_a_kubectl_command_with_namespace_and_name() {
        let old = DisconnectBlocker::Twin {
            claim: "shop/old".into(),
            superseded: true,
        };
        let held = may_disconnect("milan", vec![old]).unwrap_err();
        assert!(
            held[0]
                .way_out
                .ends_with("in milan: kubectl delete pvc -n shop old"),
            "{held:?}"
        );
    }
}
