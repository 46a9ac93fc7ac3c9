//! What cannot be copied. It is read only for directories that are listed, so the target records it for each
//! directory until it is listed again.

use std::collections::BTreeMap;

use rustix::thread::CapabilitySet;

use crate::{
    message::{BadMessage, RawLoss},
    path::TreePath,
};

/// What cannot be copied of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LossKind {
    /// Extended attributes of namespaces that are not copied: most of `security`, and `trusted` as far as
    /// the source can see it.
    Xattrs = 1,
    /// Inode flags, as those of `chattr`, of files and directories.
    Flags = 2,
}

/// Whether this process sees attributes of the namespace `trusted`. The kernel hides them from processes
/// without `CAP_SYS_ADMIN` in the initial user namespace.
pub(crate) fn sees_trusted() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_first = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let has = rustix::thread::capabilities(None);
    is_first && has.is_ok_and(|has| has.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// For each kind the number of names, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses(BTreeMap<LossKind, (u64, TreePath)>);

impl Losses {
    pub(crate) fn note(&mut self, kind: LossKind, count: u64, example: &TreePath) {
        let (sum, _) = self.0.entry(kind).or_insert_with(|| (0, example.clone()));
        *sum = sum.saturating_add(count);
    }

    pub(crate) fn add(&mut self, others: &Self) {
        for (kind, (count, example)) in &others.0 {
            self.note(*kind, *count, example);
        }
    }

    pub(crate) fn encode(&self) -> Vec<RawLoss> {
        let losses = self.0.iter().map(|(kind, (count, example))| RawLoss {
            kind: *kind as u32,
            count: *count,
            example: example.as_bytes().to_vec(),
        });
        losses.collect()
    }

    pub(crate) fn parse(all: &[RawLoss]) -> Result<Self, BadMessage> {
        let mut losses = Self::default();
        for raw in all {
            let kind = match raw.kind {
                1 => LossKind::Xattrs,
                2 => LossKind::Flags,
                _ => return Err(BadMessage::Field("an unknown kind of loss")),
            };
            losses.note(kind, raw.count, &TreePath::parse(&raw.example)?);
        }
        Ok(losses)
    }

    /// The approximate memory of this value, in bytes.
    pub(crate) fn cost(&self) -> usize {
        self.0
            .values()
            .map(|(_, example)| 64 + example.as_bytes().len())
            .sum()
    }

    pub(crate) fn into_list(self) -> Vec<(LossKind, u64, TreePath)> {
        let losses = self.0.into_iter();
        losses
            .map(|(kind, (count, example))| (kind, count, example))
            .collect()
    }
}
