//! The real class of a twin: the claim's annotation within the allow-list, the cluster's mapping of the
//! virtual class, the parameter of the virtual class, or a default of the cluster, in this order; never a
//! virtual class, which would send the twin back to this driver.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{Expands, expanding};
use crate::{
    topology::Labels,
    volume::{ClusterId, DRIVER_NAME, Parameters, ReclaimPolicy},
};

/// Provisioner of Liqo's own virtual class.
const LIQO_PROVISIONER: &str = "liqo.io/storage";

/// The `volumeBindingMode` of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingMode {
    /// Volumes are provisioned when the claim is created.
    Immediate,
    /// Volumes are provisioned when the claim has its node.
    WaitForFirstConsumer,
}

/// One of a class's `allowedTopologies`: each key must have one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTopology(pub Vec<(String, Vec<String>)>);

impl AllowedTopology {
    fn admits(&self, labels: &Labels) -> bool {
        self.0
            .iter()
            .all(|(key, values)| labels.get(key).is_some_and(|value| values.contains(value)))
    }
}

/// A storage class of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub name: String,
    pub provisioner: String,
    pub binding: BindingMode,
    pub reclaim: ReclaimPolicy,
    /// Whether it is annotated as the default of the cluster.
    pub is_default: bool,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Where it provisions volumes; empty means anywhere.
    pub allowed_topologies: Vec<AllowedTopology>,
    /// Whether its volumes can be expanded.
    pub allows_expansion: bool,
    pub parameters: BTreeMap<String, String>,
}

impl Class {
    /// Whether the class provisions volumes for a node with these labels.
    #[must_use]
    pub fn allows(&self, labels: &Labels) -> bool {
        self.allowed_topologies.is_empty() || self.allowed_topologies.iter().any(|one| one.admits(labels))
    }

    /// The real class that this virtual class names.
    #[must_use]
    pub fn real_class(&self) -> Option<&str> {
        let named = self.parameters.get(Parameters::REAL_CLASS)?;
        (!named.is_empty()).then_some(named)
    }

    /// Whether this virtual class allows real classes that expand the namespace of a claim, although twins of
    /// all namespaces share one at home.
    #[must_use]
    pub fn shares_namespace(&self) -> bool {
        let said = self.parameters.get(Parameters::SHARED_NAMESPACE);
        said.is_some_and(|said| said == "true")
    }

    /// Whether this class is virtual, so that a twin of it would come back to a virtual provisioner.
    #[must_use]
    pub fn is_loop(&self) -> bool {
        is_loop(&self.provisioner)
    }
}

/// Whether this provisioner serves virtual classes: this driver or Liqo's.
#[must_use]
pub fn is_loop(provisioner: &str) -> bool {
    provisioner == DRIVER_NAME || provisioner == LIQO_PROVISIONER
}

/// The classes of a cluster, as far as they can be read.
#[derive(Clone, Copy, Debug)]
pub enum KnownClasses<'a> {
    Listed(&'a [Class]),
    /// This driver may not read them: level `minimal` in a remote cluster.
    Unreadable,
}

/// The inputs of the choice.
#[derive(Clone, Copy, Debug)]
pub struct ClassInputs<'a> {
    /// The annotation of the claim that requests a class.
    pub annotation: Option<RequestedClass<'a>>,
    /// The classes that annotations may request; an empty set means none.
    pub allowed: &'a BTreeSet<String>,
    /// The parameter of the virtual class.
    pub parameter: Option<&'a str>,
    /// The mapping of the cluster.
    pub mapping: Option<&'a str>,
    /// Whether the real class must not expand the namespace of a claim: the twins of many namespaces
    /// have the same one, and the virtual class does not [allow](Class::shares_namespace) that.
    pub one_namespace: bool,
}

/// A class that a claim requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestedClass<'a> {
    /// The key of the annotation.
    pub annotation: &'static str,
    pub class: &'a str,
}

impl<'a> RequestedClass<'a> {
    /// The first of these annotations that the claim has.
    #[must_use]
    pub fn read(claim: &'a BTreeMap<String, String>, keys: &[&'static str]) -> Option<Self> {
        keys.iter().find_map(|&annotation| {
            let class = claim.get(annotation)?;
            Some(Self { annotation, class })
        })
    }
}

/// Where a class is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The claim, by this annotation.
    Annotation(&'static str),
    /// The parameter of the virtual class.
    Parameter,
    /// The class mapping of the cluster.
    Mapping,
}

impl fmt::Display for NamedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation(key) => write!(f, "the claim's annotation {key}"),
            Self::Parameter => write!(f, "the virtual class's parameter {}", Parameters::REAL_CLASS),
            Self::Mapping => f.write_str("the class mapping of the cluster"),
        }
    }
}

/// The real class of a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChosenClass<'a> {
    /// A class that was read.
    Known(&'a Class),
    /// A class that may not be read: its provisioner must be checked on the twin.
    Named(String),
}

impl ChosenClass<'_> {
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Known(class) => &class.name,
            Self::Named(name) => name,
        }
    }
}

