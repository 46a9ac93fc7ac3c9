//! The progress of the copies in the status of a move, for users only: no decision is based on it.

use std::time::Duration;

use itertools::Itertools;
use jiff::SignedDuration;
use mover::control::{Lost, LostKind};

use crate::{
    api::volume_move::{ClaimStatus, Downtime, Progress, RootHashes, VolumeMoveStatus},
    gate::ReadsOn,
    movers::CopyProgress,
};

/// A shorter pass does not show how fast the data travels.
const MIN_MEASURED: Duration = Duration::from_secs(2);

/// The progress of the copies of all claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// By the names of the claims. A new leader knows none yet.
    pub(super) claims: Vec<(String, CopyProgress)>,
    /// The nodes where the sources of claims are read, if their movers run.
    pub(super) movers: Vec<(String, ReadsOn)>,
    /// Possible losses of sources whose writers the driver may not detect.
    pub(super) unwatched: Vec<String>,
}

impl Copies {
    /// Writes the progress to the status. What is unknown keeps its previous value.
    pub(super) fn write(&self, status: &mut VolumeMoveStatus) {
        let route = self.claims.iter().find_map(|(_, progress)| progress.route);
        status.route = route.or(status.route.take());
        let mut left = None;
        for (name, progress) in &self.claims {
            if let Some(claim) = status.claims.iter_mut().find(|claim| claim.name == *name) {
                left = left.max(write_claim(claim, progress));
            }
        }
        if !self.claims.is_empty() {
            status.time_left = left.map(duration_text);
        }
        self.write_losses(&mut status.lossy);
        if status.gated_at.is_none()
            && let Some(predicted) = self.predicted()
        {
            status.downtime.get_or_insert_with(Downtime::default).predicted = Some(duration_text(predicted));
        }
        let used = self.claims.iter().find_map(|(name, progress)| {
            let why = progress.reads_back_all.as_ref()?;
            Some(format!("the claim {name}: {why}"))
        });
        if !self.movers.is_empty() || used.is_some() {
            let mut movers = self.movers.iter();
            let reason = used.or_else(|| movers.find_map(|(name, on)| reads_all(status, name, on)));
            if reason.is_some() || status.downtime.is_some() {
                let downtime = status.downtime.get_or_insert_with(Downtime::default);
                downtime.predicted = downtime.predicted.take().filter(|_| reason.is_none());
                downtime.reason = reason;
            }
        }
    }

    /// Records where the sources were read when the gate is closed.
    pub(super) fn record_nodes(&self, status: &mut VolumeMoveStatus) {
        for (name, on) in &self.movers {
            if let Some(claim) = status.claims.iter_mut().find(|claim| claim.name == *name) {
                claim.mover_node = Some(on.node.clone());
            }
        }
    }

    /// Adds to what a move waits for why the last orders to movers failed. Often only that names the cause: when
    /// the target is full, the mover of the source ends, too, and the move waits for another one.
    pub(super) fn and_failures(&self, waiting_for: Option<&str>) -> Option<String> {
        let said = waiting_for.unwrap_or_default();
        let failed = self.claims.iter().filter_map(|(name, progress)| {
            let why = progress.failed.as_ref().filter(|why| !said.contains(*why))?;
            Some(format!(
                "the last order to the mover of the claim {name} failed: {why}"
            ))
        });
        let all = waiting_for
            .map(str::to_owned)
            .into_iter()
            .chain(failed)
            .join("; ");
        (!all.is_empty()).then_some(all)
    }

    /// Losses of claims without a completed pass keep their previous value: a new leader does not know
    /// them yet.
    fn write_losses(&self, lossy: &mut Vec<String>) {
        for (name, progress) in self.claims.iter().filter(|(_, progress)| progress.passes > 0) {
            // Names of claims do not contain colons.
            let claim = format!("{name}: ");
            lossy.retain(|said| !said.starts_with(&claim));
            lossy.extend(progress.losses.iter().map(|lost| claim.clone() + &sentence(lost)));
        }
        lossy.extend(self.unwatched.iter().cloned());
        lossy.sort();
        lossy.dedup();
    }

