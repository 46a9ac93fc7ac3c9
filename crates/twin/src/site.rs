//! Where a twin lives: at home in the storage namespace under the uid of its claim, or in a remote
//! cluster under the name of the claim, because pods there refer to their claims by that name.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{
    CreateError, CreateRequest, NoSite,
    claimed::VirtualPv,
    errors::FindError,
    identity::is_other,
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

    /// The site of a claim's twin in a remote cluster, for a volume that has not moved.
    pub fn remote(home: &Cluster, remote: Arc<Remote>, claim: &ClaimName) -> Result<Self, NoSite> {
        let namespace = remote.namespaces.remote(&claim.namespace, &remote.id)?.to_owned();
        let name = claim.name.clone();
        Ok(Self::recorded(home, remote, namespace, name, Epoch::NEVER_MOVED)?)
    }

    /// The site of a twin in a remote cluster whose namespace and name are recorded.
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

    /// The site of a handed-over volume; `remembered` is the twin that its PV records.
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

    #[must_use]
    pub fn home(&self) -> &Cluster {
        &self.home
    }

    /// The cluster of the twin.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The remote cluster; `None` at home.
    #[must_use]
    pub fn remote_cluster(&self) -> Option<&Arc<Remote>> {
        self.remote.as_ref()
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The epoch of the volume to which the twin belongs.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The twin as namespace/name, for messages; also its key in the view.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Name of the twin's cluster, for messages.
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

    #[must_use]
    pub fn view(&self) -> View<slim::Twin> {
        self.cluster.twins_in(&self.namespace)
    }

    /// The twin, from the view.
    #[must_use]
    pub fn seen(&self) -> Option<Arc<slim::Twin>> {
        self.view().get(&self.place())
    }

    /// The expected owner of the object at the site.
    #[must_use]
    pub fn owner(&self, volume: &VolumeName) -> Owner {
        Owner::of_volume(self.home.id().clone(), volume.clone(), self.epoch)
    }

    #[must_use]
    pub fn is_twin(&self, volume: &VolumeName, claim: &PersistentVolumeClaim) -> bool {
        let owner = self.owner(volume);
        owner.recognise(claim.labels(), claim.annotations()).is_ok()
    }

    /// Whether this driver may read the PVs of the twin's cluster.
    #[must_use]
    pub fn shows_volumes(&self) -> bool {
        self.cluster.rights().volumes
    }

    /// Whether a living twin here has the driver's finalizer: where the driver may not retain the data,
    /// the finalizer would only block the deletion.
    #[must_use]
    pub fn protects(&self) -> bool {
        let wanted = self.remote.as_ref().is_none_or(|remote| remote.protect);
        wanted && self.cluster.rights().volume_changes
    }
}

/// The site of the twin of a request, from the node that was selected for its claim.
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
            why: "its twin has the name of the claim, which csi-provisioner passes with --extra-create-metadata",
        }));
    };
    match Site::remote(home, remote, name) {
        Ok(site) => Ok(site),
        // No client waits for the volume, and the orphans' loop finds what may be left of it.
        Err(NoSite::Unmapped(_)) if *fact == ClaimFact::Gone => Err(CreateError::Refused {
            twin: name.to_string(),
            cluster: home.id().to_string(),
            refusal: Refusal::ClaimGone,
        }),
        Err(other) => Err(other.into()),
    }
}

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
                // The node represented a cluster that is no longer declared.
                Some(id) => Err(CreateError::NoSite(Unreachable::Unknown(id).into())),
                None => Ok(None),
            }
        }
    }
}

