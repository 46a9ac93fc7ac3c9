//! Converts requests and answers about snapshots between gRPC and the domain.

use prost_types::Timestamp;
use tonic::Status;

use super::{parse::required, status::Coded};
use crate::{
    cluster::Cluster,
    fleet::Registry,
    twin::{self, SnapshotFilter, SnapshotRequest, TakenSnapshot},
    volume::{ContentSource, SnapshotId, SnapshotIdError, SnapshotKey, SnapshotParameters, VolumeId},
    wire::csi::{self as wire, volume_content_source::Type as Source},
};

pub(super) fn create_request(request: wire::CreateSnapshotRequest) -> Result<SnapshotRequest, Status> {
    let name = required("name", request.name)?;
    let source = required("source_volume_id", request.source_volume_id)?;
    let source: VolumeId = source.parse().map_err(Coded::status)?;
    Ok(SnapshotRequest {
        key: SnapshotKey::from_request(&name),
        request_name: name,
        source,
        parameters: SnapshotParameters::parse(&request.parameters).map_err(Coded::status)?,
    })
}

/// The source of a volume's data. An id that is not of this driver is not found.
pub(super) fn content_source(
    source: Option<&wire::VolumeContentSource>,
) -> Result<Option<ContentSource>, Status> {
    let Some(source) = source else { return Ok(None) };
    match &source.r#type {
        Some(Source::Snapshot(snapshot)) => {
            let id: SnapshotId = required("snapshot_id", snapshot.snapshot_id.clone())?
                .parse()
                .map_err(Coded::status)?;
            Ok(Some(ContentSource::Snapshot(id.to_string())))
        }
        Some(Source::Volume(volume)) => {
            let id: VolumeId = required("volume_id", volume.volume_id.clone())?
                .parse()
                .map_err(Coded::status)?;
            Ok(Some(ContentSource::Volume(id.to_string())))
        }
        None => Err(Status::invalid_argument(
            "the request has a volume_content_source of a kind that this driver does not know",
        )),
    }
}

/// The snapshot of an id; `None` if the id is not of this driver, so that there is no such snapshot.
pub(super) fn ours(id: &str) -> Result<Option<SnapshotId>, Status> {
    match id.parse() {
        Ok(id) => Ok(Some(id)),
        Err(SnapshotIdError::Foreign(_)) => Ok(None),
        Err(unknown @ SnapshotIdError::UnknownVersion(_)) => Err(unknown.status()),
    }
}

pub(super) async fn get(
    home: &Cluster,
    registry: &Registry,
    id: String,
) -> Result<wire::GetSnapshotResponse, Status> {
    let id = required("snapshot_id", id)?;
    let found = match ours(&id)? {
        Some(id) => twin::find_snapshot(home, registry, &id)
            .await
            .map_err(Coded::status)?,
        None => None,
    };
    let found = found.ok_or(SnapshotIdError::Foreign(id)).map_err(Coded::status)?;
    Ok(wire::GetSnapshotResponse {
        snapshot: Some(answer(found)),
    })
}

/// A page of the list of snapshots.
pub(super) async fn list(
    home: &Cluster,
    registry: &Registry,
    request: wire::ListSnapshotsRequest,
) -> Result<wire::ListSnapshotsResponse, Status> {
    let size = usize::try_from(request.max_entries)
        .map_err(|_| Status::invalid_argument("the request has a negative max_entries"))?;
    let after = &request.starting_token;
    if !after.is_empty() && after.parse::<SnapshotId>().is_err() {
        return Err(Status::aborted(
            "the starting_token was not issued by this driver; begin the list again without it",
        ));
    }
    let mut snapshots = asked_for(home, registry, &request).await?;
    snapshots.retain(|one| after.is_empty() || one.id.to_string() > *after);
    let more = size > 0 && snapshots.len() > size;
    if more {
        snapshots.truncate(size);
    }
    let last = snapshots.last().filter(|_| more);
    Ok(wire::ListSnapshotsResponse {
        next_token: last.map(|last| last.id.to_string()).unwrap_or_default(),
        entries: snapshots
            .into_iter()
            .map(|one| wire::list_snapshots_response::Entry {
                snapshot: Some(answer(one)),
            })
            .collect(),
    })
}

/// The requested snapshots, ordered by their ids. A snapshot that is requested by its id must be in the
/// answer: csi-snapshotter takes an empty answer to mean that it was deleted.
async fn asked_for(
    home: &Cluster,
    registry: &Registry,
    request: &wire::ListSnapshotsRequest,
) -> Result<Vec<TakenSnapshot>, Status> {
    let source = request.source_volume_id.as_str();
    if request.snapshot_id.is_empty() {
        let filter = match source {
            "" => SnapshotFilter::All,
            source => SnapshotFilter::Of(source),
        };
        return twin::list_snapshots(home, registry, filter)
            .await
            .map_err(Coded::status);
    }
    let Some(id) = ours(&request.snapshot_id)? else {
        return Ok(Vec::new());
    };
    let found = twin::find_snapshot(home, registry, &id)
        .await
        .map_err(Coded::status)?;
    let found = found.filter(|one| source.is_empty() || one.source == source);
    Ok(found.into_iter().collect())
}

pub(super) fn answer(snapshot: TakenSnapshot) -> wire::Snapshot {
    let (seconds, nanos) = snapshot.cut_at;
    wire::Snapshot {
        size_bytes: i64::try_from(snapshot.bytes).unwrap_or(i64::MAX),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.source,
        creation_time: Some(Timestamp { seconds, nanos }),
        ready_to_use: snapshot.ready,
        ..Default::default()
    }
}
