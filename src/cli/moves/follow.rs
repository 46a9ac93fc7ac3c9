//! Follows a move: prints its changes, shows a progress bar on a terminal, and returns the exit status.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    Place,
    describe::{End, cold, copied, end, sentence},
    orders::named,
};
use crate::{
    api::volume_move::{UNSEEN, VolumeMove},
    cli::Outcome,
    volume::moving::Phase,
};

pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
const BAR: &str = "{bar:30} {binary_bytes} of {binary_total_bytes} ({percent} %){msg}";

/// Prints the state of a move and, unless `waits` is false, follows it to its end. Ctrl-C only ends the
/// following.
pub(super) async fn follow(place: &Place, name: &str, waits: bool) -> Outcome<ExitCode> {
    let mut printed = Printed::new();
    loop {
        let of = named(place, name).await?;
        printed.show(&format!("{}/{name}", place.namespace), &of);
        let ended = end(&of);
        if let Some(ended) = ended {
            printed.end(&of, ended);
            return Ok(ExitCode::from(ended.code()));
        }
        if !waits {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                printed.bar.finish_and_clear();
                eprintln!("the move continues; liqo-csi move status {name} -n {} follows it", place.namespace);
                return Ok(ExitCode::SUCCESS);
            }
        }
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
