//! What `CreateVolume` observes: claim, twin and PV, read live, as the facts on which the decision is
//! based.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    CreateError, CreateRequest, Site, adopt,
    claim_copy::is_copy,
    mirrored,
    prebinding::prebinding,
    reading::{self, class, node, nodes},
    remote_class::answered_early,
    source,
    target::target,
};
use crate::{
    cluster::{ApiError, facts},
    fleet::Registry,
    placement::{
        BindingMode, ClaimFact, Class, CreateFacts, CreateStep, Prebinding, Reach, ReclaimPolicy, Refusal,
        Target, Twin, TwinFact, TwinState, create_step,
    },
    topology::{AffinityError, Segments, accessible, allowed},
    volume::Fingerprint,
};

/// The objects of one observation.
pub(super) struct Observation {
    pub(super) facts: CreateFacts,
    /// The claim, if it has the expected uid.
    pub(super) claim: Option<PersistentVolumeClaim>,
    pub(super) twin: Option<PersistentVolumeClaim>,
    /// The copy of the claim that has the twin's name.
    pub(super) copy: Option<PersistentVolumeClaim>,
    /// The PV of a bound twin; `topology` is from where it is accessible.
    pub(super) volume: Option<PersistentVolume>,
    pub(super) topology: Vec<Segments>,
}

impl Observation {
    pub(super) async fn take(
        site: &Site,
        registry: &Registry,
        request: &CreateRequest,
        (claim_fact, claim): (ClaimFact, Option<PersistentVolumeClaim>),
    ) -> Result<Box<Self>, ApiError> {
        let twin = site.twins().get(site.name()).await?;
        let virtual_class = claim.as_ref().and_then(|claim| class(site.home(), claim));
        let mut observation = Box::new(Self {
            facts: CreateFacts {
                claim: claim_fact,
                target: target(site, registry, request, claim.as_ref(), virtual_class.as_deref()).await?,
                twin: TwinFact::Absent,
                virtual_pv: false,
                retain: virtual_class.is_some_and(|class| class.reclaim == ReclaimPolicy::Retain),
            },
            claim,
            twin: None,
            copy: None,
            volume: None,
            topology: Vec::new(),
        });
        if let Some(twin) = twin {
            observation.observe_twin(site, request, twin).await?;
        }
        Ok(observation)
    }

    /// The next step. Whether a virtual PV exists is read only if the step depends on it.
    pub(super) async fn step(
        &mut self,
        site: &Site,
        request: &CreateRequest,
    ) -> Result<CreateStep, ApiError> {
        let mut given = self.facts.clone();
        given.virtual_pv = true;
        let step = create_step(&self.facts);
        if create_step(&given) == step {
            return Ok(step);
        }
        let name = request.spec.parameters.volume.as_deref();
        let name = name.unwrap_or(request.volume.as_str());
        let found = site.home().all::<PersistentVolume>().get(name).await?;
        self.facts.virtual_pv = found.is_some();
        Ok(create_step(&self.facts))
    }

    async fn observe_twin(
        &mut self,
        site: &Site,
        request: &CreateRequest,
        twin: PersistentVolumeClaim,
    ) -> Result<(), ApiError> {
        let marks = match site
            .owner(&request.volume)
            .recognise(twin.labels(), twin.annotations())
        {
            Ok(marks) => marks,
            Err(foreign) => {
                if let Some(claim) = &self.claim
                    && is_copy(site, claim, &twin).await?
                {
                    let deleting = twin.metadata.deletion_timestamp.is_some();
                    self.facts.twin = TwinFact::Copied { deleting };
                    self.copy = Some(twin);
                } else {
                    self.facts.twin = TwinFact::Foreign(foreign);
                }
                return Ok(());
            }
        };
        let asked = Fingerprint::of(&request.spec);
        let real_class = class(site.cluster(), &twin);
        let waits = real_class
            .as_ref()
            .is_some_and(|class| class.binding == BindingMode::WaitForFirstConsumer);
        let answered_early = answered_early(site, request, self.claim.as_ref(), real_class.as_deref());
        self.facts.twin = TwinFact::Ours(Twin {
            handed_over: marks.handed_over,
            deleting: twin.metadata.deletion_timestamp.is_some(),
            differences: marks
                .fingerprint
                .map(|made| made.differences(&asked))
                .unwrap_or_default(),
            provisioner: reading::provisioner(&twin).map(str::to_owned),
            // A twin for an existing PV gets no selected node, because the PV has its own.
            created_with_node: adopt::adopted(&twin).is_none()
                && !answered_early
                && (waits || matches!(self.facts.target, Target::Node(_) | Target::OneOf(_))),
            node: reading::selected_node(&twin).map(str::to_owned),
            answered_early,
            state: self.state(site, request, &twin, real_class.as_deref()).await?,
        });
        self.twin = Some(twin);
        Ok(())
    }

