//! The next step for one pod. [`super`] explains the order.

impl HomePod {
    /// Whether the pod is assigned to a cluster, and either may have run there or must not run any
    /// more. Until then its namespace decides where it runs.
    #[must_use]
    pub const fn may_run(&self) -> bool {
        self.claimed && (self.started || self.deleting.is_some())
    }
}

/// What the controller observed of a home pod.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one pod")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomePod {
    /// The grace period in seconds, if it is being deleted.
    pub deleting: Option<i64>,
    /// Whether it has our finalizer, so that its remote pod may exist.
    pub claimed: bool,
    /// Whether it may have run.
    pub started: bool,
    /// Whether it has terminated (`Succeeded` or `Failed`).
    pub ended: bool,
    /// Whether a controller replaces it after its deletion.
    pub controlled: bool,
}

/// What the remote cluster has under the name of the home pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemotePod {
    /// The cache has no such pod.
    Unseen,
    /// A live read has just confirmed that there is no such pod.
    Gone,
    /// The pod that was created for this home pod.
    Ours {
        /// Whether its scheduling gate is still set.
        gated: bool,
        /// The grace period in seconds, if it is being deleted.
        deleting: Option<i64>,
        /// Whether it has terminated.
        ended: bool,
    },
    /// A pod that was created for an earlier home pod of this name, or for this one although it has started
    /// as another remote pod.
    Earlier {
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// A pod that the fabric did not create.
    Foreign,
    /// It could not be read, and why.
    Unknown(String),
}

/// Why a pod does not run (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The reason in its status.
    pub reason: &'static str,
    /// The message in its status: what blocks the pod, and what the user can do.
    pub message: String,
}

#[derive(Clone, Debug)]
pub struct PodFacts {
    /// The home pod; `None` if there is none.
    pub home: Option<HomePod>,
    pub there: RemotePod,
    /// What blocks a pod that is not created yet, or must not start as it was created.
    pub obstacle: Option<Waiting>,
    /// Whether an administrator has declared the node out of service: nothing runs there, although the
    /// cluster cannot confirm it.
    pub out_of_service: bool,
    /// Whether the pod may terminate by itself ([`is_finite`](super::is_finite)).
    pub is_finite: bool,
}

/// How a home pod ends whose remote pod was deleted in the remote cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is deleted: its controller creates another one.
    Deleted,
    /// It becomes `Failed`, so that its status can still be read: no controller would replace it.
    Failed,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Report in the status what the home pod waits for.
    ReportWaiting(Waiting),
    /// Add the finalizer to the home pod, and record where it runs.
    Claim,
    /// Create the remote pod, gated.
    Make,
    /// Record on the home pod that it may have run.
    MarkStarted,
    /// Remove the gate of the remote pod.
    Ungate,
    /// Copy the status of the remote pod to the home pod.
    Reflect,
    /// Delete the remote pod, with at most this grace period in seconds; with its own, if `None`.
    DeleteThere(Option<i64>),
    /// End the home pod, because the remote one was deleted by others.
    End(End),
    /// Remove the finalizer of the home pod: nothing runs for it any more.
    RemoveFinalizer,
    Nothing,
}

/// A pod without a grace period is removed from the API server before its containers are killed, and its name
/// is free while they still run.
const LEAST_GRACE: i64 = 1;

#[must_use]
pub fn decide_pod(facts: &PodFacts) -> Act {
    match facts.home {
        None => sweep(&facts.there),
        Some(home) if home.deleting.is_some() => end(home, facts),
        Some(home) if !home.claimed => match (&facts.obstacle, home.ended) {
            (_, true) => Act::Nothing,
            (Some(waiting), false) => Act::ReportWaiting(waiting.clone()),
            (None, false) => Act::Claim,
        },
        Some(home) => run(home, facts),
    }
}

/// The home pod does not exist any more: deletes its remote pod.
fn sweep(there: &RemotePod) -> Act {
    match there {
        RemotePod::Ours { deleting: None, .. } | RemotePod::Earlier { deleting: false } => {
            Act::DeleteThere(None)
        }
        _ => Act::Nothing,
    }
}

