//! Getting the data of a volume back when its twin was deleted behind our back.
//!
//! A deletion cannot be taken back, but our finalizer keeps the twin until its PV
//! is safe; where the rights for that are missing it keeps the twin until they are
//! given (back). Each step can be the first one after a crash:
//!
//! ```text
//! twin being deleted ── PV: Retain, and remember what it was before
//!                    ── twin: finalizer off            (rescue)
//! twin gone          ── make the twin again, onto that PV   (restore)
//! twin pending       ── PV: belongs to the new twin, by uid (reunite)
//! twin bound         ── PV: policy as before           (retention)
//! ```
//!
//! The PV names a uid all the time, so nobody else can be bound to it. A claim that
//! asks for a PV which names another uid waits; it is lost only if it was bound before.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use kube::ResourceExt;
use serde_json::json;

use super::watched::VirtualVolume;
use crate::{
    cluster::{ApiError, slim, unless_conflict},
    fleet::Registry,
    observe::crash::{self, Step},
    twin::{
        Holder, Site, has_finalizer, highest, holder, holder_uid, is_bound, is_bound_to, is_copy, is_of_move,
        is_releasing, mark_holder, metadata, reclaim_policy, remove_copy, remove_finalizer, retain,
    },
    volume::{ClaimMark, Epoch, Foreign, Marks, VolumeId, VolumeName, mark, moving::is_gated},
};

const NO_RIGHT: &str = "this driver may not get, list and patch PersistentVolumes there";

/// How often at once something is looked at and written, when somebody else writes on it in between.
const TRIES: usize = 3;

/// How it stands with the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rescue {
    /// It is safe, and on its way back.
    Underway,
    /// It is safe on this PV, but the twin cannot be read or let go, for this reason.
    Kept { real: String, why: String },
    /// This PV cannot be retained, for this reason, so our finalizer holds the twin.
    Held { real: String, why: String },
    /// It is not known, for this reason, whether there is anything to get it back from.
    Unknown(String),
    /// There is nothing to get it back from.
    Hopeless,
    /// There are these PVs, of claims with the name of the twin, but nothing shows
    /// which one is its, if any.
    Doubtful(Vec<String>),
    /// Something that is not its twin is in the twin's place.
    Occupied(Foreign),
    /// A twin of this later epoch has the data.
    MovedOn(Epoch),
    /// Nothing is wrong after all.
    FalseAlarm,
}

/// The PV of a twin that is being deleted.
pub(super) enum Real {
    /// It is there and marked as the volume's.
    Found(Box<PersistentVolume>),
    /// There is none: the twin never had one, or it is gone or another's.
    None,
    /// It may not be read or changed.
    OutOfReach { real: String, why: String },
    /// Somebody else was writing on it, and it has to be looked at again.
    Changed,
}

/// Everything about a volume whose twin is in trouble, read live.
struct Scene {
    twin: Option<PersistentVolumeClaim>,
    claim: PersistentVolumeClaim,
    mark: ClaimMark,
}

impl Scene {
    /// The scene, if the volume is still somebody's.
    async fn look(site: &Site, volume: &VirtualVolume) -> Result<Option<Self>, ApiError> {
        let Some((claim, mark)) = user(site, volume).await? else {
            return Ok(None);
        };
        let twin = site.twins().get(site.name()).await?;
        Ok(Some(Self { twin, claim, mark }))
    }
}

/// The claim of a volume that is in use.
async fn user(
    site: &Site,
    volume: &VirtualVolume,
) -> Result<Option<(PersistentVolumeClaim, ClaimMark)>, ApiError> {
    let Some(mark) = &volume.claim else {
        return Ok(None);
    };
    let claims = site.home().within::<PersistentVolumeClaim>(&mark.namespace);
    let volumes = site.home().all::<PersistentVolume>();
    let (claim, outer) = tokio::try_join!(claims.get(&mark.name), volumes.get(&volume.name))?;
    let wanted = |claim: &PersistentVolumeClaim| {
        claim.uid().as_deref() == Some(&mark.uid) && claim.metadata.deletion_timestamp.is_none()
    };
    let bound = outer.is_some_and(|outer| {
        outer.metadata.deletion_timestamp.is_none() && is_bound(&outer) && is_still(&outer, volume)
    });
    let claim = claim.filter(wanted).filter(|_| bound);
    Ok(claim.map(|claim| (claim, mark.clone())))
}

