//! Takes one step of a move on one of the two twins, in exactly the version on which the decision was based.
//! The reclaim policy of the twin's PV is set before the twin is handed over or deleted.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::{
    Applied, GateError, MovedVolume,
    apply::{Exact, exactly, outcome, precondition},
    observe::{as_read, twins_volume},
};
use crate::{
    observe::crash::{self, Step},
    placement::{
        DeleteRefusal,
        moving::{AsRead, Side},
    },
    twin::{Site, copy_to_come, has_finalizer, restore_reclaim_policy, retain, withdraw::release_reserved},
    volume::{
        ReclaimPolicy,
        mark::{self, TWIN_FINALIZER},
        moving::SourceMark,
    },
};

impl MovedVolume {
    pub(super) async fn mark_source(&self, at: &AsRead, mark: &SourceMark) -> Result<Applied, GateError> {
        let Some((_, twin)) = self.exact_twin(Side::Source, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let patch = json!({"metadata": {"annotations": {mark::SOURCE_OF: mark.to_string()}}});
        twin.change(Step::MoveMarkSource, patch).await
    }

    pub(super) async fn retain_target(&self, at: &AsRead) -> Result<Applied, GateError> {
        let Some((site, twin)) = self.exact_twin(Side::Target, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        self.settle(site, &twin.object, ReclaimPolicy::Retain, Step::MoveRetainTarget)
            .await
    }

    /// A twin that was never handed over contains only a copy, even if the copy was retained for a while.
    pub(super) async fn delete_target(&self, at: &AsRead) -> Result<Applied, GateError> {
        let Some((site, twin)) = self.exact_twin(Side::Target, at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        match release_reserved(site.cluster(), site.name()).await {
            Err(error) if error.is_conflict() => return Ok(Applied::ChangedMeanwhile),
            other => other?,
        }
        let (policy, step) = (ReclaimPolicy::Delete, Step::MoveDeleteTarget);
        if self.settle(site, &twin.object, policy, step).await? == Applied::ChangedMeanwhile {
            return Ok(Applied::ChangedMeanwhile);
        }
        delete(site, twin.object, step).await
    }

    /// After this the twin is like any other: it has the finalizer, if allowed, and all loops handle it.
    pub(super) async fn hand_over(&self, at: &AsRead, retained: bool) -> Result<Applied, GateError> {
        let to_take = self.name_to_take();
        if let Some(name) = to_take
            && let Some(applied) = self.take_name(name, at).await?
        {
            return Ok(applied);
        }
        let site = self.site(Side::Target)?;
        let Some(twin) = exactly(site.twins(), to_take.unwrap_or(site.name()), at).await? else {
            return Ok(Applied::ChangedMeanwhile);
        };
        // A twin that took over its name was retained for that.
        if retained || to_take.is_some() {
            let policy = if retained {
                ReclaimPolicy::Retain
            } else {
                ReclaimPolicy::Delete
            };
            let settled = self.settle(site, &twin.object, policy, Step::MoveRetainTarget);
            if settled.await? == Applied::ChangedMeanwhile {
                return Ok(Applied::ChangedMeanwhile);
            }
        }
        let mut finalizers = twin.object.finalizers().to_vec();
        if site.protects() && !has_finalizer(&twin.object) {
            finalizers.push(TWIN_FINALIZER.to_owned());
        }
        let patch = json!({"metadata": {
            "labels": {mark::MOVE: null},
            "annotations": {mark::HANDED_OVER: "true"},
            "finalizers": finalizers,
        }});
        twin.change(Step::MoveHandOver, patch).await
    }

    pub(super) async fn release_source(
        &self,
        at: &AsRead,
        policy: ReclaimPolicy,
    ) -> Result<Applied, GateError> {
        let Some((site, twin)) = self.exact_twin(Side::Source, at).await? else {
            return self.release_source_without_twin(at, policy).await;
        };
        if twin.object.metadata.deletion_timestamp.is_none()
            && let Some(copy) = copy_to_come(site).await?
        {
            return Err(GateError::SourceKept(DeleteRefusal::ToBeCopied(copy)));
        }
        let settled = self.settle(site, &twin.object, policy, Step::MoveRetainSource);
        if settled.await? == Applied::ChangedMeanwhile {
            return Ok(Applied::ChangedMeanwhile);
        }
        delete(site, twin.object, Step::MoveReleaseSource).await
    }

    pub(super) async fn exact_twin(
        &self,
        of: Side,
        at: &AsRead,
    ) -> Result<Option<(&Site, Exact<PersistentVolumeClaim>)>, GateError> {
        let site = self.site(of)?;
        let twin = exactly(site.twins(), site.name(), at).await?;
        Ok(twin.map(|twin| (site, twin)))
    }

    /// Sets the reclaim policy of the twin's PV. For Delete, a Retain of this driver is replaced by the
    /// policy from before; a policy that another client has set is kept.
    pub(super) async fn settle(
        &self,
        site: &Site,
        twin: &PersistentVolumeClaim,
        policy: ReclaimPolicy,
        step: Step,
    ) -> Result<Applied, GateError> {
        let Some(real) = twins_volume(site, twin).await? else {
            return Ok(Applied::Done);
        };
        let is_settled = match policy {
            ReclaimPolicy::Retain => retain(site, self.volume(), &real, step).await?.is_some(),
            ReclaimPolicy::Delete => restore_reclaim_policy(site.cluster(), &real, json!({})).await?,
        };
        Ok(if is_settled {
            Applied::Done
        } else {
            Applied::ChangedMeanwhile
        })
    }
}

/// Deletes a twin. Our finalizer is removed before the deletion, not during it: after a crash in between, the
/// next decision deletes the twin.
pub(super) async fn delete(
    site: &Site,
    twin: PersistentVolumeClaim,
    step: Step,
) -> Result<Applied, GateError> {
    let twins = site.twins();
    let free = if has_finalizer(&twin) {
        let removed = twins.set_finalizer(&twin, TWIN_FINALIZER, false);
        let removed = crash::around(Step::MoveFreeTwin, removed).await;
        match crate::cluster::unless_conflict(removed)? {
            Some(changed) => changed,
            None => return Ok(Applied::ChangedMeanwhile),
        }
    } else {
        twin
    };
    let name = free.name_any();
    let deleted = twins.delete(&name, precondition(&as_read(&free)));
    outcome(crash::around(step, deleted).await.map(Some))
}
