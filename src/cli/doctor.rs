//! `liqo-csi doctor`: prints the findings of `inspect::checks`.

use std::{fmt::Write, process::ExitCode};

use super::{
    Outcome,
    common::{CommonArgs, Format, block_on, print_json, print_unknown},
};
use crate::inspect::{
    Installation,
    checks::{self, Finding, Severity},
};

const FORM: &str = r#"Nothing is changed. The exit code is 1 if there are errors, or if it cannot be read how
the controller is deployed.
JSON: {"version": 1, "findings": [...], "unknown": [...]}. A finding has
severity (error, warning, note), object, problem and fix.

Examples:
  liqo-csi doctor
  liqo-csi doctor --context home -o json"#;

/// Checks an installation of the driver and says how to fix what is wrong.
#[derive(clap::Args)]
#[command(after_long_help = FORM)]
pub(super) struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) fn run(args: &Args) -> Outcome<ExitCode> {
    block_on(examine(args))
}

async fn examine(args: &Args) -> Outcome<ExitCode> {
    let place = args.common.find().await?;
    // Then the installation is unknown, and "no errors" would mean nothing.
    let is_unknown = place.setup.unknown().is_some();
    let of_twins = place.storage_namespace.as_deref();
    let read = Installation::read(&place.cluster, place.setup, of_twins, place.id);
    let installation = Box::pin(read).await;
    let (findings, unknown) = (checks::examine(&installation), installation.unknown());
    match args.common.output {
        Format::Json => print_json("findings", &findings, &unknown)?,
        Format::Table => {
            print!("{}", report(&findings, unknown.len()));
            print_unknown(&unknown);
        }
    }
    Ok(if has_failed(&findings, is_unknown) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn has_failed(findings: &[Finding], is_unknown: bool) -> bool {
    is_unknown || findings.iter().any(|finding| finding.severity == Severity::Error)
}

fn report(findings: &[Finding], unknown: usize) -> String {
    let mut text = String::new();
    for finding in findings {
        let severity = match finding.severity {
            Severity::Error => "ERROR  ",
            Severity::Warning => "WARNING",
            Severity::Note => "NOTE   ",
        };
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{severity} {}\n        {}", finding.object, finding.problem);
        if !finding.fix.is_empty() {
            let _written = writeln!(text, "        → {}", finding.fix);
        }
    }
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let _written = writeln!(
        text,
        "{} checks: {}, {}, {}{}",
        checks::ALL.len(),
        plural(count(Severity::Error), "error"),
        plural(count(Severity::Warning), "warning"),
        plural(count(Severity::Note), "note"),
        if unknown == 0 {
            String::new()
        } else {
            format!("; {} unknown", plural(unknown, "fact"))
        },
    );
    text
}

fn plural(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_findings_are_no_success_if_the_installation_is_unknown() {
        assert!(has_failed(&[], true));
        assert!(!has_failed(&[], false));
    }

    #[test]
    fn a_report_names_object_problem_and_way_out() {
        let finding = Finding {
            severity: Severity::Error,
            object: "Namespace liqo-storage".into(),
            problem: "It does not exist.".into(),
            fix: "kubectl create namespace liqo-storage".into(),
        };
        let json = serde_json::to_value(&finding).unwrap();
        assert_eq!(json["fix"], "kubectl create namespace liqo-storage");
        let text = report(&[finding], 2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ERROR   Namespace liqo-storage");
        assert_eq!(lines[2].trim(), "→ kubectl create namespace liqo-storage");
        assert!(
            lines[3].ends_with("1 error, no warnings, no notes; 2 facts unknown"),
            "{text}"
        );
    }
}
