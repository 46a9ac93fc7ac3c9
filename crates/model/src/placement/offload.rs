//! What a remote cluster is to this one, as its fabric or its administrator
//! declared it: which nodes stand for it, which namespace there a namespace here
//! has, which real class a virtual one, and whether a volume is answered before
//! it is bound. How the cluster is reached is not said here.

use std::collections::BTreeMap;

use crate::{
    topology::{LabelSelector, Node},
    volume::{AccessMode, BindingPolicy, ClusterId, SpecError, mark},
};

/// Which nodes of the home cluster stand for a remote one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRule {
    /// Those with these labels.
    Labels(LabelSelector),
    /// Those with this annotation.
    Annotation {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
    },
}

impl NodeRule {
    /// Whether the node stands for the cluster.
    #[must_use]
    pub fn admits(&self, node: &Node) -> bool {
        match self {
            // One that is empty would take every node for a virtual one.
            Self::Labels(selector) => !selector.0.is_empty() && selector.admits(&node.labels),
            Self::Annotation { key, value } => node.annotations.get(key) == Some(value),
        }
    }
}

/// What became of a namespace in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// It is this one.
    To(String),
    /// It is not there (yet), for this reason.
    Not(String),
}

/// Which namespace of a remote cluster a namespace here has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Those that are spelt out.
    pub mapping: BTreeMap<String, Mapped>,
    /// Whether all others have the same name there.
    pub same_name: bool,
}

/// Why a namespace has none in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the namespace {namespace} is not offloaded to the cluster {cluster}{}", because(.why.as_deref()))]
pub struct Unmapped {
    /// The namespace here.
    pub namespace: String,
    /// The remote cluster.
    pub cluster: ClusterId,
    /// What the fabric says about it.
    pub why: Option<String>,
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(
        || ": offload it there, or let the pod run elsewhere".to_owned(),
        |why| format!(" yet: {why}"),
    )
}

impl Namespaces {
    /// The namespace that this one has in a remote cluster.
    pub fn remote<'a>(&'a self, namespace: &'a str, cluster: &ClusterId) -> Result<&'a str, Unmapped> {
        let unmapped = |why: Option<&String>| Unmapped {
            namespace: namespace.to_owned(),
            cluster: cluster.clone(),
            why: why.cloned(),
        };
        match self.mapping.get(namespace) {
            Some(Mapped::To(remote)) => Ok(remote),
            Some(Mapped::Not(why)) => Err(unmapped(Some(why))),
            None if self.same_name => Ok(namespace),
            None => Err(unmapped(None)),
        }
    }

    /// The remote namespaces that are spelt out.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.mapping.values().filter_map(|mapped| match mapped {
            Mapped::To(remote) => Some(remote.as_str()),
            Mapped::Not(_) => None,
        })
    }
}

/// Which real class of a remote cluster a virtual class gets there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassMap {
    /// By the name of the virtual class.
    pub mapping: BTreeMap<String, String>,
    /// For all others.
    pub default: Option<String>,
    /// Which attributes class there one named here becomes, if not the one of that name.
    pub attributes: BTreeMap<String, String>,
    /// Which snapshot class there a real snapshot class that is named here becomes.
    pub snapshots: BTreeMap<String, String>,
}

impl ClassMap {
    /// The real class for a virtual one, if the map says.
    #[must_use]
    pub fn real(&self, virtual_class: Option<&str>) -> Option<&str> {
        let named = virtual_class.and_then(|name| self.mapping.get(name));
        named.or(self.default.as_ref()).map(String::as_str)
    }
}

/// A fabric that declares clusters, as far as it matters here. Which there are is known to
/// `fleet` alone.
#[derive(Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Its name.
    pub name: &'static str,
    /// Annotations of its own by which claims name a real class.
    pub class_annotations: &'static [&'static str],
    /// If the object that declares a cluster names the default class there: what that takes.
    pub default_class: Option<&'static str>,
    /// If it copies claims into its clusters: how such a copy is known.
    pub copies: Option<CopiedClaims>,
    /// Whether a virtual node may represent the one node of its cluster that has the same name.
    pub mirrors_nodes: bool,
}

/// How a claim is known that a fabric copied into a remote cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct CopiedClaims {
    /// Annotation of a copy, with the value `true`. The fabric writes changes of a claim that bears
    /// it onto the claim at home.
    pub mark: &'static str,
    /// Annotation of a copy: the clusters, separated by commas, that the claim was copied to.
    pub clusters: &'static str,
}

