//! Observes the helpers of one side: whether they are complete, what is missing, what is being deleted. Pods
//! of a move are never changed but replaced, in two steps: the old pod is deleted before the new one is
//! created.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Taint},
    storage::v1::VolumeAttachment,
};
use kube::{Resource, ResourceExt};

use super::{
    ClusterHelpers, GateError, HelperSettings, MoveRequest, MovedVolume, certificates,
    names::{COMPONENT, Names, Role, is_mover},
    pod::{Dialling, MoverPod},
    shadow::{PodObject, SecretOwner, ShadowPod, shadow_uid},
    volume,
};
use crate::{
    api::volume_move::Route,
    cluster::{ApiError, Cluster, slim::has_ended},
    gate::{MovedSide, Place, ReadsOn},
    placement::moving::{Helpers, Live, NodeHealth, Side},
    twin::{
        consumers::{health, pods},
        reading::phase,
    },
    volume::{AccessMode, mark, moving::is_gated},
};

/// How long to wait before a mover that exited is replaced: it may exit again for the same reason.
const PAUSE_SECONDS: i64 = 10;
/// Prefix of the finalizers with which csi-attacher keeps a PV until it is detached.
const ATTACHER: &str = "external-attacher/";
/// The driver that creates the PV of a claim, as kube-controller-manager writes it.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Drivers that mount the device again for each pod, and change the mode of its root then. A read-only mount fails, in any
/// case while the device is mounted writable. At home the node plugin requests a writable mount from them.
const NEVER_READ_ONLY: [&str; 2] = ["topolvm.io", "topolvm.cybozu.com"];

/// One side of a claim's move, and the objects that exist there.
pub(super) struct MoverSide<'a> {
    pub(super) moved: &'a MovedVolume,
    pub(super) side: Side,
    /// The cluster of its mover; `None` if that is no longer declared.
    pub(super) cluster: Option<&'a Cluster>,
    /// Whether this is the home cluster.
    pub(super) is_home: bool,
    pub(super) namespace: &'a str,
    /// The claim that its mover mounts.
    pub(super) claim_name: String,
    pub(super) ours: &'a str,
    /// The name of the home cluster in Liqo there, if its mover is a `ShadowPod`.
    pub(super) origin: Option<&'a str>,
    pub(super) shadows: Vec<ShadowPod>,
    pub(super) movers: Vec<Pod>,
    pub(super) claim: Option<PersistentVolumeClaim>,
    pub(super) volume: Option<PersistentVolume>,
    pub(super) is_attached: bool,
    pub(super) relays: Vec<Pod>,
    pub(super) certificates: Option<Secret>,
    /// The nodes of the source's pods, if a mover can use the volume only there.
    pub(super) nodes: Vec<String>,
    /// The node where the source was read last, if the mover may run on any node.
    pub(super) before: Option<PreviousNode>,
    /// The age at which its certificates are replaced.
    pub(super) renewal: Duration,
    /// The size in bytes of a volume of mode Block.
    pub(super) device: Option<u64>,
    /// Whether the driver of a remote source cannot mount it read-only. Only read while there is no mover.
    pub(super) is_never_read_only: bool,
    /// The `SELinux` level of the source's pods, if they name one and the same.
    pub(super) level: Option<String>,
}

/// The node where a source was read.
pub(super) struct PreviousNode {
    pub(super) node: String,
    pub(super) taints: Vec<Taint>,
}

/// How long helpers are not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Pods are created again in this move, and use the same PV.
    Again,
    /// The move does not need them any more.
    End,
}

pub(super) enum PodState<'p> {
    Missing,
    /// The pod has to be replaced.
    Outdated(PodObject<'p>),
    /// The Secret that it waits for may not exist.
    MissingSecret(SecretOwner),
    /// Not running yet, for this reason.
    Waiting(String),
    Running,
}

