//! Moves within one namespace of a remote cluster. Pods there mount the twin by the name of the claim, which
//! the source has until the commit. Until then the target twin has another name; at the hand-over it takes
//! over the claim's name. Each of these writes can be the first one after a crash:
//!
//! ```text
//! PV of the source ── Retain, and marked as the superseded source
//! source           ── deleted: from then on the source is only that PV
//! target           ── a second claim for the same PV, under the name of the claim
//! PV of the target ── Retain, and names the second claim
//! first claim      ── deleted, once the second one is bound
//! ```
//!
//! Then the second claim is handed over like any other twin. Both PVs always name a uid, so that no other
//! claim is bound to them.

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
    volume::{
        ReclaimPolicy, mark,
        moving::{SourceMark, VolumeMark},
    },
};

/// Prefixes of the annotations that Kubernetes writes on a claim about its volume.
const OF_KUBERNETES: [&str; 3] = [
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
];

/// The claim with the name of the moved claim, in the namespace of the twins.
pub(super) enum ClaimOfName {
    /// The target; with the reason if it still waits for its PV.
    Target(Box<PersistentVolumeClaim>, Option<String>),
    Source(Box<PersistentVolumeClaim>),
    Foreign,
    Nothing,
}

impl MovedVolume {
    /// The name that the target twin takes over, if it was created under another one.
    pub(super) fn name_to_take(&self) -> Option<&str> {
        let Place::Site(site) = &self.target.place else {
            return None;
        };
        let name = self.claim.name.name.as_str();
        (site.remote_cluster().is_some() && site.name() != name).then_some(name)
    }

    pub(super) async fn named(&self, site: &Site, name: &str) -> Result<ClaimOfName, ApiError> {
        let Some(found) = site.twins().get(name).await? else {
            return Ok(ClaimOfName::Nothing);
        };
        if site.is_twin(self.volume(), &found) {
            let why = self.binding_wait(site, &found).await?;
            return Ok(ClaimOfName::Target(Box::new(found), why));
        }
        let is_source = |source: &Site| source.is_twin(self.volume(), &found);
        Ok(match self.site(Side::Source) {
            Ok(source) if is_source(source) => ClaimOfName::Source(Box::new(found)),
            _ => ClaimOfName::Foreign,
        })
    }

