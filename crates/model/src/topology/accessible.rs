//! From the affinity of a twin's PV to the accessible topology of a CSI volume.
//!
//! CSI topology knows only equality: a volume is accessible from a place if each of its keys has the one
//! value. A node affinity is more expressive, so it is expanded:
//!
//! ```text
//! zone In [a, b]              →  {cluster, zone: a} or {cluster, zone: b}
//! zone Exists                 →  one place for each zone that the matching nodes are in
//! host NotIn [x], name In [n] →  one place for each node that matches now
//! ```
//!
//! The result is never wider than the affinity. It is narrower where equality can only name what exists now:
//! a volume offered to too few nodes costs a pod some choice, one offered to too many may cost a user the
//! data.

use std::collections::{BTreeMap, BTreeSet};

use super::{CLUSTER_KEY, Labels, NODE_KEY, Node, NodeSelector, Operator, Segments, Term};
use crate::volume::ClusterId;

/// Places that a PV may list. With more its affinity would burden the scheduler and, with long names, exceed
/// the size limit of etcd.
pub const MAX_TOPOLOGIES: usize = 512;

/// Why an affinity has no accessible topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// No node can access the volume.
    #[error("the node affinity of the volume matches none of the {0} nodes of the cluster")]
    NoNode(usize),
    /// The nodes exist, but have no topology labels of this driver that the scheduler could match.
    #[error(
        "the node affinity of the volume matches {}, but this driver is not registered there: check whether its node plugin runs",
        .0.join(", ")
    )]
    NotRegistered(Vec<String>),
    #[error("the node affinity of the volume expands to more than {MAX_TOPOLOGIES} topologies")]
    TooManyPlaces,
}

/// The places from which a volume with this affinity is accessible, within its cluster.
///
/// `nodes` are the current real nodes of that cluster. Without an affinity the volume is accessible from the
/// whole cluster, whatever its nodes.
pub fn accessible(
    cluster: &ClusterId,
    affinity: Option<&NodeSelector>,
    nodes: &[Node],
) -> Result<Vec<Segments>, AffinityError> {
    let anywhere = Segments::of_cluster(cluster);
    let Some(affinity) = affinity else {
        return Ok(vec![anywhere]);
    };
    let matching: Vec<&Node> = nodes.iter().filter(|node| affinity.admits(node)).collect();
    if matching.is_empty() {
        return Err(AffinityError::NoNode(nodes.len()));
    }

    let mut places = BTreeSet::new();
    for term in &affinity.terms {
        let inside: Vec<&Node> = matching
            .iter()
            .copied()
            .filter(|node| term.admits(node))
            .collect();
        places.extend(places_of(term, &inside, &anywhere)?);
        if places.len() > MAX_TOPOLOGIES {
            return Err(AffinityError::TooManyPlaces);
        }
    }

    let reached = |node: &&Node| places.iter().any(|place| place.admits(&node.labels));
    if !matching.iter().any(reached) {
        let names = matching.iter().take(5).map(|node| node.name.clone()).collect();
        return Err(AffinityError::NotRegistered(names));
    }
    Ok(places.into_iter().collect())
}

/// The part of the accessible places that a request allows; empty if none. `nodes` are the nodes of the
/// cluster: a place without any forbidden node is kept unchanged.
///
/// # Errors
/// [`AffinityError::TooManyPlaces`].
pub fn allowed(
    accessible: &[Segments],
    requisite: &[Segments],
    nodes: &[Node],
) -> Result<Vec<Segments>, AffinityError> {
    let is_allowed = |node: &&Node| requisite.iter().any(|asked| asked.admits(&node.labels));
    let forbidden: Vec<&Node> = nodes.iter().filter(|node| !is_allowed(node)).collect();
    let mut places = BTreeSet::new();
    let is_somewhere = |place: &Segments| nodes.iter().any(|node| place.admits(&node.labels));
    for place in accessible {
        if forbidden.iter().any(|node| place.admits(&node.labels)) {
            let both = requisite.iter().filter_map(|asked| place.and(asked));
            places.extend(both.filter(is_somewhere));
        } else if is_somewhere(place) {
            places.insert(place.clone());
        }
        if places.len() > MAX_TOPOLOGIES {
            return Err(AffinityError::TooManyPlaces);
        }
    }
    Ok(places.into_iter().collect())
}

