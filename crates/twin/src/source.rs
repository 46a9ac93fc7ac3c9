//! A twin as a copy of a snapshot or of another twin: whether the source is in the twin's cluster and
//! namespace, and whether the copy was made. Sources are read live, and a copy is requested only if its
//! driver is known to make it; that decision is in [`crate::placement`].

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TypedLocalObjectReference};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::{
    CreateError, CreateRequest, NoSite, Site,
    errors::FindError,
    moves::may_change,
    observation::Observation,
    planned::Planned,
    reading,
    site::find_existing,
    snapshot::{SnapshotSite, SnapshotSiteError, contents_with_id, source_affinity, user_content},
    waiter::settled_twin,
};
use crate::{
    cluster::{
        ApiError, Cluster, facts,
        snapshots::{ALLOW_MODE_CHANGE, SNAPSHOT_GROUP, VolumeSnapshot, VolumeSnapshotContent, is_ready},
    },
    fleet::Registry,
    observe::crash::{self, Step},
    placement::{
        CopyFacts, Original, SourceDriver, SourcePlace, SourceRefusal, copy_flaw, may_copy, mode_name,
        moving::ChangeDecision,
    },
    topology::NodeSelector,
    volume::{ClusterId, ContentSource, SnapshotId, VolumeId, mark},
};

/// How long to wait for the twin of a new source volume to be bound.
const BINDING: Duration = Duration::from_secs(5);
const SNAPSHOT: &str = "VolumeSnapshot";
const CLAIM: &str = "PersistentVolumeClaim";

/// The source of a new volume.
pub(super) struct Source {
    /// The name of the source, for messages.
    name: String,
    place: SourceSite,
}

enum SourceSite {
    Snapshot(SnapshotSite),
    Volume(Site, VolumeId),
}

/// The source of a request, if it has one; an error unless the source is in the cluster and the namespace
/// of the twin.
pub(super) async fn find_source(
    site: &Site,
    registry: &Registry,
    request: &CreateRequest,
    observation: &Observation,
) -> Result<Option<Source>, CreateError> {
    let Some(asked) = &request.spec.source else {
        check_passed_on(observation.claim.as_ref())?;
        return Ok(None);
    };
    let name = name(asked, observation.claim.as_ref());
    let missing = || CreateError::NoSource(format!("{name} does not exist"));
    let place = match asked {
        ContentSource::Snapshot(id) => {
            let id: SnapshotId = id.parse().map_err(|_| missing())?;
            let found = SnapshotSite::of(site.home(), registry, &id).await;
            SourceSite::Snapshot(found.map_err(unknown_snapshot)?.ok_or_else(missing)?)
        }
        ContentSource::Volume(id) => {
            let id: VolumeId = id.parse().map_err(|_| missing())?;
            let found = find_existing(site.home(), registry, &id).await;
            let found = found.map_err(unknown_volume)?.ok_or_else(missing)?;
            SourceSite::Volume(found, id)
        }
    };
    let (cluster, namespace) = match &place {
        SourceSite::Snapshot(there) => (there.cluster(), there.namespace()),
        SourceSite::Volume(there, _) => (there.cluster(), there.namespace()),
    };
    if cluster.id() != site.cluster().id() {
        // Which of the cluster's nodes are suitable is checked when the pod is sent there.
        let nodes = place_of(site, cluster.id(), &Original::Volume(None));
        return Err(elsewhere(name, &nodes, cluster.id()));
    }
    if namespace != site.namespace() {
        return Err(CreateError::Source(SourceRefusal::OtherNamespace {
            source_name: name,
            found: namespace.to_owned(),
            wanted: site.namespace().to_owned(),
            cluster: site.cluster_name(),
        }));
    }
    Ok(Some(Source { name, place }))
}

/// Refuses a claim with a source in another namespace: csi-provisioner passes that on only with the alpha feature
/// `CrossNamespaceVolumeDataSource`, and requests an empty volume without it.
fn check_passed_on(claim: Option<&PersistentVolumeClaim>) -> Result<(), SourceRefusal> {
    let spec = claim.and_then(|claim| claim.spec.as_ref());
    let Some(source) = spec.and_then(|spec| spec.data_source_ref.as_ref()) else {
        return Ok(());
    };
    match &source.namespace {
        Some(namespace) if !namespace.is_empty() => Err(SourceRefusal::NotPassedOn {
            source_name: format!("{} {}", source.kind, source.name),
            namespace: namespace.clone(),
        }),
        _ => Ok(()),
    }
}

