//! The objects of this home cluster in a remote one, as the objects in both clusters show them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::{
    access::DisconnectBlocker,
    api::namespace_offloading::{NAME, NamespaceOffloading, READY},
    cli::connect::{Home, fabric_namespaces, twins_of},
    cluster::{
        ApiError, Cause, Cluster,
        snapshots::{VolumeSnapshot, VolumeSnapshotContent},
    },
    inspect::{Scope, Snapshots, State, Storage, rows::rows, snapshot_rows},
    volume::{
        ClusterId, mark,
        moving::{SourceMark, TwinMarks},
    },
};

/// No objects, if their kind is not installed.
fn installed<T>(found: Result<Vec<T>, ApiError>) -> Result<Vec<T>, ApiError> {
    match found {
        Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(Vec::new()),
        other => other,
    }
}

fn unknown(what: &str, why: &dyn std::fmt::Display) -> Vec<DisconnectBlocker> {
    let what = format!("{what}: {why}");
    vec![DisconnectBlocker::Unknown { what }]
}

/// The result of reading the objects at home.
pub(super) struct AtHome {
    pub(super) holding: Vec<DisconnectBlocker>,
    /// Volumes in clusters of other names, of which one may be the same API server.
    pub(super) elsewhere: BTreeSet<String>,
}

/// Reads the objects at home. What cannot be read counts as existing.
pub(super) async fn at_home(home: &Home, name: &ClusterId) -> AtHome {
    let (cluster, namespace, id) = (
        &home.cluster,
        home.storage_namespace.as_deref(),
        Some(home.id.clone()),
    );
    let (storage, snapshots) = tokio::join!(
        Storage::read(cluster, &Scope::All, namespace, id.clone()),
        Snapshots::read(cluster, &Scope::All, namespace, id),
    );
    let mut found: Vec<DisconnectBlocker> = Vec::new();
    let mut elsewhere = BTreeSet::new();
    for what in storage.unknown().into_iter().chain(snapshots.unknown()) {
        found.push(DisconnectBlocker::Unknown { what });
    }
    let is_there = |cluster: Option<&str>| cluster == Some(name.as_str());
    for row in rows(&storage, &Scope::All) {
        if !is_there(row.cluster.as_deref()) {
            elsewhere.extend(row.cluster.map(|_| row.volume));
            continue;
        }
        // Without a twin it has no data yet.
        if row.twin.is_none() && row.state == State::Waiting {
            continue;
        }
        found.push(match row.claim {
            Some(claim) if row.state != State::Retained => DisconnectBlocker::Volume {
                claim: format!("{}/{}", claim.namespace, claim.name),
                state: row.state.name().to_owned(),
            },
            _ => DisconnectBlocker::Kept { volume: row.volume },
        });
    }
    for row in snapshot_rows(&snapshots, &Scope::All) {
        if is_there(row.cluster.as_deref()) {
            let name = row.snapshot.map(|it| format!("{}/{}", it.namespace, it.name));
            let name = name.or(row.id).unwrap_or_default();
            found.push(DisconnectBlocker::Snapshot { name });
        }
    }
    let offloaded = cluster.all::<NamespaceOffloading>().select(None, None).await;
    match installed(offloaded) {
        Ok(all) => {
            let ours = all.iter().filter(|one| one.name_any() == NAME);
            let existing = ours.filter(|one| one.condition(name.as_str(), READY).is_some());
            found.extend(
                existing
                    .filter_map(ResourceExt::namespace)
                    .map(|name| DisconnectBlocker::Namespace { name }),
            );
        }
        Err(error) => found.extend(unknown("which namespaces are offloaded", &error)),
    }
    AtHome {
        holding: found,
        elsewhere,
    }
}

/// Reads the objects in the remote cluster, also those without a counterpart at home.
pub(super) async fn in_remote(
    remote: &Cluster,
    home: &ClusterId,
    name: &ClusterId,
    elsewhere: &BTreeSet<String>,
) -> Vec<DisconnectBlocker> {
    let ours = twins_of(home);
    let mut found = Vec::new();
    match remote.all::<PersistentVolumeClaim>().list(Some(&ours)).await {
        Ok(twins) => found.extend(twins.iter().filter_map(|it| twin(it, elsewhere))),
        Err(error) => found.extend(unknown("which claims of this home cluster are there", &error)),
    }
    let kept = format!("{home}/");
    let released = |volume: PersistentVolume| {
        let data_of = volume.annotations().get(mark::DATA_OF)?;
        let phase = volume.status.as_ref().and_then(|it| it.phase.as_deref());
        // A Bound PersistentVolume is listed with its claim.
        (data_of.starts_with(&kept) && phase != Some("Bound")).then(|| DisconnectBlocker::Released {
            volume: volume.name_any(),
            data_of: data_of.clone(),
        })
    };
    match remote.all::<PersistentVolume>().pick(None, None, released).await {
        Ok(volumes) => found.extend(volumes),
        Err(error) => found.extend(unknown("which volumes are there", &error)),
    }
    match installed(remote.all::<VolumeSnapshot>().list(Some(&ours)).await) {
        Ok(snapshots) => found.extend(snapshots.iter().map(|it| DisconnectBlocker::Snapshot {
            name: format!("{}/{} there", it.namespace().unwrap_or_default(), it.name_any()),
        })),
        Err(error) => found.extend(unknown("which snapshots are there", &error)),
    }
    // The id of a snapshot has the name of its cluster, but nothing of the home cluster.
    let retained = |content: VolumeSnapshotContent| {
        let data_of = content.annotations().get(mark::DATA_OF)?;
        let may_be_ours = data_of.split(':').nth(1) == Some(name.as_str());
        may_be_ours.then(|| DisconnectBlocker::Content {
            name: content.name_any(),
            data_of: data_of.clone(),
        })
    };
    match installed(
        remote
            .all::<VolumeSnapshotContent>()
            .pick(None, None, retained)
            .await,
    ) {
        Ok(contents) => found.extend(contents),
        Err(error) => found.extend(unknown("which contents of snapshots are there", &error)),
    }
    match fabric_namespaces(remote, home).await {
        Ok(names) => found.extend(
            names
                .into_iter()
                .map(|name| DisconnectBlocker::RemoteNamespace { name }),
        ),
        Err(error) => found.extend(unknown("which namespaces are there", &error)),
    }
    found
}

/// A twin that the driver created in the remote cluster. It is ignored if its volume is in a
/// cluster of another name, which is the same API server then. The source or target of a move
/// counts although its volume is elsewhere, and so does a claim whose marks cannot be read.
fn twin(twin: &PersistentVolumeClaim, elsewhere: &BTreeSet<String>) -> Option<DisconnectBlocker> {
    let marks = TwinMarks::read(twin.labels(), twin.annotations());
    let is_ordinary = marks.as_ref().is_ok_and(|it| {
        it.target.is_none() && matches!(it.source, None | Some(SourceMark::RolledBack { .. }))
    });
    let volume = twin.labels().get(mark::VOLUME);
    if is_ordinary && volume.is_some_and(|it| elsewhere.contains(it)) {
        return None;
    }
    Some(DisconnectBlocker::Twin {
        claim: format!("{}/{}", twin.namespace().unwrap_or_default(), twin.name_any()),
        superseded: marks.is_ok_and(|it| matches!(it.source, Some(SourceMark::Superseded { .. }))),
    })
}
