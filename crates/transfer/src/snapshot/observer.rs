//! Observes the import of a snapshot: the user's object, the real content with the record, the twin.
//! Everything is read live, the user's object first. So if the rest was ready and the object is then deleted
//! in the version that was read, no undo can have happened in between.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    RETAIN, SnapshotImportRequest, SnapshotTransferError,
    contents::{imported, is_leaving, is_retained, stored_in},
    obstacles::find_obstacles,
};
use crate::{
    Context,
    cluster::{
        ApiError, Cluster,
        snapshots::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, is_ready},
    },
    observer::namespace_uid,
    placement::{
        ImportedContent, ImportedTwin, SnapshotImportFacts, SnapshotObstacle, StoredSnapshot, UserSnapshot,
    },
    twin::CONTROLLER_SEES,
    volume::{
        ClaimName, DRIVER_NAME, SnapshotId, SnapshotImport, SnapshotKey, SnapshotMarks, import_key,
        imported_content, mark,
    },
};

/// The name of the class that the chart creates.
const USUAL_CLASS: &str = "liqo";

/// The observed objects.
pub(super) struct Observed {
    /// The user's object.
    pub(super) user: Option<VolumeSnapshot>,
    /// The original content with the data.
    pub(super) real: Option<VolumeSnapshotContent>,
    /// The record on it, or the one that would be written.
    pub(super) plan: Option<SnapshotImport>,
    /// The twin, or another object of its name.
    pub(super) twin: Option<VolumeSnapshot>,
    /// The content of the twin.
    pub(super) content: Option<VolumeSnapshotContent>,
    /// The node affinity of the volume of which this is a snapshot.
    pub(super) affinity: Option<String>,
    /// The facts for the next step.
    pub(super) facts: SnapshotImportFacts,
    classes: Vec<VolumeSnapshotClass>,
}

/// Observes the same content each time.
#[derive(Default)]
pub(super) struct Observer {
    /// The data of the last observed record.
    recorded: Option<StoredSnapshot>,
    /// The uid of the snapshot in it.
    uid: Option<String>,
    /// Since when all contents were observed as retained.
    retained: Option<Instant>,
}

