//! `liqo-csi move volume`: the flags, and the `VolumeMove` that they describe.

use std::process::ExitCode;

use clap::{ArgGroup, ValueEnum};
use kube::ResourceExt;

use super::{Place, describe, follow::follow};
use crate::{
    api::volume_move::{
        Amounts, Cutover, CutoverMode, Loss, MoveRequest, Mover, MoverResources, Quantity, QuiesceMode,
        QuiesceSpec, Target, Transport, Verify, VolumeMove, VolumeMoveSpec, Warm,
    },
    cli::{
        Outcome,
        common::{ClusterArgs, ObjectArgs},
    },
};

/// Length of the suffix that distinguishes the moves of one claim.
const SUFFIX: usize = 5;

#[derive(clap::Args)]
#[command(group(ArgGroup::new("target").required(true)))]
pub(super) struct VolumeArgs {
    #[command(flatten)]
    claim: ObjectArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The node on which the volume will be used: a virtual node for another cluster.
    #[arg(long, value_name = "NODE", group = "target")]
    target_node: Option<String>,
    /// The target cluster, on any of its nodes.
    #[arg(long, value_name = "ID", group = "target")]
    target_cluster: Option<String>,
    /// The real storage class there: that of a new claim, which is the default, or one in the driver's allow-list.
    #[arg(long, value_name = "CLASS")]
    storage_class: Option<String>,
    /// Another claim of the namespace that the same pods mount: it is moved with this one.
    #[arg(long, value_name = "NAME")]
    with: Vec<String>,
    /// Only report what blocks the move.
    #[arg(long)]
    dry_run: bool,
    /// Evict the pods, so that they start at the target. Without this, you have to stop them.
    #[arg(long)]
    evict: bool,
    /// When the pods are stopped: as soon as little is left to copy, or by `liqo-csi move cutover`.
    #[arg(long, value_enum, default_value = "auto")]
    cutover: When,
    /// For how long the volumes may be unavailable; after that, pods get them back at the source.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    max_downtime: String,
    /// Maximum number of bytes sent per second, such as 64Mi.
    #[arg(long, value_name = "QUANTITY")]
    bandwidth: Option<String>,
    /// What is compared at the end: the files that the last pass has touched, or all.
    #[arg(long, value_enum, default_value = "incremental")]
    verify: Compared,
    /// For how long the source is kept after the move.
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    retain_source: String,
    /// Which losses to accept. For others the move is refused, or waits.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    accept_loss: Vec<MayBeLost>,
    /// Return once the `VolumeMove` is created, without following it.
    #[arg(long)]
    no_wait: bool,
    /// CPU requests of the movers.
    #[arg(long, value_name = "QUANTITY")]
    containers_cpu_requests: Option<String>,
    /// CPU limits of the movers.
    #[arg(long, value_name = "QUANTITY")]
    containers_cpu_limits: Option<String>,
    /// Memory requests of the movers.
    #[arg(long, value_name = "QUANTITY")]
    containers_ram_requests: Option<String>,
    /// Memory limits of the movers.
    #[arg(long, value_name = "QUANTITY")]
    containers_ram_limits: Option<String>,
    /// Accepted because liqoctl has it; without effect.
    #[arg(long, hide = true)]
    restic_image: Option<String>,
    #[arg(long, hide = true)]
    restic_server_image: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum When {
    Auto,
    Manual,
}

#[derive(Clone, Copy, ValueEnum)]
enum Compared {
    Incremental,
    Full,
}

/// See [`Loss`].
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum MayBeLost {
    Xattrs,
    Flags,
    Snapshots,
    Live,
}

/// Creates the move, unless the same one is in progress, and follows it.
pub(super) async fn begin(args: VolumeArgs) -> Outcome<ExitCode> {
    for (flag, value) in [
        ("--restic-image", &args.restic_image),
        ("--restic-server-image", &args.restic_server_image),
    ] {
        if value.is_some() {
            eprintln!("{flag} has no effect: the data is copied by this driver's own image, not by restic");
        }
    }
    let waits = !args.no_wait;
    let (place, claim) = Place::find(&args.claim, &args.cluster).await?;
    let spec = spec(&args, claims(&place.namespace, claim, &args.with)?);
    let under_way = place.moves.find(|one| concerns(one, &spec)).await?;
    if let Some(found) = under_way.first() {
        let name = found.name_any();
        if found.spec.claims == spec.claims && found.spec.target == spec.target {
            eprintln!("the move {name} does that already; following it");
            return follow(&place, &name, waits).await;
        }
        return Err(format!(
            "the VolumeMove {}/{name} moves {} already: wait for its end, or cancel it with liqo-csi move cancel {name} -n {}",
            place.namespace,
            found.spec.claims.join(", "),
            place.namespace
        )
        .into());
    }
    let name = create_move(&place, spec).await?;
    follow(&place, &name, waits).await
}

/// Creates the object; its name.
pub(super) async fn create_move(place: &Place, spec: VolumeMoveSpec) -> Outcome<String> {
    let random = uuid::Uuid::new_v4().simple().to_string();
    let first = spec.claims.first().map_or("move", String::as_str);
    let name = format!("{first}-{}", &random[..SUFFIX]);
    let mut wanted = VolumeMove::new(&name, spec);
    wanted.metadata.namespace = Some(place.namespace.clone());
    // The API server would refuse it as well, with a longer message.
    MoveRequest::try_from(&wanted)?;
    let made = place.moves.create(&wanted).await?;
    made.ok_or_else(|| format!("the VolumeMove {name} exists already: run the command again"))?;
    Ok(name)
}

/// Whether a move that has not ended is about one of these claims.
fn concerns(one: &VolumeMove, spec: &VolumeMoveSpec) -> bool {
    let shares = one.spec.claims.iter().any(|claim| spec.claims.contains(claim));
    shares && !describe::is_over(one)
}

/// The claims of a move: the first one and those of `--with`, which may also be NAMESPACE/NAME.
fn claims(namespace: &str, first: String, with: &[String]) -> Outcome<Vec<String>> {
    let mut claims = vec![first];
    for full in with {
        let own = full.strip_prefix(namespace).and_then(|it| it.strip_prefix('/'));
        let name = own.unwrap_or(full);
        if name.contains('/') {
            return Err(format!(
                "{full} is not in the namespace {namespace}: move it with a command of its own"
            )
            .into());
        }
        claims.push(name.to_owned());
    }
    Ok(claims)
}

fn spec(args: &VolumeArgs, claims: Vec<String>) -> VolumeMoveSpec {
    let amounts = |cpu: &Option<String>, memory: &Option<String>| {
        let amount = |text: &Option<String>| text.clone().map(Quantity);
        let some = cpu.is_some() || memory.is_some();
        some.then(|| Amounts {
            cpu: amount(cpu),
            memory: amount(memory),
        })
    };
    let requests = amounts(&args.containers_cpu_requests, &args.containers_ram_requests);
    let limits = amounts(&args.containers_cpu_limits, &args.containers_ram_limits);
    let sizes_movers = requests.is_some() || limits.is_some();
    VolumeMoveSpec {
        claims,
        target: Target {
            node_name: args.target_node.clone(),
            cluster: args.target_cluster.clone(),
            storage_class_name: args.storage_class.clone(),
            access_modes: Vec::new(),
        },
        cutover: Cutover {
            mode: match args.cutover {
                When::Auto => CutoverMode::Auto,
                When::Manual => CutoverMode::Manual,
            },
            max_downtime: args.max_downtime.clone(),
            ..Cutover::default()
        },
        quiesce: QuiesceSpec {
            mode: if args.evict {
                QuiesceMode::Evict
            } else {
                QuiesceMode::Wait
            },
            ..QuiesceSpec::default()
        },
        warm: Warm::default(),
        verify: match args.verify {
            Compared::Incremental => Verify::Incremental,
            Compared::Full => Verify::Full,
        },
        transport: Transport {
            bandwidth: args.bandwidth.clone().map(Quantity),
            ..Transport::default()
        },
        accept_loss: args.accept_loss.iter().map(|loss| Loss::from(*loss)).collect(),
        mover: sizes_movers.then_some(Mover {
            resources: Some(MoverResources { requests, limits }),
            run_as_user: None,
        }),
        retain_source: args.retain_source.clone(),
        paused: false,
        cancel: false,
        recover_source: false,
        dry_run: args.dry_run,
    }
}

impl From<MayBeLost> for Loss {
    fn from(loss: MayBeLost) -> Self {
        match loss {
            MayBeLost::Xattrs => Self::ExtendedAttributes,
            MayBeLost::Flags => Self::InodeFlags,
            MayBeLost::Snapshots => Self::Snapshots,
            MayBeLost::Live => Self::LiveWrites,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        volume: VolumeArgs,
    }

    fn asked(line: &[&str]) -> VolumeMoveSpec {
        let args = Line::try_parse_from(["move"].iter().chain(line)).unwrap().volume;
        let first = args.claim.within("current").unwrap();
        let claims = claims(&first.namespace, first.name, &args.with).unwrap();
        spec(&args, claims)
    }

    #[test]
    fn the_flags_of_liqoctl_are_accepted() {
        let spec = asked(&[
            "data",
            "--namespace",
            "shop",
            "--target-node",
            "liqo-milan",
            "--containers-cpu-limits",
            "500m",
            "--containers-ram-requests",
            "64Mi",
            "--restic-image",
            "restic/restic:0.14.0",
        ]);
        assert_eq!(spec.claims, ["data"]);
        assert_eq!(spec.target.node_name.as_deref(), Some("liqo-milan"));
        assert_eq!(spec.quiesce.mode, QuiesceMode::Wait);
        let sizes = spec.mover.unwrap().resources.unwrap();
        assert_eq!(sizes.limits.unwrap().cpu, Some(Quantity("500m".into())));
        assert_eq!(sizes.requests.unwrap().memory, Some(Quantity("64Mi".into())));
    }

    #[test]
    fn claims_are_named_as_in_other_commands() {
        let spec = asked(&[
            "shop/data",
            "--with",
            "log",
            "--with",
            "shop/index",
            "--target-cluster",
            "b",
        ]);
        assert_eq!(spec.claims, ["data", "log", "index"]);
        let refused = claims("shop", "data".into(), &["shopping/log".into()]);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("shopping/log is not in the namespace shop"),
            "{refused}"
        );
    }

    #[test]
    fn one_target_is_named() {
        for (line, is_right) in [
            (vec!["data"], false),
            (vec!["data", "--target-node", "a", "--target-cluster", "b"], false),
            (vec!["data", "--target-cluster", "b"], true),
        ] {
            let args = ["move"].iter().chain(&line);
            let parsed = Line::try_parse_from(args).err().map(|it| it.to_string());
            assert_eq!(parsed.is_none(), is_right, "{line:?}");
            // Both ways to name it are in the message.
            assert!(parsed.is_none_or(|it| it.contains("--target-node") && it.contains("--target-cluster")));
        }
    }

    #[test]
    fn an_unfinished_move_concerns_its_claims() {
        let mut one = VolumeMove::new(
            "data-1",
            asked(&["data", "--with", "log", "--target-cluster", "b"]),
        );
        assert!(concerns(&one, &asked(&["log", "--target-cluster", "c"])));
        assert!(!concerns(&one, &asked(&["other", "--target-cluster", "c"])));
        one.status = Some(crate::api::volume_move::VolumeMoveStatus {
            phase: Some("Cancelled".into()),
            ..Default::default()
        });
        assert!(!concerns(&one, &asked(&["log", "--target-cluster", "c"])));
    }
}