fn end(home: HomePod, facts: &PodFacts) -> Act {
    if !home.claimed {
        // Finalizers of others keep it.
        let is_let_go = home.ended && home.deleting == Some(0);
        return if is_let_go {
            Act::Nothing
        } else {
            Act::RemoveFinalizer
        };
    }
    let grace = home.deleting.map(|it| it.max(LEAST_GRACE));
    match &facts.there {
        RemotePod::Unknown(_) if facts.out_of_service => Act::RemoveFinalizer,
        RemotePod::Gone | RemotePod::Earlier { .. } | RemotePod::Foreign => Act::RemoveFinalizer,
        // The result is copied before the pod is deleted: otherwise a Job would run again what has
        // succeeded.
        RemotePod::Ours { ended: true, .. } if !home.ended => Act::Reflect,
        RemotePod::Ours { deleting: None, .. } => Act::DeleteThere(grace),
        // A second deletion with a shorter grace period is passed on.
        RemotePod::Ours {
            deleting: Some(before),
            ..
        } if grace.is_some_and(|now| now < *before) => Act::DeleteThere(grace),
        RemotePod::Ours { .. } => Act::Reflect,
        RemotePod::Unseen | RemotePod::Unknown(_) => Act::Nothing,
    }
}

fn run(home: HomePod, facts: &PodFacts) -> Act {
    match &facts.there {
        RemotePod::Unknown(_) => Act::Nothing,
        // A terminated pod is kept for its logs until the home pod is deleted.
        RemotePod::Ours {
            gated: false,
            deleting: None,
            ..
        } if home.ended => Act::Reflect,
        _ if home.ended => Act::Nothing,
        // The remote pod terminated before it was deleted: drains and pod garbage collection delete terminated pods, too.
        RemotePod::Ours { ended: true, .. } if home.started && facts.is_finite => Act::Reflect,
        // Another client has removed the gate: the pod may have run, and must not be created again.
        RemotePod::Ours { gated: false, .. } if !home.started => Act::MarkStarted,
        RemotePod::Ours { deleting: Some(_), .. } if home.started && home.controlled => Act::End(End::Deleted),
        RemotePod::Ours { deleting: Some(_), .. } => Act::Reflect,
        RemotePod::Ours { gated: true, .. } if home.started => Act::Ungate,
        // The remote API server has dropped fields that protect the pod.
        RemotePod::Ours { gated: true, .. } if facts.obstacle.is_some() => Act::DeleteThere(None),
        RemotePod::Ours { gated: true, .. } => Act::MarkStarted,
        RemotePod::Ours { .. } => Act::Reflect,
        RemotePod::Unseen if home.started => Act::Nothing,
        RemotePod::Gone | RemotePod::Earlier { .. } | RemotePod::Foreign if home.started => Act::End(if home.controlled {
            End::Deleted
        } else {
            End::Failed
        }),
        RemotePod::Unseen | RemotePod::Gone => match &facts.obstacle {
            Some(waiting) => Act::ReportWaiting(waiting.clone()),
            None => Act::Make,
        },
        RemotePod::Earlier { deleting: false } => Act::DeleteThere(None),
        RemotePod::Earlier { deleting: true } => Act::ReportWaiting(Waiting {
            reason: "RemotePodLeaving",
            message: "the remote pod of an earlier pod of this name still exists; this one is created after it is deleted"
                .to_owned(),
        }),
        RemotePod::Foreign => Act::ReportWaiting(Waiting {
            reason: "RemoteNameTaken",
            message: "the remote cluster has a pod of this name that the fabric did not create and does not touch. Delete it \
                      there, or give this pod another name"
                .to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLAIMED: HomePod = HomePod {
        deleting: None,
        claimed: true,
        started: false,
        ended: false,
        controlled: true,
    };
    const STARTED: HomePod = HomePod {
        started: true,
        ..CLAIMED
    };
    const GATED: RemotePod = RemotePod::Ours {
        gated: true,
        deleting: None,
        ended: false,
    };
    const RUNNING: RemotePod = RemotePod::Ours {
        gated: false,
        deleting: None,
        ended: false,
    };

    fn facts(home: HomePod, there: RemotePod) -> PodFacts {
        PodFacts {
            home: Some(home),
            there,
            obstacle: None,
            out_of_service: false,
            is_finite: false,
        }
    }

    fn decided(home: HomePod, there: RemotePod) -> Act {
        decide_pod(&facts(home, there))
    }

    #[test]
    fn a_pod_is_claimed_created_marked_as_started_and_ungated_in_order() {
        let new = HomePod {
            claimed: false,
            ..CLAIMED
        };
        assert_eq!(decided(new, RemotePod::Unseen), Act::Claim);
        assert_eq!(decided(CLAIMED, RemotePod::Unseen), Act::Make);
        assert_eq!(decided(CLAIMED, GATED), Act::MarkStarted);
        assert_eq!(decided(STARTED, GATED), Act::Ungate);
        assert_eq!(decided(STARTED, RUNNING), Act::Reflect);
    }

    #[test]
    fn obstacles_are_reported() {
        let waiting = Waiting {
            reason: "ClaimNotReady",
            message: "the claim".into(),
        };
        for home in [
            CLAIMED,
            HomePod {
                claimed: false,
                ..CLAIMED
            },
        ] {
            let facts = PodFacts {
                obstacle: Some(waiting.clone()),
                ..facts(home, RemotePod::Unseen)
            };
            assert_eq!(decide_pod(&facts), Act::ReportWaiting(waiting.clone()));
        }
        assert!(matches!(
            decided(CLAIMED, RemotePod::Foreign),
            Act::ReportWaiting(_)
        ));
    }

    #[test]
    fn a_remote_pod_is_deleted_with_the_grace_period_of_the_home_pod() {
        let deleting = |grace| HomePod {
            deleting: Some(grace),
            ..STARTED
        };
        assert_eq!(decided(deleting(30), RUNNING), Act::DeleteThere(Some(30)));
        assert_eq!(
            decided(deleting(0), RUNNING),
            Act::DeleteThere(Some(1)),
            "never zero: the name would be free while it runs"
        );
        let going = |grace| RemotePod::Ours {
            gated: false,
            deleting: Some(grace),
            ended: false,
        };
        assert_eq!(decided(deleting(30), going(30)), Act::Reflect);
        assert_eq!(decided(deleting(5), going(30)), Act::DeleteThere(Some(5)));
        assert_eq!(decided(deleting(0), going(1)), Act::Reflect);
        assert_eq!(
            decided(deleting(30), RemotePod::Unseen),
            Act::Nothing,
            "not proved"
        );
        assert_eq!(decided(deleting(30), RemotePod::Gone), Act::RemoveFinalizer);
        let mut silent = facts(deleting(30), RemotePod::Unknown("no answer".into()));
        assert_eq!(decide_pod(&silent), Act::Nothing);
        silent.out_of_service = true;
        assert_eq!(decide_pod(&silent), Act::RemoveFinalizer);
        silent.there = RUNNING;
        assert_eq!(decide_pod(&silent), Act::DeleteThere(Some(30)), "it answers");
    }

    #[test]
    fn the_final_status_is_copied_before_a_pod_is_deleted() {
        let ended = |deleting| RemotePod::Ours {
            gated: false,
            deleting,
            ended: true,
        };
        let deleting = HomePod {
            deleting: Some(30),
            ..STARTED
        };
        let known = |home| HomePod { ended: true, ..home };
        for is_finite in [false, true] {
            let decided = |home, there| {
                decide_pod(&PodFacts {
                    is_finite,
                    ..facts(home, there)
                })
            };
            // A pod whose containers are always restarted ended because it was deleted.
            let drained = if is_finite {
                Act::Reflect
            } else {
                Act::End(End::Deleted)
            };
            assert_eq!(decided(STARTED, ended(Some(30))), drained);
            assert_eq!(decided(STARTED, ended(None)), Act::Reflect);
            assert_eq!(decided(deleting, ended(None)), Act::Reflect);
            assert_eq!(decided(deleting, ended(Some(30))), Act::Reflect);
            assert_eq!(decided(known(STARTED), ended(Some(30))), Act::Nothing);
            assert_eq!(decided(known(deleting), ended(None)), Act::DeleteThere(Some(30)));
        }
    }

    #[test]
    fn an_unclaimed_pod_is_let_go_once() {
        let deleting = |grace, ended| HomePod {
            deleting: Some(grace),
            claimed: false,
            ended,
            ..CLAIMED
        };
        for (grace, ended, act) in [
            (30, false, Act::RemoveFinalizer),
            (0, false, Act::RemoveFinalizer),
            (30, true, Act::RemoveFinalizer),
            (0, true, Act::Nothing),
        ] {
            assert_eq!(decided(deleting(grace, ended), RemotePod::Unseen), act);
        }
    }

    #[test]
    fn a_pod_that_may_have_run_is_marked_before_its_deletion() {
        let going = RemotePod::Ours {
            gated: false,
            deleting: Some(30),
            ended: false,
        };
        assert_eq!(decided(CLAIMED, going), Act::MarkStarted);
    }

    #[test]
    fn a_remote_pod_deleted_by_others_is_not_recreated() {
        let going = RemotePod::Ours {
            gated: false,
            deleting: Some(30),
            ended: false,
        };
        assert_eq!(decided(STARTED, going), Act::End(End::Deleted));
        assert_eq!(decided(STARTED, RemotePod::Gone), Act::End(End::Deleted));
        let bare = HomePod {
            controlled: false,
            ..STARTED
        };
        assert_eq!(decided(bare, RemotePod::Gone), Act::End(End::Failed));
        let ended = HomePod {
            ended: true,
            ..STARTED
        };
        assert_eq!(decided(ended, RemotePod::Gone), Act::Nothing);
    }

    /// A remote pod, and whether it can ever have run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Remote {
        id: u32,
        of: u32,
        gated: bool,
        ran: bool,
    }

    /// Consecutive home pods of the same name, and the remote pod of that name. Requests may arrive late,
    /// remote pods may be deleted by others, reads may be outdated.
    #[derive(Debug, Default)]
    struct World {
        home: Option<(u32, HomePod)>,
        remote: Option<Remote>,
        late: Vec<u32>,
        ran: Vec<u32>,
        /// The remote pod that was recorded as started for the home pod.
        named: Option<u32>,
        made: u32,
    }

    impl World {
        fn there(&self, outdated: bool) -> RemotePod {
            let Some((uid, home)) = self.home else {
                return match self.remote {
                    Some(_) => RemotePod::Ours {
                        gated: false,
                        deleting: None,
                        ended: false,
                    },
                    None => RemotePod::Gone,
                };
            };
            match self.remote {
                None if home.started || home.deleting.is_some() => RemotePod::Gone,
                _ if outdated && !home.started && home.deleting.is_none() => RemotePod::Unseen,
                None => RemotePod::Unseen,
                Some(remote) if remote.of == uid && self.named.is_none_or(|id| id == remote.id) => {
                    RemotePod::Ours {
                        gated: remote.gated,
                        deleting: None,
                        ended: false,
                    }
                }
                Some(_) => RemotePod::Earlier { deleting: false },
            }
        }

        fn act(&mut self, outdated: bool, lost: bool) {
            let facts = PodFacts {
                home: self.home.map(|(_, home)| home),
                there: self.there(outdated),
                obstacle: None,
                out_of_service: false,
                is_finite: false,
            };
            let uid = self.home.map(|(uid, _)| uid);
            match decide_pod(&facts) {
                Act::Claim => self.change(|home| home.claimed = true),
                Act::Make if lost => self.late.extend(uid),
                Act::Make => self.post(uid.unwrap()),
                Act::MarkStarted => {
                    self.change(|home| home.started = true);
                    self.named = self.remote.map(|remote| remote.id);
                }
                Act::Ungate => self.remote.as_mut().unwrap().gated = false,
                Act::DeleteThere(_) => self.remote = None,
                Act::End(End::Deleted) => self.change(|home| home.deleting = Some(30)),
                Act::End(End::Failed) => self.change(|home| home.ended = true),
                Act::RemoveFinalizer => {
                    if let Some(remote) = self.remote {
                        let may_run = !remote.gated && Some(remote.of) == uid;
                        assert!(!may_run, "freed while its pod is there");
                    }
                    (self.home, self.named) = (None, None);
                }
                Act::ReportWaiting(_) | Act::Reflect | Act::Nothing => {}
            }
        }

        fn post(&mut self, of: u32) {
            if self.remote.is_none() {
                self.made += 1;
                self.remote = Some(Remote {
                    id: self.made,
                    of,
                    gated: true,
                    ran: false,
                });
            }
        }

        fn change(&mut self, change: impl FnOnce(&mut HomePod)) {
            change(&mut self.home.as_mut().unwrap().1);
        }

        /// The remote cluster runs a pod without the gate.
        fn tick(&mut self) {
            if let Some(remote) = &mut self.remote
                && !remote.gated
                && !remote.ran
            {
                remote.ran = true;
                self.ran.push(remote.of);
            }
        }
    }

    proptest! {
        #[test]
        fn a_home_pod_never_runs_twice(
            deeds in prop::collection::vec((0..8_u8, any::<bool>(), any::<bool>()), 1..80),
            controlled: bool,
        ) {
            let mut world = World::default();
            let mut next = 0;
            for (deed, outdated, lost) in deeds {
                match deed {
                    0 if world.home.is_none() => {
                        world.home = Some((next, HomePod { controlled, ..HomePod::default() }));
                        next += 1;
                    }
                    1 => if world.home.is_some() {
                        world.change(|home| home.deleting = Some(0));
                    },
                    2 => world.remote = None,
                    3 => if let Some(of) = world.late.pop() { world.post(of) },
                    _ => world.act(outdated, lost),
                }
                world.tick();
                let mut ran = world.ran.clone();
                ran.sort_unstable();
                let before = ran.len();
                ran.dedup();
                prop_assert_eq!(ran.len(), before, "{:?}", world);
            }
        }
    }
}
