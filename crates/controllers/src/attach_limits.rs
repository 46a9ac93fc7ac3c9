//! Writes to the `CSINode` of each real node how many volumes of this driver the scheduler may place there,
//! as the attach limits of the real drivers allow: the scheduler does not count a twin against the limit of
//! its real driver. The node plugin repeats the number when kubelet asks for it.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::storage::v1::{CSINode, VolumeNodeResources};
use kube::ResourceExt;
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::{
    Settings,
    watched::{NodeAttachment, Watched},
};
use crate::{
    cluster::{
        ApiError, Cluster,
        slim::CsiNode,
        view::{Changed, Feed},
    },
    observe::crash::{self, Step},
    placement::{AttachedVolume, Class, attach_limit},
    rounds::{Rounds, each},
    topology::CLUSTER_KEY,
    twin::real_drivers,
    volume::DRIVER_NAME,
};

/// The loop for attach limits.
pub(super) struct AttachLimits<'a> {
    home: &'a Cluster,
    watched: &'a Watched,
    allowed: &'a BTreeSet<String>,
    attachments: Feed<NodeAttachment>,
    csi_nodes: Feed<CsiNode>,
    classes: Feed<Class>,
    /// The real drivers that may have twins. Drivers without twins are removed when all nodes are checked.
    in_use: BTreeSet<String>,
    /// When to check all nodes again.
    all: Instant,
    /// Whether the API server has refused a change, as those before Kubernetes 1.35 do.
    is_refused: bool,
}

impl<'a> AttachLimits<'a> {
    pub(super) fn new(home: &'a Cluster, watched: &'a Watched, settings: &'a Settings) -> Self {
        let views = home.views();
        Self {
            home,
            watched,
            allowed: &settings.allowed_classes,
            attachments: watched.attachments.feed(),
            csi_nodes: views.csi_nodes.feed(),
            classes: views.classes.feed(),
            in_use: BTreeSet::new(),
            all: Instant::now(),
            is_refused: false,
        }
    }

    /// The nodes to check: those with changes; or all of them after a new list, after a change that
    /// affects all, and at every resync.
    fn nodes(&mut self) -> BTreeSet<String> {
        let changes = (
            self.attachments.take(),
            self.csi_nodes.take(),
            self.classes.take(),
        );
        if let (Changed::These(attachments), Changed::These(csi_nodes), Changed::These(classes)) = changes
            && classes.is_empty()
            && self.all > Instant::now()
            && attachments
                .iter()
                .all(|it| !it.of_twin || self.in_use.contains(&it.driver))
        {
            let of_attachments = attachments.iter().map(|it| it.node.clone());
            return of_attachments
                .chain(csi_nodes.iter().map(|it| it.node.clone()))
                .collect();
        }
        self.all = Instant::now() + Self::RESYNC;
        self.in_use = real_drivers(self.home, self.allowed);
        let attachments = self.watched.attachments.all();
        let of_twins = attachments.iter().filter(|attachment| attachment.of_twin);
        self.in_use
            .extend(of_twins.map(|attachment| attachment.driver.clone()));
        let nodes = self.home.views().csi_nodes.all();
        nodes.iter().map(|it| it.node.clone()).collect()
    }

    /// The new limit of a node, if it has to change. Virtual nodes have no limit.
    fn change(&self, name: &str) -> Option<NewLimit> {
        let node = self.home.views().csi_nodes.get(name)?;
        let keys = node.our_keys.as_deref()?;
        if keys == [CLUSTER_KEY] {
            return None;
        }
        let attachments = self.watched.attachments.of_topic(name);
        let on_node: Vec<_> = attachments.iter().filter_map(|it| attached_volume(it)).collect();
        let limit = attach_limit(&self.in_use, &node.limits, &on_node);
        (node.limits.get(DRIVER_NAME) != limit.as_ref()).then_some(NewLimit(limit))
    }

