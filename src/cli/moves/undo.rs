//! `liqo-csi move undo`: another move of the same claims, to where their volumes were. The status of
//! the first one names the cluster, the real class and, if the volumes could be used from some nodes
//! only, one of these nodes. Whether the user may move them there is checked as for every move.
//!
//! In a remote cluster a twin has the name of its claim. A source that is kept there has that name until its
//! retention ends, so the move back can only begin after that.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;

use super::{
    Place, describe,
    orders::{POLL_INTERVAL, named, read_again},
    volume,
};
use crate::{
    api::volume_move::{
        ClaimStatus, Cutover, Loss, MoveRequest, RETAIN_SOURCE, Target, TwinReference, VolumeMove,
        VolumeMoveSpec, kept_source,
    },
    cli::Outcome,
    volume::moving::Phase,
};

/// Creates the move back, unless it is in progress; its name.
pub(super) async fn undo(
    place: &Place,
    name: &str,
    accepted: Vec<Loss>,
    delete_kept_copy: bool,
) -> Outcome<String> {
    let of = named(place, name).await?;
    let full = format!("{}/{name}", place.namespace);
    let back = reverse(&of, accepted).map_err(|why| format!("{full}: {why}"))?;
    if let Some(kept) = kept_copies(&of) {
        if !delete_kept_copy {
            return Err(format!(
                "{full}: nothing was changed: {kept}, and has the name that the move back needs there. Add --delete-kept-copy to \
                 delete that copy now; otherwise undo the move when it is no longer kept"
            )
            .into());
        }
        check(place, &of, &back).await?;
        eprintln!("deleting the copy: {kept}");
        release(place, &of).await?;
    }
    eprintln!("{}", describe_target(&back.target));
    volume::start(place, back).await
}

/// Checks by a dry run that nothing but the kept copies blocks the move back. While these exist, the preflight cannot find
/// out whether the clusters admit the twins and movers of the move back.
async fn check(place: &Place, of: &VolumeMove, back: &VolumeMoveSpec) -> Outcome {
    let spec = VolumeMoveSpec {
        dry_run: true,
        ..back.clone()
    };
    let name = volume::create_move(place, spec).await?;
    eprintln!(
        "the dry run {}/{name} checks what else blocks the move back",
        place.namespace
    );
    let findings = until(place, &name, |dry| dry.status.as_ref()?.preflight.clone()).await?;
    let kept = kept_source(&of.uid().unwrap_or_default());
    let others: Vec<_> = findings.into_iter().filter(|it| !it.contains(&kept)).collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the kept copy was not deleted, because the move back would be refused:\n- {}",
        others.join("\n- ")
    )
    .into())
}

/// Ends the retention of the source, and waits until the move has deleted it.
async fn release(place: &Place, of: &VolumeMove) -> Outcome {
    let patch = json!({"metadata": {"uid": of.metadata.uid}, "spec": {"retainSource": "0s"}});
    place.moves.merge(&of.name_any(), &patch).await?;
    let is_over = |now: &VolumeMove| describe::phase(now).filter(|phase| *phase != Phase::Retaining);
    match until(place, &of.name_any(), is_over).await? {
        Phase::Done => Ok(()),
        other => Err(format!(
            "{}/{}: the kept copy was not deleted, because the move is in the phase {other}: see liqo-csi move status",
            place.namespace,
            of.name_any()
        )
        .into()),
    }
}

/// Reads the move until `of` returns something, and prints what the move waits for.
async fn until<T>(place: &Place, name: &str, of: impl Fn(&VolumeMove) -> Option<T>) -> Outcome<T> {
    let (mut now, mut waited_for) = (named(place, name).await?, None);
    loop {
        if let Some(found) = of(&now) {
            return Ok(found);
        }
        let waits_for = now.status.and_then(|status| status.waiting_for);
        if waits_for != waited_for
            && let Some(what) = &waits_for
        {
            eprintln!("{}/{name}: waiting: {what}", place.namespace);
        }
        waited_for = waits_for;
        tokio::time::sleep(POLL_INTERVAL).await;
        now = read_again(place, name, |why| eprintln!("{why}")).await?;
    }
}

