//! The next step for one namespace in one remote cluster, and its status.

use std::time::Duration;

use super::{Claim, ClusterState, Readiness, Unselected, Volumes, first_names};

/// The status announces the deletion of a namespace for this long before it happens: until then every replica
/// that creates twins has read that it must not create any there.
const NOTICE: Duration = Duration::from_secs(5);
/// Claims or pods listed in a message.
const MOST_LISTED: usize = 10;

/// What the remote cluster has under the name of the remote namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Absent,
    /// The namespace that was created for the one at home.
    Ours {
        uid: String,
        /// Whether it is being deleted.
        deleting: bool,
        /// The claims in it; read only before its deletion.
        claims: Vec<Claim>,
        /// Whether twins can be created in it; if not (yet), the condition to publish.
        usable: Result<(), Readiness>,
    },
    /// A namespace that is not ours, and why.
    Foreign(String),
    /// The namespace could not be read, and why.
    Unknown(String),
}

/// A pod at home that may run in the cluster, or waits to run there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub name: String,
    pub uid: String,
    /// The claims that it mounts.
    pub claims: Vec<String>,
    /// Whether it is being deleted.
    pub leaving: bool,
}

/// What the controller observed of a namespace in one cluster.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whether the namespace should exist there, or why not.
    pub wanted: Result<(), Unselected>,
    /// The condition in the published status.
    pub published: Option<Readiness>,
    /// For how long it has been published.
    pub since: Duration,
    /// The error of the last attempt to create the namespace or to evict pods, if it was refused.
    pub refused: Option<String>,
    /// The pods at home on a node of that cluster; read only before the deletion of the namespace, when the
    /// status announces it.
    pub pods: Vec<Placed>,
    /// Whether an administrator has declared its node out of service: nothing runs there any more, although
    /// the cluster cannot confirm it.
    pub out_of_service: bool,
    /// What happens to its claims when the namespace is deleted.
    pub volumes: Volumes,
    pub seen: Seen,
}

/// The change to make in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Create,
    /// Evict these pods at home, so that they run elsewhere.
    Evict(Vec<Placed>),
    /// Delete what was copied into the namespace, which claims hold: no pod uses it any more, and it is not kept up
    /// to date.
    DeleteCopies,
    /// Delete the namespace with this uid.
    Delete(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The status, which is written before the step is executed.
    pub state: ClusterState,
    /// The step, executed once the status is written.
    pub step: Option<Step>,
}

#[must_use]
pub fn decide(facts: Facts) -> Decision {
    let selected = facts.wanted.clone();
    let (ready, step) = match selected {
        Ok(()) => keep(facts.published.as_ref(), facts.refused, facts.seen),
        Err(_) => remove(facts),
    };
    Decision {
        state: ClusterState { selected, ready },
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
            let creating = || Readiness::Creating("the namespace is being created".to_owned());
            let ready = refused.map_or_else(creating, Readiness::Failed);
            return (Some(ready), Some(Step::Create));
        }
        Seen::Ours { deleting: true, .. } => Readiness::Terminating(
            "the namespace is being deleted there; it is created again after that".to_owned(),
        ),
        Seen::Foreign(why) => Readiness::Failed(why),
        // A namespace that existed a moment ago still counts while the cluster is unreachable, or while a
        // right is being granted again.
        Seen::Unknown(why)
        | Seen::Ours {
            usable: Err(Readiness::Creating(why)),
            ..
        } => match published {
            Some(Readiness::Created) => Readiness::Created,
            _ => Readiness::Creating(why),
        },
        Seen::Ours {
            usable: Err(said), ..
        } => said,
        Seen::Ours { .. } => Readiness::Created,
    };
    (Some(ready), None)
}

