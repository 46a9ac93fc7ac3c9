//! The rows for snapshots in `liqo-csi volumes`. Twins in other clusters cannot be read from here; the ids
//! of the snapshots name their clusters.

use std::collections::BTreeSet;

use kube::ResourceExt;
use serde::{Serialize, Serializer};

use super::{Listing, Scope, names::Name};
use crate::{
    cluster::{
        Cluster,
        snapshots::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, is_ready},
    },
    volume::{ClusterId, DRIVER_NAME, SnapshotId, SnapshotImport, SnapshotKey, SnapshotMarks, mark},
};

const RETAIN: &str = "Retain";

/// The objects of the snapshots of this driver. Where their kinds are not installed there are none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshots {
    pub(super) home: Option<ClusterId>,
    /// Snapshots of users, of all drivers.
    pub(super) of_users: Listing<VolumeSnapshot>,
    /// Snapshots with the marks of this driver.
    pub(super) twins: Listing<VolumeSnapshot>,
    /// Contents, of all drivers.
    pub(super) contents: Listing<VolumeSnapshotContent>,
    /// Classes, of all drivers.
    pub(super) classes: Listing<VolumeSnapshotClass>,
}

impl Snapshots {
    /// Never fails: what could not be read is in [`Self::unknown`].
    pub(crate) async fn read(
        cluster: &Cluster,
        scope: &Scope,
        storage_namespace: Option<&str>,
        home: Option<ClusterId>,
    ) -> Self {
        let ours = format!("{}={}", mark::MANAGED_BY, mark::MANAGED_BY_US);
        let classes = cluster.all();
        // A content names the twin and the snapshot, and the twin the snapshot: these existed before it.
        let contents = cluster.all().select(None, None).await;
        let (taken, twins) = match scope {
            // The twins are among them: those of remote clusters may be in any namespace.
            Scope::All => (cluster.all::<VolumeSnapshot>(), None),
            Scope::Namespace(namespace) => {
                let twins = Listing::with_twins(cluster, storage_namespace, Some(&ours), None).await;
                (cluster.within(namespace), Some(twins))
            }
        };
        let (snapshots, classes) = tokio::join!(taken.select(None, None), classes.select(None, None));
        let (marked, of_users) = Listing::of_installed(snapshots).partition(is_twin);
        Self {
            home,
            of_users,
            twins: twins.unwrap_or(marked),
            contents: Listing::of_installed(contents),
            classes: Listing::of_installed(classes),
        }
    }

    /// What could not be read, and why.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let refusals = [
            ("which snapshots there are", self.of_users.refusal()),
            ("which twins of snapshots there are", self.twins.refusal()),
            ("which contents of snapshots there are", self.contents.refusal()),
            ("which classes of snapshots there are", self.classes.refusal()),
        ];
        let unknown = refusals
            .into_iter()
            .filter_map(|(what, why)| why.map(|why| format!("{what}: {why}")));
        unknown.collect()
    }

    fn is_of_ours(&self, snapshot: &VolumeSnapshot) -> bool {
        let class = snapshot.spec.volume_snapshot_class_name.as_deref();
        let class = class.and_then(|name| self.classes.named(None, name));
        class.is_some_and(|class| class.driver == DRIVER_NAME)
    }
}

fn is_twin(snapshot: &VolumeSnapshot) -> bool {
    mark::manager(snapshot.labels()) == Some(mark::MANAGED_BY_US)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotState {
    /// Volumes can be created from it.
    Ready,
    /// It is not taken, or not ready yet.
    Pending,
    /// It is being deleted.
    Deleting,
    /// The `VolumeSnapshot` is gone; its content keeps the data.
    Retained,
    /// Only the twin is left; the driver does not delete it.
    Orphaned,
    /// The twin serves another home cluster.
    Guest,
    /// Its twin is gone.
    TwinVanished,
    /// It could not be read.
    Unknown,
}

impl SnapshotState {
    pub(crate) const ALL: [Self; 8] = [
        Self::Ready,
        Self::Pending,
        Self::Deleting,
        Self::Retained,
        Self::Orphaned,
        Self::Guest,
        Self::TwinVanished,
        Self::Unknown,
    ];

    /// The name that commands print.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Pending => "Pending",
            Self::Deleting => "Deleting",
            Self::Retained => "Retained",
            Self::Orphaned => "Orphaned",
            Self::Guest => "Guest",
            Self::TwinVanished => "TwinVanished",
            Self::Unknown => "Unknown",
        }
    }
}

