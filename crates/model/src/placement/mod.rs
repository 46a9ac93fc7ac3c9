//! The decisions about placement: real classes, nodes, static volumes, capacity for the scheduler, the next
//! step of each CSI call, imports and releases, recovery, and moves. Pure: facts in, a decision out; no
//! Kubernetes client, no gRPC, no clock.

mod adopt;
mod attach_limit;
mod capacity;
mod class;
mod consumer;
mod create;
mod delete;
mod diagnosis;
mod expand;
#[cfg(test)]
mod exploration;
mod fit;
mod modify;
pub mod moving;
mod offload;
pub mod orphans;
mod possible;
mod reclaim;
pub mod recovery;
mod snapshot;
mod source;
mod steer;
mod template;
pub mod transfer;

pub use crate::volume::ReclaimPolicy;
pub use adopt::{
    AdoptFacts, AdoptRefusal, AdoptRequest, AdoptStep, AdoptableVolume, Settle, SettleFacts, VolumeOwner,
    adopt_step, settle_step,
};
pub use attach_limit::{AttachedVolume, attach_limit};
pub use capacity::{AvailableCapacity, Published, capacity_in, publish};
pub use class::{
    AllowedTopology, BindingMode, ChosenClass, Class, ClassError, ClassInputs, KnownClasses, NamedBy,
    RequestedClass, choose_class, is_loop,
};
pub use consumer::{Consumer, Taint, Toleration};
pub use create::{
    Afterwards, ClaimFact, CreateFacts, CreateStep, Prebinding, Reach, Refusal, Target, Twin, TwinFact,
    TwinState, Withdrawal, create_step,
};
pub use delete::{
    ClaimedVolume, DeleteFacts, DeleteRefusal, DeleteStep, DeleteTwin, ExistingClaim, TwinVolume,
    delete_step, without_twin,
};
pub use diagnosis::{Diagnosis, Phase, TwinHealth, diagnose};
pub use expand::{
    ClaimUpdate, ExpandFacts, ExpandStep, IN_USE, ObservedSize, RealRefusal, claim_update, expand_step,
    has_finished, must_be_raised,
};
pub use fit::{Capacity, ClassContext, NO_PROVISIONER, NoNode, RealDriver, StaticVolume, TwinRequest, Unfit};
pub use modify::{ModifyFacts, ModifyStage, ModifyStep, modify_step};
pub use offload::{
    Adjustments, Behind, ClassMap, CopiedClaims, Declared, Fabric, Mapped, Namespaces, NodeRule, Unmapped,
    access_modes, behind,
};
pub use possible::{NoClass, possible_inputs, served, ways_out};
pub use reclaim::{PolicyFacts, PolicyStep, policy_step};
pub use snapshot::{
    ImportedContent, ImportedTwin, KnownSnapshotClasses, SnapshotClass, SnapshotClassError, SnapshotFacts,
    SnapshotImportFacts, SnapshotImportRefusal, SnapshotImportStep, SnapshotObstacle, SnapshotRefusal,
    SnapshotStep, SnapshotTwin, SnapshotUndoRefusal, SnapshotUndoStep, StoredSnapshot, UserContent,
    UserSnapshot, choose_snapshot_class, is_kept, snapshot_import_step, snapshot_step, snapshot_undo_step,
};
pub use source::{CopyFacts, SourceDriver, SourceRefusal, copy_flaw, may_copy, mode_name};
pub use steer::{NodeSelection, Original, SourcePlace, select_node_for_copy};
pub use template::{Expands, expanding};

/// One per line.
fn lines(items: &[impl ToString]) -> String {
    let lines: Vec<String> = items.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
