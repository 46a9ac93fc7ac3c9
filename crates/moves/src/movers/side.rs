//! The helpers of one side, as they are found: whether they are all there, what is missing, and
//! what goes. Pods of a move are never mended but replaced, and never in one step: the old one is
//! gone before there is a new one.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Taint},
    storage::v1::VolumeAttachment,
};
use kube::{Resource, ResourceExt};

use super::{
    ClusterHelpers, GateError, HelperSettings, MoveRequest, MovedVolume, certificates,
    names::{COMPONENT, Names, Role},
    pod::{Dialling, MoverPod},
    shadow::{Keeper, ShadowPod, Written, shadow_of},
    volume,
};
use crate::{
    api::volume_move::Route,
    cluster::{ApiError, Cluster, slim::has_ended},
    gate::{MovedSide, Place, ReadsOn},
    placement::moving::{Helpers, Live, NodeHealth, Side},
    twin::consumers::{health, pods},
    volume::{AccessMode, mark},
};

/// Whoever has ended is not replaced before: it may well end again for the same reason.
const PAUSE_SECONDS: i64 = 10;
/// Finalizers by which csi-attacher keeps a PV until it is detached.
const ATTACHER: &str = "external-attacher/";

/// One side of a claim's move, and what is found there.
pub(super) struct Ground<'a> {
    pub(super) moved: &'a MovedVolume,
    pub(super) side: Side,
    /// Where its mover is; `None` if that is a cluster that nobody declares any more.
    pub(super) cluster: Option<&'a Cluster>,
    /// Whether that is the home cluster.
    pub(super) is_home: bool,
    /// The namespace of its mover.
    pub(super) namespace: &'a str,
    /// The claim by which its mover has the volume.
    pub(super) claim_name: String,
    /// The namespace of this driver.
    pub(super) ours: &'a str,
    /// What Liqo there calls the home cluster, where its mover is a `ShadowPod`.
    pub(super) origin: Option<&'a str>,
    pub(super) shadows: Vec<ShadowPod>,
    pub(super) movers: Vec<Pod>,
    pub(super) claim: Option<PersistentVolumeClaim>,
    pub(super) volume: Option<PersistentVolume>,
    pub(super) is_attached: bool,
    pub(super) relays: Vec<Pod>,
    pub(super) certificates: Option<Secret>,
    /// Where the users of a source have it, if a mover can have it nowhere else.
    pub(super) nodes: Vec<String>,
    /// Where the source was read last, if the mover may be anywhere.
    pub(super) before: Option<Before>,
    /// How many bytes the volume has, if it is a device.
    pub(super) device: Option<u64>,
}

/// Where a source was read.
pub(super) struct Before {
    pub(super) node: String,
    pub(super) taints: Vec<Taint>,
}

/// How it is with one pod.
pub(super) enum PodNow<'p> {
    Missing,
    /// It is to be replaced.
    Outdated(Written<'p>),
    /// The Secret that it waits for may not have been made.
    Unequipped(Keeper),
    /// It is waited for, for this reason.
    Waits(String),
    Runs,
}

