//! `liqo-csi move undo`: another move of the same claims, to where their volumes were. The status of
//! the first one names the cluster, the real class and, if the volumes could be used from some nodes
//! only, one of these nodes. Whether the user may move them there is checked as for every move.

use std::collections::BTreeSet;

use super::{Place, describe, orders::named, volume};
use crate::{
    api::volume_move::{ClaimStatus, Cutover, Loss, Target, TwinReference, VolumeMove, VolumeMoveSpec},
    cli::Outcome,
    volume::moving::Phase,
};

/// Creates the move back; its name.
pub(super) async fn undo(place: &Place, name: &str, accepted: Vec<Loss>) -> Outcome<String> {
    let of = named(place, name).await?;
    let back = reverse(&of, accepted).map_err(|why| format!("{}/{name}: {why}", place.namespace))?;
    eprintln!("{}", describe_target(&back.target));
    volume::create_move(place, back).await
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
/// lose is not what this one may: only `accepted` is.
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
    Ok(VolumeMoveSpec {
        target: original_target(&claims)?,
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
    use crate::api::volume_move::{CutoverMode, QuiesceMode};

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