    /// Why the second claim is not bound yet, after its PV names it.
    pub(super) async fn binding_wait(
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

    /// The PV that is left of the source after its twin was deleted.
    pub(super) async fn source_without_twin(
        &self,
        site: &Site,
    ) -> Result<Option<PersistentVolume>, ApiError> {
        if self.name_to_take().is_none() {
            return Ok(None);
        }
        let of = data_of(site, self.volume());
        // Each move of the volume may leave such a PV; this is the one of this move.
        let is_it = |real: &PersistentVolume| {
            let left_by = SourceMark::read(real.annotations()).ok().flatten();
            real.annotations().get(mark::DATA_OF) == Some(&of)
                && matches!(left_by, Some(SourceMark::Superseded { by, .. }) if by == self.by)
        };
        Ok(site.volumes().find(is_it).await?.into_iter().next())
    }

    /// Sets the reclaim policy of that PV to the one that the user wants, and removes the mark of the source.
    pub(super) async fn release_source_without_twin(
        &self,
        at: &AsRead,
        policy: ReclaimPolicy,
    ) -> Result<Applied, GateError> {
        let (site, target) = (self.site(Side::Source)?, self.site(Side::Target)?);
        // A late write of an old leader may have created the first claim again.
        if let Some(first) = self.first_claim(target).await?.filter(is_active) {
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

    /// Takes the next write until the target has the name of the claim; `None` if it has. `at` is the version
    /// of the target twin in the decision, under either name.
    pub(super) async fn take_name(&self, name: &str, at: &AsRead) -> Result<Option<Applied>, GateError> {
        let site = self.site(Side::Target)?;
        let first = self.first_claim(site).await?;
        let is_decided_on = |twin: &PersistentVolumeClaim| as_read(twin) == *at;
        match (self.named(site, name).await?, first) {
            (ClaimOfName::Target(second, _), first) if is_decided_on(&second) => {
                self.bind_second_claim(site, &second, first).await
            }
            (ClaimOfName::Source(source), Some(first)) if is_decided_on(&first) => {
                Box::pin(self.release_name(*source)).await.map(Some)
            }
            (ClaimOfName::Nothing, Some(first)) if is_decided_on(&first) => {
                let second = copy_of_twin(name, first);
                let created = crash::around(Step::MoveTakeName, site.twins().create(&second)).await;
                outcome(created).map(Some)
            }
            (ClaimOfName::Foreign, Some(_)) => Err(GateError::NameTaken {
                twin: format!("{}/{name}", site.namespace()),
                cluster: site.cluster_name(),
            }),
            _ => Ok(Some(Applied::ChangedMeanwhile)),
        }
    }

    /// Retains the data of the source and deletes its twin.
    async fn release_name(&self, source: PersistentVolumeClaim) -> Result<Applied, GateError> {
        let site = self.site(Side::Source)?;
        let superseded = SourceMark::Superseded {
            by: self.by.clone(),
            epoch: self.target.id.epoch,
        };
        if SourceMark::read(source.annotations()).ok().flatten().as_ref() != Some(&superseded) {
            if source.metadata.deletion_timestamp.is_none() {
                return Ok(Applied::ChangedMeanwhile);
            }
            // Another client deletes the twin, which was therefore not marked before.
            let patch = json!({"metadata": {"annotations": {mark::SOURCE_OF: superseded.to_string()}}});
            return exactly_as(site.twins(), source)
                .change(Step::MoveMarkSource, patch)
                .await;
        }
        let real = match reading::volume_name(&source) {
            Some(name) => site.volumes().get(name).await?,
            None => None,
        };
        let real = real.filter(|real| is_bound_to(real, &source) || self.has_gated(site, real));
        if let Some(real) = real.filter(|real| !real.annotations().contains_key(mark::SOURCE_OF)) {
            let mut annotations = json!({
                mark::SOURCE_OF: superseded.to_string(),
                mark::DATA_OF: data_of(site, self.volume()),
            });
            match VolumeMark::read(real.annotations()) {
                // The PV still names the claim of the mover, which Kubernetes deletes with the source: pods that wait
                // for that name start with the target.
                Ok(Some(VolumeMark::Gated(note))) if note.by == self.by => {
                    record_policy(&mut annotations, note.policy.as_str());
                    let (by, gate) = (note.by, note.gate);
                    annotations[mark::GATE] = self.written(&VolumeMark::Ungated { by, gate })?.into();
                }
                _ => record_policy(&mut annotations, reclaim_policy(&real)),
            }
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

    /// Binds the PV to the second claim instead of the first one, and deletes the first one.
    async fn bind_second_claim(
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
            let annotations = json!({mark::DATA_OF: data_of(site, self.volume())});
            let patch = pass_to(&real, second, annotations);
            let real = exactly_as(site.volumes(), real);
            return real.change(Step::MovePassOn, patch).await.map(Some);
        }
        if reading::phase(second) != "Bound" || !is_bound(&real) {
            return Ok(Some(Applied::ChangedMeanwhile));
        }
        match first.filter(is_active) {
            Some(first) => delete(site, first, Step::MoveDeleteTarget).await.map(Some),
            None => Ok(None),
        }
    }

    /// The target twin under its first name, if it takes over another one.
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

fn is_active(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
}

/// Records the reclaim policy of a PV that is about to be retained.
fn record_policy(annotations: &mut Value, policy: &str) {
    if policy != ReclaimPolicy::Retain.as_str() {
        annotations[mark::POLICY_BEFORE] = policy.into();
    }
}

/// The patch of a PV that binds it to another twin, with these annotations, and retains its data meanwhile.
pub(super) fn pass_to(
    real: &PersistentVolume,
    twin: &PersistentVolumeClaim,
    mut annotations: Value,
) -> Value {
    record_policy(&mut annotations, reclaim_policy(real));
    json!({
        "metadata": {"annotations": annotations},
        "spec": {
            "persistentVolumeReclaimPolicy": ReclaimPolicy::Retain.as_str(),
            "claimRef": {"name": twin.name_any(), "uid": twin.uid(), "resourceVersion": null},
        },
    })
}

/// The same twin under another name, for the same PV.
pub(super) fn copy_of_twin(name: &str, first: PersistentVolumeClaim) -> PersistentVolumeClaim {
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
