//! What is to be done about one namespace in one cluster, and what is said of it.

use std::time::Duration;

use super::{ClusterState, Readiness, Unselected};

/// Before a namespace is deleted its end has been in the status for so long: who makes twins
/// has read by then that none are to be made there.
const NOTICE: Duration = Duration::from_secs(5);
/// As many claims are listed.
const MOST_LISTED: usize = 10;

/// What a remote cluster has under the name that the namespace is to have there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing.
    Absent,
    /// The namespace that was made for the one here.
    Ours {
        /// Its uid.
        uid: String,
        /// Whether it is being deleted.
        deleting: bool,
        /// The claims in it; looked for only when it is to go.
        claims: Vec<String>,
        /// Whether twins can be made in it, or why not.
        usable: Result<(), String>,
    },
    /// One that is not ours, as this says.
    Foreign(String),
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// What is known of a namespace in a cluster.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whether it is to be there, or why not.
    pub wanted: Result<(), Unselected>,
    /// What the status says of it.
    pub published: Option<Readiness>,
    /// For how long it has said that.
    pub since: Duration,
    /// Why the cluster did not make it, if it was asked to and would not.
    pub refused: Option<String>,
    /// What is there.
    pub seen: Seen,
}

/// What is to be done in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the namespace.
    Create,
    /// Delete the namespace of this uid.
    Delete(String),
}

/// What is to be said, and then done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is said. It is written before anything is done.
    pub state: ClusterState,
    /// What is done once that stands in the status.
    pub step: Option<Step>,
}

/// Decides about one namespace in one cluster.
#[must_use]
pub fn decide(facts: Facts) -> Decision {
    let Facts {
        wanted,
        published,
        since,
        refused,
        seen,
    } = facts;
    let (ready, step) = match &wanted {
        Ok(()) => keep(published.as_ref(), refused, seen),
        Err(_) => remove(published.as_ref(), since, seen),
    };
    Decision {
        state: ClusterState {
            selected: wanted,
            ready,
        },
        step,
    }
}

fn keep(
    published: Option<&Readiness>,
    refused: Option<String>,
    seen: Seen,
) -> (Option<Readiness>, Option<Step>) {
    let ready = match seen {
        Seen::Absent => {
            let creating = || Readiness::Creating("the namespace is being made".to_owned());
            let ready = refused.map_or_else(creating, Readiness::Failed);
            return (Some(ready), Some(Step::Create));
        }
        Seen::Ours { deleting: true, .. } => Readiness::Terminating(
            "the namespace is being deleted there; it is made again when it is gone".to_owned(),
        ),
        Seen::Ours { usable: Err(why), .. } | Seen::Foreign(why) => Readiness::Failed(why),
        Seen::Ours { .. } => Readiness::Created,
        // What was there a moment ago is not given up because nobody answers.
        Seen::Unknown(why) => match published {
            Some(Readiness::Created) => Readiness::Created,
            _ => Readiness::Creating(why),
        },
    };
    (Some(ready), None)
}

fn remove(published: Option<&Readiness>, since: Duration, seen: Seen) -> (Option<Readiness>, Option<Step>) {
    let terminating = |why: String| Some(Readiness::Terminating(why));
    match seen {
        Seen::Absent | Seen::Foreign(_) => (None, None),
        Seen::Unknown(_) if published.is_none() => (None, None),
        Seen::Unknown(why) => (terminating(why), None),
        Seen::Ours { deleting: true, .. } => (
            terminating("the namespace is being deleted there".to_owned()),
            None,
        ),
        Seen::Ours { claims, .. } if !claims.is_empty() => (terminating(held_by(claims)), None),
        Seen::Ours { uid, .. } => {
            let announced = matches!(published, Some(Readiness::Terminating(_))) && since >= NOTICE;
            let ready = terminating("the namespace is about to be deleted there".to_owned());
            (ready, announced.then_some(Step::Delete(uid)))
        }
    }
}

