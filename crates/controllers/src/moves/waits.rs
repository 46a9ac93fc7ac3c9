//! How long a waiting move pauses before the next step, and when its status reports the wait.

use std::{
    mem::{Discriminant, discriminant},
    time::Duration,
};

use itertools::Itertools;
use tokio::time::Instant;

use super::status::{WaitReport, blocks_users};
use crate::placement::moving::{Pass, Stage, Waiting};

/// A move without a change for this long is reported as stalled.
pub(super) const STALLED_AFTER: Duration = Duration::from_mins(2);

/// What a move waits for is reported after this time: most waits are over by then.
pub(super) const REPORTED_AFTER: Duration = Duration::from_secs(3);

const SECOND: Duration = Duration::from_secs(1);
const A_FEW_SECONDS: Duration = Duration::from_secs(5);
const HALF_A_MINUTE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_mins(1);

/// When to observe again, at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextCheck {
    /// Within a moment: Kubernetes takes this step at once.
    Soon,
    /// After this time, or after a change.
    Within(Duration),
}

/// When to observe again a move that waits for all this.
pub(super) fn next_check(stage: &Stage, waiting: &[(usize, Waiting)]) -> NextCheck {
    let pauses = waiting.iter().map(|(_, what)| of(stage, what));
    pauses.min_by_key(length).unwrap_or(NextCheck::Within(SECOND))
}

fn length(check: &NextCheck) -> Duration {
    match check {
        NextCheck::Soon => Duration::ZERO,
        NextCheck::Within(pause) => *pause,
    }
}

fn of(stage: &Stage, what: &Waiting) -> NextCheck {
    let blocked = blocks_users(stage);
    match what {
        Waiting::Lost | Waiting::Bound | Waiting::TakesName(_) => NextCheck::Soon,
        Waiting::HelpersGone(_) | Waiting::TwinGone(_) | Waiting::Detached(_) | Waiting::ClaimGone
            if blocked =>
        {
            NextCheck::Soon
        }
        Waiting::Users(_) if blocked => NextCheck::Within(SECOND),
        Waiting::Pass(Pass::Final(_) | Pass::Verify(_) | Pass::Finish(_)) | Waiting::Preflight => {
            NextCheck::Within(SECOND)
        }
        Waiting::Pass(Pass::Warm)
        | Waiting::Users(_)
        | Waiting::NotEvicted(_)
        | Waiting::HelpersGone(_)
        | Waiting::TwinGone(_)
        | Waiting::Detached(_)
        | Waiting::ClaimGone
        | Waiting::Unknown(..)
        | Waiting::SourceGone
        | Waiting::Consent(_)
        | Waiting::TargetGone
        | Waiting::NotRecovered(_)
        | Waiting::Changing
        | Waiting::VolumeTaken(_)
        | Waiting::NoManifest => NextCheck::Within(A_FEW_SECONDS),
        // Each check lists all contents of snapshots. Consent is a change of the move, which is noticed at once.
        Waiting::Snapshots(_)
        | Waiting::Paused
        | Waiting::CutOver
        | Waiting::MarkedAgain
        | Waiting::CommittedWithoutMove => NextCheck::Within(HALF_A_MINUTE),
        Waiting::Retention | Waiting::BothKept => NextCheck::Within(MINUTE),
    }
}

/// Whether a long wait is intended.
fn is_intended(stage: &Stage, what: &Waiting) -> bool {
    match what {
        Waiting::Retention | Waiting::BothKept | Waiting::Paused | Waiting::CutOver | Waiting::Pass(_) => {
            true
        }
        // The user who started the move stops them.
        Waiting::Users(_) => !blocks_users(stage),
        _ => false,
    }
}

/// Since when a move waits for the same thing, whatever its message.
pub(super) struct WaitClock {
    what: Vec<(usize, Discriminant<Waiting>)>,
    began: Instant,
}

