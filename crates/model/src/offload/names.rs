//! The name of a namespace in remote clusters.

use std::collections::BTreeSet;

use super::MappingStrategy;
use crate::volume::digest;

const LONGEST: usize = 63;
/// Digits of the hash that replaces what does not fit.
const DIGITS: usize = 10;
/// Characters that are kept before that hash, except dashes at the end.
const KEPT: usize = LONGEST - 1 - DIGITS;
/// More dashes than a namespace has there.
const MOST_TRIMMED: usize = 4;

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
        "names like {0:?} are reserved for other namespaces with the strategy DefaultName, of this cluster or another one: choose \
         another name"
    )]
    OfAnother(String),
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
    if !is_own_there(&name) {
        return Err(NameRefused::Reserved(name));
    }
    // A namespace that took the default name of another one would block that one.
    if name != default_name(namespace, home) && may_be_default_name(&name, home) {
        return Err(NameRefused::OfAnother(name));
    }
    Ok(name)
}

/// Whether a namespace of remote clusters may have this name: others are those of Kubernetes.
pub(super) fn is_own_there(name: &str) -> bool {
    name != "default" && !name.starts_with("kube-")
}

/// Whether it may be the default name of some namespace of this cluster, or of another cluster whose id is a uid, as it
/// is by default.
fn may_be_default_name(name: &str, home: &str) -> bool {
    let ends_with = |name: &str, id: &str| name.strip_suffix(id).is_some_and(|rest| rest.ends_with('-'));
    let is_hex = |text: &str| text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    let uid = name.rsplitn(6, '-').take(5).collect::<Vec<_>>();
    let is_of_uid = name.split('-').count() > 5
        && uid.iter().all(|part| is_hex(part))
        && uid.iter().map(|part| part.len()).eq([12, 4, 4, 4, 8]);
    let is_hashed = name.rsplit_once('-').is_some_and(|(kept, hash)| {
        let is_full = kept.len() > KEPT - MOST_TRIMMED;
        hash.len() == DIGITS && is_hex(hash) && (is_full || ends_with(kept, &plain(home)))
    });
    ends_with(name, home) || is_of_uid || is_hashed
}

/// The id may be too long, or contain characters that no name may: then a hash of both keeps names unique.
fn default_name(namespace: &str, home: &str) -> String {
    let plain_name = format!("{namespace}-{home}");
    if is_label(&plain_name) {
        return plain_name;
    }
    let hash = digest(DIGITS, [namespace, home]);
    format!("{}-{hash}", plain(&plain_name))
}

/// The characters that a name may have; as many as fit before a hash.
fn plain(text: &str) -> String {
    let mut kept: String = text
        .chars()
        .map(|it| match it.to_ascii_lowercase() {
            it @ ('a'..='z' | '0'..='9') => it,
            _ => '-',
        })
        .take(KEPT)
        .collect();
    kept.truncate(kept.trim_end_matches('-').len());
    kept
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
    fn remote_names_follow_the_mapping_strategy() {
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
    fn reserved_namespace_names_are_refused() {
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
    fn default_names_of_other_namespaces_are_refused() {
        use MappingStrategy::{EnforceSameName, SelectedName};
        let (own, other) = (format!("foo-{HOME}"), format!("bar-{HOME}"));
        let refused = |name: &str| Err(NameRefused::OfAnother(name.to_owned()));
        assert_eq!(named(SelectedName, "foo", &other), refused(&other));
        assert_eq!(named(EnforceSameName, &other, ""), refused(&other));
        assert_eq!(named(SelectedName, "foo", &own), Ok(own));
        assert!(named(SelectedName, "foo", "bar-of-another").is_ok());
        // A default name ends with a hash if it is too long, or if the id of the cluster is not a label.
        let long = default_name(&"team-payments-checkout-".repeat(2), HOME);
        assert_eq!(named(SelectedName, "foo", &long), refused(&long));
        let odd = default_name("bar", "Milan_1");
        let odd_name = |name: &str| remote_name(SelectedName, "foo", Some(name), "Milan_1");
        assert_eq!(odd, format!("bar-milan-1-{}", &odd[12..]));
        assert_eq!(odd_name(&odd), refused(&odd));
        assert!(odd_name("bar-deadbeef00").is_ok());
        // Of another cluster.
        let elsewhere = "bar-0b7c8f9e-3a54-4f0e-9d4e-5f1d8a2b3c4d";
        assert_eq!(named(SelectedName, "foo", elsewhere), refused(elsewhere));
        assert!(named(SelectedName, "foo", &elsewhere[4..]).is_ok());
    }

    #[test]
    fn kube_system_and_reserved_namespaces_are_never_offloaded() {
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
        fn default_names_are_valid_and_unique(
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
