//! The life of a twin, in whichever cluster: `CreateVolume`, attach, expand, `DeleteVolume`, snapshots
//! and lists. Here the facts are observed and the steps carried out; the decisions are in the model
//! (`placement`). No state is kept between calls: any operation may be the first one after a crash, and
//! starts by reading.

#![allow(missing_docs, reason = "internal: a comment says why, not what the name says")]

mod adopt;
mod attach;
pub mod attributes;
mod available_capacity;
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
mod identity;
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
    adopt::{adopted, claim_ref, remove_adopt_request, unmountable},
    attach::{attachment_name, detach_unneeded, publish, unpublish},
    attributes::{NoAttributes, modify},
    available_capacity::{CapacityViews, available_capacity, real_drivers},
    claim_copy::{clean_claim, is_copy, remove_copy},
    claimed::second_pvs,
    create::{EXISTING_VOLUME, create, last_warning},
    delete::{copy_to_come, delete},
    errors::{ChangeError, CreateError, DeleteError, NoSite, PublishError, UnpublishError},
    expand::{Expanded, expand, finish_expansion, grown},
    finalizer::{add_finalizer, has_finalizer, remove_finalizer},
    holder::{data_of, earlier_data, holder, is_marked, mark_holder},
    identity::other_cluster,
    list::{Listed, list, validate},
    moves::{exists, highest, is_of_move, is_seen_of_move, may_publish_elsewhere},
    reading::{
        holder_uid, is_bound, is_bound_to, is_releasing, node, real_volume_of, twin_in, twin_volume_in,
    },
    reclaim::{reclaim_policy, restore_reclaim_policy, retain},
    record::{metadata, twins_claim},
    refusals::Refusals,
    site::Site,
    snapshot::{
        SnapshotCreateError, SnapshotDeleteError, SnapshotFilter, SnapshotHealth, SnapshotReadError,
        SnapshotRequest, SnapshotSiteError, TakenSnapshot, check_snapshot, create_snapshot, delete_snapshot,
        find_snapshot, list_snapshots, living_twins, source_affinity,
    },
    withdraw::withdraw,
};
pub use crate::volume::{TWIN_CLASS, TWIN_NAME, TWIN_NAMESPACE, TWIN_VOLUME};
use crate::{
    topology::Segments,
    volume::{ClusterId, VolumeName, VolumeSpec},
};

/// What the administrator allows.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Real classes that claims may choose by annotation.
    pub allowed_classes: BTreeSet<String>,
    /// Namespace of the driver, to which users cannot write.
    pub namespace: String,
}

/// A request for a new volume.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    pub volume: VolumeName,
    /// The name in the `CreateVolume` request.
    pub request_name: String,
    pub spec: VolumeSpec,
    /// From where the volume must be accessible: from one of these, or from anywhere if empty.
    pub requisite: Vec<Segments>,
    /// From where the volume should be accessible, best first.
    pub preferred: Vec<Segments>,
}

/// The result of `CreateVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionedVolume {
    /// The cluster of its twin.
    pub cluster: ClusterId,
    pub bytes: u64,
    /// From where the volume is accessible.
    pub topology: Vec<Segments>,
    /// The volume context, which becomes the attributes of the virtual PV.
    pub context: BTreeMap<String, String>,
}
