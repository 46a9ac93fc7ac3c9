use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    placement::moving::{Outcome, Quiesce, RollbackReason, RollbackTo, Stage, VolumeFault},
    volume::{
        AccessMode, ReclaimPolicy,
        moving::{CommitRecord, GateNumber, Manifest, MoveUid, MovedClaim, SourceRecord},
    },
};

const UID: &str = "6b5d1b2e-3c37-4f0e-9f0f-0d2c7ef1a222";

/// The fields that may be changed while a volume moves.
const MUTABLE: [&str; 7] = [
    "acceptLoss",
    "cancel",
    "cutover",
    "paused",
    "recoverSource",
    "retainSource",
    "transport",
];

fn read(spec: &Value) -> VolumeMove {
    let object = json!({
        "apiVersion": "storage.liqo.io/v1alpha1", "kind": "VolumeMove",
        "metadata": {"namespace": "shop", "name": "m", "uid": UID, "resourceVersion": "7"},
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

fn with(key: &str, value: Value) -> VolumeMove {
    let mut spec = json!({"claims": ["data"], "target": {"nodeName": "n2"}});
    spec[key] = value;
    read(&spec)
}

fn request(of: &VolumeMove) -> MoveRequest {
    MoveRequest::try_from(of).unwrap()
}

fn schema() -> Value {
    let definition = serde_json::to_value(VolumeMove::crd()).unwrap();
    assert_eq!(definition["spec"]["scope"], "Namespaced");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn omitted_fields_have_the_documented_defaults() {
    let request = request(&with("paused", json!(false)));
    assert_eq!(request.claims[0].to_string(), "shop/data");
    assert_eq!(request.target, MoveTarget::Node("n2".into()));
    assert_eq!(request.max_downtime, Duration::from_mins(10));
    assert_eq!(request.drain_deadline, Duration::from_mins(15));
    assert_eq!(request.retain_source, Duration::from_hours(24));
    assert_eq!((request.max_passes, request.quiesce), (5, Quiesce::Wait));
    assert_eq!(request.routes, [Route::Direct, Route::ApiServer]);
    assert_eq!((request.bandwidth, request.access_modes), (None, None));
    assert!(request.cuts_over_by_itself && !request.cutover_requested);
}

#[test]
fn all_fields_are_parsed() {
    let request = request(&read(&json!({
        "claims": ["data", "logs"],
        "target": {"cluster": "milan", "storageClassName": "fast", "accessModes": ["ReadWriteMany", "ReadWriteOnce"]},
        "cutover": {"mode": "Manual", "requested": true, "maxDowntime": "1h30m5s", "maxPasses": 2},
        "quiesce": {"mode": "Evict", "deadline": "90s"},
        "transport": {"allow": ["ApiServer"], "bandwidth": "64Mi"},
        "retainSource": "0s",
        "acceptLoss": ["Snapshots"],
        "mover": {"resources": {"limits": {"cpu": 2, "memory": "256Mi"}}, "runAsUser": 1000},
    })));
    assert_eq!(request.target, MoveTarget::Cluster("milan".parse().unwrap()));
    let modes = BTreeSet::from([AccessMode::ReadWriteOnce, AccessMode::ReadWriteMany]);
    assert_eq!(request.access_modes, Some(modes));
    assert_eq!(request.max_downtime, Duration::from_secs(5405));
    assert_eq!(request.bandwidth, Some(64 << 20));
    assert_eq!(request.retain_source, Duration::ZERO);
    let limits = request.mover.resources.unwrap().limits.unwrap();
    assert_eq!(limits.cpu, Some(Quantity("2".into())));
}

#[test]
fn invalid_fields_are_refused_by_name() {
    for (spec, field) in [
        (with("claims", json!([])), "claims"),
        (with("claims", json!(["a", "a"])), "claims"),
        (
            with("claims", json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"])),
            "claims",
        ),
        (with("target", json!({})), "target"),
        (
            with("target", json!({"nodeName": "n", "cluster": "milan"})),
            "target",
        ),
        (with("target", json!({"cluster": "-"})), "target.cluster"),
        (
            with("cutover", json!({"maxDowntime": "0s"})),
            "cutover.maxDowntime",
        ),
        (with("cutover", json!({"maxPasses": 0})), "cutover.maxPasses"),
        (with("quiesce", json!({"deadline": "10"})), "quiesce.deadline"),
        (with("retainSource", json!("1d")), "retainSource"),
        (with("transport", json!({"bandwidth": 0})), "transport.bandwidth"),
        (
            with("transport", json!({"bandwidth": "fast"})),
            "transport.bandwidth",
        ),
    ] {
        let refused = MoveRequest::try_from(&spec).unwrap_err().to_string();
        assert!(
            refused.starts_with(&format!("spec.{field} of the VolumeMove shop/m: ")),
            "{refused}"
        );
    }
}

#[test]
fn malformed_durations_are_refused() {
    for odd in [
        "", "5", "m", "1m1h", "1h1h", "1.5h", "-1s", "100000h", "1h 1m", "1ms",
    ] {
        let refused = MoveRequest::try_from(&with("retainSource", json!(odd)));
        assert!(refused.is_err(), "{odd}");
    }
}

#[test]
fn an_automatic_cut_over_is_not_repeated_after_a_failure() {
    let by_itself = request(&with("cutover", json!({"mode": "Auto"})));
    assert!(by_itself.requested(false).cutover && !by_itself.requested(true).cutover);
    let by_hand = request(&with("cutover", json!({"mode": "Manual"})));
    assert!(!by_hand.requested(false).cutover);
    let requested = request(&with("cutover", json!({"mode": "Manual", "requested": true})));
    assert!(requested.requested(true).cutover);
}

#[test]
fn overdue_times_are_computed_from_the_status() {
    let now: Timestamp = "2026-11-23T10:00:00Z".parse().unwrap();
    let at = |text: &str| Some(Time(text.parse().unwrap()));
    let request = request(&with("paused", json!(false)));
    let mut status = VolumeMoveStatus::default();
    assert_eq!(
        request.overdue(&status, now),
        crate::placement::moving::OverDue::default()
    );
    status.gated_at = at("2026-11-23T09:45:00Z");
    status.downtime = Some(Downtime {
        since: at("2026-11-23T09:50:01Z"),
        ..Downtime::default()
    });
    status.retained_until = at("2026-11-23T10:00:01Z");
    let overdue = request.overdue(&status, now);
    assert!(overdue.drain && !overdue.downtime && !overdue.retention);
    // A clock that was set back is not an error.
    status.gated_at = at("2026-11-24T10:00:00Z");
    status.retained_until = at("2026-11-23T10:00:00Z");
    let overdue = request.overdue(&status, now);
    assert!(!overdue.drain && overdue.retention);
}

#[test]
fn each_field_that_may_not_change_has_a_rule() {
    let schema = schema();
    let spec = &schema["properties"]["spec"];
    let rules: Vec<&str> = spec["x-kubernetes-validations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap())
        .collect();
    for field in spec["properties"].as_object().unwrap().keys() {
        let is_fixed = rules
            .iter()
            .any(|rule| rule.contains(&format!("self.{field} == oldSelf.{field}")));
        assert_eq!(is_fixed, !MUTABLE.contains(&field.as_str()), "{field}");
    }
    assert!(
        rules
            .iter()
            .any(|rule| rule.contains("self.transport.allow == oldSelf.transport.allow"))
    );
    let latched = &schema["x-kubernetes-validations"][0]["rule"];
    assert_eq!(latched, "!oldSelf.spec.cancel || self.spec.cancel");
    let recovers = schema["x-kubernetes-validations"][1]["rule"].as_str().unwrap();
    assert!(recovers.starts_with("!self.spec.recoverSource ||"), "{recovers}");
    assert_eq!(spec["properties"]["claims"]["x-kubernetes-list-type"], "set");
}

#[test]
fn a_move_without_status_is_at_the_first_stage() {
    let facts = with("cancel", json!(true))
        .facts(Timestamp::UNIX_EPOCH, false)
        .unwrap();
    assert_eq!((facts.stage, facts.obstacles), (Stage::Checking, None));
    assert_eq!((facts.uid.as_str(), facts.at.version()), (UID, "7"));
    assert!(facts.requested.cancel && !facts.finalizer && !facts.deleting);
}

#[test]
fn an_inconsistent_stage_in_the_status_is_refused() {
    let back = |more: Value| {
        let mut stage = json!({"name": "Returning", "gate": 2});
        stage
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        stage
    };
    for wrong in [
        json!({"name": "Gating"}),
        json!({"name": "Checking", "gate": 1}),
        json!({"name": "Copying", "backTo": "Start"}),
        back(json!({})),
        back(json!({"backTo": "Start"})),
        back(json!({"backTo": "Start", "why": {"reason": "ClaimLocked", "details": ["x"]}})),
        back(json!({"backTo": "Start", "why": {"reason": "ClaimLocked"}})),
        back(json!({"backTo": "Start", "why": {"reason": "Cancelled", "details": ["x"]}})),
    ] {
        let stage: MoveStage = serde_json::from_value(wrong.clone()).unwrap();
        assert!(Stage::try_from(&stage).is_err(), "{wrong}");
    }
    assert!(serde_json::from_value::<MoveStage>(json!({"name": "Copying", "gate": 0})).is_err());
}

#[test]
fn a_record_of_another_claim_is_ignored() {
    let name = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
    let mut claim = ClaimStatus {
        name: "data".into(),
        ..ClaimStatus::default()
    };
    assert_eq!(claim.recorded(), Ok(None));
    claim
        .note_source(&source(name, "data", "u1", ReclaimPolicy::Retain, &[]))
        .unwrap();
    assert_eq!(claim.recorded().unwrap().unwrap().policy, ReclaimPolicy::Retain);
    assert!(matches!(
        claim.commit_record(),
        Err(UnreadableMove::Record { .. })
    ));
    claim.name = "logs".into();
    assert!(matches!(claim.recorded(), Err(UnreadableMove::OtherClaim { .. })));
}

fn manifest(name: &str, handle: &str, labels: &[(String, String)]) -> Manifest {
    let labels: serde_json::Map<String, Value> = labels
        .iter()
        .map(|(key, value)| (key.clone(), value.as_str().into()))
        .collect();
    Manifest::of(&json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"csi": {"driver": "storage.liqo.io", "volumeHandle": handle}},
    }))
    .unwrap()
}

fn source(
    volume: &str,
    claim: &str,
    uid: &str,
    policy: ReclaimPolicy,
    labels: &[(String, String)],
) -> SourceRecord {
    SourceRecord {
        claim: MovedClaim {
            name: format!("shop/{claim}").parse().unwrap(),
            uid: uid.into(),
        },
        policy,
        source: manifest(volume, &format!("v1:home:{volume}"), labels),
    }
}

fn any_why() -> impl Strategy<Value = RollbackReason> {
    let details = || prop::collection::vec(".{0,20}", 0..4);
    let uid: MoveUid = UID.parse().unwrap();
    prop_oneof![
        details().prop_map(RollbackReason::Refused),
        details().prop_map(RollbackReason::InUse),
        ".{0,40}".prop_map(RollbackReason::InTheWay),
        ".{0,40}".prop_map(RollbackReason::Differs),
        prop::sample::select(vec![
            RollbackReason::Cancelled,
            RollbackReason::ClaimDeleted,
            RollbackReason::Locked(uid),
            RollbackReason::Volume(VolumeFault::Gone),
            RollbackReason::Volume(VolumeFault::NotTheSource),
            RollbackReason::Volume(VolumeFault::Deleting),
            RollbackReason::Volume(VolumeFault::NotTheClaims),
            RollbackReason::Volume(VolumeFault::GatedLate),
            RollbackReason::Volume(VolumeFault::MovedOn),
            RollbackReason::NotRecorded,
            RollbackReason::Changing,
            RollbackReason::GateOpen,
            RollbackReason::SourceGone,
            RollbackReason::TargetGone,
            RollbackReason::DrainOverdue,
            RollbackReason::DowntimeOverdue,
        ]),
    ]
}

fn any_gate() -> impl Strategy<Value = GateNumber> {
    (1..=i64::MAX).prop_map(|number| number.to_string().parse().unwrap())
}

fn any_stage() -> impl Strategy<Value = Stage> {
    let to = prop::sample::select(vec![RollbackTo::Copying, RollbackTo::Start]);
    let back = (prop::option::of(any_gate()), to, any_why());
    prop_oneof![
        Just(Stage::Checking),
        Just(Stage::Preparing),
        prop::option::of(any_gate()).prop_map(|last| Stage::Copying { last }),
        any_gate().prop_map(Stage::Gating),
        any_gate().prop_map(Stage::Draining),
        any_gate().prop_map(Stage::Finishing),
        any_gate().prop_map(Stage::Verifying),
        any_gate().prop_map(Stage::Committed),
        any_gate().prop_map(Stage::Retaining),
        any_gate().prop_map(Stage::Recovering),
        back.prop_map(|(gate, to, why)| Stage::Rollback { gate, to, why }),
        prop::sample::select(vec![
            Outcome::Done,
            Outcome::Cancelled,
            Outcome::Failed,
            Outcome::SourceGone,
            Outcome::Recovered
        ])
        .prop_map(Stage::Ended),
    ]
}

proptest! {
    #[test]
    fn stages_survive_the_status(stage in any_stage(), ready: bool) {
        let mut of = with("paused", json!(false));
        let mut status = VolumeMoveStatus::default();
        status.enter(&stage, ready);
        of.status = Some(status);
        let written = serde_json::to_string(&of).unwrap();
        let read: VolumeMove = serde_json::from_str(&written).unwrap();
        prop_assert_eq!(read.stage().unwrap(), stage);
    }

    #[test]
    fn records_survive_the_status(
        labels in prop::collection::vec(("[a-z]{1,8}", ".{0,30}"), 0..4), uid in "[a-z0-9-]{1,36}", retain: bool, committed: bool,
    ) {
        let name = "pvc-0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
        let policy = if retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete };
        let before = source(name, "data", &uid, policy, &labels);
        let target = manifest(name, &format!("v2:milan:{name}:1"), &labels);
        let commit = CommitRecord::new(before.clone(), target).unwrap();
        let mut claim = ClaimStatus { name: "data".into(), ..ClaimStatus::default() };
        if committed { claim.note_commit(&commit).unwrap() } else { claim.note_source(&before).unwrap() }
        let read: ClaimStatus = serde_json::from_str(&serde_json::to_string(&claim).unwrap()).unwrap();
        prop_assert_eq!(read.source_record(), Ok(Some(before)));
        if committed {
            prop_assert_eq!(read.commit_record(), Ok(Some(commit)));
        }
    }
}
