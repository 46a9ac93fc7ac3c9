//! The results of a pass, in the order of the walk, until they are on disk: every second the completed part
//! at the head is synchronised and then written to the journal. Content arrives in any order; the journal is
//! written in one order.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    fs::File,
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    apply::DeviceJob,
    entry::{Hash, Inode},
    error::Error,
    journal::{JournalWriter, Line, Record},
    loss::Losses,
    path::TreePath,
    plan::MAX_SEEN,
    session::{SessionStatus, lock},
    tree::Tree,
};

/// How often completed results are written.
const INTERVAL: Duration = Duration::from_secs(1);
/// The minimum interval, however many results there are.
const AT_LEAST: Duration = Duration::from_millis(250);
/// Maximum size of the waiting results, in bytes, roughly.
const LIMIT: usize = 24 << 20;

/// The result for a file.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done {
        /// The hash of the content on disk, if it is known.
        content: Option<Hash>,
        /// The file did not change while it was read.
        steady: bool,
        /// Content was written.
        wrote: bool,
    },
    /// The file does not exist any more.
    Gone,
}

/// The place for the outcome of one file.
#[derive(Debug, Default)]
pub(crate) struct Slot(OnceLock<Outcome>);

impl Slot {
    pub(crate) fn fill(&self, outcome: Outcome) {
        // The outcome of a file is set only once.
        let _ = self.0.set(outcome);
    }
}

/// The next item in the order of the walk.
pub(crate) enum Item {
    Directory {
        path: TreePath,
        own: Inode,
    },
    /// Unchanged since before this pass.
    Kept(Record),
    /// In progress, or just completed.
    Record {
        record: Record,
        slot: Arc<Slot>,
    },
    End {
        digest: Option<Hash>,
        touched: u32,
        losses: Losses,
    },
    /// A directory that the source lists, and that does not exist here.
    Missed(TreePath),
    /// Chunks of a device.
    Range {
        first: u64,
        job: Arc<DeviceJob>,
    },
}

impl Item {
    fn is_complete(&self) -> bool {
        match self {
            Self::Record { slot, .. } => slot.0.get().is_some(),
            Self::Range { job, .. } => job.slot.0.get().is_some(),
            _ => true,
        }
    }

    fn cost(&self) -> usize {
        match self {
            Self::Directory { path, own } => own.cost() + path.as_bytes().len(),
            Self::Missed(path) => 320 + path.as_bytes().len(),
            Self::Kept(record) => record.cost(),
            Self::Record { record, .. } => record.cost() + 320,
            Self::End { losses, .. } => 64 + losses.cost(),
            Self::Range { .. } => 2048,
        }
    }
}

/// The counts of a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Files that changed while they were read or were deleted, and the first of them.
    pub(crate) unsteady: u64,
    pub(crate) first_unsteady: Option<TreePath>,
    /// Ranges of a device that were written.
    pub(crate) written: BTreeSet<u64>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    cost: usize,
    finished: bool,
}

/// The queue between the planner, the lanes and the journal.
#[derive(Default)]
pub(crate) struct Ledger {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Ledger {
    /// Whether the queue accepts more items.
    pub(crate) fn has_capacity(&self) -> bool {
        lock(&self.queue).cost < LIMIT
    }