impl CopiedClaims {
    /// Whether the annotations are those of a copy that was made in this cluster. One that this
    /// driver removes no longer bears the fabric's mark.
    #[must_use]
    pub fn made(&self, annotations: &BTreeMap<String, String>, cluster: &ClusterId) -> bool {
        let clusters = annotations.get(self.clusters).map_or("", String::as_str);
        let marked = annotations.get(self.mark).is_some_and(|value| value == "true");
        let owned = clusters.split(',').any(|one| one == cluster.as_str());
        owned && (marked || annotations.contains_key(mark::COPY_REMOVED))
    }
}

/// A remote cluster as it was declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its id.
    pub id: ClusterId,
    /// The fabric that declared it; `None` if an administrator did.
    pub fabric: Option<&'static Fabric>,
    /// The object that did, as kind and name.
    pub object: String,
    /// The nodes that stand for it.
    pub nodes: NodeRule,
    /// Its namespaces.
    pub namespaces: Namespaces,
    /// Its classes.
    pub classes: ClassMap,
    /// When its volumes are answered for, unless the class says otherwise.
    pub policy: BindingPolicy,
    /// Whether twins there get our finalizer, where we can rescue their data.
    pub protect: bool,
    /// What Liqo there calls the home cluster. Its identity may not make pods, but `ShadowPod`s,
    /// which have to say this. `None` where pods are made as such.
    pub shadow_pods_of: Option<String>,
}

/// What an administrator may say of a cluster, whoever declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustments {
    /// Its classes. They go before the one that the fabric names.
    pub classes: ClassMap,
    /// As in [`Declared`].
    pub policy: BindingPolicy,
    /// As in [`Declared`].
    pub protect: bool,
}

impl Declared {
    /// The same cluster with what an administrator says of it.
    #[must_use]
    pub fn adjusted(mut self, by: Adjustments) -> Self {
        let named_by_fabric = self.classes.default.take();
        self.classes = by.classes;
        self.classes.default = self.classes.default.or(named_by_fabric);
        (self.policy, self.protect) = (by.policy, by.protect);
        self
    }
}

/// Who stands behind a node of the home cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind<'a, D = Declared> {
    /// Nobody: it is a real node.
    Itself,
    /// This cluster.
    Remote(&'a D),
    /// Several claim it: nothing is done there until that is resolved.
    Disputed(Vec<&'a ClusterId>),
}

/// Finds out who stands behind a node.
pub fn behind<'a>(node: &Node, declared: impl IntoIterator<Item = &'a Declared>) -> Behind<'a> {
    let all: Vec<&Declared> = declared
        .into_iter()
        .filter(|one| one.nodes.admits(node))
        .collect();
    match all.as_slice() {
        [] => Behind::Itself,
        [one] => Behind::Remote(one),
        many => Behind::Disputed(many.iter().map(|one| &one.id).collect()),
    }
}

/// Reads Liqo's annotation `liqo.io/remote-access-modes`: modes in short or in
/// full, separated by commas.
pub fn access_modes(text: &str) -> Result<Vec<AccessMode>, SpecError> {
    let mode = |word: &str| match word.trim() {
        "RWO" => Ok(AccessMode::ReadWriteOnce),
        "ROX" => Ok(AccessMode::ReadOnlyMany),
        "RWX" => Ok(AccessMode::ReadWriteMany),
        "RWOP" => Ok(AccessMode::ReadWriteOncePod),
        long => long.parse(),
    };
    text.split(',').map(mode).collect()
}

#[cfg(any(test, feature = "testkit"))]
#[allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "only tests call it"
)]
impl Declared {
    /// A cluster of which no more is said than must be, behind the nodes that are
    /// labelled `to` with its id.
    #[must_use]
    pub fn plain(id: &str) -> Self {
        Self {
            id: id.parse().unwrap(),
            fabric: None,
            object: format!("RemoteCluster {id}"),
            nodes: NodeRule::Labels(LabelSelector(vec![crate::topology::Requirement::is_in(
                "to",
                [id],
            )])),
            namespaces: Namespaces::default(),
            classes: ClassMap::default(),
            policy: BindingPolicy::Optimistic,
            protect: true,
            shadow_pods_of: None,
        }
    }

