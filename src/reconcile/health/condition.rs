//! How a volume is, and the words it is told in.

use crate::{
    cluster::{
        ApiError,
        slim::{Phase, Twin},
    },
    reconcile::{
        recovery::Rescue,
        watched::{Claim, VirtualVolume},
    },
    twin::{Site, data_of},
    volume::mark::{self, TWIN_FINALIZER},
};

/// How a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    Healthy,
    /// Handed over, and bound when its pod arrives in its cluster.
    Waiting,
    /// Being deleted, or not in use by a claim: what happens to its twin is meant.
    Ending,
    /// Its cluster cannot be asked.
    Unreachable,
    /// Its twin is being deleted behind our back.
    Terminating,
    /// It has no twin.
    Vanished,
    /// Its twin was made again, and does not have its PV yet.
    Returning,
    /// Its twin has no PV.
    Lost,
}

impl Condition {
    pub(super) const ALL: [Self; 8] = [
        Self::Healthy,
        Self::Waiting,
        Self::Ending,
        Self::Unreachable,
        Self::Terminating,
        Self::Vanished,
        Self::Returning,
        Self::Lost,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Waiting => "twin-waiting",
            Self::Ending => "ending",
            Self::Unreachable => "cluster-unreachable",
            Self::Terminating => "twin-terminating",
            Self::Vanished => "twin-vanished",
            Self::Returning => "twin-returning",
            Self::Lost => "twin-lost",
        }
    }

    /// Reason of the event and of the condition on the claim.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Healthy | Self::Ending => "TwinBound",
            Self::Waiting => "TwinPending",
            Self::Unreachable => "ClusterUnreachable",
            Self::Terminating => "TwinTerminating",
            Self::Vanished => "TwinVanished",
            Self::Returning | Self::Lost => "TwinLost",
        }
    }
}

pub(super) fn diagnose(
    volume: &VirtualVolume,
    claim: Option<&Claim>,
    remote: bool,
    twin: Option<&Twin>,
) -> Condition {
    let ending = !volume.bound || volume.deleting || claim.is_some_and(|claim| claim.deleting);
    match twin {
        _ if ending => Condition::Ending,
        None => Condition::Vanished,
        Some(twin) if twin.deleting => Condition::Terminating,
        Some(twin) if twin.phase == Phase::Lost => Condition::Lost,
        Some(twin) if twin.phase == Phase::Pending && twin.real_volume.is_some() => Condition::Returning,
        Some(twin) if remote && twin.phase == Phase::Pending => Condition::Waiting,
        Some(_) => Condition::Healthy,
    }
}

pub(super) fn note(
    site: &Site,
    volume: &VirtualVolume,
    condition: Condition,
    rescue: Result<&Rescue, &ApiError>,
) -> String {
    let mut twin = format!("the twin {}", site.place());
    if site.remote_cluster().is_some() {
        twin += " in the cluster ";
        twin += &site.cluster_name();
    }
    let what = match condition {
        Condition::Terminating => format!("{twin} of this volume is being deleted, not by this driver"),
        Condition::Lost => format!("the PersistentVolume of {twin} is gone"),
        Condition::Returning => format!("the PersistentVolume of {twin} is gone, or another's"),
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
        Rescue::Unknown(why) => format!("Whether its data is kept cannot be told: {why}"),
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
        Rescue::FalseAlarm => "It is looked at again".into(),
    }
}
