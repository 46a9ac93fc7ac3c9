//! Creates a file system on a device that has none: only if the device is proven to be blank. In doubt it
//! may contain a user's data, and formatting fails.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where signatures are: partition tables, LUKS, LVM, RAID and every file system have theirs in the first
/// megabytes …
const HEAD: u64 = 4 << 20;
/// … or, like backup GPT, old RAID and ZFS labels, at the very end.
const TAIL: u64 = 1 << 20;

/// The arguments of the supported mkfs tools. None of them forces: mkfs looks for signatures, too, and
/// may refuse.
const MAKERS: [(&str, &[&str]); 5] = [
    ("ext2", &["-q", "-m", "0"]),
    ("ext3", &["-q", "-m", "0"]),
    ("ext4", &["-q", "-m", "0"]),
    ("xfs", &["-q"]),
    ("btrfs", &["-q"]),
];

/// Why a device cannot be formatted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The device cannot be read completely, so it is not proven to be blank.
    #[error("cannot check whether {device} is blank: {error}")]
    Inconclusive { device: PathBuf, error: io::Error },
    /// The device is opened exclusively: mounted, or part of a RAID or volume group.
    #[error("{device} is blank, but in use by another program: it is not formatted")]
    InUse { device: PathBuf },
    #[error(
        "this node plugin cannot create {fs_type}, only ext2, ext3, ext4, xfs and btrfs: format {device} yourself"
    )]
    UnknownType { device: PathBuf, fs_type: String },
    /// The tool is missing or failed.
    #[error("{tool} on {device}: {cause}")]
    Failed {
        device: PathBuf,
        tool: String,
        /// The output of the tool.
        cause: String,
    },
}

/// Creates a file system on `device` if it is blank. A device with any content is not changed: the mount
/// will fail if its file system is another one.
pub fn format_if_blank(device: &Path, fs_type: &str) -> Result<(), FormatError> {
    if !is_blank(device)? {
        return Ok(());
    }
    let Some((name, arguments)) = MAKERS.iter().find(|(name, _)| *name == fs_type) else {
        return Err(FormatError::UnknownType {
            device: device.to_owned(),
            fs_type: fs_type.to_owned(),
        });
    };
    refuse_if_in_use(device)?;
    tracing::info!(device = %device.display(), fs_type, "formatting a blank device");
    let tool = format!("mkfs.{name}");
    run(Command::new(&tool).args(*arguments).arg(device)).map_err(|cause| FormatError::Failed {
        device: device.to_owned(),
        tool,
        cause,
    })
}

/// Whether all places where a signature could be contain only zeros.
pub fn is_blank(device: &Path) -> Result<bool, FormatError> {
    let probe = || {
        let mut file = File::open(device)?;
        let size = file.seek(SeekFrom::End(0))?;
        if size == 0 {
            return Err(io::Error::other("it has no size"));
        }
        let tail_at = size.saturating_sub(TAIL);
        Ok(is_zero(&mut file, 0, HEAD.min(size))? && is_zero(&mut file, tail_at, size - tail_at)?)
    };
    probe().map_err(|error| FormatError::Inconclusive {
        device: device.to_owned(),
        error,
    })
}

fn is_zero(file: &mut File, offset: u64, length: u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(offset))?;
    let mut buffer = vec![0; 64 << 10];
    let mut left = length;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
        file.read_exact(&mut buffer[..want])?;
        if buffer[..want].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        left -= want as u64;
    }
    Ok(true)
}

/// The kernel permits only one exclusive open of a block device at a time.
fn refuse_if_in_use(device: &Path) -> Result<(), FormatError> {
    let exclusive = nix::fcntl::OFlag::O_EXCL.bits();
    match OpenOptions::new().read(true).custom_flags(exclusive).open(device) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(FormatError::InUse {
            device: device.to_owned(),
        }),
        Err(error) => Err(FormatError::Inconclusive {
            device: device.to_owned(),
            error,
        }),
    }
}

/// Runs a tool to its end; its output is the error.
pub(super) fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "the program is not in this image".to_owned(),
            _ => error.to_string(),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    Err(format!(
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&said).trim()
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn image(size: u64, data: &[(u64, &[u8])]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        for (offset, bytes) in data {
            file.seek(SeekFrom::Start(*offset)).unwrap();
            file.write_all(bytes).unwrap();
        }
        file
    }

    #[test]
    fn any_byte_in_the_signature_area_prevents_formatting() {
        let size = 16 << 20;
        assert!(is_blank(image(size, &[]).path()).unwrap());
        for offset in [
            0,
            512,
            1024 + 56,
            0x1_0000 + 0x40,
            HEAD - 1,
            size - TAIL,
            size - 512,
            size - 1,
        ] {
            let file = image(size, &[(offset, b"x")]);
            assert!(!is_blank(file.path()).unwrap(), "a byte at {offset}");
        }
        for small in [1, 4096, HEAD, HEAD + 1] {
            assert!(is_blank(image(small, &[]).path()).unwrap(), "{small}");
            assert!(
                !is_blank(image(small, &[(small - 1, b"x")]).path()).unwrap(),
                "{small}"
            );
        }
    }

    #[test]
    fn a_device_that_cannot_be_checked_is_not_formatted() {
        for path in ["/no/such/device", "/"] {
            let result = is_blank(Path::new(path));
            assert!(
                matches!(result, Err(FormatError::Inconclusive { .. })),
                "{result:?}"
            );
        }
        let result = is_blank(image(0, &[]).path());
        assert!(
            matches!(result, Err(FormatError::Inconclusive { .. })),
            "{result:?}"
        );
    }

    #[test]
    fn an_unknown_file_system_type_is_refused() {
        let result = format_if_blank(image(HEAD, &[]).path(), "ntfs");
        assert!(
            matches!(result, Err(FormatError::UnknownType { .. })),
            "{result:?}"
        );
    }

    #[test]
    fn a_failed_tool_is_quoted() {
        let said = run(Command::new("sh").args(["-c", "echo no room >&2; exit 3"])).unwrap_err();
        assert!(said.contains("no room") && said.contains('3'), "{said}");
        let absent = run(&mut Command::new("mkfs.nonsense")).unwrap_err();
        assert!(absent.contains("not in this image"), "{absent}");
    }
}
