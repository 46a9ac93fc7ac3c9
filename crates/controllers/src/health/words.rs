//! How a volume is, and the words in which people are told.

use crate::{
    cluster::{ApiError, slim::Twin},
    placement::{Diagnosis, diagnose},
    recovery::Rescue,
    twin::{Site, data_of, is_seen_of_move},
    volume::{
        mark::{self, TWIN_FINALIZER},
        moving::SourceMark,
    },
    watched::{Claim, VirtualVolume},
};

/// Says how a volume is, by its PV, its claim and its twin.
pub(super) fn diagnosis(volume: &VirtualVolume, claim: Option<&Claim>, twin: Option<&Twin>) -> Diagnosis {
    if volume.gated {
        return Diagnosis::Moving;
    }
    if !volume.bound || volume.deleting || claim.is_some_and(|claim| claim.deleting) {
        return Diagnosis::Ending;
    }
    if twin.is_some_and(|twin| twin.releasing) {
        // The command that releases it does what is to be done.
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

/// What people are told of a volume whose PV is that of before a move.
pub(super) fn superseded(site: &Site, volume: &VirtualVolume) -> String {
    format!(
        "{} of this volume is what a move has left behind: the data is in a later one, and this one is neither used nor repaired. \
         The PersistentVolume {} is that of before the move, as when this cluster was restored from a backup: replace it by \
         one with the handle of now",
        name_of_twin(site),
        volume.name
    )
}

/// The twin, and its cluster if that is another one.
pub(super) fn name_of_twin(site: &Site) -> String {
    let twin = format!("the twin {}", site.place());
    if site.remote_cluster().is_none() {
        return twin;
    }
    format!("{twin} in the cluster {}", site.cluster_name())
}

pub(super) fn note(
    site: &Site,
    volume: &VirtualVolume,
    diagnosis: Diagnosis,
    rescue: Result<&Rescue, &ApiError>,
) -> String {
    let twin = name_of_twin(site);
    let what = match diagnosis {
        Diagnosis::Terminating => format!("{twin} of this volume is being deleted, not by this driver"),
        Diagnosis::Lost => format!("the PersistentVolume of {twin} is gone"),
        Diagnosis::Returning if matches!(rescue, Ok(Rescue::Hopeless)) => {
            format!("the PersistentVolume of {twin} is gone, or another's")
        }
        Diagnosis::Returning => format!("{twin} was made again, and is not bound to its data yet"),
        _ => format!("{twin} of this volume is gone, not by this driver"),
    };
    let then = match rescue {
        Ok(rescue) => prospects(site, volume, rescue),
        Err(error) => format!("This driver tries again to see to its data: {error}"),
    };
    format!("{what}. {then}")
}

/// What becomes of the data of a volume whose twin is in trouble, and what people can do.
pub(super) fn prospects(site: &Site, volume: &VirtualVolume, rescue: &Rescue) -> String {
    match rescue {
        Rescue::Underway => "Its PersistentVolume is retained, and a twin is made onto it again".into(),
        Rescue::Kept { real, why } => format!(
            "Its PersistentVolume {real} is retained, so its data stays whatever becomes of the twin. This driver cannot go \
             on ({why}): give it the rights of {}, or take the finalizer {TWIN_FINALIZER} off the twin once that is being \
             deleted and nothing uses it",
            match site.remote_cluster() {
                Some(_) => "remoteAccess.level namespaced",
                None => "the chart's controller role",
            }
        ),
        Rescue::Held { real, why } => format!(
            "It is held by the finalizer {TWIN_FINALIZER}, because its PersistentVolume {real} cannot be retained ({why}): \
             give this driver that right, or set the reclaim policy of {real} to Retain and then take the finalizer off"
        ),
        Rescue::Unknown(why) => format!("It is not known whether its data is kept: {why}"),
        Rescue::Hopeless => "Its data may be lost; no empty volume takes its place".into(),
        Rescue::Doubtful(found) => format!(
            "Retained for a claim of that name, and perhaps with its data: {}. No twin is made onto another's data: \
             annotate the PersistentVolume that is this volume's with {}={}",
            found.join(", "),
            mark::DATA_OF,
            data_of(site, &volume.volume)
        ),
        Rescue::Occupied(foreign) => format!(
            "Its place is taken by an object that is not its twin ({foreign}) and is left alone; once that is \
             gone, a twin is made onto the data again if that was retained"
        ),
        Rescue::MovedOn(epoch) => format!(
            "It is not made again: a twin of a later epoch, {epoch}, has the data, and the PersistentVolume {} is that of before a move, \
             as when this cluster was restored from a backup: replace it by one with the handle of now",
            volume.name
        ),
        Rescue::FalseAlarm => "It is looked at again".into(),
    }
}
