//! The selectors of Kubernetes for labels and nodes, evaluated like the scheduler. A selector that the
//! scheduler would reject matches nothing: an unknown feature must never widen the set of nodes that a volume
//! is accessible from.

use std::{collections::BTreeMap, str::FromStr};

use super::{NODE_KEY, node_value};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

const LONGEST_LABEL: usize = 63;

/// Whether it is a valid label key without a prefix, or a valid label value.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let edge = |it: char| it.is_ascii_alphanumeric();
    text.len() <= LONGEST_LABEL
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|it| edge(it) || matches!(it, '-' | '_' | '.'))
}

const NAME_FIELD: &str = "metadata.name";

/// A node, as far as the scheduler needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: Labels,
    /// The annotations by which fabrics record which cluster the node represents.
    pub annotations: Labels,
}

impl Node {
    /// Whether its kubelet has registered this driver: then it is a real node, whatever its other labels. A
    /// node with a copied label of another one does not count.
    #[must_use]
    pub fn has_driver(&self) -> bool {
        self.labels.get(NODE_KEY) == Some(&node_value(&self.name))
    }
}

/// How a requirement compares a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// One of the values.
    In,
    /// None of the values, or no such key.
    NotIn,
    /// The key, whatever its value.
    Exists,
    /// No such key.
    DoesNotExist,
    /// An integer above the value.
    Gt,
    /// An integer below the value.
    Lt,
}

/// An operator that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown selector operator {0:?}")]
pub struct UnknownOperator(String);

impl FromStr for Operator {
    type Err = UnknownOperator;

    fn from_str(text: &str) -> Result<Self, UnknownOperator> {
        Ok(match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            _ => return Err(UnknownOperator(text.to_owned())),
        })
    }
}

/// One condition on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    /// How its value is compared.
    pub operator: Operator,
    pub values: Vec<String>,
}

impl Requirement {
    /// A requirement that the key has one of these values.
    pub fn is_in<V: Into<String>>(key: impl Into<String>, values: impl IntoIterator<Item = V>) -> Self {
        Self {
            key: key.into(),
            operator: Operator::In,
            values: values.into_iter().map(Into::into).collect(),
        }
    }

    /// Whether these labels meet the requirement.
    #[must_use]
    pub fn admits(&self, labels: &Labels) -> bool {
        self.is_valid() && self.admits_value(labels.get(&self.key).map(String::as_str))
    }

    fn admits_value(&self, found: Option<&str>) -> bool {
        let listed = |found| self.values.iter().any(|value| value == found);
        match self.operator {
            Operator::In => found.is_some_and(listed),
            Operator::NotIn => !found.is_some_and(listed),
            Operator::Exists => found.is_some(),
            Operator::DoesNotExist => found.is_none(),
            Operator::Gt => self.compares(found, |found, bound| found > bound),
            Operator::Lt => self.compares(found, |found, bound| found < bound),
        }
    }

    fn compares(&self, found: Option<&str>, holds: impl Fn(i64, i64) -> bool) -> bool {
        let found = found.and_then(|found| found.parse().ok());
        let bound = self.values.first().and_then(|bound| bound.parse().ok());
        found.zip(bound).is_some_and(|(found, bound)| holds(found, bound))
    }

    fn is_valid(&self) -> bool {
        let (prefix, name) = self.key.split_once('/').unwrap_or(("", &self.key));
        let number = match self.operator {
            Operator::In | Operator::NotIn => !self.values.is_empty(),
            Operator::Exists | Operator::DoesNotExist => self.values.is_empty(),
            Operator::Gt | Operator::Lt => self.values.len() == 1,
        };
        // An API server refuses pods whose affinity has other keys or values.
        let parts = prefix
            .split('.')
            .chain([name])
            .chain(self.values.iter().map(String::as_str));
        number && !name.is_empty() && parts.into_iter().all(|part| part.is_empty() || is_label(part))
    }

    /// For fields, Kubernetes supports only the name with a single value.
    fn admits_field(&self, node: &Node) -> bool {
        self.key == NAME_FIELD
            && self.values.len() == 1
            && matches!(self.operator, Operator::In | Operator::NotIn)
            && self.admits_value(Some(&node.name))
    }
}

/// Requirements that must all be met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// On labels.
    pub expressions: Vec<Requirement>,
    /// On fields of the node.
    pub fields: Vec<Requirement>,
}

impl Term {
    /// Whether a node meets the term. A term without requirements matches no node.
    #[must_use]
    pub fn admits(&self, node: &Node) -> bool {
        let empty = self.expressions.is_empty() && self.fields.is_empty();
        !empty
            && self.expressions.iter().all(|one| one.admits(&node.labels))
            && self.fields.iter().all(|one| one.admits_field(node))
    }
}

