//! Whether a cluster may be disconnected: not while it has data of this home cluster, in whatever state.

/// Something that is in the cluster, or that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holding {
    /// A volume of a claim at home.
    Volume { claim: String, state: String },
    /// The data of a volume whose claim at home is deleted, and which its PV at home retains.
    Kept { volume: String },
    /// A claim there that this driver created: bound, or superseded by a move.
    Twin { claim: String, superseded: bool },
    /// A `PersistentVolume` there that holds data of this home cluster and has no claim any more.
    Released { volume: String, data_of: String },
    /// A snapshot, here or there.
    Snapshot { name: String },
    /// The retained data of a snapshot there, by the id of the snapshot.
    Content { name: String, data_of: String },
    /// A namespace that is offloaded there.
    Namespace { name: String },
    /// A namespace there that the fabric of this home cluster created.
    RemoteNamespace { name: String },
    /// What cannot be read, and why.
    Unknown { what: String },
}

/// Why a cluster cannot be disconnected, and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// What it is.
    pub what: String,
    /// What to do about it.
    pub way_out: String,
}

impl Holding {
    fn held(&self, cluster: &str) -> Held {
        let (what, way_out) = match self {
            Self::Volume { claim, state } => (
                format!("the volume of the claim {claim} ({state})"),
                "move it (liqo-csi move volume), or delete the claim".to_owned(),
            ),
            Self::Kept { volume } => (
                format!("data that the PersistentVolume {volume} here retains"),
                format!("set its reclaim policy to Delete to give the data up, or give it to a claim: kubectl describe pv {volume}"),
            ),
            Self::Twin { claim, superseded: true } => (
                format!("the claim {claim} there, superseded by a move, with its data"),
                format!("check the volume where it is now, then in {cluster}: kubectl delete pvc {}", in_namespace(claim)),
            ),
            Self::Twin { claim, superseded: false } => (
                format!("the claim {claim} there, which serves this home cluster"),
                "liqo-csi volumes -A lists the claim here that it serves; the driver deletes one that serves none after a while, \
                 unless it may hold data (liqo-csi doctor)"
                    .to_owned(),
            ),
            Self::Released { volume, data_of } => (
                format!("the PersistentVolume {volume} there, with data of {data_of}"),
                format!("if nobody needs the data, in {cluster}: kubectl delete pv {volume}, and delete it in the real storage"),
            ),
            Self::Snapshot { name } => (
                format!("the snapshot {name}"),
                "delete it, or restore it elsewhere first".to_owned(),
            ),
            Self::Content { name, data_of } => (
                format!("the VolumeSnapshotContent {name} there, with the data of the snapshot {data_of}"),
                format!("if no home cluster needs the data, in {cluster}: kubectl delete volumesnapshotcontent {name}"),
            ),
            Self::Namespace { name } => (
                format!("the namespace {name}, which is offloaded there"),
                format!("liqo-csi unoffload namespace {name}, or take the cluster out of the selector of its NamespaceOffloading"),
            ),
            Self::RemoteNamespace { name } => (
                format!("the namespace {name} there, which the fabric of this home cluster created"),
                "unoffload its namespace here; if there is none, check what is in it and delete it there"
                    .to_owned(),
            ),
            Self::Unknown { what } => (
                format!("it is not known {what}"),
                "fix that and run this again; for a cluster that is gone for good: --local-only".to_owned(),
            ),
        };
        Held { what, way_out }
    }
}

/// `-n namespace name`, as kubectl wants it.
fn in_namespace(name: &str) -> String {
    match name.split_once('/') {
        Some((namespace, name)) => format!("-n {namespace} {name}"),
        None => name.to_owned(),
    }
}

/// Whether both sides may be deleted; if not, why, and the way out of each.
pub fn may_disconnect(cluster: &str, mut found: Vec<Holding>) -> Result<(), Vec<Held>> {
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
    fn nothing_holds_what_is_empty() {
        assert_eq!(may_disconnect("milan", Vec::new()), Ok(()));
    }

    #[test]
    fn whatever_is_there_holds_it_and_has_a_way_out() {
        let all = [
            Holding::Volume {
                claim: "shop/data".into(),
                state: "Bound".into(),
            },
            Holding::Kept {
                volume: "pvc-1".into(),
            },
            Holding::Twin {
                claim: "shop/data".into(),
                superseded: false,
            },
            Holding::Twin {
                claim: "shop/old".into(),
                superseded: true,
            },
            Holding::Released {
                volume: "real-1".into(),
                data_of: "home/pvc-1".into(),
            },
            Holding::Snapshot {
                name: "shop/before".into(),
            },
            Holding::Content {
                name: "content-1".into(),
                data_of: "s1:milan:shop:x".into(),
            },
            Holding::Namespace { name: "shop".into() },
            Holding::RemoteNamespace {
                name: "shop-home".into(),
            },
            Holding::Unknown {
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
    fn commands_are_as_kubectl_wants_them() {
        let old = Holding::Twin {
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
