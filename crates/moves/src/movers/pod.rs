//! Builds the pods of a move: their rights, volumes, and the arguments of their programs. All comply with the
//! Pod Security Standard *baseline*, have no service account token (except the relay, which calls API
//! servers), call no shell, and are replaced instead of restarted.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use k8s_openapi::{
    api::core::v1::{
        Affinity, Capabilities, Container, EmptyDirVolumeSource, LocalObjectReference, NodeAffinity,
        NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolumeClaimVolumeSource, Pod,
        PodAffinity, PodAffinityTerm, PodSecurityContext, PodSpec, PreferredSchedulingTerm,
        ResourceRequirements, SELinuxOptions, SeccompProfile, SecretVolumeSource, SecurityContext,
        Toleration, Volume, VolumeDevice, VolumeMount, WeightedPodAffinityTerm,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};
use kube::api::ObjectMeta;

use super::{
    HelperSettings, MoveRequest, MovedVolume,
    names::{Names, Role},
    side::PreviousNode,
};
use crate::{
    api::volume_move::Amounts,
    placement::moving::Side,
    topology::VIRTUAL_NODE,
    volume::{digest, mark},
};

/// The port of the programs for data.
pub(super) const LANES_PORT: u16 = 7401;
/// The port where the target takes orders, on the loopback: it is reachable only by port-forward.
pub(super) const ORDERS_PORT: u16 = 7402;
/// The number of connections for data.
pub(super) const LANES: u32 = 4;

const DRIVER: &str = "/usr/local/bin/liqo-csi";
const DATA: &str = "/data";
const DEVICE: &str = "/dev/volume";
const JOURNAL: &str = "/journal";
const SECRETS: &str = "/secrets";
/// A journal has 32 bytes for each MiB of a device. It may take twice that, and this minimum.
const JOURNAL_LEAST: u64 = 16 << 20;
const DEVICE_BYTES_PER_JOURNAL_BYTE: u64 = (1 << 20) / 64;
/// The programs write only to the volume and may be killed at any time. With a grace period of zero the API
/// server would delete a pod that may still write.
const GRACE: i64 = 1;
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The user id in the driver's image.
const NONROOT_ID: i64 = 65532;
/// The `SELinux` level with all categories: its processes may read what pods with any categories have written.
const ALL_CATEGORIES: &str = "s0:c0.c1023";
/// With this `seLinuxChangePolicy`, kubelets do not mount volumes with the label of the pod.
const RECURSIVE: &str = "Recursive";
/// Length of the fingerprint of a pod.
const DIGITS: usize = 16;

/// How the two movers connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dialling {
    /// Each mover waits on its loopback for the relay.
    Relayed,
    /// The target waits for the source.
    Open,
    /// The source connects to the target.
    To(IpAddr),
    /// The same; if that fails, it waits for the relay.
    ToOrRelayed(IpAddr),
}

/// The input for a mover's pod.
pub(super) struct MoverPod<'a> {
    pub(super) moved: &'a MovedVolume,
    pub(super) of: &'a MoveRequest,
    pub(super) side: Side,
    pub(super) namespace: &'a str,
    /// The claim that it mounts.
    pub(super) claim: &'a str,
    /// The uid of the Secret with its certificates.
    pub(super) certificates: &'a str,
    pub(super) dialling: Dialling,
    /// The only nodes where it can use the volume; any node if empty.
    pub(super) nodes: Vec<String>,
    /// The node where the source was read before, if it may run on any node: everything has to be read again
    /// on other nodes.
    pub(super) before: Option<&'a PreviousNode>,
    /// Whether Liqo has quotas for pods, and therefore requires all requests and limits.
    pub(super) is_accounted: bool,
    /// The size in bytes of a volume of mode Block.
    pub(super) device: Option<u64>,
    /// Whether the driver of the volume cannot mount it read-only while a pod writes to it.
    pub(super) is_never_read_only: bool,
    /// The `SELinux` level of the pods that use the volume, if they name one.
    pub(super) level: Option<&'a str>,
}