/// The name of a source for messages: the one that the claim uses.
fn name(asked: &ContentSource, claim: Option<&PersistentVolumeClaim>) -> String {
    let spec = claim.and_then(|claim| claim.spec.as_ref());
    let own = spec.and_then(|spec| spec.data_source.as_ref());
    let (kind, id) = match asked {
        ContentSource::Snapshot(id) => ("snapshot", id),
        ContentSource::Volume(id) => ("volume", id),
    };
    match own {
        Some(own) if own.kind == SNAPSHOT => format!("the snapshot {}", own.name),
        Some(own) if own.kind == CLAIM => format!("the volume of the claim {}", own.name),
        _ => format!("the {kind} {id}"),
    }
}

/// The nodes of the home cluster where copies of a source in this cluster can be made.
fn place_of(site: &Site, cluster: &ClusterId, original: &Original) -> SourcePlace {
    let home = site.home();
    SourcePlace::of(original, cluster, home.id(), &reading::nodes(home))
}

fn elsewhere(source_name: String, place: &SourcePlace, cluster: &ClusterId) -> CreateError {
    CreateError::SourceElsewhere {
        source_name,
        place: place.describe(),
        cluster: cluster.clone(),
    }
}

/// Refuses a node of the home cluster that cannot have a copy. In a remote cluster the scheduler there
/// chooses the node.
fn check_node(site: &Site, planned: &Planned, name: &str, original: &Original) -> Result<(), CreateError> {
    let Some(node) = planned
        .node
        .as_deref()
        .filter(|_| site.remote_cluster().is_none())
    else {
        return Ok(());
    };
    let cluster = site.cluster().id();
    let place = place_of(site, cluster, original);
    if place.has(node) {
        return Ok(());
    }
    Err(elsewhere(name.to_owned(), &place, cluster))
}

/// Records on a claim that its pod was sent to another cluster than that of its source: from then on this
/// driver selects a suitable node for it. If that cannot be written, the scheduler keeps trying, as it
/// would without the record.
pub(super) async fn record_source_cluster(
    home: &Cluster,
    claim: Option<&PersistentVolumeClaim>,
    cluster: &ClusterId,
) {
    let Some(claim) = claim else { return };
    if claim.annotations().get(mark::SOURCE_AT).map(String::as_str) == Some(cluster.as_str()) {
        return;
    }
    let claims = home.within::<PersistentVolumeClaim>(&claim.namespace().unwrap_or_default());
    let patch = json!({"metadata": {
        "uid": claim.uid(),
        "annotations": {mark::SOURCE_AT: cluster.as_str()},
    }});
    let name = claim.name_any();
    if let Err(error) = crash::around(Step::NoteSource, claims.merge(&name, &patch)).await {
        tracing::warn!(claim = name, %error, "failed to record on a claim in which cluster its source is");
    }
}

fn unknown_snapshot(error: SnapshotSiteError) -> CreateError {
    match error {
        SnapshotSiteError::Api(error) => error.into(),
        SnapshotSiteError::Unreachable(error) => NoSite::from(error).into(),
        SnapshotSiteError::Unknown(why) => CreateError::SourceUnknown(why),
    }
}

fn unknown_volume(error: FindError) -> CreateError {
    match error {
        FindError::Api(error) => error.into(),
        FindError::Unreachable(error) => NoSite::from(error).into(),
        FindError::NoRecord(why) => CreateError::NoSource(why),
    }
}

/// If a right is missing, retrying does not help, and nothing was created.
fn not_allowed(error: ApiError) -> CreateError {
    if error.is_forbidden() {
        CreateError::NotAccepted(error)
    } else {
        error.into()
    }
}