impl Observer {
    pub(super) async fn observe(
        &mut self,
        context: &Context<'_>,
        request: &SnapshotImportRequest,
    ) -> Result<Observed, SnapshotTransferError> {
        let cluster = context.cluster;
        let (name, contents) = (&request.snapshot, cluster.all::<VolumeSnapshotContent>());
        let (user, real, record) = self.snapshot(cluster, name).await?;
        let namespace_uid = namespace_uid(cluster, name).await?.unwrap_or_default();
        if let (Some(record), Some(real)) = (&record, &real)
            && record.namespace_uid != namespace_uid
        {
            return Err(SnapshotTransferError::OtherNamespace {
                snapshot: name.clone(),
                content: real.name_any(),
                policy: record.policy.clone(),
            });
        }
        let classes = cluster.all::<VolumeSnapshotClass>().list(None).await?;
        let mut obstacles = Vec::new();
        let plan = match (&record, &user, &real) {
            (Some(record), ..) => Some(updated_record(record, user.as_ref())?),
            (None, Some(user), Some(real)) => match class_for(request.class.as_deref(), &classes) {
                Ok(class) => Some(planned(name, namespace_uid, user, real, class)?),
                Err(why) => {
                    obstacles.push(SnapshotObstacle::NoClass(why));
                    None
                }
            },
            (None, ..) => None,
        };
        // Also without a record: it is gone if the import has not observed an undo in time, or if the
        // original content is gone.
        if let Some(record) = &record {
            self.uid = Some(record.uid.clone());
        }
        let uid = self.uid.clone().or_else(|| user.as_ref()?.uid());
        let key = import_key(&uid.unwrap_or_default());
        let stored = cluster.within::<VolumeSnapshot>(context.storage_namespace);
        let (twin_name, user_name) = (key.twin(), imported_content(&key));
        let (twin, of_twin, of_user) = tokio::try_join!(
            stored.get(&twin_name),
            contents.get(&twin_name),
            contents.get(&user_name)
        )?;
        let affinity = match &real {
            Some(real) if record.is_some() && twin.is_none() => affinity(cluster, real).await?,
            _ => None,
        };
        if let Some(user) = &user {
            obstacles.extend(find_obstacles(context, request, user, real.as_ref()).await?);
        }
        if let (Some(record), Some(asked)) = (&record, &request.class)
            && record.class != *asked
        {
            obstacles.push(SnapshotObstacle::BegunWith(record.class.clone()));
        }
        let begun = self.recorded.is_some();
        let bound = user.as_ref().and_then(bound_content);
        let mut data = match (&self.recorded, &real) {
            (Some(seen), _) if record.is_none() => seen.clone(),
            (_, Some(real)) => stored_in(real),
            (_, None) => data_of_twin_content(bound, of_twin.as_ref()),
        };
        let retained = real.as_ref().is_some_and(is_retained);
        let twin_place = (context.storage_namespace, key.twin());
        let twin_content = of_twin.as_ref().map_or(ImportedContent::Absent, |found| {
            imported(found, &data, &twin_place, twin.as_ref())
        });
        data.second = match twin_content {
            ImportedContent::Sound | ImportedContent::Outlived(_) => Some(twin_name),
            _ => None,
        };
        if record.is_some() && self.recorded.replace(data.clone()).is_none() {
            // Until then the content had its original policy.
            self.retained = None;
        }
        let all_retained = (record.is_none() || retained) && twin_content != ImportedContent::Unretained;
        let facts = SnapshotImportFacts {
            recorded: record.is_some(),
            begun,
            data,
            // If false, the plan is recorded (again).
            secured: retained && (record.is_none() || plan == record),
            leaving: real.as_ref().map_or(begun || bound.is_some(), is_leaving),
            seen: self.controller_has_seen(all_retained),
            user: user_fact(user.as_ref(), real.as_ref(), record.as_ref()),
            content: twin_content,
            twin: twin_fact(request, &key, twin.as_ref()),
            user_content: user_content_fact(request, &key, of_user.as_ref(), user.as_ref()),
            obstacles,
            unmakeable: None,
        };
        Ok(Observed {
            user,
            real,
            plan,
            twin,
            content: of_twin,
            affinity,
            facts,
            classes,
        })
    }

    /// Whether the snapshot-controller must have observed that all contents of the data are retained.
    fn controller_has_seen(&mut self, all_retained: bool) -> bool {
        if !all_retained {
            self.retained = None;
            return false;
        }
        let since = *self.retained.get_or_insert_with(Instant::now);
        since.elapsed() >= CONTROLLER_SEES
    }

    /// The user's object, the content with the data and its record: the content that is being imported under
    /// this name, or else that of the user's object.
    async fn snapshot(
        &self,
        cluster: &Cluster,
        name: &ClaimName,
    ) -> Result<
        (
            Option<VolumeSnapshot>,
            Option<VolumeSnapshotContent>,
            Option<SnapshotImport>,
        ),
        SnapshotTransferError,
    > {
        let users = cluster.within::<VolumeSnapshot>(&name.namespace);
        let user = users.get(&name.name).await?;
        if let Some((real, record)) = self.recorded(cluster, name).await? {
            return Ok((user, Some(real), Some(record)));
        }
        // The import may have ended, or been undone, since the first read.
        let user = users.get(&name.name).await?;
        let real = match user.as_ref().and_then(bound_content) {
            Some(bound) => cluster.all::<VolumeSnapshotContent>().get(bound).await?,
            None => None,
        };
        Ok((user, real, None))
    }

