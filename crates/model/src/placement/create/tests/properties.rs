//! Properties of `create_step` for arbitrary facts, and that it always terminates.

use proptest::{prelude::*, sample::select};

use super::*;

fn any_state() -> impl Strategy<Value = TwinState> {
    let nowhere = Reach::Nowhere(AffinityError::NoNode(1));
    select(vec![
        TwinState::Lost,
        TwinState::Pending(Prebinding::Provisioner),
        TwinState::Pending(Prebinding::Reserved("pv".into())),
        TwinState::Pending(Prebinding::Found("pv".into())),
        TwinState::Pending(Prebinding::NoneFits),
        TwinState::Bound(Reach::Unread),
        TwinState::Bound(Reach::FromTarget { retained: false }),
        TwinState::Bound(Reach::FromTarget { retained: true }),
        TwinState::Bound(Reach::NotFromTarget),
        TwinState::Bound(nowhere),
    ])
}

prop_compose! {
    fn any_twin()(
        (handed_over, deleting, created_with_node, answered_early) in any::<(bool, bool, bool, bool)>(),
        differences in select(vec![vec![], vec![Part::Size]]),
        provisioner in select(vec![None, Some("real.example"), Some(DRIVER_NAME)]),
        node in select(vec![None, Some("n1"), Some("n2")]),
        state in any_state(),
    ) -> Twin {
        let (provisioner, node) = (provisioner.map(str::to_owned), node.map(str::to_owned));
        Twin { handed_over, deleting, differences, provisioner, created_with_node, node, answered_early, state }
    }
}

fn any_place() -> impl Strategy<Value = TwinFact> {
    prop_oneof![
        1 => Just(TwinFact::Absent),
        1 => Just(TwinFact::Foreign(Foreign::OtherClaim("x".into()))),
        1 => any::<bool>().prop_map(|deleting| TwinFact::Copied { deleting }),
        8 => any_twin().prop_map(TwinFact::Ours),
    ]
}

prop_compose! {
    fn any_facts()(
        claim in select(vec![ClaimFact::NotGiven, ClaimFact::Live, ClaimFact::Gone]),
        target in select(vec![
            Target::Any,
            Target::Node("n1".into()),
            Target::OneOf(["n1".to_owned(), "n3".to_owned()].into()),
            Target::Disagrees { selected: None, requested: "n1".into() },
        ]),
        twin in any_place(),
        (virtual_pv, retain) in any::<(bool, bool)>(),
    ) -> CreateFacts {
        CreateFacts { claim, target, twin, virtual_pv, retain }
    }
}

/// The facts after a step, if all other components succeed.
fn after(step: &CreateStep, facts: &mut CreateFacts) {
    let reachable = || TwinState::Bound(Reach::FromTarget { retained: false });
    match (step, &mut facts.twin) {
        (CreateStep::Create, place) => {
            let node = match &facts.target {
                Target::Node(node) => Some(node.clone()),
                Target::OneOf(nodes) => nodes.first().cloned(),
                Target::Any | Target::Disagrees { .. } => None,
            };
            *place = TwinFact::Ours(Twin {
                created_with_node: node.is_some(),
                node,
                ..pending()
            });
        }
        (CreateStep::Withdraw(_) | CreateStep::AwaitGone | CreateStep::RemoveCopy, place) => {
            *place = TwinFact::Absent;
        }
        (CreateStep::PreBind { volume }, TwinFact::Ours(twin)) => {
            twin.state = TwinState::Pending(Prebinding::Reserved(volume.clone()));
        }
        (CreateStep::Wait, TwinFact::Ours(twin)) => twin.state = reachable(),
        (CreateStep::Retain, TwinFact::Ours(twin)) => {
            twin.state = TwinState::Bound(Reach::FromTarget { retained: true });
        }
        (CreateStep::HandOver, TwinFact::Ours(twin)) => twin.handed_over = true,
        (step, twin) => panic!("{step:?} makes no sense with {twin:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn each_step_of_create_keeps_the_invariants(facts in any_facts()) {
        let step = create_step(&facts);
        let twin = match &facts.twin {
            TwinFact::Ours(twin) => Some(twin),
            _ => None,
        };
        let given_away = facts.virtual_pv || twin.is_some_and(|twin| twin.handed_over);
        let is_bound = twin.is_some_and(|twin| matches!(twin.state, TwinState::Bound(_)));
        let lives = twin.is_some_and(|twin| !twin.deleting);
        match &step {
            CreateStep::Withdraw(_) => prop_assert!(lives && !given_away),
            CreateStep::AwaitGone => prop_assert!(!lives && !given_away),
            CreateStep::Create | CreateStep::RemoveCopy => {
                let wanted = if step == CreateStep::Create {
                    TwinFact::Absent
                } else {
                    TwinFact::Copied { deleting: false }
                };
                prop_assert_eq!(&facts.twin, &wanted);
                prop_assert!(!given_away && facts.claim != ClaimFact::Gone);
            }
            CreateStep::HandOver | CreateStep::Answer => {
                let early = twin.is_some_and(|twin| twin.answered_early) && !is_bound;
                prop_assert!((is_bound || early) && lives);
                let retained = TwinState::Bound(Reach::FromTarget { retained: true });
                let out_of_reach = TwinState::Bound(Reach::NotFromTarget);
                let state = &twin.unwrap().state;
                prop_assert!(early || !facts.retain || *state == retained || *state == out_of_reach);
                prop_assert_eq!(twin.unwrap().handed_over, step == CreateStep::Answer);
            }
            CreateStep::Refuse(_) => {
                // After the twin was created there is no final answer until it is bound or deleted.
                let in_the_making = lives && !is_bound && !given_away;
                prop_assert!(!in_the_making);
            }
            CreateStep::PreBind { .. } | CreateStep::Wait | CreateStep::Retain => prop_assert!(lives),
        }
    }

    #[test]
    fn create_always_ends_with_an_answer_a_refusal_or_a_withdrawal(mut facts in any_facts()) {
        for _ in 0..8 {
            let step = create_step(&facts);
            if matches!(step, CreateStep::Answer | CreateStep::Refuse(_)) {
                return Ok(());
            }
            if let CreateStep::Withdraw(why) = &step
                && why.afterwards() != Afterwards::DecideAgain
            {
                return Ok(());
            }
            after(&step, &mut facts);
        }
        prop_assert!(false, "still undecided: {:?}", facts);
    }
}
