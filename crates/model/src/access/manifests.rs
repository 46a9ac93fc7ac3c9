//! The objects of the identity in a remote cluster, as the chart renders them. `make chart-manifests`
//! writes a file for each level, with placeholders for what differs between clusters; a test of the
//! chart compares them.

use std::{collections::BTreeSet, fmt, str::FromStr};

use super::Level;
use crate::volume::ClusterId;

const FABRIC: &str = include_str!("../../manifests/remote-fabric.yaml");
const FULL: &str = include_str!("../../manifests/remote-full.yaml");
const NAMESPACED: &str = include_str!("../../manifests/remote-namespaced.yaml");
const MINIMAL: &str = include_str!("../../manifests/remote-minimal.yaml");

const NAMESPACE: &str = "placeholder-namespace";
const HOME: &str = "placeholder-home";
const LISTED: &str = "placeholder-listed";

const SEPARATOR: &str = "\n---\n";
const SOURCE: &str = "# Source: ";

/// Words that YAML reads as other types than strings.
const NO_TEXTS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// The name of a namespace that needs no quotes in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespaceName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid namespace name here: at most 63 lower-case letters, digits and hyphens, starting with a letter, \
     not ending with a hyphen, and not a word that YAML does not read as a string"
)]
pub struct NamespaceNameError(String);

impl NamespaceName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NamespaceName {
    type Err = NamespaceNameError;

