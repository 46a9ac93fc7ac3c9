//! What an API server told about a kind of objects, or why it did not.

use std::fmt::Debug;

use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

use crate::cluster::{ApiError, Cause, Cluster, Objects};

/// The objects of a kind. Where they may not be read there are none, and a
/// reason; then nothing may be concluded from an absence.
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
    /// None, because of this.
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self {
            objects: Vec::new(),
            refusal: Some(why.into()),
        }
    }

    /// The objects that are known.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, K> {
        self.objects.iter()
    }

    /// Whether these are all there are.
    pub(crate) fn is_complete(&self) -> bool {
        self.refusal.is_none()
    }

    /// Whether there certainly is none like this.
    pub(crate) fn lacks(&self, like: impl FnMut(&K) -> bool) -> bool {
        self.is_complete() && !self.objects.iter().any(like)
    }

    /// Why they are not known.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The same, as something else.
    pub(crate) fn map<T>(self, as_other: impl FnMut(K) -> T) -> Listing<T> {
        Listing {
            objects: self.objects.into_iter().map(as_other).collect(),
            refusal: self.refusal,
        }
    }

    /// Divides them by what they are.
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
    /// All of them.
    pub(crate) fn of(mut objects: Vec<K>) -> Self {
        // In the order in which they are looked up.
        objects.sort_by(|a, b| key(a).cmp(&key(b)));
        Self {
            objects,
            refusal: None,
        }
    }

    /// Both together; a refusal of either is a refusal.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.objects.extend(other.objects);
        let refusal = self.refusal.or(other.refusal);
        Self {
            refusal,
            ..Self::of(self.objects)
        }
    }

    /// The one of this name.
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
    /// Asks for all of them, in all namespaces.
    pub(crate) async fn all(cluster: &Cluster) -> Self {
        Self::ask(&cluster.all(), None, None).await
    }

    /// Asks for those with these labels and fields.
    pub(crate) async fn ask(objects: &Objects<K>, labels: Option<&str>, fields: Option<&str>) -> Self {
        Self::from_answer(objects.select(labels, fields).await)
    }

    /// As `from_answer`, of a kind that need not be installed: then there are none.
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

/// In the words of whoever asked: permissions are theirs here, not the driver's.
fn reason(error: &ApiError) -> String {
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
