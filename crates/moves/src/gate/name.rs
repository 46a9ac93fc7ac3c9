//! Moves within one namespace of a remote cluster. Pods there name the twin as they name the claim, and
//! until the commit the source has that name. The twin at the target has one of its own until then, and
//! takes the claim's over when it is handed over. Each of these writes can be the first one after a crash:
//!
//! ```text
//! PV of the source ── Retain, and what it is
//! source           ── deleted: from here on that PV alone is the source
//! target           ── a second claim for the same PV, under the name of the claim
//! PV of the target ── Retain, and belongs to the second claim
//! first claim      ── deleted, once the second one is bound
//! ```
//!
//! Then the second claim is handed over like any other twin. Both PVs name a uid all the time, so that
//! nobody else is bound to them.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec};
use kube::{ResourceExt, api::ObjectMeta};
use serde_json::{Value, json};

use super::{
    Applied, GateError, MovedVolume, Place,
    apply::{exactly_as, outcome},
    observe::as_read,
    twins::delete,
};
use crate::{
    cluster::ApiError,
    observe::crash::{self, Step},
    placement::moving::{AsRead, Side},
    twin::{Site, data_of, is_bound, is_bound_to, reading, reclaim_policy},
    volume::{ReclaimPolicy, mark, moving::SourceMark},
};

/// What Kubernetes writes on a claim about its volume.
const OF_KUBERNETES: [&str; 3] = [
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
];

/// What has the name of the claim in the namespace of the twins.
pub(super) enum Named {
    /// The target. It waits for its PV, for this reason, or is ready.
    Target(Box<PersistentVolumeClaim>, Option<String>),
    /// The source.
    Source(Box<PersistentVolumeClaim>),
    /// Something that is neither.
    Foreign,
    /// Nothing.
    Nothing,
}

impl MovedVolume {
    /// The name that the twin at the target takes over, if it is made under another one.
    pub(super) fn name_to_take(&self) -> Option<&str> {
        let Place::Site(site) = &self.target.place else {
            return None;
        };
        let name = self.claim.name.name.as_str();
        (site.remote_cluster().is_some() && site.name() != name).then_some(name)
    }

    pub(super) async fn named(&self, site: &Site, name: &str) -> Result<Named, ApiError> {
        let Some(found) = site.twins().get(name).await? else {
            return Ok(Named::Nothing);
        };
        if site.is_twin(self.volume(), &found) {
            let why = self.awaits(site, &found).await?;
            return Ok(Named::Target(Box::new(found), why));
        }
        let is_source = |source: &Site| source.is_twin(self.volume(), &found);
        Ok(match self.site(Side::Source) {
            Ok(source) if is_source(source) => Named::Source(Box::new(found)),
            _ => Named::Foreign,
        })
    }

    /// For what the second claim waits once its PV is its own.
    pub(super) async fn awaits(
        &self,
        site: &Site,
        named: &PersistentVolumeClaim,
    ) -> Result<Option<String>, ApiError> {
        if reading::phase(named) == "Bound" {
            return Ok(None);
        }
        let Some(name) = reading::volume_name(named) else {
            return Ok(None);
        };
        let real = site.volumes().get(name).await?;
        let waits = real.is_some_and(|real| is_bound_to(&real, named));
        Ok(waits.then(|| format!("{}/{} is being bound", site.namespace(), named.name_any())))
    }

    /// The PV that alone is the source, once that has given its name up.
    pub(super) async fn source_without_twin(
        &self,
        site: &Site,
    ) -> Result<Option<PersistentVolume>, ApiError> {
        if self.name_to_take().is_none() {
            return Ok(None);
        }
        let of = data_of(site, self.volume());
        // Of a volume that has moved on since, each move has left one.
        let is_it = |real: &PersistentVolume| {
            let left_by = SourceMark::read(real.annotations()).ok().flatten();
            real.annotations().get(mark::DATA_OF) == Some(&of)
                && matches!(left_by, Some(SourceMark::Superseded { by, .. }) if by == self.by)
        };
        Ok(site.volumes().find(is_it).await?.into_iter().next())
    }

    /// Gives that PV the reclaim policy that its user wants, as which nothing else is left of the source.
    pub(super) async fn release_source_without_twin(
        &self,
        at: &AsRead,
        policy: ReclaimPolicy,
    ) -> Result<Applied, GateError> {
        let (site, target) = (self.site(Side::Source)?, self.site(Side::Target)?);
        // A leader that was late may have made the first claim again.
        if let Some(first) = self.first_claim(target).await?.filter(stays) {
            return delete(target, first, Step::MoveDeleteTarget).await;
        }
        let real = self.source_without_twin(site).await?;
        let Some(real) = real.filter(|real| as_read(real) == *at) else {
            return Ok(Applied::ChangedMeanwhile);
        };
        let mut patch = json!({"metadata": {"annotations": {mark::SOURCE_OF: null}}});
        if let (ReclaimPolicy::Delete, Some(before)) = (policy, real.annotations().get(mark::POLICY_BEFORE)) {
            patch["metadata"]["annotations"][mark::POLICY_BEFORE] = Value::Null;
            patch["spec"]["persistentVolumeReclaimPolicy"] = before.as_str().into();
        }
        exactly_as(site.volumes(), real)
            .change(Step::MoveReleaseSource, patch)
            .await
    }

