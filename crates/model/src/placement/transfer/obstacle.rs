//! Everything that blocks the import or the release of a claim, found before anything is changed, and
//! reported together with what the user can do.

use crate::volume::{ClaimName, DRIVER_NAME, VolumeMode, quantity};

/// One reason not to import or release a claim, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    #[error("the pod {pod} uses the claim{}", if *.over { ", although it has terminated: delete it" } else { ": scale its workload down, or delete it" })]
    Pod {
        pod: String,
        /// Whether it has terminated.
        over: bool,
    },
    #[error(
        "the StatefulSet {set} has a replica {ordinal}, and would create an empty claim of that name in between: scale it to {ordinal} \
         replicas or fewer, counted from its first ordinal{}",
        if *.deletes { ". NOT YET: its persistentVolumeClaimRetentionPolicy.whenScaled is Delete, so that would delete the claim and its data. \
         Set it to Retain first" } else { "" }
    )]
    StatefulSet {
        set: String,
        /// The replica whose claim it is.
        ordinal: u64,
        /// Whether scaling it down deletes the claim.
        deletes: bool,
    },
    #[error(
        "the PersistentVolume {volume} is attached to the node {node}: wait until it is detached, after the last pod was deleted"
    )]
    Attached { volume: String, node: String },
    #[error("the claim is being resized ({0}): wait until that is complete, or request its current size")]
    Resizing(String),
    #[error("the attributes of the claim are being changed: wait until that is complete")]
    Modifying,
    #[error(
        "the claim has the finalizer {0}, so a controller is working on it, for example taking a snapshot or a copy: wait until that is complete"
    )]
    InUse(String),
    #[error("the {0} is being deleted")]
    Deleting(&'static str),
    #[error(
        "the claim is not bound to a PersistentVolume: there is no data to keep. Create it again, with the class that you want"
    )]
    NotBound,
    /// This driver cannot mount it.
    #[error("{0}")]
    Unmountable(String),
    /// It already belongs to this driver.
    #[error("the claim already has a volume of this driver")]
    Ours,
    #[error("the claim is the twin of a volume of this driver")]
    Twin,
    /// It is a virtual volume of another driver.
    #[error(
        "the class {class} of the claim is virtual itself (provisioner {provisioner}), and its data is that of another claim: it \
         cannot be imported, and importing the other claim would not give this one its data. Create a new claim and copy the data"
    )]
    Virtual { class: String, provisioner: String },
    /// It requests more than its PV has.
    #[error(
        "the claim requests {wanted}, and its PersistentVolume has {has}: csi-provisioner would delete a volume that is too small"
    )]
    TooSmall { wanted: String, has: String },
    /// The volume modes of claim and PV differ.
    #[error("the claim has the volume mode {claim:?}, and its PersistentVolume {volume:?}")]
    OtherMode { claim: VolumeMode, volume: VolumeMode },
    /// A deployment tool manages it.
    #[error(
        "{tool} manages the claim (its key {key}): if the tool applies it in between, an empty volume replaces it, and later the tool may delete it. \
         Change the class in the sources and exclude the claim from {tool}; --force-managed continues anyway"
    )]
    Managed { tool: &'static str, key: String },
    /// A deployment tool manages the PV.
    #[error(
        "{tool} manages the PersistentVolume (its key {key}), and may revert its claimRef and reclaim policy or delete it: exclude it from \
         {tool}; --force-managed continues anyway"
    )]
    VolumeManaged { tool: &'static str, key: String },
    /// A controller owns it.
    #[error(
        "the claim is controlled by the {kind} {name}, which may create it again or delete it: stop that controller; --force-managed continues \
         anyway"
    )]
    Controlled { kind: String, name: String },
    /// Whether its owner still exists cannot be determined.
    #[error(
        "an owner of the claim, the {kind} {name}, cannot be read, and Kubernetes would delete the new claim if the owner does not exist: make \
         sure that you may get the owner and that its API answers, or remove it from the claim's ownerReferences ({why})"
    )]
    UnreadableOwner { kind: String, name: String, why: String },
    #[error(
        "the claim is the ephemeral volume of the pod {0}, and is deleted with it: change the class in the template of the pod"
    )]
    Ephemeral(String),
    #[error("there is no storage class {0}")]
    NoClass(String),
    /// The class belongs to another driver.
    #[error(
        "the storage class {class} is not one of this driver (its provisioner is {provisioner}): name one with --class"
    )]
    OtherClass { class: String, provisioner: String },
    /// Several classes are possible.
    #[error("name the class of the claim with --class: this driver has {}", if .0.is_empty() { "none here".to_owned() } else { .0.join(", ") })]
    WhichClass(Vec<String>),
    /// The import was started with another class.
    #[error("the import was started with the class {0}: continue without --class, or undo it first")]
    BegunWith(String),
    /// No node is suitable.
    #[error("no node that runs this driver can use the PersistentVolume: {0}")]
    NoNode(String),
    /// Users have created other PVs for its volume.
    #[error(
        "the PersistentVolume {} has the same volume, and would lose it: set it to Retain and delete it first", .0.join(", ")
    )]
    SecondVolumes(Vec<String>),
    /// It does not belong to this driver.
    #[error("the claim has no volume of this driver: there is nothing to release")]
    NotOurs,
    /// Its twin is not in this cluster.
    #[error(
        "there is no twin {0} of the claim in this cluster. A volume whose data is in another cluster cannot be released yet; one whose \
         twin was deleted must be recovered first: see the events of the claim"
    )]
    NoTwin(String),
    /// An obstacle of its twin.
    #[error("its twin {twin}: {what}")]
    OfTwin {
        /// The twin, as namespace/name.
        twin: String,
        what: Box<Obstacle>,
    },
    /// It is being imported.
    #[error("the import of the claim is not complete: run `liqo-csi import pvc` again until it is")]
    Importing,
    /// It is being released.
    #[error("the release of the claim is not complete: run `liqo-csi release pvc` again until it is")]
    Releasing,
    #[error("the API server would refuse the new claim: {0}")]
    NotAccepted(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct ImportedClaim {
    pub name: ClaimName,
    /// Whether Kubernetes has bound it to its PV, and the PV to it.
    pub bound: bool,
    pub deleting: bool,
    /// Whether it has the marks of a twin.
    pub is_twin: bool,
    /// Its requested size in bytes.
    pub requested: u64,
    pub mode: VolumeMode,
    /// The state of an unfinished resize.
    pub resizing: Option<String>,
    pub modifying: bool,
    /// Its finalizers, except that of every claim.
    pub finalizers: Vec<String>,
    /// The tool that manages it, and the key that shows it.
    pub managed: Option<(&'static str, String)>,
    /// The pod whose generic ephemeral volume it is.
    pub ephemeral: Option<String>,
    /// Kind and name of its controller.
    pub controller: Option<(String, String)>,
    /// Its class and the provisioner of the class.
    pub class: Option<(String, String)>,
    /// Pods that use it, and whether they have terminated.
    pub pods: Vec<(String, bool)>,
    /// `StatefulSet`s with a replica that uses it.
    pub wanted_by: Vec<WantedBy>,
}

/// A `StatefulSet` with a replica that uses a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedBy {
    pub set: String,
    /// The replica whose claim it is.
    pub ordinal: u64,
    /// Whether scaling the set down deletes the claim.
    pub deletes: bool,
}

/// The PV of a claim to import.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one object")]
pub struct RealVolume {
    pub name: String,
    pub bytes: u64,
    pub mode: VolumeMode,
    pub deleting: bool,
    /// Whether it belongs to this driver.
    pub is_ours: bool,
    /// Why this driver cannot mount it, if so.
    pub unmountable: Option<String>,
    /// The tool that manages it, and the key that shows it.
    pub managed: Option<(&'static str, String)>,
    pub attached: Vec<String>,
    /// Whether it has an unfinished import.
    pub importing: bool,
    /// Whether it has an unfinished release.
    pub releasing: bool,
}

/// The twin of a claim to release, and its PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasedTwin {
    pub claim: ImportedClaim,
    pub volume: Option<RealVolume>,
}

/// The class of an imported claim: the requested one, or the only one of this driver, or the one with the
/// default name. `classes` are names and provisioners.
pub fn class_for(wanted: Option<&str>, classes: &[(String, String)]) -> Result<String, Obstacle> {
    const DEFAULT_NAME: &str = "liqo";
    if let Some(wanted) = wanted {
        let found = classes.iter().find(|(name, _)| name == wanted);
        return match found {
            Some((name, provisioner)) if provisioner == DRIVER_NAME => Ok(name.clone()),
            Some((name, provisioner)) => Err(Obstacle::OtherClass {
                class: name.clone(),
                provisioner: provisioner.clone(),
            }),
            None => Err(Obstacle::NoClass(wanted.to_owned())),
        };
    }
    let ours = classes
        .iter()
        .filter(|(_, provisioner)| provisioner == DRIVER_NAME);
    let names: Vec<String> = ours.map(|(name, _)| name.clone()).collect();
    match names.as_slice() {
        [only] => Ok(only.clone()),
        all if all.iter().any(|name| name == DEFAULT_NAME) => Ok(DEFAULT_NAME.to_owned()),
        _ => Err(Obstacle::WhichClass(names)),
    }
}

/// The ordinal of the `StatefulSet` replica whose claim has this name, if the set has that replica.
/// `templates` are the names of its claim templates.
#[must_use]
pub fn wanted_replica(
    claim: &str,
    set: &str,
    templates: &[String],
    start: u64,
    replicas: u64,
) -> Option<u64> {
    let ordinal = templates.iter().find_map(|template| {
        let rest = claim.strip_prefix(template)?.strip_prefix('-')?;
        let ordinal = rest.strip_prefix(set)?.strip_prefix('-')?;
        ordinal.parse::<u64>().ok()
    })?;
    (start..start.saturating_add(replicas))
        .contains(&ordinal)
        .then_some(ordinal)
}

/// Everything that blocks the import of this claim, as far as claim and PV show it.
#[must_use]
pub fn obstacles(claim: &ImportedClaim, volume: Option<&RealVolume>, force_managed: bool) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if claim.is_twin {
        // Other obstacles do not matter then.
        return vec![Obstacle::Twin];
    }
    if volume.is_some_and(|volume| volume.is_ours) {
        return vec![Obstacle::Ours];
    }
    if let Some((class, provisioner)) = &claim.class
        && crate::placement::is_loop(provisioner)
    {
        found.push(Obstacle::Virtual {
            class: class.clone(),
            provisioner: provisioner.clone(),
        });
    }
    found.extend(of_claim(claim, force_managed));
    if volume.is_some_and(|volume| volume.releasing) {
        found.push(Obstacle::Releasing);
    }
    match volume {
        Some(volume) if claim.bound => {
            found.extend(volume_managed(volume, force_managed));
            found.extend(of_volume(claim, volume));
        }
        _ => found.push(Obstacle::NotBound),
    }
    found
}

