use super::world::*;
use crate::placement::moving::{Outcome, Stage};

/// No move makes more writes than this.
const MOST_WRITES: usize = 80;

/// A controller dies before each of its writes, one write later every time; the next controller
/// continues.
async fn dies_at(deaths: impl Iterator<Item = usize>, meanwhile: impl Fn(&World), check: impl Fn(&World)) {
    for writes in deaths {
        let world = World::evicting().await;
        let died = Box::pin(world.die_after(writes)).await;
        meanwhile(&world);
        Box::pin(world.to_the_end()).await;
        check(&world);
        if !died {
            assert!(writes > 15, "a move of {writes} writes is none");
            return;
        }
    }
    panic!("the move does not end");
}

fn moved(world: &World) {
    assert_eq!(world.stage(), Stage::Ended(Outcome::Done));
    world.assert_moved();
}

#[tokio::test]
async fn a_move_completes_after_a_crash_at_any_write() {
    dies_at(0..MOST_WRITES, |_| {}, moved).await;
}

#[tokio::test]
async fn two_concurrent_controllers_do_no_harm() {
    for _ in 0..3 {
        let world = World::evicting().await;
        tokio::join!(world.to_the_end(), world.to_the_end(), world.to_the_end());
        moved(&world);
    }
}

#[tokio::test]
async fn a_cancelled_move_restores_the_volume_or_has_completed() {
    let cancel = |world: &World| {
        world
            .home_api
            .change(THE_MOVE, |of| of["spec"]["cancel"] = true.into());
    };
    let check = |world: &World| match world.stage() {
        Stage::Ended(Outcome::Done) => world.assert_moved(),
        Stage::Ended(Outcome::Cancelled) => world.assert_back(),
        other => panic!("{other:?}"),
    };
    dies_at((0..MOST_WRITES).step_by(2), cancel, check).await;
}

#[tokio::test]
async fn a_move_that_is_deleted_is_cancelled_or_ends() {
    let check = |world: &World| {
        assert!(world.read().is_none(), "it is held for ever");
        if world.home_api.object(&source_path()).is_some() {
            world.assert_back();
        } else {
            world.assert_moved();
        }
    };
    dies_at((1..MOST_WRITES).step_by(2), delete_move, check).await;
}

/// Like the API server.
fn delete_move(world: &World) {
    let of = world.home_api.object(THE_MOVE).unwrap();
    let is_held = of["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|held| !held.is_empty());
    if is_held {
        world.home_api.change(THE_MOVE, |of| {
            of["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
    } else {
        world.home_api.remove(THE_MOVE);
    }
}