impl Serialize for SnapshotState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A snapshot, as `-o json` prints it. Fields are added, never renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotRow {
    /// The user's `VolumeSnapshot`, also a deleted one whose name other objects have.
    pub(crate) snapshot: Option<Name>,
    pub(crate) class: Option<String>,
    /// Its source: a claim, or the id of a volume.
    pub(crate) source: Option<String>,
    /// The minimum size of a volume that is created from it.
    pub(crate) size: Option<String>,
    pub(crate) state: SnapshotState,
    /// The reason, as a sentence; empty if there is no problem.
    pub(crate) message: String,
    /// What to do, if that is known.
    pub(crate) advice: String,
    /// Its CSI snapshot handle.
    pub(crate) id: Option<String>,
    pub(crate) twin: Option<Name>,
    /// The cluster of the twin.
    pub(crate) cluster: Option<String>,
}

/// The objects of one snapshot.
#[derive(Default)]
struct Case<'a> {
    snapshot: Option<&'a VolumeSnapshot>,
    content: Option<&'a VolumeSnapshotContent>,
    twin: Option<&'a VolumeSnapshot>,
    marks: Option<SnapshotMarks>,
    id: Option<SnapshotId>,
}

/// The snapshots of this driver, by the names of the user's objects.
pub(crate) fn snapshot_rows(all: &Snapshots, scope: &Scope) -> Vec<SnapshotRow> {
    let cases = cases(all).into_iter();
    let mut rows: Vec<SnapshotRow> = cases
        .map(|case| row(&case, all))
        .filter(|row| match scope {
            Scope::All => true,
            Scope::Namespace(asked) => row.snapshot.as_ref().is_some_and(|it| it.namespace == *asked),
        })
        .collect();
    rows.sort_by(|a, b| {
        let key = |row: &SnapshotRow| (row.snapshot.is_none(), row.snapshot.clone(), row.id.clone());
        key(a).cmp(&key(b))
    });
    rows
}

fn cases(all: &Snapshots) -> Vec<Case<'_>> {
    let twins: Vec<(&VolumeSnapshot, SnapshotMarks)> = all
        .twins
        .iter()
        .filter_map(|twin| Some((twin, SnapshotMarks::read(twin.labels(), twin.annotations()).ok()?)))
        .collect();
    let twin_of = |id: &SnapshotId| {
        let is_here = all.home.as_ref() == Some(&id.cluster);
        let found = twins.iter().find(|(_, marks)| is_here && marks.key == id.key);
        found.map(|(twin, marks)| (*twin, marks.clone()))
    };
    let mut cases = Vec::new();
    // A snapshot that is being imported is in use, although no content refers to it yet.
    let imports = all
        .contents
        .iter()
        .filter_map(|it| SnapshotImport::read(it.annotations()).ok()?);
    let mut held: BTreeSet<SnapshotKey> = imports.map(|record| record.key()).collect();
    let mut bound = BTreeSet::new();
    for content in all.contents.iter().filter(|it| it.spec.driver == DRIVER_NAME) {
        let user = &content.spec.volume_snapshot_ref;
        let name = (
            user.namespace.as_deref(),
            user.name.as_deref().unwrap_or_default(),
        );
        let found = all.of_users.named(name.0, name.1);
        let snapshot = found.filter(|it| user.uid.is_none() || it.metadata.uid == user.uid);
        let id = content
            .handle()
            .and_then(|handle| handle.parse::<SnapshotId>().ok());
        let twin = id.as_ref().and_then(twin_of);
        bound.extend(snapshot.and_then(ResourceExt::uid));
        held.extend(id.as_ref().map(|id| id.key.clone()));
        let (twin, marks) = twin.unzip();
        cases.push(Case {
            snapshot,
            content: Some(content),
            twin,
            marks,
            id,
        });
    }
    let unbound = all
        .of_users
        .iter()
        .filter(|it| all.is_of_ours(it) && it.uid().is_none_or(|uid| !bound.contains(&uid)));
    cases.extend(unbound.map(|snapshot| Case {
        snapshot: Some(snapshot),
        ..Case::default()
    }));
    let alone = twins.into_iter().filter(|(_, marks)| !held.contains(&marks.key));
    for (twin, marks) in alone {
        // Until the snapshot is taken, its content does not name the VolumeSnapshot.
        let user = cases
            .iter_mut()
            .find(|case| case.id.is_none() && is_of(case, &marks));
        let id = || SnapshotId::new(all.home.clone()?, None, marks.key.clone()).into();
        match user {
            Some(case) => (case.twin, case.marks) = (Some(twin), Some(marks)),
            None => cases.push(Case {
                id: id(),
                twin: Some(twin),
                marks: Some(marks),
                ..Case::default()
            }),
        }
    }
    cases
}

