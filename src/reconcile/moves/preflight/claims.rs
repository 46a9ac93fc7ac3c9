//! The claims of a move, and where their volumes are: as claim and PV say it.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::target::{Asked, Whereto};
use crate::{
    api::volume_move::{Loss, MoveRequest, PlannedClaim, PlannedTwin},
    cluster::{Cause, Cluster, facts, snapshots::VolumeSnapshotContent},
    reconcile::moves::Context,
    twin::{TWIN_CLASS, is_bound_to, twin_in},
    volume::{ClaimName, DRIVER_NAME, VolumeId, moving::MovedClaim, parse_quantity},
};

/// A claim that has a volume of ours.
pub(super) struct Source {
    claim: MovedClaim,
    id: VolumeId,
    volume: PersistentVolume,
}

/// Looks at a claim; or says what speaks against moving it.
pub(super) async fn look_at(home: &Cluster, name: &ClaimName) -> Asked<Result<Source, Vec<String>>> {
    let refused = |why: &str| Ok(Err(vec![format!("the claim {name}: {why}")]));
    let Some(claim) = home
        .within::<PersistentVolumeClaim>(&name.namespace)
        .get(&name.name)
        .await?
    else {
        return refused("there is none");
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return refused("it is being deleted");
    }
    if claim.owner_references().iter().any(|owner| owner.kind == "Pod") {
        return refused("it is made for one pod (an ephemeral volume), and goes with it");
    }
    let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let Some(bound) = bound.filter(|name| !name.is_empty()) else {
        return refused("it has no volume yet: where it is to be, its first pod says");
    };
    let Some(volume) = home.all::<PersistentVolume>().get(bound).await? else {
        return refused("its PersistentVolume is gone");
    };
    if !is_bound_to(&volume, &claim) {
        return refused("its PersistentVolume names another claim");
    }
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let Some(csi) = csi.filter(|csi| csi.driver == DRIVER_NAME) else {
        return refused("its volume is not of this driver: `liqo-csi import` makes it one");
    };
    let id: VolumeId = match csi.volume_handle.parse() {
        Ok(id) => id,
        Err(error) => return refused(&format!("{error}")),
    };
    if id.name.as_str() != volume.name_any() {
        return refused(&format!(
            "its PersistentVolume {} is not the one that is named after its volume ({})",
            volume.name_any(),
            id.name
        ));
    }
    Ok(Ok(Source {
        claim: MovedClaim {
            name: name.clone(),
            uid: claim.uid().unwrap_or_default(),
        },
        id,
        volume,
    }))
}

impl Source {
    pub(super) fn claim(&self) -> &ClaimName {
        &self.claim.name
    }

    /// The size of its PV, in bytes.
    pub(super) fn size(&self) -> Option<i64> {
        let capacity = self.volume.spec.as_ref()?.capacity.as_ref()?;
        let bytes = parse_quantity(&capacity.get("storage")?.0)?;
        i64::try_from(bytes).ok()
    }

    /// Its place in the plan; or why it is not really moved.
    pub(super) fn planned<H>(
        self,
        context: &Context<'_, H>,
        request: &MoveRequest,
        whereto: &Whereto,
    ) -> Result<PlannedClaim, String> {
        let home = context.home;
        let name = self.claim.name.clone();
        let refused = |why: &str| Err(format!("the claim {name}: {why}"));
        let is_home = self.id.cluster == *home.id();
        let attributes = self.attributes();
        let source_at = if is_home {
            Some(home_twin(home, &self.id))
        } else {
            attributes.and_then(twin_in)
        };
        let Some(source_at) = source_at else {
            return refused("its PersistentVolume does not say where its twin is");
        };
        let Some(epoch) = self.id.epoch.next() else {
            return refused("it has moved as often as can be counted");
        };
        let target = VolumeId {
            cluster: whereto.cluster(home).clone(),
            name: self.id.name.clone(),
            epoch,
        };
        let target_at = match whereto {
            Whereto::Remote(remote, _) if remote.id == self.id.cluster => {
                return refused(&format!(
                    "its volume is in the cluster {} already, and within a remote cluster none is moved yet",
                    remote.id
                ));
            }
            Whereto::Remote(_, namespace) => ClaimName {
                namespace: namespace.clone(),
                name: self.claim.name.name.clone(),
            },
            Whereto::Home(node) => {
                let class = attributes.and_then(|attributes| attributes.get(TWIN_CLASS));
                let same_class = request.storage_class.is_none() || request.storage_class.as_ref() == class;
                let affinity = facts::affinity(&self.volume);
                let reaches = node
                    .as_ref()
                    .is_none_or(|node| affinity.as_ref().is_none_or(|affinity| affinity.admits(node)));
                if is_home && same_class && reaches {
                    let there = node.as_ref().map_or("this cluster".to_owned(), |node| {
                        format!("the node {}", node.name)
                    });
                    return refused(&format!(
                        "its volume can be used from {there} already: name another node, or a class"
                    ));
                }
                home_twin(home, &target)
            }
        };
        Ok(PlannedClaim {
            claim: self.claim,
            source: PlannedTwin {
                id: self.id,
                place: source_at,
            },
            target: PlannedTwin {
                id: target,
                place: target_at,
            },
        })
    }

    fn attributes(&self) -> Option<&std::collections::BTreeMap<String, String>> {
        self.volume
            .spec
            .as_ref()?
            .csi
            .as_ref()?
            .volume_attributes
            .as_ref()
    }
}

fn home_twin(home: &Cluster, id: &VolumeId) -> ClaimName {
    ClaimName {
        namespace: home.storage_namespace().to_owned(),
        name: id.name.home_twin(id.epoch),
    }
}

/// Snapshots stay where their volume was: whoever needs them has to know.
pub(super) async fn snapshots_left_behind(
    home: &Cluster,
    request: &MoveRequest,
    plan: &[PlannedClaim],
) -> Asked<Vec<String>> {
    if request.accept_loss.contains(&Loss::Snapshots) {
        return Ok(Vec::new());
    }
    let contents = home.all::<VolumeSnapshotContent>();
    let of_ours = |content: VolumeSnapshotContent| {
        let of = content
            .spec
            .source
            .volume_handle
            .filter(|_| content.spec.driver == DRIVER_NAME)?;
        Some((of, content.spec.volume_snapshot_ref))
    };
    let found = match contents.pick(None, None, of_ours).await {
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => return Ok(Vec::new()),
        other => other?,
    };
    let left = plan.iter().filter_map(|planned| {
        let handle = planned.source.id.to_string();
        let of = found.iter().filter(|(of, _)| *of == handle);
        let names: Vec<String> = of.map(|(_, snapshot)| facts::claim_name(snapshot).to_string()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "the claim {}: its snapshots stay where its volume was, and can be restored there only: {}. Say \
                 acceptLoss: [Snapshots] if that may be",
                planned.claim.name,
                names.join(", ")
            )
        })
    });
    Ok(left.collect())
}
