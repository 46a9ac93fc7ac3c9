//! What the two movers of a claim prove themselves with. Both certificates are issued at once by
//! an authority that nobody keeps the key of, and stand in one Secret of this driver's namespace,
//! for movers are made again while their peer goes on. What each mover gets of it is a Secret of
//! its own, which goes with its pod.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::ObjectMeta;
use mover::credentials::{Identity, MoveId, issue};

use super::{GateError, HelperError, MovedVolume, names::Names, shadow::Keeper};
use crate::placement::moving::Side;

/// From then on new ones are issued, for pods that are made anew: before the old ones end.
const RENEWAL: Duration = Duration::from_hours(20);

const AUTHORITY: &str = "authority.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

/// New certificates for both sides of this claim's move.
pub(super) fn issued(moved: &MovedVolume, namespace: &str) -> Result<Secret, GateError> {
    let unusable = |error: mover::error::Error| HelperError::Certificates(error.to_string());
    let id = move_id(moved)?;
    let (source, target) = issue(&id).map_err(unusable)?;
    let mut data = BTreeMap::new();
    for (side, identity) in [(Side::Source, source), (Side::Target, target)] {
        for (file, content) in files(identity) {
            data.insert(format!("{side}-{file}"), ByteString(content.into_bytes()));
        }
    }
    let names = Names::of(moved);
    Ok(Secret {
        metadata: names.metadata(names.certificates(), Some(namespace), Side::Target),
        data: Some(data),
        immutable: Some(true),
        ..Secret::default()
    })
}

/// How the programs know the move.
pub(super) fn move_id(moved: &MovedVolume) -> Result<MoveId, GateError> {
    let epoch = moved.target.id.epoch.to_string().parse().unwrap_or_default();
    let id = MoveId::new(moved.by.as_str(), epoch);
    Ok(id.map_err(|error| HelperError::Certificates(error.to_string()))?)
}

fn files(identity: Identity) -> [(&'static str, String); 3] {
    [
        (AUTHORITY, identity.authority),
        (CERTIFICATE, identity.certificate),
        (KEY, identity.key),
    ]
}

/// Whether new ones are due.
pub(super) fn is_old(issued: &Secret, now: Timestamp) -> bool {
    let since = issued.metadata.creation_timestamp.as_ref();
    let age = since.and_then(|since| Duration::try_from(now.duration_since(since.0)).ok());
    age.is_some_and(|age| age >= RENEWAL)
}

/// What the mover of one side gets.
pub(super) fn of_pod(moved: &MovedVolume, side: Side, issued: &Secret, keeper: &Keeper) -> Secret {
    let prefix = format!("{side}-");
    let data = issued.data.iter().flatten();
    let data = data.filter_map(|(key, content)| {
        let file = key.strip_prefix(&prefix)?;
        Some((file.to_owned(), content.clone()))
    });
    secret_of_pod(moved, side, keeper, data.collect())
}

/// A Secret that goes with a pod, and is never changed.
pub(super) fn secret_of_pod(
    moved: &MovedVolume,
    side: Side,
    keeper: &Keeper,
    data: BTreeMap<String, ByteString>,
) -> Secret {
    let names = Names::of(moved);
    Secret {
        metadata: ObjectMeta {
            owner_references: Some(vec![keeper.owner.clone()]),
            ..names.metadata(keeper.secret.clone(), Some(&keeper.namespace), side)
        },
        data: Some(data),
        immutable: Some(true),
        ..Secret::default()
    }
}