    async fn state(
        &mut self,
        site: &Site,
        request: &CreateRequest,
        twin: &PersistentVolumeClaim,
        real_class: Option<&Class>,
    ) -> Result<TwinState, ApiError> {
        if reading::phase(twin) == "Lost" {
            return Ok(TwinState::Lost);
        }
        if let Some(name) = reading::real_volume(site.cluster(), twin) {
            return Ok(TwinState::Bound(self.reach(site, request, twin, &name).await?));
        }
        if let Some(volume) = adopt::adopted(twin) {
            return Ok(TwinState::Pending(Prebinding::Reserved(volume.to_owned())));
        }
        let prebinding = prebinding(site, request, twin, real_class).await?;
        Ok(TwinState::Pending(prebinding))
    }

    async fn reach(
        &mut self,
        site: &Site,
        request: &CreateRequest,
        twin: &PersistentVolumeClaim,
        name: &str,
    ) -> Result<Reach, ApiError> {
        if !site.shows_volumes() {
            // Nothing but "bound" can be known, and the driver has no right to change the PV.
            return Ok(Reach::FromTarget { retained: true });
        }
        let found = site.volumes().get(name).await?;
        let Some(volume) = found.filter(|found| reading::is_bound_to(found, twin)) else {
            return Ok(Reach::Unread);
        };
        if let Some(flaw) = source::copy_defect(request, twin, &volume) {
            return Ok(Reach::NoCopy(flaw));
        }
        let policy = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let retained =
            facts::reclaim_policy(policy) == ReclaimPolicy::Retain || !site.cluster().rights().volume_changes;
        let reach = match self.topology_of(site, request, &volume).await? {
            Ok(reached) if reached => Reach::FromTarget { retained },
            Ok(_) => Reach::NotFromTarget,
            Err(error) => Reach::Nowhere(error),
        };
        self.volume = Some(volume);
        Ok(reach)
    }

    /// Whether a PV without a twin is accessible from the target. A PV that is accessible from nowhere is
    /// a final error.
    pub(super) async fn is_within_reach(
        &mut self,
        site: &Site,
        request: &CreateRequest,
        volume: &PersistentVolume,
    ) -> Result<bool, CreateError> {
        let reach = self.topology_of(site, request, volume).await?;
        reach.map_err(|error| CreateError::Refused {
            twin: site.place(),
            cluster: site.cluster_name(),
            refusal: Refusal::Nowhere(error),
        })
    }

    /// Reads from where a PV is accessible; whether the target is among that. Within a remote cluster the
    /// scheduler of that cluster decides.
    async fn topology_of(
        &mut self,
        site: &Site,
        request: &CreateRequest,
        volume: &PersistentVolume,
    ) -> Result<Result<bool, AffinityError>, ApiError> {
        let home = site.home();
        let affinity = facts::affinity(volume);
        if site.remote_cluster().is_some() {
            self.topology = mirrored::places(site, affinity.as_ref());
            return Ok(Ok(!self.topology.is_empty()));
        }
        self.topology = match accessible(home.id(), affinity.as_ref(), &nodes(home)) {
            Ok(topology) => topology,
            Err(error) => return Ok(Err(error)),
        };
        if matches!(self.facts.target, Target::OneOf(_)) {
            // If the request excludes a node, pods must not run there, even if the storage is accessible.
            self.topology = match allowed(&self.topology, &request.requisite, &nodes(home)) {
                Ok(topology) => topology,
                Err(error) => return Ok(Err(error)),
            };
        }
        Ok(Ok(match &self.facts.target {
            Target::Node(name) => {
                let node = node(home, name).await?;
                node.is_some_and(|node| self.topology.iter().any(|place| place.admits(&node.labels)))
            }
            Target::OneOf(names) => nodes(home)
                .iter()
                .filter(|node| names.contains(&node.name))
                .any(|node| self.topology.iter().any(|place| place.admits(&node.labels))),
            Target::Any | Target::Disagrees { .. } => true,
        }))
    }
}
