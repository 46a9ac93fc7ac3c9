//! The virtual classes, and the real ones behind them.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::{Finding, Installation};
use crate::{
    cluster::facts,
    inspect::cases,
    placement::{
        BindingMode, Class, ClassError, Expands, KnownClasses, Wishes, choose_class, expanding, is_loop,
    },
    topology::{CLUSTER_KEY, NODE_KEY},
    volume::{ClusterId, DRIVER_NAME, Parameters},
};

/// Parameters with this prefix are for csi-provisioner, which keeps them.
const SIDECARS: &str = "csi.storage.k8s.io/";

/// The virtual classes.
pub(super) fn ours(installation: &Installation) -> impl Iterator<Item = &StorageClass> {
    installation
        .storage
        .classes
        .iter()
        .filter(|class| class.provisioner == DRIVER_NAME)
}

/// Each virtual class with every real class that a claim of it may get.
pub(super) fn pairs(installation: &Installation) -> Vec<(&StorageClass, &StorageClass)> {
    let classes = &installation.storage.classes;
    let allowed = installation.setup.allowed_classes();
    let real_ones = |class| {
        let chosen = choose(installation, class).and_then(Result::ok);
        let names: BTreeSet<String> = chosen.into_iter().chain(allowed.iter().cloned()).collect();
        let found: Vec<_> = names
            .iter()
            .filter_map(|name| classes.named(None, name))
            .collect();
        found
            .into_iter()
            .filter(|real| !is_loop(&real.provisioner))
            .map(move |real| (class, real))
    };
    ours(installation).flat_map(real_ones).collect()
}

pub(super) fn parameter<'a>(class: &'a StorageClass, key: &str) -> Option<&'a str> {
    class.parameters.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn title(class: &StorageClass) -> String {
    format!("StorageClass {}", class.name_any())
}

/// The real class that a claim without wishes gets.
fn choose(installation: &Installation, class: &StorageClass) -> Option<Result<String, ClassError>> {
    let classes: Vec<Class> = installation.storage.classes.iter().map(facts::class).collect();
    let wishes = Wishes {
        annotation: None,
        allowed: &BTreeSet::new(),
        parameter: parameter(class, Parameters::REAL_CLASS),
        mapping: None,
        one_namespace: parameter(class, Parameters::SHARED_NAMESPACE) != Some("true"),
    };
    let home: ClusterId = installation
        .storage
        .home
        .clone()
        .or_else(|| "unknown".parse().ok())?;
    let chosen = choose_class(&wishes, KnownClasses::Listed(&classes), &home);
    Some(chosen.map(|chosen| chosen.name().to_owned()))
}

/// There is a virtual class at all.
pub(super) fn exist(installation: &Installation) -> Vec<Finding> {
    if !installation
        .storage
        .classes
        .lacks(|class| class.provisioner == DRIVER_NAME)
    {
        return Vec::new();
    }
    vec![Finding::error(
        format!("Driver {DRIVER_NAME}"),
        "No storage class has this driver as its provisioner, so nobody can use it.",
        "List a class in the chart's value storageClasses.",
    )]
}

/// Virtual classes have parameters that the driver knows.
pub(super) fn parameters(installation: &Installation) -> Vec<Finding> {
    let wrong = |class: &StorageClass| {
        let given = class
            .parameters
            .iter()
            .flatten()
            .filter(|(key, _)| !key.starts_with(SIDECARS));
        let problem = Parameters::parse(given).err()?;
        Some(Finding::error(
            title(class),
            format!("Every claim of it is refused: {problem}."),
            "Delete the class and create it with the right parameters; volumes that exist do not mind.",
        ))
    };
    ours(installation).filter_map(wrong).collect()
}

/// Virtual classes lead to a real one.
pub(super) fn real_class(installation: &Installation) -> Vec<Finding> {
    if !installation.storage.classes.is_complete() {
        return Vec::new();
    }
    let wrong = |class: &StorageClass| {
        let problem = choose(installation, class)?.err()?;
        let mend = match &problem {
            ClassError::NotFound { class, .. } => {
                format!("Create the storage class {class}, or name another one.")
            }
            ClassError::Loop { .. } => {
                "Name a class that stores: delete this one and create it again.".to_owned()
            }
            ClassError::ExpandsAnnotation { class, .. } | ClassError::ExpandsNamespace { class, .. } => {
                format!("Make a class like {class} whose template has neither, and name it as the real one.")
            }
            _ => format!(
                "Name one by the parameter {} of the class (delete it and create it again), or mark a class as the default.",
                Parameters::REAL_CLASS
            ),
        };
        Some(Finding::error(title(class), sentence(&problem.to_string()), mend))
    };
    ours(installation).filter_map(wrong).collect()
}

