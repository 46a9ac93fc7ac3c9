//! Where a twin lives, and how one gets there: in the storage namespace at home
//! under the uid of its claim, or in a remote cluster under the claim's own name,
//! because pods arrive there with their volumes as they were written.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    CreateError, CreateRequest, DeleteError, NoSite,
    claimed::VirtualPv,
    reading::{self, twin_in},
};
use crate::{
    cluster::{Cluster, Objects, slim, view::View},
    fleet::{NodeKind, Registry, Remote, Unreachable},
    placement::{ClaimFact, Refusal},
    topology::{CLUSTER_KEY, Segments},
    volume::{ClaimName, ClusterId, Epoch, Marks, Owner, SpecError, VolumeId, VolumeName, digest, mark},
};

/// Where the twin of one epoch of a volume lives. Cheap to clone.
#[derive(Clone)]
pub struct Site {
    home: Cluster,
    cluster: Cluster,
    remote: Option<Arc<Remote>>,
    namespace: String,
    name: String,
    epoch: Epoch,
}

impl Site {
    /// The site of a volume's twin at home.
    #[must_use]
    pub fn local(home: &Cluster, volume: &VolumeName, epoch: Epoch) -> Self {
        Self {
            home: home.clone(),
            cluster: home.clone(),
            remote: None,
            namespace: home.storage_namespace().to_owned(),
            name: volume.home_twin(epoch),
            epoch,
        }
    }

    /// The site of a claim's twin in a remote cluster, before the volume moves.
    pub fn remote(home: &Cluster, remote: Arc<Remote>, claim: &ClaimName) -> Result<Self, NoSite> {
        let namespace = remote.namespaces.remote(&claim.namespace, &remote.id)?.to_owned();
        let name = claim.name.clone();
        Ok(Self::recorded(home, remote, namespace, name, Epoch::NEVER_MOVED)?)
    }

    /// The site of a twin in a remote cluster that was noted down before.
    pub fn recorded(
        home: &Cluster,
        remote: Arc<Remote>,
        namespace: String,
        name: String,
        epoch: Epoch,
    ) -> Result<Self, Unreachable> {
        Ok(Self {
            home: home.clone(),
            cluster: remote.reach()?,
            remote: Some(remote),
            namespace,
            name,
            epoch,
        })
    }

    /// The site of a volume that was handed over, from what its PV remembers.
    pub fn of_volume(
        home: &Cluster,
        registry: &Registry,
        id: &VolumeId,
        remembered: Option<&ClaimName>,
    ) -> Result<Option<Self>, Unreachable> {
        if id.cluster == *home.id() {
            return Ok(Some(Self::local(home, &id.name, id.epoch)));
        }
        let remote = registry.get(&id.cluster)?;
        let Some(twin) = remembered else {
            return Ok(None);
        };
        let (namespace, name) = (twin.namespace.clone(), twin.name.clone());
        Self::recorded(home, remote, namespace, name, id.epoch).map(Some)
    }

    /// The cluster of the user.
    #[must_use]
    pub fn home(&self) -> &Cluster {
        &self.home
    }

    /// The cluster of the twin.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The remote cluster, if it is one.
    #[must_use]
    pub fn remote_cluster(&self) -> Option<&Arc<Remote>> {
        self.remote.as_ref()
    }

    /// Namespace of the twin.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name of the twin.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How often the volume had moved when its twin got there.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Namespace and name of the twin: how people are told of it, and its key in the view.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Name of its cluster, for people.
    #[must_use]
    pub fn cluster_name(&self) -> String {
        self.cluster.id().to_string()
    }

    /// The claims of the twin's namespace.
    #[must_use]
    pub fn twins(&self) -> Objects<PersistentVolumeClaim> {
        self.cluster.within(&self.namespace)
    }

    /// The PVs of the twin's cluster.
    #[must_use]
    pub fn volumes(&self) -> Objects<PersistentVolume> {
        self.cluster.all()
    }