/// The remote cluster of a request whose topology excludes the home cluster. Among several, always the
/// same one for a volume: the next call has to find the twin of this one.
fn requested_cluster(home: &ClusterId, volume: &VolumeName, requisite: &[Segments]) -> Option<ClusterId> {
    let cluster = |place: &Segments| place.get(CLUSTER_KEY).and_then(|id| id.parse::<ClusterId>().ok());
    if requisite
        .iter()
        .any(|place| cluster(place).as_ref() == Some(home))
    {
        return None;
    }
    let is_whole_cluster = |id: &ClusterId, place: &Segments| {
        // A request cannot select a place within a remote cluster.
        place.admits(&Segments::of_cluster(id).into_map())
    };
    requisite
        .iter()
        .filter_map(|place| cluster(place).filter(|id| is_whole_cluster(id, place)))
        .min_by_key(|id| digest(16, [volume.as_str(), id.as_str()]))
}

/// The site of an existing volume.
pub(super) struct Found {
    /// `None` if the twin exists nowhere.
    pub(super) site: Option<Site>,
    /// The virtual PV, if it was read in the search.
    pub(super) virtual_pv: Option<VirtualPv>,
}

/// The site of an existing volume; `None` if the twin exists nowhere.
pub(super) async fn find_existing(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
) -> Result<Option<Site>, FindError> {
    Ok(find(home, registry, id).await?.site)
}

/// Finds the site of an existing volume: as its PV records it, otherwise by a search for the twin.
pub(super) async fn find(home: &Cluster, registry: &Registry, id: &VolumeId) -> Result<Found, FindError> {
    if id.cluster == *home.id() {
        return Ok(Found {
            site: Some(Site::local(home, &id.name, id.epoch)),
            virtual_pv: None,
        });
    }
    let virtual_pv = VirtualPv::read(home, &id.name).await?;
    Ok(Found {
        site: find_by(home, registry, id, &virtual_pv).await?,
        virtual_pv: Some(virtual_pv),
    })
}

/// Finds the site of an existing volume with this virtual PV, like [`find`].
pub(super) async fn find_by(
    home: &Cluster,
    registry: &Registry,
    id: &VolumeId,
    virtual_pv: &VirtualPv,
) -> Result<Option<Site>, FindError> {
    if id.cluster == *home.id() {
        return Ok(Some(Site::local(home, &id.name, id.epoch)));
    }
    let remote = registry.get(&id.cluster)?;
    let cluster = remote.reach()?;
    match virtual_pv.of_epoch(id.epoch).and_then(twin_in) {
        Some(twin) => Ok(Some(Site::recorded(
            home,
            remote,
            twin.namespace,
            twin.name,
            id.epoch,
        )?)),
        None => search(home, &remote, &cluster, id).await,
    }
}

/// Searches the twin of a volume of which no PV records where it is: this is needed only for requests and PVs that a
/// user makes by hand.
async fn search(
    home: &Cluster,
    remote: &Arc<Remote>,
    cluster: &Cluster,
    id: &VolumeId,
) -> Result<Option<Site>, FindError> {
    let at = |twin: &PersistentVolumeClaim| {
        let namespace = twin.namespace().unwrap_or_default();
        Site::recorded(home, Arc::clone(remote), namespace, twin.name_any(), id.epoch)
    };
    // During a move a volume has several twins.
    let is_its = |twin: &&PersistentVolumeClaim| {
        let marks = Marks::read(twin.labels(), twin.annotations());
        marks.is_ok_and(|marks| marks.epoch == id.epoch)
    };
    let ours = mark::volume_selector(home.id(), &id.name);
    if cluster.rights().all_claims {
        let found = cluster.all::<PersistentVolumeClaim>().list(Some(&ours)).await?;
        if let Some(twin) = found.iter().find(is_its) {
            return Ok(Some(at(twin)?));
        }
        let unknown = is_other(home, cluster, remote).await?;
        return unknown.map_or(Ok(None), |why| Err(FindError::NoRecord(why)));
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
    Err(FindError::NoRecord(format!(
        "no PersistentVolume {} records where its twin is, and claims of the cluster {} can only be read \
         in namespaces that are offloaded now",
        id.name, id.cluster
    )))
}