/// Whether a virtual PV leads to where it led when it was seen, and no move keeps its users away.
fn is_still(outer: &PersistentVolume, volume: &VirtualVolume) -> bool {
    let csi = outer.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let id: Option<VolumeId> = csi.and_then(|csi| csi.volume_handle.parse().ok());
    id.is_some_and(|id| id == volume.id()) && !is_gated(outer.annotations())
}

/// The twin of the volume, if somebody deletes it. One that is released or moved is deleted on
/// purpose, and its data is seen to.
async fn dying(
    site: &Site,
    volume: &VirtualVolume,
    twin: Option<PersistentVolumeClaim>,
) -> Option<PersistentVolumeClaim> {
    let is_its = |twin: &PersistentVolumeClaim| {
        twin.metadata.deletion_timestamp.is_some()
            && !is_releasing(twin)
            && site.is_twin(&volume.volume, twin)
    };
    let twin = twin.filter(is_its)?;
    (!is_of_move(site.home(), &twin).await).then_some(twin)
}

/// Finds the PV of a twin that is being deleted. `is_its` recognises one that no longer
/// names the twin's uid.
pub(super) async fn real(
    site: &Site,
    volume: &VolumeName,
    twin: &PersistentVolumeClaim,
    is_its: impl Fn(&PersistentVolume) -> bool,
) -> Result<Real, ApiError> {
    let name = twin.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Ok(Real::None);
    };
    let out_of_reach = |why: String| Real::OutOfReach {
        real: name.to_owned(),
        why,
    };
    if !site.cluster().rights().volume_changes {
        return Ok(out_of_reach(NO_RIGHT.to_owned()));
    }
    let found = match site.volumes().get(name).await {
        Err(error) if error.is_forbidden() => return Ok(out_of_reach(error.to_string())),
        other => other?,
    };
    let Some(real) = found.filter(|real| is_bound_to(real, twin) || is_its(real)) else {
        return Ok(Real::None);
    };
    match mark_holder(site, volume, real).await {
        Ok(Some(real)) => Ok(Real::Found(Box::new(real))),
        Ok(None) => Ok(Real::Changed),
        Err(error) if error.is_forbidden() => Ok(out_of_reach(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Makes the data of a twin that is being deleted safe, then lets the twin go. What is
/// not safe is not let go. `seen` is the twin as it was seen last.
pub(super) async fn rescue(
    site: &Site,
    volume: &VirtualVolume,
    seen: Option<&slim::Twin>,
) -> Result<Rescue, ApiError> {
    for _ in 0..TRIES {
        if let Some(rescue) = Box::pin(try_rescue(site, volume, seen)).await? {
            return Ok(rescue);
        }
    }
    // The next round looks at what it has become.
    Ok(Rescue::FalseAlarm)
}

/// `None` if somebody else was writing on the PV, and it has to be looked at again.
async fn try_rescue(
    site: &Site,
    volume: &VirtualVolume,
    seen: Option<&slim::Twin>,
) -> Result<Option<Rescue>, ApiError> {
    let scene = match Scene::look(site, volume).await {
        // In a namespace that is being deleted, our rights may be gone before the twin.
        Err(error) if error.is_forbidden() => {
            return keep_unread(site, volume, seen, &error).await.map(Some);
        }
        other => other?,
    };
    let twin = scene.and_then(|scene| scene.twin);
    let twin = dying(site, volume, twin).await;
    let Some(twin) = twin else {
        return Ok(Some(Rescue::FalseAlarm));
    };
    let its_own = |real: &PersistentVolume| whose(site, volume, real) == Holder::Ours;
    let real = match real(site, &volume.volume, &twin, its_own).await? {
        Real::Found(real) => real,
        Real::OutOfReach { real, why } if has_finalizer(&twin) => {
            return Ok(Some(Rescue::Held { real, why }));
        }
        Real::None | Real::OutOfReach { .. } => {
            remove_finalizer(site.cluster(), &twin).await?;
            return Ok(Some(Rescue::Hopeless));
        }
        Real::Changed => return Ok(None),
    };
    match retain(site, &volume.volume, &real, Step::Rescue).await {
        Err(error) if error.is_forbidden() && has_finalizer(&twin) => {
            return Ok(Some(Rescue::Held {
                real: real.name_any(),
                why: error.to_string(),
            }));
        }
        Err(error) => return Err(error),
        Ok(false) => return Ok(None),
        Ok(true) => {}
    }
    let let_go = match remove_finalizer(site.cluster(), &twin).await {
        Err(error) if error.is_forbidden() => Rescue::Kept {
            real: real.name_any(),
            why: error.to_string(),
        },
        other => other.map(|_| Rescue::Underway)?,
    };
    Ok(Some(let_go))
}

/// Keeps the data of a twin that may not be read (any more), whatever becomes of the
/// twin: its PV is found by the name that is remembered, or by its mark. A twin that
/// turns out to be well gets the policy of its PV back.
pub(super) async fn keep_unread(
    site: &Site,
    volume: &VirtualVolume,
    seen: Option<&slim::Twin>,
    why: &ApiError,
) -> Result<Rescue, ApiError> {
    if !site.cluster().rights().volume_changes {
        return Ok(Rescue::Unknown(NO_RIGHT.to_owned()));
    }
    for _ in 0..TRIES {
        if let Some(rescue) = Box::pin(try_keep_unread(site, volume, seen, why)).await? {
            return Ok(rescue);
        }
    }
    // The next round looks at what it has become.
    Ok(Rescue::FalseAlarm)
}

/// `None` if somebody else was writing on the PV, and it has to be looked at again.
async fn try_keep_unread(
    site: &Site,
    volume: &VirtualVolume,
    seen: Option<&slim::Twin>,
    why: &ApiError,
) -> Result<Option<Rescue>, ApiError> {
    if user(site, volume).await?.is_none() {
        return Ok(Some(Rescue::FalseAlarm));
    }
    let is_its = |real: &PersistentVolume| {
        let uid = holder_uid(real);
        real.metadata.deletion_timestamp.is_none()
            && (seen.is_some_and(|twin| uid == Some(twin.uid.as_str()))
                || whose(site, volume, real) == Holder::Ours)
    };
    let seen_name = seen.and_then(|twin| twin.real_volume.as_deref());
    let remembered = seen_name.or(volume.real.as_deref());
    let found = match remembered.filter(|name| !name.is_empty()) {
        Some(name) => site.volumes().get(name).await?.filter(is_its),
        None => candidates(site, is_its).await?.into_iter().find(is_its),
    };
    let Some(real) = found else {
        return Ok(Some(Rescue::Unknown(format!(
            "{why}; no PersistentVolume is known to be its"
        ))));
    };
    if let Some(real) = mark_holder(site, &volume.volume, real).await?
        && retain(site, &volume.volume, &real, Step::Rescue).await?
    {
        return Ok(Some(Rescue::Kept {
            real: real.name_any(),
            why: why.to_string(),
        }));
    }
    Ok(None)
}

/// Makes the twin of a volume again, if the PV of the old one is still there.
pub(super) async fn restore(
    site: &Site,
    registry: &Registry,
    volume: &VirtualVolume,
) -> Result<Rescue, ApiError> {
    let Some(mut scene) = Scene::look(site, volume).await? else {
        return Ok(Rescue::FalseAlarm);
    };
    if let Some(there) = &scene.twin
        && there.metadata.deletion_timestamp.is_none()
        && is_copy(site, &scene.claim, there).await?
    {
        remove_copy(site, there).await?;
        scene.twin = site.twins().get(site.name()).await?;
    }
    if let Some(there) = &scene.twin {
        let owner = site.owner(&volume.volume);
        return Ok(match owner.recognise(there.labels(), there.annotations()) {
            Ok(_) => Rescue::FalseAlarm,
            Err(foreign) => Rescue::Occupied(foreign),
        });
    }
    let highest = highest(site.home(), registry, &volume.id(), Some(&scene.mark)).await;
    if highest > volume.epoch {
        return Ok(Rescue::MovedOn(highest));
    }
    if let Some(why) = not_offloaded(site, &scene.mark) {
        return Ok(Rescue::Unknown(why));
    }
    let real = match retained(site, volume).await? {
        Ok(real) => real,
        Err(otherwise) => return Ok(otherwise),
    };
    let again = twin_again(site, volume, scene, &real);
    let made = crash::around(Step::TwinAgain, site.twins().create(&again)).await;
    match made? {
        Some(twin) => pass_on(site, volume, real, &twin).await,
        // Somebody was faster: the next round looks at what is there now.
        None => Ok(Rescue::FalseAlarm),
    }
}

/// Why a twin is not made again in its namespace in another cluster: what is there under that name
/// may be somebody else's once the namespace is not offloaded there any more.
fn not_offloaded(site: &Site, claim: &ClaimMark) -> Option<String> {
    let remote = site.remote_cluster()?;
    let now = remote.namespaces.remote(&claim.namespace, &remote.id);
    (now.ok() != Some(site.namespace())).then(|| {
        format!(
            "its namespace {} is not offloaded to the cluster {} as {} any more; offload it under that name again",
            claim.namespace,
            remote.id,
            site.namespace()
        )
    })
}

/// Gives a twin that was made again its PV, if that did not happen at once.
pub(super) async fn reunite(site: &Site, volume: &VirtualVolume) -> Result<Rescue, ApiError> {
    let Some(scene) = Scene::look(site, volume).await? else {
        return Ok(Rescue::FalseAlarm);
    };
    let waits = |twin: &PersistentVolumeClaim| {
        let phase = twin.status.as_ref().and_then(|status| status.phase.as_deref());
        twin.metadata.deletion_timestamp.is_none()
            && phase.unwrap_or("Pending") == "Pending"
            && site.is_twin(&volume.volume, twin)
    };
    let twin = scene.twin.filter(waits);
    if let Some(twin) = &twin
        && is_of_move(site.home(), twin).await
    {
        return Ok(Rescue::FalseAlarm);
    }
    let name = twin
        .as_ref()
        .and_then(|twin| twin.spec.as_ref()?.volume_name.as_deref());
    let (Some(twin), Some(name), true) = (&twin, name, site.cluster().rights().volume_changes) else {
        return Ok(Rescue::FalseAlarm);
    };
    let Some(real) = site.volumes().get(name).await? else {
        return Ok(Rescue::Hopeless);
    };
    if is_bound_to(&real, twin) {
        // Kubernetes does the rest.
        return Ok(Rescue::FalseAlarm);
    }
    if whose(site, volume, &real) == Holder::Ours && is_kept(&real) {
        pass_on(site, volume, real, twin).await
    } else {
        Ok(Rescue::Hopeless)
    }
}

/// Has a PV belong to the twin that was made again. It never belongs to nobody:
/// whoever has a claim of that name could have it then.
async fn pass_on(
    site: &Site,
    volume: &VirtualVolume,
    mut real: PersistentVolume,
    twin: &PersistentVolumeClaim,
) -> Result<Rescue, ApiError> {
    for _ in 0..TRIES {
        let patch = json!({
            "metadata": {"uid": real.uid(), "resourceVersion": real.resource_version()},
            "spec": {"claimRef": {"uid": twin.uid(), "resourceVersion": null}},
        });
        let passed = crash::around(Step::PassOn, site.volumes().merge(&real.name_any(), &patch)).await;
        if unless_conflict(passed)?.is_some() {
            break;
        }
        match site.volumes().get(&real.name_any()).await? {
            Some(again) if whose(site, volume, &again) == Holder::Ours && is_kept(&again) => real = again,
            // The next round looks at what it has become.
            _ => break,
        }
    }
    Ok(Rescue::Underway)
}

/// One that is not retained is being deleted: whoever binds it binds nothing. One that is being
/// released is to have no twin any more.
fn is_kept(real: &PersistentVolume) -> bool {
    let released = real.annotations().contains_key(mark::RELEASE);
    reclaim_policy(real) == "Retain" && real.metadata.deletion_timestamp.is_none() && !released
}

/// The one PV that holds the data of a volume whose twin is gone, or how it stands
/// without it.
async fn retained(site: &Site, volume: &VirtualVolume) -> Result<Result<PersistentVolume, Rescue>, ApiError> {
    if !site.cluster().rights().volume_changes {
        return Ok(Err(Rescue::Unknown(NO_RIGHT.to_owned())));
    }
    let (mut ours, mut unknown) = (Vec::new(), Vec::new());
    let maybe_ours = |real: &PersistentVolume| whose(site, volume, real) != Holder::Other;
    for real in candidates(site, maybe_ours).await?.into_iter().filter(is_kept) {
        match whose(site, volume, &real) {
            Holder::Ours => ours.push(real),
            Holder::Unknown => unknown.push(real.name_any()),
            Holder::Other => {}
        }
    }
    Ok(match (ours.pop(), ours.is_empty()) {
        (Some(real), true) => Ok(real),
        (Some(real), false) => {
            let names = ours.iter().chain([&real]).map(ResourceExt::name_any);
            Err(Rescue::Doubtful(names.collect()))
        }
        (None, _) if unknown.is_empty() => Err(Rescue::Hopeless),
        (None, _) => Err(Rescue::Doubtful(unknown)),
    })
}

fn whose(site: &Site, volume: &VirtualVolume, real: &PersistentVolume) -> Holder {
    holder(site, &volume.volume, volume.real.as_deref(), real)
}

/// The PVs that may be that of the twin. Those of remote clusters are not watched.
async fn candidates(
    site: &Site,
    wanted: impl Fn(&PersistentVolume) -> bool,
) -> Result<Vec<PersistentVolume>, ApiError> {
    let volumes = site.volumes();
    if site.remote_cluster().is_some() {
        return volumes.find(wanted).await;
    }
    let mut found = Vec::new();
    for seen in site.cluster().views().volumes.of_twin(site.name()) {
        found.extend(volumes.get(&seen.name).await?);
    }
    Ok(found)
}

/// Lets a twin go that somebody deletes and nobody uses any more: its claim is gone,
/// but its data is to stay, so `DeleteVolume` is never called for it.
pub(super) async fn release(site: &Site, volume: &VirtualVolume) -> Result<(), ApiError> {
    for _ in 0..TRIES {
        if Box::pin(try_release(site, volume)).await? {
            break;
        }
    }
    Ok(())
}

/// False if somebody else was writing on the PV, and it has to be looked at again.
async fn try_release(site: &Site, volume: &VirtualVolume) -> Result<bool, ApiError> {
    let (twins, outers) = (site.twins(), site.home().all::<PersistentVolume>());
    let (twin, outer) = tokio::try_join!(twins.get(site.name()), outers.get(&volume.name))?;
    let twin = dying(site, volume, twin).await;
    let left = |outer: &PersistentVolume| !is_bound(outer) && is_kept(outer) && is_still(outer, volume);
    let (Some(twin), true) = (twin, outer.as_ref().is_some_and(left)) else {
        return Ok(true);
    };
    match real(site, &volume.volume, &twin, |_| false).await? {
        Real::Found(real) => {
            if !retain(site, &volume.volume, &real, Step::Retain).await? {
                return Ok(false);
            }
        }
        Real::None => {}
        Real::OutOfReach { real, why } => {
            tracing::warn!(
                volume = %volume.volume, twin = site.place(), real, why,
                "the twin of a released volume is being deleted and held: its data is to stay, and its PersistentVolume cannot be retained"
            );
            return Ok(true);
        }
        Real::Changed => return Ok(false),
    }
    if has_finalizer(&twin) {
        remove_finalizer(site.cluster(), &twin).await?;
        tracing::info!(volume = %volume.volume, twin = site.place(), "let the twin of a released volume go; its data is retained");
    }
    Ok(true)
}

/// The twin as it was, as far as claim and PV tell.
fn twin_again(
    site: &Site,
    volume: &VirtualVolume,
    scene: Scene,
    real: &PersistentVolume,
) -> PersistentVolumeClaim {
    // A PV that was bound to another claim meanwhile is still the volume that it was: a
    // twin is known by the uid of the claim that its volume was made for.
    let made_for = volume.volume.claim_uid().map(str::to_owned);
    let claim = ClaimMark {
        uid: made_for.unwrap_or_else(|| scene.mark.uid.clone()),
        ..scene.mark
    };
    let marks = Marks {
        home: site.home().id().clone(),
        volume: volume.volume.clone(),
        claim: Some(claim),
        request_name: volume.name.clone(),
        // What was asked for is forgotten; nobody asks again for a volume that has its PV.
        fingerprint: None,
        handed_over: true,
        epoch: site.epoch(),
    };
    let rules = site.home().carried_annotations();
    let carried = rules.carried(scene.claim.labels(), scene.claim.annotations());
    let (labels, annotations) = carried.with(&marks);
    let (was, asked) = (
        real.spec.clone().unwrap_or_default(),
        scene.claim.spec.unwrap_or_default(),
    );
    PersistentVolumeClaim {
        metadata: metadata(site, labels, annotations),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: asked.access_modes,
            volume_mode: was.volume_mode,
            // An empty name means "no class", none at all would mean the default one.
            storage_class_name: Some(was.storage_class_name.unwrap_or_default()),
            resources: Some(VolumeResourceRequirements {
                requests: was.capacity,
                limits: None,
            }),
            volume_name: real.metadata.name.clone(),
            // A claim is bound only to a PV of the same attributes.
            volume_attributes_class_name: was.volume_attributes_class_name,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