/// The reference to the source in the spec of the twin, if the planned class can copy the source.
pub(super) async fn data_source(
    site: &Site,
    request: &CreateRequest,
    planned: &Planned,
    source: Source,
) -> Result<TypedLocalObjectReference, CreateError> {
    let Source { name, place } = source;
    let allowed = |driver| {
        let (class, provisioner) = (&planned.class, planned.provisioner.as_deref());
        may_copy(&name, driver, class, provisioner, &site.cluster_name())
    };
    match place {
        SourceSite::Snapshot(there) => {
            let twin = snapshot(&there, &name).await?;
            let content = match content(&there, &twin).await {
                Ok(content) => content.ok_or_else(|| not_usable(&name, "is not bound to its content yet"))?,
                Err(error) if error.is_forbidden() => {
                    allowed(SourceDriver::Unreadable("VolumeSnapshotContents"))?;
                    return Err(not_allowed(error));
                }
                Err(error) => return Err(not_allowed(error)),
            };
            allowed(SourceDriver::Csi(&content.spec.driver))?;
            let original = Original::Snapshot {
                reached_from: source_affinity(&twin),
                restore: request.spec.parameters.restore_topology,
            };
            check_node(site, planned, &name, &original)?;
            allow_mode(request, &name, &there, &content).await?;
            Ok(reference(Some(SNAPSHOT_GROUP), SNAPSHOT, there.name()))
        }
        SourceSite::Volume(there, id) => {
            let twin = volume(&there, &name, &id).await?;
            let copier = copier(&there, &twin, &name).await?;
            allowed(copier.as_fact())?;
            if let Copier::Driver { reached_from, .. } = copier {
                check_node(site, planned, &name, &Original::Volume(reached_from))?;
            }
            Ok(reference(None, CLAIM, there.name().to_owned()))
        }
    }
}

fn reference(group: Option<&str>, kind: &str, name: String) -> TypedLocalObjectReference {
    TypedLocalObjectReference {
        api_group: group.map(str::to_owned),
        kind: kind.to_owned(),
        name,
    }
}

fn not_usable(name: &str, why: &str) -> SourceRefusal {
    SourceRefusal::NotUsable {
        source_name: name.to_owned(),
        why: why.to_owned(),
    }
}

/// The twin of a snapshot that is ready to be restored.
async fn snapshot(there: &SnapshotSite, name: &str) -> Result<VolumeSnapshot, CreateError> {
    let found = there.snapshots().get(&there.name()).await.map_err(not_allowed)?;
    let Some(twin) = found.filter(|found| there.recognise(found).is_ok()) else {
        return Err(CreateError::NoSource(format!(
            "{name} does not exist any more: the VolumeSnapshot {} does not exist in the cluster {}",
            there.place(),
            there.cluster_name()
        )));
    };
    if twin.metadata.deletion_timestamp.is_some() {
        return Err(not_usable(name, "is being deleted").into());
    }
    if !is_ready(&twin) {
        return Err(not_usable(name, "is not ready to use yet").into());
    }
    Ok(twin)
}

/// The content to which a twin is bound.
async fn content(
    there: &SnapshotSite,
    twin: &VolumeSnapshot,
) -> Result<Option<VolumeSnapshotContent>, ApiError> {
    let status = twin.status.as_ref();
    let bound = status.and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
    let Some(bound) = bound else { return Ok(None) };
    let found = there.contents().get(bound).await?;
    Ok(found.filter(|content| content.spec.volume_snapshot_ref.uid == twin.uid()))
}

/// csi-provisioner refuses a volume whose mode differs from that of its source, unless the content allows
/// it. If a content of the user allows it, the twin's content gets the same annotation. Which of them the
/// claim uses is not in the request, but csi-provisioner has checked it.
async fn allow_mode(
    request: &CreateRequest,
    name: &str,
    there: &SnapshotSite,
    content: &VolumeSnapshotContent,
) -> Result<(), CreateError> {
    let wanted = mode_name(request.spec.capabilities.volume_mode());
    let Some(found) = content.spec.source_volume_mode.as_deref() else {
        return Ok(());
    };
    let allows = |content: &VolumeSnapshotContent| {
        let said = content.annotations().get(ALLOW_MODE_CHANGE);
        said.is_some_and(|said| said == "true")
    };
    if found == wanted || allows(content) {
        return Ok(());
    }
    let (home, id) = (there.home(), there.id());
    let is_allowed = user_content(home, &id.key).await?.as_ref().is_some_and(allows)
        || contents_with_id(home, &id).await?.iter().any(allows);
    if !is_allowed {
        return Err(CreateError::Source(SourceRefusal::OtherMode {
            source_name: name.to_owned(),
            found: found.to_owned(),
            wanted,
        }));
    }
    let patch = json!({"metadata": {
        "uid": content.uid(),
        "resourceVersion": content.resource_version(),
        "annotations": {ALLOW_MODE_CHANGE: "true"},
    }});
    let (contents, name) = (there.contents(), content.name_any());
    match crash::around(Step::AllowModeChange, contents.merge(&name, &patch)).await {
        Err(error) if error.is_forbidden() => Err(CreateError::NotAccepted(error)),
        other => Ok(other.map(drop)?),
    }
}

