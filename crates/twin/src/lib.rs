//! The life of a twin, in whatever cluster it lives: made, awaited, handed over,
//! attached, deleted, listed. Decisions are the model's (`placement`)'s; here they are
//! observed for and carried out. Nothing is remembered between calls: every
//! operation may be the first one after a crash, and starts by looking.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

mod adopt;
mod attach;
pub mod attributes;
mod changing;
mod claim_copy;
mod claimed;
pub mod consumers;
mod create;
mod data_path;
mod delete;
mod errors;
mod expand;
mod finalizer;
mod holder;
mod list;
mod mirrored;
mod moves;
mod not_taken;
mod observation;
pub mod plan;
pub mod planned;
mod prebinding;
pub mod reading;
mod reclaim;
pub mod record;
mod refusals;
pub mod remote_class;
mod remote_node;
mod remote_plan;
mod room;
mod site;
mod snapshot;
mod source;
pub mod surroundings;
mod target;
mod waiter;
pub mod withdraw;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use liqo_csi_cluster::{api, cluster, fleet};
use liqo_csi_model::{placement, topology, volume};
use liqo_csi_observe as observe;

pub use self::snapshot::CONTROLLER_SEES;
pub use self::{
    adopt::{adopted, claim_ref, forget_wish, unmountable},
    attach::{attachment_name, detach_unneeded, publish, unpublish},
    attributes::{NoAttributes, modify},
    claim_copy::{clean_claim, is_copy, remove_copy},
    create::{create, last_warning},
    delete::delete,
    errors::{ChangeError, CreateError, DeleteError, NoSite, PublishError, UnpublishError},
    expand::{Expanded, expand, finish_expansion, grown},
    finalizer::{add_finalizer, has_finalizer, remove_finalizer},
    holder::{data_of, holder, is_marked, mark_holder},
    list::{Listed, list, validate},
    moves::{exists, highest, is_of_move, is_seen_of_move, may_publish_elsewhere},
    reading::{
        holder_uid, is_bound, is_bound_to, is_releasing, node, real_volume_of, twin_in, twin_volume_in,
    },
    reclaim::{give_policy_back, reclaim_policy, retain},
    record::metadata,
    refusals::Refusals,
    room::{Rooms, room},
    site::Site,
    snapshot::{
        CutError, CutSnapshot, SnapshotDeleteError, SnapshotFilter, SnapshotHealth, SnapshotReadError,
        SnapshotRequest, SnapshotSiteError, create_snapshot, delete_snapshot, find_snapshot, list_snapshots,
        living_twins, look_after_snapshot, source_affinity,
    },
    withdraw::withdraw,
};
pub use crate::volume::{TWIN_CLASS, TWIN_NAME, TWIN_NAMESPACE, TWIN_VOLUME};
use crate::{
    topology::Segments,
    volume::{ClusterId, VolumeName, VolumeSpec},
};

/// What the operator allows.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Real classes a claim may choose by annotation.
    pub allowed_classes: BTreeSet<String>,
    /// Namespace of the driver, where users cannot write.
    pub namespace: String,
}

/// A volume to be made.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Its name.
    pub volume: VolumeName,
    /// Name of the request.
    pub request_name: String,
    /// What was asked for.
    pub spec: VolumeSpec,
    /// Where it must be reachable from: one of these, or anywhere if there are none.
    pub requisite: Vec<Segments>,
    /// Where it should rather be reachable from, the best place first.
    pub preferred: Vec<Segments>,
}

/// A volume that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionedVolume {
    /// The cluster of its twin.
    pub cluster: ClusterId,
    /// Its size.
    pub bytes: u64,
    /// From where it can be reached.
    pub topology: Vec<Segments>,
    /// What the virtual PV remembers of it.
    pub context: BTreeMap<String, String>,
}
