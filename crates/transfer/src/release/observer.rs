//! Observes a release: the claim, the virtual PV, the twin, the real PV and the record on it. Everything is
//! read live, the record last: an undo first changes the record, and then writes on every object that must
//! be kept. So if the record says that the release continues, and the claim, the virtual PV or the twin is
//! then deleted in the version that was read, no undo can have happened in between.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::sidecars::PROVISIONERS;
use crate::{
    Context, TransferError,
    claim_ref::{claim_holder, is_claimable, is_kept, is_overlooked, reference_to},
    cluster::{facts, has_finalizer},
    observer::{asks_for, is_imported_for, is_virtual, namespace_uid, phase, recorded, volume_name},
    placement::transfer::{Holder, MatchingVolume, ReleaseProgress, ReleasedClaim, TwinNow, VirtualNow},
    recorded_volume::RecordedVolume,
    twin::{is_bound, is_bound_to, reclaim_policy, twin_in},
    volume::{ClaimName, Marks, ReleaseRecord, VolumeId, mark},
    writing::changed_since,
};

/// The observed objects.
pub(super) struct Observed {
    pub(super) name: ClaimName,
    /// The uid of its namespace; empty if that does not exist.
    pub(super) namespace_uid: String,
    /// The claim of this name.
    pub(super) claim: Option<PersistentVolumeClaim>,
    /// The virtual PV.
    pub(super) outer: Option<PersistentVolume>,
    pub(super) twin: Option<PersistentVolumeClaim>,
    /// Another twin with the mark of a release for this claim: that of an earlier claim of the same name,
    /// which was deleted before the release was recorded.
    pub(super) stray: Option<PersistentVolumeClaim>,
    /// The namespace and name of the twin, also of one that is gone.
    pub(super) twin_name: Option<ClaimName>,
    /// The PV of the twin.
    pub(super) real: Option<PersistentVolume>,
    /// The record on the real PV.
    pub(super) record: Option<ReleaseRecord>,
    /// Whether a PV is being imported for the claim.
    pub(super) importing: bool,
}

/// Observes the same PV each time.
#[derive(Default)]
pub(super) struct Observer {
    real: RecordedVolume,
    /// Whether all twins were read, and none has a stray mark.
    none_stray: bool,
}

impl Observer {
    pub(super) async fn observe(
        &mut self,
        context: &Context<'_>,
        name: &ClaimName,
    ) -> Result<Observed, TransferError> {
        loop {
            if let Some(observed) = Box::pin(self.try_observe(context, name)).await? {
                return Ok(observed);
            }
        }
    }

    /// `None` if the release began or ended meanwhile: what was read before would be misinterpreted.
    async fn try_observe(
        &mut self,
        context: &Context<'_>,
        name: &ClaimName,
    ) -> Result<Option<Observed>, TransferError> {
        let claims = context.cluster.within::<PersistentVolumeClaim>(&name.namespace);
        let volumes = context.cluster.all::<PersistentVolume>();
        let claim = claims.get(&name.name).await?;
        let known = self.real.reread(context.cluster, name, "released").await?;
        let found = if known.is_some() {
            known
        } else {
            let is_its = |volume: &PersistentVolume| {
                ReleaseRecord::is_for(volume.annotations(), name) || is_imported_for(name, volume)
            };
            recorded(context.cluster, name, is_its).await?
        };
        let recorded = found.as_ref().map(record_on).transpose()?.flatten();
        let namespace_uid = namespace_uid(context.cluster, name).await?;
        if let (Some(record), Some(volume)) = (&recorded, &found)
            && Some(&record.claim.namespace_uid) != namespace_uid.as_ref()
        {
            return Err(TransferError::OtherNamespace {
                what: "released",
                claim: name.clone(),
                volume: volume.name_any(),
                policy: record.policy.clone(),
            });
        }
        let mut observed = Observed {
            name: name.clone(),
            namespace_uid: namespace_uid.unwrap_or_default(),
            claim,
            outer: None,
            twin: None,
            stray: None,
            twin_name: None,
            importing: found.as_ref().is_some_and(|volume| is_imported_for(name, volume)),
            real: None,
            record: None,
        };
        if let (Some(record), Some(found)) = (recorded, &found) {
            observed.follow_record(context, &record).await?;
            self.real.remember(found);
            observed.real = volumes.get(&found.name_any()).await?;
            observed.record = observed.real.as_ref().map(record_on).transpose()?.flatten();
            return Ok(observed.record.is_some().then_some(observed));
        }
        observed.follow_claim(context, &mut self.none_stray).await?;
        let real = observed.real.as_ref();
        if let Some(real) = real.filter(|real| ReleaseRecord::is_for(real.annotations(), name)) {
            record_on(real)?;
            self.real.remember(real);
            return Ok(None);
        }
        Ok(Some(observed))
    }
}

