//! What the loop of moves asks of movers: the pods that copy, and the twin that they write to.

use crate::{
    api::volume_move::MoveRequest,
    placement::moving::{ClaimStep, Stage},
    twin::gate::{Applied, GateError, MovedVolume, Movers},
};

/// What a move needs of clusters beside the objects of its gate.
pub trait MoveHelpers: Send + Sync {
    /// What is known of the movers of one claim.
    fn observe(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        stage: &Stage,
    ) -> impl Future<Output = Result<Movers, GateError>> + Send;

    /// Takes a step that is about movers, or makes the target's twin.
    fn apply(
        &self,
        moved: &MovedVolume,
        of: &MoveRequest,
        step: &ClaimStep,
    ) -> impl Future<Output = Result<Applied, GateError>> + Send;
}