    /// The content that is being imported under this name, and its record.
    async fn recorded(
        &self,
        cluster: &Cluster,
        name: &ClaimName,
    ) -> Result<Option<(VolumeSnapshotContent, SnapshotImport)>, SnapshotTransferError> {
        let contents = cluster.all::<VolumeSnapshotContent>();
        if let Some(known) = &self.recorded
            && let Some(content) = contents.get(&known.content).await?
            && let Some(record) = record_for(name, &content)?
        {
            return Ok(Some((content, record)));
        }
        let marked =
            |content: &VolumeSnapshotContent| content.annotations().contains_key(mark::IMPORT_SNAPSHOT);
        for content in contents.find(marked).await? {
            if let Some(record) = record_for(name, &content)? {
                return Ok(Some((content, record)));
            }
        }
        Ok(None)
    }
}

impl Observed {
    /// The deletion policy of the class.
    pub(super) fn virtual_policy(&self, class: &str) -> String {
        let found = self.classes.iter().find(|one| one.name_any() == class);
        found.map_or_else(|| RETAIN.to_owned(), |class| class.deletion_policy.clone())
    }
}

pub(super) fn bound_content(user: &VolumeSnapshot) -> Option<&str> {
    let status = user.status.as_ref()?;
    status.bound_volume_snapshot_content_name.as_deref()
}

/// The record on a content, if that is being imported under this name.
fn record_for(
    name: &ClaimName,
    content: &VolumeSnapshotContent,
) -> Result<Option<SnapshotImport>, SnapshotTransferError> {
    let is_its = |record: &SnapshotImport| record.namespace == name.namespace && record.name == name.name;
    match SnapshotImport::read(content.annotations()) {
        Ok(record) => Ok(record.filter(is_its)),
        Err(error) if refers_to(content, name) => {
            Err(SnapshotTransferError::Record(content.name_any(), error))
        }
        // An import of another snapshot.
        Err(_) => Ok(None),
    }
}

/// Whether a content belongs to the snapshot of this name.
fn refers_to(content: &VolumeSnapshotContent, name: &ClaimName) -> bool {
    let of = &content.spec.volume_snapshot_ref;
    of.namespace.as_ref() == Some(&name.namespace) && of.name.as_ref() == Some(&name.name)
}

/// The record with the user's later changes of the snapshot, until that is deleted.
fn updated_record(
    record: &SnapshotImport,
    user: Option<&VolumeSnapshot>,
) -> Result<SnapshotImport, serde_json::Error> {
    let is_old = |user: &&VolumeSnapshot| user.uid().as_ref() == Some(&record.uid) && !is_leaving(*user);
    match user.filter(is_old) {
        Some(user) => with_user(record.clone(), user),
        None => Ok(record.clone()),
    }
}

fn with_user(record: SnapshotImport, user: &VolumeSnapshot) -> Result<SnapshotImport, serde_json::Error> {
    let owners = user.metadata.owner_references.iter().flatten();
    let owners = owners.map(serde_json::to_value).collect::<Result<_, _>>()?;
    Ok(record.with(user.labels(), user.annotations(), owners))
}

fn planned(
    name: &ClaimName,
    namespace_uid: String,
    user: &VolumeSnapshot,
    real: &VolumeSnapshotContent,
    class: String,
) -> Result<SnapshotImport, serde_json::Error> {
    let record = SnapshotImport::new(
        name,
        namespace_uid,
        user.uid().unwrap_or_default(),
        class,
        real.spec.deletion_policy.clone(),
    );
    with_user(record, user)
}

/// The requested class, or else the only one of this driver, or else the chart's.
fn class_for(asked: Option<&str>, classes: &[VolumeSnapshotClass]) -> Result<String, String> {
    let ours = classes.iter().filter(|class| class.driver == DRIVER_NAME);
    let ours: Vec<String> = ours.map(ResourceExt::name_any).collect();
    match (asked, ours.as_slice()) {
        (Some(asked), ours) if ours.iter().any(|one| one == asked) => Ok(asked.to_owned()),
        (Some(asked), _) => Err(format!(
            "no VolumeSnapshotClass of the driver {DRIVER_NAME} has the name {asked}; there are: {}",
            ours.join(", ")
        )),
        (None, [only]) => Ok(only.clone()),
        (None, ours) if ours.iter().any(|one| one == USUAL_CLASS) => Ok(USUAL_CLASS.to_owned()),
        (None, []) => Err(format!(
            "there is no VolumeSnapshotClass of the driver {DRIVER_NAME}: create one (docs/snapshots.md)"
        )),
        (None, ours) => Err(format!(
            "choose one of the classes with --class: {}",
            ours.join(", ")
        )),
    }
}