impl MoverPod<'_> {
    /// The pod. `secret` is created after it, and owned by it.
    pub(super) fn made(&self, settings: &HelperSettings, secret: &str) -> Pod {
        let role = Role::Mover(self.side);
        let user = self.of.mover.run_as_user;
        let reads = self.side == Side::Source;
        let device = VolumeDevice {
            name: "data".to_owned(),
            device_path: DEVICE.to_owned(),
        };
        let data_mount = mount("data", DATA, reads);
        let data_mount = self.device.is_none().then_some(data_mount);
        let journal = self.journal();
        let journal_mount = journal.is_some().then(|| mount("journal", JOURNAL, false));
        let mounts = [data_mount, Some(mount("secrets", SECRETS, true)), journal_mount];
        let container = Container {
            name: "mover".to_owned(),
            command: Some(vec![DRIVER.to_owned(), "mover".to_owned()]),
            args: Some(self.arguments()),
            resources: Some(self.resources()),
            security_context: Some(confined(match user {
                Some(_) => &[],
                // The device belongs to root, as the pod does.
                None if self.device.is_some() => &[],
                None => capabilities(self.side),
            })),
            volume_mounts: Some(mounts.into_iter().flatten().collect()),
            volume_devices: self.device.map(|_| vec![device]),
            ..settings.container()
        };
        let data = Volume {
            name: "data".to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: self.claim.to_owned(),
                // The mount has its own flag, too. Without this one, container runtimes change the SELinux labels of all
                // files to the categories of the mover, and other pods that use them can no longer open them.
                read_only: (reads && !self.is_writable()).then_some(true),
            }),
            ..Volume::default()
        };
        let spec = PodSpec {
            automount_service_account_token: Some(false),
            containers: vec![container],
            volumes: Some(
                [data, secrets(secret, user.is_some())]
                    .into_iter()
                    .chain(journal)
                    .collect(),
            ),
            security_context: Some(PodSecurityContext {
                run_as_user: Some(user.unwrap_or(0)),
                run_as_group: user.is_none().then_some(0),
                run_as_non_root: Some(user.is_some()),
                seccomp_profile: Some(runtime_default()),
                se_linux_options: reads.then(|| SELinuxOptions {
                    level: Some(self.level.unwrap_or(ALL_CATEGORIES).to_owned()),
                    ..SELinuxOptions::default()
                }),
                // With the feature SELinuxMount, kubelets mount a volume with the label of its pods, and a pod with another
                // label waits. If the other pods name no label, this mounts it without one, as for them.
                se_linux_change_policy: (reads && self.level.is_none()).then(|| RECURSIVE.to_owned()),
                ..PodSecurityContext::default()
            }),
            affinity: on_one_of(&self.nodes)
                .or_else(|| self.before.map(PreviousNode::preferred))
                .or_else(|| self.with_the_others()),
            tolerations: match self.before {
                _ if !self.nodes.is_empty() => Some(tolerate_no_schedule()),
                before => before.map(PreviousNode::tolerated),
            },
            ..settings.pod(self.namespace)
        };
        let names = Names::of(self.moved);
        let fingerprint = self.fingerprint(settings);
        pod(&names, role, self.namespace, fingerprint, spec)
    }

    /// The first pod of a twin may determine the node of its volume, and the pods that will use several claims need
    /// all of them on one node.
    fn with_the_others(&self) -> Option<Affinity> {
        let labels = Names::of(self.moved).labels(self.side);
        let of_all = [mark::MOVE, mark::MOVE_SIDE].map(str::to_owned);
        let term = PodAffinityTerm {
            label_selector: Some(LabelSelector {
                match_labels: Some(
                    labels
                        .into_iter()
                        .filter(|(key, _)| of_all.contains(key))
                        .collect(),
                ),
                match_expressions: None,
            }),
            topology_key: "kubernetes.io/hostname".to_owned(),
            ..PodAffinityTerm::default()
        };
        (self.side == Side::Target && self.of.claims.len() > 1).then(|| Affinity {
            pod_affinity: Some(PodAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                    pod_affinity_term: term,
                    weight: 100,
                }]),
                ..PodAffinity::default()
            }),
            ..Affinity::default()
        })
    }

    /// Whether the volume is mounted writable for a mover that only reads it.
    fn is_writable(&self) -> bool {
        self.is_never_read_only && self.device.is_none()
    }

    /// A digest of what requires a new pod when it changes. Its nodes are checked on the pod itself.
    pub(super) fn fingerprint(&self, settings: &HelperSettings) -> String {
        let resources = serde_json::to_string(&self.resources()).unwrap_or_default();
        let user = self.of.mover.run_as_user.unwrap_or_default().to_string();
        let fixed = [
            settings.image.as_str(),
            self.claim,
            self.certificates,
            &resources,
            &user,
        ];
        let arguments = self.arguments();
        digest(
            DIGITS,
            fixed.into_iter().chain(arguments.iter().map(String::as_str)),
        )
    }

    fn arguments(&self) -> Vec<String> {
        let listen = |address| format!("--listen={}", SocketAddr::new(address, LANES_PORT));
        let (loopback, all) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into());
        let connect = |address| format!("--connect={}", SocketAddr::new(address, LANES_PORT));
        let mut arguments = vec![
            self.side.as_str().to_owned(),
            format!("--root={}", self.device.map_or(DATA, |_| DEVICE)),
            format!("--move={}", self.moved.by),
            format!("--epoch={}", self.moved.target.id.epoch),
            format!("--credentials={SECRETS}"),
        ];
        arguments.extend(match self.dialling {
            Dialling::Relayed => vec![listen(loopback)],
            Dialling::Open => vec![listen(all)],
            Dialling::To(address) => vec![connect(address)],
            Dialling::ToOrRelayed(address) => vec![connect(address), listen(loopback)],
        });
        match self.side {
            Side::Target => {
                arguments.push(format!("--control=127.0.0.1:{ORDERS_PORT}"));
                arguments.extend(self.device.map(|_| format!("--journal={JOURNAL}")));
            }
            Side::Source => {
                arguments.push(format!("--lanes={LANES}"));
                arguments.extend(self.of.bandwidth.map(|bytes| format!("--bandwidth={bytes}")));
            }
        }
        arguments
    }

    /// A device cannot hold the journal, which is deleted with the pod.
    fn journal(&self) -> Option<Volume> {
        let bytes = self.device.filter(|_| self.side == Side::Target)?;
        let most = JOURNAL_LEAST + bytes / DEVICE_BYTES_PER_JOURNAL_BYTE;
        Some(Volume {
            name: "journal".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource {
                size_limit: Some(Quantity(most.to_string())),
                ..EmptyDirVolumeSource::default()
            }),
            ..Volume::default()
        })
    }

    fn resources(&self) -> ResourceRequirements {
        let wished = self.of.mover.resources.clone().unwrap_or_default();
        let cpu = |amount| self.is_accounted.then_some(amount);
        ResourceRequirements {
            requests: Some(amounts(wished.requests, cpu("100m"), "128Mi")),
            limits: Some(amounts(wished.limits, cpu("1"), "256Mi")),
            claims: None,
        }
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    }
}

