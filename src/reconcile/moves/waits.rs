//! For how long a move is left alone that waits, and when that is worth telling.

use std::time::Duration;

use tokio::time::Instant;

use super::status::{Told, keeps_users_away};
use crate::placement::moving::{Pass, Stage, Waiting};

/// After so long in which nothing happens, that is said.
const STALLED: Duration = Duration::from_mins(2);

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
        Waiting::Lost | Waiting::Bound => Look::Soon,
        Waiting::HelpersGone(_) | Waiting::TwinGone(_) | Waiting::Detached(_) | Waiting::ClaimGone
            if away =>
        {
            Look::Soon
        }
        Waiting::Users(_) if away => Look::Within(SECOND),
        Waiting::Pass(Pass::Final(_) | Pass::Verify(_)) | Waiting::Preflight => Look::Within(SECOND),
        Waiting::Pass(Pass::Warm)
        | Waiting::Users(_)
        | Waiting::HelpersGone(_)
        | Waiting::TwinGone(_)
        | Waiting::Detached(_)
        | Waiting::ClaimGone
        | Waiting::Silent(..)
        | Waiting::SourceGone
        | Waiting::TargetGone
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

/// Since when a move waits for the same.
pub(super) struct Since {
    what: Vec<(usize, Waiting)>,
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
        if self.what != waiting {
            *self = Self {
                what: waiting.to_vec(),
                began: Instant::now(),
            };
        }
        let unmeant = waiting.iter().filter(|(_, what)| !is_meant(stage, what));
        let mut why: Vec<String> = unmeant.map(|(_, what)| what.to_string()).collect();
        why.dedup();
        let is_stalled = !why.is_empty() && self.began.elapsed() >= STALLED;
        let any = |wanted: &Waiting| waiting.iter().any(|(_, what)| what == wanted);
        Told {
            ready: any(&Waiting::CutOver),
            kept: any(&Waiting::BothKept),
            stalled: is_stalled.then(|| why.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::moving::GateNumber;

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