/// Terms, at least one of which must be met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelector {
    pub terms: Vec<Term>,
}

impl NodeSelector {
    #[must_use]
    pub fn admits(&self, node: &Node) -> bool {
        self.terms.iter().any(|term| term.admits(node))
    }
}

/// Requirements on labels that must all be met; without any it matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(pub Vec<Requirement>);

impl LabelSelector {
    #[must_use]
    pub fn admits(&self, labels: &Labels) -> bool {
        self.0.iter().all(|one| one.admits(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        let labels = [("zone", "a"), ("cores", "8"), ("size", "big")];
        Node {
            name: "worker-1".into(),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Node::default()
        }
    }

    fn requirement(key: &str, operator: Operator, values: &[&str]) -> Requirement {
        Requirement {
            key: key.into(),
            operator,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        }
    }

    #[test]
    fn each_label_operator_is_evaluated_as_in_kubernetes() {
        use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
        let cases: &[(&str, Operator, &[&str], bool)] = &[
            ("zone", In, &["a", "b"], true),
            ("zone", In, &["b"], false),
            ("disk", In, &["a"], false),
            ("zone", NotIn, &["b"], true),
            ("zone", NotIn, &["a"], false),
            ("disk", NotIn, &["a"], true),
            ("zone", Exists, &[], true),
            ("disk", Exists, &[], false),
            ("disk", DoesNotExist, &[], true),
            ("zone", DoesNotExist, &[], false),
            ("cores", Gt, &["7"], true),
            ("cores", Gt, &["8"], false),
            ("cores", Lt, &["9"], true),
            ("cores", Lt, &["8"], false),
            ("size", Gt, &["1"], false),
            ("disk", Lt, &["1"], false),
            ("cores", Gt, &["few"], false),
        ];
        for &(key, operator, values, admitted) in cases {
            let one = requirement(key, operator, values);
            assert_eq!(one.admits(&node().labels), admitted, "{one:?}");
        }
    }

    #[test]
    fn requirements_that_kubernetes_rejects_admit_no_node() {
        use Operator::{DoesNotExist, Exists, Gt, In, NotIn};
        let long = "a".repeat(64);
        for (key, operator, values) in [
            ("zone", In, &[] as &[&str]),
            ("disk", NotIn, &[]),
            ("zone", Exists, &["a"]),
            ("disk", DoesNotExist, &["a"]),
            ("cores", Gt, &["1", "2"]),
            ("disk", NotIn, &["no value"]),
            ("disk", NotIn, &["-1"]),
            ("disk", NotIn, &[long.as_str()]),
            ("no key", DoesNotExist, &[]),
            ("example.test/", DoesNotExist, &[]),
            ("example.test/a/b", DoesNotExist, &[]),
        ] {
            let one = requirement(key, operator, values);
            assert!(!one.admits(&node().labels), "{one:?}");
        }
        let valid = requirement("example.test/a_b.C", NotIn, &["", "a_b.C"]);
        assert!(valid.admits(&node().labels));
        assert!("Like".parse::<Operator>().is_err());
    }

    #[test]
    fn field_requirements_match_only_the_node_name() {
        use Operator::{Exists, In, NotIn};
        let admits = |one: Requirement| {
            Term {
                expressions: Vec::new(),
                fields: vec![one],
            }
            .admits(&node())
        };
        assert!(admits(requirement("metadata.name", In, &["worker-1"])));
        assert!(!admits(requirement("metadata.name", In, &["worker-2"])));
        assert!(admits(requirement("metadata.name", NotIn, &["worker-2"])));
        assert!(!admits(requirement(
            "metadata.name",
            In,
            &["worker-1", "worker-2"]
        )));
        assert!(!admits(requirement("metadata.name", Exists, &[])));
        assert!(!admits(requirement("spec.name", NotIn, &["x"])));
    }

    #[test]
    fn terms_are_alternatives_and_empty_terms_match_no_node() {
        let zone = |zone: &str| Term {
            expressions: vec![Requirement::is_in("zone", [zone])],
            fields: Vec::new(),
        };
        let selects = |terms: Vec<Term>| NodeSelector { terms }.admits(&node());
        assert!(selects(vec![zone("b"), zone("a")]));
        assert!(!selects(vec![zone("b"), Term::default()]));
        assert!(!selects(Vec::new()));
        assert!(LabelSelector::default().admits(&node().labels));
    }
}