fn amounts(wished: Option<Amounts>, cpu: Option<&str>, memory: &str) -> BTreeMap<String, Quantity> {
    let wished = wished.unwrap_or_default();
    let memory = wished.memory.map_or_else(|| memory.to_owned(), |amount| amount.0);
    let cpu = wished
        .cpu
        .map(|amount| amount.0)
        .or_else(|| cpu.map(str::to_owned));
    let cpu = cpu.map(|amount| ("cpu".to_owned(), Quantity(amount)));
    cpu.into_iter()
        .chain([("memory".to_owned(), Quantity(memory))])
        .collect()
}

/// What root in a container needs to copy files of all owners. Not `DAC_READ_SEARCH`: it is beyond
/// *baseline*, and would open files of the node by their handles.
fn capabilities(side: Side) -> &'static [&'static str] {
    match side {
        Side::Source => &["DAC_OVERRIDE"],
        Side::Target => &["DAC_OVERRIDE", "CHOWN", "FOWNER", "FSETID", "SETFCAP", "MKNOD"],
    }
}

fn confined(added: &[&str]) -> SecurityContext {
    let added: Vec<String> = added.iter().map(ToString::to_string).collect();
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: (!added.is_empty()).then_some(added),
        }),
        ..SecurityContext::default()
    }
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}

