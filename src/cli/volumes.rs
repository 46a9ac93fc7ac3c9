//! `liqo-csi volumes`: prints the volumes of the driver, and its snapshots, as tables or as JSON. The
//! contents of the rows come from `inspect`.

use super::{
    Outcome,
    common::{CommonArgs, Format, block_on, print_json_of, print_unknown},
    table::Table,
};
use crate::inspect::{
    Name, Scope, SnapshotRow, SnapshotState, Snapshots, State, Storage,
    rows::{Row, rows},
    snapshot_rows,
};

const HEADER: [&str; 9] = [
    "NAMESPACE",
    "CLAIM",
    "CLASS",
    "SIZE",
    "STATE",
    "REAL CLASS",
    "CLUSTER",
    "NODE",
    "TWIN",
];

const SNAPSHOTS_HEADER: [&str; 8] = [
    "NAMESPACE",
    "SNAPSHOT",
    "CLASS",
    "SIZE",
    "STATE",
    "SOURCE",
    "CLUSTER",
    "TWIN",
];

/// How many nodes fit in a line.
const NODES_SHOWN: usize = 2;

/// The states of the help text, with an explanation where the name is not enough.
fn form() -> String {
    let [plain, of_twins] = State::all();
    let plain = plain.into_iter().map(|state| match state {
        State::Unreachable => format!("{} (no node can reach the data)", state.name()),
        _ => state.name().to_owned(),
    });
    let of_twins = of_twins.into_iter().map(|state| state.name().to_owned());
    let of_snapshots = SnapshotState::ALL.into_iter().map(|state| match state {
        SnapshotState::Retained => format!("{} (its content is kept)", state.name()),
        SnapshotState::Orphaned => format!("{} (only its twin is left)", state.name()),
        _ => state.name().to_owned(),
    });
    let listed = |intro: &str, names: Vec<String>| wrapped(&format!("{intro} {}.", names.join(", ")));
    format!(
        "{FORM}\n{}\n{}\n{SNAPSHOT_FORM}\n{}\n\n{EXAMPLES}",
        listed("States:", plain.collect()),
        listed("States of claims that are bound:", of_twins.collect()),
        listed("States of snapshots:", of_snapshots.collect())
    )
}

/// Wraps a text at the width of the help text.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let fits = lines
            .last()
            .is_some_and(|line| line.len() + word.len() < LINE_LENGTH);
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if fits => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

const LINE_LENGTH: usize = 96;

const FORM: &str = r#"JSON: {"version": 1, "volumes": [...], "snapshots": [...], "unknown": [...]}. A volume has
volume, claim {namespace, name}, class, size, growingTo, state, message, advice,
twin {namespace, name}, realClass, realVolume, cluster, heldByGravity (a pod
waits because it can only run where the data is) and nodes (["*"] for all of the
cluster). What does not exist or is unknown is null."#;

const EXAMPLES: &str = "\
Examples:
  liqo-csi volumes -n shop
  liqo-csi volumes -A -o json";

const SNAPSHOT_FORM: &str = "\
A snapshot has snapshot {namespace, name}, class, source (a claim, or the id of a volume), size,
state, message, advice, id, twin {namespace, name} and cluster.";

/// Lists claims of every class of the driver with their twins, and twins without a claim: orphans,
/// twins that an etcd restore left without a claim, and retained ones. Below them snapshots, if there
/// are any, in the same way.
#[derive(clap::Args)]
#[command(after_long_help = form())]
pub(super) struct Args {
    /// Namespace of the claims [default: that of the kubeconfig's context].
    #[arg(long, short)]
    namespace: Option<String>,
    /// Claims of all namespaces, and twins without any.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    common: CommonArgs,
}

pub(super) fn run(args: Args) -> Outcome {
    block_on(list(args))
}

