//! The `CSIDriver` object of this driver, alone and compared with those of the real drivers.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec};
use kube::ResourceExt;

use super::{
    Finding, Installation,
    classes::{pairs, parameter, title},
};
use crate::volume::DRIVER_NAME;

const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
const DEFAULT_POLICY: &str = "ReadWriteOnceWithFSType";

/// The object exists and has the fields that the driver needs.
pub(super) fn object(installation: &Installation) -> Vec<Finding> {
    let title = format!("CSIDriver {DRIVER_NAME}");
    if installation
        .drivers
        .lacks(|driver| driver.metadata.name.as_deref() == Some(DRIVER_NAME))
    {
        return vec![Finding::error(
            title,
            "It does not exist: Kubernetes does not know how to treat the driver.",
            "Apply the chart again (helm upgrade).",
        )];
    }
    let Some(spec) = spec(installation, DRIVER_NAME) else {
        return Vec::new();
    };
    let again = "The field cannot be changed: delete the object and apply the chart again. Running pods are not affected.";
    let apply = "Apply the chart again (helm upgrade).";
    let mut findings = Vec::new();
    if spec.attach_required == Some(false) {
        findings.push(Finding::error(
            title.as_str(),
            "attachRequired is false: node plugins do not get the location of the data, and no pod starts.",
            again,
        ));
    }
    if spec
        .volume_lifecycle_modes
        .as_ref()
        .is_some_and(|modes| !modes.iter().any(|mode| mode == "Persistent"))
    {
        findings.push(Finding::error(
            title.as_str(),
            "volumeLifecycleModes does not have Persistent: no volume can be mounted.",
            again,
        ));
    }
    if spec.storage_capacity != Some(true) {
        findings.push(Finding::warning(
            title.as_str(),
            "storageCapacity is not true: the scheduler may pick a node on which the real class cannot work, again and again.",
            apply,
        ));
    }
    if spec.pod_info_on_mount != Some(true) {
        findings.push(Finding::warning(
            title.as_str(),
            "podInfoOnMount is not true: real drivers that need information about the pod do not get it.",
            apply,
        ));
    }
    findings
}

/// fsGroup is applied to the volumes for which the real driver requests that, and to no others.
pub(super) fn fs_group(installation: &Installation) -> Vec<Finding> {
    let Some(ours) = spec(installation, DRIVER_NAME).map(policy) else {
        return Vec::new();
    };
    let (mut findings, mut seen) = (Vec::new(), BTreeSet::new());
    for (class, real_class) in pairs(installation) {
        // Several real classes of one driver are one finding.
        if !seen.insert((class.name_any(), &real_class.provisioner)) {
            continue;
        }
        let Some(theirs) = spec(installation, &real_class.provisioner).map(policy) else {
            continue;
        };
        let fs_type = parameter(class, FS_TYPE).is_some_and(|it| !it.is_empty());
        let applies = match ours {
            "None" => false,
            "File" => true,
            _ => fs_type,
        };
        let driver = &real_class.provisioner;
        let (problem, fix) = match theirs {
            "None" if applies => (
                format!("kubelet changes the group of its files, but the driver {driver} does not support that (fsGroupPolicy None): pods with an fsGroup may fail to start."),
                if ours == "File" {
                    "Set the chart's value csiDriver.fsGroupPolicy to ReadWriteOnceWithFSType, and leave fsType empty in this class.".to_owned()
                } else {
                    "Leave fsType empty in this class (delete it and create it again).".to_owned()
                },
            ),
            "File" if !applies => (
                format!("kubelet does not change the group of its files, but the driver {driver} requires fsGroup to be applied (fsGroupPolicy File): pods that do not run as root may not be able to write."),
                "Set fsType in this class, or the chart's value csiDriver.fsGroupPolicy to File if volumes are shared by several nodes.".to_owned(),
            ),
            "File" if ours != "File" => (
                format!("fsGroup is applied to volumes of one node only, but the driver {driver} requires it for ReadWriteMany as well (fsGroupPolicy File)."),
                "If such volumes are shared by several nodes, set the chart's value csiDriver.fsGroupPolicy to File.".to_owned(),
            ),
            DEFAULT_POLICY if !applies => (
                format!("kubelet does not change the group of its files; with the class of {driver} itself fsGroup is applied."),
                "Set fsType in this class (delete it and create it again).".to_owned(),
            ),
            _ => continue,
        };
        let problem = format!(
            "For volumes of the real class {}, {problem}",
            real_class.name_any()
        );
        let harmful = theirs != "File" || !applies;
        findings.push(if harmful {
            Finding::warning(title(class), problem, fix)
        } else {
            Finding::note(title(class), problem, fix)
        });
    }
    findings
}

/// This driver requests from kubelet whatever the `CSIDriver` objects of real drivers request.
pub(super) fn kubelet_features(installation: &Installation) -> Vec<Finding> {
    let Some(ours) = spec(installation, DRIVER_NAME) else {
        return Vec::new();
    };
    let provisioners: BTreeSet<&str> = pairs(installation)
        .into_iter()
        .map(|(_, real)| real.provisioner.as_str())
        .collect();
    let mut findings = Vec::new();
    for name in provisioners {
        let Some(theirs) = spec(installation, name) else {
            continue;
        };
        let missing: Vec<String> = audiences(theirs)
            .difference(&audiences(ours))
            .map(|it| format!("{it:?}"))
            .collect();
        if !missing.is_empty() {
            findings.push(Finding::warning(
                format!("CSIDriver {DRIVER_NAME}"),
                format!(
                    "The real driver {name} needs service account tokens for {}, which this driver does not request.",
                    missing.join(", ")
                ),
                "Add these audiences to the chart's value csiDriver.tokenRequests.",
            ));
        }
        if theirs.requires_republish == Some(true) && ours.requires_republish != Some(true) {
            findings.push(Finding::warning(
                format!("CSIDriver {DRIVER_NAME}"),
                format!(
                    "The real driver {name} needs its mounts to be refreshed (requiresRepublish), which this driver does not request."
                ),
                format!(
                    "kubectl patch csidriver {DRIVER_NAME} -p '{{\"spec\":{{\"requiresRepublish\":true}}}}'"
                ),
            ));
        }
        if ours.se_linux_mount == Some(true) && theirs.se_linux_mount != Some(true) {
            findings.push(Finding::error(
                format!("CSIDriver {DRIVER_NAME}"),
                format!("seLinuxMount is true, but the real driver {name} does not support mounting with a label: its files are never relabelled."),
                format!("kubectl patch csidriver {DRIVER_NAME} -p '{{\"spec\":{{\"seLinuxMount\":false}}}}'"),
            ));
        }
    }
    findings
}

fn spec<'a>(installation: &'a Installation, driver: &str) -> Option<&'a CSIDriverSpec> {
    let found: &CSIDriver = installation.drivers.named(None, driver)?;
    Some(&found.spec)
}

fn policy(spec: &CSIDriverSpec) -> &str {
    spec.fs_group_policy.as_deref().unwrap_or(DEFAULT_POLICY)
}

fn audiences(spec: &CSIDriverSpec) -> BTreeSet<&str> {
    spec.token_requests
        .iter()
        .flatten()
        .map(|request| request.audience.as_str())
        .collect()
}