    /// The view that shows the twin.
    #[must_use]
    pub fn view(&self) -> View<slim::Twin> {
        self.cluster.twins_in(&self.namespace)
    }

    /// The twin as it was a moment ago.
    #[must_use]
    pub fn seen(&self) -> Option<Arc<slim::Twin>> {
        self.view().get(&self.place())
    }

    /// Whether what is at the site belongs to a volume of ours.
    #[must_use]
    pub fn owner(&self, volume: &VolumeName) -> Owner {
        Owner::of_volume(self.home.id().clone(), volume.clone(), self.epoch)
    }

    /// Whether a claim is the twin of this volume.
    #[must_use]
    pub fn is_twin(&self, volume: &VolumeName, claim: &PersistentVolumeClaim) -> bool {
        let owner = self.owner(volume);
        owner.recognise(claim.labels(), claim.annotations()).is_ok()
    }

    /// Whether PVs can be read there.
    #[must_use]
    pub fn shows_volumes(&self) -> bool {
        self.cluster.rights().volumes
    }

    /// Whether a living twin here has our finalizer: where we could do nothing for
    /// its data it would only be in the way.
    #[must_use]
    pub fn protects(&self) -> bool {
        let wanted = self.remote.as_ref().is_none_or(|remote| remote.protect);
        wanted && self.cluster.rights().volume_changes
    }
}

/// Finds where the twin of a request is to be, from where its claim's pod was sent.
pub(super) async fn find_new(
    home: &Cluster,
    registry: &Registry,
    request: &CreateRequest,
    claim: &(ClaimFact, Option<PersistentVolumeClaim>),
) -> Result<Site, CreateError> {
    let (fact, claim) = claim;
    let Some(remote) = remote_of(home, registry, request, claim.as_ref()).await? else {
        return Ok(Site::local(home, &request.volume, Epoch::NEVER_MOVED));
    };
    let Some(name) = &request.spec.parameters.claim else {
        return Err(CreateError::Spec(SpecError::NotRemotely {
            field: "a volume without a claim",
            why: "its twin has the name of the claim; csi-provisioner tells it with --extra-create-metadata",
        }));
    };
    match Site::remote(home, remote, name) {
        Ok(site) => Ok(site),
        // Nobody waits for it, and what may be left of it is found by the orphans' loop.
        Err(NoSite::Unmapped(_)) if *fact == ClaimFact::Gone => Err(CreateError::Refused {
            twin: name.to_string(),
            cluster: home.id().to_string(),
            refusal: Refusal::ClaimGone,
        }),
        Err(other) => Err(other.into()),
    }
}

/// The remote cluster the volume is for; `None` for the home cluster.
async fn remote_of(
    home: &Cluster,
    registry: &Registry,
    request: &CreateRequest,
    claim: Option<&PersistentVolumeClaim>,
) -> Result<Option<Arc<Remote>>, CreateError> {
    let Some(name) = claim.and_then(reading::selected_node) else {
        let requested = requested_cluster(home.id(), &request.volume, &request.requisite);
        return Ok(match requested {
            Some(id) => Some(registry.get(&id).map_err(NoSite::from)?),
            None => None,
        });
    };
    let Some(node) = reading::node(home, name).await? else {
        return Ok(None);
    };
    match registry.behind(&node) {
        NodeKind::Virtual(remote) => Ok(Some(remote)),
        NodeKind::Disputed(clusters) => Err(CreateError::NoSite(NoSite::Disputed {
            node: name.to_owned(),
            clusters,
        })),
        NodeKind::Real => {
            let label = node.labels.get(CLUSTER_KEY).and_then(|id| id.parse().ok());
            match label.filter(|id: &ClusterId| id != home.id()) {
                // It stood for a cluster that nobody declares any more.
                Some(id) => Err(CreateError::NoSite(Unreachable::Unknown(id).into())),
                None => Ok(None),
            }
        }
    }
}

