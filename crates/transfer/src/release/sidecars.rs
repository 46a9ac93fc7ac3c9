//! The finalizers of the driver's sidecars on the virtual PV. Each takes its own off when there is
//! nothing left for it to do; where it does not run, that is done for it.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::{
    Context, TransferError, Waiting,
    cluster::{has_finalizer, unless_conflict},
    observe::crash::{self, Step},
    surroundings,
    twin::reclaim_policy,
};

/// csi-provisioner puts it on the PVs that it makes, and takes it off when they are retained.
pub(super) const PROVISIONERS: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// csi-attacher puts it on the PVs that it attaches, and takes it off those that are deleted and
/// attached nowhere.
pub(super) const ATTACHERS: &str = "external-attacher/storage-liqo-io";

/// How long a sidecar may take. Those of tests do their part at once, or never.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Waits for the sidecars.
#[derive(Default)]
pub(super) struct Sidecars {
    /// The finalizer that is waited for, and since when.
    held: Option<(&'static str, Instant)>,
}

impl Sidecars {
    /// Waits a moment for the virtual PV to be let go. `secured` says whether the real one is
    /// retained: only then there is nothing to delete for csi-provisioner.
    pub(super) async fn let_go(
        &mut self,
        context: &Context<'_>,
        waiting: &mut Waiting<'_>,
        outer: &PersistentVolume,
        secured: bool,
    ) -> Result<(), TransferError> {
        let sidecars = [("csi-provisioner", PROVISIONERS), ("csi-attacher", ATTACHERS)];
        let held = sidecars.into_iter().find(|(_, one)| has_finalizer(outer, one));
        let Some((sidecar, finalizer)) = held else {
            let what = "the virtual PersistentVolume is to be gone";
            return waiting.for_others(what, None).await;
        };
        let since = match self.held {
            Some((known, since)) if known == finalizer => since,
            _ => self.held.insert((finalizer, Instant::now())).1,
        };
        let is_over = since.elapsed() >= PATIENCE.min(context.patience / 4);
        let retained = secured && reclaim_policy(outer) == "Retain";
        if !(is_over
            && retained
            && surroundings::attached(context.cluster, &outer.name_any())
                .await?
                .is_empty())
        {
            let what = format!("{sidecar} is to let the virtual PersistentVolume go");
            return waiting.for_others(&what, None).await;
        }
        (context.tell)(&format!(
            "the finalizer of {sidecar} is taken off the virtual PersistentVolume"
        ));
        let volumes = context.cluster.all::<PersistentVolume>();
        let off = volumes.set_finalizer(outer, finalizer, false);
        unless_conflict(crash::around(Step::ReleaseFinalizer, off).await)?;
        let written = format!("the PersistentVolume {}", outer.name_any());
        Ok(waiting.after(&finalizer, &written).await?)
    }
}