impl<'a> MoverSide<'a> {
    /// Observes a side; at home, unreadable objects are an error. `outer` is needed unless the side is
    /// removed.
    pub(super) async fn find(
        moved: &'a MovedVolume,
        side: Side,
        settings: &'a HelperSettings,
        outer: Option<&PersistentVolume>,
    ) -> Result<Live<Self>, GateError> {
        let place = match side {
            Side::Source => &moved.source.place,
            Side::Target => &moved.target.place,
        };
        let names = Names::of(moved);
        let ours = settings.namespace.as_str();
        let mut side_objects = Self {
            moved,
            side,
            cluster: None,
            is_home: false,
            namespace: ours,
            claim_name: names.of_role(Role::Mover(side)),
            ours,
            origin: None,
            shadows: Vec::new(),
            movers: Vec::new(),
            claim: None,
            volume: None,
            is_attached: false,
            relays: Vec::new(),
            certificates: None,
            nodes: Vec::new(),
            before: None,
            renewal: certificates::renewal(outer.is_some_and(|outer| is_gated(outer.annotations()))),
            device: outer.and_then(volume::device),
            is_never_read_only: false,
            level: None,
        };
        match place {
            Place::Unreachable(why) => return Ok(Live::Unknown(why.clone())),
            Place::Gone => {}
            Place::Site(twin) => {
                side_objects.cluster = Some(twin.cluster());
                side_objects.is_home = twin.remote_cluster().is_none();
                if let Some(remote) = twin.remote_cluster() {
                    side_objects.origin = remote.shadow_pods_of.as_deref();
                    side_objects.namespace = twin.namespace();
                    twin.name().clone_into(&mut side_objects.claim_name);
                }
            }
        }
        side_objects.read_home(&names.selector(side)).await?;
        if let (false, Some(cluster)) = (side_objects.is_home, side_objects.cluster) {
            // Read before the pods: a pod is created only after its ShadowPod.
            if let Err(error) = side_objects.read_remote(cluster, &names.selector(side)).await {
                return Ok(Live::Unknown(error.to_string()));
            }
        }
        match side_objects.users(outer).await {
            Ok(users) => {
                side_objects.nodes = nodes_of(&users);
                side_objects.level = level_of(&users);
            }
            Err(error) => return Ok(Live::Unknown(error.to_string())),
        }
        if let (Side::Source, true, Some(node)) = (side, side_objects.nodes.is_empty(), &moved.mover_node) {
            let spec = match side_objects.node(node).await {
                Live::Known(found) => found.and_then(|found| found.spec),
                Live::Unknown(_) => None,
            };
            side_objects.before = Some(PreviousNode {
                node: node.clone(),
                taints: spec.and_then(|spec| spec.taints).unwrap_or_default(),
            });
        }
        Ok(Live::Known(side_objects))
    }

    async fn read_remote(&mut self, cluster: &Cluster, ours: &str) -> Result<(), ApiError> {
        if self.origin.is_some() {
            self.shadows = cluster.within(self.namespace).list(Some(ours)).await?;
        }
        self.movers = cluster.within(self.namespace).list(Some(ours)).await?;
        if self.side == Side::Source {
            let claims = cluster.within::<PersistentVolumeClaim>(self.namespace);
            if self.movers.is_empty() && self.shadows.is_empty() {
                let twin = claims.get(&self.claim_name).await?;
                let driver = twin.as_ref().and_then(|twin| twin.annotations().get(PROVISIONER));
                self.is_never_read_only =
                    driver.is_some_and(|driver| NEVER_READ_ONLY.contains(&driver.as_str()));
            }
            let name = volume::name_of_claim_there(self.moved);
            let found = claims.get(&name).await?;
            let is_usable = |claim: &PersistentVolumeClaim| phase(claim) == "Bound" && !is_deleting(claim);
            if found.is_some_and(|claim| volume::is_claim_there(self.moved, &claim) && is_usable(&claim)) {
                self.claim_name = name;
            }
        }
        Ok(())
    }

    async fn read_home(&mut self, ours: &str) -> Result<(), ApiError> {
        let home = &self.moved.home;
        let found = home.within::<Pod>(self.ours).list(Some(ours)).await?;
        let is_relay = |pod: &Pod| pod.labels().get(COMPONENT).is_some_and(|what| what == "relay");
        (self.relays, self.movers) = found.into_iter().partition(is_relay);
        if self.side == Side::Target {
            let names = Names::of(self.moved);
            self.certificates = home
                .within::<Secret>(self.ours)
                .get(&names.certificates())
                .await?;
        }
        if !self.is_home && self.cluster.is_some() {
            return Ok(());
        }
        let claims = home
            .within::<PersistentVolumeClaim>(self.ours)
            .list(Some(ours))
            .await?;
        self.claim = claims.into_iter().next();
        let volumes = home.all::<PersistentVolume>().list(Some(ours)).await?;
        self.volume = volumes.into_iter().next();
        if let Some(volume) = &self.volume {
            let name = volume.name_any();
            let named = |one: VolumeAttachment| {
                (one.spec.source.persistent_volume_name.as_ref() == Some(&name)).then_some(())
            };
            let found = home.all::<VolumeAttachment>().pick(None, None, named).await?;
            self.is_attached = !found.is_empty();
        }
        Ok(())
    }

