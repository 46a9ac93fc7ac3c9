//! Following a move: a line for each thing that begins, a bar for the copying where there is a
//! terminal, and its end as the exit status.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    Place,
    orders::named,
    words::{End, cold, copied, end, sentence},
};
use crate::{
    api::volume_move::{UNSEEN, VolumeMove},
    cli::Outcome,
    volume::moving::Phase,
};

const LOOK_AGAIN: Duration = Duration::from_secs(1);
const BAR: &str = "{bar:30} {binary_bytes} of {binary_total_bytes} ({percent} %){msg}";

/// Says how a move is, and follows it to its end unless it is not waited for. Ctrl-C ends only that.
pub(super) async fn follow(place: &Place, name: &str, waits: bool) -> Outcome<ExitCode> {
    let mut said = Said::new();
    loop {
        let of = named(place, name).await?;
        said.show(&format!("{}/{name}", place.namespace), &of);
        let ended = end(&of);
        if let Some(ended) = ended {
            said.end(&of, ended);
            return Ok(ExitCode::from(ended.code()));
        }
        if !waits {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_AGAIN) => {}
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                said.bar.finish_and_clear();
                eprintln!("the move goes on; liqo-csi move status {name} -n {} follows it", place.namespace);
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// What was said already.
struct Said {
    last: String,
    waiting: Option<String>,
    losses: BTreeSet<String>,
    cold: BTreeSet<String>,
    /// Hidden where there is no terminal.
    bar: ProgressBar,
}

impl Said {
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
                self.line(&format!("{name}: it loses, of the claim {loss}"));
            }
        }
        for (claim, why) in cold(of) {
            if self.cold.insert(claim.to_owned()) {
                let most = &of.spec.cutover.max_downtime;
                self.line(&format!(
                    "{name}: nothing of {claim} is copied while its pods run, for {why}: they are away for the whole copy, \
                     and are given it back when that takes longer than {most} (--max-downtime)"
                ));
            }
        }
        let is_copying = matches!(
            super::words::phase(of),
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
                println!("nothing speaks against the move; nothing was changed");
                println!("as always: {UNSEEN}");
            }
            End::Refused => {
                println!("the move is refused, and nothing was changed:");
                for finding in found.into_iter().flatten() {
                    println!("- {finding}");
                }
            }
            End::Moved | End::Cancelled | End::Failed | End::Recovered => {}
        }
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }
}
