//! Creates the twin at the target of a move: its class is chosen as in `CreateVolume`, and no pod uses it
//! until it is handed over. Whether the twin exists, and whose it is, is observed in `gate`.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::ResourceExt;

use super::{GateError, MoveRequest, MoveTarget, MovedVolume, TargetError};
use crate::{
    cluster::{ApiError, facts},
    fleet::Remote,
    gate::{Applied, outcome},
    observe::crash::{self, Step},
    placement::{
        BindingMode, ChosenClass, Class, ClassInputs, KnownClasses, NO_PROVISIONER, RequestedClass, Target,
        access_modes, choose_class, moving::Side,
    },
    twin::{
        CreateRequest, Policy, Site,
        attributes::{check, mapped},
        plan::node_for,
        planned::Planned,
        reading,
        record::{self, Chosen},
        remote_class,
        surroundings::{ask, classes},
    },
    volume::{
        Access, AccessMode, Capabilities, Capability, Parameters, SizeRange, SpecError, VolumeMode,
        VolumeSpec, attributes_class, can_be_attached, mark, moving::TargetMark,
    },
};

/// The origin of the twin: the claim, its PV and, if it can be read, the source twin, which may be larger
/// than both.
struct Origin {
    claim: PersistentVolumeClaim,
    outer: PersistentVolume,
    twin: Option<PersistentVolumeClaim>,
}

pub(super) async fn make(
    moved: &MovedVolume,
    policy: &Policy,
    of: &MoveRequest,
    mark: &TargetMark,
) -> Result<Applied, GateError> {
    let Some(twin) = wanted(moved, policy, of, mark).await? else {
        return Ok(Applied::ChangedMeanwhile);
    };
    let twins = moved.site(Side::Target)?.twins();
    outcome(crash::around(Step::MoveMakeTarget, twins.create(&twin)).await)
}

/// The twin to create; `None` if claim or PV do not exist: then the move is decided again.
pub(super) async fn wanted(
    moved: &MovedVolume,
    policy: &Policy,
    of: &MoveRequest,
    mark: &TargetMark,
) -> Result<Option<PersistentVolumeClaim>, GateError> {
    let site = moved.site(Side::Target)?;
    let Some(origin) = Origin::read(moved).await? else {
        return Ok(None);
    };
    let request = origin.request(moved, of).await?;
    let planned = match site.remote_cluster() {
        Some(remote) => plan_there(site, remote, policy, of, &origin, &request)?,
        None => plan_here(site, policy, of, &origin, &request).await?,
    };
    let attributes = request.spec.attributes.as_deref();
    let attributes = attributes.map(|named| mapped(site, named));
    if let Some(class) = attributes {
        check::<TargetError>(site, class, planned.provisioner.as_deref()).await?;
    }
    let chosen = Chosen {
        class: &planned.class,
        provisioner: planned.provisioner.as_deref(),
        node: planned.node.as_deref(),
        access_modes: planned.access_modes.as_deref(),
        attributes,
        source: None,
        adopted: None,
    };
    let mut twin = record::twin(site, &request, Some(&origin.claim), &chosen);
    twin.labels_mut().extend(mark.labels());
    twin.annotations_mut().extend(mark.annotations());
    // CreateVolume is never called for this twin: its claim has a PV.
    twin.annotations_mut().remove(mark::FINGERPRINT);
    // Until the hand-over the twin contains only a copy, which needs no finalizer.
    twin.metadata.finalizers = None;
    Ok(Some(twin))
}

impl Origin {
    async fn read(moved: &MovedVolume) -> Result<Option<Self>, GateError> {
        let claim = moved.claims().get(&moved.claim.name.name).await?;
        let claim = claim.filter(|claim| claim.uid().as_ref() == Some(&moved.claim.uid));
        let outer = moved.volumes().get(moved.volume().as_str()).await?;
        let (Some(claim), Some(outer)) = (claim, outer) else {
            return Ok(None);
        };
        let source = moved.site(Side::Source)?;
        let twin = source.twins().get(source.name()).await?;
        let twin = twin.filter(|twin| source.is_twin(moved.volume(), twin));
        Ok(Some(Self { claim, outer, twin }))
    }

