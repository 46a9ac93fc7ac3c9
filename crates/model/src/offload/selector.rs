//! Which clusters a selector selects: terms over the labels of their virtual nodes, as the scheduler reads
//! them; how users write such terms, and which labels a cluster may suggest.

use std::collections::BTreeMap;

use crate::topology::{Node, NodeSelector, Operator, Requirement, Term, is_label};

/// Labels that a cluster may suggest.
const MOST_SUGGESTED: usize = 64;

/// A syntax error in a user's selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a selector: {why}. Example: 'region in (europe,us-west), !staging'")]
pub struct ParseError {
    text: String,
    why: &'static str,
}

/// Whether a cluster with these virtual nodes is selected: one node that meets a term is enough. Without
/// terms every cluster is. `before` is the answer while the cluster has no virtual node.
#[must_use]
pub fn selects(selector: &NodeSelector, nodes: &[&Node], before: bool) -> bool {
    selector.terms.is_empty()
        || if nodes.is_empty() {
            before
        } else {
            nodes.iter().any(|node| selector.admits(node))
        }
}

/// Parses a label selector with kubectl's syntax: one term, whose requirements must all be met.
pub fn parse(text: &str) -> Result<Term, ParseError> {
    let wrong = |why| ParseError {
        text: text.to_owned(),
        why,
    };
    let mut expressions = Vec::new();
    for part in split(text).ok_or_else(|| wrong("its brackets do not match"))? {
        expressions.push(requirement(part.trim()).ok_or_else(|| wrong("a requirement is invalid"))?);
    }
    Ok(Term {
        expressions,
        fields: Vec::new(),
    })
}

/// Splits at commas outside of brackets.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, it) in text.char_indices() {
        match it {
            '(' if inside => return None,
            '(' => inside = true,
            ')' if !inside => return None,
            ')' => inside = false,
            ',' if !inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (!inside).then_some(parts)
}

fn requirement(text: &str) -> Option<Requirement> {
    let of = |key: &str, operator, values: Vec<&str>| {
        let key = key.trim();
        let is_key = |it: char| it.is_ascii_alphanumeric() || "-_./".contains(it);
        let is_value = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        let valid = !key.is_empty()
            && key.chars().all(is_key)
            && values.iter().all(|value| value.chars().all(is_value));
        valid.then(|| Requirement {
            key: key.to_owned(),
            operator,
            values: values.into_iter().map(str::to_owned).collect(),
        })
    };
    if let Some(key) = text.strip_prefix('!') {
        return of(key, Operator::DoesNotExist, Vec::new());
    }
    if let Some((left, list)) = text.split_once('(') {
        let list = list.strip_suffix(')')?;
        let (key, word) = left.trim().rsplit_once(char::is_whitespace)?;
        let operator = match word {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            _ => return None,
        };
        return of(key, operator, list.split(',').map(str::trim).collect());
    }
    for (sign, operator) in [
        ("!=", Operator::NotIn),
        ("==", Operator::In),
        ("=", Operator::In),
        (">", Operator::Gt),
        ("<", Operator::Lt),
    ] {
        if let Some((key, value)) = text.split_once(sign) {
            let value = value.trim();
            let compares = matches!(operator, Operator::Gt | Operator::Lt);
            if compares && value.parse::<i64>().is_err() {
                return None;
            }
            return of(key, operator, vec![value]);
        }
    }
    of(text, Operator::Exists, Vec::new())
}

/// The labels that a cluster suggests for its virtual node: only those without a prefix, because prefixed
/// ones are reserved for Kubernetes and for the administrator of the home cluster.
#[must_use]
pub fn suggested(data: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut labels = data;
    labels.retain(|key, value| {
        *value = value.trim().to_owned();
        is_label(key) && (value.is_empty() || is_label(value))
    });
    labels.into_iter().take(MOST_SUGGESTED).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(labels: &[(&str, &str)]) -> Node {
        Node {
            name: "to-milan".into(),
            labels: labels
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            ..Node::default()
        }
    }

    fn met(selectors: &[&str], labels: &[(&str, &str)]) -> bool {
        let terms = selectors.iter().map(|text| parse(text).unwrap()).collect();
        selects(&NodeSelector { terms }, &[&node(labels)], false)
    }

    #[test]
    fn selectors_of_the_documentation_match_as_described() {
        let europe = "region in (europe,us-west), !staging";
        assert!(met(&[europe], &[("region", "europe")]));
        assert!(!met(&[europe], &[("region", "asia")]));
        assert!(!met(&[europe], &[("region", "europe"), ("staging", "")]));
        let either = ["region in (europe,us-west)", "!staging"];
        assert!(met(&either, &[("region", "europe"), ("staging", "")]));
        assert!(met(&either, &[("region", "asia")]));
        assert!(!met(&either, &[("region", "asia"), ("staging", "")]));
    }

    #[test]
    fn each_selector_operator_is_evaluated() {
        let labels = [("a", "b"), ("cores", "8")];
        for (selector, expected) in [
            ("a=b", true),
            ("a==b", true),
            ("a = c", false),
            ("a!=b", false),
            ("x!=b", true),
            ("a", true),
            ("x", false),
            ("!x", true),
            ("a notin (c,d)", true),
            ("cores>7", true),
            ("cores<8", false),
        ] {
            assert_eq!(met(&[selector], &labels), expected, "{selector}");
        }
    }

    #[test]
    fn malformed_selectors_are_refused() {
        for text in [
            "",
            "a in b",
            "a in (b",
            "a in (b))",
            "a is (b)",
            "a b",
            "cores>few",
            "a,,b",
            "a=b c",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn without_terms_all_clusters_and_without_nodes_the_previous_are_selected() {
        assert!(selects(&NodeSelector::default(), &[], false));
        let terms = vec![parse("a=b").unwrap()];
        let selector = NodeSelector { terms };
        assert!(selects(&selector, &[], true) && !selects(&selector, &[], false));
        let (other, it) = (node(&[]), node(&[("a", "b")]));
        assert!(selects(&selector, &[&other, &it], false));
        assert!(!selects(&selector, &[&other], true));
    }

    #[test]
    fn a_cluster_suggests_plain_labels_only() {
        let data = [
            ("region", " europe\n"),
            ("staging", ""),
            ("topology.kubernetes.io/zone", "a"),
            ("bad", "no value"),
            (".x", "a"),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let expected = [("region", "europe"), ("staging", "")];
        let expected = expected
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        assert_eq!(suggested(data), expected);
    }

    proptest! {
        #[test]
        fn no_text_makes_parsing_a_selector_panic(text in "[a-c!=<>(), ]{0,12}") {
            let _any = parse(&text);
        }
    }
}
