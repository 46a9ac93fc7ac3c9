//! Reads which pods and nodes use a volume that is being moved: pods with the claim or, in a remote cluster,
//! with its twin; nodes to which it is attached, or where it is still mounted. The pods of movers are
//! excluded, and their nodes listed separately.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::ResourceExt;

use super::{GateError, MovedVolume, Place};
use crate::{
    cluster::{ApiError, Cluster, slim::has_ended},
    movers::{is_mover, name_of_claim_there},
    placement::{
        moving::{Live, NodeHealth, Side, UserNode, Users},
        transfer::wanted_replica,
    },
    twin::{
        Site,
        consumers::{health, node_of, pods, user, uses},
        reading,
    },
    volume::{DRIVER_NAME, mark},
};

/// The attachments of a cluster, by the name of their PV.
pub(super) struct Attachments(BTreeMap<String, Attached>);

/// The nodes to which a volume is attached, each with the error of the last attempt to detach it.
type Attached = BTreeMap<String, Option<String>>;

impl Attachments {
    async fn read(cluster: &Cluster) -> Result<Self, ApiError> {
        let named = |one: VolumeAttachment| {
            let error = one.status.and_then(|status| status.detach_error?.message);
            Some((one.spec.source.persistent_volume_name?, one.spec.node_name, error))
        };
        let found = cluster.all::<VolumeAttachment>().pick(None, None, named).await?;
        let mut nodes: BTreeMap<String, Attached> = BTreeMap::new();
        for (volume, node, error) in found {
            nodes.entry(volume).or_default().insert(node, error);
        }
        Ok(Self(nodes))
    }

    pub(super) fn nodes_of(&self, volume: &str) -> Vec<String> {
        self.of(volume).into_keys().collect()
    }

    fn of(&self, volume: &str) -> Attached {
        self.0.get(volume).cloned().unwrap_or_default()
    }
}

/// How the nodes of a cluster show that they have the volume.
#[derive(Default)]
struct Traces {
    attached: Attached,
    /// The name of the volume in `volumesInUse`.
    in_use: Option<String>,
}

impl MovedVolume {
    pub(super) async fn home_attachments(&self) -> Result<Attachments, GateError> {
        Ok(Attachments::read(&self.home).await?)
    }

    /// Why the driver may not detect writers at a remote source: it finds only pods that exist while it lists
    /// them.
    #[must_use]
    pub fn unwatched(&self) -> Option<String> {
        let Place::Site(site) = &self.source.place else {
            return None;
        };
        let rights = site.cluster().rights();
        let is_seen = rights.volumes && rights.volume_changes && rights.nodes;
        (site.remote_cluster().is_some() && !is_seen).then(|| {
            format!(
                "what pods of the cluster {} write during the last pass may be lost: the driver has no rights to read and \
                 change PersistentVolumes and to watch nodes there, and detects only pods that exist while it lists them",
                site.cluster_name()
            )
        })
    }

    /// All users. Those in the cluster of a remote source are read there: only its pods, where the driver may
    /// not read attachments or nodes.
    pub(super) async fn users(
        &self,
        attachments: &Attachments,
        twin: Option<&PersistentVolumeClaim>,
        real: Option<&PersistentVolume>,
    ) -> Result<Live<Users>, GateError> {
        let mut users = self.users_at_home(attachments, twin).await?;
        let site = match &self.source.place {
            Place::Unreachable(why) => return Ok(Live::Unknown(why.clone())),
            Place::Site(site) if site.remote_cluster().is_some() => site,
            Place::Site(_) | Place::Gone => return Ok(Live::Known(users)),
        };
        match self.users_there(site, real).await {
            Ok(there) => {
                users.pods.extend(there.pods);
                users.nodes.extend(there.nodes);
                users.mover_nodes.extend(there.mover_nodes);
                Ok(Live::Known(users))
            }
            Err(error) => Ok(Live::Unknown(error.to_string())),
        }
    }