    /// The pods of the source, if it can be read only on their nodes: without `ReadWriteMany` and `ReadOnlyMany`.
    async fn users(&self, outer: Option<&PersistentVolume>) -> Result<Vec<Pod>, ApiError> {
        let (Side::Source, Place::Site(site), Some(outer)) = (self.side, &self.moved.source.place, outer)
        else {
            return Ok(Vec::new());
        };
        let modes = volume::access_modes(outer);
        if modes.contains(&AccessMode::ReadWriteMany) || modes.contains(&AccessMode::ReadOnlyMany) {
            return Ok(Vec::new());
        }
        let mut users = if self.is_home {
            let name = &self.moved.claim.name;
            pods(&self.moved.home, &name.namespace, &name.name).await?
        } else {
            pods(site.cluster(), site.namespace(), site.name()).await?
        };
        users.retain(|pod| !is_mover(self.moved, self.side, pod));
        Ok(users)
    }

    /// A node, if the driver may read it. It only helps to choose where to read: without it nothing fails.
    async fn node(&self, name: &str) -> Live<Option<Node>> {
        let Some(cluster) = self.cluster.filter(|cluster| cluster.rights().nodes) else {
            return Live::Unknown("nodes may not be read there".to_owned());
        };
        match cluster.all::<Node>().get(name).await {
            Ok(found) => Live::Known(found),
            Err(error) => Live::Unknown(error.to_string()),
        }
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.movers.as_slice(), [pod] if is_running(pod) && !is_deleting(pod))
    }

    /// The node of the running mover; with `and_again`, also why another mover could not start there.
    pub(super) async fn reads_on(&self, and_again: bool) -> Option<ReadsOn> {
        let mut running = self
            .movers
            .iter()
            .filter(|pod| is_running(pod) && !is_deleting(*pod));
        let node = running.find_map(node_of)?.to_owned();
        let mut on = ReadsOn { node, unfit: None };
        if and_again {
            on.unfit = match self.node(&on.node).await {
                Live::Unknown(_) => None,
                Live::Known(None) => Some("it does not exist any more".to_owned()),
                Live::Known(Some(found)) => unfit(&found),
            };
        }
        Some(on)
    }

    /// Which helpers are left that have to be deleted.
    pub(super) fn presence(&self, until: Until) -> Helpers {
        let volume = self.volume.as_ref().filter(|_| until == Until::End);
        let waits = volume.is_some_and(|volume| !is_deleting(volume));
        let goes_now = self
            .pods()
            .any(|pod| !is_deleting(pod) && shadow_uid(pod).is_none())
            || self.shadows.iter().any(|shadow| !is_deleting(shadow))
            || self.claim.as_ref().is_some_and(|claim| !is_deleting(claim))
            || until == Until::End && self.certificates.is_some()
            || self.volume_may_go(until);
        if goes_now {
            Helpers::Incomplete
        } else if self.pods().next().is_some() || !self.shadows.is_empty() || self.claim.is_some() || waits {
            Helpers::Leaving
        } else {
            // A PV that waits only for its detachment is deleted after it.
            Helpers::Absent
        }
    }

    /// Never while it is attached and csi-attacher has no finalizer on it: csi-attacher needs the PV to
    /// detach it. Never before the move ends: the user's PV has the same handle, so that an attachment of both may
    /// name this PV. If the move rolls back, pods keep that attachment, and the next mover would wait for the end of a
    /// deletion that waits for those pods.
    pub(super) fn volume_may_go(&self, until: Until) -> bool {
        let held =
            |volume: &PersistentVolume| volume.finalizers().iter().any(|one| one.starts_with(ATTACHER));
        let volume = self.volume.as_ref().filter(|volume| !is_deleting(*volume));
        let is_over = until == Until::End && self.claim.is_none();
        is_over && volume.is_some_and(|volume| !self.is_attached || held(volume))
    }

    /// Whether the PV still names the claim of an earlier mover, so that no other claim can be bound. The PV
    /// was attached when that claim was deleted.
    pub(super) fn has_earlier_claim(&self) -> bool {
        let spec = self.volume.as_ref().and_then(|volume| volume.spec.as_ref());
        let named = spec.and_then(|spec| spec.claim_ref.as_ref()?.uid.as_ref());
        let claim = self.claim.as_ref().and_then(|claim| claim.metadata.uid.as_ref());
        named.is_some() && claim != named
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.movers.iter().chain(&self.relays)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.pods().any(|pod| is_deleting(pod) || self.is_orphaned(pod))
            || self.shadows.iter().any(is_deleting)
            || self.claim.as_ref().is_some_and(is_deleting)
            || self.volume.as_ref().is_some_and(is_deleting)
    }

    /// Whether another client deletes the PV, which exists until pod and claim are deleted.
    pub(super) fn loses_volume(&self) -> bool {
        self.volume.as_ref().is_some_and(is_deleting) && self.presence(Until::Again) == Helpers::Incomplete
    }

    /// Whether the PV is attached without a mover: pods of the user have the same handle.
    fn is_shared(&self) -> bool {
        self.is_attached && self.claim.is_none() && self.movers.is_empty()
    }

    /// Whether a pod will be deleted because its `ShadowPod` was.
    fn is_orphaned(&self, pod: &Pod) -> bool {
        let is_of = |shadow: &ShadowPod| shadow.uid().as_deref() == shadow_uid(pod);
        shadow_uid(pod).is_some() && !self.shadows.iter().any(is_of)
    }

    /// The state of the helpers that are needed. `target` is the address of the target's mover.
    pub(super) async fn state(
        &self,
        helpers: &ClusterHelpers,
        of: &MoveRequest,
        target: Option<IpAddr>,
    ) -> Result<Live<Helpers>, GateError> {
        if self.loses_volume() {
            return Ok(Live::Known(Helpers::Incomplete));
        }
        if let Some(shared) = self
            .volume
            .as_ref()
            .filter(|volume| is_deleting(*volume) && self.is_shared())
        {
            return Ok(Live::Unknown(format!(
                "the PersistentVolume {} of the mover is being deleted, and pods use its attachment: it is replaced when they have \
                 stopped",
                shared.name_any()
            )));
        }
        if self.is_leaving() {
            return Ok(Live::Known(Helpers::Leaving));
        }
        let issued = match self.side {
            Side::Target => self.certificates.clone(),
            Side::Source => self.issued().await?,
        };
        let is_usable = |issued: &Secret| !certificates::is_old(issued, self.renewal, Timestamp::now());
        let Some(issued) = issued.filter(is_usable) else {
            return Ok(Live::Known(Helpers::Incomplete));
        };
        if self.is_home && self.has_earlier_claim() {
            return Ok(Live::Known(Helpers::Incomplete));
        }
        if self.is_home && (self.volume.is_none() || self.claim.is_none()) {
            return match volume::volume(self.moved, self.side, self.ours).await {
                Err(GateError::Helpers(error)) => Ok(Live::Unknown(error.to_string())),
                Ok(Err(why)) => Ok(Live::Unknown(why)),
                Ok(Ok(_)) => Ok(Live::Known(Helpers::Incomplete)),
                Err(error) => Err(error),
            };
        }
        let Some(wanted) = self.mover(of, target, &issued) else {
            // The source connects to the target, so it starts only after the target runs.
            return Ok(Live::Known(Helpers::Ready));
        };
        let fingerprint = wanted.fingerprint(&helpers.settings);
        let mut states = vec![self.mover_state(helpers, &fingerprint)];
        if self.side == Side::Target {
            let relay = match self.relay(of) {
                Ok(relay) => relay,
                Err(error) => return Ok(Live::Unknown(error.to_string())),
            };
            let fingerprint = relay.as_ref().map(|relay| relay.fingerprint(&helpers.settings));
            states.push(self.pod_state(helpers, &self.relays, &[], fingerprint.as_deref()));
        }
        let mut waits = None;
        for state in states {
            match state {
                PodState::Missing | PodState::Outdated(_) | PodState::MissingSecret(_) => {
                    return Ok(Live::Known(Helpers::Incomplete));
                }
                PodState::Waiting(why) => waits = Some(why),
                PodState::Running => {}
            }
        }
        Ok(waits.map_or(Live::Known(Helpers::Ready), Live::Unknown))
    }

    /// The state of the mover with this fingerprint.
    pub(super) fn mover_state<'p>(&'p self, helpers: &ClusterHelpers, fingerprint: &str) -> PodState<'p> {
        self.pod_state(helpers, &self.movers, &self.shadows, Some(fingerprint))
    }

    /// The state of the pod of one role, compared with this fingerprint; without one it should not exist.
    pub(super) fn pod_state<'p>(
        &self,
        helpers: &ClusterHelpers,
        pods: &'p [Pod],
        shadows: &'p [ShadowPod],
        fingerprint: Option<&str>,
    ) -> PodState<'p> {
        let shadows = shadows.iter().map(PodObject::Shadow);
        let mut written = shadows.chain(
            pods.iter()
                .filter(|pod| shadow_uid(pod).is_none())
                .map(PodObject::Pod),
        );
        let (written, fingerprint) = match (written.next(), written.next(), fingerprint) {
            (None, _, Some(_)) => return PodState::Missing,
            (None, _, None) => return PodState::Running,
            (Some(written), None, Some(fingerprint)) => (written, fingerprint),
            (Some(written), _, _) => return PodState::Outdated(written),
        };
        if written.annotations().get(mark::MADE_AS).map(String::as_str) != Some(fingerprint) {
            return PodState::Outdated(written);
        }
        let secret_owner = written.secret_owner();
        let missing_secret = secret_owner.filter(|secret_owner| !helpers.has_secret(&secret_owner.owner.uid));
        let Some(pod) = pods.first() else {
            return match (written, missing_secret) {
                (PodObject::Shadow(shadow), _) if shadow.has_ended() => PodState::Outdated(written),
                (_, Some(secret_owner)) => PodState::MissingSecret(secret_owner),
                (_, None) => PodState::Waiting(self.waits_for_liqo()),
            };
        };
        if self.is_on_wrong_node(pod) {
            return PodState::Outdated(written);
        }
        if has_ended(pod) {
            return match ended_recently(pod) {
                Some(why) => PodState::Waiting(why),
                None => PodState::Outdated(written),
            };
        }
        if is_running(pod) {
            return PodState::Running;
        }
        match missing_secret {
            Some(secret_owner) => PodState::MissingSecret(secret_owner),
            None => PodState::Waiting(waits_for(pod)),
        }
    }

    fn waits_for_liqo(&self) -> String {
        let name = Names::of(self.moved).of_role(Role::Mover(self.side));
        format!(
            "Liqo has not created the pod of the ShadowPod {}/{name} yet: see the events of the ShadowPod",
            self.namespace
        )
    }

    /// Whether a mover runs, or may only run, on a node where no pod uses the volume.
    fn is_on_wrong_node(&self, pod: &Pod) -> bool {
        if self.nodes.is_empty() {
            return false;
        }
        if let Some(node) = node_of(pod) {
            return !self.nodes.iter().any(|one| one == node);
        }
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        affinity != super::pod::on_one_of(&self.nodes).as_ref()
    }

    /// The certificates, which are stored with the target's side.
    pub(super) async fn issued(&self) -> Result<Option<Secret>, ApiError> {
        let secrets = self.moved.home.within::<Secret>(self.ours);
        secrets.get(&Names::of(self.moved).certificates()).await
    }

    /// The pod that this side needs; `None` for a source without the address of its target.
    pub(super) fn mover<'g>(
        &'g self,
        of: &'g MoveRequest,
        target: Option<IpAddr>,
        issued: &'g Secret,
    ) -> Option<MoverPod<'g>> {
        let dialling = match (routes(self.moved, of), self.side) {
            (Routes::ApiServer, _) => Dialling::Relayed,
            (Routes::Direct | Routes::Either, Side::Target) => Dialling::Open,
            (Routes::Direct, Side::Source) => Dialling::To(target?),
            (Routes::Either, Side::Source) => Dialling::ToOrRelayed(target?),
        };
        Some(MoverPod {
            moved: self.moved,
            of,
            side: self.side,
            namespace: self.namespace,
            claim: &self.claim_name,
            certificates: issued.metadata.uid.as_deref().unwrap_or_default(),
            dialling,
            nodes: self.nodes.clone(),
            before: self.before.as_ref(),
            is_accounted: self.origin.is_some(),
            device: self.device,
            is_never_read_only: self.is_never_read_only,
            level: self.level.as_deref(),
        })
    }

    /// The address of the mover of this side, while it runs.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let [pod] = self.movers.as_slice() else {
            return None;
        };
        let status = pod
            .status
            .as_ref()
            .filter(|_| is_running(pod) && !is_deleting(pod));
        status?.pod_ip.as_ref()?.parse().ok()
    }
}

