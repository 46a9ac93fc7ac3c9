//! When stamps are reliable. A write through a memory mapping from before the read changes neither size nor
//! times until the page was written back: only then does the kernel notice the next write. So a pass begins
//! by synchronising the file system at a time S, and a file is clean if its ctime is well before S: see
//! [`LONGEST_WRITE`].

use std::{os::fd::AsFd, time::Duration};

use rustix::{
    fs::fstatfs,
    time::{ClockId, clock_getres, clock_gettime},
};

use crate::{
    entry::Time,
    message::ClockReading,
    tree::{BTRFS, EXT},
};

/// File systems that notice every write to a page after its write-back, and take their times from this
/// machine's clock: ext2 to ext4, XFS, Btrfs.
const LOCAL: [i64; 3] = [EXT, 0x5846_5342, BTRFS];
/// How long one `write()` may take. It sets the ctime when it begins, and its last bytes may be written long
/// after that: one call writes up to 2 GiB, for which a disk with 10 MB/s needs 205 seconds. A file that was
/// read meanwhile has the same stamps afterwards and different content. So stamps count only for files whose
/// ctime is older than this when a pass begins; all others are read again. This is also far more than the
/// rounding of times in file systems, which is two seconds at most.
///
/// A single call that takes longer may be missed: only reading all of the source in the last pass,
/// [`PassOptions::reread`](crate::target::PassOptions::reread), is safe from it.
pub const LONGEST_WRITE: Duration = Duration::from_mins(10);
/// The kernel may slew the clock by this much in a second.
const SLEW_NANOS_PER_SECOND: i64 = 500_000;

/// The current time.
pub(crate) fn read() -> ClockReading {
    // File systems take their times from the coarse clock.
    let wall = clock_gettime(ClockId::RealtimeCoarse);
    let boot = clock_gettime(ClockId::Boottime);
    let precise = clock_gettime(ClockId::Realtime);
    let tick = clock_getres(ClockId::RealtimeCoarse);
    ClockReading {
        wall_nanos: nanos(wall.tv_sec, wall.tv_nsec),
        offset_nanos: nanos(precise.tv_sec, precise.tv_nsec) - nanos(boot.tv_sec, boot.tv_nsec),
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        tick_nanos: u64::try_from(nanos(tick.tv_sec, tick.tv_nsec)).unwrap_or(10_000_000),
    }
}

/// Whether the stamps of this file system show every change.
pub(crate) fn stamps_count(root: impl AsFd) -> bool {
    fstatfs(root).is_ok_and(|fs| LOCAL.contains(&{ fs.f_type }))
}

/// Whether the clock ran steadily from one reading to the next. False if that is unknown.
pub(crate) fn went_on(before: &ClockReading, now: &ClockReading) -> bool {
    let passed = now.wall_nanos.saturating_sub(before.wall_nanos);
    let slewed = passed / 1_000_000_000 * SLEW_NANOS_PER_SECOND;
    let tolerated = slewed.saturating_add(i64::try_from(2 * now.tick_nanos).unwrap_or(0));
    !now.boot_id.is_empty()
        && before.boot_id == now.boot_id
        && passed > 0
        && before.offset_nanos.saturating_sub(now.offset_nanos) <= tolerated
}

/// Whether the write that set this ctime had ended when the pass began at this reading. Then every later
/// change sets another ctime.
pub(crate) fn settled(ctime: Time, pass: &ClockReading, longest_write: Duration) -> bool {
    let longest = i128::try_from(longest_write.as_nanos()).unwrap_or(i128::MAX);
    let limit = i128::from(pass.wall_nanos).saturating_sub(longest);
    i128::from(ctime.secs) * 1_000_000_000 + i128::from(ctime.nanos) < limit
}

fn nanos(secs: i64, nanos: i64) -> i64 {
    secs.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall: i64, offset: i64) -> ClockReading {
        ClockReading {
            wall_nanos: wall * 1_000_000_000,
            offset_nanos: offset * 1_000_000_000,
            boot_id: "b".to_owned(),
            tick_nanos: 4_000_000,
        }
    }

    #[test]
    fn a_clock_set_back_or_unknown_is_noticed() {
        assert!(went_on(&at(100, 50), &at(110, 50)));
        assert!(went_on(&at(100, 50), &at(300, 60)), "set forward does no harm");
        assert!(!went_on(&at(100, 50), &at(99, 40)));
        assert!(
            !went_on(&at(100, 50), &at(300, 49)),
            "set back by a second, minutes ago"
        );
        let other_boot = ClockReading {
            boot_id: "c".to_owned(),
            ..at(110, 50)
        };
        assert!(!went_on(&at(100, 50), &other_boot));
        let mut slewed = at(100_000, 50);
        slewed.offset_nanos -= 40_000_000_000;
        assert!(
            went_on(&at(0, 50), &slewed),
            "slewing for a day is not setting back"
        );
        assert!(went_on(&read(), &{
            std::thread::sleep(std::time::Duration::from_millis(20));
            read()
        }));
    }

    /// A write of 2 GiB that began five minutes before a pass may still be in progress during it.
    #[test]
    fn recently_written_files_are_not_settled() {
        let pass = at(10_000, 50);
        let settled_at = |secs, nanos| settled(Time { secs, nanos }, &pass, LONGEST_WRITE);
        assert!(!settled_at(10_000 - 300, 1));
        assert!(!settled_at(10_000 - 600, 0) && !settled_at(10_000 - 600, 1));
        assert!(settled_at(10_000 - 601, 999_999_999), "older files are skipped");
        assert!(!settled_at(i64::MAX, 1), "from the future");
    }
}
