//! The virtual classes, and their real classes.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::{Finding, Installation};
use crate::{
    cluster::facts,
    inspect::cases,
    placement::{
        AllowedTopology, BindingMode, Class, ClassError, ClassInputs, Expands, KnownClasses, choose_class,
        expanding, is_loop,
    },
    topology::{CLUSTER_KEY, NODE_KEY},
    volume::{ClusterId, DRIVER_NAME, Parameters},
};

/// Parameters with this prefix are read and removed by csi-provisioner.
const SIDECARS: &str = "csi.storage.k8s.io/";

/// The virtual classes of this driver.
pub(super) fn ours(installation: &Installation) -> impl Iterator<Item = &StorageClass> {
    installation
        .storage
        .classes
        .iter()
        .filter(|class| class.provisioner == DRIVER_NAME)
}

/// Those whose volumes may be in this cluster.
fn used_here(installation: &Installation) -> impl Iterator<Item = &StorageClass> {
    ours(installation).filter(move |class| !is_for_other_clusters(installation, class))
}

/// Each virtual class with every real class here that its claims may get.
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
    used_here(installation).flat_map(real_ones).collect()
}

pub(super) fn parameter<'a>(class: &'a StorageClass, key: &str) -> Option<&'a str> {
    class.parameters.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn title(class: &StorageClass) -> String {
    format!("StorageClass {}", class.name_any())
}

/// The real class of a claim that does not choose one.
fn choose(installation: &Installation, class: &StorageClass) -> Option<Result<String, ClassError>> {
    let classes: Vec<Class> = installation.storage.classes.iter().map(facts::class).collect();
    let inputs = ClassInputs {
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
    let chosen = choose_class(&inputs, KnownClasses::Listed(&classes), &home);
    Some(chosen.map(|chosen| chosen.name().to_owned()))
}

/// At least one virtual class exists.
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
        "No storage class has this driver as its provisioner, so no claim can use it.",
        "List a class in the chart's value storageClasses.",
    )]
}

/// Virtual classes have only parameters that the driver knows.
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
            format!("Every claim of this class is refused: {problem}."),
            "Delete the class and create it with the right parameters; existing volumes are not affected.",
        ))
    };
    ours(installation).filter_map(wrong).collect()
}

/// Virtual classes have a real class.
pub(super) fn real_class(installation: &Installation) -> Vec<Finding> {
    if !installation.storage.classes.is_complete() {
        return Vec::new();
    }
    let wrong = |class: &StorageClass| {
        let problem = choose(installation, class)?.err()?;
        let fix = match &problem {
            ClassError::NotFound { class, .. } => {
                format!("Create the storage class {class}, or name another one.")
            }
            ClassError::Loop { .. } => {
                "Name a class of another driver: delete this class and create it again.".to_owned()
            }
            ClassError::ExpandsAnnotation { class, .. } | ClassError::ExpandsNamespace { class, .. } => {
                format!(
                    "Create a class like {class} whose template has neither, and name it as the real class."
                )
            }
            _ => format!(
                "Name a real class by the parameter {} (delete this class and create it again), or mark a class as the default.",
                Parameters::REAL_CLASS
            ),
        };
        Some(Finding::error(title(class), sentence(&problem.to_string()), fix))
    };
    used_here(installation).filter_map(wrong).collect()
}

/// Whether `allowedTopologies` keep the volumes of a class in other clusters, which have classes of their own.
fn is_for_other_clusters(installation: &Installation, class: &StorageClass) -> bool {
    let Some(home) = &installation.storage.home else {
        return false;
    };
    let terms = facts::class(class).allowed_topologies;
    let excludes_home = |term: &AllowedTopology| {
        let mut clusters = term.0.iter().filter(|(key, _)| key == CLUSTER_KEY);
        clusters.any(|(_, values)| !values.iter().any(|value| value == home.as_str()))
    };
    !terms.is_empty() && terms.iter().all(excludes_home)
}

/// There is only one default class.
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
    let leaning = used_here(installation).filter(|class| parameter(class, Parameters::REAL_CLASS).is_none());
    if real.len() > 1 {
        for class in leaning {
            if let Some(Ok(chosen)) = choose(installation, class) {
                findings.push(Finding::warning(
                    title(class),
                    format!("Its real class is the default class, but there are several: {}. The newest is used, {chosen}.", names(&real)),
                    format!("Name the real class by the parameter {}, or mark only one class as the default.", Parameters::REAL_CLASS),
                ));
            }
        }
    }
    if let (Some(first), false) = (ours.first(), real.is_empty()) {
        findings.push(Finding::warning(
            format!("StorageClass {}", first.name),
            format!(
                "It is a default class, as well as {}. Kubernetes gives claims without a class to the newest of them.",
                names(&real)
            ),
            format!(
                "Name the real class by the parameter {} of {} and remove the default mark from the others.",
                Parameters::REAL_CLASS,
                first.name
            ),
        ));
    }
    findings
}

/// Classes in the allow-list exist, and are usable as real classes.
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
            format!("Claims may choose it (allowedRealStorageClasses), but it {problem}."),
            "Remove it from the chart's value allowedRealStorageClasses, or create it.",
        ))
    };
    installation
        .setup
        .allowed_classes()
        .into_iter()
        .filter_map(wrong)
        .collect()
}

/// Volumes are created where their pods run.
pub(super) fn binding_mode(installation: &Installation) -> Vec<Finding> {
    ours(installation)
        .filter(|class| facts::class(class).binding == BindingMode::Immediate)
        .map(|class| {
            Finding::note(
                title(class),
                "Its binding mode is Immediate: volumes are created in this cluster before any pod, so pods can run only there.",
                "Use volumeBindingMode WaitForFirstConsumer if the volume should be created where its pod is scheduled.",
            )
        })
        .collect()
}

/// `allowedTopologies` of virtual classes use keys of this driver.
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
                format!("Its allowedTopologies use {foreign}; csi-provisioner knows only the keys of this driver, so it serves no claim."),
                format!("Use {CLUSTER_KEY} and {NODE_KEY} only. Constraints of the real class apply anyway."),
            ));
        }
    }
    findings
}

/// A class that allows expansion has a csi-resizer.
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
                "It allows expansion, but the controller has no csi-resizer: the expansion of a claim never begins.",
                "Set the chart's value controller.resizer.enabled, or remove allowVolumeExpansion from the class.",
            )
        })
        .collect()
}

/// No virtual class belongs to another provisioner now, and Liqo's storage uses another namespace.
pub(super) fn conflicts(installation: &Installation) -> Vec<Finding> {
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
                format!("{volumes} volumes of this driver have this class, but its provisioner is {} now: new claims get no volume of this driver.", class.provisioner),
                "Give one of the two another name. Liqo does not create its own class if it is installed with storage.enabled=false.",
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
            "Liqo's own storage provisioner has its claims in this namespace, too.",
            "Each of the two changes only its own claims. For clear quotas and rights choose another storageNamespace before the first volume is created, or install Liqo with storage.enabled=false.",
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
