//! How many volumes of this driver the scheduler may place on a node, as the attach limits of the real
//! drivers allow. The scheduler compares the number with the volumes of this driver that the pods on the
//! node use, and with the attachments of this driver.

use std::collections::{BTreeMap, BTreeSet};

/// An attachment on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachedVolume {
    /// A volume of a real driver. `of_twin` if this driver has created the attachment.
    Real {
        driver: String,
        of_twin: bool,
        attached: bool,
    },
    /// A volume of this driver that is attached, and the real driver of its twin, unless this driver itself
    /// mounts it.
    Virtual { behind: Option<String> },
}

/// The number of volumes of this driver that the node takes; `None` if the real drivers in use set no
/// limit, or one of them sets none and no other one is at its limit.
///
/// `in_use` are the real drivers that may have volumes of this driver, `limits` those of them that limit
/// the attachments on this node (`CSINode.spec.drivers[].allocatable.count`).
#[must_use]
pub fn attach_limit(
    in_use: &BTreeSet<String>,
    limits: &BTreeMap<String, u32>,
    on_node: &[AttachedVolume],
) -> Option<u32> {
    let limits: Vec<(&String, u32)> = limits
        .iter()
        .filter(|(driver, _)| in_use.contains(*driver))
        .map(|(driver, limit)| (driver, *limit))
        .collect();
    let count = |counts: &dyn Fn(&AttachedVolume) -> bool| {
        let counted = on_node.iter().filter(|volume| counts(volume)).count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    };
    let is_full = |(driver, limit): &(&String, u32)| {
        let attached = count(
            &|volume| matches!(volume, AttachedVolume::Real { driver: of, attached: true, .. } if of == *driver),
        );
        attached >= *limit
    };
    // A driver that can attach no further volume must not get one, and the scheduler does not know
    // which real driver a volume uses. So the node accepts no volumes at all until one of the
    // drivers can attach another one.
    let full = limits
        .iter()
        .any(is_full)
        .then(|| count(&|volume| matches!(volume, AttachedVolume::Virtual { .. })));
    let all_limited = !limits.is_empty() && limits.len() == in_use.len();
    // Counted without the volumes of this driver that are being attached, so that the number stays the same
    // meanwhile.
    let available = |(driver, limit): &(&String, u32)| {
        let of_others = count(
            &|volume| matches!(volume, AttachedVolume::Real { driver: of, of_twin: false, .. } if of == *driver),
        );
        let elsewhere = count(
            &|volume| matches!(volume, AttachedVolume::Virtual { behind } if behind.as_ref() != Some(*driver)),
        );
        limit.saturating_sub(of_others).saturating_add(elsewhere)
    };
    let most = limits.iter().map(available).max().filter(|_| all_limited);
    full.into_iter().chain(most).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(driver: &str, of_twin: bool) -> AttachedVolume {
        AttachedVolume::Real {
            driver: driver.into(),
            of_twin,
            attached: true,
        }
    }

    fn of_twin(driver: &str) -> [AttachedVolume; 2] {
        let behind = Some(driver.to_owned());
        [real(driver, true), AttachedVolume::Virtual { behind }]
    }

    fn limit(in_use: &[&str], limits: &[(&str, u32)], on_node: &[AttachedVolume]) -> Option<u32> {
        let in_use = in_use.iter().map(|&driver| driver.to_owned()).collect();
        let limits = limits
            .iter()
            .map(|&(driver, limit)| (driver.to_owned(), limit))
            .collect();
        attach_limit(&in_use, &limits, on_node)
    }

    #[test]
    fn drivers_without_limits_limit_nothing() {
        assert_eq!(limit(&[], &[], &[]), None);
        assert_eq!(limit(&["nfs"], &[("disk", 3)], &of_twin("nfs")), None);
    }

    #[test]
    fn the_limit_of_the_only_driver_is_shared_with_volumes_of_others() {
        let others = [real("disk", false), real("disk", false)];
        let all = [&others[..], &of_twin("disk")].concat();
        assert_eq!(limit(&["disk"], &[("disk", 24)], &[]), Some(24));
        assert_eq!(limit(&["disk"], &[("disk", 24)], &all), Some(22));
        assert_eq!(limit(&["disk"], &[("disk", 1)], &all), Some(0), "over its limit");
    }

    #[test]
    fn a_volume_that_is_being_attached_does_not_change_the_limit() {
        let attaching = AttachedVolume::Real {
            driver: "disk".into(),
            of_twin: true,
            attached: false,
        };
        assert_eq!(limit(&["disk"], &[("disk", 24)], &[attaching]), Some(24));
    }

    #[test]
    fn several_drivers_limit_a_node_only_when_one_of_them_is_full() {
        let of_all = [of_twin("disk"), of_twin("disk"), of_twin("nfs")].concat();
        let both = ["disk", "nfs"];
        assert_eq!(limit(&both, &[("disk", 3)], &of_all), None);
        assert_eq!(limit(&both, &[("disk", 2)], &of_all), Some(3));
        let without_driver = [&of_all[..], &[AttachedVolume::Virtual { behind: None }]].concat();
        assert_eq!(limit(&both, &[("disk", 2)], &without_driver), Some(4));
    }

    #[test]
    fn of_several_limits_the_largest_counts_until_one_is_reached() {
        let limits = [("disk", 2), ("fast", 5)];
        let both = ["disk", "fast"];
        assert_eq!(limit(&both, &limits, &[]), Some(5));
        assert_eq!(limit(&both, &limits, &of_twin("disk")), Some(6));
        let full = [of_twin("disk"), of_twin("disk")].concat();
        assert_eq!(limit(&both, &limits, &full), Some(2));
    }
}
