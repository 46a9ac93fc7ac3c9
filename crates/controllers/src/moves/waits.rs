//! For how long a move is left alone that waits, and when that is worth telling.

use std::{
    mem::{Discriminant, discriminant},
    time::Duration,
};

use tokio::time::Instant;

use super::status::{Told, keeps_users_away};
use crate::placement::moving::{Pass, Stage, Waiting};

/// After so long in which nothing happens, that is said.
const STALLED: Duration = Duration::from_mins(2);

/// What is waited for is told after so long: most of it is over by then.
const WORTH_TELLING: Duration = Duration::from_secs(3);

const SECOND: Duration = Duration::from_secs(1);
const A_FEW_SECONDS: Duration = Duration::from_secs(5);
const HALF_A_MINUTE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_mins(1);

/// When to look again, at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// In a moment: Kubernetes does this at once.
    Soon,
    /// After this time, or when something changes.
    Within(Duration),
}

/// When to look again at a move that waits for all this.
pub(super) fn look(stage: &Stage, waiting: &[(usize, Waiting)]) -> Look {
    let pauses = waiting.iter().map(|(_, what)| of(stage, what));
    pauses.min_by_key(length).unwrap_or(Look::Within(SECOND))
}

fn length(look: &Look) -> Duration {
    match look {
        Look::Soon => Duration::ZERO,
        Look::Within(pause) => *pause,
    }
}

fn of(stage: &Stage, what: &Waiting) -> Look {
    let away = keeps_users_away(stage);
    match what {
        Waiting::Lost | Waiting::Bound | Waiting::TakesName(_) => Look::Soon,
        Waiting::HelpersGone(_) | Waiting::TwinGone(_) | Waiting::Detached(_) | Waiting::ClaimGone
            if away =>
        {
            Look::Soon
        }
        Waiting::Users(_) if away => Look::Within(SECOND),
        Waiting::Pass(Pass::Final(_) | Pass::Verify(_) | Pass::Finish(_)) | Waiting::Preflight => {
            Look::Within(SECOND)
        }
        Waiting::Pass(Pass::Warm)
        | Waiting::Users(_)
        | Waiting::HelpersGone(_)
        | Waiting::TwinGone(_)
        | Waiting::Detached(_)
        | Waiting::ClaimGone
        | Waiting::Silent(..)
        | Waiting::SourceGone
        | Waiting::Consent(_)
        | Waiting::TargetGone
        | Waiting::NotRecovered(_)
        | Waiting::Changing
        | Waiting::VolumeTaken(_)
        | Waiting::NoManifest => Look::Within(A_FEW_SECONDS),
        Waiting::Paused | Waiting::CutOver | Waiting::CommittedWithoutMove => Look::Within(HALF_A_MINUTE),
        Waiting::Retention | Waiting::BothKept => Look::Within(MINUTE),
    }
}

/// Whether this may take as long as it takes.
fn is_meant(stage: &Stage, what: &Waiting) -> bool {
    match what {
        Waiting::Retention | Waiting::BothKept | Waiting::Paused | Waiting::CutOver | Waiting::Pass(_) => {
            true
        }
        // They are stopped by whoever began the move.
        Waiting::Users(_) => !keeps_users_away(stage),
        _ => false,
    }
}

/// Since when a move waits for the same, whatever the words in which that is said.
pub(super) struct Since {
    what: Vec<(usize, Discriminant<Waiting>)>,
    began: Instant,
}

impl Since {
    pub(super) fn now() -> Self {
        Self {
            what: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Something has happened.
    pub(super) fn happened(&mut self) {
        *self = Self::now();
    }

    /// What is told of a move that waits for this.
    pub(super) fn told(&mut self, stage: &Stage, waiting: &[(usize, Waiting)]) -> Told {
        let kinds: Vec<_> = waiting
            .iter()
            .map(|(claim, what)| (*claim, discriminant(what)))
            .collect();
        if self.what != kinds {
            *self = Self {
                what: kinds,
                began: Instant::now(),
            };
        }
        let all = words(waiting.iter().map(|(_, what)| what));
        let unmeant = waiting.iter().map(|(_, what)| what);
        let unmeant = words(unmeant.filter(|what| !is_meant(stage, what)));
        let for_so_long = self.began.elapsed();
        let any = |wanted: &Waiting| waiting.iter().any(|(_, what)| what == wanted);
        Told {
            ready: any(&Waiting::CutOver),
            kept: any(&Waiting::BothKept),
            waiting_for: all.filter(|_| for_so_long >= WORTH_TELLING),
            stalled: unmeant.filter(|_| for_so_long >= STALLED),
        }
    }
}

/// All of it in a sentence, each thing once.
fn words<'a>(waiting: impl Iterator<Item = &'a Waiting>) -> Option<String> {
    let mut words: Vec<String> = waiting.map(ToString::to_string).collect();
    words.dedup();
    (!words.is_empty()).then(|| words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{placement::moving::Side, volume::moving::GateNumber};

    #[test]
    fn what_keeps_users_away_is_looked_at_soonest() {
        let copying = Stage::Copying { last: None };
        let draining = Stage::Draining(GateNumber::FIRST);
        let users = || (0, Waiting::Users(vec!["web-0".into()]));
        assert_eq!(look(&draining, &[users()]), Look::Within(SECOND));
        assert_eq!(look(&copying, &[users()]), Look::Within(A_FEW_SECONDS));
        let both = [(0, Waiting::Retention), (1, Waiting::Bound)];
        assert_eq!(look(&copying, &both), Look::Soon);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_waited_for_is_told_when_it_lasts_whatever_its_words() {
        let mut since = Since::now();
        let preparing = Stage::Preparing;
        let silent = |why: &str| [(0, Waiting::Silent(Side::Target, why.into()))];
        assert_eq!(since.told(&preparing, &silent("ErrImagePull")).waiting_for, None);
        tokio::time::advance(WORTH_TELLING).await;
        let told = since.told(&preparing, &silent("Back-off pulling image"));
        assert_eq!(
            told.waiting_for.as_deref(),
            Some("at the target: Back-off pulling image")
        );
        tokio::time::advance(STALLED).await;
        assert!(since.told(&preparing, &silent("ErrImagePull")).stalled.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_should_not_last_is_called_stalled() {
        let mut since = Since::now();
        let copying = Stage::Copying { last: None };
        let silent = [(0, Waiting::Changing)];
        assert_eq!(since.told(&copying, &silent).stalled, None);
        tokio::time::advance(STALLED).await;
        assert!(since.told(&copying, &silent).stalled.is_some());
        let meant = [(0, Waiting::CutOver)];
        assert!(since.told(&copying, &meant).ready);
        tokio::time::advance(STALLED).await;
        assert_eq!(since.told(&copying, &meant).stalled, None);
    }
}
