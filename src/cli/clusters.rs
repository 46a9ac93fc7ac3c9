//! `liqo-csi clusters`: prints the remote clusters as their `RemoteClusters` describe them, and the pods that
//! wait because their data is there.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;

use super::{
    Outcome,
    common::{CommonArgs, Format, Place, block_on, print_json, print_unknown},
    table::Table,
};
use crate::{
    api::{
        namespace_offloading::NamespaceOffloading,
        remote_cluster::{READY, RemoteCluster},
    },
    cluster::Cause,
    inspect::{
        Scope, Storage,
        rows::{Row, rows},
    },
};

const HEADER: [&str; 9] = [
    "ID",
    "FABRIC",
    "STATE",
    "VERSION",
    "POLICY",
    "NODES",
    "NAMESPACES",
    "VOLUMES",
    "SNAPSHOTS",
];
/// The state of a cluster in which twins can be created.
const IS_READY: &str = "Ready";
/// The state of a namespace that exists in the remote cluster.
const IN_PLACE: &str = "NamespaceCreated";
/// The state of a cluster that nothing declares and that has volumes.
const UNDECLARED: &str = "Undeclared";
/// The state of a cluster without a status, or of which the declaration cannot be read.
const UNKNOWN: &str = "Unknown";

const FORM: &str = r#"JSON: {"version": 1, "clusters": [...], "unknown": [...]}. A cluster has
id, fabric (native, liqo, kosmos or empty), object, state (Ready, Connecting, Unreachable,
Unauthorized, Refused, HoldsVolumes while it is being deleted, Undeclared if nothing declares it any more, or Unknown
before the controller has written a status, or if you may not read what declares it), message, serverVersion,
policy, nodes, volumes, snapshots, classes, limits (what the driver may not do there, and what that costs),
waiting (pods that wait because their data is there, and why) and namespaces: those that are
offloaded to it, each with namespace, remoteNamespace, state (the reason of its condition Ready)
and message.

Examples:
  liqo-csi clusters
  liqo-csi clusters --context home -o json"#;

/// Lists the remote clusters that the virtual nodes of this cluster represent: how they are reached, what
/// cannot be done there, and which pods wait for them.
#[derive(clap::Args)]
#[command(after_long_help = FORM)]
pub(super) struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

/// A cluster, as `-o json` prints it. Fields are added, never renamed.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterEntry {
    id: String,
    fabric: &'static str,
    object: String,
    state: String,
    message: String,
    server_version: Option<String>,
    policy: String,
    nodes: Vec<String>,
    volumes: usize,
    snapshots: usize,
    classes: Vec<String>,
    limits: Vec<String>,
    waiting: Vec<String>,
    namespaces: Vec<Offloaded>,
}

/// A namespace that is offloaded to a cluster.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Offloaded {
    namespace: String,
    remote_namespace: String,
    state: &'static str,
    message: String,
}

pub(super) fn run(args: Args) -> Outcome {
    block_on(list(args))
}

/// What the command prints.
struct Report {
    clusters: Vec<ClusterEntry>,
    /// Whether there may be no other cluster.
    is_complete: bool,
    unknown: Vec<String>,
}

async fn list(args: Args) -> Outcome {
    let report = read(args.common.find().await?).await;
    match args.common.output {
        Format::Json => print_json("clusters", &report.clusters, &report.unknown)?,
        Format::Table => {
            print_unknown(&report.unknown);
            print!("{}", text(&report));
        }
    }
    Ok(())
}

async fn read(place: Place) -> Report {
    let objects = place.cluster.all::<RemoteCluster>().list(None).await;
    let storage = Storage::read(
        &place.cluster,
        &Scope::All,
        place.storage_namespace.as_deref(),
        place.id,
    )
    .await;
    let home = storage.home.as_ref().map(ToString::to_string);
    let mut unknown = storage.unknown();
    let is_complete = objects.is_ok();
    let objects = objects.unwrap_or_else(|error| {
        unknown.push(format!("which clusters are declared: {error}"));
        Vec::new()
    });
    let offloadings = place
        .cluster
        .all::<NamespaceOffloading>()
        .select(None, None)
        .await;
    let offloadings = offloadings.unwrap_or_else(|error| {
        if !matches!(error.cause, Cause::NotFound(_)) {
            unknown.push(format!("which namespaces are offloaded: {error}"));
        }
        Vec::new()
    });
    let mut clusters = all(
        objects,
        &rows(&storage, &Scope::All),
        home.as_deref(),
        is_complete,
    );
    for cluster in &mut clusters {
        cluster.namespaces = offloaded(&offloadings, &cluster.id);
    }
    Report {
        clusters,
        is_complete,
        unknown,
    }
}

fn text(report: &Report) -> String {
    if !report.clusters.is_empty() {
        table(&report.clusters)
    } else if report.is_complete {
        "No remote clusters: no RemoteCluster, and neither Liqo nor Kosmos declares any.\n".to_owned()
    } else {
        "It is not known which remote clusters exist.\n".to_owned()
    }
}

