//! The resources that a virtual node offers: a share of those of the remote nodes, or of what is free there.
//! Quantities are those of Kubernetes: `250m`, `16Gi`, `1.5`.

use std::{collections::BTreeMap, time::Duration};

use super::{is_resource, requests::Requests};

/// Quantities by resource name.
pub type Amounts = BTreeMap<String, String>;

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
/// The maximum number of resources per node.
const MOST_RESOURCES: usize = 64;
/// The number of pods of a node without a declared number: the kubelet's default.
const PODS: &str = "110";
/// The offered amount is raised only if more has been free for this long.
const RAISE_DELAY: Duration = Duration::from_mins(2);
/// Changes smaller than this fraction of the offered amount are not published.
const LEAST_CHANGE: i128 = 20;
const UNITS: [(&str, i128); 16] = [
    ("n", 1),
    ("u", 1_000),
    ("m", MILLI),
    ("", NANO),
    ("k", NANO * 1_000),
    ("M", NANO * 1_000_000),
    ("G", NANO * 1_000_000_000),
    ("T", NANO * 1_000_000_000_000),
    ("P", NANO * 1_000_000_000_000_000),
    ("E", NANO * 1_000_000_000_000_000_000),
    ("Ki", NANO << 10),
    ("Mi", NANO << 20),
    ("Gi", NANO << 30),
    ("Ti", NANO << 40),
    ("Pi", NANO << 50),
    ("Ei", NANO << 60),
];

/// This percentage of the sum over the nodes. An unreadable quantity counts as zero.
pub fn share_of<'a>(nodes: impl IntoIterator<Item = &'a Amounts>, percent: u32) -> Amounts {
    share_of_free(nodes, &Requests::new(), percent)
}

/// This percentage of what these requests leave of the sum over the nodes.
pub fn share_of_free<'a>(
    nodes: impl IntoIterator<Item = &'a Amounts>,
    requested: &Requests,
    percent: u32,
) -> Amounts {
    let mut sums: BTreeMap<&str, i128> = BTreeMap::new();
    for (resource, amount) in nodes.into_iter().flatten().filter(|(name, _)| is_resource(name)) {
        let sum = sums.entry(resource).or_default();
        *sum = sum.saturating_add(nanos(amount).unwrap_or_default());
    }
    let left = |resource: &str, sum: i128| {
        let requested = requested.get(resource).copied().unwrap_or_default();
        sum.saturating_sub(requested).max(0)
    };
    let share = |left: i128| left.saturating_mul(i128::from(percent)) / 100;
    let mut sums: Vec<_> = sums.into_iter().collect();
    // Kubernetes' own resources first, because their number is limited: every kubelet and many controllers at home
    // receive the node.
    sums.sort_by_key(|(resource, _)| resource.contains('/'));
    sums.into_iter()
        .take(MOST_RESOURCES)
        .map(|(resource, sum)| (resource.to_owned(), written(resource, share(left(resource, sum)))))
        .collect()
}

/// The resources that a virtual node offers, computed from the free capacity of its cluster. The
/// free capacity changes with every pod there, and every change of the node is sent to all kubelets
/// and controllers at home. So less is offered at once, more only after a while, and small changes
/// are ignored.
#[derive(Debug, Default)]
pub struct Offer {
    offered: Option<Amounts>,
    /// The resources with more free capacity than offered.
    rising: BTreeMap<String, Rise>,
}

#[derive(Clone, Copy, Debug)]
struct Rise {
    since: Duration,
    /// The minimum that was free in that time.
    least: i128,
}

impl Offer {
    /// The offered amounts; `None` before the first measurement.
    #[must_use]
    pub const fn amounts(&self) -> Option<&Amounts> {
        self.offered.as_ref()
    }