/// Everything that blocks the release of this claim, as far as the claim, its virtual PV and its twin show
/// it.
#[must_use]
pub fn release_obstacles(
    claim: &ImportedClaim,
    volume: Option<&RealVolume>,
    twin_name: &str,
    twin: Option<&ReleasedTwin>,
    force_managed: bool,
) -> Vec<Obstacle> {
    if claim.is_twin {
        return vec![Obstacle::Twin];
    }
    match volume {
        None => return vec![Obstacle::NotBound],
        Some(volume) if !volume.is_ours => return vec![Obstacle::NotOurs],
        Some(_) => {}
    }
    let mut found = of_claim(claim, force_managed);
    match volume {
        Some(volume) if claim.bound => found.extend(of_volume(claim, volume)),
        _ => found.push(Obstacle::NotBound),
    }
    let Some(twin) = twin else {
        found.push(Obstacle::NoTwin(twin_name.to_owned()));
        return found;
    };
    // A twin is managed by this driver, whatever marks it carries from its claim.
    let mut of_twin = of_claim(&twin.claim, true);
    match &twin.volume {
        Some(real) if twin.claim.bound => {
            of_twin.extend(volume_managed(real, force_managed));
            of_twin.extend(of_volume(&twin.claim, real));
            if claim.requested > real.bytes {
                found.push(too_small(claim, real));
            }
            if real.importing {
                found.push(Obstacle::Importing);
            }
        }
        _ => of_twin.push(Obstacle::NotBound),
    }
    found.extend(of_twin.into_iter().map(|what| Obstacle::OfTwin {
        twin: twin_name.to_owned(),
        what: Box::new(what),
    }));
    found
}

