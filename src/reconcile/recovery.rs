//! Getting the data of a volume back when its twin was deleted behind our back.
//!
//! A deletion cannot be taken back, but our finalizer keeps the twin until its PV
//! is safe. Each step can be the first one after a crash:
//!
//! ```text
//! twin being deleted ── PV: Retain, and remember what it was before
//!                    ── twin: finalizer off            (rescue)
//! twin gone          ── make the twin again, onto that PV   (restore)
//! twin pending       ── PV: belongs to the new twin, by uid (reunite)
//! twin bound         ── PV: policy as before           (finish)
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
    cluster::ApiError,
    observe::crash::{self, Step},
    twin::{FINALIZER, Holder, Site, end_rescue, holder, is_bound_to, let_go, mark_holder, metadata, retain},
    volume::{Carried, ClaimMark, Foreign, Marks, mark},
};

/// How it stands with the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rescue {
    /// It is safe, and on its way back.
    Underway,
    /// There is nothing to get it back from.
    Hopeless,
    /// There are these PVs, of claims with the name of the twin, but nothing shows
    /// which one is its, if any.
    Doubtful(Vec<String>),
    /// Something that is not its twin is in the twin's place.
    Occupied(Foreign),
    /// Nothing is wrong after all.
    FalseAlarm,
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
        let Some(mark) = &volume.claim else {
            return Ok(None);
        };
        let claims = site.home().within::<PersistentVolumeClaim>(&mark.namespace);
        let (twins, volumes) = (site.twins(), site.home().all::<PersistentVolume>());
        let (claim, twin, outer) = tokio::try_join!(
            claims.get(&mark.name),
            twins.get(site.name()),
            volumes.get(&volume.name),
        )?;
        let wanted = |claim: &PersistentVolumeClaim| {
            claim.uid().as_deref() == Some(&mark.uid) && claim.metadata.deletion_timestamp.is_none()
        };
        let bound = outer.is_some_and(|outer| {
            let phase = outer.status.and_then(|status| status.phase);
            outer.metadata.deletion_timestamp.is_none() && phase.as_deref() == Some("Bound")
        });
        Ok(claim.filter(wanted).filter(|_| bound).map(|claim| Self {
            twin,
            claim,
            mark: mark.clone(),
        }))
    }
}

/// Whether this is the twin of the volume, and somebody deletes it.
fn is_dying(site: &Site, volume: &VirtualVolume, twin: &PersistentVolumeClaim) -> bool {
    let owner = site.owner(&volume.volume);
    twin.metadata.deletion_timestamp.is_some() && owner.recognise(twin.labels(), twin.annotations()).is_ok()
}

