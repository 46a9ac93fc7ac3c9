//! The cases of `create_step`.

mod properties;

use super::*;
use crate::volume::DRIVER_NAME;

fn facts(twin: TwinFact) -> CreateFacts {
    CreateFacts {
        claim: ClaimFact::Live,
        target: Target::Node("n1".into()),
        twin,
        virtual_pv: false,
        retain: false,
    }
}

fn twin(state: TwinState) -> Twin {
    Twin {
        handed_over: false,
        deleting: false,
        differences: Vec::new(),
        provisioner: Some("real.example".into()),
        created_with_node: true,
        node: Some("n1".into()),
        answered_early: false,
        state,
    }
}

fn pending() -> Twin {
    twin(TwinState::Pending(Prebinding::Provisioner))
}

fn bound() -> Twin {
    twin(TwinState::Bound(Reach::FromTarget { retained: false }))
}

fn decide(twin: Twin, change: impl Fn(&mut CreateFacts)) -> CreateStep {
    let mut facts = facts(TwinFact::Ours(twin));
    change(&mut facts);
    create_step(&facts)
}

fn gone(facts: &mut CreateFacts) {
    facts.claim = ClaimFact::Gone;
}

fn old_request(facts: &mut CreateFacts) {
    facts.target = Target::Disagrees {
        selected: Some("n2".into()),
        requested: "n1".into(),
    };
}

fn unchanged(_: &mut CreateFacts) {}

#[test]
fn an_absent_twin_is_created_or_the_request_refused() {
    let decide = |change: &dyn Fn(&mut CreateFacts)| {
        let mut facts = facts(TwinFact::Absent);
        change(&mut facts);
        create_step(&facts)
    };
    assert_eq!(decide(&unchanged), CreateStep::Create);
    assert_eq!(decide(&|f| f.claim = ClaimFact::NotGiven), CreateStep::Create);
    assert_eq!(decide(&gone), CreateStep::Refuse(Refusal::ClaimGone));
    assert!(matches!(
        decide(&old_request),
        CreateStep::Refuse(Refusal::NodeDisagrees { .. })
    ));
    assert_eq!(
        decide(&|f| f.virtual_pv = true),
        CreateStep::Refuse(Refusal::Vanished)
    );
}

#[test]
fn a_pending_twin_is_awaited_or_withdrawn() {
    use CreateStep::Withdraw;
    assert_eq!(decide(pending(), unchanged), CreateStep::Wait);
    assert_eq!(decide(pending(), gone), Withdraw(Withdrawal::ClaimGone));
    assert_eq!(
        decide(pending(), old_request),
        Withdraw(Withdrawal::NodeDisagrees)
    );
    assert_eq!(
        decide(pending(), |f| f.target = Target::Node("n2".into())),
        Withdraw(Withdrawal::OtherNode)
    );
    let refused = Twin {
        node: None,
        ..pending()
    };
    assert_eq!(
        decide(refused.clone(), unchanged),
        Withdraw(Withdrawal::DriverRefused)
    );
    let immediate = Twin {
        created_with_node: false,
        ..refused
    };
    assert_eq!(decide(immediate, unchanged), CreateStep::Wait);
    let differs = Twin {
        differences: vec![Part::Size],
        ..pending()
    };
    assert_eq!(decide(differs, unchanged), Withdraw(Withdrawal::Differs));
    for provisioner in [DRIVER_NAME, "liqo.io/storage"] {
        let looping = Twin {
            provisioner: Some(provisioner.into()),
            ..pending()
        };
        assert_eq!(
            decide(looping, unchanged),
            Withdraw(Withdrawal::Loops(provisioner.into()))
        );
    }
    assert_eq!(
        decide(
            Twin {
                deleting: true,
                ..pending()
            },
            unchanged
        ),
        CreateStep::AwaitGone
    );
}

/// No node was selected, and the request allows n1 and n3.
fn one_of(facts: &mut CreateFacts) {
    facts.target = Target::OneOf(["n1".to_owned(), "n3".to_owned()].into());
}

#[test]
fn a_twin_outside_the_requested_nodes_is_withdrawn() {
    use CreateStep::Withdraw;
    let on = |node: Option<&str>| Twin {
        node: node.map(str::to_owned),
        ..pending()
    };
    assert_eq!(decide(on(Some("n1")), one_of), CreateStep::Wait);
    assert_eq!(decide(on(Some("n3")), one_of), CreateStep::Wait);
    assert_eq!(decide(on(Some("n2")), one_of), Withdraw(Withdrawal::OtherNode));
    assert_eq!(decide(on(None), one_of), Withdraw(Withdrawal::DriverRefused));
    assert_eq!(decide(bound(), one_of), CreateStep::HandOver);
    let outside = twin(TwinState::Bound(Reach::NotFromTarget));
    assert_eq!(decide(outside, one_of), Withdraw(Withdrawal::OutOfReach));
}