impl WaitClock {
    pub(super) fn now() -> Self {
        Self {
            what: Vec::new(),
            began: Instant::now(),
        }
    }

    /// Restarts the clock after a change.
    pub(super) fn reset(&mut self) {
        *self = Self::now();
    }

    /// What to report of a move that waits for this.
    pub(super) fn report(&mut self, stage: &Stage, waiting: &[(usize, Waiting)]) -> WaitReport {
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
        let all = join_messages(waiting.iter().map(|(_, what)| what));
        let unintended = waiting.iter().map(|(_, what)| what);
        let unintended = join_messages(unintended.filter(|what| !is_intended(stage, what)));
        let waited = self.began.elapsed();
        let any = |wanted: &Waiting| waiting.iter().any(|(_, what)| what == wanted);
        WaitReport {
            ready: any(&Waiting::CutOver),
            kept: any(&Waiting::BothKept),
            waiting_for: all.filter(|_| waited >= REPORTED_AFTER),
            stalled: unintended.filter(|_| waited >= STALLED_AFTER),
        }
    }
}

/// Joins the messages, each once.
fn join_messages<'a>(waiting: impl Iterator<Item = &'a Waiting>) -> Option<String> {
    let messages = waiting.map(ToString::to_string).unique().join("; ");
    (!messages.is_empty()).then_some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{placement::moving::Side, volume::moving::GateNumber};

    #[test]
    fn a_gated_move_has_the_shortest_poll_interval() {
        let copying = Stage::Copying { last: None };
        let draining = Stage::Draining(GateNumber::FIRST);
        let users = || (0, Waiting::Users(vec!["web-0".into()]));
        assert_eq!(next_check(&draining, &[users()]), NextCheck::Within(SECOND));
        assert_eq!(next_check(&copying, &[users()]), NextCheck::Within(A_FEW_SECONDS));
        let snapshots = (0, Waiting::Snapshots(vec!["shop/backup".into()]));
        assert_eq!(
            next_check(&copying, &[snapshots]),
            NextCheck::Within(HALF_A_MINUTE)
        );
        let both = [(0, Waiting::Retention), (1, Waiting::Bound)];
        assert_eq!(next_check(&copying, &both), NextCheck::Soon);
    }

    #[test]
    fn each_message_is_joined_once() {
        let all = [Waiting::Bound, Waiting::Changing, Waiting::Bound];
        assert_eq!(
            join_messages(all.iter()),
            Some(format!("{}; {}", Waiting::Bound, Waiting::Changing))
        );
        assert_eq!(join_messages([].iter()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_reported_once_even_if_its_message_changes() {
        let mut since = WaitClock::now();
        let preparing = Stage::Preparing;
        let silent = |why: &str| [(0, Waiting::Unknown(Side::Target, why.into()))];
        assert_eq!(
            since.report(&preparing, &silent("ErrImagePull")).waiting_for,
            None
        );
        tokio::time::advance(REPORTED_AFTER).await;
        let report = since.report(&preparing, &silent("Back-off pulling image"));
        assert_eq!(
            report.waiting_for.as_deref(),
            Some("at the target: Back-off pulling image")
        );
        tokio::time::advance(STALLED_AFTER).await;
        assert!(
            since
                .report(&preparing, &silent("ErrImagePull"))
                .stalled
                .is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn only_unexpected_waits_are_reported_as_stalled() {
        let mut since = WaitClock::now();
        let copying = Stage::Copying { last: None };
        let silent = [(0, Waiting::Changing)];
        assert_eq!(since.report(&copying, &silent).stalled, None);
        tokio::time::advance(STALLED_AFTER).await;
        assert!(since.report(&copying, &silent).stalled.is_some());
        let meant = [(0, Waiting::CutOver)];
        assert!(since.report(&copying, &meant).ready);
        tokio::time::advance(STALLED_AFTER).await;
        assert_eq!(since.report(&copying, &meant).stalled, None);
    }
}
