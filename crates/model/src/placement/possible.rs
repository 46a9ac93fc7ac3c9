//! Which real classes the claims of a virtual class can get in a cluster, and what users and administrators
//! can do where there is none.

use std::collections::BTreeSet;

use super::{Class, ClassError, ClassInputs, ClassMap, Declared, KnownClasses, RequestedClass, choose_class};
use crate::volume::{ClusterId, Parameters, mark};

/// Everything that claims of a virtual class may request, first that of a claim without an annotation.
/// `one_namespace` is that of [`ClassInputs`].
pub fn possible_inputs<'a>(
    class: &'a Class,
    allowed: &'a BTreeSet<String>,
    map: &'a ClassMap,
    one_namespace: bool,
) -> impl Iterator<Item = ClassInputs<'a>> {
    let mapped = map.mapping.contains_key(&class.name);
    let parameter = class.real_class().filter(|_| !mapped);
    let annotation = mark::REAL_CLASS;
    let annotated = allowed
        .iter()
        .map(move |class| RequestedClass { annotation, class });
    [None]
        .into_iter()
        .chain(annotated.map(Some))
        .map(move |annotation| ClassInputs {
            annotation,
            allowed,
            parameter,
            mapping: map.real(Some(&class.name)),
            one_namespace,
        })
}

/// Which claims of a virtual class cannot get a real one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoClass {
    /// All of them.
    All(ClassError),
    /// Only claims without an annotation; others may get a class.
    Unnamed(ClassError),
}

/// Whether claims of a virtual class can get a real one in a remote cluster.
pub fn served(
    class: &Class,
    allowed: &BTreeSet<String>,
    map: &ClassMap,
    known: KnownClasses<'_>,
    cluster: &ClusterId,
) -> Result<(), NoClass> {
    let mut chosen = possible_inputs(class, allowed, map, false)
        .map(|inputs| choose_class(&inputs, known, cluster).map(|_| ()));
    match chosen.next() {
        Some(Err(error)) if chosen.any(|other| other.is_ok()) => Err(NoClass::Unnamed(error)),
        Some(Err(error)) => Err(NoClass::All(error)),
        Some(Ok(())) | None => Ok(()),
    }
}

/// A message about how claims of a virtual class can get a real one in this cluster.
#[must_use]
pub fn ways_out(cluster: &Declared, virtual_class: &str, allowed: &BTreeSet<String>) -> String {
    let mut ways = vec![format!(
        "by the parameter {} of the class {virtual_class}",
        Parameters::REAL_CLASS
    )];
    let of_fabric = cluster.fabric.map_or(&[][..], |fabric| fabric.class_annotations);
    let annotation = [&[mark::REAL_CLASS], of_fabric].concat().join(" or ");
    ways.push(if allowed.is_empty() {
        format!(
            "by the annotation {annotation} of the claim, once the chart's allowedRealStorageClasses lists it"
        )
    } else {
        let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
        format!(
            "by the annotation {annotation} of the claim (allowed: {})",
            allowed.join(", ")
        )
    });
    ways.push(format!(
        "by spec.storageClasses of the RemoteCluster {}",
        cluster.id
    ));
    if let Some(takes) = cluster.fabric.and_then(|fabric| fabric.default_class) {
        ways.push(format!(
            "as the default in spec.storageClasses of the {}, {takes}",
            cluster.object
        ));
    }
    format!(
        "Name a class of the cluster {}: {}",
        cluster.id,
        ways.join("; or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        placement::{Fabric, class::tests::class},
        volume::DRIVER_NAME,
    };

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_missing_class_concerns_all_claims_or_those_that_name_none() {
        let milan: ClusterId = "milan".parse().unwrap();
        let ours = class("liqo", DRIVER_NAME);
        let gold = [class("gold", "x")];
        let served = |allowed: &[&str], known| {
            super::served(&ours, &set(allowed), &ClassMap::default(), known, &milan)
        };
        for known in [KnownClasses::Unreadable, KnownClasses::Listed(&gold)] {
            assert!(matches!(served(&[], known), Err(NoClass::All(_))));
            assert!(matches!(served(&["gold"], known), Err(NoClass::Unnamed(_))));
        }
        let absent = served(&["silver"], KnownClasses::Listed(&gold));
        assert!(
            matches!(absent, Err(NoClass::All(ClassError::NoDefault { .. }))),
            "{absent:?}"
        );
        let default = ClassMap {
            default: Some("gold".into()),
            ..ClassMap::default()
        };
        let known = KnownClasses::Unreadable;
        assert_eq!(super::served(&ours, &set(&[]), &default, known, &milan), Ok(()));
    }

    static WITH_CLASS_ANNOTATION: Fabric = Fabric {
        name: "naming",
        class_annotations: &["naming.test/class"],
        default_class: Some("which takes much"),
        copies: None,
        mirrors_nodes: false,
    };
    static WITHOUT_CLASS_ANNOTATION: Fabric = Fabric {
        name: "plain",
        class_annotations: &[],
        default_class: None,
        copies: None,
        mirrors_nodes: false,
    };

    #[test]
    fn suggested_fixes_depend_on_the_fabric() {
        let ways = |fabric, allowed: &[&str]| {
            let declared = Declared {
                fabric,
                ..Declared::plain("milan")
            };
            ways_out(&declared, "liqo", &set(allowed))
        };
        let native = ways(None, &[]);
        assert!(
            native.contains("spec.storageClasses of the RemoteCluster milan"),
            "{native}"
        );
        assert!(native.contains("realStorageClass") && native.contains("once the chart's"));
        let annotated = ways(Some(&WITH_CLASS_ANNOTATION), &["gold"]);
        assert!(
            annotated.contains(", which takes much") && annotated.contains("allowed: gold"),
            "{annotated}"
        );
        assert!(
            annotated.contains(" or naming.test/class of the claim"),
            "{annotated}"
        );
        let plain = ways(Some(&WITHOUT_CLASS_ANNOTATION), &[]);
        assert!(
            plain.contains("RemoteCluster milan") && !plain.contains("as the default"),
            "{plain}"
        );
    }
}