fn describe_target(target: &Target) -> String {
    let place = match (&target.node_name, &target.cluster) {
        (Some(node), _) => format!("node {node}"),
        (None, cluster) => format!("cluster {}", cluster.as_deref().unwrap_or_default()),
    };
    let class = target.storage_class_name.as_ref();
    let class = class.map_or("the class of a new claim".to_owned(), |class| {
        format!("class {class}")
    });
    format!("moving back to {place}, {class}")
}

/// The same claims and options, to where the volumes were. The cut-over is not requested yet. What the first move might
/// lose is not what this one may: only `accepted` is. The source is always kept for some time.
fn reverse(of: &VolumeMove, accepted: Vec<Loss>) -> Result<VolumeMoveSpec, String> {
    match describe::phase(of) {
        Some(Phase::Retaining | Phase::Done) => {}
        Some(Phase::Cancelled | Phase::Failed | Phase::Recovered) => {
            return Err("the volumes are where they were: there is nothing to undo".to_owned());
        }
        Some(Phase::Committing) => {
            return Err("the pods do not have the volumes at the target yet: wait for that".to_owned());
        }
        Some(Phase::Recovering) => return Err("its source is being recovered".to_owned()),
        _ => return Err("it has not ended: cancel it with liqo-csi move cancel".to_owned()),
    }
    let claims = of.status.iter().flat_map(|status| &status.claims);
    let claims: Vec<&ClaimStatus> = claims.collect();
    let request = MoveRequest::try_from(of).map_err(|error| error.to_string())?;
    // Zero may have been set only to delete the copy, as `release` does.
    let retain_source = if request.retain_source.is_zero() {
        RETAIN_SOURCE.to_owned()
    } else {
        of.spec.retain_source.clone()
    };
    Ok(VolumeMoveSpec {
        target: original_target(&claims)?,
        retain_source,
        cutover: Cutover {
            requested: false,
            ..of.spec.cutover.clone()
        },
        accept_loss: accepted,
        paused: false,
        cancel: false,
        recover_source: false,
        dry_run: false,
        ..of.spec.clone()
    })
}

/// The copies that are kept under the names that the twins of the move back need, when they were made and until when
/// they are kept; `None` if there are none. Twins of this cluster have other names, and a move within a remote cluster
/// keeps only a `PersistentVolume`.
fn kept_copies(of: &VolumeMove) -> Option<String> {
    if describe::phase(of) != Some(Phase::Retaining) {
        return None;
    }
    let status = of.status.as_ref()?;
    let kept = status.claims.iter().filter_map(|claim| {
        let (source, target) = (claim.source.as_ref()?, claim.target.as_ref()?);
        let is_in_the_way = source.name == claim.name && source.cluster != target.cluster;
        is_in_the_way.then(|| {
            format!(
                "{}/{} in the cluster {}",
                source.namespace, source.name, source.cluster
            )
        })
    });
    let kept: Vec<String> = kept.collect();
    let time = |what: &str, at: &Option<Time>| {
        let at = at.as_ref().map(|at| format!(", {what} {}", at.0));
        at.unwrap_or_default()
    };
    (!kept.is_empty()).then(|| {
        format!(
            "the first move keeps {}{}{}",
            kept.join(" and "),
            time("as of", &status.committed_at),
            time("until", &status.retained_until)
        )
    })
}