/// Makes the data of a twin that is being deleted safe, then lets the twin go.
pub(super) async fn rescue(site: &Site, volume: &VirtualVolume) -> Result<Rescue, ApiError> {
    let Some(scene) = Scene::look(site, volume).await? else {
        return Ok(Rescue::FalseAlarm);
    };
    let Some(twin) = scene.twin.filter(|twin| is_dying(site, volume, twin)) else {
        return Ok(Rescue::FalseAlarm);
    };
    let name = twin.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let volumes = site.volumes();
    let real = match name {
        Some(name) if site.cluster().rights().volume_changes => volumes.get(name).await?,
        _ => None,
    };
    let its_own =
        |real: &PersistentVolume| is_bound_to(real, &twin) || whose(site, volume, real) == Holder::Ours;
    let Some(real) = real.filter(its_own) else {
        let_go(site.cluster(), &twin).await?;
        return Ok(Rescue::Hopeless);
    };
    if !mark_holder(site, &volume.volume, &real).await? {
        // The next round looks at what it has become.
        return Ok(Rescue::FalseAlarm);
    }
    let policy = policy(&real);
    if policy != "Retain" {
        let patch = json!({
            "metadata": {"uid": real.uid(), "annotations": {mark::POLICY_BEFORE: policy}},
            "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        });
        crash::around(Step::Rescue, volumes.merge(&real.name_any(), &patch)).await?;
    }
    let_go(site.cluster(), &twin).await?;
    Ok(Rescue::Underway)
}

/// Makes the twin of a volume again, if the PV of the old one is still there.
pub(super) async fn restore(site: &Site, volume: &VirtualVolume) -> Result<Rescue, ApiError> {
    let Some(scene) = Scene::look(site, volume).await? else {
        return Ok(Rescue::FalseAlarm);
    };
    if let Some(there) = &scene.twin {
        let owner = site.owner(&volume.volume);
        return Ok(match owner.recognise(there.labels(), there.annotations()) {
            Ok(_) => Rescue::FalseAlarm,
            Err(foreign) => Rescue::Occupied(foreign),
        });
    }
    let real = match retained(site, volume).await? {
        Ok(real) => real,
        Err(otherwise) => return Ok(otherwise),
    };
    let again = twin_again(site, volume, scene, &real);
    let made = crash::around(Step::TwinAgain, site.twins().create(&again)).await;
    match made? {
        Some(twin) => pass_on(site, &real, &twin).await,
        // Somebody was faster: the next round looks at what is there now.
        None => Ok(Rescue::FalseAlarm),
    }
}

/// Gives a twin that was made again its PV, if that did not happen at once.
pub(super) async fn reunite(site: &Site, volume: &VirtualVolume) -> Result<Rescue, ApiError> {
    let Some(scene) = Scene::look(site, volume).await? else {
        return Ok(Rescue::FalseAlarm);
    };
    let owner = site.owner(&volume.volume);
    let waits = |twin: &PersistentVolumeClaim| {
        let phase = twin.status.as_ref().and_then(|status| status.phase.as_deref());
        twin.metadata.deletion_timestamp.is_none()
            && phase.unwrap_or("Pending") == "Pending"
            && owner.recognise(twin.labels(), twin.annotations()).is_ok()
    };
    let twin = scene.twin.filter(waits);
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
        pass_on(site, &real, twin).await
    } else {
        Ok(Rescue::Hopeless)
    }
}

/// Has a PV belong to the twin that was made again. It never belongs to nobody:
/// whoever has a claim of that name could have it then.
async fn pass_on(
    site: &Site,
    real: &PersistentVolume,
    twin: &PersistentVolumeClaim,
) -> Result<Rescue, ApiError> {
    let patch = json!({
        "metadata": {"uid": real.uid(), "resourceVersion": real.resource_version()},
        "spec": {"claimRef": {"uid": twin.uid(), "resourceVersion": null}},
    });
    let passed = crash::around(Step::PassOn, site.volumes().merge(&real.name_any(), &patch)).await;
    match passed {
        // The next round looks at what it has become.
        Err(error) if error.is_conflict() => {}
        other => {
            other?;
        }
    }
    Ok(Rescue::Underway)
}

/// One that is not retained is being deleted: whoever binds it binds nothing.
fn is_kept(real: &PersistentVolume) -> bool {
    policy(real) == "Retain" && real.metadata.deletion_timestamp.is_none()
}

/// The one PV that holds the data of a volume whose twin is gone, or how it stands
/// without it.
async fn retained(site: &Site, volume: &VirtualVolume) -> Result<Result<PersistentVolume, Rescue>, ApiError> {
    let (mut ours, mut unknown) = (Vec::new(), Vec::new());
    for real in candidates(site).await?.into_iter().filter(is_kept) {
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
async fn candidates(site: &Site) -> Result<Vec<PersistentVolume>, ApiError> {
    let volumes = site.volumes();
    if site.remote_cluster().is_some() {
        return if site.cluster().rights().volume_changes {
            volumes.list(None).await
        } else {
            Ok(Vec::new())
        };
    }
    let mut found = Vec::new();
    for seen in site.cluster().views().volumes.of_topic(site.name()) {
        found.extend(volumes.get(&seen.name).await?);
    }
    Ok(found)
}

/// Lets a twin go that somebody deletes and nobody uses any more: its claim is gone,
/// but its data is to stay, so `DeleteVolume` is never called for it.
pub(super) async fn release(site: &Site, volume: &VirtualVolume) -> Result<(), ApiError> {
    let (twins, outers) = (site.twins(), site.home().all::<PersistentVolume>());
    let (twin, outer) = tokio::try_join!(twins.get(site.name()), outers.get(&volume.name))?;
    let twin = twin.filter(|twin| is_dying(site, volume, twin));
    let left = |outer: &PersistentVolume| {
        let phase = outer.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Released") && is_kept(outer)
    };
    let (Some(twin), true) = (twin, outer.as_ref().is_some_and(left)) else {
        return Ok(());
    };
    let name = twin.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    if let (Some(name), true) = (name, site.cluster().rights().volume_changes)
        && let Some(real) = site.volumes().get(name).await?
        && is_bound_to(&real, &twin)
    {
        if !mark_holder(site, &volume.volume, &real).await? {
            // The next round looks at what it has become.
            return Ok(());
        }
        if policy(&real) != "Retain" {
            retain(site.cluster(), &real).await?;
        }
    }
    if twin.finalizers().iter().any(|one| one == FINALIZER) {
        let_go(site.cluster(), &twin).await?;
        tracing::info!(volume = %volume.volume, twin = site.place(), "let the twin of a released volume go; its data is retained");
    }
    Ok(())
}

/// Gives the PV of a twin that was made again the reclaim policy it had; false if
/// somebody else was writing on it, and it has to be looked at again.
pub(super) async fn finish(site: &Site, volume: &VirtualVolume, real: &str) -> Result<bool, ApiError> {
    let (volumes, twins) = (site.volumes(), site.twins());
    let (Some(real), Some(twin)) = tokio::try_join!(volumes.get(real), twins.get(site.name()))? else {
        return Ok(true);
    };
    let Some(before) = real.annotations().get(mark::POLICY_BEFORE) else {
        return Ok(true);
    };
    if !is_bound_to(&real, &twin) || twin.metadata.deletion_timestamp.is_some() {
        return Ok(true);
    }
    let policy = if volume.retain { "Retain" } else { before };
    let ended = end_rescue(
        site.cluster(),
        &real,
        json!({"persistentVolumeReclaimPolicy": policy}),
    )
    .await?;
    if ended {
        tracing::info!(volume = %volume.volume, "the twin was made again onto its data");
    }
    Ok(ended)
}

fn policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy.unwrap_or("Delete")
}

/// The twin as it was, as far as claim and PV tell.
fn twin_again(
    site: &Site,
    volume: &VirtualVolume,
    scene: Scene,
    real: &PersistentVolume,
) -> PersistentVolumeClaim {
    let marks = Marks {
        home: site.home().id().clone(),
        volume: volume.volume.clone(),
        claim: Some(scene.mark),
        request_name: volume.name.clone(),
        // What was asked for is forgotten; nobody asks again for a volume that has its PV.
        fingerprint: None,
        handed_over: true,
    };
    let carried = Carried::of(scene.claim.labels(), scene.claim.annotations());
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
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