    async fn set(&self, node: &str, limit: Option<u32>) -> Result<(), ApiError> {
        let csi_nodes = self.home.all::<CSINode>();
        let Some(mut found) = csi_nodes.get(node).await? else {
            return Ok(());
        };
        let version = found.resource_version();
        let entries = found.spec.drivers.iter_mut();
        let Some(entry) = entries.into_iter().find(|entry| entry.name == DRIVER_NAME) else {
            return Ok(());
        };
        let wanted = limit.map(|count| VolumeNodeResources {
            count: Some(count.try_into().unwrap_or(i32::MAX)),
        });
        if entry.allocatable == wanted {
            return Ok(());
        }
        entry.allocatable = wanted;
        let patch = json!({
            "metadata": {"resourceVersion": version},
            "spec": {"drivers": found.spec.drivers},
        });
        match crash::around(Step::CsiNodeWrite, csi_nodes.merge(node, &patch)).await {
            // A driver has registered in the meantime: the view shows that, and the next round decides again.
            Err(error) if error.is_conflict() => Ok(()),
            written => {
                written?;
                tracing::info!(
                    node,
                    limit,
                    "set the number of volumes that the scheduler may place on a node"
                );
                Ok(())
            }
        }
    }
}

/// The new limit of a node; `None` for no limit.
struct NewLimit(Option<u32>);

/// What an attachment means for the limit of its node.
fn attached_volume(attachment: &NodeAttachment) -> Option<AttachedVolume> {
    if attachment.is_virtual() {
        let behind = attachment.behind.clone();
        return attachment.attached.then_some(AttachedVolume::Virtual { behind });
    }
    Some(AttachedVolume::Real {
        driver: attachment.driver.clone(),
        of_twin: attachment.of_twin,
        attached: attachment.attached,
    })
}