/// Why there is no real class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// The allow-list does not contain the requested class.
    #[error(
        "{by} requests the class {class:?}, which is not in the allow-list of the driver ({}): remove the annotation or have the class allowed",
        if .allowed.is_empty() { "it is empty".to_owned() } else { .allowed.join(", ") }
    )]
    NotAllowed {
        class: String,
        by: NamedBy,
        /// The allow-list.
        allowed: Vec<String>,
    },
    #[error("{by} names the storage class {class:?}, which does not exist in the cluster {cluster}")]
    NotFound {
        class: String,
        by: NamedBy,
        cluster: ClusterId,
    },
    #[error(
        "{by} names the storage class {class:?} of the cluster {cluster}, which is virtual itself (provisioner {provisioner}): name a real one"
    )]
    Loop {
        class: String,
        by: NamedBy,
        cluster: ClusterId,
        /// The provisioner of the class.
        provisioner: String,
    },
    /// The real driver would read the annotations of the twin instead of the claim's.
    #[error(
        "the storage class {class} of the cluster {cluster} cannot be a real class: its parameter {parameter} expands annotations of the claim, which a twin does not have, so volumes of different users could meet. Use a class without such a template"
    )]
    ExpandsAnnotation {
        class: String,
        parameter: String,
        cluster: ClusterId,
    },
    /// The real driver would read the namespace of the twin instead of the claim's.
    #[error(
        "the storage class {class} of the cluster {cluster} cannot be a real class: its parameter {parameter} expands the namespace of the claim, which is the same for all twins in this cluster, so volumes of different users could meet. Use a class without such a template, or set the parameter {} of the virtual class to \"true\" if that is intended",
        Parameters::SHARED_NAMESPACE
    )]
    ExpandsNamespace {
        class: String,
        parameter: String,
        cluster: ClusterId,
    },
    #[error(
        "no real storage class: neither the parameter {} of the virtual class nor a class mapping names one, and the cluster {cluster} has no default class{}",
        Parameters::REAL_CLASS,
        if .virtual_defaults.is_empty() { String::new() }
        else { format!(" but {}, which is virtual itself", .virtual_defaults.join(", ")) }
    )]
    NoDefault {
        cluster: ClusterId,
        /// Default classes that are virtual.
        virtual_defaults: Vec<String>,
    },
    /// No class is named, and the default cannot be read.
    #[error(
        "no real storage class: this driver may not read the classes of the cluster {cluster}, so one has to be named by the parameter {} or a class mapping",
        Parameters::REAL_CLASS
    )]
    MustBeNamed { cluster: ClusterId },
}

/// Chooses the real class of a twin in this cluster.
pub fn choose_class<'a>(
    inputs: &ClassInputs<'_>,
    classes: KnownClasses<'a>,
    cluster: &ClusterId,
) -> Result<ChosenClass<'a>, ClassError> {
    let asked = inputs
        .annotation
        .map(|asked| (asked.class, NamedBy::Annotation(asked.annotation)));
    if let Some((class, by)) = asked
        && !inputs.allowed.contains(class)
    {
        return Err(ClassError::NotAllowed {
            class: class.to_owned(),
            by,
            allowed: inputs.allowed.iter().cloned().collect(),
        });
    }
    let named = asked
        .or_else(|| inputs.parameter.map(|name| (name, NamedBy::Parameter)))
        .or_else(|| inputs.mapping.map(|name| (name, NamedBy::Mapping)));

    let chosen = match (named, classes) {
        (Some((name, by)), KnownClasses::Listed(classes)) => find(name, by, classes, cluster),
        (Some((name, _)), KnownClasses::Unreadable) => Ok(ChosenClass::Named(name.to_owned())),
        (None, KnownClasses::Listed(classes)) => default(classes, cluster),
        (None, KnownClasses::Unreadable) => Err(ClassError::MustBeNamed {
            cluster: cluster.clone(),
        }),
    }?;
    if let ChosenClass::Known(class) = chosen {
        check_isolation(class, inputs.one_namespace, cluster)?;
    }
    Ok(chosen)
}

/// Refuses classes that would mix the volumes of different users, whose twins look alike to the driver of the
/// class.
fn check_isolation(class: &Class, one_namespace: bool, cluster: &ClusterId) -> Result<(), ClassError> {
    let (name, cluster) = (class.name.clone(), cluster.clone());
    if let Some(parameter) = expanding(&class.parameters, Expands::Annotation) {
        return Err(ClassError::ExpandsAnnotation {
            class: name,
            parameter: parameter.to_owned(),
            cluster,
        });
    }
    match expanding(&class.parameters, Expands::Namespace).filter(|_| one_namespace) {
        Some(parameter) => Err(ClassError::ExpandsNamespace {
            class: name,
            parameter: parameter.to_owned(),
            cluster,
        }),
        None => Ok(()),
    }
}

fn find<'a>(
    name: &str,
    by: NamedBy,
    classes: &'a [Class],
    cluster: &ClusterId,
) -> Result<ChosenClass<'a>, ClassError> {
    match classes.iter().find(|class| class.name == name) {
        None => Err(ClassError::NotFound {
            class: name.to_owned(),
            by,
            cluster: cluster.clone(),
        }),
        Some(class) if class.is_loop() => Err(ClassError::Loop {
            class: name.to_owned(),
            by,
            cluster: cluster.clone(),
            provisioner: class.provisioner.clone(),
        }),
        Some(class) => Ok(ChosenClass::Known(class)),
    }
}

/// Like Kubernetes: of several defaults the newest, and of those created in the same second the first by
/// name. A virtual class may be the default for users; it is skipped here.
fn default<'a>(classes: &'a [Class], cluster: &ClusterId) -> Result<ChosenClass<'a>, ClassError> {
    let (virtual_ones, real): (Vec<&Class>, Vec<&Class>) = classes
        .iter()
        .filter(|class| class.is_default)
        .partition(|class| class.is_loop());
    real.into_iter()
        .min_by_key(|class| (Reverse(class.created), &class.name))
        .map(ChosenClass::Known)
        .ok_or_else(|| ClassError::NoDefault {
            cluster: cluster.clone(),
            virtual_defaults: virtual_ones.iter().map(|class| class.name.clone()).collect(),
        })
}

#[cfg(test)]
pub(super) mod tests;
