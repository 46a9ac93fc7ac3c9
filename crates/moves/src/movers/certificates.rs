//! The certificates by which the two movers of a claim authenticate each other. Both are issued together, by
//! an authority whose key is not stored, and kept in one Secret of this driver's namespace, because a mover
//! may be replaced while its peer keeps running. Each mover gets its part in a Secret of its own, which is
//! deleted with its pod.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::ObjectMeta;
use mover::credentials::{Identity, MoveId, issue};

use super::{GateError, HelperError, MovedVolume, names::Names, shadow::SecretOwner};
use crate::placement::moving::Side;

/// After this age new ones are issued, for new pods, before the old ones expire.
const RENEWAL: Duration = Duration::from_hours(20);
/// The same while users cannot use the volume: the last pass or the comparison would start again with new pods.
const RENEWAL_WHILE_GATED: Duration = Duration::from_hours(23);

const AUTHORITY: &str = "authority.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

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

/// The id of the move in the programs.
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

/// The age at which new certificates are issued.
pub(super) fn renewal(is_gated: bool) -> Duration {
    if is_gated { RENEWAL_WHILE_GATED } else { RENEWAL }
}

/// Whether new certificates must be issued.
pub(super) fn is_old(issued: &Secret, renewal: Duration, now: Timestamp) -> bool {
    let since = issued.metadata.creation_timestamp.as_ref();
    let age = since.and_then(|since| Duration::try_from(now.duration_since(since.0)).ok());
    age.is_some_and(|age| age >= renewal)
}

/// The Secret of the mover of one side.
pub(super) fn of_pod(moved: &MovedVolume, side: Side, issued: &Secret, secret_owner: &SecretOwner) -> Secret {
    let prefix = format!("{side}-");
    let data = issued.data.iter().flatten();
    let data = data.filter_map(|(key, content)| {
        let file = key.strip_prefix(&prefix)?;
        Some((file.to_owned(), content.clone()))
    });
    secret_of_pod(moved, side, secret_owner, data.collect())
}

/// An immutable Secret that is owned by a pod.
pub(super) fn secret_of_pod(
    moved: &MovedVolume,
    side: Side,
    secret_owner: &SecretOwner,
    data: BTreeMap<String, ByteString>,
) -> Secret {
    let names = Names::of(moved);
    Secret {
        metadata: ObjectMeta {
            owner_references: Some(vec![secret_owner.owner.clone()]),
            ..names.metadata(secret_owner.secret.clone(), Some(&secret_owner.namespace), side)
        },
        data: Some(data),
        immutable: Some(true),
        ..Secret::default()
    }
}
