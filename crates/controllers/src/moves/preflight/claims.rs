//! The claims of a move and the sites of their volumes, from claim and PV.

use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::target::{ApiResult, TargetSite, nodes};
use crate::{
    api::volume_move::{Loss, MoveRequest, PlannedClaim, PlannedTwin},
    cluster::{
        Cause, Cluster, facts,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    fleet::{NodeKind, Remote},
    gate::{MovedVolume, Place},
    moves::Context,
    topology::Node,
    twin::{Site, TWIN_CLASS, consumers::ephemeral_of, is_bound_to, reclaim_policy, second_pvs, twin_in},
    volume::{
        ClaimName, ClusterId, DRIVER_NAME, SnapshotId, SnapshotKey, SnapshotMarks, SnapshotPlace, VolumeId,
        mark, moving::MovedClaim, parse_quantity,
    },
};

/// The most nodes of a source that the status records.
const NODES_NOTED: usize = 16;

/// A claim that is bound to a volume of this driver.
pub(super) struct Source {
    claim: MovedClaim,
    id: VolumeId,
    volume: PersistentVolume,
}

/// Reads a claim; or returns what blocks its move.
pub(super) async fn read_claim(home: &Cluster, name: &ClaimName) -> ApiResult<Result<Source, Vec<String>>> {
    let refused = |why: &str| Ok(Err(vec![format!("the claim {name}: {why}")]));
    let Some(claim) = home
        .within::<PersistentVolumeClaim>(&name.namespace)
        .get(&name.name)
        .await?
    else {
        return refused("it does not exist");
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return refused("it is being deleted");
    }
    if let Some(pod) = ephemeral_of(home, &claim).await? {
        return refused(&format!(
            "it is the generic ephemeral volume of the pod {pod}, and is deleted with it: the next pod gets a new volume where it \
             is scheduled. Data that shall move needs a claim that you create yourself"
        ));
    }
    if let Some(pod) = claim.owner_references().iter().find(|owner| owner.kind == "Pod") {
        let pod = &pod.name;
        return refused(&format!(
            "it is deleted with the pod {pod}, which owns it: remove that pod from its ownerReferences first"
        ));
    }
    let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let Some(bound) = bound.filter(|name| !name.is_empty()) else {
        return refused("it is not bound yet: its first pod decides where its volume will be");
    };
    let Some(volume) = home.all::<PersistentVolume>().get(bound).await? else {
        return refused("its PersistentVolume does not exist");
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
            "its PersistentVolume {} does not have the name of its volume ({})",
            volume.name_any(),
            id.name
        ));
    }
    let others = second_pvs(home, &id, id.name.as_str()).await?;
    if !others.is_empty() {
        return refused(&format!(
            "the PersistentVolume {} has the same volume, and would not lead to its data after the move: set it to Retain and delete it first",
            others.join(", ")
        ));
    }
    if id.cluster == *home.id() && is_being_imported(home, &id).await? {
        return refused(
            "its import is not complete: wait until `liqo-csi doctor` does not report it any more",
        );
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

/// Whether the PV of its twin still has the record of an import, which the move would leave there.
async fn is_being_imported(home: &Cluster, id: &VolumeId) -> ApiResult<bool> {
    let place = home_twin(home, id);
    let twins = home.within::<PersistentVolumeClaim>(&place.namespace);
    let twin = twins.get(&place.name).await?;
    let Some(real) = twin.and_then(|twin| twin.spec?.volume_name) else {
        return Ok(false);
    };
    let real = home.all::<PersistentVolume>().get(&real).await?;
    Ok(real.is_some_and(|real| real.annotations().contains_key(mark::IMPORT)))
}

impl Source {
    pub(super) fn size(&self) -> Option<i64> {
        let capacity = self.volume.spec.as_ref()?.capacity.as_ref()?;
        let bytes = parse_quantity(&capacity.get("storage")?.0)?;
        i64::try_from(bytes).ok()
    }

    /// The real class of its volume, if its PV records it.
    pub(super) fn class(&self) -> Option<String> {
        let class = self.attributes()?.get(TWIN_CLASS)?;
        Some(class.clone()).filter(|class| !class.is_empty())
    }

    /// What users have to know of its reclaim policy.
    pub(super) fn policy_note(&self, target: &TargetSite) -> Option<String> {
        let TargetSite::Remote(remote, _) = target else {
            return None;
        };
        let may_retain = remote
            .reach()
            .is_ok_and(|cluster| cluster.rights().volume_changes);
        (!may_retain && reclaim_policy(&self.volume) == "Retain").then(|| {
            format!(
                "; the policy Retain of the volume of the claim {} is not set in the cluster {}, because this driver may not change \
                 PersistentVolumes there: the policy of its class applies",
                self.claim.name, remote.id
            )
        })
    }

    /// The nodes of the home cluster from which the volume is accessible; empty if all are. The status
    /// records them for the undo, for which the name of the cluster alone would not be enough.
    pub(super) async fn nodes<H>(&self, context: &Context<'_, H>) -> Vec<String> {
        let home = context.home;
        let affinity = facts::affinity(&self.volume).filter(|_| self.id.cluster == *home.id());
        let Some(affinity) = affinity else {
            return Vec::new();
        };
        home.views().nodes.complete().await;
        let is_real = |node: &Node| matches!(context.registry.behind(node), NodeKind::Real);
        let all = nodes(home, &TargetSite::Home(None)).into_iter().filter(is_real);
        let (able, unable): (Vec<Node>, Vec<Node>) = all.partition(|node| affinity.admits(node));
        if unable.is_empty() {
            return Vec::new();
        }
        let mut names: Vec<String> = able.into_iter().map(|node| node.name).collect();
        names.sort();
        names
    }

    /// The plan for this claim; or why there is nothing to move.
    pub(super) fn planned<H>(
        self,
        context: &Context<'_, H>,
        request: &MoveRequest,
        target: &TargetSite,
    ) -> Result<PlannedClaim, String> {
        let home = context.home;
        let name = self.claim.name.clone();
        let refused = |why: &str| Err(format!("the claim {name}: {why}"));
        let is_home = self.id.cluster == *home.id();
        let source_at = if is_home {
            Some(home_twin(home, &self.id))
        } else {
            self.attributes().and_then(twin_in)
        };
        let Some(source_at) = source_at else {
            return refused("its PersistentVolume does not record where its twin is");
        };
        let Some(epoch) = self.id.epoch.next() else {
            return refused("it has the highest possible epoch");
        };
        let target_id = VolumeId {
            cluster: target.cluster(home).clone(),
            name: self.id.name.clone(),
            epoch,
        };
        let target_at = match target {
            TargetSite::Remote(remote, namespace) => {
                let there = ClaimName {
                    namespace: namespace.clone(),
                    name: self.claim.name.name.clone(),
                };
                if remote.id == self.id.cluster && there == source_at {
                    // The twin gets the name of the claim when the source has released it.
                    self.may_move_within(remote, request)
                        .map_err(|why| format!("the claim {name}: {why}"))?;
                    ClaimName {
                        name: target_id.name.home_twin(target_id.epoch),
                        ..there
                    }
                } else {
                    there
                }
            }
            TargetSite::Home(node) => {
                let same_class = request.storage_class.is_none() || request.storage_class == self.class();
                let affinity = facts::affinity(&self.volume);
                let reaches = node
                    .as_ref()
                    .is_none_or(|node| affinity.as_ref().is_none_or(|affinity| affinity.admits(node)));
                if is_home && same_class && reaches {
                    let there = node.as_ref().map_or("this cluster".to_owned(), |node| {
                        format!("the node {}", node.name)
                    });
                    return refused(&format!(
                        "its volume is accessible from {there} already: name another node, or a class"
                    ));
                }
                home_twin(home, &target_id)
            }
        };
        Ok(PlannedClaim {
            claim: self.claim,
            source: PlannedTwin {
                id: self.id,
                place: source_at,
            },
            target: PlannedTwin {
                id: target_id,
                place: target_at,
            },
        })
    }

    /// Whether it may move within a remote cluster: for a time, only the PV of the source has the data.
    fn may_move_within(&self, remote: &Remote, request: &MoveRequest) -> Result<(), String> {
        let id = &remote.id;
        if request.storage_class.is_none() || request.storage_class == self.class() {
            return Err(format!(
                "its volume is in the cluster {id} already: name another cluster, or another class of that one"
            ));
        }
        let may = remote
            .reach()
            .is_ok_and(|cluster| cluster.rights().volumes && cluster.rights().volume_changes);
        if may {
            return Ok(());
        }
        Err(format!(
            "within the cluster {id} a volume is moved only where this driver may get, list and patch PersistentVolumes"
        ))
    }

    fn attributes(&self) -> Option<&BTreeMap<String, String>> {
        self.volume
            .spec
            .as_ref()?
            .csi
            .as_ref()?
            .volume_attributes
            .as_ref()
    }
}

/// Limits the nodes of each source to those that the status records. The undo needs a node from which all
/// sources are accessible, so the common ones come first.
pub(super) fn choose_nodes(sources: &mut [&mut Vec<String>]) {
    let mut bound = sources.iter().filter(|nodes| !nodes.is_empty());
    let mut common: BTreeSet<String> = bound
        .next()
        .into_iter()
        .flat_map(|nodes| nodes.iter().cloned())
        .collect();
    for nodes in bound {
        common.retain(|node| nodes.contains(node));
    }
    for nodes in sources {
        nodes.sort_by_key(|node| !common.contains(node));
        nodes.truncate(NODES_NOTED);
    }
}

fn home_twin(home: &Cluster, id: &VolumeId) -> ClaimName {
    ClaimName {
        namespace: home.storage_namespace().to_owned(),
        name: id.name.home_twin(id.epoch),
    }
}

/// Snapshots that would stay at the source, which a user who needs them has to know. With `taken`,
/// only those whose data may have been created since the user was asked.
///
/// All contents are listed live, because no view shows how recent it is: a snapshot that a user
/// takes just before the gate must not be left behind unnoticed. That is one list for the gate and,
/// during the downtime, one for the commit.
pub(in crate::moves) async fn snapshots_left_behind(
    home: &Cluster,
    request: &MoveRequest,
    sources: &[MovedVolume],
    taken: bool,
) -> ApiResult<Vec<String>> {
    if request.accept_loss.contains(&Loss::Snapshots) {
        return Ok(Vec::new());
    }
    let of_ours = |content: VolumeSnapshotContent| {
        let is_taken = content
            .status
            .as_ref()
            .is_some_and(|status| status.snapshot_handle.is_some());
        let is_ours = content.spec.driver == DRIVER_NAME && (is_taken || !taken);
        let of = Some(content.spec.source).filter(|_| is_ours)?;
        Some((of, content.spec.volume_snapshot_ref))
    };
    let contents = home.all::<VolumeSnapshotContent>();
    let found = match contents.pick(None, None, of_ours).await {
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => return Ok(Vec::new()),
        other => other?,
    };
    let mut left = Vec::new();
    let mut twins = SnapshotTwins::new(home, sources);
    for source in sources {
        let (handle, mut names) = (source.source.id.to_string(), Vec::new());
        for (of, snapshot) in &found {
            let is_its = match (&of.volume_handle, &of.snapshot_handle) {
                (Some(volume), _) => *volume == handle,
                (None, Some(existing)) if !taken => twins.is_of(source, &handle, existing).await?,
                (None, _) => false,
            };
            if is_its {
                names.push(facts::claim_name(snapshot).to_string());
            }
        }
        if !names.is_empty() {
            left.push(format!(
                "the claim {}: its snapshots stay at the source, and can be restored only there: {}. Set acceptLoss: [Snapshots] \
                 if that is acceptable",
                source.claim.name,
                names.join(", ")
            ));
        }
    }
    Ok(left)
}

/// Which snapshots were taken of the sources of a move, according to their twins. Each place is listed once, and only if
/// a content was created by hand for a snapshot there: backup tools create thousands of them.
struct SnapshotTwins<'a> {
    home: &'a Cluster,
    /// The handles of the sources.
    sources: BTreeSet<String>,
    /// The source of each snapshot, by cluster and namespace; `None` where the driver may not list the twins.
    places: HashMap<(ClusterId, String), Option<HashMap<SnapshotKey, String>>>,
}