    fn from_str(text: &str) -> Result<Self, NamespaceNameError> {
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let fits = text.len() <= 63
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && !text.ends_with('-')
            && text.chars().all(is_letter)
            && !NO_TEXTS.contains(&text);
        fits.then(|| Self(text.to_owned()))
            .ok_or_else(|| NamespaceNameError(text.to_owned()))
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of a home cluster in a remote one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its namespace in the remote cluster.
    pub namespace: NamespaceName,
    pub home: ClusterId,
    /// The namespaces of twins, at the levels where they are listed.
    pub listed: BTreeSet<NamespaceName>,
}

/// The kind and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectRef {
    fn of(document: &str) -> Option<Self> {
        let top = |key: &str| document.lines().find_map(|line| line.strip_prefix(key));
        let metadata = document
            .lines()
            .skip_while(|line| *line != "metadata:")
            .skip(1)
            .take_while(|line| line.starts_with(' '));
        let inner = |key: &str| metadata.clone().find_map(|line| line.strip_prefix(key));
        Some(Self {
            kind: top("kind: ")?.to_owned(),
            namespace: inner("  namespace: ").map(str::to_owned),
            name: inner("  name: ")?.to_owned(),
        })
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// The order of creation: policies come before the rights that they limit.
fn rank(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "ServiceAccount" => 1,
        "Secret" | "ConfigMap" => 2,
        "ValidatingAdmissionPolicy" => 3,
        "ValidatingAdmissionPolicyBinding" => 4,
        "ClusterRole" | "Role" => 5,
        _ => 6,
    }
}

/// The manifests of a level, each with its object, in the order in which they are applied.
#[must_use]
pub fn render(level: Level, identity: &Identity) -> Vec<(ObjectRef, String)> {
    let text = match level {
        Level::Fabric => FABRIC,
        Level::Full => FULL,
        Level::Namespaced => NAMESPACED,
        Level::Minimal => MINIMAL,
    };
    let nowhere = BTreeSet::new();
    let listed = if level.is_listed() {
        &identity.listed
    } else {
        &nowhere
    };
    let mut all = vec![namespace(identity)];
    // The text before the first separator describes the file.
    for document in text.split(SEPARATOR).skip(1) {
        let document = document
            .replace(NAMESPACE, identity.namespace.as_str())
            .replace(HOME, identity.home.as_str());
        if document.contains(LISTED) {
            all.extend(listed.iter().map(|one| document.replace(LISTED, one.as_str())));
        } else {
            all.push(document);
        }
    }
    let tidy = |document: String| {
        let lines = document.lines().filter(|line| !line.starts_with(SOURCE));
        let lines: Vec<&str> = lines.collect();
        format!("{}\n", lines.join("\n").trim())
    };
    let named = all.into_iter().map(tidy);
    let mut named: Vec<(ObjectRef, String)> = named
        .filter_map(|document| Some((ObjectRef::of(&document)?, document)))
        .collect();
    named.sort_by_key(|(object, _)| rank(&object.kind));
    named
}

/// All manifests as one text.
#[must_use]
pub fn document(manifests: &[(ObjectRef, String)]) -> String {
    let texts: Vec<&str> = manifests.iter().map(|(_, text)| text.as_str()).collect();
    texts.join("---\n")
}

fn namespace(identity: &Identity) -> String {
    format!(
        "# For the identity of the home cluster; nothing runs here.\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: \
         {}\n  labels:\n    app.kubernetes.io/managed-by: {}\n",
        identity.namespace,
        super::MANAGED_BY_CONNECT
    )
}

/// Every object of any level, in the order of deletion: rights before the policies that limit them.
/// Of listed namespaces, those that `identity` lists.
#[must_use]
pub fn every(identity: &Identity) -> Vec<ObjectRef> {
    let mut all: Vec<ObjectRef> = Level::ALL
        .into_iter()
        .flat_map(|level| render(level, identity))
        .map(|(object, _)| object)
        .collect();
    all.sort_by_key(|object| (std::cmp::Reverse(rank(&object.kind)), object.clone()));
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            namespace: "access".parse().unwrap(),
            home: "rome".parse().unwrap(),
            listed: ["a", "b"].map(|it| it.parse().unwrap()).into(),
        }
    }

    fn kinds(level: Level) -> Vec<String> {
        let rendered = render(level, &identity()).into_iter();
        rendered.map(|(object, _)| object.to_string()).collect()
    }

    #[test]
    fn all_placeholders_are_replaced() {
        for level in Level::ALL {
            let text = document(&render(level, &identity()));
            assert!(!text.contains("placeholder"), "{level}");
            assert!(text.contains("storage.liqo.io/home-cluster: \"rome\""), "{level}");
            assert!(
                text.contains(&format!("storage.liqo.io/level: {level}")),
                "{level}"
            );
        }
    }

    #[test]
    fn listed_namespaces_have_their_roles_and_others_none() {
        for level in [Level::Namespaced, Level::Minimal] {
            let kinds = kinds(level);
            for one in ["Role a/", "RoleBinding a/", "Role b/", "RoleBinding b/"] {
                assert!(
                    kinds.contains(&format!("{one}liqo-csi-remote.access")),
                    "{level}: {kinds:?}"
                );
            }
        }
        assert!(!kinds(Level::Full).iter().any(|it| it.starts_with("Role a/")));
        assert!(
            !kinds(Level::Minimal)
                .iter()
                .any(|it| it.starts_with("ClusterRole"))
        );
    }

    #[test]
    fn admission_policies_are_created_before_roles_and_bindings() {
        for level in Level::ALL {
            let kinds = kinds(level);
            assert_eq!(
                kinds[..2],
                ["Namespace access", "ServiceAccount access/liqo-csi-remote"]
            );
            let last_fence = kinds.iter().rposition(|it| it.starts_with("Validating")).unwrap();
            let first_right = kinds.iter().position(|it| it.contains("Role")).unwrap();
            assert!(last_fence < first_right, "{level}: {kinds:?}");
        }
    }

    #[test]
    fn roles_and_bindings_are_deleted_before_admission_policies() {
        let all = every(&identity());
        let at = |kind: &str| all.iter().position(|it| it.kind == kind).unwrap();
        let last = |kind: &str| all.iter().rposition(|it| it.kind == kind).unwrap();
        assert!(last("ClusterRoleBinding") < at("ClusterRole"));
        assert!(last("ClusterRole") < at("ValidatingAdmissionPolicyBinding"));
        assert!(last("Secret") < at("ServiceAccount"));
        assert_eq!(all.last().unwrap().to_string(), "Namespace access");
        let unique: BTreeSet<&ObjectRef> = all.iter().collect();
        assert_eq!(unique.len(), all.len());
    }

    #[test]
    fn no_identity_has_a_permanent_token() {
        for level in Level::ALL {
            let text = document(&render(level, &identity()));
            assert!(!text.contains("kubernetes.io/service-account-token\n"), "{level}");
            assert!(text.contains("name: liqo-csi-session"), "{level}");
            let longest = super::super::LONGEST_TOKEN;
            assert!(text.contains(&format!("orValue(3600) <= {longest}\n")), "{level}");
            assert!(
                text.contains(&format!("storage.liqo.io/token-seconds: \"{longest}\"")),
                "{level}"
            );
        }
    }

    #[test]
    fn names_that_yaml_reads_otherwise_are_refused() {
        for wrong in [
            "",
            "true",
            "y",
            "1",
            "1e3",
            "-a",
            "a-",
            "A",
            "a.b",
            &"a".repeat(64),
        ] {
            assert!(wrong.parse::<NamespaceName>().is_err(), "{wrong}");
        }
        assert_eq!("team-1".parse::<NamespaceName>().unwrap().as_str(), "team-1");
    }
}
