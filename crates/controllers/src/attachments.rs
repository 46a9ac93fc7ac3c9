//! Removes attachments of twins whose virtual volume is attached no longer. The driver's attachment
//! exists only because Kubernetes attached the virtual volume; after a crash or a forced detach a
//! leftover one would keep the real volume on a node where it is not used.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::Instant};

use super::{Settings, watched::Watched};
use crate::{
    cluster::{
        ApiError, Cluster,
        slim::{Attachment, marked_volume},
    },
    rounds::Rounds,
    twin::{UnpublishError, detach_unneeded},
    volume::{DRIVER_NAME, Epoch, VolumeId, VolumeName},
};

/// How long to wait until one attachment is deleted.
const DETACH_TIMEOUT: Duration = Duration::from_secs(20);

/// The loop for unused attachments.
pub(super) struct Attachments<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    grace: Duration,
    since: HashMap<String, Instant>,
}

impl<'a> Attachments<'a> {
    pub(super) fn new(home: &'a Cluster, watched: &'a Watched, settings: &Settings) -> Self {
        Self {
            home,
            watched,
            grace: settings.grace,
            since: HashMap::new(),
        }
    }

    /// Volumes, and the nodes to which Kubernetes has attached them. Each epoch of a volume that moves
    /// has attachments of its own; `None` matches all epochs.
    fn needed(&self) -> HashSet<(VolumeName, Option<Epoch>, String)> {
        let volumes = &self.watched.volumes;
        let virtual_volumes = volumes.virtual_volumes();
        let of_users = virtual_volumes.iter().map(|volume| (&volume.name, volume.id()));
        let of_movers = volumes.of_movers();
        let of_movers = of_movers.iter().map(|volume| (&volume.name, volume.id.clone()));
        let ids: HashMap<&String, VolumeId> = of_users.chain(of_movers).collect();
        let attachments = self.watched.attachments.all();
        let of_virtual = attachments.iter().filter(|attachment| attachment.is_virtual());
        let needed = of_virtual.filter_map(|attachment| {
            let node = attachment.node.clone();
            match ids.get(&attachment.volume) {
                Some(id) => Some((id.name.clone(), Some(id.epoch), node)),
                // The PV may be deleted already; its name usually is the volume's.
                None => Some((VolumeName::parse(&attachment.volume)?, None, node)),
            }
        });
        needed.collect()
    }

