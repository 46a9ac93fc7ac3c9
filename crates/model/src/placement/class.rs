//! Which real class a twin gets: the claim's annotation within the allow-list, the
//! cluster's mapping of this virtual class, the parameter of the virtual class, or a
//! default of the cluster, in this order; and never a class that would send the twin
//! back to us.

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

/// When a class makes its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingMode {
    /// When the claim appears.
    Immediate,
    /// When the claim knows its node.
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
    /// Its name.
    pub name: String,
    /// Who makes its volumes.
    pub provisioner: String,
    /// When.
    pub binding: BindingMode,
    /// What becomes of them.
    pub reclaim: ReclaimPolicy,
    /// Whether it is marked as the cluster's default.
    pub is_default: bool,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Where it makes volumes; empty means anywhere.
    pub allowed_topologies: Vec<AllowedTopology>,
    /// Whether its volumes may grow.
    pub allows_expansion: bool,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
}

impl Class {
    /// Whether the class makes volumes for a node with these labels.
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

    /// Whether this virtual class says that twins of all namespaces here share one, and
    /// may be of classes that expand it.
    #[must_use]
    pub fn shares_namespace(&self) -> bool {
        let said = self.parameters.get(Parameters::SHARED_NAMESPACE);
        said.is_some_and(|said| said == "true")
    }

    /// Whether a twin of this class would come back to a virtual class.
    #[must_use]
    pub fn is_loop(&self) -> bool {
        is_loop(&self.provisioner)
    }
}

/// Whether this provisioner serves virtual classes: ours or Liqo's.
#[must_use]
pub fn is_loop(provisioner: &str) -> bool {
    provisioner == DRIVER_NAME || provisioner == LIQO_PROVISIONER
}

/// What is known of a cluster's classes.
#[derive(Clone, Copy, Debug)]
pub enum KnownClasses<'a> {
    /// All of them.
    Listed(&'a [Class]),
    /// They may not be read: a minimal role in a remote cluster.
    Unreadable,
}

/// Who asks for which class.
#[derive(Clone, Copy, Debug)]
pub struct Wishes<'a> {
    /// What the claim asks for.
    pub annotation: Option<Asked<'a>>,
    /// The classes an annotation may name; none means that annotations are refused.
    pub allowed: &'a BTreeSet<String>,
    /// The parameter of the virtual class.
    pub parameter: Option<&'a str>,
    /// The mapping of the cluster.
    pub mapping: Option<&'a str>,
    /// Whether twins of many namespaces share one there, and the virtual class does not
    /// say that this is known: then no class may expand the namespace of a claim.
    pub one_namespace: bool,
}

/// A class that a claim asks for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The annotation it does that with.
    pub annotation: &'static str,
    /// The class.
    pub class: &'a str,
}

impl<'a> Asked<'a> {
    /// By the first of these annotations that the claim has.
    #[must_use]
    pub fn read(claim: &'a BTreeMap<String, String>, keys: &[&'static str]) -> Option<Self> {
        keys.iter().find_map(|&annotation| {
            let class = claim.get(annotation)?;
            Some(Self { annotation, class })
        })
    }
}