/// It is clear which class is the default.
pub(super) fn defaults(installation: &Installation) -> Vec<Finding> {
    let classes: Vec<Class> = installation.storage.classes.iter().map(facts::class).collect();
    let (ours, real): (Vec<&Class>, Vec<&Class>) = classes
        .iter()
        .filter(|class| class.is_default)
        .partition(|class| class.is_loop());
    let names = |classes: &[&Class]| {
        classes
            .iter()
            .map(|class| class.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut findings = Vec::new();
    let leaning = self::ours(installation).filter(|class| parameter(class, Parameters::REAL_CLASS).is_none());
    if real.len() > 1 {
        for class in leaning {
            if let Some(Ok(chosen)) = choose(installation, class) {
                findings.push(Finding::warning(
                    title(class),
                    format!("It stores in the default class, but there are several: {}. The newest is taken, {chosen}.", names(&real)),
                    format!("Name the real class by the parameter {}, or leave the default mark on one class only.", Parameters::REAL_CLASS),
                ));
            }
        }
    }
    if let (Some(first), false) = (ours.first(), real.is_empty()) {
        findings.push(Finding::warning(
            format!("StorageClass {}", first.name),
            format!(
                "It is a default class beside {}. Kubernetes gives claims without a class to the newest of them.",
                names(&real)
            ),
            format!(
                "Name the real class by the parameter {} of {} and take the default mark off the others.",
                Parameters::REAL_CLASS,
                first.name
            ),
        ));
    }
    findings
}

/// Classes that claims may ask for exist and store.
pub(super) fn allow_list(installation: &Installation) -> Vec<Finding> {
    let classes = &installation.storage.classes;
    let wrong = |name: String| {
        let problem = match classes.named(None, &name) {
            None if classes.is_complete() => "does not exist",
            Some(class) if is_loop(&class.provisioner) => "is virtual itself",
            Some(class) if expanding(&facts::class(class).parameters, Expands::Annotation).is_some() => {
                "expands annotations of claims, which twins do not have"
            }
            Some(class)
                if expanding(&facts::class(class).parameters, Expands::Namespace).is_some()
                    && !ours(installation).any(|ours| facts::class(ours).shares_namespace()) =>
            {
                "expands the namespace of claims, which all twins here share, and no virtual class has the parameter allowSharedNamespace"
            }
            _ => return None,
        };
        Some(Finding::warning(
            format!("StorageClass {name}"),
            format!("Claims may ask for it (allowedRealStorageClasses), but it {problem}."),
            "Take it off the chart's value allowedRealStorageClasses, or create it.",
        ))
    };
    installation
        .setup
        .allowed_classes()
        .into_iter()
        .filter_map(wrong)
        .collect()
}

/// Volumes come where their pods are.
pub(super) fn binding_mode(installation: &Installation) -> Vec<Finding> {
    ours(installation)
        .filter(|class| facts::class(class).binding == BindingMode::Immediate)
        .map(|class| {
            Finding::note(
                title(class),
                "Its binding mode is Immediate: volumes are made before any pod, in this cluster, and pods have to follow them.",
                "Use volumeBindingMode WaitForFirstConsumer if the pod shall choose the place.",
            )
        })
        .collect()
}

/// `allowedTopologies` of virtual classes use keys that nodes have for this driver.
pub(super) fn allowed_topologies(installation: &Installation) -> Vec<Finding> {
    let mut findings = Vec::new();
    for class in ours(installation) {
        let read = facts::class(class);
        let keys = read
            .allowed_topologies
            .iter()
            .flat_map(|term| term.0.iter().map(|(key, _)| key.as_str()));
        let foreign: BTreeSet<&str> = keys
            .filter(|key| ![CLUSTER_KEY, NODE_KEY].contains(key))
            .collect();
        if !foreign.is_empty() {
            let foreign = foreign.into_iter().collect::<Vec<_>>().join(", ");
            findings.push(Finding::error(
                title(class),
                format!("Its allowedTopologies use {foreign}; csi-provisioner only knows the keys of this driver, so no claim is ever served."),
                format!("Use {CLUSTER_KEY} and {NODE_KEY} only. Constraints of the real class are kept without being repeated."),
            ));
        }
    }
    findings
}

/// Somebody does the expansion that a class promises.
pub(super) fn expansion(installation: &Installation) -> Vec<Finding> {
    let setup = &installation.setup;
    if setup.controllers.iter().next().is_none() || setup.sidecar("csi-resizer").is_some() {
        return Vec::new();
    }
    ours(installation)
        .filter(|class| class.allow_volume_expansion == Some(true))
        .map(|class| {
            Finding::warning(
                title(class),
                "It allows expansion, but the controller has no csi-resizer: claims that are made larger wait for ever.",
                "Set the chart's value controller.resizer.enabled, or take allowVolumeExpansion off the class.",
            )
        })
        .collect()
}

/// Nobody else serves a class of ours, and Liqo's storage does not share our namespace.
pub(super) fn names_of_others(installation: &Installation) -> Vec<Finding> {
    let storage = &installation.storage;
    let mut findings = Vec::new();
    for class in storage
        .classes
        .iter()
        .filter(|class| class.provisioner != DRIVER_NAME)
    {
        let name = class.name_any();
        let of_class =
            |volume: &&_| cases::id(volume).is_some() && cases::class_of(volume) == Some(name.as_str());
        let volumes = storage.volumes.iter().filter(of_class).count();
        if volumes > 0 {
            findings.push(Finding::error(
                title(class),
                format!("{volumes} volumes of this driver are of this class, but it is served by {} now: new claims get no volume of ours.", class.provisioner),
                "Give one of the two another name. Liqo's own class goes away when Liqo is installed with storage.enabled=false.",
            ));
        }
    }
    let shared = installation
        .namespace
        .iter()
        .find(|namespace| namespace.labels().contains_key("liqo.io/storage-provisioner"));
    if let Some(namespace) = shared {
        findings.push(Finding::note(
            format!("Namespace {}", namespace.name_any()),
            "Liqo's own storage provisioner keeps its claims here too.",
            "Both only touch what they made. For clear quotas and rights choose another storageNamespace before the first volume is made, or install Liqo with storage.enabled=false.",
        ));
    }
    findings
}

/// An error of the driver as a sentence.
fn sentence(error: &str) -> String {
    let mut letters = error.chars();
    let first = letters
        .next()
        .map(|first| first.to_uppercase().to_string())
        .unwrap_or_default();
    let end = if error.ends_with('.') { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}