/// The routes that the source may take to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routes {
    Direct,
    ApiServer,
    /// The direct one first: only an attempt shows whether pods of two clusters can reach each other.
    Either,
}

/// Within this cluster no relay is needed; in others, network policies of the user's namespace may isolate
/// movers.
pub(super) fn routes(moved: &MovedVolume, of: &MoveRequest) -> Routes {
    let is_here = |side: &MovedSide| side.id.cluster == *moved.home.id();
    let is_within = is_here(&moved.source) && is_here(&moved.target);
    let may = |route| of.routes.contains(&route);
    match (may(Route::Direct), may(Route::ApiServer)) {
        (true, true) if !is_within => Routes::Either,
        (true, _) => Routes::Direct,
        (false, _) => Routes::ApiServer,
    }
}

pub(super) fn is_deleting(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

pub(super) fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}

/// Why a node cannot run a mover. A source mover tolerates cordons, and other taints with the effect
/// `NoSchedule`, on the node where the source was read before.
fn unfit(node: &Node) -> Option<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut evicting = taints.filter(|taint| taint.effect == "NoExecute");
    if health(node) != NodeHealth::Ready {
        return Some("it is not Ready".to_owned());
    }
    evicting
        .next()
        .map(|taint| format!("it has the taint {}", taint.key))
}

