//! What a volume was asked to be, as a whole, and the parameters of its class.
//!
//! Values of these types cannot contradict themselves; whatever a request says
//! that they cannot hold is a [`SpecError`]. Reading gRPC messages is not done here.

use std::{fmt, str::FromStr};

use super::{Capabilities, RestoreTopology, SizeRange};

/// Why a request does not describe a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A size below zero.
    #[error("the capacity range has a negative {0}")]
    NegativeSize(&'static str),
    /// More is required than allowed.
    #[error("the capacity range requires {required} bytes but limits the volume to {limit}")]
    EmptyRange {
        /// Bytes required.
        required: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// No capability at all.
    #[error("the request has no volume capability")]
    NoCapability,
    /// Mounted and raw at once.
    #[error("the request asks for a file system and for a raw block device at once")]
    MixedVolumeModes,
    /// Two file system types.
    #[error("the request asks for two file system types at once: {0:?} and {1:?}")]
    TwoFsTypes(String, String),
    /// Two sets of mount flags.
    #[error("the request asks for different mount flags at once: {0:?} and {1:?}")]
    TwoSetsOfFlags(Vec<String>, Vec<String>),
    /// An access mode nobody knows.
    #[error("{0:?} is no access mode of a claim")]
    UnknownAccessMode(String),
    /// A parameter this driver does not know.
    #[error(
        "the storage class has an unknown parameter {0:?}; this driver knows {known:?}",
        known = Parameters::OF_CLASSES
    )]
    UnknownParameter(String),
    /// A parameter of an attributes class that this driver does not know.
    #[error(
        "the VolumeAttributesClass has an unknown parameter {0:?}: attributes are those of the real class that its parameter \
         {REAL_ATTRIBUTES_CLASS:?} names"
    )]
    UnknownAttribute(String),
    /// Half a claim name.
    #[error("the request names the claim's {given} without its {missing}")]
    HalfAClaim {
        /// What it has.
        given: &'static str,
        /// What it lacks.
        missing: &'static str,
    },
    /// A binding policy nobody knows.
    #[error("{0:?} is no binding policy: it is Optimistic or WaitForBound")]
    UnknownBindingPolicy(String),
    /// A place that nobody knows.
    #[error("the parameter restoreTopology is {0:?}: it is \"cluster\" or \"source\"")]
    UnknownRestoreTopology(String),
    /// Something a volume in a remote cluster cannot have.
    #[error("{field} cannot be honoured by a volume in a remote cluster: {why}")]
    NotRemotely {
        /// Where it was asked for.
        field: &'static str,
        /// Why not, and what to do instead.
        why: &'static str,
    },
    /// A parameter that is no truth value.
    #[error("the parameter {parameter} is {value:?}: it is \"true\" or \"false\"")]
    NoBoolean {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        value: String,
    },
    /// A parameter without a value.
    #[error("the parameter {0:?} is empty")]
    EmptyParameter(&'static str),
}

/// When a volume in a remote cluster is answered for.
///
/// A remote class that waits for its first consumer binds only when the pod
/// arrives there, and the pod arrives only when the claim here is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindingPolicy {
    /// As soon as the remote cluster has taken the twin. What goes wrong later is
    /// told on the claim.
    #[default]
    Optimistic,
    /// When the twin is bound; a node is chosen for it there.
    WaitForBound,
}

impl BindingPolicy {
    const ALL: [Self; 2] = [Self::Optimistic, Self::WaitForBound];

    /// As parameters and objects spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Optimistic => "Optimistic",
            Self::WaitForBound => "WaitForBound",
        }
    }
}

impl FromStr for BindingPolicy {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| SpecError::UnknownBindingPolicy(text.to_owned()))
    }
}

/// Name of a claim in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The parameters of a request: those of the virtual class, and what
/// csi-provisioner adds about the claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The real class named by the virtual one.
    pub real_class: Option<String>,
    /// When a volume in a remote cluster is answered for, if the class says.
    pub binding_policy: Option<BindingPolicy>,
    /// Whether real classes may expand the namespace that all twins here share.
    pub shared_namespace: bool,
    /// From where snapshots can be restored, if the class says.
    pub restore_topology: Option<RestoreTopology>,
    /// The claim the volume is for.
    pub claim: Option<ClaimName>,
    /// Name of the PV that will be made.
    pub volume: Option<String>,
}

impl Parameters {
    /// Parameter of the virtual class that names the real one.
    pub const REAL_CLASS: &'static str = "realStorageClass";
    /// Parameter of the virtual class: when volumes in remote clusters are answered for.
    pub const BINDING_POLICY: &'static str = "remoteBindingPolicy";
    /// Parameter of the virtual class: it is known that twins of all namespaces share one
    /// in this cluster, and real classes may expand it.
    pub const SHARED_NAMESPACE: &'static str = "allowSharedNamespace";
    /// Parameter of the virtual class: from where snapshots can be restored.
    pub const RESTORE_TOPOLOGY: &'static str = "restoreTopology";
    const OF_CLASSES: [&'static str; 4] = [
        Self::REAL_CLASS,
        Self::BINDING_POLICY,
        Self::SHARED_NAMESPACE,
        Self::RESTORE_TOPOLOGY,
    ];
    const CLAIM_NAMESPACE: &'static str = "csi.storage.k8s.io/pvc/namespace";
    const CLAIM_NAME: &'static str = "csi.storage.k8s.io/pvc/name";
    const VOLUME: &'static str = "csi.storage.k8s.io/pv/name";

