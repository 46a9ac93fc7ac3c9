//! This side: the Secret with the kubeconfig, and the `RemoteCluster`.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta},
    config::Kubeconfig,
};
use serde_json::{Value, json};

use super::{Home, Level, Outcome, Wish, ends::uid, remote_cluster};
use crate::{
    access::{CLUSTER_UID, MANAGED_BY_CONNECT, NamespaceName},
    api::remote_cluster::{KubeconfigSecretRef, RemoteCluster},
    volume::{ClusterId, mark},
};

/// Of Secrets that this command makes.
pub(in crate::cli) const SECRET_PREFIX: &str = "remote-";
const KEY: &str = "kubeconfig";

/// What is known of a cluster here.
pub(super) struct There {
    pub(super) object: Option<RemoteCluster>,
    /// The Secret that it names, or is going to.
    reference: KubeconfigSecretRef,
    secret: Option<Secret>,
}

/// The Secret with the kubeconfig of a cluster: the one that it names, or that is made for it.
pub(in crate::cli) fn secret_of(name: &ClusterId, object: Option<&RemoteCluster>) -> KubeconfigSecretRef {
    let named = object.and_then(|it| it.spec.kubeconfig_secret_ref.clone());
    named.unwrap_or_else(|| KubeconfigSecretRef {
        name: format!("{SECRET_PREFIX}{name}"),
        key: KEY.to_owned(),
    })
}

/// The namespace of the identity, as the kubeconfig in a Secret has it.
pub(in crate::cli) fn namespace_in(secret: &Secret, key: &str) -> Option<NamespaceName> {
    let ByteString(text) = secret.data.as_ref()?.get(key)?;
    let file: Kubeconfig = serde_saphyr::from_str(std::str::from_utf8(text).ok()?).ok()?;
    let current = file.current_context.clone();
    let mut contexts = file.contexts.into_iter();
    let context = contexts.find(|it| current.is_none() || Some(&it.name) == current.as_ref())?;
    context.context?.namespace?.parse().ok()
}

/// The uid of the cluster that this name stands for, where that is known and is another than this one.
pub(in crate::cli) fn other_uid(
    secret: Option<&Secret>,
    object: Option<&RemoteCluster>,
    remote: &str,
) -> Option<String> {
    let written = secret.and_then(|it| it.annotations().get(CLUSTER_UID).cloned());
    let node = object.and_then(|it| it.status.as_ref()?.virtual_node.as_ref()?.cluster_uid.clone());
    [written, node]
        .into_iter()
        .flatten()
        .find(|known| known != remote)
}

/// The `RemoteCluster` that is asked for.
pub(super) fn declaration(wish: &Wish, level: Level) -> Outcome<Value> {
    let mut spec = json!({"kubeconfigSecretRef": {"name": format!("{SECRET_PREFIX}{}", wish.name)}});
    if wish.fabric {
        spec["fabric"] = json!({});
    } else if wish.nodes.is_empty() {
        return Err("nothing says which nodes stand for the cluster: --fabric has this driver make one, and --node-selector \
                    KEY=VALUE names those of another tool"
            .into());
    } else {
        spec["nodeSelector"] = json!({"matchLabels": wish.nodes});
    }
    if let Some(class) = &wish.storage_class {
        spec["storageClasses"] = json!({"default": class});
    } else if level == Level::Minimal {
        return Err("with the level minimal the driver cannot read which classes there are: --storage-class names one".into());
    }
    Ok(json!({
        "apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
        "metadata": {"name": wish.name.as_str()},
        "spec": spec,
    }))
}

impl There {
    /// The namespace of the identity, as the kubeconfig says that the driver has.
    pub(super) fn namespace(&self) -> Option<NamespaceName> {
        namespace_in(self.secret.as_ref()?, &self.reference.key)
    }

    /// Name of the Secret.
    pub(super) fn secret(&self) -> &str {
        &self.reference.name
    }

    /// Whether the fabric has this cluster, or is to have it.
    pub(super) fn has_fabric(&self, wish: &Wish) -> Outcome<bool> {
        let Some(object) = &self.object else {
            return Ok(wish.fabric);
        };
        let name = &wish.name;
        if let Some(from) = &object.spec.discovered_from {
            return Err(format!(
                "{name} is a cluster of {:?}, which says how it is reached: give the other one another name",
                from.fabric
            )
            .into());
        }
        if object.metadata.deletion_timestamp.is_some() {
            return Err(format!(
                "the RemoteCluster {name} is being deleted: see `liqo-csi clusters` for what holds it, and try again when it is \
                 gone"
            )
            .into());
        }
        let has = object.spec.fabric.is_some();
        if wish.fabric && !has {
            return Err(format!(
                "the RemoteCluster {name} has no spec.fabric, and none can be added, because its namespaces would be others \
                 then: `liqo-csi disconnect {name}` first"
            )
            .into());
        }
        Ok(has)
    }

