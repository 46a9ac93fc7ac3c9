//! The records of the volumes on this node, on disk: unpublish and unstage calls contain only an id and a
//! path, perhaps after a reboot, when the API server does not answer or the objects do not exist.
//!
//! One file per volume, `<state dir>/<hash of the volume id>`: written before the
//! first side effect, removed after the last.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::access::Access;
use crate::volume::{DataPath, digest};

const VERSION: u8 = 1;
/// Extension of a record that is being written.
const DRAFT: &str = "new";
/// A complete SHA-256: two volumes must never share a record.
const NAME_DIGITS: usize = 64;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What was done with a volume on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    version: u8,
    /// The id in the calls of kubelet.
    pub volume_id: String,
    pub staging_path: PathBuf,
    /// The real volume.
    pub data_path: DataPath,
    /// Whether staging succeeded. Until then it is repeated before any publish.
    pub staged: bool,
    /// Whether the real driver was called to stage, so that it must be called to unstage.
    pub stage_delegated: bool,
    /// The boot in which it was staged: no mount survives a reboot.
    pub boot_id: String,
    /// Where it is published, or was about to be.
    #[serde(default)]
    pub targets: BTreeMap<PathBuf, Target>,
}

/// One target path of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Target {
    /// The requested access.
    pub access: Access,
    pub read_only: bool,
    /// Whether publishing succeeded.
    pub published: bool,
}

impl Record {
    /// The record of a volume that is about to be staged.
    #[must_use]
    pub fn new(volume_id: String, staging_path: PathBuf, data_path: DataPath, boot_id: String) -> Self {
        Self {
            version: VERSION,
            volume_id,
            staging_path,
            data_path,
            staged: false,
            stage_delegated: false,
            boot_id,
            targets: BTreeMap::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// An operation on the file system failed.
    #[error("{action} {path}: {error}")]
    Io {
        action: &'static str,
        path: PathBuf,
        error: io::Error,
    },
    /// The file cannot be parsed.
    #[error(
        "the record {path} of volume {volume_id} is corrupt ({error}): unmount what findmnt shows of the volume, \
         then remove the file"
    )]
    Corrupt {
        volume_id: String,
        path: PathBuf,
        error: serde_json::Error,
    },
    /// Written by a newer node plugin.
    #[error(
        "the record {path} of volume {volume_id} has version {version}, this node plugin supports {VERSION}: upgrade it"
    )]
    Version {
        volume_id: String,
        path: PathBuf,
        version: u8,
    },
    /// Two ids with one hash, or a file that a user put there.
    #[error("the record {path} belongs to volume {found}, not to {volume_id}")]
    Foreign {
        volume_id: String,
        path: PathBuf,
        /// The volume in the record.
        found: String,
    },
}

#[derive(Clone, Debug)]
pub struct State {
    dir: PathBuf,
}

impl State {
    /// Opens the directory, and creates it if it is missing. Only root may read it: what a real driver is
    /// told about an attachment may be confidential.
    pub fn open(dir: PathBuf) -> Result<Self, StateError> {
        let mut builder = fs::DirBuilder::new();
        let create = builder.recursive(true).mode(0o700).create(&dir);
        create.map_err(failed("creating", &dir))?;
        let state = Self { dir };
        state.sweep()?;
        Ok(state)
    }

    pub fn load(&self, volume_id: &str) -> Result<Option<Record>, StateError> {
        let path = self.path_of(volume_id);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("reading", &path)(error)),
        };
        read(volume_id, path, &text).map(Some)
    }

    /// Records a call for a volume, if it has a record.
    pub fn record_call(&self, volume_id: &str) {
        // An error only shortens the time until the volume counts as forgotten.
        let _noted =
            fs::File::open(self.path_of(volume_id)).and_then(|record| record.set_modified(SystemTime::now()));
    }

    /// The records of all volumes without a call for this long. A record that cannot be read is reported
    /// in the next call for its volume.
    pub fn without_calls(&self, this_long: Duration) -> Result<Vec<Record>, StateError> {
        let entries = fs::read_dir(&self.dir).map_err(failed("reading", &self.dir))?;
        Ok(entries
            .filter_map(|entry| self.record_without_calls(&entry.ok()?.path(), this_long))
            .collect())
    }

    /// The record of a volume, if there was no call for it for this long.
    #[must_use]
    pub fn volume_without_calls(&self, volume_id: &str, this_long: Duration) -> Option<Record> {
        self.record_without_calls(&self.path_of(volume_id), this_long)
    }

    fn record_without_calls(&self, path: &Path, this_long: Duration) -> Option<Record> {
        let called = fs::metadata(path).ok()?.modified().ok()?;
        if called.elapsed().ok()? < this_long {
            return None;
        }
        let record: Record = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (record.version == VERSION && self.path_of(&record.volume_id) == path).then_some(record)
    }

    /// Writes a record so that it survives a crash of this process or the machine.
    pub fn save(&self, record: &Record) -> Result<(), StateError> {
        let path = self.path_of(&record.volume_id);
        let draft = path.with_extension(DRAFT);
        let text = serde_json::to_vec(record)
            .map_err(io::Error::from)
            .map_err(failed("writing", &path))?;
        let write = || {
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&draft, &path)
        };
        write().map_err(failed("writing", &path))?;
        self.sync_dir()
    }

    /// Removes the record of a volume.
    pub fn remove(&self, volume_id: &str) -> Result<(), StateError> {
        let path = self.path_of(volume_id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("removing", &path)(error)),
            Ok(()) => self.sync_dir(),
        }
    }

    /// Syncs the directory, without which a rename in it may not survive a power failure.
    fn sync_dir(&self) -> Result<(), StateError> {
        fs::File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed("syncing", &self.dir))
    }

    /// Removes incomplete drafts of a crash: no side effect was based on them.
    fn sweep(&self) -> Result<(), StateError> {
        let sweep = || {
            for entry in fs::read_dir(&self.dir)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == DRAFT) {
                    fs::remove_file(path)?;
                }
            }
            Ok(())
        };
        sweep().map_err(failed("sweeping", &self.dir))
    }

    /// Ids may contain any character and have 128 bytes; file names may not.
    fn path_of(&self, volume_id: &str) -> PathBuf {
        self.dir.join(digest(NAME_DIGITS, [volume_id]))
    }
}