/// Where the name of a class came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The claim, with this annotation.
    Annotation(&'static str),
    /// The virtual class.
    Parameter,
    /// The configuration of the cluster.
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
    /// One that was seen.
    Known(&'a Class),
    /// One that may not be read: its provisioner has to be watched on the twin.
    Named(String),
}

impl ChosenClass<'_> {
    /// Name of the class.
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
    /// The claim may not choose.
    #[error(
        "{by} asks for the class {class:?}, which is not in the allow-list of the driver ({}): remove the annotation or have the class allowed",
        if .allowed.is_empty() { "it is empty".to_owned() } else { .allowed.join(", ") }
    )]
    NotAllowed {
        /// The class asked for.
        class: String,
        /// By which annotation.
        by: NamedBy,
        /// The classes that may be asked for.
        allowed: Vec<String>,
    },
    /// There is no such class.
    #[error("{by} names the storage class {class:?}, which does not exist in the cluster {cluster}")]
    NotFound {
        /// The class named.
        class: String,
        /// By whom.
        by: NamedBy,
        /// Where it was looked for.
        cluster: ClusterId,
    },
    /// The class is virtual itself.
    #[error(
        "{by} names the storage class {class:?} of the cluster {cluster}, which is virtual itself (provisioner {provisioner}): name a real one"
    )]
    Loop {
        /// The class named.
        class: String,
        /// By whom.
        by: NamedBy,
        /// Where.
        cluster: ClusterId,
        /// Who would make the twin.
        provisioner: String,
    },
    /// Its driver would look for annotations of the claim on the twin.
    #[error(
        "the storage class {class} of the cluster {cluster} cannot be a real class: its parameter {parameter} expands annotations of the claim, which a twin does not have, so volumes of different users could meet. Use a class without such a template"
    )]
    ExpandsAnnotation {
        /// The class.
        class: String,
        /// Its parameter.
        parameter: String,
        /// Where.
        cluster: ClusterId,
    },
    /// Its driver would take the namespace of the twin for that of the claim.
    #[error(
        "the storage class {class} of the cluster {cluster} cannot be a real class: its parameter {parameter} expands the namespace of the claim, which is the same for all twins in this cluster, so volumes of different users could meet. Use a class without such a template, or set the parameter {} of the virtual class to \"true\" if that is meant",
        Parameters::SHARED_NAMESPACE
    )]
    ExpandsNamespace {
        /// The class.
        class: String,
        /// Its parameter.
        parameter: String,
        /// Where.
        cluster: ClusterId,
    },
    /// Nobody named a class and the cluster has no default.
    #[error(
        "no real storage class: neither the parameter {} of the virtual class nor a class mapping names one, and the cluster {cluster} has no default class{}",
        Parameters::REAL_CLASS,
        if .virtual_defaults.is_empty() { String::new() }
        else { format!(" but {}, which is virtual itself", .virtual_defaults.join(", ")) }
    )]
    NoDefault {
        /// Where it was looked for.
        cluster: ClusterId,
        /// Defaults that would send the twin back to us.
        virtual_defaults: Vec<String>,
    },
    /// Nobody named a class and the default cannot be known.
    #[error(
        "no real storage class: this driver may not read the classes of the cluster {cluster}, so one has to be named by the parameter {} or a class mapping",
        Parameters::REAL_CLASS
    )]
    MustBeNamed {
        /// Where it was looked for.
        cluster: ClusterId,
    },
}

/// Chooses the real class of a twin in this cluster.
pub fn choose_class<'a>(
    wishes: &Wishes<'_>,
    classes: KnownClasses<'a>,
    cluster: &ClusterId,
) -> Result<ChosenClass<'a>, ClassError> {
    let asked = wishes
        .annotation
        .map(|asked| (asked.class, NamedBy::Annotation(asked.annotation)));
    if let Some((class, by)) = asked
        && !wishes.allowed.contains(class)
    {
        return Err(ClassError::NotAllowed {
            class: class.to_owned(),
            by,
            allowed: wishes.allowed.iter().cloned().collect(),
        });
    }
    let named = asked
        .or_else(|| wishes.parameter.map(|name| (name, NamedBy::Parameter)))
        .or_else(|| wishes.mapping.map(|name| (name, NamedBy::Mapping)));

    let chosen = match (named, classes) {
        (Some((name, by)), KnownClasses::Listed(classes)) => find(name, by, classes, cluster),
        (Some((name, _)), KnownClasses::Unreadable) => Ok(ChosenClass::Named(name.to_owned())),
        (None, KnownClasses::Listed(classes)) => default(classes, cluster),
        (None, KnownClasses::Unreadable) => Err(ClassError::MustBeNamed {
            cluster: cluster.clone(),
        }),
    }?;
    if let ChosenClass::Known(class) = chosen {
        keeps_users_apart(class, wishes.one_namespace, cluster)?;
    }
    Ok(chosen)
}

/// Whether the volumes of different users stay apart, whose twins look alike to the
/// driver of the class.
fn keeps_users_apart(class: &Class, one_namespace: bool, cluster: &ClusterId) -> Result<(), ClassError> {
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

/// Of several defaults Kubernetes takes the newest, and of those made in the
/// same second the first by name. A virtual class may well be the default of
/// its users; behind it we look for the next one.
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