fn original_target(claims: &[&ClaimStatus]) -> Result<Target, String> {
    let sources = claims.iter().map(|claim| claim.source.as_ref());
    let sources: Option<Vec<&TwinReference>> = sources.collect();
    let sources = sources.unwrap_or_default();
    let Some((first, others)) = sources.split_first() else {
        return Err("its status does not say where the volumes were".to_owned());
    };
    if others.iter().any(|one| one.cluster != first.cluster) {
        return Err("the volumes were in several clusters: move each back on its own".to_owned());
    }
    let stayed = |claim: &&ClaimStatus| {
        let target = claim.target.as_ref();
        target.is_some_and(|target| target.cluster == first.cluster)
    };
    let within = claims.iter().any(stayed);
    let node = node(&sources)?;
    let storage_class_name = if others
        .iter()
        .all(|one| one.storage_class_name == first.storage_class_name)
    {
        first.storage_class_name.clone()
    } else if within {
        return Err(
            "the volumes were of several storage classes, and a move has one: move each back on its own, with \
             --storage-class"
                .to_owned(),
        );
    } else {
        None
    };
    if within && node.is_none() && storage_class_name.is_none() {
        return Err(
            "its status does not say on which node or of which class the volumes were (it was written by an earlier version of \
             the driver): name it with liqo-csi move volume"
                .to_owned(),
        );
    }
    Ok(Target {
        cluster: node.is_none().then(|| first.cluster.clone()),
        node_name: node,
        storage_class_name,
        access_modes: Vec::new(),
    })
}