    /// The next write until the target has the name of the claim; `None` if it has. `at` is the twin
    /// that was decided on, under whichever name.
    pub(super) async fn take_name(&self, name: &str, at: &AsRead) -> Result<Option<Applied>, GateError> {
        let site = self.site(Side::Target)?;
        let first = self.first_claim(site).await?;
        let is_decided_on = |twin: &PersistentVolumeClaim| as_read(twin) == *at;
        match (self.named(site, name).await?, first) {
            (Named::Target(second, _), first) if is_decided_on(&second) => {
                self.have_volume(site, &second, first).await
            }
            (Named::Source(source), Some(first)) if is_decided_on(&first) => {
                self.give_name_up(*source).await.map(Some)
            }
            (Named::Nothing, Some(first)) if is_decided_on(&first) => {
                let second = again(name, first);
                let created = crash::around(Step::MoveTakeName, site.twins().create(&second)).await;
                outcome(created).map(Some)
            }
            (Named::Foreign, Some(_)) => Err(GateError::NameTaken {
                twin: format!("{}/{name}", site.namespace()),
                cluster: site.cluster_name(),
            }),
            _ => Ok(Some(Applied::ChangedMeanwhile)),
        }
    }

    /// The data of the source stays, its twin goes.
    async fn give_name_up(&self, source: PersistentVolumeClaim) -> Result<Applied, GateError> {
        let site = self.site(Side::Source)?;
        let superseded = SourceMark::Superseded {
            by: self.by.clone(),
            epoch: self.target.id.epoch,
        };
        if SourceMark::read(source.annotations()).ok().flatten().as_ref() != Some(&superseded) {
            if source.metadata.deletion_timestamp.is_none() {
                return Ok(Applied::ChangedMeanwhile);
            }
            // Somebody else deletes it, and it was left alone for that.
            let patch = json!({"metadata": {"annotations": {mark::SOURCE_OF: superseded.to_string()}}});
            return exactly_as(site.twins(), source)
                .change(Step::MoveMarkSource, patch)
                .await;
        }
        let real = match reading::volume_name(&source) {
            Some(name) => site.volumes().get(name).await?,
            None => None,
        };
        let real = real.filter(|real| is_bound_to(real, &source));
        if let Some(real) = real.filter(|real| !real.annotations().contains_key(mark::SOURCE_OF)) {
            let mut annotations = json!({
                mark::SOURCE_OF: superseded.to_string(),
                mark::DATA_OF: data_of(site, self.volume()),
            });
            note_policy(&mut annotations, &real);
            let patch = json!({
                "metadata": {"annotations": annotations},
                "spec": {"persistentVolumeReclaimPolicy": ReclaimPolicy::Retain.as_str()},
            });
            return exactly_as(site.volumes(), real)
                .change(Step::MoveRetainSource, patch)
                .await;
        }
        delete(site, source, Step::MoveReleaseSource).await
    }

    /// The PV goes from the first claim to the second one, and the first one goes.
    async fn have_volume(
        &self,
        site: &Site,
        second: &PersistentVolumeClaim,
        first: Option<PersistentVolumeClaim>,
    ) -> Result<Option<Applied>, GateError> {
        let real = match reading::volume_name(second) {
            Some(name) => site.volumes().get(name).await?,
            None => None,
        };
        let unbound = || GateError::Unbound {
            twin: format!("{}/{}", site.namespace(), second.name_any()),
            cluster: site.cluster_name(),
        };
        let real = real.ok_or_else(unbound)?;
        if !is_bound_to(&real, second) {
            if !first.is_some_and(|first| is_bound_to(&real, &first)) {
                return Err(unbound());
            }
            let mut annotations = json!({mark::DATA_OF: data_of(site, self.volume())});
            note_policy(&mut annotations, &real);
            let patch = json!({
                "metadata": {"annotations": annotations},
                "spec": {
                    "persistentVolumeReclaimPolicy": ReclaimPolicy::Retain.as_str(),
                    "claimRef": {"name": second.name_any(), "uid": second.uid(), "resourceVersion": null},
                },
            });
            let real = exactly_as(site.volumes(), real);
            return real.change(Step::MovePassOn, patch).await.map(Some);
        }
        if reading::phase(second) != "Bound" || !is_bound(&real) {
            return Ok(Some(Applied::ChangedMeanwhile));
        }
        match first.filter(stays) {
            Some(first) => delete(site, first, Step::MoveDeleteTarget).await.map(Some),
            None => Ok(None),
        }
    }

    /// The twin as the move has made it, where that is not what is handed over.
    async fn first_claim(&self, site: &Site) -> Result<Option<PersistentVolumeClaim>, ApiError> {
        if self.name_to_take().is_none() {
            return Ok(None);
        }
        let found = site.twins().get(site.name()).await?;
        let is_first = |twin: &PersistentVolumeClaim| {
            twin.labels().get(mark::MOVE).map(String::as_str) == Some(self.by.as_str())
                && site.is_twin(self.volume(), twin)
        };
        Ok(found.filter(is_first))
    }
}

fn stays(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
}

/// Notes the policy of a PV that is about to be retained.
pub(super) fn note_policy(annotations: &mut Value, real: &PersistentVolume) {
    let policy = reclaim_policy(real);
    if policy != ReclaimPolicy::Retain.as_str() {
        annotations[mark::POLICY_BEFORE] = policy.into();
    }
}

/// The same twin under another name, for the PV that it has.
pub(super) fn again(name: &str, first: PersistentVolumeClaim) -> PersistentVolumeClaim {
    let mut annotations = first.metadata.annotations.unwrap_or_default();
    annotations.retain(|key, _| !OF_KUBERNETES.iter().any(|its| key.starts_with(its)));
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: first.metadata.namespace,
            labels: first.metadata.labels,
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: first.spec.map(|spec| PersistentVolumeClaimSpec {
            data_source: None,
            data_source_ref: None,
            ..spec
        }),
        status: None,
    }
}