fn held_by(mut claims: Vec<String>) -> String {
    claims.sort();
    let more = claims.len().saturating_sub(MOST_LISTED);
    claims.truncate(MOST_LISTED);
    let and = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!(
        "the namespace would be deleted with the data of its claims: {}{and}. Move or delete the claims; the namespace \
         goes then",
        claims.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ours(claims: &[&str]) -> Seen {
        Seen::Ours {
            uid: "u".into(),
            deleting: false,
            claims: claims.iter().map(|&it| it.to_owned()).collect(),
            usable: Ok(()),
        }
    }

    fn told(wanted: bool, published: Option<Readiness>, since: u64, seen: Seen) -> Decision {
        decide(Facts {
            wanted: if wanted {
                Ok(())
            } else {
                Err(Unselected::Unmet("not selected".into()))
            },
            published,
            since: Duration::from_secs(since),
            refused: None,
            seen,
        })
    }

    fn terminating() -> Readiness {
        Readiness::Terminating("going".into())
    }

    #[test]
    fn what_is_wanted_is_made_and_then_there() {
        let absent = told(true, None, 0, Seen::Absent);
        assert_eq!(absent.step, Some(Step::Create));
        let there = told(true, None, 0, ours(&["data"]));
        assert_eq!((there.state.ready, there.step), (Some(Readiness::Created), None));
    }

    #[test]
    fn what_belongs_to_others_is_left_alone() {
        for wanted in [true, false] {
            let foreign = told(
                wanted,
                Some(terminating()),
                60,
                Seen::Foreign("it is not ours".into()),
            );
            assert_eq!(foreign.step, None);
            assert_eq!(
                foreign.state.ready,
                wanted.then(|| Readiness::Failed("it is not ours".into()))
            );
        }
    }

    #[test]
    fn a_cluster_that_does_not_answer_changes_nothing() {
        let silent = || Seen::Unknown("no answer".into());
        let was = told(true, Some(Readiness::Created), 0, silent());
        assert_eq!(was.state.ready, Some(Readiness::Created));
        let new = told(true, None, 0, silent());
        assert_eq!(new.state.ready, Some(Readiness::Creating("no answer".into())));
        let going = told(false, Some(Readiness::Created), 0, silent());
        assert_eq!(
            going.state.ready,
            Some(Readiness::Terminating("no answer".into()))
        );
    }

    #[test]
    fn claims_hold_a_namespace_and_are_named() {
        let held = told(false, Some(terminating()), 60, ours(&["logs", "data"]));
        assert_eq!(held.step, None);
        let Some(Readiness::Terminating(why)) = held.state.ready else {
            panic!("it is held");
        };
        assert!(why.contains("data, logs."), "{why}");
    }

    #[test]
    fn the_end_of_a_namespace_is_announced_first() {
        assert_eq!(told(false, Some(Readiness::Created), 60, ours(&[])).step, None);
        assert_eq!(told(false, Some(terminating()), 1, ours(&[])).step, None);
        let end = told(false, Some(terminating()), 5, ours(&[])).step;
        assert_eq!(end, Some(Step::Delete("u".into())));
        assert_eq!(
            told(false, Some(terminating()), 0, Seen::Absent).state.ready,
            None
        );
    }

    proptest! {
        #[test]
        fn nothing_is_deleted_that_is_wanted_or_holds_a_claim(
            wanted: bool, claims in prop::collection::vec("[a-z]{1,4}", 0..3), since in 0..20_u64,
            deleting: bool,
        ) {
            let seen = Seen::Ours { uid: "u".into(), deleting, claims: claims.clone(), usable: Ok(()) };
            let decision = told(wanted, Some(terminating()), since, seen);
            if decision.step.is_some() {
                prop_assert!(!wanted && claims.is_empty() && !deleting && since >= 5);
            }
            prop_assert_eq!(wanted, decision.state.selected.is_ok());
        }
    }
}
