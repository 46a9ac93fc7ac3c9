//! Unstages volumes that kubelet forgot. Kubelet lets a pod terminate once the pod's volumes are
//! unpublished, and after a restart it finds volumes by the folders of their pods. So it never unstages a
//! volume that it had not unstaged when it died in between
//! ([kubernetes#121937](https://github.com/kubernetes/kubernetes/issues/121937)). Such a volume would
//! stay mounted here while it is attached to another node, and could never be deleted. It is unstaged
//! once kubelet cannot know it any more: it is published nowhere, no pod has a folder for it, and there
//! was no call for it for a while.
//!
//! Kubelet also forgets the mount of a single pod, if a publish fails first after the mount (in the
//! expansion) and then before it (`markVolumeErrorState`). It then calls `NodeUnstageVolume` for a
//! published volume. If it makes no other calls for that volume for as long, the volume is unpublished.
//! If the target is a bind of a staged mount, kubelet notices that itself and never calls; only a restart
//! of kubelet helps there.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::join_all;
use serde::Deserialize;
use tokio::{task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    error::VolumeError,
    in_flight::Guard,
    state::{Record, State, StateError},
    volumes::{QUICK_WORK, UnstageError, Volumes},
};

const INTERVAL: Duration = Duration::from_secs(20);

/// Finds volumes that are staged, but that kubelet has forgotten.
pub struct Forgotten {
    volumes: Volumes,
    kubelet_root: PathBuf,
}

impl Forgotten {
    #[must_use]
    pub fn new(volumes: Volumes, kubelet_root: PathBuf) -> Self {
        Self {
            volumes,
            kubelet_root,
        }
    }

    /// Runs until `stop`. Cancelling it at any point is like a crash.
    pub async fn run(self, stop: CancellationToken) {
        let checks = async {
            loop {
                sleep(INTERVAL).await;
                Box::pin(self.check()).await;
            }
        };
        stop.run_until_cancelled(checks).await;
    }

    /// Checks all records once.
    pub(super) async fn check(&self) {
        let (state, root) = (self.volumes.state.clone(), self.kubelet_root.clone());
        let after = self.volumes.forgotten_after;
        // The task is cancelled only when the process ends.
        let Ok(found) = spawn_blocking(move || find_forgotten(&state, &root, after)).await else {
            return;
        };
        match found {
            Ok(found) => {
                join_all(found.iter().map(|id| self.release(id))).await;
            }
            Err(error) => tracing::warn!(%error, "cannot find out which volumes kubelet forgot"),
        }
    }

    async fn release(&self, volume_id: &str) {
        match self.unstage(volume_id).await {
            Ok(true) => tracing::warn!(volume = volume_id, "unstaged a volume that kubelet forgot"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(volume = volume_id, %error, "a volume that kubelet forgot cannot be unstaged");
            }
        }
    }

    /// False if there was a call for the volume in the meantime.
    async fn unstage(&self, volume_id: &str) -> Result<bool, UnstageError> {
        let volumes = &self.volumes;
        let Ok(guard) = volumes.in_flight.enter(volume_id) else {
            return Ok(false);
        };
        let (state, id, after) = (
            volumes.state.clone(),
            volume_id.to_owned(),
            volumes.forgotten_after,
        );
        let what = format!("looking at the record of volume {volume_id}");
        let idle = move || {
            let idle = state.volume_without_calls(&id, after).filter(is_idle);
            // Counts as a call, so that a failure is followed by a pause as well.
            idle.inspect(|_| state.record_call(&id))
        };
        let idle = guard.block(what, QUICK_WORK, idle).await;
        let Some(record) = idle.map_err(VolumeError::from)? else {
            return Ok(false);
        };
        volumes.unstage_locked(&guard, record).await.map(|()| true)
    }
}

impl Volumes {
    /// Unpublishes a volume from its pods, if kubelet has called only `NodeUnstageVolume` for so long
    /// that it must have forgotten them.
    pub(super) async fn unpublish_forgotten(
        &self,
        guard: &Guard,
        record: &mut Record,
    ) -> Result<(), VolumeError> {
        if !self.refused.has_lasted(&record.volume_id, self.forgotten_after) {
            return Ok(());
        }
        for target in record.targets.clone().into_keys() {
            self.unpublish_locked(guard, record, &target).await?;
            tracing::warn!(
                volume = record.volume_id,
                ?target,
                "unpublished a volume that kubelet forgot"
            );
        }
        Ok(())
    }
}

fn find_forgotten(
    state: &State,
    kubelet_root: &Path,
    after: Duration,
) -> Result<Vec<String>, ForgottenError> {
    let mut idle = state.without_calls(after)?;
    idle.retain(is_idle);
    if !idle.is_empty() {
        let known = volumes_of_pods(kubelet_root).map_err(ForgottenError::Pods)?;
        idle.retain(|record| {
            !known.contains(&record.volume_id) && !known.contains(name_in(&record.volume_id))
        });
    }
    Ok(idle.into_iter().map(|record| record.volume_id).collect())
}

/// Whether the volume is published nowhere.
fn is_idle(record: &Record) -> bool {
    record.targets.is_empty()
}

/// The last part of a volume id, which usually is also the name of its PV.
fn name_in(volume_id: &str) -> &str {
    volume_id.rsplit(':').next().unwrap_or(volume_id)
}

/// Ids and names of all volumes for which a pod has a folder, by which kubelet finds them after a
/// restart.
fn volumes_of_pods(kubelet_root: &Path) -> io::Result<HashSet<String>> {
    let staged_devices = kubelet_root.join("plugins/kubernetes.io/csi/volumeDevices");
    let mut known = HashSet::new();
    for pod in folders(&kubelet_root.join("pods"))? {
        for volume in folders(&pod.join("volumes/kubernetes.io~csi"))? {
            known.extend(volume_in(&volume));
            known.extend(last_name(&volume));
        }
        for device in folders(&pod.join("volumeDevices/kubernetes.io~csi"))? {
            if let Some(name) = last_name(&device) {
                known.extend(volume_in(&staged_devices.join(&name).join("data")));
                known.insert(name);
            }
        }
    }
    Ok(known)
}

fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn last_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// The volume id that kubelet wrote into this folder.
fn volume_in(folder: &Path) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct VolumeData {
        volume_handle: String,
    }
    let text = fs::read(folder.join("vol_data.json")).ok()?;
    let data: VolumeData = serde_json::from_slice(&text).ok()?;
    Some(data.volume_handle)
}

/// Why the volumes that kubelet forgot cannot be determined.
#[derive(Debug, thiserror::Error)]
enum ForgottenError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("reading the folders of pods: {0}")]
    Pods(io::Error),
}
