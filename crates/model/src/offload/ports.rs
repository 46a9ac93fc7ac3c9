//! The port of each virtual node's kubelet API. A remembered port stays; no two nodes share a port.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// It is remembered for this node, so a connection to it identifies the node.
    Recorded(u16),
    /// It is free, and must be remembered before it is used.
    Free(u16),
}

impl Port {
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Recorded(number) | Self::Free(number) => number,
        }
    }
}

/// Assigns one of these ports to each node, in the order of `nodes`, which has the port that each remembers.
/// Nodes that are missing in the answer get none: there are too few ports.
#[must_use]
pub fn assigned<'a>(ports: &[u16], nodes: &[(&'a str, Option<u16>)]) -> BTreeMap<&'a str, Port> {
    let mut taken = BTreeSet::new();
    let mut assigned = BTreeMap::new();
    for &(node, remembered) in nodes {
        if let Some(port) = remembered.filter(|port| ports.contains(port))
            && taken.insert(port)
        {
            assigned.insert(node, Port::Recorded(port));
        }
    }
    let mut free = ports.iter().copied().filter(|port| !taken.contains(port));
    for &(node, _) in nodes {
        if !assigned.contains_key(node)
            && let Some(port) = free.next()
        {
            assigned.insert(node, Port::Free(port));
        }
    }
    assigned
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORTS: [u16; 2] = [9829, 9830];

    #[test]
    fn nodes_get_free_ports_in_turn_and_keep_them() {
        let new = assigned(&PORTS, &[("milan", None), ("rome", None), ("turin", None)]);
        assert_eq!(
            new,
            BTreeMap::from([("milan", Port::Free(9829)), ("rome", Port::Free(9830))]),
            "there is none for the third"
        );
        let kept = assigned(&PORTS, &[("turin", None), ("rome", Some(9829))]);
        assert_eq!(
            kept,
            BTreeMap::from([("rome", Port::Recorded(9829)), ("turin", Port::Free(9830))])
        );
    }

    #[test]
    fn a_port_that_is_not_served_any_more_is_replaced() {
        let moved = assigned(&PORTS, &[("milan", Some(10_000)), ("rome", Some(9829))]);
        assert_eq!(moved["milan"], Port::Free(9830));
        assert_eq!(moved["rome"], Port::Recorded(9829));
    }

    #[test]
    fn of_two_nodes_with_the_same_recorded_port_the_first_keeps_it() {
        let both = assigned(&PORTS, &[("milan", Some(9830)), ("rome", Some(9830))]);
        assert_eq!(both["milan"], Port::Recorded(9830));
        assert_eq!(both["rome"], Port::Free(9829));
    }

    proptest! {
        #[test]
        fn each_port_is_assigned_to_one_node(remembered in proptest::collection::vec(proptest::option::of(0_u16..8), 0..8)) {
            let names: Vec<String> = (0..remembered.len()).map(|at| format!("node-{at}")).collect();
            let nodes: Vec<_> = names.iter().map(String::as_str).zip(remembered).collect();
            let ports = [1, 3, 5, 7];
            let assigned = assigned(&ports, &nodes);
            let used: BTreeSet<u16> = assigned.values().map(|it| it.number()).collect();
            prop_assert_eq!(used.len(), assigned.len());
            prop_assert_eq!(used.len(), nodes.len().min(ports.len()));
            prop_assert!(used.iter().all(|port| ports.contains(port)));
            // A remembered port stays.
            let again: Vec<_> = nodes.iter().map(|(node, _)| (*node, assigned.get(node).map(|it| it.number()))).collect();
            for (node, port) in super::assigned(&ports, &again) {
                prop_assert_eq!(Some(Port::Recorded(port.number())), assigned.get(node).map(|it| Port::Recorded(it.number())));
                prop_assert_eq!(port, Port::Recorded(port.number()));
            }
        }
    }
}