impl<'a> SnapshotTwins<'a> {
    fn new(home: &'a Cluster, sources: &[MovedVolume]) -> Self {
        let handles = sources.iter().map(|source| source.source.id.to_string());
        Self {
            home,
            sources: handles.collect(),
            places: HashMap::new(),
        }
    }

    /// Whether the snapshot with this id was taken of this source. If the driver may not list the twins, it counts as
    /// taken of it. The twin of an imported snapshot does not name a volume.
    async fn is_of(&mut self, moved: &MovedVolume, handle: &str, snapshot: &str) -> ApiResult<bool> {
        let (Ok(id), Place::Site(site)) = (snapshot.parse::<SnapshotId>(), &moved.source.place) else {
            return Ok(false);
        };
        let is_there = match site.remote_cluster() {
            Some(_) => id.place.is(site.namespace()),
            None => id.place == SnapshotPlace::Home,
        };
        if id.cluster != moved.source.id.cluster || !is_there {
            return Ok(false);
        }
        let place = (id.cluster, site.namespace().to_owned());
        let twins = match self.places.entry(place) {
            Entry::Occupied(listed) => listed.into_mut(),
            Entry::Vacant(place) => place.insert(list(self.home, site, &self.sources).await?),
        };
        Ok(twins
            .as_ref()
            .is_none_or(|twins| twins.get(&id.key).is_some_and(|source| source == handle)))
    }
}

