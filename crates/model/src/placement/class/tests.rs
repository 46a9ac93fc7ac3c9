//! The choice of classes, its refusals, and the nodes that a class allows.

use super::*;
use crate::volume::mark;

/// A plain class, for the tests of this module's siblings as well.
pub(in crate::placement) fn class(name: &str, provisioner: &str) -> Class {
    Class {
        name: name.to_owned(),
        provisioner: provisioner.to_owned(),
        binding: BindingMode::WaitForFirstConsumer,
        reclaim: ReclaimPolicy::Delete,
        is_default: false,
        created: 0,
        allowed_topologies: Vec::new(),
        allows_expansion: true,
        parameters: BTreeMap::new(),
    }
}

fn default_class(name: &str, provisioner: &str, created: i64) -> Class {
    Class {
        is_default: true,
        created,
        ..class(name, provisioner)
    }
}

fn home() -> ClusterId {
    "home".parse().unwrap()
}

fn choose(
    named: [Option<&str>; 3],
    allowed: &[&str],
    classes: KnownClasses<'_>,
) -> Result<String, ClassError> {
    let allowed = allowed.iter().map(|&name| name.to_owned()).collect();
    let [annotation, parameter, mapping] = named;
    let inputs = ClassInputs {
        annotation: annotation.map(|class| RequestedClass {
            annotation: mark::REAL_CLASS,
            class,
        }),
        allowed: &allowed,
        parameter,
        mapping,
        one_namespace: false,
    };
    choose_class(&inputs, classes, &home()).map(|chosen| chosen.name().to_owned())
}

#[test]
fn a_class_is_named_by_annotation_parameter_mapping_or_default_in_order() {
    let classes = [
        class("a", "x"),
        class("b", "x"),
        class("c", "x"),
        default_class("d", "x", 0),
    ];
    let known = KnownClasses::Listed(&classes);
    assert_eq!(
        choose([Some("a"), Some("b"), Some("c")], &["a"], known).unwrap(),
        "a"
    );
    assert_eq!(choose([None, Some("b"), Some("c")], &[], known).unwrap(), "b");
    assert_eq!(choose([None, None, Some("c")], &[], known).unwrap(), "c");
    assert_eq!(choose([None, None, None], &[], known).unwrap(), "d");
}

#[test]
fn an_annotation_needs_the_allow_list() {
    let classes = [class("a", "x"), class("b", "x")];
    for allowed in [&[] as &[&str], &["b"]] {
        let refused = choose(
            [Some("a"), Some("b"), None],
            allowed,
            KnownClasses::Listed(&classes),
        );
        assert!(
            matches!(refused, Err(ClassError::NotAllowed { .. })),
            "{refused:?}"
        );
    }
    let message = choose([Some("a"), None, None], &[], KnownClasses::Listed(&classes))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("\"a\"") && message.contains("it is empty") && message.contains(mark::REAL_CLASS),
        "{message}"
    );
}

#[test]
fn virtual_classes_are_never_real() {
    for provisioner in [DRIVER_NAME, LIQO_PROVISIONER] {
        let classes = [default_class("v", provisioner, 9)];
        let known = KnownClasses::Listed(&classes);
        for named in [
            [Some("v"), None, None],
            [None, Some("v"), None],
            [None, None, Some("v")],
        ] {
            assert!(matches!(
                choose(named, &["v"], known),
                Err(ClassError::Loop { .. })
            ));
        }
        let no_default = choose([None; 3], &[], known).unwrap_err();
        assert!(matches!(&no_default, ClassError::NoDefault { .. }));
        assert!(no_default.to_string().contains("but v, which is virtual itself"));
    }
}

#[test]
fn several_defaults_are_resolved_as_kubernetes_does() {
    let classes = [
        default_class("old", "x", 1),
        default_class("new-b", "x", 2),
        default_class("new-a", "x", 2),
        default_class("virtual", DRIVER_NAME, 3),
    ];
    assert_eq!(
        choose([None; 3], &[], KnownClasses::Listed(&classes)).unwrap(),
        "new-a"
    );
}

#[test]
fn errors_name_what_was_looked_for() {
    let missing = choose([None, Some("fast"), None], &[], KnownClasses::Listed(&[]))
        .unwrap_err()
        .to_string();
    for part in ["fast", "realStorageClass", "home"] {
        assert!(missing.contains(part), "{missing}");
    }
}

#[test]
fn a_class_must_be_named_if_classes_are_unreadable() {
    let unreadable = KnownClasses::Unreadable;
    assert_eq!(
        choose([None, Some("fast"), None], &[], unreadable).unwrap(),
        "fast"
    );
    assert!(matches!(
        choose([None; 3], &[], unreadable),
        Err(ClassError::MustBeNamed { .. })
    ));
}

#[test]
fn allowed_topologies_admit_by_label() {
    let labels = Labels::from([("zone".to_owned(), "a".to_owned())]);
    let allowed = |terms: &[&[(&str, &[&str])]]| {
        let term = |term: &&[(&str, &[&str])]| {
            let one = |(key, values): &(&str, &[&str])| {
                (
                    (*key).to_owned(),
                    values.iter().map(|&value| value.to_owned()).collect(),
                )
            };
            AllowedTopology(term.iter().map(one).collect())
        };
        let mut class = class("c", "x");
        class.allowed_topologies = terms.iter().map(term).collect();
        class.allows(&labels)
    };
    assert!(allowed(&[]));
    assert!(allowed(&[&[("zone", &["b", "a"])]]));
    assert!(!allowed(&[&[("zone", &["b"])]]));
    assert!(allowed(&[&[("zone", &["b"])], &[("zone", &["a"])]]));
    assert!(!allowed(&[&[("zone", &["a"]), ("disk", &["ssd"])]]));
}

#[test]
fn classes_that_would_mix_the_volumes_of_users_are_refused() {
    let template = |name: &str, value: &str| {
        let mut class = default_class(name, "nfs.example", 1);
        class.parameters.insert("pathPattern".into(), value.into());
        class
    };
    let allowed = BTreeSet::new();
    let choose = |class: &Class, one_namespace| {
        let inputs = ClassInputs {
            annotation: None,
            allowed: &allowed,
            parameter: None,
            mapping: None,
            one_namespace,
        };
        let classes = [class.clone()];
        choose_class(&inputs, KnownClasses::Listed(&classes), &home()).map(|_| ())
    };
    let namespaced = template("by-namespace", "${.PVC.namespace}/${.PVC.name}");
    let message = choose(&namespaced, true).unwrap_err().to_string();
    for part in ["by-namespace", "pathPattern", "home", "allowSharedNamespace"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(
        choose(&namespaced, false),
        Ok(()),
        "each namespace is its own there"
    );

    let annotated = template("by-annotation", "${.PVC.namespace}/${.PVC.annotations.x}");
    for one_namespace in [true, false] {
        let error = choose(&annotated, one_namespace).unwrap_err();
        assert!(matches!(error, ClassError::ExpandsAnnotation { .. }), "{error}");
    }
    assert_eq!(choose(&template("plain", "${.PVC.name}"), true), Ok(()));
}
