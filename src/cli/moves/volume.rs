//! `liqo-csi move volume`: the flags, and the `VolumeMove` that they describe.

use std::process::ExitCode;

use clap::{ArgGroup, ValueEnum};
use kube::ResourceExt;
use serde_json::json;

use super::{Place, describe, follow::follow};
use crate::{
    api::volume_move::{
        Amounts, Cutover, CutoverMode, Loss, MoveRequest, Mover, MoverResources, Quantity, QuiesceMode,
        QuiesceSpec, RETAIN_SOURCE, Target, Transport, Verify, VolumeMove, VolumeMoveSpec, Warm,
    },
    cli::{
        Outcome,
        common::{ClusterArgs, ObjectArgs},
    },
};

/// Length of the suffix that distinguishes the moves of one claim.
const SUFFIX: usize = 5;
/// Length of the longest name of an object.
const LONGEST_NAME: usize = 253;

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
    #[arg(long, value_name = "DURATION", default_value = RETAIN_SOURCE)]
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
    let name = start(&place, spec).await?;
    follow(&place, &name, waits).await
}

/// Creates the move, unless the same one is in progress; the name of either.
pub(super) async fn start(place: &Place, spec: VolumeMoveSpec) -> Outcome<String> {
    // A dry run changes nothing, and reports a move that is in progress.
    if spec.dry_run {
        return create_move(place, spec).await;
    }
    let in_progress = place.moves.find(|one| concerns(one, &spec)).await?;
    let is_same = |one: &&VolumeMove| {
        one.spec.claims == spec.claims && one.spec.target == spec.target && !one.spec.cancel
    };
    if let Some(same) = in_progress.iter().find(is_same) {
        join(place, same, &spec).await?;
        return Ok(same.name_any());
    }
    let Some(other) = in_progress.first() else {
        return create_move(place, spec).await;
    };
    let (namespace, name) = (&place.namespace, other.name_any());
    Err(format!(
        "the VolumeMove {namespace}/{name} moves {} already: wait for its end, or cancel it with liqo-csi move cancel {name} -n \
         {namespace}",
        other.spec.claims.join(", "),
    )
    .into())
}

/// Accepts the losses for the move that is in progress, too, and reports which options it does not have.
async fn join(place: &Place, found: &VolumeMove, spec: &VolumeMoveSpec) -> Outcome {
    let (namespace, name) = (&place.namespace, found.name_any());
    eprintln!("the move {name} does that already");
    let mut accepted = found.spec.accept_loss.clone();
    for loss in &spec.accept_loss {
        if !accepted.contains(loss) {
            accepted.push(*loss);
        }
    }
    if accepted != found.spec.accept_loss {
        let patch = json!({"metadata": {"uid": found.metadata.uid}, "spec": {"acceptLoss": accepted}});
        place.moves.merge(&name, &patch).await?;
    }
    let others = other_options(&found.spec, spec);
    if !others.is_empty() {
        eprintln!(
            "it has other values of {}, and keeps them: change its spec (kubectl edit vmove {name} -n {namespace}) or, where that \
             is not allowed, cancel it and run this command again",
            others.join(", ")
        );
    }
    Ok(())
}

/// The options of which the two moves have different values. Losses are not among them.
fn other_options(one: &VolumeMoveSpec, other: &VolumeMoveSpec) -> Vec<&'static str> {
    let options = [
        ("--evict", one.quiesce.mode != other.quiesce.mode),
        ("--cutover", one.cutover.mode != other.cutover.mode),
        (
            "--max-downtime",
            one.cutover.max_downtime != other.cutover.max_downtime,
        ),
        (
            "--bandwidth",
            one.transport.bandwidth != other.transport.bandwidth,
        ),
        ("--verify", one.verify != other.verify),
        ("--retain-source", one.retain_source != other.retain_source),
        ("--containers-*", one.mover != other.mover),
    ];
    let differing = options.into_iter().filter(|(_, differs)| *differs);
    differing.map(|(option, _)| option).collect()
}

