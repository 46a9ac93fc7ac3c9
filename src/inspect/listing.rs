//! The objects of a kind, as an API server returned them, or why it did not.

use std::fmt::Debug;

use kube::{Resource, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};

use crate::cluster::{ApiError, Cause, Cluster, Objects};

/// Why the namespace of the twins is unknown.
pub(super) const NO_NAMESPACE: &str =
    "the Deployment of the controller cannot be read; pass --storage-namespace";

/// The objects of a kind. If they could not be read the list is empty and has a reason; then an object that
/// is not listed may exist.
#[derive(Clone, Debug)]
pub(crate) struct Listing<K> {
    objects: Vec<K>,
    refusal: Option<String>,
}

impl<K> Default for Listing<K> {
    fn default() -> Self {
        Self {
            objects: Vec::new(),
            refusal: None,
        }
    }
}

impl<K> Listing<K> {
    /// An empty list, with the reason.
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self {
            objects: Vec::new(),
            refusal: Some(why.into()),
        }
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, K> {
        self.objects.iter()
    }

    /// Whether all objects of the kind are listed.
    pub(crate) fn is_complete(&self) -> bool {
        self.refusal.is_none()
    }

    /// Whether certainly no object matches.
    pub(crate) fn lacks(&self, like: impl FnMut(&K) -> bool) -> bool {
        self.is_complete() && !self.objects.iter().any(like)
    }

    /// Why the objects could not be read.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The list with each object converted.
    pub(crate) fn map<T>(self, as_other: impl FnMut(K) -> T) -> Listing<T> {
        Listing {
            objects: self.objects.into_iter().map(as_other).collect(),
            refusal: self.refusal,
        }
    }

    /// Splits the list by a condition.
    pub(crate) fn partition(self, like: impl FnMut(&K) -> bool) -> (Self, Self) {
        let (yes, no) = self.objects.into_iter().partition(like);
        let part = |objects| Self {
            objects,
            refusal: self.refusal.clone(),
        };
        (part(yes), part(no))
    }
}

impl<K: Resource> Listing<K> {
    /// A complete list.
    pub(crate) fn of(mut objects: Vec<K>) -> Self {
        // Sorted, for the binary search in `named`.
        objects.sort_by(|a, b| key(a).cmp(&key(b)));
        Self {
            objects,
            refusal: None,
        }
    }

    /// Both lists together; incomplete if either is.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.objects.extend(other.objects);
        let refusal = self.refusal.or(other.refusal);
        Self {
            refusal,
            ..Self::of(self.objects)
        }
    }

    /// The object of this name.
    pub(crate) fn named(&self, namespace: Option<&str>, name: &str) -> Option<&K> {
        let found = self
            .objects
            .binary_search_by(|object| key(object).cmp(&(namespace, Some(name))));
        found.ok().map(|at| &self.objects[at])
    }
}

fn key<K: Resource>(object: &K) -> (Option<&str>, Option<&str>) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref())
}

impl<K> Listing<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    /// Lists all objects, in all namespaces.
    pub(crate) async fn all(cluster: &Cluster) -> Self {
        Self::ask(&cluster.all(), None, None).await
    }

    /// Lists the objects with these labels and fields.
    pub(crate) async fn ask(objects: &Objects<K>, labels: Option<&str>, fields: Option<&str>) -> Self {
        Self::from_answer(objects.select(labels, fields).await)
    }

    /// Lists the objects in the namespace of the twins, if that is known; none if the kind is not installed.
    pub(crate) async fn with_twins(
        cluster: &Cluster,
        namespace: Option<&str>,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match namespace {
            Some(namespace) => Self::of_installed(cluster.within(namespace).select(labels, fields).await),
            None => Self::refused(format!("their namespace is unknown: {NO_NAMESPACE}")),
        }
    }

    /// As `from_answer`; if the kind is not installed, the list is empty and complete.
    pub(crate) fn of_installed(answer: Result<Vec<K>, ApiError>) -> Self {
        match answer {
            Err(ApiError {
                cause: Cause::NotFound(_),
                ..
            }) => Self::default(),
            other => Self::from_answer(other),
        }
    }

    /// The listing that the answer to a LIST gives.
    pub(crate) fn from_answer(answer: Result<Vec<K>, ApiError>) -> Self {
        match answer {
            Ok(objects) => Self::of(objects),
            Err(error) => Self::refused(reason(&error)),
        }
    }
}

/// The error without advice about the driver's rights: these are the rights of the user.
pub(super) fn reason(error: &ApiError) -> String {
    match &error.cause {
        Cause::Forbidden(message) => message.clone(),
        cause => cause.to_string(),
    }
}

impl<'a, K> IntoIterator for &'a Listing<K> {
    type Item = &'a K;
    type IntoIter = std::slice::Iter<'a, K>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
