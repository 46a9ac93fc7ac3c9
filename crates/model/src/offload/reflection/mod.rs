//! What of a namespace is copied into remote clusters: `ConfigMap`s, Secrets and Services, and
//! `EndpointSlice`s where pods reach each other. What a copy looks like, and what is to be done
//! about one, decided from the objects alone; in `object` is how they are read, in `slices` which
//! endpoints a cluster is told of. Nothing is fetched or written here.

mod object;
mod slices;

use std::collections::BTreeMap;

pub use self::{
    object::{NotCopied, Wanted, found, patch, wanted},
    slices::{SERVICE_NAME, SLICE_MANAGER, SLICES_OF_FABRIC, Slice, slices_of},
};
use crate::volume::digest;

/// Annotation of a copy: the uid of the object at home.
pub const HOME_OBJECT_UID: &str = "fabric.storage.liqo.io/home-object-uid";
/// Annotation of a copy: the keys of the labels and annotations that were copied. What others
/// add there stays theirs.
pub const COPIED_KEYS: &str = "fabric.storage.liqo.io/copied-keys";
/// Annotation or label of an object that is not copied. Liqo's.
pub const SKIP: &str = "liqo.io/skip-reflection";

/// Kubernetes puts a `ConfigMap` of this name into every namespace: the certificates by which the
/// API server of that very cluster is known.
const ROOT_CERTIFICATES: &str = "kube-root-ca.crt";
/// Digits of the hash that such a copy is called by.
const DIGITS: usize = 10;

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    ConfigMap,
    Secret,
    Service,
    EndpointSlice,
}

impl Kind {
    /// Its API group and version.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Secret | Self::Service => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
        }
    }
}

/// The labels and annotations by which copies are known that were made for one home cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The id of the home cluster.
    pub home: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Marks {
    /// Whether an object with this metadata is a copy that was made for this cluster.
    #[must_use]
    pub fn are_on(&self, labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> bool {
        let has = |all: &BTreeMap<String, String>, marks: &BTreeMap<String, String>| {
            marks.iter().all(|(key, value)| all.get(key) == Some(value))
        };
        has(labels, &self.labels) && has(annotations, &self.annotations)
    }
}

/// Stands for what an object says, as far as it is copied. Nobody can read it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Print {
    /// Labels and annotations.
    metadata: String,
    /// All the rest.
    content: String,
    /// What the API server never changes: the type of a Secret, whether a Service is headless, the
    /// family of addresses.
    fixed: String,
}

impl Print {
    /// How many bytes of text it holds.
    #[must_use]
    pub fn text(&self) -> usize {
        self.metadata.len() + self.content.len() + self.fixed.len()
    }
}

/// An object at home that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    /// The name of its copy.
    pub copy: String,
    /// What the copy is to say.
    pub print: Print,
    /// Which pods it leads to, if it is a Service that selects some.
    pub selector: BTreeMap<String, String>,
}

/// An object in the remote namespace, as far as its metadata tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glimpse {
    /// Its name.
    pub name: String,
    /// Its version, which each change makes another.
    pub version: String,
    /// Whether it is a copy of ours.
    pub ours: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// What a copy was known to say when it had this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The version.
    pub version: String,
    /// What it said.
    pub print: Print,
}

/// What can be told without reading the objects themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Nothing is to be done.
    Settled,
    /// There is to be a copy, and none is seen.
    Missing,
    /// Something may be to be done.
    Unclear,
}

/// What is to be done where this is at home, and that was seen and is known of the copy.
#[must_use]
pub fn outlook(wanted: Option<&Print>, seen: Option<&Glimpse>, known: Option<&Known>) -> Outlook {
    match (wanted, seen) {
        (None, None) => Outlook::Settled,
        (Some(_), None) => Outlook::Missing,
        (None, Some(seen)) if !seen.ours => Outlook::Settled,
        (_, Some(seen)) if seen.ours && seen.deleting => Outlook::Settled,
        (Some(wanted), Some(seen)) => {
            let is_known = known.is_some_and(|it| it.version == seen.version && it.print == *wanted);
            if seen.ours && is_known {
                Outlook::Settled
            } else {
                Outlook::Unclear
            }
        }
        (None, Some(_)) => Outlook::Unclear,
    }
}

/// An object in the remote namespace, read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its version.
    pub version: String,
    /// Whether it is a copy of ours.
    pub ours: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether its content cannot be changed.
    pub immutable: bool,
    /// What it says.
    pub print: Print,
}

/// What is to be done about one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is as it is to be, or there is none to be.
    Nothing,
    /// It is made.
    Create,
    /// It is changed.
    Patch,
    /// It is deleted, and made again: what differs cannot be changed.
    Replace,
    /// It is deleted.
    Delete,
    /// It is going, which has to be over first.
    Wait,
    /// An object of others has its name.
    Taken,
}

/// What is to be done where this is at home and that is there. An object of others is never
/// touched.
#[must_use]
pub fn decide(wanted: Option<&Print>, found: Option<&Found>) -> Step {
    match (wanted, found) {
        (None, None) => Step::Nothing,
        (Some(_), None) => Step::Create,
        (None, Some(found)) if !found.ours => Step::Nothing,
        (Some(_), Some(found)) if !found.ours => Step::Taken,
        (_, Some(found)) if found.deleting => Step::Wait,
        (None, Some(_)) => Step::Delete,
        (Some(wanted), Some(found)) if found.print == *wanted => Step::Nothing,
        (Some(wanted), Some(found)) => {
            let is_sealed = found.immutable && found.print.content != wanted.content;
            if is_sealed || found.print.fixed != wanted.fixed {
                Step::Replace
            } else {
                Step::Patch
            }
        }
    }
}

/// The name of the copy of an object. Only that of the certificates of this cluster differs:
/// the remote cluster has its own of that name.
#[must_use]
pub fn name_of_copy(kind: Kind, name: &str, home: &str) -> String {
    if kind == Kind::ConfigMap && name == ROOT_CERTIFICATES {
        name_of_certificates(home)
    } else {
        name.to_owned()
    }
}

/// The name of the object that a copy of this name is of.
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