/// A Secret volume, readable for the user of the program.
fn secrets(secret: &str, for_others: bool) -> Volume {
    Volume {
        name: "secrets".to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(if for_others { 0o444 } else { 0o400 }),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

pub(super) fn on_one_of(nodes: &[String]) -> Option<Affinity> {
    let term = |node: &String| of_name(node);
    (!nodes.is_empty()).then(|| required(nodes.iter().map(term).collect()))
}

/// The node name in `matchFields` allows one value only.
fn of_name(node: &str) -> NodeSelectorTerm {
    NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    }
}

impl PreviousNode {
    /// Not required: the volume can be read on other nodes, only more slowly.
    fn preferred(&self) -> Affinity {
        let term = PreferredSchedulingTerm {
            weight: 100,
            preference: of_name(&self.node),
        };
        Affinity {
            node_affinity: Some(NodeAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(vec![term]),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        }
    }

    /// A volume is often moved because its node will be drained: cordons are tolerated, and the other taints
    /// of that node; not all taints, or the mover could start on unrelated nodes.
    fn tolerated(&self) -> Vec<Toleration> {
        let no_schedule = |key: &str, value: Option<&String>| Toleration {
            key: Some(key.to_owned()),
            operator: Some(if value.is_some() { "Equal" } else { "Exists" }.to_owned()),
            value: value.cloned(),
            effect: Some("NoSchedule".to_owned()),
            ..Toleration::default()
        };
        let taints = self.taints.iter().filter(|taint| taint.effect == "NoSchedule");
        let others = taints.filter(|taint| taint.key != UNSCHEDULABLE);
        let others = others.map(|taint| no_schedule(&taint.key, taint.value.as_ref()));
        [no_schedule(UNSCHEDULABLE, None)]
            .into_iter()
            .chain(others)
            .collect()
    }
}

/// The relay calls API servers for this driver, so it runs in the driver's own cluster; movers run where
/// their volume is.
fn on_real_nodes() -> Affinity {
    let real = NodeSelectorRequirement {
        key: VIRTUAL_NODE.to_owned(),
        operator: "DoesNotExist".to_owned(),
        values: None,
    };
    required(vec![NodeSelectorTerm {
        match_expressions: Some(vec![real]),
        match_fields: None,
    }])
}

fn required(node_selector_terms: Vec<NodeSelectorTerm>) -> Affinity {
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms }),
            preferred_during_scheduling_ignored_during_execution: None,
        }),
        ..Affinity::default()
    }
}

/// The data is on that node, so its taints with the effect `NoSchedule` are tolerated.
fn tolerate_no_schedule() -> Vec<Toleration> {
    vec![Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    }]
}

/// The input for the relay's pod.
pub(super) struct RelayPod<'a> {
    pub(super) moved: &'a MovedVolume,
    pub(super) of: &'a MoveRequest,
    pub(super) namespace: &'a str,
    /// The port of each side, and whether a kubeconfig is needed to reach it.
    pub(super) source: (String, bool),
    pub(super) target: (String, bool),
    pub(super) kubeconfigs: String,
}

