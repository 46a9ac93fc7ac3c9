//! Explores every state of a small model, breadth first. For tests of decisions among which others act,
//! processes die and leaders are late.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Debug,
    hash::Hash,
};

/// Explores every state that can be reached from `start`, and returns their number. `events` are those that may
/// follow a state, `apply` returns the next state, and `at_rest` checks a state from which nothing else happens.
///
/// # Panics
/// The message has the shortest sequence of events after which `apply` or `at_rest` returns an error.
pub(super) fn explore<W: Clone + Debug + Eq + Hash, E: Copy + Debug>(
    start: W,
    events: impl Fn(&W) -> Vec<E>,
    apply: impl Fn(&W, E) -> Result<W, String>,
    at_rest: impl Fn(&W) -> Result<(), String>,
) -> usize {
    // Each state, with its predecessor and the event that led to it.
    let mut known = HashMap::from([(start.clone(), 0)]);
    let mut came_by: Vec<Option<(usize, E)>> = vec![None];
    let mut open = VecDeque::from([start]);
    let fails = |came_by: &[Option<(usize, E)>], mut at: usize, last: String| -> ! {
        let mut way = vec![last];
        while let Some((before, event)) = came_by[at] {
            way.push(format!("{event:?}"));
            at = before;
        }
        way.reverse();
        panic!("{way:#?}");
    };
    while let Some(world) = open.pop_front() {
        let at = known[&world];
        if let Err(broken) = at_rest(&world) {
            fails(&came_by, at, format!("{broken}: {world:#?}"));
        }
        for event in events(&world) {
            let next = match apply(&world, event) {
                Ok(next) => next,
                Err(broken) => fails(&came_by, at, format!("{event:?}: {broken}: {world:#?}")),
            };
            if !known.contains_key(&next) {
                known.insert(next.clone(), came_by.len());
                came_by.push(Some((at, event)));
                open.push_back(next);
            }
        }
    }
    known.len()
}
