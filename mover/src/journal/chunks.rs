//! The hashes of the chunks of files and devices.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::Journal;
use crate::{
    entry::Hash,
    path::TreePath,
    piece::{chunk_length, hash_hole},
};

/// Hashes of chunks that are read at a time.
const HASHES: usize = 2048;

/// The hashes of the chunks of one file.
pub(crate) struct Chunks {
    file: File,
    /// The hash that is stored as zeros, so that a long hole takes no space; zeros of a device are unknown
    /// hashes.
    zeros: Option<Hash>,
}

impl Chunks {
    /// Of a file, all hashes up to its end are known when its content is.
    pub(crate) fn of(journal: &Journal, path: &TreePath) -> io::Result<Self> {
        Self::at(&Self::place(journal, path))
    }

    /// The same for a file whose hashes are at this place.
    pub(crate) fn at(place: &Path) -> io::Result<Self> {
        Ok(Self {
            zeros: Some(hash_hole(chunk_length(u64::MAX, 0))),
            ..Self::open(place)?
        })
    }

    /// Of a device, some may be unknown.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        Ok(Self { file, zeros: None })
    }

    pub(crate) fn forget(journal: &Journal, path: &TreePath) {
        // A file that cannot be removed only takes space: without a record it is not used.
        let _ = fs::remove_file(Self::place(journal, path));
    }

    pub(crate) fn place(journal: &Journal, path: &TreePath) -> PathBuf {
        let hash = blake3::hash(path.as_bytes()).to_hex();
        journal.file("chunks").join(hash.get(..32).unwrap_or_default())
    }

    /// Whether no hash was ever stored.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// What is stored for these chunks, up to the end of the file.
    fn read(&self, first: u64, count: usize) -> io::Result<Vec<Hash>> {
        let mut bytes = vec![0; count * 32];
        let mut got = 0;
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, first * 32 + got as u64)? {
                0 => break,
                more => got += more,
            }
        }
        bytes.truncate(got);
        let (hashes, _) = bytes.as_chunks::<32>();
        Ok(hashes.to_vec())
    }

    /// The stored hashes of these chunks.
    pub(crate) fn get(&self, first: u64, count: usize) -> io::Result<Vec<Option<Hash>>> {
        let stored = self.read(first, count)?.into_iter();
        let known = stored.map(|hash| {
            if hash == Hash::default() {
                self.zeros
            } else {
                Some(hash)
            }
        });
        let mut all: Vec<_> = known.collect();
        all.resize(count, None);
        Ok(all)
    }

    pub(crate) fn put(&self, first: u64, hashes: &[Option<Hash>]) -> io::Result<()> {
        let known = hashes.iter().map(|hash| hash.filter(|_| *hash != self.zeros));
        let stored: Vec<Hash> = known.map(Option::unwrap_or_default).collect();
        let is_zero = |hashes: &[Hash]| hashes.iter().all(|hash| *hash == Hash::default());
        if self.zeros.is_some() && is_zero(&stored) && is_zero(&self.read(first, stored.len())?) {
            return Ok(());
        }
        self.file.write_all_at(stored.as_flattened(), first * 32)
    }

    /// The hash over all of them, which must be known.
    pub(crate) fn hash(&self, count: u64) -> io::Result<Hash> {
        self.file.set_len(count * 32)?;
        let mut hasher = blake3::Hasher::new();
        let mut first = 0;
        while first < count {
            let some = usize::try_from(count - first).map_or(HASHES, |rest| rest.min(HASHES));
            for hash in self.get(first, some)? {
                hasher.update(&hash.unwrap_or_default());
            }
            first += some as u64;
        }
        Ok(*hasher.finalize().as_bytes())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