/// Obstacles that the claim itself shows.
fn of_claim(claim: &ImportedClaim, force_managed: bool) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if claim.deleting {
        found.push(Obstacle::Deleting("claim"));
    }
    if let Some(pod) = &claim.ephemeral {
        found.push(Obstacle::Ephemeral(pod.clone()));
    } else if let Some((kind, name)) = claim.controller.clone().filter(|_| !force_managed) {
        found.push(Obstacle::Controlled { kind, name });
    }
    if let Some((tool, key)) = claim.managed.clone().filter(|_| !force_managed) {
        found.push(Obstacle::Managed { tool, key });
    }
    let pods = claim.pods.iter().map(|(pod, over)| Obstacle::Pod {
        pod: pod.clone(),
        over: *over,
    });
    found.extend(pods);
    let sets = claim.wanted_by.iter().cloned();
    found.extend(sets.map(|it| Obstacle::StatefulSet {
        set: it.set,
        ordinal: it.ordinal,
        deletes: it.deletes,
    }));
    found.extend(claim.resizing.clone().map(Obstacle::Resizing));
    if claim.modifying {
        found.push(Obstacle::Modifying);
    }
    found.extend(claim.finalizers.iter().cloned().map(Obstacle::InUse));
    found
}

fn volume_managed(volume: &RealVolume, force_managed: bool) -> Option<Obstacle> {
    let managed = volume.managed.clone().filter(|_| !force_managed);
    managed.map(|(tool, key)| Obstacle::VolumeManaged { tool, key })
}