#[test]
fn a_twin_whose_pod_binds_it_is_handed_over_first() {
    let early = || Twin {
        answered_early: true,
        created_with_node: false,
        node: None,
        ..pending()
    };
    assert_eq!(decide(early(), unchanged), CreateStep::HandOver);
    let given = || Twin {
        handed_over: true,
        ..early()
    };
    assert_eq!(decide(given(), unchanged), CreateStep::Answer);
    assert_eq!(decide(early(), gone), CreateStep::Withdraw(Withdrawal::ClaimGone));
    let other = Twin {
        differences: vec![Part::Size],
        ..given()
    };
    assert!(matches!(
        decide(other, unchanged),
        CreateStep::Refuse(Refusal::Differs(_))
    ));
    let looping = Twin {
        provisioner: Some(DRIVER_NAME.into()),
        ..early()
    };
    assert_eq!(
        decide(looping, unchanged),
        CreateStep::Withdraw(Withdrawal::Loops(DRIVER_NAME.into()))
    );
}

#[test]
fn static_volumes_are_reserved() {
    let decide = |prebinding| decide(twin(TwinState::Pending(prebinding)), unchanged);
    assert_eq!(
        decide(Prebinding::Found("pv".into())),
        CreateStep::PreBind { volume: "pv".into() }
    );
    assert_eq!(decide(Prebinding::Reserved("pv".into())), CreateStep::Wait);
    assert_eq!(
        decide(Prebinding::NoneFits),
        CreateStep::Withdraw(Withdrawal::NoVolume)
    );
}

#[test]
fn a_bound_twin_is_handed_over_and_then_answered() {
    assert_eq!(decide(bound(), unchanged), CreateStep::HandOver);
    let handed_over = Twin {
        handed_over: true,
        ..bound()
    };
    assert_eq!(decide(handed_over.clone(), unchanged), CreateStep::Answer);
    assert_eq!(decide(handed_over, |f| f.virtual_pv = true), CreateStep::Answer);
    assert_eq!(decide(bound(), |f| f.retain = true), CreateStep::Retain);
    let retained = twin(TwinState::Bound(Reach::FromTarget { retained: true }));
    assert_eq!(decide(retained, |f| f.retain = true), CreateStep::HandOver);
    assert_eq!(
        decide(twin(TwinState::Bound(Reach::Unread)), unchanged),
        CreateStep::Wait
    );
}

#[test]
fn a_bound_twin_that_was_not_handed_over_may_be_withdrawn() {
    use CreateStep::Withdraw;
    assert_eq!(decide(bound(), gone), Withdraw(Withdrawal::ClaimGone));
    let out_of_reach = twin(TwinState::Bound(Reach::NotFromTarget));
    assert_eq!(decide(out_of_reach, unchanged), Withdraw(Withdrawal::OutOfReach));
    assert_eq!(
        decide(twin(TwinState::Lost), unchanged),
        Withdraw(Withdrawal::Lost)
    );
    let differs = Twin {
        differences: vec![Part::Size],
        ..bound()
    };
    assert_eq!(
        decide(differs, unchanged),
        CreateStep::Refuse(Refusal::Differs(vec![Part::Size]))
    );
    assert!(matches!(
        decide(bound(), old_request),
        CreateStep::Refuse(Refusal::NodeDisagrees { .. })
    ));
}

#[test]
fn a_twin_that_was_handed_over_is_never_withdrawn() {
    let theirs = |twin| Twin {
        handed_over: true,
        ..twin
    };
    let out_of_reach = theirs(twin(TwinState::Bound(Reach::NotFromTarget)));
    assert_eq!(
        decide(out_of_reach.clone(), unchanged),
        CreateStep::Refuse(Refusal::HandedOverElsewhere)
    );
    assert_eq!(decide(out_of_reach, gone), CreateStep::Answer);
    assert_eq!(decide(theirs(bound()), gone), CreateStep::Answer);
    assert_eq!(
        decide(theirs(twin(TwinState::Lost)), unchanged),
        CreateStep::Refuse(Refusal::Lost)
    );
    let deleting = Twin {
        deleting: true,
        ..theirs(bound())
    };
    assert_eq!(decide(deleting, unchanged), CreateStep::Refuse(Refusal::Losing));
}

#[test]
fn a_foreign_object_in_place_of_the_twin_is_refused() {
    let foreign = Foreign::OtherClaim("x".into());
    let step = create_step(&facts(TwinFact::Foreign(foreign.clone())));
    assert_eq!(step, CreateStep::Refuse(Refusal::Foreign(foreign)));
}

#[test]
fn a_copy_of_the_claim_is_removed_before_the_twin_is_created() {
    let copied = |deleting| facts(TwinFact::Copied { deleting });
    assert_eq!(create_step(&copied(false)), CreateStep::RemoveCopy);
    assert_eq!(create_step(&copied(true)), CreateStep::AwaitGone);
    let gone = CreateFacts {
        claim: ClaimFact::Gone,
        ..copied(false)
    };
    assert_eq!(create_step(&gone), CreateStep::Refuse(Refusal::ClaimGone));
    let served = CreateFacts {
        virtual_pv: true,
        ..copied(false)
    };
    assert_eq!(create_step(&served), CreateStep::Refuse(Refusal::Vanished));
}

#[test]
fn a_refusal_names_all_differences() {
    let differs = Refusal::Differs(vec![Part::Size, Part::Parameters]).to_string();
    assert_eq!(
        differs,
        "a volume of this name exists with another size and class parameters"
    );
}
