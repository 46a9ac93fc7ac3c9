//! Changes that a user can request of a move that has not ended. Undoing one that has ended is in
//! `undo`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Place, describe};
use crate::{api::volume_move::VolumeMove, cli::Outcome, volume::moving::Phase};

pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// How long an API server may be unreachable while a move is followed.
const PATIENCE: Duration = Duration::from_mins(5);

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
            (_, Phase::Done | Phase::Cancelled | Phase::Failed | Phase::Recovered) => {
                Some("the move has ended")
            }
            (Self::Resume, _) => None,
            (Self::Cancel, Phase::Committing | Phase::Retaining) => Some(
                "the volumes are at the target already: move them back with liqo-csi move undo or, if the target is lost, \
                     liqo-csi move recover-source",
            ),
            (_, Phase::Recovering) => Some("the source is being recovered"),
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
    // A cut-over that was tried too often is tried again only after a change of the spec.
    let is_repeated = order == Order::Cutover && of.spec.cutover.requested && of.stopped_by().is_some();
    let first = is_repeated.then(|| json!({"spec": {"cutover": {"requested": false}}}));
    for mut patch in first.into_iter().chain([order.patch()]) {
        // Not onto another VolumeMove that has the name since.
        patch["metadata"]["uid"] = json!(of.metadata.uid);
        place.moves.merge(name, &patch).await?;
    }
    Ok(())
}

/// Requests the recovery of the source, if the user accepts the loss.
pub(super) async fn recover(place: &Place, name: &str, accepts: bool) -> Outcome {
    let of = named(place, name).await?;
    let full = format!("{}/{name}", place.namespace);
    let loss = loss_text(&of).map_err(|why| format!("{full}: {why}"))?;
    eprintln!("{full}: {loss}");
    if !accepts {
        return Err("nothing was changed: add --accept-loss to recover the source".into());
    }
    let patch = json!({"metadata": {"uid": of.metadata.uid}, "spec": {"recoverSource": true}});
    place.moves.merge(name, &patch).await?;
    Ok(())
}

fn loss_text(of: &VolumeMove) -> Result<String, &'static str> {
    match describe::phase(of) {
        Some(Phase::Committing | Phase::Retaining | Phase::Recovering) => {}
        Some(Phase::Done) => return Err("its source is not kept any longer"),
        Some(Phase::Cancelled | Phase::Failed | Phase::Recovered) => {
            return Err("the volumes are where they were already");
        }
        _ => {
            return Err(
                "it is not committed: the volumes are where they were. Cancel it with liqo-csi move cancel",
            );
        }
    }
    let committed = of.status.as_ref().and_then(|status| status.committed_at.as_ref());
    let since = committed.map_or_else(String::new, |committed| format!(", {}", committed.0));
    Ok(format!(
        "everything written to {} since the commit{since} is lost when the source is recovered",
        of.spec.claims.join(", ")
    ))
}

pub(super) async fn named(place: &Place, name: &str) -> Outcome<VolumeMove> {
    existing(place, name, place.moves.get(name).await?)
}

/// Reads a move once more. Moves take hours, so the API server may be unreachable meanwhile, which is reported once.
pub(super) async fn read_again(place: &Place, name: &str, report: impl Fn(&str)) -> Outcome<VolumeMove> {
    let (began, mut is_reported) = (Instant::now(), false);
    loop {
        match place.moves.get(name).await {
            Err(error) if error.is_transient() && began.elapsed() < PATIENCE => {
                if !is_reported {
                    report(&format!("{error}; trying again"));
                }
                is_reported = true;
                sleep(POLL_INTERVAL).await;
            }
            found => return existing(place, name, found?),
        }
    }
}

fn existing(place: &Place, name: &str, found: Option<VolumeMove>) -> Outcome<VolumeMove> {
    Ok(found.ok_or_else(|| {
        format!(
            "there is no VolumeMove {}/{name}; liqo-csi move list -n {} shows all",
            place.namespace, place.namespace
        )
    })?)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::from_value;

    use super::*;
    use crate::{
        cli::moves::describe::tests::with,
        cluster::testing::{Act, FakeApi, Fault},
    };

    fn of(phase: &str) -> VolumeMove {
        with(&json!({}), &json!({"phase": phase}))
    }

    #[test]
    fn the_loss_is_reported_while_the_source_is_kept() {
        let mut committed = of("Retaining");
        committed.status.as_mut().unwrap().committed_at = from_value(json!("2026-11-26T12:00:00Z")).unwrap();
        let said = loss_text(&committed).unwrap();
        assert!(
            said.contains("written to data") && said.contains("2026-11-26T12:00:00Z"),
            "{said}"
        );
        for (phase, why) in [
            ("Copying", "move cancel"),
            ("Done", "not kept"),
            ("Failed", "where they were"),
            ("Recovered", "where they were"),
        ] {
            let said = loss_text(&of(phase)).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[tokio::test]
    async fn a_cutover_that_was_tried_too_often_is_requested_again() {
        const PATH: &str = "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/data-1";
        let api = FakeApi::start().await;
        let place = Place::of(&api.cluster_unwatched().await, "shop".to_owned());
        let mut tried = serde_json::to_value(of("Ready")).unwrap();
        tried["spec"]["cutover"]["requested"] = true.into();
        // Only a change of the spec makes the driver try it again.
        for (times, changes) in [(2, 1), (3, 2)] {
            tried["status"]["overruns"] = json!({"reason": "MaxDowntimeExceeded", "count": times});
            api.put(PATH, tried.clone());
            let before = api.writes();
            give(&place, "data-1", Order::Cutover).await.unwrap();
            assert_eq!(api.writes() - before, changes, "{times}");
            assert!(named(&place, "data-1").await.unwrap().spec.cutover.requested);
        }
    }

    #[tokio::test]
    async fn a_move_is_read_again_while_the_api_server_is_unreachable() {
        let api = FakeApi::start().await;
        let place = Place::of(&api.impatient_cluster().await, "shop".to_owned());
        api.put(
            "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/data-1",
            serde_json::to_value(of("Copying")).unwrap(),
        );
        api.fault(Fault::new("GET", "/volumemoves/data-1", Act::Hang).times(1));
        let reports = RefCell::new(Vec::new());
        let report = |what: &str| reports.borrow_mut().push(what.to_owned());
        read_again(&place, "data-1", report).await.unwrap();
        assert!(reports.borrow()[0].contains("trying again"), "{reports:?}");
        api.fault(Fault::new("GET", "/volumemoves/data-1", Act::Refuse(403)));
        assert!(read_again(&place, "data-1", report).await.is_err());
        assert_eq!(reports.borrow().len(), 1);
    }

    #[test]
    fn a_cancel_is_refused_after_the_commit() {
        let committed = of("Committing");
        assert!(Order::Cancel.too_late(&committed).is_some());
        assert!(Order::Resume.too_late(&committed).is_none());
        assert!(Order::Cancel.too_late(&of("Draining")).is_none());
        assert!(Order::Resume.too_late(&of("Failed")).is_some());
    }
}