/// The places of one term; `inside` are the nodes it matches.
fn places_of(term: &Term, inside: &[&Node], anywhere: &Segments) -> Result<Vec<Segments>, AffinityError> {
    match equalities(term, inside) {
        Some(choices) => product(&choices, anywhere),
        None => Ok(inside
            .iter()
            .filter_map(|node| place_of(node, anywhere))
            .collect()),
    }
}

/// The place of one registered node.
fn place_of(node: &Node, anywhere: &Segments) -> Option<Segments> {
    let value = node.labels.get(NODE_KEY)?;
    Some(anywhere.clone().with(NODE_KEY, value.clone()))
}

/// The values each key may have, if equality can express the term.
fn equalities<'a>(term: &'a Term, inside: &[&'a Node]) -> Option<BTreeMap<&'a str, BTreeSet<&'a str>>> {
    if !term.fields.is_empty() || term.expressions.is_empty() {
        return None;
    }
    let mut choices: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in &term.expressions {
        let values: BTreeSet<&str> = if one.operator == Operator::In {
            one.values.iter().map(String::as_str).collect()
        } else {
            // Other operators allow only the values that nodes have now.
            values_on(inside, &one.key)?
        };
        choices
            .entry(&one.key)
            .and_modify(|before| before.retain(|value| values.contains(value)))
            .or_insert(values);
    }
    Some(choices)
}

/// The values of a label on these nodes; `None` if one of them lacks it.
fn values_on<'a>(nodes: &[&'a Node], key: &str) -> Option<BTreeSet<&'a str>> {
    let value = |node: &&'a Node| value_of(&node.labels, key);
    nodes.iter().map(value).collect()
}

fn value_of<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    labels.get(key).map(String::as_str)
}