    /// Reads the parameters of a request; an unknown one is an error, because
    /// the user meant something by it.
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, SpecError> {
        let (mut namespace, mut name) = (None, None);
        let mut read = Self::default();
        for (key, value) in parameters {
            let value = Some(value.clone()).filter(|value| !value.is_empty());
            match key.as_str() {
                Self::REAL_CLASS => {
                    read.real_class = Some(value.ok_or(SpecError::EmptyParameter(Self::REAL_CLASS))?);
                }
                Self::BINDING_POLICY => {
                    let value = value.ok_or(SpecError::EmptyParameter(Self::BINDING_POLICY))?;
                    read.binding_policy = Some(value.parse()?);
                }
                Self::SHARED_NAMESPACE => {
                    let value = value.ok_or(SpecError::EmptyParameter(Self::SHARED_NAMESPACE))?;
                    read.shared_namespace = boolean(Self::SHARED_NAMESPACE, value)?;
                }
                Self::RESTORE_TOPOLOGY => {
                    let value = value.ok_or(SpecError::EmptyParameter(Self::RESTORE_TOPOLOGY))?;
                    read.restore_topology = Some(value.parse()?);
                }
                Self::CLAIM_NAMESPACE => namespace = value,
                Self::CLAIM_NAME => name = value,
                Self::VOLUME => read.volume = value,
                _ => return Err(SpecError::UnknownParameter(key.clone())),
            }
        }
        read.claim = match (namespace, name) {
            (Some(namespace), Some(name)) => Some(ClaimName { namespace, name }),
            (None, None) => None,
            (Some(_), None) => return Err(half("namespace", "name")),
            (None, Some(_)) => return Err(half("name", "namespace")),
        };
        Ok(read)
    }
}

fn boolean(parameter: &'static str, value: String) -> Result<bool, SpecError> {
    value
        .parse()
        .map_err(|_| SpecError::NoBoolean { parameter, value })
}

fn half(given: &'static str, missing: &'static str) -> SpecError {
    SpecError::HalfAClaim { given, missing }
}

/// What the volume is filled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// The snapshot of this id.
    Snapshot(String),
    /// The volume of this id.
    Volume(String),
}

/// What a volume was asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// How large.
    pub size: SizeRange,
    /// For whom and how.
    pub capabilities: Capabilities,
    /// By which class.
    pub parameters: Parameters,
    /// Filled with what.
    pub source: Option<ContentSource>,
    /// The attributes class that its twin is to have.
    pub attributes: Option<String>,
}

/// Parameter of an attributes class of this driver: the one that twins get, in the cluster
/// where they are.
const REAL_ATTRIBUTES_CLASS: &str = "realVolumeAttributesClass";

/// The attributes class that the parameters of one of this driver name; `None` without any.
pub fn attributes_class<'a>(
    parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<Option<String>, SpecError> {
    let mut named = None;
    for (key, value) in parameters {
        match key.as_str() {
            REAL_ATTRIBUTES_CLASS if value.is_empty() => {
                return Err(SpecError::EmptyParameter(REAL_ATTRIBUTES_CLASS));
            }
            REAL_ATTRIBUTES_CLASS => named = Some(value.clone()),
            _ => return Err(SpecError::UnknownAttribute(key.clone())),
        }
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Parameters, SpecError> {
        let map: BTreeMap<String, String> = pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Parameters::parse(&map)
    }

    #[test]
    fn parameters_name_class_and_claim() {
        let read = parse(&[
            ("realStorageClass", "fast"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ])
        .unwrap();
        assert_eq!(read.real_class.as_deref(), Some("fast"));
        assert_eq!(read.claim.unwrap().to_string(), "shop/data");
        assert_eq!(read.volume.as_deref(), Some("pvc-1"));
        assert_eq!(parse(&[]).unwrap(), Parameters::default());
    }

    #[test]
    fn policies_have_names() {
        for policy in BindingPolicy::ALL {
            assert_eq!(policy.as_str().parse(), Ok(policy));
        }
        assert!("optimistic".parse::<BindingPolicy>().is_err());
    }

    #[test]
    fn unknown_or_broken_parameters_are_named() {
        assert_eq!(
            parse(&[("realStorageclass", "x")]),
            Err(SpecError::UnknownParameter("realStorageclass".into()))
        );
        assert!(matches!(
            parse(&[("allowSharedNamespace", "yes")]),
            Err(SpecError::NoBoolean { .. })
        ));
        assert_eq!(
            parse(&[("restoreTopology", "zone")]),
            Err(SpecError::UnknownRestoreTopology("zone".into()))
        );
        assert_eq!(
            parse(&[("restoreTopology", "source")]).unwrap().restore_topology,
            Some(RestoreTopology::Source)
        );
        assert!(
            parse(&[("allowSharedNamespace", "true")])
                .unwrap()
                .shared_namespace
        );
        assert_eq!(
            parse(&[("realStorageClass", "")]),
            Err(SpecError::EmptyParameter(Parameters::REAL_CLASS))
        );
        assert!(matches!(
            parse(&[("csi.storage.k8s.io/pvc/name", "data")]),
            Err(SpecError::HalfAClaim {
                missing: "namespace",
                ..
            })
        ));
    }
}