/// The snapshots of these volumes at a site; `None` if the driver may not list them.
async fn list(
    home: &Cluster,
    site: &Site,
    volumes: &BTreeSet<String>,
) -> ApiResult<Option<HashMap<SnapshotKey, String>>> {
    let of_volumes = |twin: VolumeSnapshot| {
        let marks = SnapshotMarks::read(twin.labels(), twin.annotations()).ok()?;
        let is_twin = twin.name_any() == marks.key.twin() && volumes.contains(&marks.source);
        is_twin.then_some((marks.key, marks.source))
    };
    let twins = site.cluster().within::<VolumeSnapshot>(site.namespace());
    let ours = mark::snapshot_selector(home.id());
    match twins.pick(Some(&ours), None, of_volumes).await {
        Err(error) if error.is_forbidden() => Ok(None),
        // The kinds of snapshots are not installed there.
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(Some(HashMap::new())),
        twins => Ok(Some(twins?.into_iter().collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_nodes_are_those_shared_by_all_volumes() {
        let named = |numbers: std::ops::Range<usize>| -> Vec<String> {
            numbers.map(|number| format!("n{number:02}")).collect()
        };
        let (mut first, mut second, mut everywhere) = (named(0..40), named(30..70), Vec::new());
        choose_nodes(&mut [&mut first, &mut second, &mut everywhere]);
        assert_eq!(first[..10], named(30..40));
        assert_eq!(second[..10], named(30..40));
        assert_eq!((first.len(), second.len(), everywhere.len()), (16, 16, 0));
        let mut alone = named(0..40);
        choose_nodes(&mut [&mut alone]);
        assert_eq!(alone, named(0..16));
        let (mut here, mut there) = (named(0..2), named(2..4));
        choose_nodes(&mut [&mut here, &mut there]);
        assert_eq!((here, there), (named(0..2), named(2..4)));
    }
}
