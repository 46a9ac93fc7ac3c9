//! Follows a move: prints its changes, shows a progress bar on a terminal, and returns the exit status.

use std::{collections::BTreeSet, process::ExitCode};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    Place,
    describe::{End, cold, copied, end, sentence},
    orders::{POLL_INTERVAL, named, read_again},
};
use crate::{
    api::volume_move::{UNSEEN, VolumeMove},
    cli::Outcome,
    volume::moving::Phase,
};

/// The exit status after Ctrl-C, as of a program that the signal has ended.
const INTERRUPTED: u8 = 130;
const BAR: &str = "{bar:30} {binary_bytes} of {binary_total_bytes} ({percent} %){msg}";

/// Prints the state of a move and, unless `waits` is false, follows it to its end. Ctrl-C only ends the
/// following.
pub(super) async fn follow(place: &Place, name: &str, waits: bool) -> Outcome<ExitCode> {
    let mut printed = Printed::new();
    tokio::select! {
        ended = until_ended(place, name, waits, &mut printed) => ended,
        // Not one for each read: signals between two of them would be lost.
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            printed.bar.finish_and_clear();
            eprintln!("the move continues; liqo-csi move status {name} -n {} follows it", place.namespace);
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

async fn until_ended(place: &Place, name: &str, waits: bool, printed: &mut Printed) -> Outcome<ExitCode> {
    let mut of = named(place, name).await?;
    loop {
        printed.show(&format!("{}/{name}", place.namespace), &of);
        if let Some(ended) = end(&of) {
            printed.end(&of, ended);
            return Ok(ExitCode::from(ended.code()));
        }
        if !waits {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        of = read_again(place, name, |why| printed.bar.suspend(|| eprintln!("{why}"))).await?;
    }
}

/// What was printed already.
struct Printed {
    last: String,
    waiting: Option<String>,
    losses: BTreeSet<String>,
    cold: BTreeSet<String>,
    /// Hidden where there is no terminal.
    bar: ProgressBar,
}

impl Printed {
    fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        Self {
            last: String::new(),
            waiting: None,
            losses: BTreeSet::new(),
            cold: BTreeSet::new(),
            bar,
        }
    }

    fn show(&mut self, name: &str, of: &VolumeMove) {
        let sentence = sentence(of);
        if self.last != sentence {
            self.line(&format!("{name}: {sentence}"));
            self.last = sentence;
        }
        let waiting = of.status.as_ref().and_then(|status| status.waiting_for.clone());
        if self.waiting != waiting {
            if let Some(what) = &waiting {
                self.line(&format!("{name}: waiting: {what}"));
            }
            self.waiting = waiting;
        }
        for loss in of.status.iter().flat_map(|status| &status.lossy) {
            if self.losses.insert(loss.clone()) {
                self.line(&format!("{name}: the move loses data of the claim {loss}"));
            }
        }
        for (claim, why) in cold(of) {
            if self.cold.insert(claim.to_owned()) {
                let most = &of.spec.cutover.max_downtime;
                self.line(&format!(
                    "{name}: {claim} cannot be copied while its pods run: {why}. They are stopped for the whole copy, \
                     and get the volume back if that takes longer than {most} (--max-downtime)"
                ));
            }
        }
        let is_copying = matches!(
            super::describe::phase(of),
            Some(Phase::Copying | Phase::Finishing | Phase::Ready)
        );
        match copied(of).filter(|_| is_copying) {
            Some(progress) => {
                let number = |bytes: i64| u64::try_from(bytes).unwrap_or_default();
                if self.bar.is_finished() {
                    self.bar.reset();
                }
                self.bar.set_length(number(progress.total));
                self.bar.set_position(number(progress.done));
                let left = of.status.as_ref().and_then(|status| status.time_left.as_ref());
                self.bar
                    .set_message(left.map_or_else(String::new, |left| format!(", {left} left")));
            }
            None => self.bar.finish_and_clear(),
        }
    }

    fn end(&self, of: &VolumeMove, ended: End) {
        self.bar.finish_and_clear();
        let found = of.status.as_ref().and_then(|status| status.preflight.as_ref());
        match ended {
            End::Possible => {
                println!("the move is possible; nothing was changed (dry run)");
                println!("not checked: {UNSEEN}");
            }
            End::Refused if found.is_some_and(|found| !found.is_empty()) => {
                println!("the move is refused, and nothing was changed:");
                for finding in found.into_iter().flatten() {
                    println!("- {finding}");
                }
            }
            // The last line of the progress has the reason.
            End::Refused | End::Moved | End::Cancelled | End::Failed | End::Recovered => {}
        }
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, process::Command};

    use serde_json::json;

    use super::*;
    use crate::{
        cli::moves::describe::tests::with,
        cluster::testing::{Act, FakeApi, Fault},
    };

    fn of(phase: &str) -> VolumeMove {
        let bytes = json!({"total": 100, "done": 10, "sent": 10});
        let status = json!({"phase": phase, "claims": [{"name": "data", "bytes": bytes}]});
        with(&json!({}), &status)
    }

    #[test]
    fn the_bar_is_shown_in_each_phase_that_copies() {
        let mut printed = Printed::new();
        for (phase, is_shown) in [
            ("Preparing", false),
            ("Copying", true),
            ("Draining", false),
            ("Finishing", true),
        ] {
            printed.show("shop/data-1", &of(phase));
            assert_eq!(!printed.bar.is_finished(), is_shown, "{phase}");
        }
    }

    #[tokio::test]
    async fn an_interrupted_command_has_not_succeeded() {
        let api = FakeApi::start().await;
        let place = Place::of(&api.cluster_unwatched().await, "shop".to_owned());
        api.put(
            "/apis/storage.liqo.io/v1alpha1/namespaces/shop/volumemoves/data-1",
            serde_json::to_value(of("Copying")).unwrap(),
        );
        // The signal arrives while the API server does not answer.
        api.fault(Fault::new("GET", "/volumemoves/data-1", Act::Hang));
        let interrupt = async {
            // Of this process, in which the signal is handled by now.
            let kill = Command::new("sh").args(["-c", "kill -INT $PPID"]).status();
            assert!(kill.unwrap().success());
            pending::<()>().await;
        };
        let code = tokio::select! {
            biased;
            code = follow(&place, "data-1", true) => code.unwrap(),
            () = interrupt => unreachable!("it never ends"),
        };
        assert_eq!(code, ExitCode::from(INTERRUPTED));
    }
}
