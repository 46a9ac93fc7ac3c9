//! What a pass has found, in the order of the walk, until it is on disk: every second
//! the part of it that is complete is synchronised and only then written to the journal.
//! Content arrives in any order; the journal grows in one.

use std::{
    collections::{BTreeSet, VecDeque},
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
    session::{Fate, lock},
    tree::Tree,
};

/// How often what is complete is written down.
const INTERVAL: Duration = Duration::from_secs(1);
/// Not more often than this, however much there is.
const AT_LEAST: Duration = Duration::from_millis(250);
/// How much may wait, in bytes, roughly.
const LIMIT: usize = 24 << 20;

/// How a file has come out.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done {
        /// The hash of what is on disk, if it is known.
        content: Option<Hash>,
        /// It did not change while it was read.
        steady: bool,
        /// Content was written.
        wrote: bool,
    },
    /// It is not there any more.
    Gone,
}

/// Where the outcome of one file appears.
#[derive(Debug, Default)]
pub(crate) struct Slot(OnceLock<Outcome>);

impl Slot {
    pub(crate) fn fill(&self, outcome: Outcome) {
        // Nobody fills it twice.
        let _ = self.0.set(outcome);
    }
}

/// The next thing in the order of the walk.
pub(crate) enum Item {
    Directory {
        path: TreePath,
        own: Inode,
    },
    /// As it was before this pass.
    Kept(Record),
    /// Under way, or just done.
    Record {
        record: Record,
        slot: Arc<Slot>,
    },
    End {
        digest: Option<Hash>,
        touched: u32,
        losses: Losses,
    },
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
        let record = |record: &Record| {
            let xattrs = &record.entry.inode.attributes.xattrs;
            320 + xattrs
                .iter()
                .map(|(name, value)| name.len() + value.len() + 64)
                .sum::<usize>()
        };
        match self {
            Self::Directory { path, .. } => 320 + path.as_bytes().len(),
            Self::Kept(kept) => record(kept),
            Self::Record { record: pending, .. } => record(pending) + 320,
            Self::End { losses, .. } => 64 + losses.cost(),
            Self::Range { .. } => 2048,
        }
    }
}

/// Counts what a pass has come to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Files that changed while they were read or went away, and the first of them.
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
    /// Whether there is room for more.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.queue).cost < LIMIT
    }

    /// Waits until there is; what is under way must have been asked for.
    pub(crate) fn wait(&self, fate: &Fate) -> Result<(), Error> {
        let mut queue = lock(&self.queue);
        while queue.cost >= LIMIT {
            if fate.is_over() {
                return Err(Fate::ended());
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

    /// Nothing more will come.
    pub(crate) fn finish(&self) {
        lock(&self.queue).finished = true;
        self.changed.notify_all();
    }

    /// What is complete at the head; nothing more than that when all is done.
    fn take(&self, since: Instant, fate: &Fate) -> Option<Vec<Item>> {
        let mut queue = lock(&self.queue);
        loop {
            if fate.is_over() {
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
            // Lanes do not wake this up: a moment more or less does not matter to anyone.
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
    /// The directory that is being written: all of it is clean so far.
    clean: bool,
    directory: TreePath,
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
        }
    }

    pub(crate) fn run(
        mut self,
        mut journal: Option<&mut JournalWriter>,
        fate: &Fate,
    ) -> Result<Counts, Error> {
        let mut since = Instant::now();
        while let Some(items) = self.ledger.take(since, fate) {
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
            Item::Kept(record) => {
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
        self.counts.unsteady += 1;
        if self.counts.first_unsteady.is_none() {
            self.counts.first_unsteady = self.directory.child(&record.entry.name).ok();
        }
    }
}
