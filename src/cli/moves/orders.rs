//! Changes that a user can request of a move that has not ended. Undoing one that has ended is in
//! `undo`.

use serde_json::{Value, json};

use super::{Place, describe};
use crate::{api::volume_move::VolumeMove, cli::Outcome, volume::moving::Phase};

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

    /// Why the order is too late, if it is.
    fn too_late(self, of: &VolumeMove) -> Option<&'static str> {
        let phase = describe::phase(of)?;
        match (self, phase) {
            (_, Phase::Done | Phase::Cancelled | Phase::Failed) => Some("the move has ended"),
            (Self::Resume, _) => None,
            (Self::Cancel, Phase::Committing | Phase::Retaining) => {
                Some("the volumes are at the target already: move them back with liqo-csi move undo")
            }
            (_, Phase::Committing | Phase::Retaining) => Some("the volumes are at the target already"),
            _ => None,
        }
    }
}

/// Writes the order into the `VolumeMove`.
pub(super) async fn give(place: &Place, name: &str, order: Order) -> Outcome {
    let of = named(place, name).await?;
    if let Some(why) = order.too_late(&of) {
        return Err(format!("{}/{name}: {why}", place.namespace).into());
    }
    place.moves.merge(name, &order.patch()).await?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    fn of(phase: &str) -> VolumeMove {
        from_value(json!({
            "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
            "metadata": {"name": "one", "namespace": "shop"},
            "spec": {"claims": ["data"], "target": {"nodeName": "liqo-milan"}},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn orders_come_too_late_after_the_commit() {
        let committed = of("Committing");
        assert!(Order::Cancel.too_late(&committed).is_some());
        assert!(Order::Resume.too_late(&committed).is_none());
        assert!(Order::Cancel.too_late(&of("Draining")).is_none());
        assert!(Order::Resume.too_late(&of("Failed")).is_some());
    }
}