    /// The pods and nodes of a remote source. The pods are read last: a mover that was scheduled after the nodes
    /// were read is found by its pod. Other pods may also use the claim of the mover.
    async fn users_there(&self, site: &Site, real: Option<&PersistentVolume>) -> Result<Users, ApiError> {
        let cluster = site.cluster();
        let found = match real.filter(|_| cluster.rights().nodes) {
            Some(real) => nodes(cluster, &traces_there(cluster, real).await?).await?,
            None => Vec::new(),
        };
        let claims = [site.name().to_owned(), name_of_claim_there(self)];
        let is_user = |pod: &Pod| claims.iter().any(|claim| uses(pod, claim)) && !has_ended(pod);
        let all = cluster.within::<Pod>(site.namespace()).find(is_user).await?;
        let (movers, users): (Vec<Pod>, Vec<Pod>) =
            all.into_iter().partition(|pod| is_mover(self, Side::Source, pod));
        let on = |pods: &[Pod]| pods.iter().filter_map(node_of).collect::<BTreeSet<String>>();
        let (of_movers, of_users) = (on(&movers), on(&users));
        let is_movers = |node: &UserNode| of_movers.contains(&node.name) && !of_users.contains(&node.name);
        let (mover_nodes, nodes) = found.into_iter().partition(is_movers);
        let user = |pod| user(pod, Some(cluster.id().as_str()));
        Ok(Users {
            pods: users.iter().map(user).collect(),
            nodes,
            mover_nodes,
            deletes_claim: None,
        })
    }

    /// What else uses the volume at a remote target, and may have written to it: pods with the twin and, with the right to
    /// list attachments, nodes without the mover to which it is attached. At home the driver gives it to no other pod.
    pub(crate) async fn users_of_target(&self) -> Result<Vec<String>, ApiError> {
        let site = match &self.target.place {
            Place::Site(site) if site.remote_cluster().is_some() => site,
            _ => return Ok(Vec::new()),
        };
        let cluster = site.cluster();
        let all = pods(cluster, site.namespace(), site.name()).await?;
        let (movers, users): (Vec<Pod>, Vec<Pod>) =
            all.into_iter().partition(|pod| is_mover(self, Side::Target, pod));
        let twin = site.twins().get(site.name()).await?;
        let nodes = match twin.as_ref().and_then(reading::volume_name) {
            Some(real) => attached(cluster, real).await?,
            None => Attached::new(),
        };
        let of_users = users
            .iter()
            .map(|pod| user(pod, Some(cluster.id().as_str())).name);
        let without_mover = nodes
            .into_keys()
            .filter(|node| movers.iter().all(|pod| node_of(pod).as_ref() != Some(node)));
        let of_nodes = without_mover.map(|node| format!("the node {node}"));
        Ok(of_users.chain(of_nodes).collect())
    }

    async fn users_at_home(
        &self,
        attachments: &Attachments,
        twin: Option<&PersistentVolumeClaim>,
    ) -> Result<Users, GateError> {
        let name = &self.claim.name;
        let (pods, sets, of_movers) = tokio::try_join!(
            pods(&self.home, &name.namespace, &name.name),
            self.deleting_set(),
            self.mover_volumes(Side::Source)
        )?;
        let outer = attachments.of(self.volume().as_str());
        let real = match &self.source.place {
            Place::Site(site) if site.remote_cluster().is_none() => twin.and_then(reading::volume_name),
            _ => None,
        };
        let nested = real.map(|real| attachments.of(real)).unwrap_or_default();
        let mut movers: Attached = of_movers
            .iter()
            .flat_map(|volume| attachments.of(volume))
            .collect();
        movers.retain(|node, _| !outer.contains_key(node));
        let all = nested.into_iter().chain(movers.clone()).chain(outer);
        let traces = Traces {
            attached: all.collect(),
            in_use: Some(in_use_name(DRIVER_NAME, &self.source.id.to_string())),
        };
        let found = nodes(&self.home, &traces).await?;
        let (mover_nodes, nodes) = found
            .into_iter()
            .partition(|node| movers.contains_key(&node.name));
        Ok(Users {
            pods: pods.into_iter().map(|pod| user(&pod, None)).collect(),
            nodes,
            mover_nodes,
            deletes_claim: sets,
        })
    }