    /// Waits until the queue has capacity; everything that it contains must have been requested.
    pub(crate) fn wait(&self, status: &SessionStatus) -> Result<(), Error> {
        let mut queue = lock(&self.queue);
        while queue.cost >= LIMIT {
            if status.is_over() {
                return Err(SessionStatus::ended());
            }
            self.changed.notify_all();
            queue = self
                .changed
                .wait_timeout(queue, AT_LEAST)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(())
    }

    pub(crate) fn push(&self, item: Item) {
        let mut queue = lock(&self.queue);
        queue.cost += item.cost();
        queue.items.push_back(item);
    }

    /// No more items will be added.
    pub(crate) fn finish(&self) {
        lock(&self.queue).finished = true;
        self.changed.notify_all();
    }

    /// The completed items at the head; `None` when everything is written.
    fn take(&self, since: Instant, status: &SessionStatus) -> Option<Vec<Item>> {
        let mut queue = lock(&self.queue);
        loop {
            if status.is_over() {
                return None;
            }
            let elapsed = since.elapsed();
            let due =
                queue.finished || elapsed >= INTERVAL || (elapsed >= AT_LEAST && queue.cost >= LIMIT / 2);
            if due {
                let count = queue.items.iter().take_while(|item| item.is_complete()).count();
                if count > 0 {
                    let items: Vec<Item> = queue.items.drain(..count).collect();
                    queue.cost -= items.iter().map(Item::cost).sum::<usize>();
                    drop(queue);
                    self.changed.notify_all();
                    return Some(items);
                }
                if queue.finished && queue.items.is_empty() {
                    return None;
                }
            }
            // Lanes do not wake this up: a short delay does no harm.
            let patience = if queue.finished {
                Duration::from_millis(2)
            } else {
                Duration::from_millis(50)
            };
            queue = self
                .changed
                .wait_timeout(queue, patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Writes a pass's journal. Ends when all of the pass is in it, or the session is over.
pub(crate) struct Committer<'a> {
    tree: Option<&'a Tree>,
    /// Instead of a tree.
    device: Option<&'a File>,
    ledger: &'a Ledger,
    pass: u32,
    counts: Counts,
    /// Whether the current directory is clean so far.
    clean: bool,
    directory: TreePath,
    /// Inodes with several names whose content was not copied under the first one: it changed meanwhile, or the name does
    /// not exist any more. The other names are not clean, so that the next pass reads the content.
    uncopied: HashSet<u64>,
}

impl<'a> Committer<'a> {
    pub(crate) fn of_tree(tree: &'a Tree, ledger: &'a Ledger, pass: u32) -> Self {
        Self {
            tree: Some(tree),
            ..Self::of_nothing(ledger, pass)
        }
    }

    pub(crate) fn of_device(device: &'a File, ledger: &'a Ledger, pass: u32) -> Self {
        Self {
            device: Some(device),
            ..Self::of_nothing(ledger, pass)
        }
    }

    fn of_nothing(ledger: &'a Ledger, pass: u32) -> Self {
        let (counts, directory) = (Counts::default(), TreePath::root());
        Self {
            tree: None,
            device: None,
            ledger,
            pass,
            counts,
            clean: false,
            directory,
            uncopied: HashSet::new(),
        }
    }

    pub(crate) fn run(
        mut self,
        mut journal: Option<&mut JournalWriter>,
        status: &SessionStatus,
    ) -> Result<Counts, Error> {
        let mut since = Instant::now();
        while let Some(items) = self.ledger.take(since, status) {
            since = Instant::now();
            if let Some(tree) = self.tree {
                tree.sync()
                    .map_err(Error::tree("synchronising", &TreePath::root()))?;
            }
            if let Some(device) = self.device {
                device
                    .sync_data()
                    .map_err(Error::file("synchronising", &TreePath::root()))?;
            }
            for item in items {
                self.write(item, &mut journal)?;
            }
            if let Some(journal) = &mut journal {
                journal.sync().map_err(Error::Journal)?;
            }
        }
        Ok(self.counts)
    }

    fn write(&mut self, item: Item, journal: &mut Option<&mut JournalWriter>) -> Result<(), Error> {
        let line = match item {
            Item::Directory { path, own } => {
                self.clean = true;
                self.directory = path.clone();
                Line::Directory { path, own }
            }
            Item::Kept(mut record) => {
                let inode = &record.entry.inode;
                let is_full = self.uncopied.len() >= MAX_SEEN;
                record.clean &= !(inode.linked && (is_full || self.uncopied.contains(&inode.stamp.ino)));
                self.clean &= record.clean;
                Line::Record(record)
            }
            Item::Record { mut record, slot } => match slot.0.get() {
                Some(Outcome::Done {
                    content,
                    steady,
                    wrote,
                }) => {
                    if !steady {
                        self.count(&record);
                    }
                    record.clean &= *steady;
                    record.content = *content;
                    if *wrote {
                        record.touched = self.pass;
                    }
                    self.clean &= record.clean;
                    Line::Record(record)
                }
                Some(Outcome::Gone) | None => {
                    self.count(&record);
                    self.clean = false;
                    return Ok(());
                }
            },
            Item::End {
                digest,
                touched,
                losses,
            } => Line::End {
                digest: digest.filter(|_| self.clean),
                touched,
                losses,
            },
            Item::Missed(path) => {
                self.counts.unsteady += 1;
                self.counts.first_unsteady.get_or_insert(path);
                return Ok(());
            }
            Item::Range { first, job } => {
                if let Some(Outcome::Done { wrote: true, .. }) = job.slot.0.get() {
                    self.counts.written.insert(first);
                }
                return job.chunks.put(first, &lock(&job.hashes)).map_err(Error::Journal);
            }
        };
        match journal {
            Some(journal) => journal.put(&line).map_err(Error::Journal),
            None => Ok(()),
        }
    }

    fn count(&mut self, record: &Record) {
        let inode = &record.entry.inode;
        if inode.linked && self.uncopied.len() < MAX_SEEN {
            self.uncopied.insert(inode.stamp.ino);
        }
        self.counts.unsteady += 1;
        if self.counts.first_unsteady.is_none() {
            self.counts.first_unsteady = self.directory.child(&record.entry.name).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit of the queue is about this cost.
    #[test]
    fn the_extended_attributes_of_a_directory_count_as_memory() {
        let (path, mut own) = (TreePath::root(), Inode::directory_by_name());
        own.attributes.xattrs = vec![(b"user.x".to_vec(), vec![0; 1 << 16])];
        assert!(Item::Directory { path, own }.cost() >= 1 << 16);
    }
}