    /// The largest of their sizes, so that the data fits.
    fn bytes(&self) -> u64 {
        let asked = facts::storage_request(&self.claim);
        let there = self.twin.as_ref().and_then(|twin| twin.status.as_ref());
        let there = there.and_then(|status| status.capacity.as_ref()?.get("storage"));
        [asked, there]
            .into_iter()
            .flatten()
            .filter_map(facts::bytes)
            .chain(facts::volume_size(&self.outer))
            .max()
            .unwrap_or_default()
    }

    /// The `CreateVolume` request for such a volume today.
    async fn request(&self, moved: &MovedVolume, of: &MoveRequest) -> Result<CreateRequest, GateError> {
        let class = reading::class(&moved.home, &self.claim);
        let parameters = Parameters {
            real_class: class
                .as_ref()
                .and_then(|class| class.real_class().map(str::to_owned)),
            shared_namespace: class.is_some_and(|class| class.shares_namespace()),
            claim: Some(moved.claim.name.clone()),
            ..Parameters::default()
        };
        let bytes = i64::try_from(self.bytes()).unwrap_or(i64::MAX);
        let capabilities = self.capabilities(of).map_err(TargetError::from)?;
        let at_home = moved.site(Side::Target)?.remote_cluster().is_none();
        if at_home && !can_be_attached(capabilities.access_modes()) {
            return Err(TargetError::from(SpecError::NotAttachable).into());
        }
        Ok(CreateRequest {
            volume: moved.volume().clone(),
            request_name: moved.volume().to_string(),
            spec: VolumeSpec {
                size: SizeRange::new(bytes, 0).map_err(TargetError::from)?,
                capabilities,
                parameters,
                source: None,
                attributes: self.attributes(moved).await?,
            },
            requisite: Vec::new(),
            preferred: Vec::new(),
        })
    }

    fn capabilities(&self, of: &MoveRequest) -> Result<Capabilities, SpecError> {
        let spec = self.outer.spec.as_ref();
        let modes = spec.and_then(|spec| spec.access_modes.as_ref());
        let modes = match &of.access_modes {
            Some(modes) => modes.clone(),
            None => facts::access_modes(modes.into_iter().flatten()),
        };
        let access = match facts::volume_mode(spec.and_then(|spec| spec.volume_mode.as_deref())) {
            VolumeMode::Filesystem => Access::Mount {
                fs_type: None,
                flags: Vec::new(),
            },
            VolumeMode::Block => Access::Block,
        };
        Capabilities::new(modes.into_iter().map(|mode| Capability {
            mode,
            access: access.clone(),
        }))
    }

    /// The real attributes class of the claim's own one.
    async fn attributes(&self, moved: &MovedVolume) -> Result<Option<String>, GateError> {
        let spec = self.claim.spec.as_ref();
        let named = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
        let Some(named) = named.filter(|named| !named.is_empty()) else {
            return Ok(None);
        };
        let class = moved.home.all::<VolumeAttributesClass>().get(named).await?;
        let parameters = class.and_then(|class| class.parameters).unwrap_or_default();
        Ok(attributes_class(&parameters).map_err(TargetError::from)?)
    }

    /// The access modes that the claim requests in remote clusters, unless the move names some.
    fn modes_there(&self, of: &MoveRequest) -> Result<Option<Vec<AccessMode>>, TargetError> {
        let wished = self.claim.annotations().get(mark::LIQO_ACCESS_MODES);
        let wished = wished.filter(|_| of.access_modes.is_none());
        Ok(wished.map(|text| access_modes(text)).transpose()?)
    }
}

/// At home the twin gets a selected node, because no pod is scheduled for it.
async fn plan_here(
    site: &Site,
    policy: &Policy,
    of: &MoveRequest,
    origin: &Origin,
    request: &CreateRequest,
) -> Result<Planned, GateError> {
    let (home, classes) = (site.home(), classes(site.home()));
    let ChosenClass::Known(class) = class_of(site, policy, of, origin, request, &classes)? else {
        return Err(TargetError::Unfit("the classes of the home cluster cannot be read".to_owned()).into());
    };
    if class.provisioner == NO_PROVISIONER && class.binding == BindingMode::WaitForFirstConsumer {
        return Err(TargetError::StaticVolumes(class.name.clone()).into());
    }
    let target = match &of.target {
        MoveTarget::Node(node) => Target::Node(node.clone()),
        MoveTarget::Cluster(_) => Target::Any,
    };
    let node = node_for(home, &ask(request), &target, class).await?;
    Ok(Planned {
        class: class.name.clone(),
        provisioner: Some(class.provisioner.clone()),
        node: node.map_err(TargetError::Unfit)?,
        ..Planned::default()
    })
}