impl<'a> Ground<'a> {
    /// Looks at a side. What cannot be read at home is an error. Only what is to go needs no PV.
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
        let mut ground = Self {
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
            device: outer.and_then(volume::device),
        };
        match place {
            Place::Silent(why) => return Ok(Live::Silent(why.clone())),
            Place::Gone => {}
            Place::Site(twin) => {
                ground.cluster = Some(twin.cluster());
                ground.is_home = twin.remote_cluster().is_none();
                if let Some(remote) = twin.remote_cluster() {
                    ground.origin = remote.shadow_pods_of.as_deref();
                    ground.namespace = twin.namespace();
                    twin.name().clone_into(&mut ground.claim_name);
                }
            }
        }
        ground.look_at_home(&names.selector(side)).await?;
        if let (false, Some(cluster)) = (ground.is_home, ground.cluster) {
            // A pod is not there before its ShadowPod.
            if let Err(error) = ground.look_there(cluster, &names.selector(side)).await {
                return Ok(Live::Silent(error.to_string()));
            }
        }
        match ground.nodes_of_users(outer).await {
            Ok(nodes) => ground.nodes = nodes,
            Err(error) => return Ok(Live::Silent(error.to_string())),
        }
        if let (Side::Source, true, Some(node)) = (side, ground.nodes.is_empty(), &moved.mover_node) {
            let spec = match ground.node(node).await {
                Live::Known(found) => found.and_then(|found| found.spec),
                Live::Silent(_) => None,
            };
            ground.before = Some(Before {
                node: node.clone(),
                taints: spec.and_then(|spec| spec.taints).unwrap_or_default(),
            });
        }
        Ok(Live::Known(ground))
    }

    async fn look_there(&mut self, cluster: &Cluster, ours: &str) -> Result<(), ApiError> {
        if self.origin.is_some() {
            self.shadows = cluster.within(self.namespace).list(Some(ours)).await?;
        }
        self.movers = cluster.within(self.namespace).list(Some(ours)).await?;
        Ok(())
    }

    async fn look_at_home(&mut self, ours: &str) -> Result<(), ApiError> {
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

    /// A volume for one node can be read beside its users on that node only.
    async fn nodes_of_users(&self, outer: Option<&PersistentVolume>) -> Result<Vec<String>, ApiError> {
        let (Side::Source, Place::Site(site), Some(outer)) = (self.side, &self.moved.source.place, outer)
        else {
            return Ok(Vec::new());
        };
        let modes = volume::access_modes(outer);
        if modes.contains(&AccessMode::ReadWriteMany) || modes.contains(&AccessMode::ReadOnlyMany) {
            return Ok(Vec::new());
        }
        let users = if self.is_home {
            let name = &self.moved.claim.name;
            pods(&self.moved.home, &name.namespace, &name.name).await?
        } else {
            pods(site.cluster(), site.namespace(), site.name()).await?
        };
        let users = users.iter().filter(|pod| !pod.labels().contains_key(mark::MOVE));
        let mut nodes: Vec<String> = users.filter_map(node_of).map(str::to_owned).collect();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }

    /// A node, if it may be read there. It is only asked where to read best: nothing fails without it.
    async fn node(&self, name: &str) -> Live<Option<Node>> {
        let Some(cluster) = self.cluster.filter(|cluster| cluster.rights().nodes) else {
            return Live::Silent("nodes may not be read there".to_owned());
        };
        match cluster.all::<Node>().get(name).await {
            Ok(found) => Live::Known(found),
            Err(error) => Live::Silent(error.to_string()),
        }
    }

    /// Whether the only mover runs.
    pub(super) fn runs(&self) -> bool {
        matches!(self.movers.as_slice(), [pod] if is_running(pod) && !is_going(pod))
    }

    /// Where the mover runs; and, if that is asked, whether another one could come up there.
    pub(super) async fn reads_on(&self, and_again: bool) -> Option<ReadsOn> {
        let mut running = self
            .movers
            .iter()
            .filter(|pod| is_running(pod) && !is_going(*pod));
        let node = running.find_map(node_of)?.to_owned();
        let mut on = ReadsOn { node, unfit: None };
        if and_again {
            on.unfit = match self.node(&on.node).await {
                Live::Silent(_) => None,
                Live::Known(None) => Some("it is gone".to_owned()),
                Live::Known(Some(found)) => unfit(&found),
            };
        }
        Some(on)
    }

    /// Whether any of it is there, once it is not needed.
    pub(super) fn presence(&self) -> Helpers {
        let volume = self.volume.as_ref();
        let waits = volume.is_some_and(|volume| !is_going(volume));
        let goes_now = self.pods().any(|pod| !is_going(pod) && shadow_of(pod).is_none())
            || self.shadows.iter().any(|shadow| !is_going(shadow))
            || self.claim.as_ref().is_some_and(|claim| !is_going(claim))
            || self.certificates.is_some()
            || self.volume_may_go();
        if goes_now {
            Helpers::Incomplete
        } else if self.pods().next().is_some() || !self.shadows.is_empty() || self.claim.is_some() || waits {
            Helpers::Leaving
        } else {
            // A PV that waits for nothing but its detachment goes by itself.
            Helpers::Absent
        }
    }

    /// Never while an attachment names it and nothing holds it: csi-attacher needs it to detach.
    pub(super) fn volume_may_go(&self) -> bool {
        let held =
            |volume: &PersistentVolume| volume.finalizers().iter().any(|one| one.starts_with(ATTACHER));
        let volume = self.volume.as_ref().filter(|volume| !is_going(*volume));
        self.claim.is_none() && volume.is_some_and(|volume| !self.is_attached || held(volume))
    }

    /// Whether the PV still names the claim of an earlier mover, so that no other can be bound to it.
    /// It was attached when that went.
    pub(super) fn names_an_earlier_claim(&self) -> bool {
        let spec = self.volume.as_ref().and_then(|volume| volume.spec.as_ref());
        let named = spec.and_then(|spec| spec.claim_ref.as_ref()?.uid.as_ref());
        let claim = self.claim.as_ref().and_then(|claim| claim.metadata.uid.as_ref());
        named.is_some() && claim != named
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.movers.iter().chain(&self.relays)
    }

    /// Whether something of before is still on its way out.
    pub(super) fn is_leaving(&self) -> bool {
        self.pods().any(|pod| is_going(pod) || self.is_forsaken(pod))
            || self.shadows.iter().any(is_going)
            || self.claim.as_ref().is_some_and(is_going)
            || self.volume.as_ref().is_some_and(is_going)
    }

    /// Whether a pod goes because its `ShadowPod` has gone.
    fn is_forsaken(&self, pod: &Pod) -> bool {
        let is_of = |shadow: &ShadowPod| shadow.uid().as_deref() == shadow_of(pod);
        shadow_of(pod).is_some() && !self.shadows.iter().any(is_of)
    }

    /// How it is with what is needed. `target` is where the other mover can be dialled.
    pub(super) async fn state(
        &self,
        helpers: &ClusterHelpers,
        of: &MoveRequest,
        target: Option<IpAddr>,
    ) -> Result<Live<Helpers>, GateError> {
        if self.is_leaving() {
            return Ok(Live::Known(Helpers::Leaving));
        }
        let issued = match self.side {
            Side::Target => self.certificates.clone(),
            Side::Source => self.issued().await?,
        };
        let Some(issued) = issued.filter(|issued| !certificates::is_old(issued, Timestamp::now())) else {
            return Ok(Live::Known(Helpers::Incomplete));
        };
        if self.is_home && self.names_an_earlier_claim() {
            return Ok(Live::Known(Helpers::Incomplete));
        }
        if self.is_home && (self.volume.is_none() || self.claim.is_none()) {
            return match volume::volume(self.moved, self.side, self.ours).await {
                Err(GateError::Helpers(error)) => Ok(Live::Silent(error.to_string())),
                Ok(Err(why)) => Ok(Live::Silent(why)),
                Ok(Ok(_)) => Ok(Live::Known(Helpers::Incomplete)),
                Err(error) => Err(error),
            };
        }
        let Some(wanted) = self.mover(of, target, &issued) else {
            // The source dials the target: there is nothing to be done before that is there.
            return Ok(Live::Known(Helpers::Ready));
        };
        let form = wanted.form(&helpers.settings);
        let mut states = vec![self.mover_now(helpers, &form)];
        if self.side == Side::Target {
            let relay = match self.relay(of) {
                Ok(relay) => relay,
                Err(error) => return Ok(Live::Silent(error.to_string())),
            };
            let form = relay.as_ref().map(|relay| relay.form(&helpers.settings));
            states.push(self.pod_now(helpers, &self.relays, &[], form.as_deref()));
        }
        let mut waits = None;
        for state in states {
            match state {
                PodNow::Missing | PodNow::Outdated(_) | PodNow::Unequipped(_) => {
                    return Ok(Live::Known(Helpers::Incomplete));
                }
                PodNow::Waits(why) => waits = Some(why),
                PodNow::Runs => {}
            }
        }
        Ok(waits.map_or(Live::Known(Helpers::Ready), Live::Silent))
    }

    /// How it is with the mover, which is to be made as `form` says.
    pub(super) fn mover_now<'p>(&'p self, helpers: &ClusterHelpers, form: &str) -> PodNow<'p> {
        self.pod_now(helpers, &self.movers, &self.shadows, Some(form))
    }

    /// How it is with the pod of one role, which is to be made as `form` says, or not to be there.
    pub(super) fn pod_now<'p>(
        &self,
        helpers: &ClusterHelpers,
        pods: &'p [Pod],
        shadows: &'p [ShadowPod],
        form: Option<&str>,
    ) -> PodNow<'p> {
        let shadows = shadows.iter().map(Written::Shadow);
        let mut written = shadows.chain(
            pods.iter()
                .filter(|pod| shadow_of(pod).is_none())
                .map(Written::Pod),
        );
        let (written, form) = match (written.next(), written.next(), form) {
            (None, _, Some(_)) => return PodNow::Missing,
            (None, _, None) => return PodNow::Runs,
            (Some(written), None, Some(form)) => (written, form),
            (Some(written), _, _) => return PodNow::Outdated(written),
        };
        if written.annotations().get(mark::MADE_AS).map(String::as_str) != Some(form) {
            return PodNow::Outdated(written);
        }
        let keeper = written.keeper();
        let unequipped = keeper.filter(|keeper| !helpers.is_equipped(&keeper.owner.uid));
        let Some(pod) = pods.first() else {
            return match (written, unequipped) {
                (Written::Shadow(shadow), _) if shadow.has_ended() => PodNow::Outdated(written),
                (_, Some(keeper)) => PodNow::Unequipped(keeper),
                (_, None) => PodNow::Waits(self.waits_for_liqo()),
            };
        };
        if self.is_astray(pod) {
            return PodNow::Outdated(written);
        }
        if has_ended(pod) {
            return match ended_just_now(pod) {
                Some(why) => PodNow::Waits(why),
                None => PodNow::Outdated(written),
            };
        }
        if is_running(pod) {
            return PodNow::Runs;
        }
        match unequipped {
            Some(keeper) => PodNow::Unequipped(keeper),
            None => PodNow::Waits(waits_for(pod)),
        }
    }

    fn waits_for_liqo(&self) -> String {
        let name = Names::of(self.moved).of_role(Role::Mover(self.side));
        format!(
            "Liqo has not made a pod of the ShadowPod {}/{name} yet: its events say why",
            self.namespace
        )
    }

    /// Whether a mover is, or may only be, where the users of the volume are not.
    fn is_astray(&self, pod: &Pod) -> bool {
        if self.nodes.is_empty() {
            return false;
        }
        if let Some(node) = node_of(pod) {
            return !self.nodes.iter().any(|one| one == node);
        }
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        affinity != super::pod::on_one_of(&self.nodes).as_ref()
    }

    /// The certificates, which belong to the target's side.
    pub(super) async fn issued(&self) -> Result<Option<Secret>, ApiError> {
        let secrets = self.moved.home.within::<Secret>(self.ours);
        secrets.get(&Names::of(self.moved).certificates()).await
    }

    /// The pod that this side needs; `None` for a source that cannot dial its target yet.
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
        })
    }

    /// Where the mover of this side can be dialled, while it runs.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let [pod] = self.movers.as_slice() else {
            return None;
        };
        let status = pod.status.as_ref().filter(|_| is_running(pod) && !is_going(pod));
        status?.pod_ip.as_ref()?.parse().ok()
    }
}