    /// The last pass, after the drain, is expected to take as long as the previous pass.
    fn predicted(&self) -> Option<Duration> {
        let took = self
            .claims
            .iter()
            .map(|(_, progress)| Some(progress.last.as_ref()?.1));
        took.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

/// Why the last pass has to read all of a source instead of the changes: what was read on one node is not
/// known on another. A device, which has no files, is always read completely.
fn reads_all(status: &VolumeMoveStatus, name: &str, on: &ReadsOn) -> Option<String> {
    let claim = status.claims.iter().find(|claim| claim.name == name)?;
    claim.files.as_ref()?;
    let node = &on.node;
    if status.gated_at.is_none() {
        let unfit = on.unfit.as_ref()?;
        return Some(format!(
            "the claim {name} is read on the node {node}, where it cannot be read after its pods have terminated ({unfit}): all of it \
             is read once more then"
        ));
    }
    let before = claim.mover_node.as_ref().filter(|before| *before != node)?;
    Some(format!(
        "the claim {name} is now read on the node {node} instead of {before}: all of it is read once more"
    ))
}

fn sentence(lost: &Lost) -> String {
    let what = match lost.kind {
        LostKind::Xattrs => "extended attributes",
        LostKind::Flags => "inode flags",
    };
    let example = crate::cluster::short(&lost.example);
    format!("{what} of {} names, such as {example}", lost.count)
}

/// Writes the progress of one claim; returns how long its first pass will take.
fn write_claim(claim: &mut ClaimStatus, progress: &CopyProgress) -> Option<Duration> {
    claim.passes = i32::try_from(progress.passes).unwrap_or(i32::MAX);
    let running = progress.running;
    let received = running.and_then(|running| rate(running.received, running.since));
    claim.bytes_per_second = received.map(number);
    if let Some((source, target)) = progress.roots.clone() {
        claim.roots = Some(RootHashes { source, target });
    }
    let sent = number(progress.received);
    let running = running.filter(|running| running.expected > 0);
    // Every pass over a device reads all of it, and its progress is known.
    if let Some((running, settled)) = running.and_then(|running| Some((running, running.settled?))) {
        let left = running.expected.saturating_sub(settled);
        claim.bytes = Some(Progress {
            total: number(running.expected),
            done: number(running.expected - left),
            sent,
        });
        return Some(Duration::from_secs(left.div_ceil(rate(settled, running.since)?)));
    }
    if let Some((last, _)) = &progress.last {
        let (bytes, files) = (number(last.bytes), number(last.entries));
        claim.bytes = Some(Progress {
            total: bytes,
            done: bytes,
            sent,
        });
        // A device has no files.
        claim.files = (files > 0).then(|| Progress {
            total: files,
            done: files,
            sent: number(progress.compared_files),
        });
        return None;
    }
    let running = running?;
    let most = claim.size.and_then(|size| u64::try_from(size).ok());
    let total = running
        .expected
        .min(most.unwrap_or(u64::MAX))
        .max(progress.received);
    claim.bytes = Some(Progress {
        total: number(total),
        // What has arrived on a connection that broke is not sent again.
        done: sent,
        sent,
    });
    let rate = rate(running.received, running.since)?;
    Some(Duration::from_secs((total - progress.received).div_ceil(rate)))
}

/// Bytes per second, if the time is long enough for an estimate.
fn rate(bytes: u64, since: Duration) -> Option<u64> {
    if since < MIN_MEASURED {
        return None;
    }
    let rate = u128::from(bytes) * 1000 / since.as_millis();
    u64::try_from(rate).ok().filter(|rate| *rate > 0)
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Formats a duration as `1m 5s`.
fn duration_text(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1000);
    let time = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    format!("{time:#}")
}

#[cfg(test)]
mod tests {
    use crate::api::volume_move::Route;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use mover::control::Passed;

    use super::*;
    use crate::movers::RunningPass;

    fn status() -> VolumeMoveStatus {
        let claim = ClaimStatus {
            name: "data".into(),
            size: Some(1000),
            ..ClaimStatus::default()
        };
        VolumeMoveStatus {
            claims: vec![claim],
            ..VolumeMoveStatus::default()
        }
    }

    fn noted(progress: CopyProgress) -> VolumeMoveStatus {
        let mut status = status();
        let copies = Copies {
            claims: vec![("data".into(), progress)],
            ..Copies::default()
        };
        copies.write(&mut status);
        status
    }

    fn running(received: u64, expected: u64) -> RunningPass {
        RunningPass {
            since: Duration::from_secs(4),
            received,
            expected,
            settled: None,
        }
    }

    #[test]
    fn progress_of_a_device_pass_counts_processed_bytes() {
        let passed = Passed {
            pass: 1,
            entries: 0,
            bytes: 1000,
            compared_files: 0,
            received_bytes: 100,
            deleted: 0,
            changed: 0,
            unsteady: 0,
            direct: true,
            losses: Vec::new(),
            losses_of_all: true,
            sees_trusted: false,
        };
        let device = |running, last| {
            noted(CopyProgress {
                received: 100,
                running,
                last,
                ..CopyProgress::default()
            })
        };
        let last = Some((passed, Duration::from_secs(4)));
        let reading = RunningPass {
            settled: Some(800),
            ..running(100, 1000)
        };
        for status in [device(Some(reading), None), device(Some(reading), last.clone())] {
            let bytes = status.claims[0].bytes.unwrap();
            assert_eq!((bytes.total, bytes.done, bytes.sent), (1000, 800, 100));
            assert_eq!(status.time_left.as_deref(), Some("1s"));
        }
        let begun = RunningPass {
            settled: Some(0),
            ..running(0, 1000)
        };
        assert_eq!(device(Some(begun), None).time_left, None);
        let done = device(None, last);
        assert_eq!(done.claims[0].bytes.unwrap().done, 1000);
        assert_eq!((done.claims[0].files, done.time_left), (None, None));
    }

    #[test]
    fn the_first_pass_is_measured_by_used_bytes_within_the_volume() {
        let first = |received, expected| {
            noted(CopyProgress {
                received,
                running: Some(running(received, expected)),
                ..CopyProgress::default()
            })
        };
        let own = first(200, 400);
        assert_eq!(
            own.claims[0].bytes,
            Some(Progress {
                total: 400,
                done: 200,
                sent: 200
            })
        );
        assert_eq!(own.claims[0].bytes_per_second, Some(50));
        assert_eq!(own.time_left.as_deref(), Some("4s"));
        let resumed = noted(CopyProgress {
            received: 300,
            running: Some(running(200, 400)),
            ..CopyProgress::default()
        });
        assert_eq!(resumed.claims[0].bytes.unwrap().done, 300);
        assert_eq!(resumed.time_left.as_deref(), Some("2s"));
        let shared = first(200, 1 << 40);
        assert_eq!(shared.claims[0].bytes.unwrap().total, 1000);
        let unknown = first(200, 0);
        assert_eq!((unknown.claims[0].bytes, unknown.time_left), (None, None));
    }

    #[test]
    fn later_passes_report_remaining_data_and_predict_the_last_pass() {
        let passed = Passed {
            pass: 1,
            entries: 7,
            bytes: 300,
            compared_files: 5,
            received_bytes: 300,
            deleted: 0,
            changed: 0,
            unsteady: 0,
            direct: true,
            losses: Vec::new(),
            losses_of_all: true,
            sees_trusted: false,
        };
        let status = noted(CopyProgress {
            passes: 2,
            last: Some((passed, Duration::from_millis(64_200))),
            received: 320,
            compared_files: 6,
            losses: Vec::new(),
            failed: None,
            running: Some(running(20, 400)),
            roots: Some(("a".into(), "a".into())),
            route: Some(Route::Direct),
            reads_back_all: None,
        });
        let claim = &status.claims[0];
        assert_eq!(
            claim.bytes,
            Some(Progress {
                total: 300,
                done: 300,
                sent: 320
            })
        );
        assert_eq!(
            claim.files,
            Some(Progress {
                total: 7,
                done: 7,
                sent: 6
            })
        );
        assert_eq!(claim.roots.as_ref().unwrap().target, "a");
        assert_eq!((claim.passes, status.time_left), (2, None));
        assert_eq!(status.downtime.unwrap().predicted.as_deref(), Some("1m 5s"));
        assert_eq!(status.route, Some(Route::Direct));
    }

    #[test]
    fn the_status_says_why_everything_is_read_back() {
        let status = noted(CopyProgress {
            reads_back_all: Some("it was used by web".into()),
            ..CopyProgress::default()
        });
        let reason = status.downtime.unwrap().reason.unwrap();
        assert_eq!(reason, "the claim data: it was used by web");
    }

    fn on(node: &str, unfit: Option<&str>) -> Copies {
        let on = ReadsOn {
            node: node.into(),
            unfit: unfit.map(str::to_owned),
        };
        Copies {
            movers: vec![("data".into(), on)],
            ..Copies::default()
        }
    }

    /// A claim with files, read in passes of which the last took three seconds.
    fn predicted() -> VolumeMoveStatus {
        let mut status = status();
        status.claims[0].files = Some(Progress::default());
        status.downtime = Some(Downtime {
            predicted: Some("3s".into()),
            ..Downtime::default()
        });
        status
    }

    #[test]
    fn nothing_is_predicted_of_a_source_that_is_read_on_another_node() {
        let mut status = predicted();
        on("n1", None).record_nodes(&mut status);
        status.gated_at = Some(Time(Timestamp::UNIX_EPOCH));
        on("n1", None).write(&mut status);
        let downtime = status.downtime.clone().unwrap();
        assert_eq!(
            (downtime.predicted.as_deref(), downtime.reason),
            (Some("3s"), None)
        );
        on("n2", None).write(&mut status);
        let downtime = status.downtime.unwrap();
        let reason = downtime.reason.unwrap();
        assert_eq!(downtime.predicted, None);
        assert!(reason.contains("n1") && reason.contains("n2"), "{reason}");
    }

    #[test]
    fn a_source_that_will_be_read_elsewhere_is_reported_before_the_gate() {
        let mut status = predicted();
        on("n1", Some("it is not Ready")).write(&mut status);
        let downtime = status.downtime.clone().unwrap();
        let reason = downtime.reason.unwrap();
        assert_eq!(downtime.predicted, None);
        assert!(reason.contains("n1") && reason.contains("not Ready"), "{reason}");
        on("n1", None).write(&mut status);
        assert_eq!(status.downtime.unwrap().reason, None);
        // A device is read completely on every node, and so was the pass on which the prediction is based.
        let mut device = predicted();
        device.claims[0].files = None;
        on("n1", Some("it is not Ready")).write(&mut device);
        assert!(device.downtime.unwrap().predicted.is_some());
    }

    #[test]
    fn a_new_leader_keeps_unknown_progress() {
        let mut status = noted(CopyProgress {
            received: 200,
            running: Some(running(200, 400)),
            ..CopyProgress::default()
        });
        let before = status.clone();
        Copies::default().write(&mut status);
        assert_eq!(status, before);
    }

    #[test]
    fn losses_are_reported_by_claim_until_a_pass_finds_none() {
        let progress = |passes, losses: &[(LostKind, u64)]| CopyProgress {
            passes,
            losses: losses
                .iter()
                .map(|(kind, count)| Lost {
                    kind: *kind,
                    count: *count,
                    example: "d/odd".into(),
                })
                .collect(),
            ..CopyProgress::default()
        };
        let mut status = status();
        let mut noted = |data, logs| {
            let claims = vec![("data".into(), data), ("logs".into(), logs)];
            Copies {
                claims,
                ..Copies::default()
            }
            .write(&mut status);
            status.lossy.clone()
        };
        let both = [(LostKind::Xattrs, 12_000), (LostKind::Flags, 1)];
        let all = [
            "data: extended attributes of 12000 names, such as d/odd",
            "data: inode flags of 1 names, such as d/odd",
            "logs: inode flags of 2 names, such as d/odd",
        ];
        let logs = progress(1, &[(LostKind::Flags, 2)]);
        assert_eq!(noted(progress(1, &both), logs.clone()), all);
        // A new leader, before its first pass has completed.
        assert_eq!(noted(progress(0, &[]), logs.clone()), all);
        assert_eq!(noted(progress(1, &[]), logs), [all[2]]);
    }

    #[test]
    fn the_error_of_the_target_is_reported_while_the_move_waits_for_the_source() {
        let full = "the target is full: writing 'a' failed: No space left on device (os error 28)";
        let copies = |failed: Option<&str>| Copies {
            claims: vec![(
                "data".into(),
                CopyProgress {
                    failed: failed.map(str::to_owned),
                    ..CopyProgress::default()
                },
            )],
            ..Copies::default()
        };
        let failing = copies(Some(full));
        let said = format!("the last order to the mover of the claim data failed: {full}");
        assert_eq!(failing.and_failures(None), Some(said.clone()));
        let ended = "at the source: the pod liqo-csi/mover has ended with exit code 6";
        assert_eq!(
            failing.and_failures(Some(ended)),
            Some(format!("{ended}; {said}"))
        );
        let target = format!("at the target: {full}");
        assert_eq!(failing.and_failures(Some(&target)), Some(target), "once");
        assert_eq!(copies(None).and_failures(Some(ended)).as_deref(), Some(ended));
        assert_eq!(copies(None).and_failures(None), None);
    }

    #[test]
    fn a_possible_loss_is_reported_once_and_until_the_rights_are_granted() {
        let mut status = status();
        let mut reported = |unwatched: &[&str]| {
            let passed = CopyProgress {
                passes: 1,
                ..CopyProgress::default()
            };
            Copies {
                claims: vec![("data".into(), passed)],
                unwatched: unwatched.iter().map(|&why| why.to_owned()).collect(),
                ..Copies::default()
            }
            .write(&mut status);
            status.lossy.clone()
        };
        let why = "data: what pods write may be lost";
        assert_eq!(reported(&[why]), [why]);
        assert_eq!(reported(&[why]), [why]);
        assert!(reported(&[]).is_empty(), "the rights were granted");
    }
}
