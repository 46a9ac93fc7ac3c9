//! A pod that waits for its volumes, and on which nodes its spec allows it: node selector, node affinity,
//! taints. Resources and everything else are left to the scheduler.

use crate::topology::{Labels, Node, NodeSelector};

/// A pod that has no node yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consumer {
    pub namespace: String,
    pub name: String,
    /// The claims it waits for, in its namespace.
    pub claims: Vec<String>,
    /// The labels its node must have.
    pub node_labels: Labels,
    /// The nodes its affinity requires.
    pub affinity: Option<NodeSelector>,
    /// The taints it tolerates.
    pub tolerations: Vec<Toleration>,
}

/// A taint of a node that keeps pods away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    /// Its effect on pods that do not tolerate it.
    pub effect: String,
}

/// The taints that a pod tolerates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    /// Those with this key; `None` means all.
    pub key: Option<String>,
    /// Those with this value; `None` means any.
    pub value: Option<String>,
    /// Those with this effect; `None` means any.
    pub effect: Option<String>,
}

impl Taint {
    /// The taint of every cordoned node.
    #[must_use]
    pub fn of_cordon() -> Self {
        Self {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        }
    }

    fn keeps_away(&self) -> bool {
        self.effect != "PreferNoSchedule"
    }
}

impl Toleration {
    fn tolerates(&self, taint: &Taint) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        is(&self.key, &taint.key) && is(&self.value, &taint.value) && is(&self.effect, &taint.effect)
    }
}

impl Consumer {
    /// Whether its node selector and its affinity match a node.
    #[must_use]
    pub fn selects(&self, node: &Node) -> bool {
        let mut labels = self.node_labels.iter();
        labels.all(|(key, value)| node.labels.get(key) == Some(value))
            && self
                .affinity
                .as_ref()
                .is_none_or(|affinity| affinity.admits(node))
    }

    /// The first of these taints that it does not tolerate.
    #[must_use]
    pub fn kept_away_by<'a>(&self, taints: &'a [Taint]) -> Option<&'a Taint> {
        let tolerated = |taint: &Taint| self.tolerations.iter().any(|one| one.tolerates(taint));
        taints
            .iter()
            .find(|taint| taint.keeps_away() && !tolerated(taint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Requirement, Term};

    fn node(name: &str) -> Node {
        Node {
            name: name.to_owned(),
            labels: [("kubernetes.io/hostname".to_owned(), name.to_owned())].into(),
            ..Node::default()
        }
    }

    #[test]
    fn selector_and_affinity_must_both_admit_a_node() {
        let mut pod = Consumer::default();
        assert!(pod.selects(&node("n1")));
        pod.node_labels = [("kubernetes.io/hostname".to_owned(), "n1".to_owned())].into();
        assert!(pod.selects(&node("n1")) && !pod.selects(&node("n2")));
        let only = |name| NodeSelector {
            terms: vec![Term {
                expressions: vec![Requirement::is_in("kubernetes.io/hostname", [name])],
                fields: Vec::new(),
            }],
        };
        pod.affinity = Some(only("n1"));
        assert!(pod.selects(&node("n1")));
        pod.affinity = Some(only("n2"));
        assert!(!pod.selects(&node("n1")) && !pod.selects(&node("n2")));
    }

    #[test]
    fn taints_exclude_pods_that_do_not_tolerate_them() {
        let taint = |effect: &str| Taint {
            key: "liqo.io/virtual".into(),
            value: "true".into(),
            effect: effect.into(),
        };
        let toleration = |key: Option<&str>, value: Option<&str>, effect: Option<&str>| Toleration {
            key: key.map(str::to_owned),
            value: value.map(str::to_owned),
            effect: effect.map(str::to_owned),
        };
        let kept_away = |tolerations: &[Toleration], effect: &str| {
            let pod = Consumer {
                tolerations: tolerations.to_vec(),
                ..Consumer::default()
            };
            pod.kept_away_by(&[taint(effect)]).is_some()
        };
        assert!(kept_away(&[], "NoSchedule") && kept_away(&[], "NoExecute"));
        assert!(!kept_away(&[], "PreferNoSchedule"));
        for (tolerated, toleration) in [
            (true, toleration(None, None, None)),
            (true, toleration(Some("liqo.io/virtual"), None, None)),
            (
                true,
                toleration(Some("liqo.io/virtual"), Some("true"), Some("NoSchedule")),
            ),
            (false, toleration(Some("liqo.io/virtual"), Some("false"), None)),
            (
                false,
                toleration(Some("liqo.io/virtual"), None, Some("NoExecute")),
            ),
            (false, toleration(Some("another"), None, None)),
        ] {
            assert_eq!(!kept_away(&[toleration], "NoSchedule"), tolerated);
        }
    }
}