/// The remote cluster of a request that names no place in the home cluster. Of several
/// always the same one for a volume: the next call has to find the twin of this one.
fn requested_cluster(home: &ClusterId, volume: &VolumeName, requisite: &[Segments]) -> Option<ClusterId> {
    let cluster = |place: &Segments| place.get(CLUSTER_KEY).and_then(|id| id.parse::<ClusterId>().ok());
    if requisite
        .iter()
        .any(|place| cluster(place).as_ref() == Some(home))
    {
        return None;
    }
    let whole = |id: &ClusterId, place: &Segments| {
        // Where in a remote cluster a volume is to be cannot be asked for.
        place.admits(&Segments::of_cluster(id).into_map())
    };
    requisite
        .iter()
        .filter_map(|place| cluster(place).filter(|id| whole(id, place)))
        .min_by_key(|id| digest(16, [volume.as_str(), id.as_str()]))
}

/// Where the twin of a volume is.
pub(super) struct Found {
    /// `None` if it is seen to be nowhere.
    pub(super) site: Option<Site>,
    /// The virtual PV, if it was read to find that.
    pub(super) outer: Option<VirtualPv>,
}

/// Finds where the twin of a volume is; `None` if it is seen to be nowhere.
pub(super) async fn find_again(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
) -> Result<Option<Site>, DeleteError> {
    Ok(find(home, registry, id).await?.site)
}

/// Finds where the twin of a volume is: as its PV remembers, or by looking for it.
pub(super) async fn find(home: &Cluster, registry: &Registry, id: &VolumeId) -> Result<Found, DeleteError> {
    if id.cluster == *home.id() {
        return Ok(Found {
            site: Some(Site::local(home, &id.name, id.epoch)),
            outer: None,
        });
    }
    let remote = registry.get(&id.cluster)?;
    let cluster = remote.reach()?;
    let outer = VirtualPv::read(home, &id.name).await?;
    let site = match outer.of_epoch(id.epoch).and_then(twin_in) {
        Some(twin) => Some(Site::recorded(home, remote, twin.namespace, twin.name, id.epoch)?),
        None => search(home, &remote, &cluster, id).await?,
    };
    Ok(Found {
        site,
        outer: Some(outer),
    })
}

/// Looks for the twin of a volume whose PV does not say where it is. Kubernetes asks for nothing
/// of a volume without a PV, so this is not needed but for what people do by hand.
async fn search(
    home: &Cluster,
    remote: &Arc<Remote>,
    cluster: &Cluster,
    id: &VolumeId,
) -> Result<Option<Site>, DeleteError> {
    let at = |twin: &PersistentVolumeClaim| {
        let namespace = twin.namespace().unwrap_or_default();
        Site::recorded(home, Arc::clone(remote), namespace, twin.name_any(), id.epoch)
    };
    // A volume that moves has several twins for a time.
    let is_its = |twin: &&PersistentVolumeClaim| {
        let marks = Marks::read(twin.labels(), twin.annotations());
        marks.is_ok_and(|marks| marks.epoch == id.epoch)
    };
    let ours = mark::volume_selector(home.id(), &id.name);
    if cluster.rights().all_claims {
        let found = cluster.all::<PersistentVolumeClaim>().list(Some(&ours)).await?;
        return Ok(found.iter().find(is_its).map(at).transpose()?);
    }
    for namespace in remote.namespaces.named() {
        let found = cluster
            .within::<PersistentVolumeClaim>(namespace)
            .list(Some(&ours))
            .await?;
        if let Some(twin) = found.iter().find(is_its) {
            return Ok(Some(at(twin)?));
        }
    }
    Err(DeleteError::Unknown(format!(
        "the PersistentVolume {} that says where its twin is is gone, and claims of the cluster {} can only be read in \
         namespaces that are offloaded now",
        id.name, id.cluster
    )))
}