/// Whether a twin belongs to the user's `VolumeSnapshot`, whose uid is in the key.
fn is_of(case: &Case<'_>, marks: &SnapshotMarks) -> bool {
    let from_content = || case.content?.spec.volume_snapshot_ref.uid.clone();
    let uid = case.snapshot.and_then(ResourceExt::uid).or_else(from_content);
    uid.is_some_and(|uid| uid == marks.key.as_str())
}

fn row(case: &Case<'_>, all: &Snapshots) -> SnapshotRow {
    let marks = case.marks.as_ref();
    let (state, message, advice) = state(case, all);
    let status = |of: Option<&VolumeSnapshot>| of.and_then(|it| it.status.clone()).unwrap_or_default();
    let size = status(case.snapshot)
        .restore_size
        .or_else(|| status(case.twin).restore_size);
    let claim = case
        .snapshot
        .and_then(|it| it.spec.source.persistent_volume_claim_name.clone());
    SnapshotRow {
        snapshot: user_name(case),
        class: case
            .snapshot
            .and_then(|it| it.spec.volume_snapshot_class_name.clone()),
        source: claim.or_else(|| marks.map(|marks| marks.source.clone())),
        size: size.map(|size| size.0),
        state,
        message,
        advice,
        id: case.id.as_ref().map(ToString::to_string),
        twin: case.twin.map(name),
        cluster: case.id.as_ref().map(|id| id.cluster.to_string()),
    }
}