    /// Whether it says enough for a `RemoteCluster`: before anything is made.
    pub(super) fn may_be_declared(&self, wish: &Wish, level: Level) -> Outcome {
        if self.object.is_none() {
            declaration(wish, level)?;
        }
        Ok(())
    }
}

impl Home {
    pub(super) async fn look(&self, name: &ClusterId) -> Outcome<There> {
        let object = remote_cluster(self, name).await?;
        let reference = secret_of(name, object.as_ref());
        let secret = self
            .cluster
            .within::<Secret>(&self.namespace)
            .get(&reference.name)
            .await?;
        if object.is_none()
            && let Some(there) = &secret
            && there.labels().get(mark::MANAGED_BY).map(String::as_str) != Some(MANAGED_BY_CONNECT)
        {
            return Err(format!(
                "there is a Secret {}/{} that this command has not made: delete it, if nothing uses it, or write a \
                 RemoteCluster {name} that names it",
                self.namespace, reference.name
            )
            .into());
        }
        Ok(There {
            object,
            reference,
            secret,
        })
    }

    /// Data would be taken for lost if another cluster took the place of the one where it is.
    pub(super) async fn is_other_than(&self, remote: &str, name: &ClusterId, there: &There) -> Outcome {
        if uid(&self.cluster).await?.as_deref() == Some(remote) {
            return Err("both kubeconfigs lead to the same cluster: --remote-kubeconfig and --remote-context name the other one".into());
        }
        if *name == self.id {
            return Err(
                format!("{name} is the id of this cluster itself: give the other one another name").into(),
            );
        }
        match other_uid(there.secret.as_ref(), there.object.as_ref(), remote) {
            Some(known) => Err(format!(
                "{name} is another cluster than this kubeconfig leads to (its namespace kube-system has the uid {known}, and \
                 here it is {remote}): the data of its volumes would be taken for lost. Give this cluster another name, or \
                 `liqo-csi disconnect {name}` first"
            )
            .into()),
            None => Ok(()),
        }
    }

    pub(super) async fn write_secret(
        &self,
        name: &ClusterId,
        there: &There,
        kubeconfig: &str,
        uid: &str,
    ) -> Outcome {
        let all = self.cluster.within::<Secret>(&self.namespace);
        let data = BTreeMap::from([(
            there.reference.key.clone(),
            ByteString(kubeconfig.as_bytes().to_vec()),
        )]);
        let annotations = BTreeMap::from([(CLUSTER_UID.to_owned(), uid.to_owned())]);
        if let Some(known) = &there.secret {
            let patch = json!({
                "metadata": {"uid": known.metadata.uid, "annotations": annotations},
                "data": data,
            });
            let changed = all.merge(&there.reference.name, &patch).await?;
            return changed
                .map(drop)
                .ok_or_else(|| self.meanwhile("Secret", &there.reference.name));
        }
        let labels = [
            (mark::MANAGED_BY.to_owned(), MANAGED_BY_CONNECT.to_owned()),
            ("storage.liqo.io/remote-cluster".to_owned(), name.to_string()),
        ];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(there.reference.name.clone()),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels.into()),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            data: Some(data),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let made = all.create(&secret).await?;
        made.map(drop)
            .ok_or_else(|| self.meanwhile("Secret", &there.reference.name))
    }

    /// Makes the `RemoteCluster`. What one says that is there already stays as it is.
    pub(super) async fn declare(&self, wish: &Wish, level: Level, there: &There) -> Outcome {
        let all = self.cluster.all::<RemoteCluster>();
        let name = wish.name.as_str();
        let Some(object) = &there.object else {
            // No more is written than is said: what is left out may have another default one day.
            let kind = ApiResource::erase::<RemoteCluster>(&());
            let object: DynamicObject = serde_json::from_value(declaration(wish, level)?)?;
            let made = self.cluster.dynamic(&kind, None).create(&object).await?;
            return made
                .map(drop)
                .ok_or_else(|| self.meanwhile("RemoteCluster", name));
        };
        let mut spec = json!({});
        if !wish.nodes.is_empty() {
            spec["nodeSelector"] = json!({"matchLabels": wish.nodes});
        }
        if let Some(class) = &wish.storage_class {
            spec["storageClasses"] = json!({"default": class});
        }
        if spec == json!({}) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": object.metadata.uid}, "spec": spec});
        let changed = all.merge(name, &patch).await?;
        changed
            .map(drop)
            .ok_or_else(|| self.meanwhile("RemoteCluster", name))
    }

    fn meanwhile(&self, kind: &str, name: &str) -> Box<dyn std::error::Error + Send + Sync> {
        format!("the {kind} {name} of the namespace {} was made or deleted by somebody else just now: run this again", self.namespace).into()
    }
}
