//! `liqo-csi clusters`: the remote clusters as the controller sees them, and the
//! pods that wait because their data is there.

use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    Outcome,
    common::{CommonArgs, Format, block_on, print_json, print_unknown},
    table::Table,
};
use crate::{
    cluster::report::{CONFIG_MAP, ClusterReport, REPORT, Report, State},
    inspect::{
        Scope, Storage,
        rows::{Row, rows},
    },
};

const HEADER: [&str; 7] = ["ID", "FABRIC", "STATE", "VERSION", "POLICY", "NODES", "VOLUMES"];

const FORM: &str = r#"JSON: {"version": 1, "clusters": [...], "cannotBeTold": [...]}. A cluster has
id, fabric (native, liqo, kosmos or empty), object, state (Ready, Connecting,
Unreachable, Refused, or Undeclared where volumes are left), message, serverVersion, policy, nodes, volumes,
classes, limits (what the driver may not do there, and what that costs) and
waiting (pods that wait because their data is there, and why)."#;

/// Lists the remote clusters whose virtual nodes this cluster has: how they are
/// reached, what cannot be done there, and which pods wait for them.
#[derive(clap::Args)]
#[command(after_long_help = FORM)]
pub(super) struct Args {
    /// Namespace of the driver [default: where its controller is deployed].
    #[arg(long)]
    driver_namespace: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
}

/// A cluster with the pods that wait for it.
#[derive(serde::Serialize)]
struct Shown {
    #[serde(flatten)]
    report: ClusterReport,
    waiting: Vec<String>,
}

pub(super) fn run(args: Args) -> Outcome {
    block_on(list(args))
}

async fn list(args: Args) -> Outcome {
    let place = args.common.find().await?;
    let namespace = args
        .driver_namespace
        .or_else(|| place.setup.namespace())
        .ok_or("the driver's controller was not found: pass --driver-namespace")?;
    let map = place
        .cluster
        .within::<ConfigMap>(&namespace)
        .get(CONFIG_MAP)
        .await?;
    let Some(text) = map.and_then(|map| map.data?.remove(REPORT)) else {
        return Err(format!(
            "the controller has not reported yet (ConfigMap {namespace}/{CONFIG_MAP}): see whether one holds the lease of the background loops"
        )
        .into());
    };
    let report: Report = serde_json::from_str(&text)?;
    let storage = Storage::read(&place.cluster, &Scope::All, &place.storage_namespace, place.id).await;
    let volumes = rows(&storage, &Scope::All);
    let mut unknown = storage.unknown();
    unknown.extend(report.unread.iter().map(|group| unread(group)));
    let shown: Vec<Shown> = report
        .clusters
        .into_iter()
        .map(|cluster| Shown {
            waiting: waiting(&cluster, &volumes),
            report: cluster,
        })
        .collect();
    match args.common.output {
        Format::Json => print_json("clusters", &shown, &unknown)?,
        Format::Table => {
            print_unknown(&unknown);
            if shown.is_empty() {
                println!("No remote clusters: no RemoteCluster, and neither Liqo nor Kosmos declares any.");
            } else {
                print!("{}", table(&shown));
                println!("As {} saw it; last changed {}.", report.by, report.written);
            }
        }
    }
    Ok(())
}

fn unread(group: &str) -> String {
    format!(
        "which clusters {group} declares: the controller cannot read its objects; see its log for what is missing, a kind or a right"
    )
}

/// Claims in a cluster whose pods wait because of that.
fn waiting(cluster: &ClusterReport, volumes: &[Row]) -> Vec<String> {
    let there = volumes
        .iter()
        .filter(|row| row.cluster.as_deref() == Some(&cluster.id));
    there
        .filter_map(|row| {
            let (claim, why) = (row.claim.as_ref()?, row.gravity.as_ref()?);
            Some(format!("{}/{}: {why}", claim.namespace, claim.name))
        })
        .collect()
}

fn table(clusters: &[Shown]) -> String {
    let mut table = Table::new(HEADER);
    for Shown { report, waiting } in clusters {
        let or_dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        table.row([
            report.id.clone(),
            or_dash(&report.fabric),
            format!("{:?}", report.state),
            or_dash(report.server_version.as_deref().unwrap_or_default()),
            or_dash(&report.policy),
            or_dash(&report.nodes.join(",")),
            report.volumes.to_string(),
        ]);
        if report.state != State::Ready && !report.message.is_empty() {
            let object = match report.object.as_str() {
                "" => String::new(),
                object => format!("{object}: "),
            };
            table.note(&format!("  └ {object}{}", report.message));
        }
        for limit in &report.limits {
            table.note(&format!("  └ {limit}"));
        }
        for pod in waiting {
            table.note(&format!("  → {pod}"));
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_stands_below() {
        let report = ClusterReport {
            id: "milan".into(),
            fabric: "liqo".into(),
            object: "VirtualNode liqo-tenant-milan/milan".into(),
            state: State::Unreachable,
            message: "no answer within 10s".into(),
            server_version: None,
            policy: "Optimistic".into(),
            nodes: vec!["milan".into()],
            volumes: 2,
            classes: Vec::new(),
            limits: vec!["nodes cannot be read".into()],
        };
        let shown = Shown {
            report: report.clone(),
            waiting: vec!["shop/data: its pod web-0 waits".into()],
        };
        let expected = "\
ID      FABRIC   STATE         VERSION   POLICY       NODES   VOLUMES
milan   liqo     Unreachable   -         Optimistic   milan   2
  └ VirtualNode liqo-tenant-milan/milan: no answer within 10s
  └ nodes cannot be read
  → shop/data: its pod web-0 waits
";
        assert_eq!(table(&[shown]), expected);

        let lost = ClusterReport {
            fabric: String::new(),
            object: String::new(),
            policy: String::new(),
            nodes: Vec::new(),
            limits: Vec::new(),
            state: State::Undeclared,
            message: "nobody declares it".into(),
            ..report
        };
        let expected = "\
ID      FABRIC   STATE        VERSION   POLICY   NODES   VOLUMES
milan   -        Undeclared   -         -        -       2
  └ nobody declares it
";
        let waiting = Vec::new();
        assert_eq!(
            table(&[Shown {
                report: lost,
                waiting
            }]),
            expected
        );
    }
}
