//! How long each claim is left alone before it is looked at again.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

/// Until a source that is not there, or a node, is looked for again.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);
/// Until a claim that lost its node again is given another.
const FIRST_SELECTED: Duration = Duration::from_secs(3);
const LONGEST_SELECTED: Duration = Duration::from_mins(5);

/// What is remembered of claims that were looked at.
#[derive(Default)]
pub(super) struct Pauses(HashMap<String, Pause>);

struct Pause {
    /// The claim: names are used again.
    uid: String,
    /// Until when it gets no node.
    rest: Instant,
    /// When it is to be looked at, although nothing changes.
    again: Option<Instant>,
    /// How often it was in vain since a node was selected last.
    looks: u32,
    /// How many nodes were selected for it.
    selected: u32,
}

impl Pauses {
    /// The claims whose time has come.
    pub(super) fn over(&self) -> BTreeSet<String> {
        let now = Instant::now();
        let over = self
            .0
            .iter()
            .filter(|(_, pause)| pause.again.is_some_and(|again| again <= now));
        over.map(|(key, _)| key.clone()).collect()
    }

    /// In what time the next one's will have.
    pub(super) fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let left = self.0.values().filter_map(|pause| pause.again);
        left.map(|again| again.saturating_duration_since(now)).min()
    }

    /// Whether a claim that lost its node is to be left alone; then it comes up again.
    pub(super) fn rests(&mut self, key: &str, uid: &str) -> bool {
        let Some(pause) = self.0.get_mut(key).filter(|pause| pause.uid == uid) else {
            return false;
        };
        let rests = pause.rest > Instant::now();
        if rests {
            pause.again = Some(pause.rest);
        }
        rests
    }

    /// Nothing is to be done until it changes.
    pub(super) fn settle(&mut self, key: &str) {
        if let Some(pause) = self.0.get_mut(key) {
            pause.again = None;
        }
    }

    /// How many nodes were selected for it.
    pub(super) fn selected(&self, key: &str, uid: &str) -> usize {
        let selected = self.of(key, uid).map_or(0, |pause| pause.selected);
        usize::try_from(selected).unwrap_or(usize::MAX)
    }

    /// It was given a node.
    pub(super) fn select(&mut self, key: &str, uid: &str) {
        let selected = self.of(key, uid).map_or(0, |pause| pause.selected);
        let pause = FIRST_SELECTED * 2u32.saturating_pow(selected.min(10));
        let pause = Pause {
            uid: uid.to_owned(),
            rest: Instant::now() + pause.min(LONGEST_SELECTED),
            again: None,
            looks: 0,
            selected: selected + 1,
        };
        self.0.insert(key.to_owned(), pause);
    }

    /// It is to be looked at again; whether that was so before.
    pub(super) fn again(&mut self, key: &str, uid: &str) -> bool {
        let before = self.of(key, uid);
        let (looks, selected) = before.map_or((0, 0), |pause| (pause.looks, pause.selected));
        let pause = FIRST * 2u32.saturating_pow(looks.min(10));
        let now = Instant::now();
        let pause = Pause {
            uid: uid.to_owned(),
            rest: now,
            again: Some(now + pause.min(LONGEST)),
            looks: looks + 1,
            selected,
        };
        self.0.insert(key.to_owned(), pause);
        looks > 0
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// As if all were over.
    #[cfg(test)]
    pub(super) fn end(&mut self) {
        for pause in self.0.values_mut() {
            pause.rest = Instant::now();
            pause.again = Some(pause.rest);
        }
    }

    fn of(&self, key: &str, uid: &str) -> Option<&Pause> {
        self.0.get(key).filter(|pause| pause.uid == uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_end() {
        let mut pauses = Pauses::default();
        assert!(!pauses.again("shop/data", "u"), "it is news");
        assert!(pauses.over().is_empty());
        assert!(!pauses.rests("shop/data", "u"), "whoever changes it is looked at");
        tokio::time::advance(FIRST).await;
        assert_eq!(pauses.over().len(), 1);
        assert!(pauses.again("shop/data", "u"));
        assert_eq!(pauses.left(), Some(FIRST * 2));
        for _ in 0..20 {
            pauses.again("shop/data", "u");
        }
        assert_eq!(pauses.left(), Some(LONGEST));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_loses_its_node_is_not_given_one_at_once() {
        let mut pauses = Pauses::default();
        pauses.select("shop/data", "u");
        assert!(pauses.rests("shop/data", "u"));
        assert!(!pauses.rests("shop/data", "another"));
        assert_eq!(pauses.selected("shop/data", "u"), 1);
        tokio::time::advance(FIRST_SELECTED).await;
        assert!(!pauses.rests("shop/data", "u"));
        pauses.select("shop/data", "u");
        assert_eq!(pauses.left(), None, "it has a node");
        assert!(pauses.rests("shop/data", "u"));
        assert_eq!(pauses.left(), Some(FIRST_SELECTED * 2));
        pauses.settle("shop/data");
        assert_eq!(pauses.left(), None);
        pauses.forget("shop/data");
    }
}