    /// Records the free capacity at this time, which is relative to any fixed moment.
    pub fn measure(&mut self, free: Amounts, at: Duration) {
        let Some(before) = self.offered.take() else {
            self.offered = Some(free);
            return;
        };
        let next = free.into_iter().map(|(resource, free)| {
            let offered = match before.get(&resource) {
                Some(before) => self.next(&resource, before, free, at),
                None => free,
            };
            (resource, offered)
        });
        let next: Amounts = next.collect();
        self.rising.retain(|resource, _| next.contains_key(resource));
        self.offered = Some(next);
    }

    fn next(&mut self, resource: &str, offered: &str, free: String, at: Duration) -> String {
        let amount = |it: &str| nanos(it).unwrap_or_default();
        let (before, now) = (amount(offered), amount(&free));
        let is_small = (now - before).saturating_abs().saturating_mul(LEAST_CHANGE) < before;
        if is_small || now <= before {
            self.rising.remove(resource);
            return if is_small { offered.to_owned() } else { free };
        }
        let rise = self.rising.entry(resource.to_owned());
        let rise = rise.or_insert(Rise {
            since: at,
            least: now,
        });
        rise.least = rise.least.min(now);
        if at.saturating_sub(rise.since) < RAISE_DELAY {
            return offered.to_owned();
        }
        let least = rise.least;
        self.rising.remove(resource);
        written(resource, least)
    }
}

/// The declared amounts, with the default for pods.
#[must_use]
pub fn stated(amounts: &Amounts) -> Amounts {
    let mut all = amounts.clone();
    all.entry("pods".to_owned()).or_insert_with(|| PODS.to_owned());
    all
}

/// Whether two quantities are equal, as `1` and `1000m` are.
#[must_use]
pub fn same_amount(one: &str, other: &str) -> bool {
    one == other || nanos(one).is_some_and(|amount| Some(amount) == nanos(other))
}

/// Parses a quantity into billionths.
#[must_use]
pub fn nanos(quantity: &str) -> Option<i128> {
    let digits = quantity
        .find(|it: char| !it.is_ascii_digit() && it != '.')
        .unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(digits);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let unit = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, unit)) => *unit,
        None => NANO.checked_mul(10_i128.checked_pow(unit.strip_prefix(['e', 'E'])?.parse().ok()?)?)?,
    };
    let whole = if whole.is_empty() {
        0
    } else {
        whole.parse::<i128>().ok()?.checked_mul(unit)?
    };
    let part = match part.get(..9.min(part.len()))? {
        "" => 0,
        part => {
            let scale = 10_i128.checked_pow(u32::try_from(part.len()).ok()?)?;
            part.parse::<i128>().ok()?.checked_mul(unit)? / scale
        }
    };
    whole.checked_add(part)
}

