//! The diagnosis of a volume, and the texts of its events and condition.

use crate::{
    cluster::{ApiError, slim::Twin},
    placement::{Diagnosis, NodeRule, diagnose},
    recovery::Rescue,
    twin::{Site, data_of, is_seen_of_move},
    volume::{
        VolumeName,
        mark::{self, TWIN_FINALIZER},
        moving::SourceMark,
    },
    watched::{Claim, VirtualVolume},
};

/// The diagnosis of a volume, from its PV, its claim and its twin.
pub(super) fn diagnosis(volume: &VirtualVolume, claim: Option<&Claim>, twin: Option<&Twin>) -> Diagnosis {
    if volume.gated {
        return Diagnosis::Moving;
    }
    // A PV that is deleted before its claim stays as long as the claim, which is in use until then.
    let ends = claim.map_or(volume.deleting, |claim| claim.deleting);
    if !volume.bound || ends {
        return Diagnosis::Ending;
    }
    if twin.is_some_and(|twin| twin.releasing) {
        // The command that releases it handles the twin.
        return Diagnosis::Ending;
    }
    if let Some(twin) = twin.filter(|twin| is_seen_of_move(twin)) {
        return if is_superseded(twin) {
            Diagnosis::Superseded
        } else {
            Diagnosis::Moving
        };
    }
    diagnose(twin.map(Twin::health))
}

fn is_superseded(twin: &Twin) -> bool {
    let source = twin.moves.as_ref().ok().and_then(|marks| marks.source.as_ref());
    matches!(source, Some(SourceMark::Superseded { .. }))
}

/// The text for a volume whose PV is from before a move.
pub(super) fn superseded(site: &Site, volume: &VirtualVolume) -> String {
    format!(
        "{} of this volume is the source of a completed move: the data is in a later epoch, and this twin is neither used nor \
         repaired. The PersistentVolume {} is from before the move, for example because this cluster was restored from a backup: \
         replace it with one that has the current volume handle",
        describe_twin(site),
        volume.name
    )
}

/// The twin, and its cluster if that is remote.
pub(super) fn describe_twin(site: &Site) -> String {
    let twin = format!("the twin {}", site.place());
    if site.remote_cluster().is_none() {
        return twin;
    }
    format!("{twin} in the cluster {}", site.cluster_name())
}

/// Why pods with its claim do not find the twin of a healthy volume, if so. A twin stays where it was created when its volume
/// is bound to another claim.
pub(super) fn misplaced(site: &Site, volume: &VirtualVolume) -> Option<String> {
    let (remote, claim) = (site.remote_cluster()?, volume.claim.as_ref()?);
    let (there, own) = (site.namespace(), &claim.namespace);
    // The fabric of this driver finds a twin by its volume.
    let finds_by_name = !matches!(remote.nodes, NodeRule::Named { .. });
    let is_rebound = volume.name != VolumeName::requested_for(&claim.uid);
    let is_elsewhere = match remote.namespaces.remote(own, &remote.id) {
        Ok(mapped) => mapped != there,
        Err(unmapped) => is_rebound && unmapped.why.is_none(),
    };
    let way_out = if is_elsewhere {
        format!(
            "pods of the namespace {own} do not run in the twin's namespace: offload {own} there as {there}"
        )
    } else if finds_by_name && site.name() != claim.name {
        let name = site.name();
        format!(
            "pods there find a twin by the name of the claim: bind the volume to a claim of the name {name}"
        )
    } else {
        return None;
    };
    let twin = describe_twin(site);
    Some(format!(
        "{twin} is not found by pods with this claim: {way_out}, or move the volume with liqo-csi move volume {own}/{} --target-cluster ID",
        claim.name
    ))
}

pub(super) fn event_text(
    site: &Site,
    volume: &VirtualVolume,
    diagnosis: Diagnosis,
    rescue: Result<&Rescue, &ApiError>,
) -> String {
    let twin = describe_twin(site);
    let what = match diagnosis {
        Diagnosis::Terminating => format!("{twin} of this volume is being deleted by another client"),
        Diagnosis::Lost => format!("the PersistentVolume of {twin} does not exist"),
        Diagnosis::Returning if matches!(rescue, Ok(Rescue::Hopeless)) => {
            format!("the PersistentVolume of {twin} does not exist, or belongs to another claim")
        }
        Diagnosis::Returning => format!("{twin} was created again, and is not bound to its data yet"),
        _ => format!("{twin} of this volume was deleted by another client"),
    };
    let then = match rescue {
        Ok(rescue) => data_state(site, volume, rescue),
        Err(error) => format!("Retaining its data failed and is retried: {error}"),
    };
    format!("{what}. {then}")
}

/// What happens to the data of a volume whose twin is unhealthy, and what users can do.
pub(super) fn data_state(site: &Site, volume: &VirtualVolume, rescue: &Rescue) -> String {
    match rescue {
        Rescue::Underway => "Its PersistentVolume is retained, and the twin is created again for it".into(),
        Rescue::Kept { real, why } => format!(
            "Its PersistentVolume {real} is retained, so its data is kept whatever happens to the twin. This driver cannot \
             continue ({why}): grant it the rights of {}, or remove the finalizer {TWIN_FINALIZER} from the twin once that is \
             being deleted and nothing uses it",
            match site.remote_cluster() {
                Some(_) => "remoteAccess.level namespaced",
                None => "the chart's controller role",
            }
        ),
        Rescue::Held { real, why } => format!(
            "The finalizer {TWIN_FINALIZER} blocks its deletion, because its PersistentVolume {real} cannot be retained ({why}): \
             grant this driver that right, or set the reclaim policy of {real} to Retain and then remove the finalizer"
        ),
        Rescue::Unknown(why) => format!("It is not known whether its data is kept: {why}"),
        Rescue::Hopeless => "Its data may be lost; no empty volume replaces it".into(),
        Rescue::Doubtful(found) => format!(
            "Retained for a claim of that name, and perhaps with its data: {}. No twin is created for the data of another volume: \
             annotate the PersistentVolume that belongs to this volume with {}={}",
            found.join(", "),
            mark::DATA_OF,
            data_of(site, &volume.volume)
        ),
        Rescue::Occupied(foreign) => format!(
            "Its name is taken by an object that is not its twin ({foreign}); once that is deleted, the twin is \
             created again if its data was retained"
        ),
        Rescue::MovedOn(epoch) => format!(
            "It is not created again: a twin of a later epoch, {epoch}, has the data, and the PersistentVolume {} is from before the move, \
             for example because this cluster was restored from a backup: replace it with one that has the current volume handle",
            volume.name
        ),
        Rescue::FalseAlarm => "It is checked again".into(),
    }
}
