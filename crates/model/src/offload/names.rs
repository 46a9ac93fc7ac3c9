//! The name of a namespace in remote clusters.

use std::collections::BTreeSet;

use super::MappingStrategy;
use crate::volume::digest;

const LONGEST: usize = 63;
/// Digits of the hash that replaces what does not fit.
const DIGITS: usize = 10;

/// Why a namespace cannot be offloaded under the requested name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameRefused {
    #[error("namespaceMappingStrategy SelectedName needs a remoteNamespaceName")]
    Missing,
    #[error(
        "{0:?} is not a valid name of a namespace: lower case letters, digits and '-', at most 63 characters"
    )]
    Invalid(String),
    /// A namespace of Kubernetes itself.
    #[error("the namespace {0} of a remote cluster belongs to that cluster itself: choose another name")]
    Reserved(String),
    /// The name that the strategy `DefaultName` gives to another namespace.
    #[error(
        "names that end with -{1}, like {0:?}, are reserved for namespaces with the strategy DefaultName: choose another name"
    )]
    OfAnother(String, String),
}

/// Why a namespace is never offloaded, if so. Its objects would be copied: the reserved ones hold what this
/// driver keeps, such as kubeconfigs.
#[must_use]
pub fn never_offloaded(namespace: &str, reserved: &BTreeSet<String>) -> Option<String> {
    let whose = if namespace.starts_with("kube-") {
        "it belongs to Kubernetes"
    } else if reserved.contains(namespace) {
        "it holds the Secrets and claims of this driver"
    } else {
        return None;
    };
    Some(format!("the namespace {namespace} is never offloaded: {whose}"))
}

/// The name of a namespace in remote clusters; `home` is the id of the home cluster.
pub fn remote_name(
    strategy: MappingStrategy,
    namespace: &str,
    selected: Option<&str>,
    home: &str,
) -> Result<String, NameRefused> {
    let name = match strategy {
        MappingStrategy::DefaultName => default_name(namespace, home),
        MappingStrategy::EnforceSameName => namespace.to_owned(),
        MappingStrategy::SelectedName => match selected {
            None | Some("") => return Err(NameRefused::Missing),
            Some(name) => name.to_owned(),
        },
    };
    if !is_label(&name) {
        return Err(NameRefused::Invalid(name));
    }
    if name == "default" || name.starts_with("kube-") {
        return Err(NameRefused::Reserved(name));
    }
    // A namespace that took the default name of another one would block that one.
    if name.strip_suffix(home).is_some_and(|rest| rest.ends_with('-'))
        && name != default_name(namespace, home)
    {
        return Err(NameRefused::OfAnother(name, home.to_owned()));
    }
    Ok(name)
}

/// The id may be too long, or contain characters that no name may: then a hash of both keeps names unique.
fn default_name(namespace: &str, home: &str) -> String {
    let plain = format!("{namespace}-{home}");
    if is_label(&plain) {
        return plain;
    }
    let hash = digest(DIGITS, [namespace, home]);
    let mut kept: String = plain
        .chars()
        .map(|it| match it.to_ascii_lowercase() {
            it @ ('a'..='z' | '0'..='9') => it,
            _ => '-',
        })
        .take(LONGEST - 1 - DIGITS)
        .collect();
    kept.truncate(kept.trim_end_matches('-').len());
    format!("{kept}-{hash}")
}

fn is_label(name: &str) -> bool {
    let inner = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
    (1..=LONGEST).contains(&name.len())
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOME: &str = "8e4d8f61-6d0b-4d0a-9d86-2b8c0d3a2f11";

    fn named(strategy: MappingStrategy, namespace: &str, selected: &str) -> Result<String, NameRefused> {
        remote_name(strategy, namespace, Some(selected), HOME)
    }

    #[test]
    fn the_strategies() {
        use MappingStrategy::{DefaultName, EnforceSameName, SelectedName};
        assert_eq!(named(DefaultName, "foo", ""), Ok(format!("foo-{HOME}")));
        assert_eq!(named(DefaultName, "foo", "ignored"), Ok(format!("foo-{HOME}")));
        assert_eq!(named(EnforceSameName, "foo", "ignored"), Ok("foo".into()));
        assert_eq!(named(SelectedName, "foo", "bar"), Ok("bar".into()));
        assert_eq!(named(SelectedName, "foo", ""), Err(NameRefused::Missing));
        assert_eq!(
            remote_name(SelectedName, "foo", None, HOME),
            Err(NameRefused::Missing)
        );
    }

    #[test]
    fn names_of_kubernetes_are_nobody_s() {
        use MappingStrategy::{EnforceSameName, SelectedName};
        for name in ["default", "kube-system", "kube-public"] {
            let refused = Err(NameRefused::Reserved(name.into()));
            assert_eq!(named(SelectedName, "foo", name), refused);
            assert_eq!(named(EnforceSameName, name, ""), refused);
        }
        assert!(matches!(
            named(SelectedName, "foo", "Bar"),
            Err(NameRefused::Invalid(_))
        ));
        assert!(named(SelectedName, "foo", "kubernetes").is_ok());
    }

    #[test]
    fn the_default_name_of_one_is_no_other_s() {
        use MappingStrategy::{EnforceSameName, SelectedName};
        let (own, other) = (format!("foo-{HOME}"), format!("bar-{HOME}"));
        let refused = Err(NameRefused::OfAnother(other.clone(), HOME.to_owned()));
        assert_eq!(named(SelectedName, "foo", &other), refused);
        assert_eq!(named(EnforceSameName, &other, ""), refused);
        assert_eq!(named(SelectedName, "foo", &own), Ok(own));
        assert!(named(SelectedName, "foo", "bar-of-another").is_ok());
    }

    #[test]
    fn some_namespaces_stay_at_home() {
        let reserved = ["liqo-csi".to_owned()].into();
        let never = |namespace: &str| never_offloaded(namespace, &reserved).is_some();
        assert!(never("kube-system") && never("liqo-csi"));
        assert!(!never("shop") && !never("kubernetes") && !never("default"));
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_and_hashed() {
        let long = "n".repeat(63);
        let name = named(MappingStrategy::DefaultName, &long, "").unwrap();
        assert_eq!(name.len(), 63);
        assert_eq!(&name[..53], format!("{}-", "n".repeat(52)));
    }

    proptest! {
        #[test]
        fn default_names_are_names_and_differ(
            a in "[a-z]([-a-z0-9]{0,60}[a-z0-9])?",
            b in "[a-z]([-a-z0-9]{0,60}[a-z0-9])?",
            home in "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
        ) {
            let name = |namespace: &str| {
                remote_name(MappingStrategy::DefaultName, namespace, None, &home)
            };
            let named = name(&a);
            let reserved = matches!(named, Err(NameRefused::Reserved(_)));
            prop_assert!(reserved || named.as_ref().is_ok_and(|name| is_label(name)));
            if a != b && !reserved {
                prop_assert_ne!(named, name(&b));
            }
        }
    }
}