impl Rounds for AttachLimits<'_> {
    const NAME: &'static str = "attach-limits";
    const RESYNC: Duration = Duration::from_mins(1);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let views = self.home.views();
        vec![
            self.watched.attachments.version(),
            views.csi_nodes.version(),
            views.classes.version(),
        ]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let views = self.home.views();
        tokio::join!(views.csi_nodes.complete(), views.classes.complete());
        if self.is_refused {
            return Ok(());
        }
        let nodes = self.nodes();
        let outcome = each(&nodes, async |node| match self.change(node) {
            Some(NewLimit(limit)) => self.set(node, limit).await,
            None => Ok(()),
        })
        .await;
        if outcome.is_err() {
            self.all = Instant::now();
        }
        match outcome {
            Err(error) if error.is_refusal() => {
                tracing::warn!(
                    %error,
                    "the API server does not let the attach limit of this driver change (Kubernetes 1.35 does): the scheduler does \
                     not know the attach limits of the real drivers, unless node.maxVolumes of the chart is set"
                );
                self.is_refused = true;
                Ok(())
            }
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        cluster::testing::{Act, FakeApi, Fault},
        volume::mark,
    };

    const NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n1";
    const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

    fn put_node(api: &FakeApi, keys: &[&str]) {
        api.put(
            NODE,
            json!({"spec": {"drivers": [
                {"name": "disk.example", "nodeID": "i-1", "topologyKeys": null, "allocatable": {"count": 2}},
                {"name": DRIVER_NAME, "nodeID": "n1", "topologyKeys": keys},
            ]}}),
        );
    }

    fn put_classes(api: &FakeApi, real: &str) {
        let parameters = json!({"realStorageClass": "real"});
        for (name, provisioner, parameters) in [("liqo", DRIVER_NAME, parameters), ("real", real, json!({}))]
        {
            api.put(
                &format!("/apis/storage.k8s.io/v1/storageclasses/{name}"),
                json!({"provisioner": provisioner, "parameters": parameters, "volumeBindingMode": "WaitForFirstConsumer"}),
            );
        }
    }

    fn put_attachment(api: &FakeApi, name: &str, driver: &str, of_twin: bool) {
        let labels = json!({
            mark::MANAGED_BY: mark::MANAGED_BY_US,
            mark::HOME_CLUSTER: "home",
            mark::VOLUME: "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111",
        });
        api.put(
            &format!("{ATTACHMENTS}/{name}"),
            json!({
                "metadata": {"labels": if of_twin { labels } else { json!({}) }},
                "spec": {"attacher": driver, "nodeName": "n1", "source": {"persistentVolumeName": name}},
                "status": {"attached": true},
            }),
        );
    }

    async fn limit_after_a_round(api: &FakeApi) -> Value {
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        watched.complete().await;
        let settings = Settings::for_test(Duration::ZERO);
        let mut limits = AttachLimits::new(&home, &watched, &settings);
        limits.round().await.unwrap();
        let written = api.writes();
        limits.round().await.unwrap();
        assert_eq!(api.writes(), written, "a second round writes nothing");
        let node = api.object(NODE).unwrap();
        assert_eq!(node["spec"]["drivers"][0]["allocatable"]["count"], 2);
        node["spec"]["drivers"][1]["allocatable"]["count"].clone()
    }

    #[tokio::test]
    async fn the_scheduler_learns_the_limit_of_the_real_driver() {
        let api = FakeApi::start().await;
        put_node(&api, &[CLUSTER_KEY, "storage.liqo.io/node"]);
        put_classes(&api, "disk.example");
        assert_eq!(limit_after_a_round(&api).await, 2);
        put_attachment(&api, "of-others", "disk.example", false);
        assert_eq!(limit_after_a_round(&api).await, 1);
        put_classes(&api, "nfs.example");
        assert_eq!(limit_after_a_round(&api).await, Value::Null);
    }

    #[tokio::test]
    async fn the_attach_limit_of_a_node_stops_new_volumes_when_its_driver_is_full() {
        let api = FakeApi::start().await;
        put_node(&api, &[CLUSTER_KEY, "storage.liqo.io/node"]);
        put_classes(&api, "nfs.example");
        put_attachment(&api, "one", "disk.example", true);
        assert_eq!(limit_after_a_round(&api).await, Value::Null);
        put_attachment(&api, "two", "disk.example", true);
        put_attachment(&api, "virtual", DRIVER_NAME, false);
        assert_eq!(limit_after_a_round(&api).await, 1);
    }

    #[tokio::test]
    async fn a_change_is_checked_on_its_node_unless_it_concerns_all() {
        let api = FakeApi::start().await;
        put_node(&api, &[CLUSTER_KEY, "storage.liqo.io/node"]);
        api.put(&NODE.replace("n1", "n2"), json!({"spec": {"drivers": []}}));
        let home = api.cluster().await;
        let watched = Watched::start(&home);
        let views = home.views();
        tokio::join!(
            watched.complete(),
            views.csi_nodes.complete(),
            views.classes.complete()
        );
        let settings = Settings::for_test(Duration::ZERO);
        let mut limits = AttachLimits::new(&home, &watched, &settings);
        assert_eq!(limits.nodes().len(), 2);
        assert!(limits.nodes().is_empty());
        let mut changes = watched.attachments.version();
        for (name, of_twin, checked) in [
            ("of-others", false, 1),
            ("of-a-new-driver", true, 2),
            ("of-a-known-driver", true, 1),
        ] {
            changes.mark_unchanged();
            put_attachment(&api, name, "disk.example", of_twin);
            let seen = tokio::time::timeout(Duration::from_mins(1), changes.changed()).await;
            seen.expect("the view never showed the attachment").unwrap();
            assert_eq!(limits.nodes().len(), checked, "{name}");
        }
    }

    #[tokio::test]
    async fn virtual_nodes_have_the_limits_of_their_cluster() {
        let api = FakeApi::start().await;
        put_node(&api, &[CLUSTER_KEY]);
        put_classes(&api, "disk.example");
        assert_eq!(limit_after_a_round(&api).await, Value::Null);
    }

    #[tokio::test]
    async fn an_api_server_without_the_field_fails_no_round() {
        let api = FakeApi::start().await;
        put_node(&api, &[CLUSTER_KEY, "storage.liqo.io/node"]);
        put_classes(&api, "disk.example");
        api.fault(Fault::new("PATCH", NODE, Act::Refuse(422)));
        assert_eq!(limit_after_a_round(&api).await, Value::Null);
    }
}