/// The twin of a volume that can be copied.
async fn volume(there: &Site, name: &str, id: &VolumeId) -> Result<PersistentVolumeClaim, CreateError> {
    let found = settled_twin(there, Instant::now() + BINDING)
        .await
        .map_err(not_allowed)?;
    let Some(twin) = found.filter(|found| there.is_twin(&id.name, found)) else {
        return Err(CreateError::NoSource(format!(
            "{name} does not exist any more: its twin {} does not exist in the cluster {}",
            there.place(),
            there.cluster_name()
        )));
    };
    match may_change(there.home(), id, &twin).await {
        ChangeDecision::Allow => {}
        ChangeDecision::Later => {
            return Err(not_usable(
                name,
                "is being moved to another place: wait until the move has ended",
            )
            .into());
        }
        ChangeDecision::MovedOn(_) => {
            let why =
                "has moved, and the request names its earlier place: delete the request and create it again";
            return Err(not_usable(name, why).into());
        }
    }
    if twin.metadata.deletion_timestamp.is_some() {
        return Err(not_usable(name, "is being deleted").into());
    }
    if reading::is_releasing(&twin) {
        return Err(not_usable(name, "is being released: copy it with its real class after that").into());
    }
    if reading::phase(&twin) != "Bound" {
        let why = "is not bound yet; in a remote cluster it may be bound only when its pod arrives there";
        return Err(not_usable(name, why).into());
    }
    Ok(twin)
}

/// The driver that can copy a twin.
enum Copier {
    Driver {
        name: String,
        /// From where its PV is accessible.
        reached_from: Option<NodeSelector>,
    },
    NoDriver,
    Unreadable,
}

impl Copier {
    fn as_fact(&self) -> SourceDriver<'_> {
        match self {
            Self::Driver { name, .. } => SourceDriver::Csi(name),
            Self::NoDriver => SourceDriver::None,
            Self::Unreadable => SourceDriver::Unreadable("PersistentVolumes"),
        }
    }
}

async fn copier(there: &Site, twin: &PersistentVolumeClaim, name: &str) -> Result<Copier, CreateError> {
    if !there.shows_volumes() {
        return Ok(Copier::Unreadable);
    }
    let real = match reading::volume_name(twin) {
        Some(volume) => there.volumes().get(volume).await?,
        None => None,
    };
    let Some(real) = real.filter(|real| reading::is_bound_to(real, twin)) else {
        return Err(not_usable(name, "has lost its PersistentVolume").into());
    };
    Ok(match reading::driver(&real) {
        Some(driver) => Copier::Driver {
            name: driver.to_owned(),
            reached_from: facts::affinity(&real),
        },
        None => Copier::NoDriver,
    })
}

/// Whether a twin that will be a copy was created with another source or class than requested.
pub(super) fn is_changed_copy(twin: &PersistentVolumeClaim, created: &PersistentVolumeClaim) -> bool {
    let [wanted, found] = [twin, created].map(|twin| {
        let spec = twin.spec.as_ref();
        spec.map(|spec| (&spec.data_source, facts::claim_class(twin)))
    });
    wanted.is_some_and(|(source, _)| source.is_some()) && wanted != found
}

/// Why the PV of a twin is not a copy of the requested source.
pub(super) fn copy_defect(
    request: &CreateRequest,
    twin: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<&'static str> {
    let kind = match request.spec.source.as_ref()? {
        ContentSource::Snapshot(_) => SNAPSHOT,
        ContentSource::Volume(_) => CLAIM,
    };
    let named = twin.spec.as_ref().and_then(|spec| spec.data_source.as_ref());
    let created = |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.map_or(0, |time| time.0.as_second())
    };
    copy_flaw(CopyFacts {
        names_source: named.is_some_and(|named| named.kind == kind),
        by_csi: reading::driver(volume).is_some(),
        chosen: volume.annotations().contains_key(facts::BOUND_BY_CONTROLLER),
        twin_created: created(twin.metadata.creation_timestamp.as_ref()),
        volume_created: created(volume.metadata.creation_timestamp.as_ref()),
    })
}