/// All clusters, also those that have volumes and that no object declares, if these are all of them.
fn all(
    objects: Vec<RemoteCluster>,
    volumes: &[Row],
    home: Option<&str>,
    is_complete: bool,
) -> Vec<ClusterEntry> {
    let mut there: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in volumes {
        if let Some(cluster) = row.cluster.as_deref().filter(|id| Some(*id) != home) {
            there.entry(cluster).or_default().push(row);
        }
    }
    let known: BTreeSet<String> = objects.iter().map(ResourceExt::name_any).collect();
    let declared = objects.into_iter().map(|object| {
        let rows = there.get(object.name_any().as_str());
        of_object(object, rows.map_or(&[][..], Vec::as_slice))
    });
    let mut shown: Vec<ClusterEntry> = declared.collect();
    there.retain(|id, rows| !known.contains(*id) && rows.iter().any(|row| row.twin.is_some()));
    let is_known = is_complete && home.is_some();
    shown.extend(there.iter().map(|(id, rows)| undeclared(id, rows, is_known)));
    shown.sort_by(|a, b| a.id.cmp(&b.id));
    shown
}

fn of_object(object: RemoteCluster, rows: &[&Row]) -> ClusterEntry {
    let id = object.name_any();
    let fabric = object.spec.discovered_from.map(|from| from.fabric);
    let status = object.status.unwrap_or_default();
    let ready = status.conditions.iter().find(|one| one.type_ == READY);
    let (state, message) = match ready {
        Some(ready) if ready.status == "True" => (IS_READY, String::new()),
        Some(ready) => (ready.reason.as_str(), ready.message.clone()),
        None => (
            UNKNOWN,
            "the controller has not written its status yet: check that a replica holds the lease of the background loops"
                .to_owned(),
        ),
    };
    ClusterEntry {
        fabric: fabric.map_or("native", |fabric| fabric.name()),
        object: status
            .declared_by
            .unwrap_or_else(|| format!("RemoteCluster {id}")),
        state: state.to_owned(),
        message,
        server_version: status.server_version,
        policy: format!("{:?}", object.spec.binding_policy),
        nodes: status.nodes,
        volumes: status.volumes.try_into().unwrap_or_default(),
        snapshots: status.snapshots.try_into().unwrap_or_default(),
        classes: status.classes,
        limits: status.limits,
        waiting: waiting(rows),
        namespaces: Vec::new(),
        id,
    }
}

/// A cluster that no object declares; unless `is_known`, it may be declared, or be the home cluster.
fn undeclared(id: &str, rows: &[&Row], is_known: bool) -> ClusterEntry {
    let (state, message) = if is_known {
        (
            UNDECLARED,
            "this cluster is not declared, and it has volumes. New pods cannot use them, and they cannot be deleted until a \
             RemoteCluster or its fabric declares it again, under this id",
        )
    } else {
        (
            UNKNOWN,
            "it has volumes. Whether it is declared, or is the home cluster itself, cannot be read",
        )
    };
    ClusterEntry {
        id: id.to_owned(),
        fabric: "",
        object: String::new(),
        state: state.to_owned(),
        message: message.to_owned(),
        server_version: None,
        policy: String::new(),
        nodes: Vec::new(),
        volumes: rows.iter().filter(|row| row.twin.is_some()).count(),
        snapshots: 0,
        classes: Vec::new(),
        limits: Vec::new(),
        waiting: waiting(rows),
        namespaces: Vec::new(),
    }
}

/// The namespaces that are offloaded to a cluster, will be, or are being deleted there.
fn offloaded(offloadings: &[NamespaceOffloading], cluster: &str) -> Vec<Offloaded> {
    let of_cluster = offloadings.iter().filter_map(|one| {
        let ready = one.readiness(cluster)?;
        let (state, message) = ready.words();
        Some(Offloaded {
            namespace: one.namespace().unwrap_or_default(),
            remote_namespace: one
                .status
                .as_ref()
                .and_then(|it| it.remote_namespace_name.clone())
                .unwrap_or_default(),
            state,
            message: message.to_owned(),
        })
    });
    of_cluster.collect()
}

/// Claims whose pods wait because their data is there.
fn waiting(rows: &[&Row]) -> Vec<String> {
    let waiting = rows.iter().filter_map(|row| {
        let (claim, why) = (row.claim.as_ref()?, row.gravity.as_ref()?);
        Some(format!("{}/{}: {why}", claim.namespace, claim.name))
    });
    waiting.collect()
}

