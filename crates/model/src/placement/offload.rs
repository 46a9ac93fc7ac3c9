//! A remote cluster as its fabric or an administrator declared it: its virtual nodes, its namespaces, its
//! real classes, and whether a volume is handed over before it is bound. How the cluster is reached is not
//! part of this.

use std::collections::BTreeMap;

use crate::{
    topology::{LabelSelector, Node},
    volume::{AccessMode, BindingPolicy, ClusterId, SpecError, mark},
};

/// Which nodes of the home cluster represent a remote one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRule {
    /// Nodes with these labels.
    Labels(LabelSelector),
    /// The node with this name and these labels: a kubelet may put labels on its own node.
    Named { name: String, labels: LabelSelector },
    /// Nodes with this annotation.
    Annotation { key: String, value: String },
}

impl NodeRule {
    /// Whether the node represents the cluster.
    #[must_use]
    pub fn admits(&self, node: &Node) -> bool {
        match self {
            // An empty selector would match every node.
            Self::Labels(selector) => !selector.0.is_empty() && selector.admits(&node.labels),
            Self::Named { name, labels } => node.name == *name && labels.admits(&node.labels),
            Self::Annotation { key, value } => node.annotations.get(key) == Some(value),
        }
    }
}

/// What a namespace is mapped to in a remote cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// This remote namespace.
    To(String),
    /// None (yet), for this reason.
    Not(String),
}

/// The mapping of namespaces at home to those of a remote cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// The explicit mappings.
    pub mapping: BTreeMap<String, Mapped>,
    /// Whether all other namespaces have the same name there.
    pub same_name: bool,
}

/// Why a namespace has no remote namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the namespace {namespace} is not offloaded to the cluster {cluster}{}", because(.why.as_deref()))]
pub struct Unmapped {
    /// The namespace at home.
    pub namespace: String,
    pub cluster: ClusterId,
    /// The reason that the fabric gives.
    pub why: Option<String>,
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(
        || ": offload it there, or schedule the pod elsewhere".to_owned(),
        |why| format!(" yet: {why}"),
    )
}

impl Namespaces {
    /// The remote namespace of this namespace.
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

    /// The explicitly mapped remote namespaces.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.mapping.values().filter_map(|mapped| match mapped {
            Mapped::To(remote) => Some(remote.as_str()),
            Mapped::Not(_) => None,
        })
    }
}

/// The class mapping of a remote cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassMap {
    /// The real class of each virtual class, by the names of both.
    pub mapping: BTreeMap<String, String>,
    /// The real class of all other virtual classes.
    pub default: Option<String>,
    /// The attributes class in the remote cluster for one at home, where the names differ.
    pub attributes: BTreeMap<String, String>,
    /// The snapshot class in the remote cluster for a real snapshot class at home.
    pub snapshots: BTreeMap<String, String>,
}

impl ClassMap {
    /// The real class for a virtual one, if the map has one.
    #[must_use]
    pub fn real(&self, virtual_class: Option<&str>) -> Option<&str> {
        let named = virtual_class.and_then(|name| self.mapping.get(name));
        named.or(self.default.as_ref()).map(String::as_str)
    }
}

/// The properties of a fabric that declares clusters. Only `fleet` knows which fabrics exist.
#[derive(Debug, PartialEq, Eq)]
pub struct Fabric {
    pub name: &'static str,
    /// Annotations of the fabric by which claims request a real class.
    pub class_annotations: &'static [&'static str],
    /// What names the default class in the object that declares a cluster, if it can; part of a message.
    pub default_class: Option<&'static str>,
    /// How copied claims are recognised, if the fabric copies claims into its clusters.
    pub copies: Option<CopiedClaims>,
    /// Whether a virtual node may represent the one node of its cluster that has the same name.
    pub mirrors_nodes: bool,
}

/// How to recognise a claim that a fabric copied into a remote cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct CopiedClaims {
    /// Annotation of a copy, with the value `true`. The fabric writes changes of a claim with it back to the
    /// claim at home.
    pub mark: &'static str,
    /// Annotation of a copy: the clusters, separated by commas, to which the claim was copied.
    pub clusters: &'static str,
}

impl CopiedClaims {
    /// Whether the annotations are those of a copy in this cluster. A copy that this driver removes no longer
    /// has the fabric's mark.
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
    pub id: ClusterId,
    /// The fabric that declared it; `None` if an administrator did.
    pub fabric: Option<&'static Fabric>,
    /// The object that declared it, as kind and name.
    pub object: String,
    /// Its virtual nodes.
    pub nodes: NodeRule,
    pub namespaces: Namespaces,
    pub classes: ClassMap,
    /// Its binding policy, unless the class has one.
    pub policy: BindingPolicy,
    /// Whether twins there get our finalizer, where this driver has the rights to rescue their data.
    pub protect: bool,
    /// The name of the home cluster in Liqo's remote cluster. There the identity may not create pods, but
    /// `ShadowPod`s, which must contain this name. `None` where pods are created directly.
    pub shadow_pods_of: Option<String>,
    /// The uid of its namespace kube-system, once its `RemoteCluster` records it.
    pub uid: Option<String>,
    /// The uid of its `RemoteCluster`, if that exists: another one of the same name may lead to another cluster.
    pub object_uid: Option<String>,
}

/// Settings of an administrator for a cluster, independent of what declared it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustments {
    /// Its classes. They take precedence over the one that the fabric names.
    pub classes: ClassMap,
    /// As in [`Declared`].
    pub policy: BindingPolicy,
    /// As in [`Declared`].
    pub protect: bool,
}

impl Declared {
    /// The same cluster with these settings.
    #[must_use]
    pub fn adjusted(mut self, by: Adjustments) -> Self {
        let named_by_fabric = self.classes.default.take();
        self.classes = by.classes;
        self.classes.default = self.classes.default.or(named_by_fabric);
        (self.policy, self.protect) = (by.policy, by.protect);
        self
    }
}

/// What a node of the home cluster represents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind<'a, D = Declared> {
    /// No cluster: it is a real node.
    Itself,
    /// This cluster.
    Remote(&'a D),
    /// Several clusters declare it: nothing is created there until that is resolved.
    Disputed(Vec<&'a ClusterId>),
}

/// Determines what a node represents.
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

/// Parses Liqo's annotation `liqo.io/remote-access-modes`: short or long names of modes, separated by commas.
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
    /// A cluster with defaults, represented by the nodes with its id in the label `to`.
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
            uid: None,
            object_uid: None,
        }
    }

    /// The same, with remote namespaces of the same names.
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
    fn a_node_represents_one_cluster_or_is_disputed() {
        let declared = [cluster("a", "a"), cluster("b", "b"), cluster("b2", "b")];
        assert!(matches!(behind(&node("x"), &declared), Behind::Itself));
        assert!(matches!(behind(&node("a"), &declared), Behind::Remote(one) if one.id.as_str() == "a"));
        assert!(matches!(behind(&node("b"), &declared), Behind::Disputed(two) if two.len() == 2));
    }

    #[test]
    fn a_class_of_an_administrator_takes_precedence_over_that_of_the_fabric() {
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
    fn nodes_are_selected_by_annotation() {
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
