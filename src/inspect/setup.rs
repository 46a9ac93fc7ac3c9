//! How the driver is deployed: its Deployments, and the arguments of their containers.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, PodSpec},
};
use kube::ResourceExt;

use super::Listing;
use crate::{cluster::Cluster, volume::ClusterId};

/// Labels of all pods of the driver, as the chart gives them.
pub(super) const LABELS: &str = "app.kubernetes.io/name=liqo-csi";
/// The label with the component that a pod or a Deployment belongs to.
pub(super) const COMPONENT: &str = "app.kubernetes.io/component";
const DEFAULT_NAMESPACE: &str = "liqo-storage";

/// The Deployments of the controller; more than one is an error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// Their Deployments.
    pub(super) controllers: Listing<Deployment>,
}

impl Setup {
    pub(crate) async fn read(cluster: &Cluster) -> Self {
        let labels = format!("{LABELS},{COMPONENT}=controller");
        Self {
            controllers: Listing::ask(&cluster.all(), Some(&labels), None).await,
        }
    }

    /// The namespace of the twins; `None` if the Deployments could not be read.
    pub(crate) fn storage_namespace(&self) -> Option<String> {
        if !self.controllers.is_complete() {
            return None;
        }
        let flags = self.driver_flags();
        let configured = flags.as_ref().and_then(|flags| flags.get("storage-namespace"));
        Some(configured.unwrap_or(DEFAULT_NAMESPACE).to_owned())
    }

    /// The namespace of the driver, or why it is not known.
    pub(crate) fn namespace(&self) -> Result<String, String> {
        if let Some(why) = self.unknown() {
            return Err(format!("it is unknown {why}"));
        }
        let namespaces: BTreeSet<String> = self
            .controllers
            .iter()
            .filter_map(ResourceExt::namespace)
            .collect();
        let all: Vec<String> = namespaces.into_iter().collect();
        match all.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(format!(
                "the driver is not installed in this cluster: no Deployment has the labels {LABELS},{COMPONENT}=controller. Install it first"
            )),
            many => Err(format!(
                "the driver is installed more than once, in {}",
                many.join(" and ")
            )),
        }
    }

    /// Whether any replica of the controller is ready.
    pub(crate) fn is_ready(&self) -> bool {
        let ready = |it: &Deployment| it.status.as_ref().and_then(|status| status.ready_replicas);
        self.controllers
            .iter()
            .any(|it| ready(it).unwrap_or_default() > 0)
    }

    /// The id of the cluster, if the controller has the flag.
    pub(crate) fn cluster_id(&self) -> Option<ClusterId> {
        self.driver_flags()?.get("cluster-id")?.parse().ok()
    }

    /// Why the Deployments could not be read.
    pub(crate) fn unknown(&self) -> Option<String> {
        self.controllers
            .refusal()
            .map(|why| format!("how the controller is deployed: {why}"))
    }

    /// The real classes that claims may choose.
    pub(super) fn allowed_classes(&self) -> BTreeSet<String> {
        let flags = self.driver_flags();
        let list = flags
            .as_ref()
            .and_then(|flags| flags.get("allowed-classes"))
            .unwrap_or_default();
        list.split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Service account of the controller: namespace and name.
    pub(super) fn service_account(&self) -> Option<(String, String)> {
        let deployment = self.controllers.iter().next()?;
        let name = pod_spec(deployment)?.service_account_name.clone()?;
        Some((deployment.namespace()?, name))
    }

    /// The arguments of the sidecar whose image has this name; `None` if there is no such container.
    pub(super) fn sidecar(&self, image: &str) -> Option<Flags<'_>> {
        let deployment = self.controllers.iter().next()?;
        sidecar(deployment, image)
    }

    /// Whether the controller runs moves; `None` if that is not known.
    pub(super) fn runs_moves(&self) -> Option<bool> {
        Some(self.driver_flags()?.get("mover-image").is_some())
    }

    fn driver_flags(&self) -> Option<Flags<'_>> {
        let mut containers = pod_spec(self.controllers.iter().next()?)?.containers.iter();
        let driver =
            containers.find(|container| arguments(container).any(|argument| argument == "controller"))?;
        Some(Flags(arguments(driver).collect()))
    }
}

/// The arguments of a sidecar in this Deployment.
pub(super) fn sidecar<'a>(deployment: &'a Deployment, image: &str) -> Option<Flags<'a>> {
    let is_it = |container: &&Container| {
        let named = |it: &String| {
            [':', '@']
                .iter()
                .any(|end| it.contains(&format!("/{image}{end}")))
        };
        container.name == image || container.image.as_ref().is_some_and(named)
    };
    let container = pod_spec(deployment)?.containers.iter().find(is_it)?;
    Some(Flags(arguments(container).collect()))
}

fn pod_spec(deployment: &Deployment) -> Option<&PodSpec> {
    deployment.spec.as_ref()?.template.spec.as_ref()
}

fn arguments(container: &Container) -> impl Iterator<Item = &str> {
    container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten())
        .map(String::as_str)
}

/// A command line, parsed as Go and this driver do.
#[derive(Clone, Debug)]
pub(super) struct Flags<'a>(Vec<&'a str>);

impl Flags<'_> {
    /// The value of a flag: `--name=value` or `--name value`; empty without a value.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().enumerate().rev().find_map(|(at, argument)| {
            let flag = argument
                .strip_prefix("--")
                .or_else(|| argument.strip_prefix('-'))?;
            match flag.split_once('=') {
                Some((flag, value)) => (flag == name).then_some(value),
                None if flag == name => {
                    let next = self.0.get(at + 1).copied().unwrap_or_default();
                    Some(if next.starts_with('-') { "" } else { next })
                }
                None => None,
            }
        })
    }

    /// Whether a boolean flag is set.
    pub(super) fn on(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|value| !matches!(value.to_lowercase().as_str(), "false" | "0" | "f"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_is_found_by_its_image() {
        for image in [
            "registry.example/csi-attacher:v4",
            "registry.example/csi-attacher@sha256:0",
        ] {
            let deployment = serde_json::from_value(serde_json::json!({
                "metadata": {}, "spec": {"selector": {}, "template": {"spec": {
                    "containers": [{"name": "attacher", "image": image}],
                }}},
            }));
            assert!(sidecar(&deployment.unwrap(), "csi-attacher").is_some(), "{image}");
        }
    }

    #[test]
    fn flags_are_parsed_as_by_go() {
        let flags = Flags(vec![
            "--a",
            "--b=False",
            "-c=3",
            "--timeout",
            "60s",
            "--x=1",
            "--x=2",
        ]);
        assert!(flags.on("a") && !flags.on("b") && !flags.on("d"));
        assert_eq!(flags.get("c"), Some("3"));
        assert_eq!(flags.get("timeout"), Some("60s"));
        assert_eq!(flags.get("x"), Some("2"));
        assert_eq!(flags.get("d"), None);
    }
}