/// In a remote cluster the mover is the first consumer of the twin, and determines its node.
fn plan_there(
    site: &Site,
    remote: &Remote,
    policy: &Policy,
    of: &MoveRequest,
    origin: &Origin,
    request: &CreateRequest,
) -> Result<Planned, TargetError> {
    if let Some(closed) = remote.closed() {
        return Err(TargetError::Unfit(format!(
            "the cluster {} takes no new volumes, for {closed}",
            remote.id
        )));
    }
    let classes = classes(site.cluster());
    let chosen = class_of(site, policy, of, origin, request, &classes)?;
    let provisioner = match &chosen {
        ChosenClass::Known(class) if class.binding == BindingMode::Immediate => Some(&class.provisioner),
        ChosenClass::Known(_) | ChosenClass::Named(_) => None,
    };
    Ok(Planned {
        class: chosen.name().to_owned(),
        provisioner: provisioner.cloned(),
        access_modes: origin.modes_there(of)?,
        ..Planned::default()
    })
}

/// The real class that the twin would get at the target, or why it gets none; `None` if unknown: the claim or
/// its PV do not exist, or a cluster is unreachable.
pub async fn target_class(
    moved: &MovedVolume,
    policy: &Policy,
    of: &MoveRequest,
) -> Result<Option<Result<String, TargetError>>, GateError> {
    let origin = match Origin::read(moved).await {
        Err(GateError::Unreachable { .. }) | Ok(None) => return Ok(None),
        Err(error) => return Err(error),
        Ok(Some(origin)) => origin,
    };
    let Ok(site) = moved.site(Side::Target) else {
        return Ok(None);
    };
    let request = match origin.request(moved, of).await {
        Ok(request) => request,
        Err(GateError::Target(error)) => return Ok(Some(Err(error))),
        Err(error) => return Err(error),
    };
    let classes = classes(site.cluster());
    let chosen = class_of(site, policy, of, &origin, &request, &classes);
    Ok(Some(chosen.map(|class| class.name().to_owned())))
}

/// The class that the move names, otherwise the one of a new claim. A user may always name the latter, as an
/// undo does; any other class must be one that users may choose. That the volume had it before is no reason,
/// because other clients may write the status that records it.
fn class_of<'a>(
    site: &Site,
    policy: &Policy,
    of: &MoveRequest,
    origin: &Origin,
    request: &CreateRequest,
    classes: &'a [Class],
) -> Result<ChosenClass<'a>, TargetError> {
    let known = match site.remote_cluster() {
        Some(_) if !site.cluster().rights().classes => KnownClasses::Unreadable,
        _ => KnownClasses::Listed(classes),
    };
    let one_namespace = site.remote_cluster().is_none() && !request.spec.parameters.shared_namespace;
    let parameter = request.spec.parameters.real_class.as_deref();
    let as_new = if let Some(remote) = site.remote_cluster() {
        remote_class::choose(remote, policy, parameter, Some(&origin.claim), known)
    } else {
        let inputs = ClassInputs {
            annotation: RequestedClass::read(origin.claim.annotations(), &[mark::REAL_CLASS]),
            allowed: &policy.allowed_classes,
            parameter,
            mapping: None,
            one_namespace,
        };
        choose_class(&inputs, known, site.cluster().id())
    };
    let Some(named) = of.storage_class.as_deref() else {
        return Ok(as_new?);
    };
    match as_new {
        Ok(chosen) if chosen.name() == named => Ok(chosen),
        _ if policy.allowed_classes.contains(named) => {
            let inputs = ClassInputs {
                annotation: None,
                allowed: &policy.allowed_classes,
                parameter: Some(named),
                mapping: None,
                one_namespace,
            };
            Ok(choose_class(&inputs, known, site.cluster().id())?)
        }
        _ => Err(TargetError::NotAllowed {
            class: named.to_owned(),
            allowed: policy.allowed_classes.iter().cloned().collect(),
        }),
    }
}

impl From<ApiError> for TargetError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}