/// All combinations of the choices, within the cluster.
fn product(
    choices: &BTreeMap<&str, BTreeSet<&str>>,
    anywhere: &Segments,
) -> Result<Vec<Segments>, AffinityError> {
    let mut places = vec![anywhere.clone()];
    for (&key, values) in choices {
        let within = |value: &&&str| key != CLUSTER_KEY || anywhere.get(CLUSTER_KEY) == Some(**value);
        let values: Vec<&&str> = values.iter().filter(within).collect();
        if places.len() * values.len() > MAX_TOPOLOGIES {
            return Err(AffinityError::TooManyPlaces);
        }
        places = places
            .iter()
            .flat_map(|place| values.iter().map(|&&value| place.clone().with(key, value)))
            .collect();
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;
    use crate::topology::Requirement;

    fn home() -> ClusterId {
        "home".parse().unwrap()
    }

    #[test]
    fn accessible_topologies_are_limited_to_the_requested_ones() {
        let cluster = [Segments::of_cluster(&home())];
        let at = |name: &str| Segments::of_node(&home(), name);
        let zone = |zone: &str| Segments::of_cluster(&home()).with("zone", zone);
        let nodes = [node("a", Some("x")), node("b", Some("x")), node("c", Some("y"))];
        let allowed =
            |accessible: &[Segments], requisite: &[Segments]| allowed(accessible, requisite, &nodes);
        assert_eq!(allowed(&cluster, &[at("b"), at("a")]), Ok(vec![at("a"), at("b")]));
        assert_eq!(allowed(&[at("a"), at("b")], &[at("b")]), Ok(vec![at("b")]));
        assert_eq!(allowed(&[at("a")], &[at("b")]), Ok(vec![]));
        // No forbidden node is in that zone.
        assert_eq!(allowed(&[zone("y")], &[at("b"), at("c")]), Ok(vec![zone("y")]));
        assert_eq!(
            allowed(&[zone("x")], &[at("b"), at("c")]),
            Ok(vec![at("b").with("zone", "x")])
        );

        let many: Vec<Node> = (0..=MAX_TOPOLOGIES + 1)
            .map(|n| node(&format!("n{n}"), None))
            .collect();
        let all_but_one: Vec<_> = many[1..].iter().map(|node| at(&node.name)).collect();
        assert_eq!(
            super::allowed(&cluster, &all_but_one, &many),
            Err(AffinityError::TooManyPlaces)
        );
    }

    /// A node with our plugin on it, in a zone.
    fn node(name: &str, zone: Option<&str>) -> Node {
        let mut labels = Segments::of_node(&home(), name);
        if let Some(zone) = zone {
            labels = labels.with("zone", zone);
        }
        Node {
            name: name.to_owned(),
            labels: labels.into_map(),
            ..Node::default()
        }
    }

    fn one(key: &str, operator: Operator, values: &[&str]) -> Requirement {
        Requirement {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        }
    }

    fn expanded(expressions: &[Requirement], nodes: &[Node]) -> Result<Vec<String>, AffinityError> {
        let term = Term {
            expressions: expressions.to_vec(),
            fields: Vec::new(),
        };
        let affinity = NodeSelector { terms: vec![term] };
        let places = accessible(&home(), Some(&affinity), nodes)?;
        Ok(places
            .iter()
            .map(|place| place.to_string().replace("topology.storage.liqo.io/", ""))
            .collect())
    }

    #[test]
    fn a_volume_without_affinity_is_accessible_in_its_whole_cluster() {
        assert_eq!(
            accessible(&home(), None, &[]),
            Ok(vec![Segments::of_cluster(&home())])
        );
    }

    #[test]
    fn requirements_by_equality_become_one_topology_per_value() {
        use Operator::In;
        let nodes = [node("n1", Some("a")), node("n2", Some("b"))];
        let zones = one("zone", In, &["b", "a", "c"]);
        assert_eq!(
            expanded(std::slice::from_ref(&zones), &nodes).unwrap(),
            [
                "cluster=home,zone=a",
                "cluster=home,zone=b",
                "cluster=home,zone=c"
            ]
        );
        // Both requirements on one key must be met.
        assert_eq!(
            expanded(&[zones, one("zone", In, &["a", "d"])], &nodes).unwrap(),
            ["cluster=home,zone=a"]
        );
    }

    #[test]
    fn other_requirements_are_expanded_to_the_current_nodes() {
        use Operator::{Exists, NotIn};
        let nodes = [node("n1", Some("a")), node("n2", Some("b")), node("n3", None)];
        assert_eq!(
            expanded(&[one("zone", Exists, &[])], &nodes).unwrap(),
            ["cluster=home,zone=a", "cluster=home,zone=b"]
        );
        assert_eq!(
            expanded(&[one("zone", NotIn, &["b"])], &nodes).unwrap(),
            ["cluster=home,node=n1", "cluster=home,node=n3"]
        );
    }

    #[test]
    fn requirements_on_the_node_name_become_node_topologies() {
        let fields = vec![one("metadata.name", Operator::In, &["n2"])];
        let affinity = NodeSelector {
            terms: vec![Term {
                expressions: Vec::new(),
                fields,
            }],
        };
        let nodes = [node("n1", None), node("n2", None)];
        assert_eq!(
            accessible(&home(), Some(&affinity), &nodes),
            Ok(vec![Segments::of_node(&home(), "n2")])
        );
    }

    #[test]
    fn another_cluster_is_never_reached() {
        let elsewhere = one(CLUSTER_KEY, Operator::In, &["away", "home"]);
        assert_eq!(
            expanded(&[elsewhere], &[node("n1", None)]).unwrap(),
            ["cluster=home"]
        );
    }

    #[test]
    fn an_affinity_that_matches_no_usable_node_is_an_error() {
        use Operator::{Exists, In};
        let nodes = [node("n1", Some("a"))];
        assert_eq!(
            expanded(&[one("zone", In, &["b"])], &nodes),
            Err(AffinityError::NoNode(1))
        );
        assert_eq!(expanded(&[], &nodes), Err(AffinityError::NoNode(1)));

        let mut bare = node("n2", Some("b"));
        bare.labels.remove(CLUSTER_KEY);
        assert_eq!(
            expanded(&[one("zone", Exists, &[])], &[bare]),
            Err(AffinityError::NotRegistered(vec!["n2".into()]))
        );
    }

    #[test]
    fn the_number_of_topologies_is_limited() {
        let many = |key: &str| Requirement::is_in(key, (0..30).map(|n| n.to_string()));
        let mut busy = node("n1", None);
        busy.labels.insert("a".into(), "1".into());
        busy.labels.insert("b".into(), "1".into());
        assert_eq!(
            expanded(&[many("a"), many("b")], &[busy]),
            Err(AffinityError::TooManyPlaces)
        );
    }

    fn any_requirement() -> impl Strategy<Value = Requirement> {
        use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
        let operator = select(vec![In, In, In, NotIn, Exists, DoesNotExist, Gt, Lt]);
        (
            select(vec!["zone", "disk", NODE_KEY, CLUSTER_KEY]),
            operator,
            vec(any_value(), 0..3),
        )
            .prop_map(|(key, operator, mut values)| {
                match operator {
                    Exists | DoesNotExist => values.clear(),
                    Gt | Lt => values.truncate(1),
                    In | NotIn => {}
                }
                Requirement {
                    key: key.to_owned(),
                    operator,
                    values,
                }
            })
    }

    fn any_value() -> impl Strategy<Value = String> {
        select(vec!["1", "2", "3", "n1", "home", "away"]).prop_map(str::to_owned)
    }

    fn any_term() -> impl Strategy<Value = Term> {
        let field = (select(vec![Operator::In, Operator::NotIn]), "n[1-4]")
            .prop_map(|(operator, name)| one("metadata.name", operator, &[&name]));
        (vec(any_requirement(), 0..4), vec(field, 0..2))
            .prop_map(|(expressions, fields)| Term { expressions, fields })
    }

    fn any_selector() -> impl Strategy<Value = NodeSelector> {
        vec(any_term(), 0..4).prop_map(|terms| NodeSelector { terms })
    }

    fn label() -> impl Strategy<Value = Option<String>> {
        proptest::option::of("[1-3]")
    }

    /// Up to six registered nodes with distinct names and any zone and disk.
    fn any_nodes() -> impl Strategy<Value = Vec<Node>> {
        vec((label(), label()), 1..7).prop_map(|labels| {
            let named = |(n, (zone, disk)): (usize, (Option<String>, Option<String>))| {
                let mut node = node(&format!("n{n}"), zone.as_deref());
                node.labels.extend(disk.map(|disk| ("disk".to_owned(), disk)));
                node
            };
            labels.into_iter().enumerate().map(named).collect()
        })
    }

    fn only_equality(affinity: &NodeSelector) -> bool {
        let equality = |term: &Term| {
            term.fields.is_empty() && term.expressions.iter().all(|one| one.operator == Operator::In)
        };
        affinity.terms.iter().all(equality)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Compares with a brute-force evaluation of the affinity: any node, even one that is added later, is
        /// admitted only if the affinity matches it; and no current node is left out.
        #[test]
        fn topologies_admit_only_nodes_that_the_affinity_admits(affinity in any_selector(), now in any_nodes(), later in any_nodes()) {
            let Ok(places) = accessible(&home(), Some(&affinity), &now) else {
                prop_assert!(!now.iter().any(|node| affinity.admits(node)));
                return Ok(());
            };
            let reached = |node: &Node| places.iter().any(|place| place.admits(&node.labels));
            for node in &now {
                prop_assert_eq!(reached(node), affinity.admits(node), "{}", node.name);
            }
            // Equality cannot exclude a node that returns under its name with other labels.
            for node in later.iter().skip(now.len()) {
                prop_assert!(!reached(node) || affinity.admits(node), "{}", node.name);
            }
            if only_equality(&affinity) {
                for node in &later {
                    prop_assert_eq!(reached(node), affinity.admits(node), "{}", node.name);
                }
            }
        }
    }
}