async fn list(args: Args) -> Outcome {
    let place = args.common.find().await?;
    let scope = if args.all_namespaces {
        Scope::All
    } else {
        let current = || place.cluster.client().default_namespace().to_owned();
        Scope::Namespace(args.namespace.unwrap_or_else(current))
    };
    let of_twins = place.storage_namespace.as_deref();
    let storage = Storage::read(&place.cluster, &scope, of_twins, place.id).await;
    let snapshots = Snapshots::read(&place.cluster, &scope, of_twins, storage.home.clone());
    let snapshots = snapshots.await;
    let (rows, mut unknown) = (rows(&storage, &scope), storage.unknown());
    unknown.extend(snapshots.unknown());
    let snapshots = snapshot_rows(&snapshots, &scope);
    match args.common.output {
        Format::Json => {
            let volumes = serde_json::to_value(&rows)?;
            let snapshots = serde_json::to_value(&snapshots)?;
            print_json_of([("volumes", volumes), ("snapshots", snapshots)], &unknown);
        }
        Format::Table => {
            print_unknown(&unknown);
            match &scope {
                _ if rows.is_empty() && !storage.claims.is_complete() => {}
                Scope::Namespace(namespace) if rows.is_empty() => {
                    println!(
                        "No volumes of this driver in the namespace {namespace}; --all-namespaces shows all."
                    );
                }
                Scope::All if rows.is_empty() => println!("No volumes of this driver."),
                _ => print!("{}", table(&rows)),
            }
            if !snapshots.is_empty() {
                print!("\n{}", snapshot_table(&snapshots));
            }
        }
    }
    Ok(())
}

/// A line for each row, and below it the message and the advice, if there are any.
fn table(rows: &[Row]) -> String {
    let mut table = Table::new(HEADER);
    for row in rows {
        table.row(cells(row));
        if !row.message.is_empty() {
            table.note(&format!("  └ {}", row.message));
        }
        if !row.advice.is_empty() && row.state != State::Pending {
            table.note(&format!("    → {}", row.advice));
        }
    }
    table.to_string()
}

fn snapshot_table(rows: &[SnapshotRow]) -> String {
    let or_dash = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), Clone::clone);
    let mut table = Table::new(SNAPSHOTS_HEADER);
    for row in rows {
        let twin = row
            .twin
            .as_ref()
            .map(|twin| format!("{}/{}", twin.namespace, twin.name));
        table.row([
            or_dash(row.snapshot.as_ref().map(|it| &it.namespace)),
            or_dash(row.snapshot.as_ref().map(|it| &it.name)),
            or_dash(row.class.as_ref()),
            or_dash(row.size.as_ref()),
            row.state.name().to_owned(),
            or_dash(row.source.as_ref()),
            or_dash(row.cluster.as_ref()),
            or_dash(twin.as_ref()),
        ]);
        if !row.message.is_empty() {
            table.note(&format!("  └ {}", row.message));
        }
        if !row.advice.is_empty() {
            table.note(&format!("    → {}", row.advice));
        }
    }
    table.to_string()
}

fn cells(row: &Row) -> [String; 9] {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let part = |name: &Option<Name>, part: fn(&Name) -> &String| {
        name.as_ref()
            .map_or_else(|| "-".to_owned(), |name| part(name).clone())
    };
    [
        part(&row.claim, |claim| &claim.namespace),
        part(&row.claim, |claim| &claim.name),
        or_dash(&row.class),
        or_dash(&size(row)),
        row.state.name().to_owned(),
        or_dash(&row.real_class),
        or_dash(&row.cluster),
        nodes(row.nodes.as_deref()),
        row.twin.as_ref().map_or_else(
            || "-".to_owned(),
            |twin| format!("{}/{}", twin.namespace, twin.name),
        ),
    ]
}

fn size(row: &Row) -> Option<String> {
    let size = row.size.clone()?;
    Some(match &row.growing_to {
        Some(larger) => format!("{size} -> {larger}"),
        None => size,
    })
}