/// The quantity as text: in whole units, or millicores for CPU.
pub(super) fn written(resource: &str, nanos: i128) -> String {
    if resource == "cpu" && nanos % NANO != 0 {
        return format!("{}m", nanos / MILLI);
    }
    (nanos / NANO).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amounts(all: &[(&str, &str)]) -> Amounts {
        all.iter()
            .map(|&(name, amount)| (name.to_owned(), amount.to_owned()))
            .collect()
    }

    #[test]
    fn a_share_is_a_percentage_of_the_sum_of_all_nodes() {
        let a = amounts(&[("cpu", "3920m"), ("memory", "16Gi"), ("pods", "110")]);
        let b = amounts(&[
            ("cpu", "4"),
            ("memory", "1048576Ki"),
            ("pods", "250"),
            ("gpu", "1"),
        ]);
        assert_eq!(
            share_of([&a, &b], 100),
            amounts(&[
                ("cpu", "7920m"),
                ("gpu", "1"),
                ("memory", "18253611008"),
                ("pods", "360")
            ])
        );
        assert_eq!(
            share_of([&a], 50),
            amounts(&[("cpu", "1960m"), ("memory", "8589934592"), ("pods", "55")])
        );
    }

    #[test]
    fn the_number_of_resources_of_a_node_is_limited() {
        let mut node = amounts(&[("cpu", "4"), ("pods", "110"), ("../gpu", "1"), ("a b", "1")]);
        node.extend((0..20_000).map(|at| (format!("a.io/r{at}"), "1".to_owned())));
        let all = share_of([&node], 100);
        assert_eq!(all.len(), MOST_RESOURCES);
        assert_eq!((all["cpu"].as_str(), all["pods"].as_str()), ("4", "110"));
        assert!(!all.contains_key("../gpu") && !all.contains_key("a b"));
    }

    #[test]
    fn requests_of_other_pods_are_subtracted_from_the_offer() {
        let node = amounts(&[("cpu", "4"), ("memory", "8Gi"), ("pods", "110")]);
        let requested: Requests = [
            ("cpu".into(), NANO + NANO / 2),
            ("memory".into(), (16 * NANO) << 30),
            ("elsewhere".into(), NANO),
        ]
        .into();
        assert_eq!(
            share_of_free([&node, &node], &requested, 50),
            amounts(&[("cpu", "3250m"), ("memory", "0"), ("pods", "110")]),
            "never less than none"
        );
    }

    #[test]
    fn the_offer_shrinks_at_once_and_grows_after_two_minutes() {
        let mut offer = Offer::default();
        assert_eq!(offer.amounts(), None);
        for (minute, free, offered, why) in [
            (0, "10", "10", "the first measurement"),
            (1, "9600m", "10", "too little changes"),
            (2, "9500m", "9500m", "five percent"),
            (3, "4", "4", "less, at once"),
            (4, "8", "4", "more, not yet"),
            (5, "6", "4", "more, not yet"),
            (6, "9", "6", "the least of two minutes"),
            (7, "9", "6", "it begins again"),
            (8, "6100m", "6", "no more than that was free meanwhile"),
            (9, "9", "6", "it begins again"),
            (11, "9", "9", "two minutes"),
            (12, "0", "0", "nothing is free"),
            (13, "1m", "0", "not yet"),
            (15, "1m", "1m", "some, after none"),
        ] {
            let at = Duration::from_mins(minute);
            offer.measure(amounts(&[("cpu", free)]), at);
            assert_eq!(offer.amounts().unwrap()["cpu"], offered, "{minute}: {why}");
        }
        offer.measure(amounts(&[("gpu", "1")]), Duration::from_mins(16));
        assert_eq!(*offer.amounts().unwrap(), amounts(&[("gpu", "1")]), "other nodes");
    }

    #[test]
    fn quantities() {
        for (text, expected) in [
            ("1.5", Some(NANO + NANO / 2)),
            ("1e3", Some(NANO * 1_000)),
            ("100n", Some(100)),
            (".5", Some(NANO / 2)),
            ("5E", Some(5 * NANO * 1_000_000_000_000_000_000)),
            ("x", None),
            ("1x", None),
        ] {
            assert_eq!(nanos(text), expected, "{text}");
        }
    }

    #[test]
    fn amounts_are_compared_by_value() {
        for (one, other, same) in [
            ("1", "1000m", true),
            ("1Gi", "1073741824", true),
            ("0.5", "500m", true),
            ("odd", "odd", true),
            ("1", "2", false),
            ("odd", "even", false),
        ] {
            assert_eq!(same_amount(one, other), same, "{one} {other}");
        }
    }

    #[test]
    fn an_omitted_number_of_pods_defaults_to_110() {
        assert_eq!(stated(&amounts(&[("cpu", "2")]))["pods"], "110");
        assert_eq!(stated(&amounts(&[("pods", "5")]))["pods"], "5");
    }

    proptest! {
        #[test]
        fn no_text_makes_parsing_an_amount_panic(text: String) {
            let _read = nanos(&text);
        }

        #[test]
        fn a_share_never_exceeds_the_total(cpu in 0..1_000_000_u32, percent in 1..=100_u32) {
            let node = amounts(&[("cpu", &format!("{cpu}m"))]);
            let share = nanos(&share_of([&node], percent)["cpu"]).unwrap();
            prop_assert!(share <= i128::from(cpu) * MILLI);
        }
    }
}
