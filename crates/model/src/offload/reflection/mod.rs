//! Copies in remote namespaces: `ConfigMap`s, Secrets and Services, and `EndpointSlice`s where pods reach
//! each other. Decides what a copy looks like and the next step for it; `object` reads objects, `slices`
//! selects the endpoints of each cluster. Nothing is fetched or written here.

mod caveats;
mod object;
mod slices;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

pub use self::{
    caveats::caveats,
    object::{NotCopied, Wanted, found, patch, wanted, why_not_copied},
    slices::{SERVICE_NAME, SLICE_MANAGER, SLICES_OF_FABRIC, Slice, slices_of},
};
use crate::volume::digest;

/// Annotation of a copy: the uid of the object at home.
pub const HOME_OBJECT_UID: &str = "fabric.storage.liqo.io/home-object-uid";
/// Annotation of a copy: the keys of the labels and annotations that were copied. Others that are added there
/// are not touched.
pub const COPIED_KEYS: &str = "fabric.storage.liqo.io/copied-keys";
/// Annotation or label of an object that is not copied. Liqo's.
pub const SKIP: &str = "liqo.io/skip-reflection";

/// Kubernetes creates a `ConfigMap` of this name in every namespace: the root certificates of the API server
/// of its own cluster.
const ROOT_CERTIFICATES: &str = "kube-root-ca.crt";
/// Digits of the hash in the name of its copy.
const DIGITS: usize = 10;

/// The kinds that are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    ConfigMap,
    Secret,
    Service,
    EndpointSlice,
}

impl Kind {
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Secret | Self::Service => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
        }
    }
}

/// The labels and annotations of the copies that were created for one home cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The id of the home cluster.
    pub home: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

impl Marks {
    /// Whether an object with this metadata is a copy for this home cluster.
    #[must_use]
    pub fn are_on(&self, labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> bool {
        let has = |all: &BTreeMap<String, String>, marks: &BTreeMap<String, String>| {
            marks.iter().all(|(key, value)| all.get(key) == Some(value))
        };
        has(labels, &self.labels) && has(annotations, &self.annotations)
    }
}

/// Fingerprint of the copied content of an object. The content cannot be restored from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    metadata: String,
    /// Everything else.
    content: String,
    /// What the API server never changes: the type of a Secret, whether a Service is headless, the address
    /// family.
    fixed: String,
}

impl Fingerprint {
    /// Its size in bytes.
    #[must_use]
    pub fn text(&self) -> usize {
        self.metadata.len() + self.content.len() + self.fixed.len()
    }
}

/// An object at home that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    pub copy: String,
    /// The content that the copy should have.
    pub fingerprint: Fingerprint,
    /// The selector of its pods, if it is a Service with a selector.
    pub selector: BTreeMap<String, String>,
    /// Some of the namespaces of Services that its data name, if it is a `ConfigMap` or Secret: they are compared and
    /// never written anywhere, because a Secret may hold them.
    pub namespaces: BTreeSet<String>,
    /// Some of the namespaces that short names such as `db.data` may mean, if it is a `ConfigMap`. Those of a Secret are
    /// not kept: they would be read from the API server, which logs requests.
    pub short_names: BTreeSet<String>,
    /// Some of the addresses in its data, which are only compared.
    pub addresses: BTreeSet<IpAddr>,
}

/// The metadata of an object in the remote namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyMetadata {
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
    /// Whether it is a copy for this home cluster.
    pub ours: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// The content of a copy at a `resourceVersion`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub version: String,
    pub fingerprint: Fingerprint,
}

/// What the metadata alone shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Nothing to do.
    Settled,
    /// The copy is missing.
    Missing,
    /// The object must be read to decide.
    Unclear,
}

/// Compares the original with the metadata and the known content of its copy.
#[must_use]
pub fn compare(
    wanted: Option<&Fingerprint>,
    seen: Option<&CopyMetadata>,
    known: Option<&Known>,
) -> Comparison {
    match (wanted, seen) {
        (None, None) => Comparison::Settled,
        (Some(_), None) => Comparison::Missing,
        (None, Some(seen)) if !seen.ours => Comparison::Settled,
        (_, Some(seen)) if seen.ours && seen.deleting => Comparison::Settled,
        (Some(wanted), Some(seen)) => {
            let is_known = known.is_some_and(|it| it.version == seen.version && it.fingerprint == *wanted);
            if seen.ours && is_known {
                Comparison::Settled
            } else {
                Comparison::Unclear
            }
        }
        (None, Some(_)) => Comparison::Unclear,
    }
}

/// A complete object in the remote namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its `resourceVersion`.
    pub version: String,
    /// Whether it is a copy for this home cluster.
    pub ours: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it has `immutable: true`.
    pub immutable: bool,
    pub fingerprint: Fingerprint,
}

/// The next step for one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The copy is correct, or none should exist.
    Nothing,
    Create,
    Patch,
    /// Delete it and create it again: the difference is in an immutable field.
    Replace,
    Delete,
    /// It is being deleted; wait for that first.
    Wait,
    /// An object of others has the name.
    Taken,
}

/// The next step for a copy. Objects of others are never changed.
#[must_use]
pub fn decide(wanted: Option<&Fingerprint>, found: Option<&Found>) -> Step {
    match (wanted, found) {
        (None, None) => Step::Nothing,
        (Some(_), None) => Step::Create,
        (None, Some(found)) if !found.ours => Step::Nothing,
        (Some(_), Some(found)) if !found.ours => Step::Taken,
        (_, Some(found)) if found.deleting => Step::Wait,
        (None, Some(_)) => Step::Delete,
        (Some(wanted), Some(found)) if found.fingerprint == *wanted => Step::Nothing,
        (Some(wanted), Some(found)) => {
            let is_sealed = found.immutable && found.fingerprint.content != wanted.content;
            if is_sealed || found.fingerprint.fixed != wanted.fixed {
                Step::Replace
            } else {
                Step::Patch
            }
        }
    }
}

/// The name of the copy of an object. It differs only for the root certificates: the remote cluster has its
/// own `ConfigMap` of that name.
#[must_use]
pub fn name_of_copy(kind: Kind, name: &str, home: &str) -> String {
    if kind == Kind::ConfigMap && name == ROOT_CERTIFICATES {
        name_of_certificates(home)
    } else {
        name.to_owned()
    }
}

#[must_use]
pub fn name_of_original(kind: Kind, copy: &str, home: &str) -> String {
    if kind == Kind::ConfigMap && copy == name_of_certificates(home) {
        ROOT_CERTIFICATES.to_owned()
    } else {
        copy.to_owned()
    }
}

fn name_of_certificates(home: &str) -> String {
    format!("{ROOT_CERTIFICATES}.{}", digest(DIGITS, [home]))
}

#[cfg(test)]
mod tests;
