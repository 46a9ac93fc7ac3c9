//! Parses the kernel's mount table (`/proc/self/mountinfo`). Changes of mounts are in
//! [`super::mounts`].

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    /// The directory of its file system that is visible there; `/` unless it is a bind.
    pub root: PathBuf,
    /// `major:minor` of the file system.
    pub device: (u32, u32),
    pub fs_type: String,
    /// The source according to the file system.
    pub source: OsString,
    /// Options of this mount, such as `rw` and `noatime`.
    pub options: Vec<String>,
}

impl Mount {
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }
}

/// A snapshot of the mount table, in mounting order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable(Vec<Mount>);

/// A line that cannot be parsed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the mount table has a line that cannot be read: {0:?}")]
pub struct MountInfoError(String);

impl MountTable {
    /// Parses the content of a `mountinfo` file. Paths may contain any bytes, so this takes bytes.
    pub fn parse(text: &[u8]) -> Result<Self, MountInfoError> {
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| {
                parse_line(line).ok_or_else(|| MountInfoError(String::from_utf8_lossy(line).into_owned()))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The mount that is visible at `point`: the topmost one if several are stacked.
    #[must_use]
    pub fn at(&self, point: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.point == point)
    }

    /// Whether anything is mounted at `point` or below it.
    #[must_use]
    pub fn covers(&self, point: &Path) -> bool {
        self.0.iter().any(|mount| mount.point.starts_with(point))
    }
}

/// `36 35 98:0 /root /point rw,noatime shared:1 - ext4 /dev/sda rw`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (_id, _parent) = (fields.next()?, fields.next()?);
    let (major, minor) = text(fields.next()?)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let root = unescape(fields.next()?).into();
    let point = unescape(fields.next()?).into();
    let options = text(fields.next()?)?.split(',').map(str::to_owned).collect();
    fields.by_ref().find(|field| *field == b"-")?;
    let fs_type = text(fields.next()?)?.to_owned();
    let source = unescape(fields.next()?);
    fields.next()?;
    Some(Mount {
        point,
        root,
        device,
        fs_type,
        source,
        options,
    })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

/// The kernel writes blank, tab, newline, `#` and backslash as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'\\').then(|| tail.get(..3).and_then(octal)).flatten();
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOLDEN: &str = "\
21 26 0:19 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
26 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
90 26 254:1 /data /var/lib/kubelet/pods/p/volumes/kubernetes.io~csi/v/mount ro,noatime - ext4 /dev/vda1 rw
91 26 7:0 / /mnt/with\\040blank\\134and\\011tab rw shared:2 master:1 propagate_from:3 - xfs /dev/loop0 rw
92 91 0:44 / /mnt/with\\040blank\\134and\\011tab rw - nfs4 server:/export rw,vers=4.2
93 26 0:45 / /mnt/nosource rw - tmpfs  rw
";

    #[test]
    fn the_mount_table_of_the_kernel_is_parsed() {
        let table = MountTable::parse(GOLDEN.as_bytes()).unwrap();
        let target = table
            .at(Path::new(
                "/var/lib/kubelet/pods/p/volumes/kubernetes.io~csi/v/mount",
            ))
            .unwrap();
        assert_eq!(target.root, Path::new("/data"));
        assert_eq!(target.device, (254, 1));
        assert!(target.is_read_only());
        assert!(!table.at(Path::new("/")).unwrap().is_read_only());

        let odd = Path::new("/mnt/with blank\\and\ttab");
        assert_eq!(table.at(odd).unwrap().fs_type, "nfs4", "the topmost one counts");
        assert_eq!(table.at(odd).unwrap().source, "server:/export");
        assert_eq!(table.at(Path::new("/mnt/nosource")).unwrap().source, "");
        assert!(table.covers(Path::new("/var/lib/kubelet/pods/p")));
        assert!(
            !table.covers(Path::new("/var/lib/kubelet/po")),
            "names are not prefixes"
        );
        assert_eq!(table.at(Path::new("/mnt")), None);
    }

    #[test]
    fn a_broken_line_is_an_error_not_a_hole() {
        for broken in [
            "21",
            "21 26 019 / /sys rw - sysfs sysfs rw",
            "21 26 0:19 / /sys rw sysfs",
            "21 26 0:19 / /sys rw - sysfs",
        ] {
            assert!(MountTable::parse(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn this_machines_table_can_be_read() {
        let text = std::fs::read("/proc/self/mountinfo").unwrap();
        assert!(MountTable::parse(&text).unwrap().at(Path::new("/proc")).is_some());
    }

    /// Escapes like `seq_path` and `mangle` of the kernel.
    fn escape(path: &[u8]) -> Vec<u8> {
        path.iter()
            .flat_map(|byte| match byte {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}").into_bytes(),
                byte => vec![*byte],
            })
            .collect()
    }

    proptest! {
        #[test]
        fn escaped_paths_of_the_mount_table_are_decoded(point in proptest::collection::vec(1u8.., 0..60), root in proptest::collection::vec(1u8.., 0..60)) {
            let mut line = b"36 35 98:0 /".to_vec();
            line.extend(escape(&root));
            line.extend(b" /");
            line.extend(escape(&point));
            line.extend(b" rw,noatime shared:1 - ext4 /dev/sda rw\n");
            let table = MountTable::parse(&line).unwrap();
            let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec([b"/", bytes].concat()));
            prop_assert_eq!(&table.0[0].point, &path(&point));
            prop_assert_eq!(&table.0[0].root, &path(&root));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MountTable::parse(&text);
        }
    }
}