/// A node from which all volumes could be used; `None` if that was true of all nodes of the cluster.
fn node(sources: &[&TwinReference]) -> Result<Option<String>, String> {
    let mut bound = sources.iter().filter(|source| !source.nodes.is_empty());
    let Some(first) = bound.next() else {
        return Ok(None);
    };
    let mut common: BTreeSet<&String> = first.nodes.iter().collect();
    for source in bound {
        common.retain(|node| source.nodes.contains(node));
    }
    let common = common.first().map(|node| (*node).clone());
    common.map(Some).ok_or_else(|| {
        "there is no node from which all volumes could be used: move each back on its own".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::{
        api::volume_move::{CutoverMode, QuiesceMode, kept_source},
        cluster::testing::FakeApi,
    };

    const MOVES: &str = "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/";

    /// A move of shop/data-0 from milan to home, whose source is still kept.
    fn keeps_its_source(api: &FakeApi) -> String {
        let source = json!({
            "cluster": "milan", "namespace": "shop-home", "name": "data-0", "storageClassName": "fast", "nodes": [],
        });
        let of = ended("Retaining", "home", &[source]);
        let path = format!("{MOVES}one");
        api.put(&path, serde_json::to_value(of).unwrap());
        api.change(&path, |of| {
            of["status"]["committedAt"] = "2026-11-26T12:00:00Z".into();
            of["status"]["retainedUntil"] = "2026-11-27T12:00:00Z".into();
        });
        path
    }

    fn moves(api: &FakeApi) -> Vec<Value> {
        api.store().below(MOVES)
    }

    /// The controller: dry runs have these findings, and a source is released when its retention has ended.
    async fn control(api: &FakeApi, findings: &[String]) {
        let mut changes = api.store().changes();
        loop {
            changes.borrow_and_update();
            for of in moves(api) {
                let path = format!("{MOVES}{}", of["metadata"]["name"].as_str().unwrap());
                if of["spec"]["dryRun"] == true && of["status"].is_null() {
                    api.change(&path, |of| {
                        of["status"] = json!({"phase": "Failed", "preflight": findings, "claims": []});
                    });
                }
                if of["spec"]["retainSource"] == "0s" && of["status"]["phase"] == "Retaining" {
                    api.change(&path, |of| of["status"]["phase"] = "Done".into());
                }
            }
            changes.changed().await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_kept_copy_in_the_way_is_deleted_only_on_request() {
        let api = FakeApi::start().await;
        let place = Place::of(&api.cluster_unwatched().await, "shop".to_owned());
        let first = keeps_its_source(&api);
        let retention = || api.object(&first).unwrap()["spec"]["retainSource"].clone();
        let uid = api.object(&first).unwrap()["metadata"]["uid"]
            .as_str()
            .unwrap()
            .to_owned();
        let kept = format!(
            "the claim shop/data-0: the name of its new twin is taken: {}",
            kept_source(&uid)
        );
        let undo = async |delete, findings: &[String]| {
            tokio::select! {
                done = undo(&place, "one", Vec::new(), delete) => done.map_err(|why| why.to_string()),
                () = control(&api, findings) => unreachable!("it runs for ever"),
            }
        };

        let said = undo(false, &[]).await.unwrap_err();
        for words in [
            "--delete-kept-copy",
            "milan",
            "2026-11-26T12:00:00Z",
            "2026-11-27T12:00:00Z",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert_eq!((moves(&api).len(), retention()), (1, json!("24h")));

        let said = undo(
            true,
            &[kept.clone(), "the cluster milan takes no new volumes".into()],
        )
        .await;
        let said = said.unwrap_err();
        assert!(
            said.contains("takes no new volumes") && !said.contains(&uid),
            "{said}"
        );
        assert_eq!(
            retention(),
            "24h",
            "the copy is kept as long as nothing can be moved back"
        );

        let name = undo(true, &[kept]).await.unwrap();
        assert_eq!(
            (
                retention(),
                api.object(&first).unwrap()["status"]["phase"].clone()
            ),
            (json!("0s"), json!("Done"))
        );
        let back = api.object(&format!("{MOVES}{name}")).unwrap();
        assert_eq!(back["spec"]["target"]["cluster"], "milan");
        assert_eq!(back["spec"]["dryRun"], false);
        // After an interruption, the same command again.
        assert_eq!(undo(true, &[]).await.unwrap(), name);
    }

    #[test]
    fn only_a_kept_copy_with_the_name_of_the_claim_is_in_the_way() {
        let there = |name: &str| json!({"cluster": "milan", "namespace": "shop", "name": name, "storageClassName": "fast", "nodes": []});
        for (phase, to, source, wanted) in [
            ("Retaining", "home", there("data-0"), true),
            ("Retaining", "rome", there("data-0"), true),
            ("Done", "home", there("data-0"), false),
            // The source has only a PersistentVolume there.
            ("Retaining", "milan", there("data-0"), false),
            ("Retaining", "milan", was("home", "fast", &[]), false),
        ] {
            let found = kept_copies(&ended(phase, to, &[source]));
            assert_eq!(found.is_some(), wanted, "{phase} {to}");
        }
    }

    fn was(cluster: &str, class: &str, nodes: &[&str]) -> Value {
        json!({
            "cluster": cluster, "namespace": "liqo-storage", "name": "twin", "storageClassName": class, "nodes": nodes,
        })
    }

    /// A move of claims whose volumes were in these places, to a cluster.
    fn ended(phase: &str, to: &str, sources: &[Value]) -> VolumeMove {
        let names: Vec<String> = (0..sources.len().max(1)).map(|at| format!("data-{at}")).collect();
        let claims: Vec<Value> = names
            .iter()
            .zip(sources)
            .map(|(name, source)| {
                let target = json!({"cluster": to, "namespace": "there", "name": "twin"});
                json!({"name": name, "source": source, "target": target})
            })
            .collect();
        from_value(json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
            "metadata": {"name": "one", "namespace": "shop"},
            "spec": {
                "claims": names, "target": {"nodeName": "n2"}, "quiesce": {"mode": "Evict"},
                "cutover": {"mode": "Manual", "requested": true, "maxDowntime": "3m"},
            },
            "status": {"phase": phase, "claims": claims},
        }))
        .unwrap()
    }

    #[test]
    fn an_undo_targets_the_previous_place_of_the_volumes() {
        for (to, sources, node, cluster, class) in [
            // From another cluster.
            (
                "milan",
                vec![was("home", "fast", &[])],
                None,
                Some("home"),
                Some("fast"),
            ),
            (
                "milan",
                vec![was("home", "local", &["n1"])],
                Some("n1"),
                None,
                Some("local"),
            ),
            (
                "home",
                vec![was("milan", "there", &[])],
                None,
                Some("milan"),
                Some("there"),
            ),
            // From another node, zone or class of this one.
            (
                "home",
                vec![was("home", "local", &["n1"])],
                Some("n1"),
                None,
                Some("local"),
            ),
            (
                "home",
                vec![was("home", "zonal", &["n3", "n1"])],
                Some("n1"),
                None,
                Some("zonal"),
            ),
            (
                "home",
                vec![was("home", "fast", &[])],
                None,
                Some("home"),
                Some("fast"),
            ),
            // Volumes that one pod mounts: a node from which all of them can be used.
            (
                "home",
                vec![
                    was("home", "x", &["n1", "n2"]),
                    was("home", "x", &["n2"]),
                    was("home", "x", &[]),
                ],
                Some("n2"),
                None,
                Some("x"),
            ),
            // Of several classes: each gets the class of a new claim, because a move names only one.
            (
                "milan",
                vec![was("home", "local", &["n1"]), was("home", "fast", &[])],
                Some("n1"),
                None,
                None,
            ),
        ] {
            let back = reverse(&ended("Done", to, &sources), Vec::new()).unwrap().target;
            assert_eq!(back.node_name.as_deref(), node, "{sources:?}");
            assert_eq!(back.cluster.as_deref(), cluster, "{sources:?}");
            assert_eq!(back.storage_class_name.as_deref(), class, "{sources:?}");
        }
    }

    #[test]
    fn an_undo_copies_the_options_except_the_cutover_and_what_may_be_lost() {
        let mut first = ended("Retaining", "milan", &[was("home", "fast", &[])]);
        first.spec.accept_loss = vec![Loss::ExtendedAttributes, Loss::Snapshots];
        let back = reverse(&first, vec![Loss::LiveWrites]).unwrap();
        assert_eq!(
            back.accept_loss,
            [Loss::LiveWrites],
            "consent is given for one move"
        );
        assert_eq!(back.quiesce.mode, QuiesceMode::Evict);
        assert_eq!(back.cutover.mode, CutoverMode::Manual);
        assert_eq!(back.cutover.max_downtime, "3m");
        assert!(!back.cutover.requested, "the cut-over is not requested");
    }

    #[test]
    fn the_move_back_keeps_its_source_also_if_the_first_copy_was_deleted_on_request() {
        for (first, back) in [("0s", RETAIN_SOURCE), ("0h0m", RETAIN_SOURCE), ("2h", "2h")] {
            let mut of = ended("Done", "milan", &[was("home", "fast", &[])]);
            of.spec.retain_source = first.to_owned();
            assert_eq!(reverse(&of, Vec::new()).unwrap().retain_source, back, "{first}");
        }
    }

    #[test]
    fn unfinished_and_unknown_moves_cannot_be_undone() {
        let home = |nodes: &[&str]| was("home", "fast", nodes);
        let old = json!({"cluster": "home", "namespace": "liqo-storage", "name": "twin"});
        for (phase, to, sources, why) in [
            ("Copying", "milan", vec![home(&[])], "has not ended"),
            ("Cancelled", "milan", vec![home(&[])], "nothing to undo"),
            ("Done", "milan", vec![], "does not say where"),
            (
                "Done",
                "rome",
                vec![home(&[]), was("milan", "fast", &[])],
                "several clusters",
            ),
            ("Done", "milan", vec![home(&["n1"]), home(&["n2"])], "no node"),
            (
                "Done",
                "home",
                vec![home(&[]), was("home", "slow", &[])],
                "several storage classes",
            ),
            ("Done", "home", vec![old.clone()], "earlier version"),
        ] {
            let said = reverse(&ended(phase, to, &sources), Vec::new()).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        // An earlier version did not record the class; a move to another cluster works all the same.
        let back = reverse(&ended("Done", "milan", &[old]), Vec::new()).unwrap();
        assert_eq!(back.target.cluster.as_deref(), Some("home"));
    }
}