/// The kernel's id of the current boot.
pub fn boot_id() -> Result<String, StateError> {
    fs::read_to_string(BOOT_ID)
        .map(|id| id.trim().to_owned())
        .map_err(failed("reading", Path::new(BOOT_ID)))
}

fn read(volume_id: &str, path: PathBuf, text: &[u8]) -> Result<Record, StateError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u8,
    }
    let corrupt = |error| StateError::Corrupt {
        volume_id: volume_id.to_owned(),
        path: path.clone(),
        error,
    };
    let Versioned { version } = serde_json::from_slice(text).map_err(corrupt)?;
    if version != VERSION {
        return Err(StateError::Version {
            volume_id: volume_id.to_owned(),
            path,
            version,
        });
    }
    let record: Record = serde_json::from_slice(text).map_err(corrupt)?;
    if record.volume_id != volume_id {
        return Err(StateError::Foreign {
            volume_id: volume_id.to_owned(),
            path,
            found: record.volume_id,
        });
    }
    Ok(record)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::Io { action, path, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        access::AccessMode,
        volume::{RealSource, VolumeMode},
    };

    fn record(id: &str) -> Record {
        let source = RealSource::HostPath {
            path: "/data".into(),
            path_type: String::new(),
        };
        let path = DataPath::new(source, VolumeMode::Filesystem, vec!["ReadWriteOnce".into()]);
        let mut record = Record::new(id.into(), "/staging".into(), path, "boot".into());
        let access = Access {
            mode: AccessMode::SingleNodeWriter,
            volume_mode: VolumeMode::Filesystem,
            mount_flags: vec!["noatime".into()],
        };
        record.targets.insert(
            "/target".into(),
            Target {
                access,
                read_only: true,
                published: false,
            },
        );
        record
    }

    #[test]
    fn a_record_survives_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let open = || State::open(dir.path().join("state")).unwrap();
        let odd = "v1:home/../../etc\n\"vol\"";
        for id in [odd, "b"] {
            open().save(&record(id)).unwrap();
        }
        assert_eq!(open().load(odd).unwrap(), Some(record(odd)));
        open().remove(odd).unwrap();
        open().remove(odd).unwrap();
        assert_eq!(open().load(odd).unwrap(), None);
        assert_eq!(open().load("b").unwrap(), Some(record("b")));
    }

    #[test]
    fn unreadable_records_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().to_owned()).unwrap();
        state.save(&record("a")).unwrap();
        let draft = state.path_of("a").with_extension("new");
        fs::copy(state.path_of("a"), draft).unwrap();
        fs::write(state.path_of("b"), b"").unwrap();
        let newer = Record {
            version: 7,
            ..record("c")
        };
        state.save(&newer).unwrap();
        assert_eq!(state.without_calls(Duration::ZERO).unwrap(), [record("a")]);
    }

    #[test]
    fn a_call_is_recorded_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let open = || State::open(dir.path().to_owned()).unwrap();
        open().save(&record("a")).unwrap();
        let file = fs::File::open(open().path_of("a")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let age = Duration::from_mins(1);
        assert_eq!(open().volume_without_calls("a", age), Some(record("a")));
        assert_eq!(open().without_calls(age).unwrap(), [record("a")]);
        open().record_call("a");
        assert_eq!(open().volume_without_calls("a", age), None);
        assert_eq!(open().without_calls(age).unwrap(), []);
        open().record_call("b");
        assert_eq!(open().volume_without_calls("b", age), None);
    }

    #[test]
    fn a_record_cut_short_before_the_rename_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().to_owned()).unwrap();
        state.save(&record("a")).unwrap();
        let draft = state.path_of("a").with_extension("new");
        fs::write(&draft, b"{\"vers").unwrap();
        assert_eq!(state.load("a").unwrap(), Some(record("a")));
        State::open(dir.path().to_owned()).unwrap();
        assert!(!draft.exists(), "swept at the next start");
        assert_eq!(state.load("a").unwrap(), Some(record("a")));
    }

    #[test]
    fn each_defect_of_a_record_has_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path().to_owned()).unwrap();
        let path = state.path_of("a");

        fs::write(&path, b"{\"version\":1").unwrap();
        assert!(matches!(state.load("a"), Err(StateError::Corrupt { .. })));
        fs::write(&path, b"").unwrap();
        assert!(matches!(state.load("a"), Err(StateError::Corrupt { .. })));
        fs::write(&path, b"{\"version\":7,\"new\":true}").unwrap();
        assert!(matches!(
            state.load("a"),
            Err(StateError::Version { version: 7, .. })
        ));
        fs::write(&path, serde_json::to_vec(&record("b")).unwrap()).unwrap();
        assert!(matches!(state.load("a"), Err(StateError::Foreign { .. })));
    }
}