fn remove(facts: Facts) -> (Option<Readiness>, Option<Step>) {
    let terminating = |why: String| Some(Readiness::Terminating(why));
    let announced = matches!(facts.published, Some(Readiness::Terminating(_))) && facts.since >= NOTICE;
    match facts.seen {
        Seen::Unknown(why) if facts.published.is_some() && !facts.out_of_service => (terminating(why), None),
        Seen::Absent | Seen::Foreign(_) | Seen::Unknown(_) => evict_leftover_pods(facts),
        Seen::Ours { deleting: true, .. } => (
            terminating("the namespace is being deleted there".to_owned()),
            None,
        ),
        Seen::Ours { .. } if !announced => (
            terminating(
                "the namespace is about to be deleted there, and its pods will be evicted".to_owned(),
            ),
            None,
        ),
        Seen::Ours { uid, claims, .. } => empty(uid, &claims, facts.volumes, facts.pods, facts.refused),
    }
}

/// Evicts the pods that would wait for a namespace that does not exist. The loop of the pods decides what
/// happens to them afterwards.
fn evict_leftover_pods(facts: Facts) -> (Option<Readiness>, Option<Step>) {
    match facts.published {
        None => (None, None),
        Some(Readiness::Terminating(_)) => {
            let mut pods = facts.pods;
            pods.retain(|pod| !pod.leaving);
            if pods.is_empty() {
                return (None, None);
            }
            let why = evicting(&pods, facts.refused);
            (Some(Readiness::Terminating(why)), Some(Step::Evict(pods)))
        }
        Some(_) => {
            let why = "the namespace does not exist any more; its pods will be evicted".to_owned();
            (Some(Readiness::Terminating(why)), None)
        }
    }
}

fn evicting(pods: &[Placed], refused: Option<String>) -> String {
    if let Some(refused) = refused {
        return format!("pods cannot be evicted: {refused}");
    }
    let names = listed(pods.iter().map(|pod| pod.name.clone()).collect());
    format!("pods are being evicted: {names}. The namespace is deleted after them")
}

/// Evicts the pods, and deletes the namespace once it has no pods and no claims that block it. A pod whose
/// claim stays could run nowhere else: it stays too.
fn empty(
    uid: String,
    claims: &[Claim],
    volumes: Volumes,
    pods: Vec<Placed>,
    refused: Option<String>,
) -> (Option<Readiness>, Option<Step>) {
    let has_pods = !pods.is_empty();
    let (going, holding): (Vec<&Claim>, Vec<&Claim>) =
        claims.iter().partition(|claim| volumes.may_delete(claim));
    // Retained volumes serve their pods until nothing blocks the deletion of the namespace.
    let is_kept = |it: &Claim| !volumes.may_delete(it) || (volumes == Volumes::Retain && !holding.is_empty());
    let stays = |name: &String| {
        let mut named = claims.iter().filter(|it| it.name == *name);
        named.any(|it| !it.leaving && is_kept(it))
    };
    let free: Vec<_> = pods
        .into_iter()
        .filter(|pod| !pod.claims.iter().any(stays))
        .collect();
    let describe = |claims: &[&Claim]| listed(claims.iter().map(|it| it.described(volumes)).collect());
    let why = if refused.is_some() && !free.is_empty() {
        evicting(&free, refused)
    } else if !holding.is_empty() {
        let holding = describe(&holding);
        format!(
            "the namespace would be deleted with the data of its claims: {holding}. Move or delete the claims; then the \
             namespace is deleted"
        )
    } else if !free.is_empty() {
        evicting(&free, None)
    } else {
        let with = match (going.is_empty(), volumes) {
            (true, _) => String::new(),
            (false, Volumes::Retain) => {
                format!(", and its claims, whose data is retained: {}", describe(&going))
            }
            (false, _) => format!(", and its claims: {}", describe(&going)),
        };
        let why = format!("the namespace is about to be deleted there{with}");
        return (Some(Readiness::Terminating(why)), Some(Step::Delete(uid)));
    };
    let evicted: Vec<_> = free.into_iter().filter(|pod| !pod.leaving).collect();
    let step = if evicted.is_empty() {
        (!has_pods).then_some(Step::DeleteCopies)
    } else {
        Some(Step::Evict(evicted))
    };
    (Some(Readiness::Terminating(why)), step)
}