/// Creates the object; its name.
pub(super) async fn create_move(place: &Place, spec: VolumeMoveSpec) -> Outcome<String> {
    let random = uuid::Uuid::new_v4().simple().to_string();
    let first = spec.claims.first().map_or("move", String::as_str);
    let first = first.get(..LONGEST_NAME - SUFFIX - 1).unwrap_or(first);
    let name = format!("{}-{}", first.trim_end_matches(['-', '.']), &random[..SUFFIX]);
    let mut wanted = VolumeMove::new(&name, spec);
    wanted.metadata.namespace = Some(place.namespace.clone());
    // The API server would refuse it as well, with a longer message.
    MoveRequest::try_from(&wanted)?;
    let made = place.moves.create(&wanted).await?;
    made.ok_or_else(|| format!("the VolumeMove {name} exists already: run the command again"))?;
    Ok(name)
}

/// Whether a move that has not ended is about one of these claims. Dry runs move nothing.
fn concerns(one: &VolumeMove, spec: &VolumeMoveSpec) -> bool {
    let shares = one.spec.claims.iter().any(|claim| spec.claims.contains(claim));
    shares && !one.spec.dry_run && !describe::is_over(one)
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
    use crate::cluster::testing::FakeApi;

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

    #[tokio::test]
    async fn the_same_command_again_accepts_more_losses_of_the_move_in_progress() {
        let api = FakeApi::start().await;
        let place = Place::of(&api.cluster_unwatched().await, "shop".to_owned());
        let to =
            |more: &[&str]| asked(&[&["data", "-n", "shop", "--target-cluster", "b"][..], more].concat());
        let name = start(&place, to(&["--accept-loss", "xattrs"])).await.unwrap();
        let again = to(&["--accept-loss", "live,xattrs", "--evict", "--bandwidth", "1Mi"]);
        assert_eq!(start(&place, again.clone()).await.unwrap(), name);
        let found = place.moves.get(&name).await.unwrap().unwrap();
        assert_eq!(
            found.spec.accept_loss,
            [Loss::ExtendedAttributes, Loss::LiveWrites]
        );
        assert_eq!(other_options(&found.spec, &again), ["--evict", "--bandwidth"]);
        let elsewhere = asked(&["data", "-n", "shop", "--target-cluster", "c"]);
        let refused = start(&place, elsewhere).await.unwrap_err().to_string();
        assert!(refused.contains(&name), "{refused}");
    }

    #[tokio::test]
    async fn a_dry_run_neither_replaces_a_move_nor_is_one() {
        let api = FakeApi::start().await;
        let place = Place::of(&api.cluster_unwatched().await, "shop".to_owned());
        let to =
            |more: &[&str]| asked(&[&["data", "-n", "shop", "--target-cluster", "b"][..], more].concat());
        let mut names = Vec::new();
        for more in [&["--dry-run"][..], &[], &["--dry-run"]] {
            names.push(start(&place, to(more)).await.unwrap());
        }
        assert_eq!(place.moves.list(None).await.unwrap().len(), 3, "{names:?}");
        assert_eq!(start(&place, to(&[])).await.unwrap(), names[1]);
    }

    #[tokio::test]
    async fn a_move_of_a_claim_with_the_longest_name_has_a_valid_name() {
        let api = FakeApi::start().await;
        let place = Place::of(&api.cluster_unwatched().await, "shop".to_owned());
        let claim = format!(
            "{}.{}",
            "x".repeat(LONGEST_NAME - SUFFIX - 2),
            "y".repeat(SUFFIX + 1)
        );
        assert_eq!(claim.len(), LONGEST_NAME);
        let name = create_move(&place, asked(&[claim.as_str(), "--target-cluster", "b"]))
            .await
            .unwrap();
        assert!(name.len() <= LONGEST_NAME && name.contains("xx-"), "{name}");
    }
}