    /// The names of the PVs by which movers at home mount this side, also those of earlier moves.
    pub(crate) async fn mover_volumes(&self, side: Side) -> Result<Vec<String>, ApiError> {
        let handle = match side {
            Side::Source => self.source.id.to_string(),
            Side::Target => self.target.id.to_string(),
        };
        let name = |volume: PersistentVolume| {
            let is_same = volume.spec?.csi?.volume_handle == handle;
            volume.metadata.name.filter(|_| is_same)
        };
        let of_moves = format!("{},{}={}", mark::MOVE, mark::VOLUME, self.volume());
        self.volumes().pick(Some(&of_moves), None, name).await
    }

    /// The `StatefulSet` that deletes the claim when it is scaled down.
    async fn deleting_set(&self) -> Result<Option<String>, ApiError> {
        let sets = self.home.within::<StatefulSet>(&self.claim.name.namespace);
        let deletes = |set: StatefulSet| deletes(&set, &self.claim.name.name).then(|| set.name_any());
        let found = sets.pick(None, None, deletes).await?;
        Ok(found.first().map(|name| format!("the StatefulSet {name}")))
    }
}

fn deletes(set: &StatefulSet, claim: &str) -> bool {
    let Some(spec) = &set.spec else { return false };
    let policy = spec.persistent_volume_claim_retention_policy.as_ref();
    let templates: Vec<String> = spec
        .volume_claim_templates
        .iter()
        .flatten()
        .map(ResourceExt::name_any)
        .collect();
    let is_its = wanted_replica(claim, &set.name_any(), &templates, 0, u64::MAX).is_some();
    is_its && policy.is_some_and(|policy| policy.when_scaled.as_deref() == Some("Delete"))
}

async fn traces_there(cluster: &Cluster, real: &PersistentVolume) -> Result<Traces, ApiError> {
    let csi = real.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    Ok(Traces {
        attached: attached(cluster, &real.name_any()).await?,
        in_use: csi.map(|csi| in_use_name(&csi.driver, &csi.volume_handle)),
    })
}

/// The nodes to which a PV is attached in a remote cluster; none without the right to read attachments.
async fn attached(cluster: &Cluster, volume: &str) -> Result<Attached, ApiError> {
    match Attachments::read(cluster).await {
        Ok(attachments) => Ok(attachments.of(volume)),
        Err(error) if error.is_forbidden() => Ok(Attached::new()),
        Err(error) => Err(error),
    }
}

/// How the kubelet names a CSI volume.
fn in_use_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The nodes that have the volume. A deleted node that still has an attachment counts as not ready.
async fn nodes(cluster: &Cluster, traces: &Traces) -> Result<Vec<UserNode>, ApiError> {
    let seen = |node: Node| {
        let name = node.name_any();
        let (attached, in_use) = (
            traces.attached.contains_key(&name),
            uses_volume(&node, traces.in_use.as_deref()),
        );
        (attached || in_use).then(|| UserNode {
            attached,
            detach_error: traces.attached.get(&name).cloned().flatten(),
            in_use,
            health: health(&node),
            name,
        })
    };
    let mut found = cluster.all::<Node>().pick(None, None, seen).await?;
    let gone: Vec<UserNode> = traces
        .attached
        .iter()
        .filter(|(name, _)| found.iter().all(|node| node.name != **name))
        .map(|(name, error)| UserNode {
            name: name.clone(),
            attached: true,
            detach_error: error.clone(),
            in_use: false,
            health: NodeHealth::NotReady,
        })
        .collect();
    found.extend(gone);
    Ok(found)
}

fn uses_volume(node: &Node, wanted: Option<&str>) -> bool {
    let in_use = node
        .status
        .iter()
        .flat_map(|status| status.volumes_in_use.iter().flatten());
    let mut in_use = in_use.map(String::as_str);
    wanted.is_some_and(|wanted| in_use.any(|one| one == wanted))
}