fn listed(mut names: Vec<String>) -> String {
    names.sort();
    first_names(&names, MOST_LISTED)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ours(claims: &[&str]) -> Seen {
        Seen::Ours {
            uid: "u".into(),
            deleting: false,
            claims: claims.iter().map(|&it| claim(it, false)).collect(),
            usable: Ok(()),
        }
    }

    fn claim(name: &str, leaving: bool) -> Claim {
        Claim {
            name: name.to_owned(),
            is_twin: true,
            volume: None,
            leaving,
            retained: false,
        }
    }

    fn pod(name: &str, claims: &[&str]) -> Placed {
        Placed {
            name: name.to_owned(),
            uid: format!("{name}-uid"),
            claims: claims.iter().map(|&it| it.to_owned()).collect(),
            leaving: false,
        }
    }

    fn removed(seen: Seen, pods: Vec<Placed>) -> Decision {
        let terminating = Some(terminating());
        decide(Facts {
            pods,
            ..facts(false, terminating, 60, seen)
        })
    }

    fn told(wanted: bool, published: Option<Readiness>, since: u64, seen: Seen) -> Decision {
        decide(facts(wanted, published, since, seen))
    }

    fn facts(wanted: bool, published: Option<Readiness>, since: u64, seen: Seen) -> Facts {
        Facts {
            wanted: if wanted {
                Ok(())
            } else {
                Err(Unselected::Unmet("not selected".into()))
            },
            published,
            since: Duration::from_secs(since),
            refused: None,
            pods: Vec::new(),
            out_of_service: false,
            volumes: Volumes::Hold,
            seen,
        }
    }

    fn terminating() -> Readiness {
        Readiness::Terminating("going".into())
    }

    #[test]
    fn a_selected_namespace_is_created_and_reported() {
        let absent = told(true, None, 0, Seen::Absent);
        assert_eq!(absent.step, Some(Step::Create));
        let there = told(true, None, 0, ours(&["data"]));
        assert_eq!((there.state.ready, there.step), (Some(Readiness::Created), None));
    }

    #[test]
    fn foreign_namespaces_are_left_alone() {
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
    fn claims_keep_a_namespace_and_are_reported() {
        let held = told(false, Some(terminating()), 60, ours(&["logs", "data"]));
        assert_eq!(held.step, Some(Step::DeleteCopies), "no pod needs them");
        let Some(Readiness::Terminating(why)) = held.state.ready else {
            panic!("it is held");
        };
        assert!(why.contains("data, logs."), "{why}");
    }

    #[test]
    fn a_namespace_is_reported_as_terminating_before_it_is_deleted() {
        assert_eq!(told(false, Some(Readiness::Created), 60, ours(&[])).step, None);
        assert_eq!(told(false, Some(terminating()), 1, ours(&[])).step, None);
        let end = told(false, Some(terminating()), 5, ours(&[])).step;
        assert_eq!(end, Some(Step::Delete("u".into())));
        assert_eq!(
            told(false, Some(terminating()), 0, Seen::Absent).state.ready,
            None
        );
    }

    #[test]
    fn all_pods_are_evicted_before_the_namespace_is_deleted() {
        let (web, db) = (pod("web", &[]), pod("db", &["data"]));
        let both = vec![web.clone(), db.clone()];
        let held = removed(ours(&["data"]), both.clone());
        assert_eq!(held.step, Some(Step::Evict(vec![web.clone()])));
        let mut leaving = ours(&[]);
        if let Seen::Ours { claims, .. } = &mut leaving {
            claims.push(claim("data", true));
        }
        assert_eq!(removed(leaving, both.clone()).step, Some(Step::Evict(both)));
        let gone = Placed { leaving: true, ..web };
        let waits = removed(ours(&[]), vec![gone]);
        assert_eq!(waits.step, None);
        assert!(matches!(waits.state.ready, Some(Readiness::Terminating(why)) if why.contains("web")));
        assert_eq!(
            removed(ours(&[]), Vec::new()).step,
            Some(Step::Delete("u".into()))
        );
    }

    #[test]
    fn an_out_of_service_cluster_is_removed_from_the_status() {
        let silent = Seen::Unknown("no answer".into());
        let held = facts(false, Some(terminating()), 60, silent);
        assert!(decide(held.clone()).state.ready.is_some());
        let dead = Facts {
            out_of_service: true,
            ..held
        };
        assert_eq!(decide(dead).state.ready, None);
    }

    #[test]
    fn pods_of_retained_claims_are_evicted_before_the_namespace_is_deleted() {
        let db = pod("db", &["data"]);
        let told = |retained: bool, pods: Vec<Placed>| {
            let mut seen = ours(&[]);
            if let Seen::Ours { claims, .. } = &mut seen {
                claims.push(Claim {
                    retained,
                    ..claim("data", false)
                });
            }
            decide(Facts {
                pods,
                volumes: Volumes::Retain,
                ..facts(false, Some(terminating()), 60, seen)
            })
        };
        let held = told(false, vec![db.clone()]);
        assert_eq!(held.step, None);
        assert!(
            matches!(held.state.ready, Some(Readiness::Terminating(why)) if why.contains("not retained yet"))
        );
        assert_eq!(told(true, vec![db.clone()]).step, Some(Step::Evict(vec![db])));
        let end = told(true, Vec::new());
        assert_eq!(end.step, Some(Step::Delete("u".into())));
        assert!(
            matches!(end.state.ready, Some(Readiness::Terminating(why)) if why.contains("retained: data"))
        );
    }

    #[test]
    fn pods_of_retained_claims_run_while_another_claim_keeps_the_namespace() {
        let mut seen = ours(&[]);
        if let Seen::Ours { claims, .. } = &mut seen {
            let retained = Claim {
                retained: true,
                ..claim("data", false)
            };
            let theirs = Claim {
                is_twin: false,
                ..claim("theirs", false)
            };
            claims.extend([retained, theirs]);
        }
        let (db, web) = (pod("db", &["data"]), pod("web", &[]));
        let decision = decide(Facts {
            pods: vec![db, web.clone()],
            volumes: Volumes::Retain,
            ..facts(false, Some(terminating()), 60, seen)
        });
        assert_eq!(decision.step, Some(Step::Evict(vec![web])));
        assert!(
            matches!(decision.state.ready, Some(Readiness::Terminating(why)) if why.contains("theirs (not a twin)"))
        );
    }

    proptest! {
        #[test]
        fn a_namespace_that_is_selected_or_in_use_is_not_deleted(
            wanted: bool, names in prop::collection::vec("[a-z]{1,4}", 0..3), since in 0..20_u64,
            deleting: bool, pods in 0..3_usize, leaving: bool, is_twin: bool, retained: bool,
            volumes in prop::sample::select(vec![Volumes::Hold, Volumes::Delete, Volumes::Retain]),
        ) {
            let claim = |name: &String| Claim { is_twin, retained, ..claim(name, leaving) };
            let claims: Vec<_> = names.iter().map(claim).collect();
            let holds = claims.iter().any(|claim| !volumes.may_delete(claim));
            let pods: Vec<_> = (0..pods).map(|it| pod(&it.to_string(), &[])).collect();
            let seen = Seen::Ours { uid: "u".into(), deleting, claims, usable: Ok(()) };
            let facts = facts(wanted, Some(terminating()), since, seen);
            let decision = decide(Facts { pods: pods.clone(), volumes, ..facts });
            match decision.step {
                None | Some(Step::Create) => {}
                Some(Step::Evict(evicted)) => {
                    prop_assert!(!wanted && !deleting && since >= 5);
                    prop_assert_eq!(evicted, pods);
                }
                Some(Step::DeleteCopies) => {
                    prop_assert!(!wanted && holds && pods.is_empty() && !deleting && since >= 5);
                }
                Some(Step::Delete(_)) => {
                    prop_assert!(!wanted && !holds && pods.is_empty() && !deleting && since >= 5);
                }
            }
            prop_assert_eq!(wanted, decision.state.selected.is_ok());
        }
    }
}
