//! The copies of `EndpointSlice`s in one remote namespace, and their deletion when there are no
//! routes any more.

use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{ResourceExt, core::PartialObjectMeta};

use super::{
    copies::{Copies, key},
    source::json,
};
use crate::{
    cluster::{ApiError, unless_conflict},
    offload::reflection::{Kind, Original, Slice, Wanted, slices_of},
};

impl Copies {
    /// The desired copy of a slice. `None` unless the copy of its Service exists: a Service of others must get no
    /// endpoints from us.
    pub(super) fn slice_copy(&self, slice: &Slice) -> Option<Wanted> {
        let here = self.ends.source.services().of_topic(&slice.service);
        let there = self
            .seen
            .of(Kind::Service)
            .get(&format!("{}/{}", self.ends.remote, slice.service));
        let is_there = there.is_some_and(|it| it.ours && !it.deleting);
        let routes = self.ends.routes.get()?;
        if here.is_empty() || !is_there {
            return None;
        }
        let cluster = self.ends.there.id().as_str();
        slice.copy(|node| routes.lead(cluster, node), &self.ends.marks)
    }

    /// The desired copy of the slice of this name.
    pub(super) fn slice_original(&self, name: &str) -> Option<Arc<Original>> {
        let slice = self.ends.source.slices().of_topic(name).pop()?;
        Some(Arc::new(self.slice_copy(&slice)?.original))
    }

    /// The keys of the copies of the slices of a Service.
    pub(super) fn slices_of(&self, service: &str) -> Vec<String> {
        if !self.ends.routed {
            return Vec::new();
        }
        let slices = self.ends.source.slices().of_topic(&slices_of(service));
        slices
            .iter()
            .map(|it| key(Kind::EndpointSlice, &it.name))
            .collect()
    }

    /// Deletes copies from when there were routes. Without the right to list them there are none.
    pub(super) async fn collect_slices(&self) -> Result<(), ApiError> {
        type Metadata = PartialObjectMeta<EndpointSlice>;
        let slices = self.ends.there.within::<Metadata>(&self.ends.remote);
        let marks = &self.ends.marks;
        let pairs = marks.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let labels = pairs.collect::<Vec<_>>().join(",");
        let ours = |it: Metadata| marks.are_on(it.labels(), it.annotations()).then_some(it);
        let left = match slices.pick(Some(&labels), None, ours).await {
            Err(error) if error.is_forbidden() => return Ok(()),
            left => left?,
        };
        if left.is_empty() || !self.is_ours().await? {
            return Ok(());
        }
        for slice in left {
            let name = slice.name_any();
            let deleted = self.delete::<EndpointSlice>(&name, &json(slice)).await;
            unless_conflict(deleted.map(Some))?;
        }
        Ok(())
    }
}