fn nodes(nodes: Option<&[String]>) -> String {
    match nodes {
        None => "-".to_owned(),
        Some([]) => "none".to_owned(),
        Some([only]) if only == "*" => "any".to_owned(),
        Some(some) if some.len() <= NODES_SHOWN => some.join(","),
        Some(many) => format!("{},{} and {} more", many[0], many[1], many.len() - NODES_SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: State, message: &str, places: &[&str]) -> Row {
        Row {
            volume: format!("pvc-{name}"),
            claim: Some(Name {
                namespace: "shop".into(),
                name: name.into(),
            }),
            class: Some("liqo".into()),
            size: Some("1Gi".into()),
            growing_to: None,
            state,
            message: message.into(),
            advice: String::new(),
            twin: None,
            real_class: None,
            real_volume: None,
            cluster: Some("home".into()),
            held_by_gravity: false,
            gravity: None,
            nodes: Some(places.iter().map(|&it| it.to_owned()).collect()),
        }
    }

    #[test]
    fn the_help_names_every_state() {
        let help = form();
        for name in State::all().concat().iter().map(|state| state.name()) {
            assert!(help.contains(name), "{name} is missing in {help}");
        }
        for state in SnapshotState::ALL {
            assert!(
                help.contains(state.name()),
                "{} is missing in {help}",
                state.name()
            );
        }
        for name in ["Moving", "TwinSuperseded", "Unreachable (no node can"] {
            assert!(help.contains(name), "{name} is missing in {help}");
        }
        assert!(!help.contains("TwinBound") && !help.contains("Ending"), "{help}");
        assert!(help.lines().all(|line| line.len() <= LINE_LENGTH), "{help}");
    }

    #[test]
    fn snapshots_are_printed_in_a_table_of_their_own() {
        let row = SnapshotRow {
            snapshot: Some(Name {
                namespace: "shop".into(),
                name: "backup".into(),
            }),
            class: None,
            source: Some("v1:home:pvc-1".into()),
            size: Some("1Gi".into()),
            state: SnapshotState::Orphaned,
            message: "no content refers to it".into(),
            advice: "delete it".into(),
            id: None,
            twin: Some(Name {
                namespace: "liqo-storage".into(),
                name: "snapshot-1".into(),
            }),
            cluster: Some("home".into()),
        };
        let waits = SnapshotRow {
            state: SnapshotState::Pending,
            message: "the content waits for it".into(),
            advice: "create it".into(),
            ..row.clone()
        };
        let expected = "\
NAMESPACE   SNAPSHOT   CLASS   SIZE   STATE      SOURCE          CLUSTER   TWIN
shop        backup     -       1Gi    Orphaned   v1:home:pvc-1   home      liqo-storage/snapshot-1
  └ no content refers to it
    → delete it
shop        backup     -       1Gi    Pending    v1:home:pvc-1   home      liqo-storage/snapshot-1
  └ the content waits for it
    → create it
";
        assert_eq!(snapshot_table(&[row, waits]), expected);
    }

    #[test]
    fn columns_are_aligned_and_reasons_printed_below() {
        let rows = [
            row("a-long-name", State::Bound, "", &["*"]),
            row("b", State::Pending, "pool is full", &["n1", "n2", "n3"]),
            Row {
                growing_to: Some("2Gi".into()),
                ..row("c", State::Bound, "", &["n1"])
            },
        ];
        let expected = "\
NAMESPACE   CLAIM         CLASS   SIZE         STATE     REAL CLASS   CLUSTER   NODE               TWIN
shop        a-long-name   liqo    1Gi          Bound     -            home      any                -
shop        b             liqo    1Gi          Pending   -            home      n1,n2 and 1 more   -
  └ pool is full
shop        c             liqo    1Gi -> 2Gi   Bound     -            home      n1                 -
";
        assert_eq!(table(&rows), expected);
    }
}
