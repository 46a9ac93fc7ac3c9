//! How long to wait before a claim is checked again.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

/// The first pause before a missing source, or a node, is searched again.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);
/// The first pause before another node is selected for a claim that lost its node.
const FIRST_SELECTED: Duration = Duration::from_secs(3);
const LONGEST_SELECTED: Duration = Duration::from_mins(5);

/// The pauses of claims that were checked.
#[derive(Default)]
pub(super) struct Pauses(HashMap<String, Pause>);

struct Pause {
    /// The uid of the claim, because names are reused.
    uid: String,
    /// Until when no node is selected for it.
    paused_until: Instant,
    /// When to check it although nothing changes.
    next_check: Option<Instant>,
    /// Checks without a result since a node was last selected.
    tries: u32,
    /// How many nodes were selected for it.
    selected: u32,
}

impl Pauses {
    /// The claims whose pause is over.
    pub(super) fn due(&self) -> BTreeSet<String> {
        let now = Instant::now();
        let due = self
            .0
            .iter()
            .filter(|(_, pause)| pause.next_check.is_some_and(|again| again <= now));
        due.map(|(key, _)| key.clone()).collect()
    }

    /// The time until the next pause is over.
    pub(super) fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        let left = self.0.values().filter_map(|pause| pause.next_check);
        left.map(|again| again.saturating_duration_since(now)).min()
    }

    /// Whether a claim that lost its node still pauses; then it is checked after the pause.
    pub(super) fn is_paused(&mut self, key: &str, uid: &str) -> bool {
        let Some(pause) = self.0.get_mut(key).filter(|pause| pause.uid == uid) else {
            return false;
        };
        let is_paused = pause.paused_until > Instant::now();
        if is_paused {
            pause.next_check = Some(pause.paused_until);
        }
        is_paused
    }

    /// Nothing to do until the claim changes.
    pub(super) fn settle(&mut self, key: &str) {
        if let Some(pause) = self.0.get_mut(key) {
            pause.next_check = None;
        }
    }

    /// How many nodes were selected for the claim.
    pub(super) fn selected(&self, key: &str, uid: &str) -> usize {
        let selected = self.of(key, uid).map_or(0, |pause| pause.selected);
        usize::try_from(selected).unwrap_or(usize::MAX)
    }

    /// Records that a node was selected.
    pub(super) fn select(&mut self, key: &str, uid: &str) {
        let selected = self.of(key, uid).map_or(0, |pause| pause.selected);
        let pause = FIRST_SELECTED * 2u32.saturating_pow(selected.min(10));
        let pause = Pause {
            uid: uid.to_owned(),
            paused_until: Instant::now() + pause.min(LONGEST_SELECTED),
            next_check: None,
            tries: 0,
            selected: selected + 1,
        };
        self.0.insert(key.to_owned(), pause);
    }

    /// Schedules another check; whether one was scheduled before.
    pub(super) fn retry(&mut self, key: &str, uid: &str) -> bool {
        let before = self.of(key, uid);
        let (tries, selected) = before.map_or((0, 0), |pause| (pause.tries, pause.selected));
        let pause = FIRST * 2u32.saturating_pow(tries.min(10));
        let now = Instant::now();
        let pause = Pause {
            uid: uid.to_owned(),
            paused_until: now,
            next_check: Some(now + pause.min(LONGEST)),
            tries: tries + 1,
            selected,
        };
        self.0.insert(key.to_owned(), pause);
        tries > 0
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Ends all pauses.
    #[cfg(test)]
    pub(super) fn end(&mut self) {
        for pause in self.0.values_mut() {
            pause.paused_until = Instant::now();
            pause.next_check = Some(pause.paused_until);
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
        assert!(!pauses.retry("shop/data", "u"), "it is news");
        assert!(pauses.due().is_empty());
        assert!(!pauses.is_paused("shop/data", "u"), "a change is checked at once");
        tokio::time::advance(FIRST).await;
        assert_eq!(pauses.due().len(), 1);
        assert!(pauses.retry("shop/data", "u"));
        assert_eq!(pauses.left(), Some(FIRST * 2));
        for _ in 0..20 {
            pauses.retry("shop/data", "u");
        }
        assert_eq!(pauses.left(), Some(LONGEST));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_loses_its_node_gets_another_only_after_a_pause() {
        let mut pauses = Pauses::default();
        pauses.select("shop/data", "u");
        assert!(pauses.is_paused("shop/data", "u"));
        assert!(!pauses.is_paused("shop/data", "another"));
        assert_eq!(pauses.selected("shop/data", "u"), 1);
        tokio::time::advance(FIRST_SELECTED).await;
        assert!(!pauses.is_paused("shop/data", "u"));
        pauses.select("shop/data", "u");
        assert_eq!(pauses.left(), None, "it has a node");
        assert!(pauses.is_paused("shop/data", "u"));
        assert_eq!(pauses.left(), Some(FIRST_SELECTED * 2));
        pauses.settle("shop/data");
        assert_eq!(pauses.left(), None);
        pauses.forget("shop/data");
    }
}
