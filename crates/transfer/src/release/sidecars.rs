//! The finalizers of the driver's sidecars on the virtual PV. Each sidecar removes its own when it has
//! nothing left to do; if the sidecar does not run, this code removes it.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::{
    Context, TransferError, Waiter,
    cluster::{has_finalizer, unless_conflict},
    environment,
    observe::crash::{self, Step},
    twin::reclaim_policy,
};

/// csi-provisioner adds it to the PVs that it creates, and removes it from those that are retained.
pub(super) const PROVISIONERS: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// csi-attacher adds it to the PVs that it attaches, and removes it from those that are deleted and not
/// attached.
pub(super) const ATTACHERS: &str = "external-attacher/storage-liqo-io";

/// How long a sidecar may take. Those of tests act at once, or never.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Waits for the sidecars.
#[derive(Default)]
pub(super) struct Sidecars {
    /// The finalizer that is waited for, and since when.
    held: Option<(&'static str, Instant)>,
}

impl Sidecars {
    /// Pauses until the finalizers of the virtual PV are removed. `secured` says whether the real one is
    /// retained: only then csi-provisioner has nothing to delete.
    pub(super) async fn await_finalizers(
        &mut self,
        context: &Context<'_>,
        waiter: &mut Waiter<'_>,
        outer: &PersistentVolume,
        secured: bool,
    ) -> Result<(), TransferError> {
        let sidecars = [("csi-provisioner", PROVISIONERS), ("csi-attacher", ATTACHERS)];
        let held = sidecars.into_iter().find(|(_, one)| has_finalizer(outer, one));
        let Some((sidecar, finalizer)) = held else {
            let what = "waiting for the virtual PersistentVolume to be deleted";
            return waiter.wait_for(what, None).await;
        };
        let since = match self.held {
            Some((known, since)) if known == finalizer => since,
            _ => self.held.insert((finalizer, Instant::now())).1,
        };
        let is_over = since.elapsed() >= SIDECAR_TIMEOUT.min(context.timeout / 4);
        let retained = secured && reclaim_policy(outer) == "Retain";
        if !(is_over
            && retained
            && environment::attached(context.cluster, &outer.name_any())
                .await?
                .is_empty())
        {
            let what =
                format!("waiting for {sidecar} to remove its finalizer from the virtual PersistentVolume");
            return waiter.wait_for(&what, None).await;
        }
        (context.report)(&format!(
            "removing the finalizer of {sidecar} from the virtual PersistentVolume"
        ));
        let volumes = context.cluster.all::<PersistentVolume>();
        let off = volumes.set_finalizer(outer, finalizer, false);
        unless_conflict(crash::around(Step::ReleaseFinalizer, off).await)?;
        let written = format!("the PersistentVolume {}", outer.name_any());
        Ok(waiter.after_step(&finalizer, &written).await?)
    }
}
