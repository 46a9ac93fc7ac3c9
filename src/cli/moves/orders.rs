//! What people may order of a move that goes on, and the way back from one that has ended.

use serde_json::{Value, json};

use super::{Place, wish, words};
use crate::{
    api::volume_move::{Target, VolumeMove, VolumeMoveSpec},
    cli::Outcome,
    volume::moving::Phase,
};

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Pause,
    Resume,
    Cutover,
    Cancel,
}

impl Order {
    fn patch(self) -> Value {
        match self {
            Self::Pause => json!({"spec": {"paused": true}}),
            Self::Resume => json!({"spec": {"paused": false}}),
            Self::Cutover => json!({"spec": {"cutover": {"requested": true}}}),
            Self::Cancel => json!({"spec": {"cancel": true}}),
        }
    }

    /// Why it comes too late, if it does.
    fn too_late(self, of: &VolumeMove) -> Option<&'static str> {
        let phase = words::phase(of)?;
        match (self, phase) {
            (_, Phase::Done | Phase::Cancelled | Phase::Failed) => Some("it has ended"),
            (Self::Resume, _) => None,
            (Self::Cancel, Phase::Committing | Phase::Retaining) => {
                Some("the volumes are at the target already: move them back with liqo-csi move undo")
            }
            (_, Phase::Committing | Phase::Retaining) => Some("the volumes are at the target already"),
            _ => None,
        }
    }
}

/// Gives an order.
pub(super) async fn give(place: &Place, name: &str, order: Order) -> Outcome {
    let of = named(place, name).await?;
    if let Some(why) = order.too_late(&of) {
        return Err(format!("{}/{name}: {why}", place.namespace).into());
    }
    place.moves.merge(name, &order.patch()).await?;
    Ok(())
}

/// Asks for the move back; its name.
pub(super) async fn undo(place: &Place, name: &str) -> Outcome<String> {
    let of = named(place, name).await?;
    let back = way_back(&of).map_err(|why| format!("{}/{name}: {why}", place.namespace))?;
    wish::ask(place, back).await
}

pub(super) async fn named(place: &Place, name: &str) -> Outcome<VolumeMove> {
    let found = place.moves.get(name).await?;
    Ok(found.ok_or_else(|| {
        format!(
            "there is no VolumeMove {}/{name}; liqo-csi move list -n {} shows all",
            place.namespace, place.namespace
        )
    })?)
}

/// The same claims, in the same way, to the cluster and class that they came from.
fn way_back(of: &VolumeMove) -> Result<VolumeMoveSpec, String> {
    match words::phase(of) {
        Some(Phase::Retaining | Phase::Done) => {}
        Some(Phase::Cancelled | Phase::Failed) => {
            return Err("the volumes are where they were: there is nothing to undo".to_owned());
        }
        _ => return Err("it has not ended: give it up with liqo-csi move cancel".to_owned()),
    }
    let claims = of.status.iter().flat_map(|status| &status.claims);
    let sources: Vec<_> = claims.filter_map(|claim| claim.source.as_ref()).collect();
    let Some(first) = sources.first() else {
        return Err("its status does not say where the volumes were".to_owned());
    };
    if sources
        .iter()
        .any(|one| (&one.cluster, &one.storage_class_name) != (&first.cluster, &first.storage_class_name))
    {
        return Err("the volumes were in several places: move each back by itself".to_owned());
    }
    Ok(VolumeMoveSpec {
        target: Target {
            node_name: None,
            cluster: Some(first.cluster.clone()),
            storage_class_name: first.storage_class_name.clone(),
            access_modes: Vec::new(),
        },
        paused: false,
        cancel: false,
        dry_run: false,
        ..of.spec.clone()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    fn ended(phase: &str, sources: &[&str]) -> VolumeMove {
        let claims: Vec<_> = sources
            .iter()
            .enumerate()
            .map(|(at, cluster)| {
                json!({"name": format!("data-{at}"), "source": {
                    "cluster": cluster, "namespace": "liqo-storage", "name": "twin", "storageClassName": "fast",
                }})
            })
            .collect();
        from_value(json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
            "metadata": {"name": "one", "namespace": "shop"},
            "spec": {"claims": ["data-0"], "target": {"nodeName": "liqo-milan"}, "quiesce": {"mode": "Evict"}},
            "status": {"phase": phase, "claims": claims},
        }))
        .unwrap()
    }

    #[test]
    fn the_way_back_leads_to_cluster_and_class_of_before() {
        let back = way_back(&ended("Retaining", &["home"])).unwrap();
        assert_eq!(back.target.cluster.as_deref(), Some("home"));
        assert_eq!(back.target.storage_class_name.as_deref(), Some("fast"));
        assert_eq!(back.target.node_name, None);
        assert_eq!(back.quiesce.mode, crate::api::volume_move::QuiesceMode::Evict);
    }

    #[test]
    fn there_is_no_way_back_from_what_did_not_go() {
        for (phase, sources) in [
            ("Copying", vec!["home"]),
            ("Cancelled", vec!["home"]),
            ("Done", vec![]),
            ("Done", vec!["home", "milan"]),
        ] {
            assert!(way_back(&ended(phase, &sources)).is_err(), "{phase} {sources:?}");
        }
    }

    #[test]
    fn orders_come_too_late_after_the_commit() {
        let committed = ended("Committing", &["home"]);
        assert!(Order::Cancel.too_late(&committed).is_some());
        assert!(Order::Resume.too_late(&committed).is_none());
        assert!(Order::Cancel.too_late(&ended("Draining", &["home"])).is_none());
        assert!(Order::Resume.too_late(&ended("Failed", &["home"])).is_some());
    }
}