    /// The same, with namespaces of the same names.
    #[must_use]
    pub fn with_same_names(id: &str) -> Self {
        Self {
            namespaces: Namespaces {
                same_name: true,
                ..Namespaces::default()
            },
            ..Self::plain(id)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Requirement;

    fn cluster(id: &str, label: &str) -> Declared {
        Declared {
            nodes: NodeRule::Labels(LabelSelector(vec![Requirement::is_in("behind", [label])])),
            ..Declared::plain(id)
        }
    }

    fn node(label: &str) -> Node {
        Node {
            labels: [("behind".to_owned(), label.to_owned())].into(),
            ..Node::default()
        }
    }

    #[test]
    fn a_node_stands_for_one_cluster_or_is_disputed() {
        let declared = [cluster("a", "a"), cluster("b", "b"), cluster("b2", "b")];
        assert!(matches!(behind(&node("x"), &declared), Behind::Itself));
        assert!(matches!(behind(&node("a"), &declared), Behind::Remote(one) if one.id.as_str() == "a"));
        assert!(matches!(behind(&node("b"), &declared), Behind::Disputed(two) if two.len() == 2));
    }

    #[test]
    fn an_administrators_class_goes_before_the_one_of_the_fabric() {
        let found = Declared {
            classes: ClassMap {
                default: Some("fabric".into()),
                ..ClassMap::default()
            },
            ..Declared::plain("milan")
        };
        let class = |mapping: &[(&str, &str)], default: Option<&str>| {
            let mapping = mapping.iter().map(|&(a, b)| (a.to_owned(), b.to_owned()));
            let adjusted = found.clone().adjusted(Adjustments {
                classes: ClassMap {
                    mapping: mapping.collect(),
                    default: default.map(str::to_owned),
                    ..ClassMap::default()
                },
                policy: BindingPolicy::WaitForBound,
                protect: false,
            });
            assert_eq!(
                (adjusted.policy, adjusted.protect),
                (BindingPolicy::WaitForBound, false)
            );
            adjusted.classes.real(Some("liqo")).map(str::to_owned)
        };
        assert_eq!(class(&[], None).as_deref(), Some("fabric"));
        assert_eq!(class(&[], Some("mine")).as_deref(), Some("mine"));
        assert_eq!(class(&[("liqo", "mapped")], None).as_deref(), Some("mapped"));
    }

    #[test]
    fn an_empty_selector_selects_nothing() {
        assert!(!NodeRule::Labels(LabelSelector(Vec::new())).admits(&node("a")));
    }

    #[test]
    fn annotations_tell_as_well() {
        let rule = NodeRule::Annotation {
            key: "k".into(),
            value: "v".into(),
        };
        let mut node = node("x");
        assert!(!rule.admits(&node));
        node.annotations.insert("k".into(), "v".into());
        assert!(rule.admits(&node));
    }

    #[test]
    fn namespaces_are_mapped_named_alike_or_not_offloaded() {
        let id: ClusterId = "a".parse().unwrap();
        let mut namespaces = Namespaces {
            mapping: [
                ("shop".to_owned(), Mapped::To("shop-home".into())),
                ("new".to_owned(), Mapped::Not("CreationLoopBackOff".into())),
            ]
            .into(),
            same_name: false,
        };
        assert_eq!(namespaces.remote("shop", &id), Ok("shop-home"));
        let message = |name: &str| namespaces.remote(name, &id).unwrap_err().to_string();
        assert!(message("new").contains("CreationLoopBackOff"));
        assert!(message("other").contains("not offloaded"));
        assert_eq!(namespaces.named().collect::<Vec<_>>(), ["shop-home"]);
        namespaces.same_name = true;
        assert_eq!(namespaces.remote("other", &id), Ok("other"));
    }

    #[test]
    fn classes_are_mapped_by_name_or_by_default() {
        let mut classes = ClassMap {
            mapping: [("liqo".to_owned(), "fast".to_owned())].into(),
            ..ClassMap::default()
        };
        assert_eq!(classes.real(Some("liqo")), Some("fast"));
        assert_eq!(classes.real(Some("other")), None);
        classes.default = Some("slow".into());
        assert_eq!(classes.real(Some("other")), Some("slow"));
        assert_eq!(classes.real(None), Some("slow"));
    }

    #[test]
    fn access_modes_are_read_in_short_and_in_full() {
        use AccessMode::{ReadWriteMany, ReadWriteOnce};
        assert_eq!(
            access_modes("RWO, ReadWriteMany"),
            Ok(vec![ReadWriteOnce, ReadWriteMany])
        );
        for odd in ["", "RWO,", "rwo", "X"] {
            assert!(access_modes(odd).is_err(), "{odd}");
        }
    }
}