/// The ways in which the source may get to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routes {
    Direct,
    ApiServer,
    /// Whichever works, the direct one first: whether pods of two clusters reach each other is known
    /// to nobody before.
    Either,
}

/// How the data may travel. Within this cluster nothing has to be passed on; in others, policies of the
/// user's namespace may keep movers apart.
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

pub(super) fn is_going(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

pub(super) fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}

/// Why a node takes no mover. Whoever reads where it has read before tolerates cordons, and whatever
/// else keeps pods from being scheduled there.
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

fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// Why a pod has ended, if that was a moment ago.
fn ended_just_now(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut containers = status.container_statuses.iter().flatten();
    let ended = containers.find_map(|container| container.state.as_ref()?.terminated.as_ref());
    let since = ended.and_then(|ended| ended.finished_at.as_ref());
    let since = since.or(pod.metadata.creation_timestamp.as_ref())?;
    let age = Timestamp::now().duration_since(since.0).as_secs();
    let what = match (ended, &status.message) {
        (Some(ended), _) => format!("with exit code {}", ended.exit_code),
        (None, Some(message)) => format!(": {message}"),
        (None, None) => String::new(),
    };
    let name = pod.name_any();
    let namespace = pod.namespace().unwrap_or_default();
    (age < PAUSE_SECONDS)
        .then(|| format!("the pod {namespace}/{name} has ended {what}, and will be made again"))
}

/// What a pod that does not run yet says.
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