fn record_on(volume: &PersistentVolume) -> Result<Option<ReleaseRecord>, TransferError> {
    ReleaseRecord::read(volume.annotations()).map_err(|error| TransferError::Record(volume.name_any(), error))
}

impl Observed {
    /// Reads the objects that the record names.
    async fn follow_record(
        &mut self,
        context: &Context<'_>,
        record: &ReleaseRecord,
    ) -> Result<(), TransferError> {
        let volumes = context.cluster.all::<PersistentVolume>();
        let twins = context
            .cluster
            .within::<PersistentVolumeClaim>(&record.twin_namespace);
        let outer = volumes.get(&record.volume.name).await?;
        let twin = twins.get(&record.twin_name).await?;
        self.outer = outer.filter(is_virtual);
        self.twin = twin.filter(|twin| twin.metadata.uid.as_ref() == Some(&record.twin_uid));
        self.twin_name = Some(record.twin());
        Ok(())
    }

    /// Reads the objects that the claim refers to, if it is one of this driver.
    async fn follow_claim(
        &mut self,
        context: &Context<'_>,
        none_stray: &mut bool,
    ) -> Result<(), TransferError> {
        let volumes = context.cluster.all::<PersistentVolume>();
        let twins = context
            .cluster
            .within::<PersistentVolumeClaim>(context.storage_namespace);
        let named = match self.claim.as_ref().and_then(volume_name) {
            Some(named) => volumes.get(named).await?,
            None => None,
        };
        let name = self.name.to_string();
        let is_marked = |twin: &PersistentVolumeClaim| twin.annotations().get(mark::RELEASING) == Some(&name);
        let Some(outer) = named.as_ref().filter(|volume| is_virtual(volume)) else {
            // A twin with the mark, whose claim was deleted after that.
            self.twin = twins.find(is_marked).await?.pop();
            self.real = named;
            return Ok(());
        };
        let source = outer.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let id = volume_id(outer);
        let place = source.and_then(|source| twin_in(source.volume_attributes.as_ref()?));
        if let (Some(id), Some(place)) = (&id, &place)
            && place.namespace == context.storage_namespace
        {
            let twin = twins.get(&place.name).await?;
            self.twin = twin.filter(|twin| is_twin_of(id, twin));
        }
        if !*none_stray && !self.twin.as_ref().is_some_and(is_marked) {
            let own = self.twin.as_ref().and_then(ResourceExt::uid);
            let marked = twins.find(|twin| is_marked(twin) && twin.uid() != own).await?;
            self.stray = marked.into_iter().next();
            *none_stray = self.stray.is_none();
        }
        self.real = match self.twin.as_ref().and_then(volume_name) {
            Some(real) => volumes.get(real).await?,
            None => None,
        };
        self.twin_name = place;
        self.outer = named;
        Ok(())
    }

    /// The last warning event of the claim.
    pub(super) async fn last_warning(&self, context: &Context<'_>) -> Option<String> {
        let uid = self.claim.as_ref()?.uid()?;
        context.cluster.newest_warning(&self.name.namespace, &uid).await
    }

    /// Names of the virtual and the real PV, also of one that is gone.
    pub(super) fn volumes(&self) -> impl Iterator<Item = String> {
        let there = self.outer.as_ref().map(ResourceExt::name_any);
        let recorded = || self.record.as_ref().map(|record| record.volume.name.clone());
        let real = self.real.as_ref().map(ResourceExt::name_any);
        [there.or_else(recorded), real].into_iter().flatten()
    }

    /// Whether the real PV is being deleted.
    pub(super) fn is_leaving(&self) -> bool {
        let real = self.real.as_ref();
        real.is_some_and(|real| real.metadata.deletion_timestamp.is_some())
    }

    pub(super) fn progress(&self) -> ReleaseProgress {
        match &self.record {
            None => ReleaseProgress::NotRecorded,
            Some(record) if record.undone => ReleaseProgress::Back,
            Some(_) => ReleaseProgress::Onward,
        }
    }

    /// The record with the current old claim, if that was changed since.
    pub(super) fn changed_record(&self) -> Option<ReleaseRecord> {
        let mut record = self.record.clone()?;
        record.claim = changed_since(&record.claim, self.claim.as_ref(), &self.namespace_uid)?;
        Some(record)
    }

    pub(super) fn is_secured(&self) -> bool {
        let real = self.real.as_ref();
        real.is_some_and(|real| is_kept(real) && !self.is_claimable(real))
    }

    fn is_claimable(&self, volume: &PersistentVolume) -> bool {
        is_claimable(volume, &self.name, self.claim.as_ref())
    }

    /// The spec of the real PV whose data is retained, and that no other claim can bind to.
    pub(super) fn secure_spec(&self, real: &PersistentVolume, record: &ReleaseRecord) -> Value {
        let mut spec = json!({"persistentVolumeReclaimPolicy": "Retain"});
        if self.is_claimable(real) {
            spec["claimRef"] = reference_to(&record.twin(), &record.twin_uid);
        }
        spec
    }

