//! Each test breaks one thing of a good installation and looks for the finding.

mod classes;
mod volumes;
mod workloads;

use serde_json::{Value, json};

use super::*;
use crate::inspect::{
    Told,
    fixtures::{
        UID, attachment, classes, csi_node, deployment, drivers, installation, object, told, twin_with,
    },
};

#[test]
fn nothing_is_wrong_with_a_good_installation() {
    assert_eq!(examine(&installation()), []);
    assert_eq!(installation().unknown(), Vec::<String>::new());
}

#[test]
fn nothing_is_concluded_from_what_may_not_be_read() {
    let blind = Installation {
        setup: crate::inspect::Setup {
            controllers: Told::refused("forbidden"),
        },
        storage: crate::inspect::Storage {
            classes: Told::refused("forbidden"),
            claims: Told::refused("forbidden"),
            twins: Told::refused("forbidden"),
            volumes: Told::refused("forbidden"),
            nodes: Told::refused("forbidden"),
            events: Told::refused("forbidden"),
            ..crate::inspect::Storage::default()
        },
        namespace: Told::refused("forbidden"),
        drivers: Told::refused("forbidden"),
        csi_nodes: Told::refused("forbidden"),
        capacities: Told::refused("forbidden"),
        attachments: Told::refused("forbidden"),
        quotas: Told::refused("forbidden"),
        node_plugins: Told::refused("forbidden"),
        pods: Told::refused("forbidden"),
        strangers: Told::refused("forbidden"),
        failures: Told::refused("forbidden"),
        ..Installation::default()
    };
    assert_eq!(examine(&blind), []);
    assert_eq!(blind.unknown().len(), 18, "{:#?}", blind.unknown());
}

/// Breaks a good installation.
type Break = fn(&mut Installation);
/// What is broken, how, how bad that is, and words of object, problem and way out.
type Case = (&'static str, Break, Severity, [&'static str; 3]);

fn assert_found(cases: &[Case]) {
    for (name, break_it, severity, [subject, problem, mend]) in cases {
        let mut installation = installation();
        break_it(&mut installation);
        let findings = examine(&installation);
        let hit = |finding: &&Finding| {
            finding.severity == *severity
                && finding.object.contains(subject)
                && finding.problem.contains(problem)
                && finding.mend.contains(mend)
        };
        assert!(
            findings.iter().any(|finding| hit(&finding)),
            "{name}: {findings:#?}"
        );
    }
}

fn class_with(installation: &mut Installation, change: impl FnOnce(&mut Value)) {
    let [mut ours, real] = classes();
    change(&mut ours);
    installation.storage.classes = told([ours, real]);
}

fn drivers_with(installation: &mut Installation, change: impl FnOnce(&mut Value, &mut Value)) {
    let [mut ours, mut real] = drivers();
    change(&mut ours["spec"], &mut real["spec"]);
    installation.drivers = told([ours, real]);
}

fn deployment_with(installation: &mut Installation, change: impl FnOnce(&mut Value)) {
    let mut changed = deployment();
    change(&mut changed);
    installation.setup.controllers = told([changed]);
}

fn container(deployment: &mut Value, at: usize) -> &mut Value {
    &mut deployment["spec"]["template"]["spec"]["containers"][at]
}

const E: Severity = Severity::Error;
const W: Severity = Severity::Warning;
const N: Severity = Severity::Note;

#[test]
fn old_failures_are_past() {
    let mut installation = installation();
    installation.failures = Told::of(vec![object(json!({
        "metadata": {"name": "e"}, "involvedObject": {"namespace": "shop", "name": "web-0"},
        "lastTimestamp": "2026-01-01T11:00:00Z", "message": "storage.liqo.io",
    }))]);
    assert_eq!(examine(&installation), []);
}