fn name(object: &VolumeSnapshot) -> Name {
    Name {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

fn user_name(case: &Case<'_>) -> Option<Name> {
    let from_content = || {
        let user = &case.content?.spec.volume_snapshot_ref;
        Some(Name {
            namespace: user.namespace.clone()?,
            name: user.name.clone()?,
        })
    };
    let from_twin = || {
        let user = case.marks.as_ref()?.snapshot.as_ref()?;
        Some(Name {
            namespace: user.namespace.clone(),
            name: user.name.clone(),
        })
    };
    case.snapshot.map(name).or_else(from_content).or_else(from_twin)
}

type Assessment = (SnapshotState, String, String);

fn state(case: &Case<'_>, all: &Snapshots) -> Assessment {
    let fine = |state| (state, String::new(), String::new());
    if let (Some(home), Some(marks)) = (&all.home, &case.marks)
        && *home != marks.home
    {
        let message = format!("it serves the cluster {}", marks.home);
        return (SnapshotState::Guest, message, String::new());
    }
    let is_going = case
        .snapshot
        .is_some_and(|it| it.metadata.deletion_timestamp.is_some())
        || case
            .content
            .is_some_and(|it| it.metadata.deletion_timestamp.is_some());
    if is_going {
        let message = "it is being deleted; events of its content say what it waits for".to_owned();
        return (SnapshotState::Deleting, message, String::new());
    }
    match (case.snapshot, case.content, case.twin) {
        (Some(snapshot), ..) => of_snapshot(snapshot, case, all),
        (None, Some(content), _) => of_content(content, all),
        (None, None, Some(twin)) => of_twin(twin, case, all),
        (None, None, None) => fine(SnapshotState::Unknown),
    }
}

fn of_snapshot(snapshot: &VolumeSnapshot, case: &Case<'_>, all: &Snapshots) -> Assessment {
    let is_here = case.id.as_ref().map(|id| &id.cluster) == all.home.as_ref() && case.id.is_some();
    if is_here && case.twin.is_none() && all.twins.is_complete() {
        return (
            SnapshotState::TwinVanished,
            "its twin is gone: no volume can be made of it".to_owned(),
            way_out(case),
        );
    }
    // The controller observes twins in all clusters, and records their state in annotations.
    let noted = case
        .content
        .and_then(|content| content.annotations().get(mark::TWIN_TROUBLE));
    if let (Some(trouble), None) = (noted, case.twin) {
        return (SnapshotState::TwinVanished, trouble.clone(), way_out(case));
    }
    if is_ready(snapshot) {
        return (SnapshotState::Ready, String::new(), String::new());
    }
    let error = snapshot.status.as_ref().and_then(|status| status.error.as_ref());
    let message = error.and_then(|error| error.message.clone()).unwrap_or_default();
    (SnapshotState::Pending, message, String::new())
}

/// What to do if the twin of a snapshot is gone.
fn way_out(case: &Case<'_>) -> String {
    let real = case
        .content
        .and_then(|content| content.annotations().get(mark::REAL_CONTENT));
    match (real, &case.id) {
        (Some(real), Some(id)) => format!(
            "The VolumeSnapshotContent {real} in the cluster {} keeps the data, if it exists. Create the twin again from \
             it, or discard it: docs/snapshots.md, \"When a twin is deleted\".",
            id.cluster
        ),
        _ => {
            "It was deleted. Check in the real storage whether its data is left; if not, delete the snapshot."
                .to_owned()
        }
    }
}

/// The state of a content without its `VolumeSnapshot`.
fn of_content(content: &VolumeSnapshotContent, all: &Snapshots) -> Assessment {
    let name = content.name_any();
    if !all.of_users.is_complete() {
        let message = format!("whether the VolumeSnapshot of the content {name} exists is unknown");
        return (SnapshotState::Unknown, message, String::new());
    }
    // Kubernetes writes the uid when it binds the two: until then nothing deletes the content.
    if content.spec.volume_snapshot_ref.uid.is_none() {
        let message = format!("the content {name} waits for its VolumeSnapshot, which does not exist yet");
        let advice = format!("Create it, with source.volumeSnapshotContentName {name}");
        return (SnapshotState::Pending, message, advice);
    }
    if content.spec.deletion_policy != RETAIN {
        let message = format!("the VolumeSnapshot is gone, and its content {name} is being deleted");
        return (SnapshotState::Deleting, message, String::new());
    }
    (
        SnapshotState::Retained,
        format!("the VolumeSnapshot is gone; its content {name} keeps the data (Retain)"),
        format!(
            "To discard it: kubectl patch volumesnapshotcontent {name} --type=merge -p \
             '{{\"spec\":{{\"deletionPolicy\":\"Delete\"}}}}', then delete it"
        ),
    )
}

/// The state of a twin to which no content refers.
fn of_twin(twin: &VolumeSnapshot, case: &Case<'_>, all: &Snapshots) -> Assessment {
    if !all.contents.is_complete() {
        let message = "whether a content refers to the twin is unknown".to_owned();
        return (SnapshotState::Unknown, message, String::new());
    }
    if all.home.is_none() {
        let message = "whether the twin serves this cluster is unknown".to_owned();
        return (SnapshotState::Unknown, message, String::new());
    }
    if twin.metadata.deletion_timestamp.is_some() {
        let message = "no content refers to the twin any more, and it is being deleted".to_owned();
        return (SnapshotState::Deleting, message, String::new());
    }
    let (namespace, name) = (twin.namespace().unwrap_or_default(), twin.name_any());
    let id = case.id.as_ref().map(ToString::to_string).unwrap_or_default();
    let real = twin
        .status
        .as_ref()
        .and_then(|status| status.bound_volume_snapshot_content_name.clone())
        .unwrap_or_default();
    (
        SnapshotState::Orphaned,
        "the twin has the data of a snapshot whose content is gone (retained and removed, as backup tools do, or etcd was restored)".to_owned(),
        format!(
            "The driver never deletes it. To use it, create a VolumeSnapshotContent of the driver {DRIVER_NAME} with \
             source.snapshotHandle {id}. If it is not needed, by no backup either: set the deletion policy of the content {real} to Delete, then \
             kubectl delete volumesnapshot -n {namespace} {name}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::inspect::fixtures::listing;

    const KEY: &str = "5d1c3f2e-8a51-4f0e-9f0f-0d2c7ef1a222";

    fn snapshot() -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"namespace": "shop", "name": "backup", "uid": KEY},
            "spec": {"volumeSnapshotClassName": "liqo", "source": {"persistentVolumeClaimName": "data"}},
            "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": "1Gi"},
        })
    }

    fn content(handle: &str, policy: &str) -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content"},
            "spec": {
                "driver": DRIVER_NAME, "deletionPolicy": policy,
                "volumeSnapshotRef": {"namespace": "shop", "name": "backup", "uid": KEY},
            },
            "status": {"snapshotHandle": handle},
        })
    }

    fn twin(home: &str) -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {
                "namespace": "liqo-storage", "name": format!("snapshot-{KEY}"),
                "labels": {
                    mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: home, mark::SNAPSHOT: KEY,
                },
                "annotations": {
                    mark::SNAPSHOT_NAMESPACE: "shop", mark::SNAPSHOT_NAME: "backup",
                    mark::SNAPSHOT_SOURCE: "v1:home:pvc-1",
                },
            },
            "spec": {"source": {}},
            "status": {"boundVolumeSnapshotContentName": "real"},
        })
    }

    fn all(
        snapshots: impl IntoIterator<Item = Value>,
        contents: impl IntoIterator<Item = Value>,
        twins: impl IntoIterator<Item = Value>,
    ) -> Snapshots {
        let class = json!({"metadata": {"name": "liqo"}, "driver": DRIVER_NAME});
        Snapshots {
            home: Some("home".parse().unwrap()),
            of_users: listing(snapshots),
            contents: listing(contents),
            twins: listing(twins),
            classes: listing([class]),
        }
    }

    fn here() -> String {
        format!("s1:home::{KEY}")
    }

    fn only(all: &Snapshots) -> SnapshotRow {
        let mut rows = snapshot_rows(all, &Scope::All);
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.remove(0)
    }

    #[test]
    fn a_snapshot_is_followed_to_its_twin() {
        let row = only(&all([snapshot()], [content(&here(), "Delete")], [twin("home")]));
        assert_eq!(row.state, SnapshotState::Ready);
        assert_eq!(row.snapshot.unwrap().name, "backup");
        assert_eq!(row.source.as_deref(), Some("data"));
        assert_eq!(row.size.as_deref(), Some("1Gi"));
        assert_eq!(row.cluster.as_deref(), Some("home"));
        assert_eq!(row.twin.unwrap().namespace, "liqo-storage");

        let there = format!("s1:milan:shop-home:{KEY}");
        let row = only(&all([snapshot()], [content(&there, "Delete")], []));
        assert_eq!(
            (row.state, row.cluster.as_deref()),
            (SnapshotState::Ready, Some("milan"))
        );
    }

    #[test]
    fn a_snapshot_that_was_not_taken_has_a_reason() {
        let mut pending = snapshot();
        pending["status"] = json!({"error": {"message": "no disks"}});
        let row = only(&all([pending.clone()], [], [twin("home")]));
        assert_eq!(
            (row.state, row.message.as_str()),
            (SnapshotState::Pending, "no disks")
        );
        assert!(row.twin.is_some());
        pending["spec"]["volumeSnapshotClassName"] = "another".into();
        assert_eq!(snapshot_rows(&all([pending], [], []), &Scope::All), []);
    }

    #[test]
    fn retained_snapshots_show_how_to_delete_them() {
        let row = only(&all([], [content(&here(), "Retain")], [twin("home")]));
        assert_eq!(row.state, SnapshotState::Retained);
        assert!(row.advice.contains("deletionPolicy"));
        assert_eq!(row.snapshot.as_ref().unwrap().namespace, "shop");

        let left = all([], [], [twin("home")]);
        let row = only(&left);
        assert_eq!(row.state, SnapshotState::Orphaned);
        assert_eq!(row.source.as_deref(), Some("v1:home:pvc-1"));
        for part in [here().as_str(), "content real", "liqo-storage"] {
            assert!(row.advice.contains(part), "{}", row.advice);
        }
        let of = |namespace: &str| snapshot_rows(&left, &Scope::Namespace(namespace.into())).len();
        assert_eq!((of("shop"), of("another")), (1, 0));
    }

    #[test]
    fn a_content_for_an_existing_snapshot_has_its_twin_before_it_is_bound() {
        let mut made = content(&here(), "Delete");
        made["spec"]["source"] = json!({"snapshotHandle": here()});
        made["spec"]["volumeSnapshotRef"] = json!({"namespace": "shop", "name": "backup"});
        made["status"] = Value::Null;
        let row = only(&all([], [made], [twin("home")]));
        assert_eq!(row.state, SnapshotState::Pending, "{}", row.message);
        assert!(row.message.contains("content"), "{}", row.message);
        assert_eq!(row.snapshot.unwrap().name, "backup");
        assert!(row.twin.is_some());
    }

    #[test]
    fn missing_and_foreign_objects_are_reported() {
        let row = only(&all([snapshot()], [content(&here(), "Delete")], []));
        assert_eq!(row.state, SnapshotState::TwinVanished);
        assert_eq!(only(&all([], [], [twin("rome")])).state, SnapshotState::Guest);
        let mut going = content(&here(), "Delete");
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(
            only(&all([], [going], [twin("home")])).state,
            SnapshotState::Deleting
        );
    }

    #[test]
    fn a_twin_in_another_cluster_is_as_the_controller_noted() {
        let mut noted = content(&format!("s1:milan:shop-home:{KEY}"), "Delete");
        noted["metadata"]["annotations"] =
            json!({mark::REAL_CONTENT: "real", mark::TWIN_TROUBLE: "its twin was deleted"});
        let row = only(&all([snapshot()], [noted.clone()], []));
        assert_eq!(
            (row.state, row.message.as_str()),
            (SnapshotState::TwinVanished, "its twin was deleted")
        );
        for part in ["VolumeSnapshotContent real", "cluster milan", "docs/snapshots.md"] {
            assert!(row.advice.contains(part), "{}", row.advice);
        }
        noted["metadata"]["annotations"] = json!({mark::REAL_CONTENT: "real"});
        assert_eq!(only(&all([snapshot()], [noted], [])).state, SnapshotState::Ready);
    }

    #[test]
    fn the_twin_of_a_snapshot_that_is_being_imported_is_no_leftover() {
        let record = SnapshotImport::new(
            &"shop/backup".parse().unwrap(),
            "n".into(),
            KEY.into(),
            "liqo".into(),
            "Delete".into(),
        );
        let mut twin = twin("home");
        twin["metadata"]["labels"][mark::SNAPSHOT] = record.key().as_str().into();
        let mut real = content("data", "Retain");
        real["spec"]["driver"] = "real.test".into();
        assert_eq!(
            only(&all([], [real.clone()], [twin.clone()])).state,
            SnapshotState::Orphaned
        );
        real["metadata"]["annotations"] = json!({mark::IMPORT_SNAPSHOT: record.text().unwrap()});
        assert!(snapshot_rows(&all([], [real], [twin]), &Scope::All).is_empty());
    }

    #[test]
    fn a_twin_may_be_a_guest_if_the_id_of_the_cluster_is_unknown() {
        let mut unread = all([], [], [twin("rome")]);
        unread.home = None;
        assert_eq!(only(&unread).state, SnapshotState::Unknown);
    }

    #[test]
    fn snapshots_are_unknown_without_the_right_to_read_contents() {
        let mut unread = all([], [], [twin("home")]);
        unread.contents = Listing::refused("no right");
        assert_eq!(only(&unread).state, SnapshotState::Unknown);
        // Without the classes, it is unknown whose a snapshot is that was not taken yet.
        unread.classes = Listing::refused("no right");
        assert_eq!(unread.unknown().len(), 2);
    }
}
