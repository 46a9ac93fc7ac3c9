//! Each test breaks one thing of a correct installation and expects the finding.

mod changes;
mod classes;
mod offloading;
mod sessions;
mod snapshots;
mod volumes;
mod workloads;

use serde_json::{Value, json};

use super::*;
use crate::inspect::{
    Listing,
    fixtures::{
        UID, attachment, classes, csi_node, deployment, drivers, installation, listing, object, twin_with,
    },
};

#[test]
fn a_correct_installation_has_no_findings() {
    assert_eq!(examine(&installation()), []);
    assert_eq!(installation().unknown(), Vec::<String>::new());
}

#[test]
fn unreadable_objects_cause_no_findings() {
    let blind = Installation {
        setup: crate::inspect::Setup {
            controllers: Listing::refused("forbidden"),
        },
        storage: crate::inspect::Storage {
            classes: Listing::refused("forbidden"),
            claims: Listing::refused("forbidden"),
            twins: Listing::refused("forbidden"),
            volumes: Listing::refused("forbidden"),
            nodes: Listing::refused("forbidden"),
            events: Listing::refused("forbidden"),
            ..crate::inspect::Storage::default()
        },
        namespace: Listing::refused("forbidden"),
        drivers: Listing::refused("forbidden"),
        csi_nodes: Listing::refused("forbidden"),
        capacities: Listing::refused("forbidden"),
        attachments: Listing::refused("forbidden"),
        attributes_classes: Listing::refused("forbidden"),
        quotas: Listing::refused("forbidden"),
        node_plugins: Listing::refused("forbidden"),
        pods: Listing::refused("forbidden"),
        storage_pods: Listing::refused("forbidden"),
        failures: Listing::refused("forbidden"),
        orphaned_volumes: Listing::refused("forbidden"),
        ..Installation::default()
    };
    assert_eq!(examine(&blind), []);
    assert_eq!(blind.unknown().len(), 20, "{:#?}", blind.unknown());
}

/// A change that breaks a correct installation.
type Break = fn(&mut Installation);
/// Name, change, severity, and parts of the object, the problem and the fix.
type Case = (&'static str, Break, Severity, [&'static str; 3]);

fn assert_found(cases: &[Case]) {
    for (name, break_it, severity, [subject, problem, fix]) in cases {
        let mut installation = installation();
        break_it(&mut installation);
        let findings = examine(&installation);
        let hit = |finding: &&Finding| {
            finding.severity == *severity
                && finding.object.contains(subject)
                && finding.problem.contains(problem)
                && finding.fix.contains(fix)
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
    installation.storage.classes = listing([ours, real]);
}

fn drivers_with(installation: &mut Installation, change: impl FnOnce(&mut Value, &mut Value)) {
    let [mut ours, mut real] = drivers();
    change(&mut ours["spec"], &mut real["spec"]);
    installation.drivers = listing([ours, real]);
}

fn deployment_with(installation: &mut Installation, change: impl FnOnce(&mut Value)) {
    let mut changed = deployment();
    change(&mut changed);
    installation.setup.controllers = listing([changed]);
}

fn container(deployment: &mut Value, at: usize) -> &mut Value {
    &mut deployment["spec"]["template"]["spec"]["containers"][at]
}

const E: Severity = Severity::Error;
const W: Severity = Severity::Warning;
const N: Severity = Severity::Note;

#[test]
fn old_failures_cause_no_finding() {
    let mut installation = installation();
    installation.failures = Listing::of(vec![object(json!({
        "metadata": {"name": "e"}, "involvedObject": {"namespace": "shop", "name": "web-0"},
        "lastTimestamp": "2026-01-01T11:00:00Z", "message": "storage.liqo.io",
    }))]);
    assert_eq!(examine(&installation), []);
}