fn too_small(claim: &ImportedClaim, volume: &RealVolume) -> Obstacle {
    Obstacle::TooSmall {
        wanted: quantity(claim.requested),
        has: quantity(volume.bytes),
    }
}

fn of_volume(claim: &ImportedClaim, volume: &RealVolume) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if volume.deleting {
        found.push(Obstacle::Deleting("PersistentVolume"));
    }
    found.extend(volume.unmountable.clone().map(Obstacle::Unmountable));
    if claim.requested > volume.bytes {
        found.push(too_small(claim, volume));
    }
    if claim.mode != volume.mode {
        found.push(Obstacle::OtherMode {
            claim: claim.mode,
            volume: volume.mode,
        });
    }
    found.extend(volume.attached.iter().map(|node| Obstacle::Attached {
        volume: volume.name.clone(),
        node: node.clone(),
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> ImportedClaim {
        ImportedClaim {
            name: "shop/data".parse().unwrap(),
            bound: true,
            deleting: false,
            is_twin: false,
            requested: 1 << 30,
            mode: VolumeMode::Filesystem,
            resizing: None,
            modifying: false,
            finalizers: Vec::new(),
            managed: None,
            ephemeral: None,
            controller: None,
            class: Some(("fast".into(), "real.test".into())),
            pods: Vec::new(),
            wanted_by: Vec::new(),
        }
    }

    fn volume() -> RealVolume {
        RealVolume {
            name: "pv".into(),
            bytes: 1 << 30,
            mode: VolumeMode::Filesystem,
            deleting: false,
            is_ours: false,
            unmountable: None,
            managed: None,
            attached: Vec::new(),
            importing: false,
            releasing: false,
        }
    }

    fn found(claim: &ImportedClaim, volume: &RealVolume) -> Vec<Obstacle> {
        obstacles(claim, Some(volume), false)
    }

    fn wanted(deletes: bool) -> WantedBy {
        WantedBy {
            set: "db".into(),
            ordinal: 2,
            deletes,
        }
    }

    #[test]
    fn an_unused_claim_has_no_obstacles() {
        assert_eq!(found(&claim(), &volume()), []);
    }

    #[test]
    fn each_obstacle_is_reported_with_its_way_out() {
        type Break = fn(&mut ImportedClaim, &mut RealVolume);
        let table: [(Break, &str); 16] = [
            (
                |it, _| it.pods = vec![("web".into(), false)],
                "scale its workload down",
            ),
            (
                |it, _| it.pods = vec![("job".into(), true)],
                "it has terminated: delete it",
            ),
            (
                |it, _| it.wanted_by = vec![wanted(false)],
                "scale it to 2 replicas",
            ),
            (
                |it, _| it.wanted_by = vec![wanted(true)],
                "Set it to Retain first",
            ),
            (
                |_, it| it.managed = Some(("Flux", "kustomize.toolkit.fluxcd.io/name".into())),
                "exclude it from Flux",
            ),
            (
                |_, it| it.attached = vec!["n1".into()],
                "wait until it is detached",
            ),
            (
                |it, _| it.resizing = Some("FileSystemResizePending".into()),
                "wait until that is complete",
            ),
            (|it, _| it.modifying = true, "attributes"),
            (|it, _| it.finalizers = vec!["x/y".into()], "x/y"),
            (|it, _| it.deleting = true, "the claim is being deleted"),
            (
                |_, it| it.deleting = true,
                "the PersistentVolume is being deleted",
            ),
            (|it, _| it.bound = false, "not bound"),
            (|_, it| it.unmountable = Some("neither csi".into()), "neither csi"),
            (|it, _| it.requested = 2 << 30, "too small"),
            (|it, _| it.mode = VolumeMode::Block, "volume mode"),
            (
                |it, _| it.class = Some(("liqo".into(), "liqo.io/storage".into())),
                "cannot be imported",
            ),
        ];
        for (at, (break_it, expected)) in table.into_iter().enumerate() {
            let (mut claim, mut volume) = (claim(), volume());
            break_it(&mut claim, &mut volume);
            let told = found(&claim, &volume);
            assert_eq!(told.len(), 1, "row {at}: {told:?}");
            assert!(told[0].to_string().contains(expected), "row {at}: {}", told[0]);
        }
    }

    #[test]
    fn all_obstacles_to_an_import_are_reported_at_once() {
        let mut claim = claim();
        claim.pods = vec![("web-0".into(), false), ("web-1".into(), false)];
        claim.modifying = true;
        claim.managed = Some(("Helm", "meta.helm.sh/release-name".into()));
        let mut volume = volume();
        volume.attached = vec!["n1".into()];
        assert_eq!(found(&claim, &volume).len(), 5);
    }

    fn release_found(
        break_it: impl FnOnce(&mut ImportedClaim, &mut RealVolume, &mut ReleasedTwin),
    ) -> Vec<Obstacle> {
        let (mut claim, mut outer) = (claim(), volume());
        claim.class = Some(("liqo".into(), DRIVER_NAME.into()));
        outer.is_ours = true;
        let mut twin = ReleasedTwin {
            claim: ImportedClaim {
                is_twin: true,
                ..self::claim()
            },
            volume: Some(volume()),
        };
        break_it(&mut claim, &mut outer, &mut twin);
        release_obstacles(&claim, Some(&outer), "liqo-storage/u1", Some(&twin), false)
    }

    #[test]
    fn obstacles_to_a_release_are_checked_on_both_sides() {
        type Break = fn(&mut ImportedClaim, &mut RealVolume, &mut ReleasedTwin);
        assert_eq!(release_found(|_, _, _| {}), []);
        let table: [(Break, &str); 15] = [
            (
                |it, _, _| it.pods = vec![("web".into(), false)],
                "scale its workload down",
            ),
            (
                |it, _, _| it.wanted_by = vec![wanted(false)],
                "scale it to 2 replicas",
            ),
            (|it, _, _| it.modifying = true, "attributes"),
            (
                |it, _, _| it.managed = Some(("Helm", "meta.helm.sh/x".into())),
                "--force-managed",
            ),
            (|_, it, _| it.attached = vec!["n1".into()], "the node n1"),
            (|it, _, _| it.bound = false, "not bound"),
            (|it, _, _| it.is_twin = true, "is the twin"),
            (|_, it, _| it.is_ours = false, "nothing to release"),
            (
                |_, _, it| it.volume.as_mut().unwrap().attached = vec!["n2".into()],
                "liqo-storage/u1: the PersistentVolume pv is attached to the node n2",
            ),
            (
                |_, _, it| it.claim.resizing = Some("Resizing".into()),
                "liqo-storage/u1: the claim is being resized",
            ),
            (
                |_, _, it| it.claim.finalizers = vec!["clone".into()],
                "the finalizer clone",
            ),
            (
                |_, _, it| it.volume.as_mut().unwrap().managed = Some(("Helm", "meta.helm.sh/x".into())),
                "Helm manages the PersistentVolume",
            ),
            (
                |_, _, it| it.claim.bound = false,
                "liqo-storage/u1: the claim is not bound",
            ),
            (
                |_, _, it| it.claim.deleting = true,
                "liqo-storage/u1: the claim is being deleted",
            ),
            (
                |_, _, it| it.volume.as_mut().unwrap().importing = true,
                "import of the claim is not complete",
            ),
        ];
        for (at, (break_it, expected)) in table.into_iter().enumerate() {
            let told = release_found(break_it);
            assert_eq!(told.len(), 1, "row {at}: {told:?}");
            assert!(told[0].to_string().contains(expected), "row {at}: {}", told[0]);
        }
    }

    #[test]
    fn a_volume_without_a_twin_at_home_is_not_released() {
        let (claim, mut outer) = (claim(), volume());
        outer.is_ours = true;
        let told = release_obstacles(&claim, Some(&outer), "shop/data", None, false);
        assert_eq!(told, [Obstacle::NoTwin("shop/data".into())]);
    }

    #[test]
    fn a_volume_that_is_being_released_is_not_imported() {
        let mut volume = volume();
        volume.releasing = true;
        assert_eq!(found(&claim(), &volume), [Obstacle::Releasing]);
    }

    #[test]
    fn claims_managed_by_a_tool_are_refused_unless_forced() {
        let mut claim = claim();
        claim.managed = Some(("Argo CD", "argocd.argoproj.io/tracking-id".into()));
        claim.controller = Some(("Cluster".into(), "pg".into()));
        assert_eq!(found(&claim, &volume()).len(), 2);
        assert_eq!(obstacles(&claim, Some(&volume()), true), []);
        claim.ephemeral = Some("web".into());
        assert_eq!(
            obstacles(&claim, Some(&volume()), true),
            [Obstacle::Ephemeral("web".into())]
        );
    }

    #[test]
    fn an_import_uses_the_named_class_the_only_one_or_liqo() {
        let of = |names: &[(&str, &str)]| -> Vec<(String, String)> {
            let owned = |&(name, provisioner): &(&str, &str)| (name.to_owned(), provisioner.to_owned());
            names.iter().map(owned).collect()
        };
        let (fast, liqo, gold) = (
            ("fast", "real.test"),
            ("liqo", DRIVER_NAME),
            ("gold", DRIVER_NAME),
        );
        assert_eq!(class_for(None, &of(&[fast, gold])), Ok("gold".into()));
        assert_eq!(class_for(None, &of(&[fast, gold, liqo])), Ok("liqo".into()));
        assert_eq!(class_for(Some("gold"), &of(&[gold, liqo])), Ok("gold".into()));
        assert_eq!(class_for(None, &of(&[fast])), Err(Obstacle::WhichClass(vec![])));
        assert!(matches!(
            class_for(Some("fast"), &of(&[fast, liqo])),
            Err(Obstacle::OtherClass { .. })
        ));
        assert_eq!(
            class_for(Some("x"), &of(&[liqo])),
            Err(Obstacle::NoClass("x".into()))
        );
    }

    #[test]
    fn claims_of_current_replicas_of_a_stateful_set_are_recognised() {
        let wanted = |claim: &str, start, replicas| {
            wanted_replica(claim, "db", &["log".into(), "data".into()], start, replicas)
        };
        assert_eq!(wanted("data-db-1", 0, 2), Some(1));
        assert_eq!(wanted("log-db-0", 0, 2), Some(0));
        assert_eq!(wanted("data-db-2", 0, 2), None, "scaled down");
        assert_eq!(wanted("data-db-5", 5, 1), Some(5), "its ordinals start later");
        assert_eq!(wanted("data-db-0", 5, 1), None);
        for other in ["data-other-0", "data-db-x", "data", "data-db-", "xdata-db-0"] {
            assert_eq!(wanted(other, 0, 9), None, "{other}");
        }
    }

    #[test]
    fn claims_of_this_driver_are_not_imported() {
        let ours = RealVolume {
            is_ours: true,
            ..volume()
        };
        assert_eq!(found(&claim(), &ours), [Obstacle::Ours]);
        let twin = ImportedClaim {
            is_twin: true,
            ..claim()
        };
        assert_eq!(found(&twin, &volume()), [Obstacle::Twin]);
    }
}
