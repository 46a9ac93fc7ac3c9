//! The requested properties of a volume, and the parameters of its class.
//!
//! Values of these types are consistent; a request that is not is a [`SpecError`]. gRPC messages are parsed
//! elsewhere.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{Capabilities, RestoreTopology, SizeRange};

/// Why a request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A size below zero.
    #[error("the capacity range has a negative {0}")]
    NegativeSize(&'static str),
    /// The limit is below the required size.
    #[error("the capacity range requires {required} bytes but limits the volume to {limit}")]
    EmptyRange { required: u64, limit: u64 },
    #[error("the request has no volume capability")]
    NoCapability,
    /// Mounted and raw at once.
    #[error("the request is for a file system and for a raw block device at once")]
    MixedVolumeModes,
    #[error("the request has two file system types: {0:?} and {1:?}")]
    TwoFsTypes(String, String),
    #[error("the request has different mount flags: {0:?} and {1:?}")]
    TwoSetsOfFlags(Vec<String>, Vec<String>),
    #[error("{0:?} is not an access mode of a claim")]
    UnknownAccessMode(String),
    /// A parameter that this driver does not know.
    #[error(
        "the storage class has an unknown parameter {0:?}; this driver knows {known:?}",
        known = Parameters::OF_CLASSES
    )]
    UnknownParameter(String),
    /// A parameter that csi-provisioner handles instead of this driver.
    #[error(
        "the storage class has the parameter {0:?}, and its secrets are not passed on to the real driver: set it in the real class"
    )]
    Secret(String),
    /// csi-attacher refuses such a PV.
    #[error(
        "Kubernetes attaches no volume with both ReadWriteOnce and ReadOnlyMany: request one of them, or ReadWriteMany as well"
    )]
    NotAttachable,
    /// A parameter of an attributes class that this driver does not know.
    #[error(
        "the VolumeAttributesClass has an unknown parameter {0:?}: attributes are those of the real class that its parameter \
         {REAL_ATTRIBUTES_CLASS:?} names"
    )]
    UnknownAttribute(String),
    /// An incomplete claim name.
    #[error("the request names the claim's {given} without its {missing}")]
    IncompleteClaimName {
        given: &'static str,
        missing: &'static str,
    },
    #[error("{0:?} is not a binding policy: use Optimistic or WaitForBound")]
    UnknownBindingPolicy(String),
    #[error("the parameter restoreTopology is {0:?}: use \"cluster\" or \"source\"")]
    UnknownRestoreTopology(String),
    /// Something that a volume in a remote cluster cannot have.
    #[error("{field} cannot be honoured by a volume in a remote cluster: {why}")]
    NotRemotely {
        /// Where it was requested.
        field: &'static str,
        /// Why not, and what to do instead.
        why: &'static str,
    },
    /// A parameter that is not a boolean.
    #[error("the parameter {parameter} is {value:?}: use \"true\" or \"false\"")]
    NoBoolean { parameter: &'static str, value: String },
    /// A parameter without a value.
    #[error("the parameter {0:?} is empty")]
    EmptyParameter(&'static str),
}

/// The binding policy of a volume with a remote twin.
///
/// A remote class with `WaitForFirstConsumer` binds only after the pod is created there, and the pod is
/// created there only after the claim at home is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindingPolicy {
    /// Hand the volume over as soon as the remote cluster has accepted the twin. Later problems are reported
    /// on the claim.
    #[default]
    Optimistic,
    /// Hand it over when the twin is bound; this driver selects a node for it there.
    WaitForBound,
}

impl BindingPolicy {
    const ALL: [Self; 2] = [Self::Optimistic, Self::WaitForBound];

    /// The value in parameters and objects.
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

/// Namespace and name of a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The parameters of a request: those of the virtual class, and those that csi-provisioner adds about the
/// claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The real class in the virtual one.
    pub real_class: Option<String>,
    /// The binding policy, if the class has one.
    pub binding_policy: Option<BindingPolicy>,
    /// Whether real classes may expand the namespace that all twins at home share.
    pub shared_namespace: bool,
    /// The restore topology, if the class has one.
    pub restore_topology: Option<RestoreTopology>,
    /// The claim of the volume.
    pub claim: Option<ClaimName>,
    /// Name of the PV that csi-provisioner will create.
    pub volume: Option<String>,
}

impl Parameters {
    /// Parameter of the virtual class: the real class.
    pub const REAL_CLASS: &'static str = "realStorageClass";
    /// Parameter of the virtual class: the binding policy of volumes in remote clusters.
    pub const BINDING_POLICY: &'static str = "remoteBindingPolicy";
    /// Parameter of the virtual class: real classes may expand the namespace of a claim, although twins of
    /// all namespaces share one in this cluster.
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

    /// Parses the parameters; an unknown one is an error, because ignoring it could surprise the user.
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

    /// A parameter of a class that names a secret; a request does not have it.
    #[must_use]
    pub fn secret_in(class: &BTreeMap<String, String>) -> Option<&String> {
        let names_secret = |key: &&String| {
            // `secret-name` is the default for all calls.
            let rest = key.strip_prefix("csi.storage.k8s.io/");
            rest.is_some_and(|rest| rest.ends_with("secret-name"))
        };
        class.keys().find(names_secret)
    }
}

fn boolean(parameter: &'static str, value: String) -> Result<bool, SpecError> {
    value
        .parse()
        .map_err(|_| SpecError::NoBoolean { parameter, value })
}

fn half(given: &'static str, missing: &'static str) -> SpecError {
    SpecError::IncompleteClaimName { given, missing }
}

/// The content source of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// The snapshot of this id.
    Snapshot(String),
    /// The volume of this id.
    Volume(String),
}

/// The requested volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    pub size: SizeRange,
    pub capabilities: Capabilities,
    pub parameters: Parameters,
    pub source: Option<ContentSource>,
    /// The attributes class of its twin.
    pub attributes: Option<String>,
}

/// Parameter of an attributes class of this driver: the attributes class of the twins, in their cluster.
const REAL_ATTRIBUTES_CLASS: &str = "realVolumeAttributesClass";

/// The real attributes class in these parameters; `None` without any.
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
    fn binding_policies_survive_the_round_trip() {
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
            Err(SpecError::IncompleteClaimName {
                missing: "namespace",
                ..
            })
        ));
    }
}