impl RelayPod<'_> {
    pub(super) fn made(&self, settings: &HelperSettings, secret: &str) -> Pod {
        let is_remote = self.source.1 || self.target.1;
        let mounts = is_remote.then(|| vec![mount("secrets", SECRETS, true)]);
        let resources = |memory| Some(amounts(None, None, memory));
        let container = Container {
            name: "relay".to_owned(),
            command: Some(vec![DRIVER.to_owned()]),
            args: Some(self.arguments()),
            resources: Some(ResourceRequirements {
                requests: resources("32Mi"),
                limits: resources("128Mi"),
                claims: None,
            }),
            security_context: Some(confined(&[])),
            volume_mounts: mounts,
            ..settings.container()
        };
        let spec = PodSpec {
            // In the home cluster the relay only forwards ports of pods.
            automount_service_account_token: Some(!(self.source.1 && self.target.1)),
            service_account_name: Some(settings.relay_account.clone()),
            containers: vec![container],
            volumes: is_remote.then(|| vec![secrets(secret, true)]),
            affinity: Some(on_real_nodes()),
            security_context: Some(PodSecurityContext {
                run_as_user: Some(NONROOT_ID),
                run_as_group: Some(NONROOT_ID),
                run_as_non_root: Some(true),
                seccomp_profile: Some(runtime_default()),
                ..PodSecurityContext::default()
            }),
            ..settings.pod(self.namespace)
        };
        let names = Names::of(self.moved);
        pod(
            &names,
            Role::Relay,
            self.namespace,
            self.fingerprint(settings),
            spec,
        )
    }

    pub(super) fn fingerprint(&self, settings: &HelperSettings) -> String {
        let fixed = [settings.image.as_str(), self.kubeconfigs.as_str()];
        let arguments = self.arguments();
        digest(
            DIGITS,
            fixed.into_iter().chain(arguments.iter().map(String::as_str)),
        )
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["relay".to_owned(), format!("--data-lanes={LANES}")];
        for (side, (port, is_remote)) in [("source", &self.source), ("target", &self.target)] {
            arguments.push(format!("--{side}={port}"));
            if *is_remote {
                arguments.push(format!("--{side}-kubeconfig={SECRETS}/{side}"));
            }
        }
        // Without it the relay has its own limit.
        arguments.extend(self.of.bandwidth.map(|bytes| format!("--bandwidth={bytes}")));
        arguments
    }
}

impl HelperSettings {
    fn container(&self) -> Container {
        Container {
            image: Some(self.image.clone()),
            image_pull_policy: Some(self.pull_policy.clone()),
            ..Container::default()
        }
    }

    fn pod(&self, namespace: &str) -> PodSpec {
        // The pull Secrets exist only in the namespace of the release.
        let is_ours = namespace == self.namespace;
        let pull = self.pull_secrets.iter().filter(|_| is_ours);
        let pull = pull.map(|name| LocalObjectReference { name: name.clone() });
        PodSpec {
            restart_policy: Some("Never".to_owned()),
            // The image is one of Linux. Not as affinity, which is compared with that of running movers.
            node_selector: Some([("kubernetes.io/os".to_owned(), "linux".to_owned())].into()),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(GRACE),
            image_pull_secrets: Some(pull.collect()),
            ..PodSpec::default()
        }
    }
}

fn pod(names: &Names<'_>, role: Role, namespace: &str, fingerprint: String, spec: PodSpec) -> Pod {
    Pod {
        metadata: ObjectMeta {
            labels: Some(names.pod_labels(role)),
            annotations: Some([(mark::MADE_AS.to_owned(), fingerprint)].into()),
            ..names.metadata(names.of_role(role), Some(namespace), role.side())
        },
        spec: Some(spec),
        status: None,
    }
}