    /// Whether the PV controller has to be made to process the claim that this PV names.
    pub(super) fn is_overlooked(&self, volume: Option<&PersistentVolume>) -> bool {
        is_overlooked(self.claim.as_ref(), volume)
    }

    pub(super) fn claim_now(&self) -> ReleasedClaim {
        let Some(claim) = &self.claim else {
            return ReleasedClaim::Absent;
        };
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let virtual_one = |recorded| ReleasedClaim::Virtual {
            recorded,
            deleting,
            touched: claim.annotations().contains_key(mark::RELEASE_UNDONE),
        };
        let named = volume_name(claim);
        let is_named = |volume: Option<&PersistentVolume>| {
            named.is_some() && volume.and_then(|it| it.metadata.name.as_deref()) == named
        };
        let is_recorded = |record: &ReleaseRecord| claim.metadata.uid.as_ref() == Some(&record.claim.uid);
        if is_named(self.real.as_ref()) {
            return ReleasedClaim::Real {
                deleting,
                bound: phase(claim) == "Bound" && self.real.as_ref().is_some_and(is_bound),
            };
        }
        match &self.record {
            Some(record) if is_recorded(record) => virtual_one(true),
            Some(record) if named == Some(&record.volume.name) => virtual_one(false),
            None if is_named(self.outer.as_ref()) => virtual_one(true),
            record => ReleasedClaim::Other {
                deleting,
                has_volume: named.is_some(),
                asks: record
                    .as_ref()
                    .map_or(MatchingVolume::Neither, |record| self.asks(claim, record)),
            },
        }
    }

    /// What a claim of another client requests.
    fn asks(&self, claim: &PersistentVolumeClaim, record: &ReleaseRecord) -> MatchingVolume {
        if let Some(real) = &self.real
            && asks_for(claim, Some(class_of(real)), real)
        {
            return MatchingVolume::Real;
        }
        let outer = serde_json::from_value(record.volume.again(&self.name, &record.claim.uid)).ok();
        let is_virtual =
            outer.is_some_and(|outer: PersistentVolume| asks_for(claim, Some(class_of(&outer)), &outer));
        if is_virtual {
            MatchingVolume::Virtual
        } else {
            MatchingVolume::Neither
        }
    }

    pub(super) fn virtual_now(&self) -> VirtualNow {
        let Some(outer) = &self.outer else {
            return VirtualNow::Absent;
        };
        let policy = reclaim_policy(outer);
        VirtualNow::Exists {
            deleting: outer.metadata.deletion_timestamp.is_some(),
            retained: policy == "Retain",
            as_before: self
                .record
                .as_ref()
                .is_none_or(|record| record.volume.policy == policy),
            offered: self.is_claimable(outer),
            finalizer: has_finalizer(outer, PROVISIONERS),
            holder: self.holder(outer),
        }
    }

    pub(super) fn twin_now(&self) -> TwinNow {
        self.twin
            .as_ref()
            .map_or(TwinNow::Absent, |twin| TwinNow::Exists {
                releasing: twin.annotations().contains_key(mark::RELEASING),
                touched: twin.annotations().contains_key(mark::RELEASE_UNDONE),
                deleting: twin.metadata.deletion_timestamp.is_some(),
            })
    }

    /// The holder of the real PV, by its `claimRef`.
    pub(super) fn real_holder(&self) -> Holder {
        self.real.as_ref().map_or(Holder::Gone, |real| self.holder(real))
    }

    fn holder(&self, volume: &PersistentVolume) -> Holder {
        let Some(named) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
            return Holder::Gone;
        };
        let named = facts::claim_name(named);
        if named == self.name {
            return claim_holder(self.claim.as_ref(), volume);
        }
        if self.twin_name.as_ref() != Some(&named) {
            return Holder::Other(format!("the claim {named}"));
        }
        match self
            .twin
            .as_ref()
            .filter(|twin| is_bound(volume) && is_bound_to(volume, twin))
        {
            Some(twin) => Holder::Twin {
                deleting: twin.metadata.deletion_timestamp.is_some(),
            },
            None => Holder::Gone,
        }
    }
}

/// The volume of a virtual PV.
pub(super) fn volume_id(outer: &PersistentVolume) -> Option<VolumeId> {
    let source = outer.spec.as_ref()?.csi.as_ref()?;
    source.volume_handle.parse().ok()
}

/// Whether a claim is the twin of this volume, in the volume's home cluster.
fn is_twin_of(id: &VolumeId, claim: &PersistentVolumeClaim) -> bool {
    Marks::read(claim.labels(), claim.annotations())
        .is_ok_and(|marks| marks.volume == id.name && marks.home == id.cluster && marks.epoch == id.epoch)
}

/// The class of a PV; an empty one where it has none.
pub(super) fn class_of(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.storage_class_name.as_deref())
        .unwrap_or_default()
}