fn user_fact(
    user: Option<&VolumeSnapshot>,
    real: Option<&VolumeSnapshotContent>,
    record: Option<&SnapshotImport>,
) -> UserSnapshot {
    let Some(user) = user else {
        return UserSnapshot::Absent;
    };
    let uid = user.uid().unwrap_or_default();
    let of = user.spec.source.volume_snapshot_content_name.as_deref();
    let is_new = match record {
        Some(record) => of == Some(&record.user_content()),
        None => {
            real.is_some_and(|bound| bound.spec.driver == DRIVER_NAME)
                && of.is_some_and(|of| of.starts_with("imported-"))
        }
    };
    if is_new {
        UserSnapshot::New {
            ready: is_ready(user),
        }
    } else if record.is_none_or(|record| record.uid == uid) {
        UserSnapshot::Old {
            deleting: is_leaving(user),
            touched: user.annotations().contains_key(mark::IMPORT_UNDONE),
        }
    } else {
        UserSnapshot::Other
    }
}

fn user_content_fact(
    request: &SnapshotImportRequest,
    key: &SnapshotKey,
    found: Option<&VolumeSnapshotContent>,
    user: Option<&VolumeSnapshot>,
) -> ImportedContent {
    let Some(found) = found else {
        return ImportedContent::Absent;
    };
    let twins_data = StoredSnapshot {
        driver: DRIVER_NAME.to_owned(),
        handle: SnapshotId::new(request.home.clone(), None, key.clone()).to_string(),
        ..StoredSnapshot::default()
    };
    let ClaimName { namespace, name } = request.snapshot.clone();
    imported(found, &twins_data, &(&namespace, name), user)
}

fn twin_fact(
    request: &SnapshotImportRequest,
    key: &SnapshotKey,
    twin: Option<&VolumeSnapshot>,
) -> ImportedTwin {
    let Some(twin) = twin else {
        return ImportedTwin::Absent;
    };
    let recognised = SnapshotMarks::recognise(&request.home, key, twin.labels(), twin.annotations());
    let leads_to = twin.spec.source.volume_snapshot_content_name.as_ref();
    if recognised.is_err() || leads_to != Some(&key.twin()) {
        ImportedTwin::Foreign
    } else if is_leaving(twin) {
        ImportedTwin::Deleting
    } else if is_ready(twin) {
        ImportedTwin::Ready
    } else {
        ImportedTwin::Waiting
    }
}

/// The data, if the original content is gone: from the content of the twin.
fn data_of_twin_content(bound: Option<&str>, of_twin: Option<&VolumeSnapshotContent>) -> StoredSnapshot {
    StoredSnapshot {
        content: bound.unwrap_or_default().to_owned(),
        ..of_twin.map(stored_in).unwrap_or_default()
    }
}

/// The node affinity of the volume of which the content is a snapshot, if that still exists.
async fn affinity(cluster: &Cluster, real: &VolumeSnapshotContent) -> Result<Option<String>, ApiError> {
    let Some(handle) = &real.spec.source.volume_handle else {
        return Ok(None);
    };
    let is_its = |volume: &PersistentVolume| {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| csi.driver == real.spec.driver && csi.volume_handle == *handle)
    };
    let found = cluster.all::<PersistentVolume>().find(is_its).await?;
    let required = found.first().and_then(|volume| {
        let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
        serde_json::to_string(affinity.required.as_ref()?).ok()
    });
    Ok(required)
}