fn nodes_of(pods: &[Pod]) -> Vec<String> {
    let mut nodes: Vec<String> = pods.iter().filter_map(node_of).map(str::to_owned).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// The `SELinux` level that these pods name, if it is one and the same.
fn level_of(pods: &[Pod]) -> Option<String> {
    let level = |pod: &Pod| {
        let options = pod
            .spec
            .as_ref()?
            .security_context
            .as_ref()?
            .se_linux_options
            .as_ref();
        options?.level.clone()
    };
    let first = level(pods.first()?);
    pods.iter().all(|pod| level(pod) == first).then_some(first)?
}

fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// Why a pod has ended, if that was less than `PAUSE_SECONDS` ago.
fn ended_recently(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut containers = status.container_statuses.iter().flatten();
    let ended = containers.find_map(|container| container.state.as_ref()?.terminated.as_ref());
    let since = ended.and_then(|ended| ended.finished_at.as_ref());
    let since = since.or(pod.metadata.creation_timestamp.as_ref())?;
    let age = Timestamp::now().duration_since(since.0).as_secs();
    let what = match (ended, &status.message) {
        (Some(ended), _) => format!(" with exit code {}", ended.exit_code),
        (None, Some(message)) => format!(": {message}"),
        (None, None) => String::new(),
    };
    let name = pod.name_any();
    let namespace = pod.namespace().unwrap_or_default();
    (age < PAUSE_SECONDS)
        .then(|| format!("the pod {namespace}/{name} has ended{what}, and will be created again"))
}

/// Why a pod does not run yet, from its status.
fn waits_for(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let containers = status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let mut waiting = containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref());
    let conditions = status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut unscheduled = conditions.filter(|one| one.type_ == "PodScheduled" && one.status == "False");
    let said = waiting
        .next()
        .map(|waiting| waiting.message.clone().or_else(|| waiting.reason.clone()))
        .or_else(|| unscheduled.next().map(|one| one.message.clone()))
        .flatten();
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    format!("the pod {namespace}/{name} does not run yet{said}")
}