    /// Removes an attachment if a live read confirms that it is unused. The attachment itself is read
    /// first: if Kubernetes attaches the volume afterwards, `ControllerPublishVolume` writes to the
    /// attachment, and the deletion of this version fails.
    async fn remove(&self, attachment: &Attachment) -> Result<(), ApiError> {
        let (volume, node) = (&attachment.volume, &attachment.node);
        let found = self.home.all::<VolumeAttachment>().get(&attachment.name).await?;
        let same = |found: &VolumeAttachment| {
            marked_volume(found.labels()).as_ref() == Some(volume) && found.spec.node_name == *node
        };
        let Some(found) = found.filter(same) else {
            return Ok(());
        };
        if self.is_needed_now(attachment).await? {
            return Ok(());
        }
        tracing::info!(%volume, node, "removing an unused attachment");
        match detach_unneeded(self.home, &found, Instant::now() + DETACH_TIMEOUT).await {
            Err(UnpublishError::Api(error)) => Err(error),
            Err(error) => {
                tracing::warn!(%volume, node, %error, "an unused attachment is not deleted yet");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn is_needed_now(&self, attachment: &Attachment) -> Result<bool, ApiError> {
        let id = VolumeId {
            cluster: self.home.id().clone(),
            name: attachment.volume.clone(),
            epoch: attachment.epoch,
        };
        let name = kubernetes_attachment_name(&id, &attachment.node);
        Ok(self.home.all::<VolumeAttachment>().get(&name).await?.is_some())
    }
}

/// The name that Kubernetes gives its attachment of a volume; kubelet relies on it too.
fn kubernetes_attachment_name(id: &VolumeId, node: &str) -> String {
    let digest = Sha256::digest(format!("{id}{DRIVER_NAME}{node}"));
    digest
        .iter()
        .fold("csi-".to_owned(), |name, byte| name + &format!("{byte:02x}"))
}

impl Rounds for Attachments<'_> {
    const NAME: &'static str = "attachments";
    const RESYNC: Duration = Duration::from_mins(1);

    fn grace(&self) -> Option<Duration> {
        Some(self.grace)
    }

    /// None: an attachment of a twin is created after that of its virtual volume, and removed before it,
    /// so it may be unused for a moment.
    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let needed = self.needed();
        let attachments = self.home.views().attachments.all();
        let unused: Vec<_> = attachments
            .iter()
            .filter(|it| {
                let is_needed = |epoch| needed.contains(&(it.volume.clone(), epoch, it.node.clone()));
                !is_needed(Some(it.epoch)) && !is_needed(None)
            })
            .collect();
        self.since
            .retain(|name, _| unused.iter().any(|it| it.name == *name));
        let mut outcome = Ok(());
        for attachment in unused {
            let since = self
                .since
                .entry(attachment.name.clone())
                .or_insert_with(Instant::now);
            if since.elapsed() >= self.grace {
                outcome = outcome.and(self.remove(attachment).await);
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cluster::testing::{Act, FakeApi, Fault},
        volume::mark,
    };

    const VOLUME: &str = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
    const TWIN_ATTACHMENT: &str = "/apis/storage.k8s.io/v1/volumeattachments/liqo-1";

    fn kubernetes_attachment_path() -> String {
        let id = format!("v1:home:{VOLUME}").parse().unwrap();
        format!(
            "/apis/storage.k8s.io/v1/volumeattachments/{}",
            kubernetes_attachment_name(&id, "n1")
        )
    }

    fn put_twin_attachment(api: &FakeApi) {
        let labels = json!({
            mark::MANAGED_BY: mark::MANAGED_BY_US,
            mark::HOME_CLUSTER: "home",
            mark::VOLUME: VOLUME,
        });
        api.put(TWIN_ATTACHMENT, json!({
            "metadata": {"labels": labels},
            "spec": {"attacher": "real.example", "nodeName": "n1", "source": {"persistentVolumeName": "real"}},
        }));
    }

    fn put_kubernetes_attachment(api: &FakeApi, node: &str) {
        api.put(&kubernetes_attachment_path(), json!({
            "spec": {"attacher": DRIVER_NAME, "nodeName": node, "source": {"persistentVolumeName": VOLUME}},
        }));
    }

    async fn round(api: &FakeApi, alone_for: Duration, meanwhile: impl Fn()) -> Result<(), ApiError> {
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let settings = Settings::for_test(Duration::from_mins(10));
        let mut attachments = Attachments::new(&home, &watched, &settings);
        attachments.round().await?;
        for since in attachments.since.values_mut() {
            *since -= alone_for;
        }
        meanwhile();
        attachments.round().await
    }

    const LONG: Duration = Duration::from_mins(11);

    #[tokio::test]
    async fn an_unused_attachment_is_removed_after_the_grace_period() {
        let api = FakeApi::start().await;
        put_twin_attachment(&api);
        round(&api, Duration::from_mins(9), || ()).await.unwrap();
        assert!(api.object(TWIN_ATTACHMENT).is_some());
        round(&api, LONG, || ()).await.unwrap();
        assert!(api.object(TWIN_ATTACHMENT).is_none());
    }

    #[tokio::test]
    async fn an_attachment_of_a_pod_stays() {
        let api = FakeApi::start().await;
        put_twin_attachment(&api);
        put_kubernetes_attachment(&api, "n1");
        round(&api, LONG, || ()).await.unwrap();
        assert!(api.object(TWIN_ATTACHMENT).is_some());
        put_kubernetes_attachment(&api, "n2");
        api.remove(&kubernetes_attachment_path());
        round(&api, LONG, || ()).await.unwrap();
        assert!(
            api.object(TWIN_ATTACHMENT).is_none(),
            "another node's does not count"
        );
    }

    #[tokio::test]
    async fn attachments_are_checked_for_each_epoch() {
        const VOLUMES: &str = "/api/v1/persistentvolumes";
        let second = format!("v2:home:{VOLUME}:1");
        for (of_mover, epoch, stays) in [(false, "1", true), (false, "2", false), (true, "1", true)] {
            let api = FakeApi::start().await;
            put_twin_attachment(&api);
            api.change(TWIN_ATTACHMENT, |attachment| {
                attachment["metadata"]["annotations"] = json!({mark::EPOCH: epoch});
            });
            let (name, labels) = if of_mover {
                (
                    "temporary",
                    json!({mark::MOVE: "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222"}),
                )
            } else {
                (VOLUME, json!({}))
            };
            let csi = json!({"driver": DRIVER_NAME, "volumeHandle": second});
            api.put(
                &format!("{VOLUMES}/{name}"),
                json!({"metadata": {"labels": labels}, "spec": {"csi": csi}}),
            );
            let of_kubernetes = kubernetes_attachment_name(&second.parse().unwrap(), "n1");
            api.put(
                &format!("/apis/storage.k8s.io/v1/volumeattachments/{of_kubernetes}"),
                json!({
                    "spec": {"attacher": DRIVER_NAME, "nodeName": "n1", "source": {"persistentVolumeName": name}},
                }),
            );
            round(&api, LONG, || ()).await.unwrap();
            assert_eq!(api.object(TWIN_ATTACHMENT).is_some(), stays, "{of_mover} {epoch}");
        }
    }

    #[tokio::test]
    async fn an_attachment_that_is_published_again_stays() {
        let api = FakeApi::start().await;
        put_twin_attachment(&api);
        let of_kubernetes = kubernetes_attachment_path();
        // Between the last read and the deletion.
        api.before("DELETE", TWIN_ATTACHMENT, move |store| {
            store.put(
                &of_kubernetes,
                json!({"spec": {"attacher": DRIVER_NAME, "nodeName": "n1", "source": {}}}),
            );
            let mut attachment = store.get(TWIN_ATTACHMENT).unwrap();
            attachment["metadata"]["annotations"][mark::CONFIRMED] = "1".into();
            store.put(TWIN_ATTACHMENT, attachment);
        });
        round(&api, LONG, || ()).await.unwrap();
        assert!(
            api.object(&kubernetes_attachment_path()).is_some(),
            "it was about to be deleted"
        );
        assert!(api.object(TWIN_ATTACHMENT).is_some());
    }

    #[tokio::test]
    async fn a_live_read_is_required_before_deletion() {
        let api = FakeApi::start().await;
        put_twin_attachment(&api);
        round(&api, LONG, || put_kubernetes_attachment(&api, "n1"))
            .await
            .unwrap();
        assert!(api.object(TWIN_ATTACHMENT).is_some());

        api.remove(&kubernetes_attachment_path());
        api.fault(Fault::new("GET", "volumeattachments/csi-", Act::Refuse(403)));
        assert!(round(&api, LONG, || ()).await.is_err());
        assert!(api.object(TWIN_ATTACHMENT).is_some());
    }
}
