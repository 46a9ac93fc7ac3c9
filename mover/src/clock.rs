//! When stamps can be relied on. A write through a mapping that was made before we read
//! changes neither size nor times, until the page has been written back: only then does
//! the kernel notice the next write. So a pass begins by synchronising the file system at
//! a moment S, and a file is clean if its ctime is well before S.

use std::os::fd::AsFd;

use rustix::{
    fs::fstatfs,
    time::{ClockId, clock_getres, clock_gettime},
};

use crate::{entry::Time, message::ClockReading};

/// File systems that notice every write to a page that was written back, and keep
/// their times in this machine's clock: ext2 to ext4, XFS, Btrfs.
const LOCAL: [i64; 3] = [0xEF53, 0x5846_5342, 0x9123_683E];
/// The kernel may slew the clock by this much in a second.
const SLEW_NANOS_PER_SECOND: i64 = 500_000;

/// What the clock says now.
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

/// Whether this file system's stamps tell of every change.
pub(crate) fn stamps_count(root: impl AsFd) -> bool {
    fstatfs(root).is_ok_and(|fs| LOCAL.contains(&{ fs.f_type }))
}

/// Whether the clock went on steadily from one reading to the next. What cannot be
/// known counts as no.
pub(crate) fn went_on(before: &ClockReading, now: &ClockReading) -> bool {
    let passed = now.wall_nanos.saturating_sub(before.wall_nanos);
    let slewed = passed / 1_000_000_000 * SLEW_NANOS_PER_SECOND;
    let tolerated = slewed.saturating_add(i64::try_from(2 * now.tick_nanos).unwrap_or(0));
    !now.boot_id.is_empty()
        && before.boot_id == now.boot_id
        && passed > 0
        && before.offset_nanos.saturating_sub(now.offset_nanos) <= tolerated
}

/// Whether whatever changes after the pass that began at this reading gets another ctime.
pub(crate) fn settled(ctime: Time, pass: &ClockReading) -> bool {
    // No nanoseconds: a file system that keeps whole seconds.
    let granularity = if ctime.nanos == 0 {
        1_000_000_000
    } else {
        pass.tick_nanos
    };
    let limit = i128::from(pass.wall_nanos) - 2 * i128::from(granularity);
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

    #[test]
    fn what_changed_around_the_pass_is_not_settled() {
        let pass = at(100, 50);
        let settled_at = |secs, nanos| settled(Time { secs, nanos }, &pass);
        assert!(settled_at(99, 991_999_999));
        assert!(!settled_at(99, 992_000_001));
        assert!(settled_at(97, 0) && !settled_at(98, 0), "whole seconds");
        assert!(!settled_at(i64::MAX, 1));
    }
}
