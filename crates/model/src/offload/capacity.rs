//! The resources that a virtual node offers: a share of those of the remote nodes. Quantities are those of
//! Kubernetes: `250m`, `16Gi`, `1.5`.

use std::collections::BTreeMap;

use super::is_resource;

/// Quantities by resource name.
pub type Amounts = BTreeMap<String, String>;

const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
/// Resources per node.
const MOST_RESOURCES: usize = 64;
/// Pods of a node where none are declared: the kubelet's default.
const PODS: &str = "110";
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
    let mut sums: BTreeMap<&str, i128> = BTreeMap::new();
    for (resource, amount) in nodes.into_iter().flatten().filter(|(name, _)| is_resource(name)) {
        let sum = sums.entry(resource).or_default();
        *sum = sum.saturating_add(nanos(amount).unwrap_or_default());
    }
    let share = |sum: i128| sum.saturating_mul(i128::from(percent)) / 100;
    let mut sums: Vec<_> = sums.into_iter().collect();
    // Those of Kubernetes first. Their number is limited: every kubelet and controller at home gets the node.
    sums.sort_by_key(|(resource, _)| resource.contains('/'));
    sums.into_iter()
        .take(MOST_RESOURCES)
        .map(|(resource, sum)| (resource.to_owned(), written(resource, share(sum))))
        .collect()
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
pub(super) fn nanos(quantity: &str) -> Option<i128> {
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

/// In whole units, or millicores for CPU.
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
    fn a_share_of_all_nodes() {
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
    fn a_node_has_not_more_resources_than_anybody_can_watch() {
        let mut node = amounts(&[("cpu", "4"), ("pods", "110"), ("../gpu", "1"), ("a b", "1")]);
        node.extend((0..20_000).map(|at| (format!("a.io/r{at}"), "1".to_owned())));
        let all = share_of([&node], 100);
        assert_eq!(all.len(), MOST_RESOURCES);
        assert_eq!((all["cpu"].as_str(), all["pods"].as_str()), ("4", "110"));
        assert!(!all.contains_key("../gpu") && !all.contains_key("a b"));
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
    fn amounts_are_the_same_however_they_are_spelled() {
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
    fn pods_are_never_none_by_omission() {
        assert_eq!(stated(&amounts(&[("cpu", "2")]))["pods"], "110");
        assert_eq!(stated(&amounts(&[("pods", "5")]))["pods"], "5");
    }

    proptest! {
        #[test]
        fn no_quantity_is_too_strange(text: String) {
            let _read = nanos(&text);
        }

        #[test]
        fn a_share_is_never_more_than_all(cpu in 0..1_000_000_u32, percent in 1..=100_u32) {
            let node = amounts(&[("cpu", &format!("{cpu}m"))]);
            let share = nanos(&share_of([&node], percent)["cpu"]).unwrap();
            prop_assert!(share <= i128::from(cpu) * MILLI);
        }
    }
}