fn table(clusters: &[ClusterEntry]) -> String {
    let mut table = Table::new(HEADER);
    for cluster in clusters {
        let or_dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        table.row([
            cluster.id.clone(),
            or_dash(cluster.fabric),
            cluster.state.clone(),
            or_dash(cluster.server_version.as_deref().unwrap_or_default()),
            or_dash(&cluster.policy),
            or_dash(&cluster.nodes.join(",")),
            cluster.namespaces.len().to_string(),
            cluster.volumes.to_string(),
            cluster.snapshots.to_string(),
        ]);
        if cluster.state != IS_READY && !cluster.message.is_empty() {
            let object = match cluster.object.as_str() {
                "" => String::new(),
                object => format!("{object}: "),
            };
            table.note(&format!("  └ {object}{}", cluster.message));
        }
        for one in cluster.namespaces.iter().filter(|it| it.state != IN_PLACE) {
            table.note(&format!(
                "  └ namespace {}: {}: {}",
                one.namespace, one.state, one.message
            ));
        }
        for limit in &cluster.limits {
            table.note(&format!("  └ {limit}"));
        }
        for pod in &cluster.waiting {
            table.note(&format!("  → {pod}"));
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cli::common::place,
        cluster::testing::{Act, FakeApi, Fault},
        inspect::{Name, State},
    };

    fn object(status: &serde_json::Value) -> RemoteCluster {
        serde_json::from_value(json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
            "metadata": {"name": "milan"}, "spec": {"discoveredFrom": {"fabric": "Liqo"}}, "status": status,
        }))
        .unwrap()
    }

    fn waits_in(cluster: &str) -> Row {
        Row {
            claim: Some(Name {
                namespace: "shop".into(),
                name: "data".into(),
            }),
            twin: Some(Name {
                namespace: "shop".into(),
                name: "data".into(),
            }),
            cluster: Some(cluster.into()),
            gravity: Some("its pod web-0 waits".into()),
            volume: "pvc-1".into(),
            class: None,
            size: None,
            growing_to: None,
            state: State::Bound,
            message: String::new(),
            advice: String::new(),
            real_class: None,
            real_volume: None,
            held_by_gravity: true,
            nodes: None,
        }
    }

    #[test]
    fn problems_are_listed_below_the_table() {
        let condition = |kind: &str, reason: &str| {
            json!({
                "type": kind, "status": "False", "reason": reason, "message": "no answer within 10s",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let found = object(&json!({
            "conditions": [condition("Ready", "Unreachable")],
            "declaredBy": "VirtualNode liqo-tenant-milan/milan",
            "nodes": ["milan"], "volumes": 2, "limits": ["nodes cannot be read"],
        }));
        let rows = [waits_in("milan"), waits_in("rome"), waits_in("here")];
        let expected = "\
ID      FABRIC   STATE         VERSION   POLICY       NODES   NAMESPACES   VOLUMES   SNAPSHOTS
milan   liqo     Unreachable   -         Optimistic   milan   1            2         0
  └ VirtualNode liqo-tenant-milan/milan: no answer within 10s
  └ namespace shop: Terminating: held
  └ nodes cannot be read
  → shop/data: its pod web-0 waits
rome    -        Undeclared    -         -            -       0            1         0
";
        let mut shown = all(vec![found], &rows, Some("here"), true);
        let asked = |cluster: &str| {
            json!({
                "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
                "metadata": {"name": "offloading", "namespace": "shop"}, "spec": {},
                "status": {"remoteNamespaceName": "shop-home", "remoteNamespacesConditions": {cluster: [{
                    "type": "Ready", "status": "False", "reason": "Terminating", "message": "held",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]}},
            })
        };
        let asked = [serde_json::from_value(asked("milan")).unwrap()];
        for cluster in &mut shown {
            cluster.namespaces = offloaded(&asked, &cluster.id);
        }
        let shown = table(&shown);
        assert!(shown.starts_with(expected), "{shown}");
        assert!(shown.contains("  └ this cluster is not declared"), "{shown}");
    }

    #[tokio::test]
    async fn clusters_that_the_user_may_not_read_may_exist() {
        let api = FakeApi::start().await;
        let report =
            async || read(place(api.cluster_unwatched().await, None, "home".parse().ok()).await).await;
        let empty = report().await;
        assert!(
            empty.is_complete && empty.unknown.is_empty(),
            "{:?}",
            empty.unknown
        );
        api.fault(Fault::new("GET", "/remoteclusters", Act::Refuse(403)));
        let refused = report().await;
        assert_ne!(text(&refused), text(&empty));
        let [why] = refused.unknown.as_slice() else {
            panic!("{:?}", refused.unknown);
        };
        // The command has the rights of its user.
        assert!(why.contains("rights") && !why.contains("driver"), "{why}");

        // One with volumes may be declared.
        let volume = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
        let csi = json!({
            "driver": "storage.liqo.io", "volumeHandle": format!("v1:milan:{volume}"),
            "volumeAttributes": {"storage.liqo.io/twin-namespace": "shop", "storage.liqo.io/twin-name": "data"},
        });
        api.put(
            &format!("/api/v1/persistentvolumes/{volume}"),
            json!({"spec": {"csi": csi}}),
        );
        assert_eq!(report().await.clusters[0].state, UNKNOWN);
        api.heal();
        assert_eq!(report().await.clusters[0].state, UNDECLARED);
        // It may be this cluster itself.
        let nameless = read(place(api.cluster_unwatched().await, None, None).await).await;
        assert_eq!(nameless.clusters[0].state, UNKNOWN);
    }

    #[test]
    fn a_missing_status_is_unknown() {
        let shown = all(vec![object(&json!(null))], &[], None, true);
        assert_eq!(shown[0].state, "Unknown");
        assert!(shown[0].message.contains("lease"), "{}", shown[0].message);
    }
}
