//! The home side: the Secret with the kubeconfig, and the `RemoteCluster`.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject, ObjectMeta},
    config::Kubeconfig,
};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::{Home, Level, Outcome, Request, ends::Endpoint, remote_cluster};
use crate::{
    access::{ACCOUNT, CLUSTER_UID, MANAGED_BY_CONNECT, NamespaceName, TokenFacts},
    api::remote_cluster::{KubeconfigSecretRef, RemoteCluster, StorageClasses},
    fleet::kubeconfig::{Allowed, token, vet},
    volume::{ClusterId, mark},
};

/// The name of the Secret of a cluster begins with it.
const SECRET_PREFIX: &str = "remote-";
const KEY: &str = "kubeconfig";
const NO_CLASS: &str =
    "with the level minimal the driver cannot read the storage classes there: name one by --storage-class";

/// What this cluster already has of the remote one.
pub(super) struct Existing {
    pub(super) object: Option<RemoteCluster>,
    /// The Secret that the `RemoteCluster` names, or will name.
    reference: KubeconfigSecretRef,
    secret: Option<Secret>,
}

/// The Secret with the kubeconfig of a cluster: the one that it names, or will name.
pub(in crate::cli) fn secret_of(name: &ClusterId, object: Option<&RemoteCluster>) -> KubeconfigSecretRef {
    let named = object.and_then(|it| it.spec.kubeconfig_secret_ref.clone());
    named.unwrap_or_else(|| KubeconfigSecretRef {
        name: format!("{SECRET_PREFIX}{name}"),
        key: KEY.to_owned(),
    })
}

fn kubeconfig_in(secret: &Secret, key: &str) -> Option<Kubeconfig> {
    let ByteString(text) = secret.data.as_ref()?.get(key)?;
    vet(text, Allowed { proxy: true }).ok()
}

/// The token of an identity of this driver in the Secret of a kubeconfig.
fn token_in(secret: &Secret, key: &str) -> Option<TokenFacts> {
    let kubeconfig = kubeconfig_in(secret, key)?;
    let facts = TokenFacts::read(token(&kubeconfig)?.expose_secret())?;
    Some(facts).filter(|facts| facts.account == ACCOUNT)
}

/// The namespace of the identity whose token is in the Secret of a kubeconfig.
pub(in crate::cli) fn namespace_in(secret: &Secret, key: &str) -> Option<NamespaceName> {
    token_in(secret, key)?.namespace.parse().ok()
}

/// The uid of the cluster that has this name here, if it is known and not the uid `remote`.
pub(in crate::cli) fn other_uid(
    secret: Option<&Secret>,
    object: Option<&RemoteCluster>,
    remote: &str,
) -> Option<String> {
    let written = secret.and_then(|it| it.annotations().get(CLUSTER_UID).cloned());
    let node = object.and_then(RemoteCluster::cluster_uid).map(str::to_owned);
    [written, node]
        .into_iter()
        .flatten()
        .find(|known| known != remote)
}

/// The `RemoteCluster` for the request.
pub(super) fn declaration(request: &Request, level: Level) -> Outcome<Value> {
    let mut spec = json!({"kubeconfigSecretRef": {"name": format!("{SECRET_PREFIX}{}", request.name)}});
    if request.fabric {
        spec["fabric"] = json!({});
    } else if request.nodes.is_empty() {
        return Err("the cluster needs a virtual node: with --fabric this driver creates one, and --node-selector KEY=VALUE \
                    selects those of another tool"
            .into());
    } else {
        spec["nodeSelector"] = json!({"matchLabels": request.nodes});
    }
    if let Some(class) = &request.storage_class {
        spec["storageClasses"] = json!({"default": class});
    } else if level == Level::Minimal {
        return Err(NO_CLASS.into());
    }
    Ok(json!({
        "apiVersion": "storage.liqo.io/v1alpha1", "kind": "RemoteCluster",
        "metadata": {"name": request.name.as_str()},
        "spec": spec,
    }))
}

impl Existing {
    /// The namespace of the identity that the driver uses now.
    pub(super) fn namespace(&self) -> Option<NamespaceName> {
        namespace_in(self.secret.as_ref()?, &self.reference.key)
    }

    /// How pods reach the cluster by the kubeconfig of an earlier run of this command.
    pub(super) fn endpoint(&self) -> Outcome<Option<Endpoint>> {
        // By its uid it is checked later that it is the same cluster.
        let known = self
            .object
            .as_ref()
            .and_then(RemoteCluster::cluster_uid)
            .is_some();
        let secret = self.secret.as_ref();
        let secret = secret.filter(|it| known || it.annotations().contains_key(CLUSTER_UID));
        let kubeconfig = secret.and_then(|it| kubeconfig_in(it, &self.reference.key));
        let clusters = kubeconfig.into_iter().flat_map(|it| it.clusters);
        let Some(cluster) = clusters.into_iter().find_map(|it| it.cluster) else {
            return Ok(None);
        };
        if cluster.proxy_url.is_some() {
            return Err(format!(
                "the kubeconfig in the Secret {} reaches the cluster through a proxy (proxy-url), which this command cannot write: put a \
                 new token into it by hand, or name by --server a URL that needs no proxy",
                self.secret()
            )
            .into());
        }
        Ok(cluster.server.map(|server| Endpoint {
            server,
            authority: cluster.certificate_authority_data,
            tls_server_name: cluster.tls_server_name,
        }))
    }

    /// For how long the token of an earlier run is valid, in seconds.
    pub(super) fn lifetime(&self) -> Option<u64> {
        let token = token_in(self.secret.as_ref()?, &self.reference.key)?;
        let lifetime = token.lifetime().filter(|_| token.is_renewed())?;
        u64::try_from(lifetime).ok()
    }

    /// Name of the Secret with the kubeconfig.
    pub(super) fn secret(&self) -> &str {
        &self.reference.name
    }

    /// Whether the fabric of this driver serves the cluster, or will.
    pub(super) fn has_fabric(&self, request: &Request) -> Outcome<bool> {
        let Some(object) = &self.object else {
            return Ok(request.fabric);
        };
        let name = &request.name;
        if let Some(from) = &object.spec.discovered_from {
            return Err(format!(
                "{:?} declares the cluster {name}, and how it is reached: choose another name",
                from.fabric
            )
            .into());
        }
        if object.metadata.deletion_timestamp.is_some() {
            return Err(format!(
                "the RemoteCluster {name} is being deleted: `liqo-csi clusters` shows what it waits for. Run this again when it \
                 is gone"
            )
            .into());
        }
        let has = object.spec.fabric.is_some();
        if request.fabric && !has {
            return Err(format!(
                "the RemoteCluster {name} has no spec.fabric, and none can be added, because its namespaces would be others \
                 then: `liqo-csi disconnect {name} --remote-context CONTEXT` first"
            )
            .into());
        }
        if has && object.spec.node_selector.is_none() && !request.nodes.is_empty() {
            return Err(format!(
                "the fabric creates the virtual node of the RemoteCluster {name}, and that cannot change, because pods would \
                 lose their node: leave out --node-selector, or `liqo-csi disconnect {name} --remote-context CONTEXT` first"
            )
            .into());
        }
        Ok(has)
    }

    /// An error if a `RemoteCluster` is missing and the request is not enough to create it, or if an existing one would
    /// have no storage class at the requested level.
    pub(super) fn may_be_declared(&self, request: &Request, level: Level) -> Outcome {
        let Some(object) = &self.object else {
            return declaration(request, level).map(drop);
        };
        let is_lowered = request.level == Some(Level::Minimal);
        if is_lowered
            && request.storage_class.is_none()
            && object.spec.storage_classes == StorageClasses::default()
        {
            return Err(NO_CLASS.into());
        }
        Ok(())
    }
}

impl Home {
    pub(super) async fn existing(&self, name: &ClusterId) -> Outcome<Existing> {
        let object = remote_cluster(self, name).await?;
        let reference = secret_of(name, object.as_ref());
        let secret = self
            .cluster
            .within::<Secret>(&self.namespace)
            .get(&reference.name)
            .await?;
        if object.is_none()
            && let Some(existing) = &secret
            && mark::manager(existing.labels()) != Some(MANAGED_BY_CONNECT)
        {
            return Err(format!(
                "there is a Secret {}/{} that this command did not create: delete it, if nothing uses it, or create a \
                 RemoteCluster {name} that names it",
                self.namespace, reference.name
            )
            .into());
        }
        Ok(Existing {
            object,
            reference,
            secret,
        })
    }

    /// An error if the remote cluster is this one, or not the one that has this name: data in the cluster of
    /// this name would count as lost.
    pub(super) async fn is_other_than(&self, remote: &str, name: &ClusterId, existing: &Existing) -> Outcome {
        if self.cluster.uid().await?.as_deref() == Some(remote) {
            return Err("both kubeconfigs lead to the same cluster, or to copies of one: their namespaces kube-system have the same uid. --remote-kubeconfig \
                        and --remote-context name the other one; a cluster that was restored from a backup of this one cannot be connected".into());
        }
        if *name == self.id {
            return Err(format!(
                "{name} is the id of this cluster itself: choose another name for the other one"
            )
            .into());
        }
        match other_uid(existing.secret.as_ref(), existing.object.as_ref(), remote) {
            Some(known) => Err(format!(
                "the name {name} belongs to another cluster than the one of this kubeconfig (the uid of its namespace \
                 kube-system is {known}, here it is {remote}), and the data of its volumes would count as lost. Choose \
                 another name, or `liqo-csi disconnect {name} --remote-context CONTEXT` first, or, if that cluster is gone for good, \
                 `liqo-csi disconnect {name} --local-only --the-cluster-is-gone`"
            )
            .into()),
            None => Ok(()),
        }
    }

    /// An error if the fabric serves the remote cluster under another name, as far as the user may read that, because then
    /// it refuses this one.
    pub(super) async fn is_new_to_fabric(
        &self,
        remote: &str,
        name: &ClusterId,
        existing: &Existing,
    ) -> Outcome {
        let known = existing.object.as_ref().and_then(RemoteCluster::cluster_uid);
        if known == Some(remote) {
            return Ok(());
        }
        let secrets = self.cluster.within::<Secret>(&self.namespace);
        let others = self.others(name).await.unwrap_or_default();
        for (other, reference) in others.into_iter().filter(|(it, _)| it.spec.fabric.is_some()) {
            // The fabric compares with the status; the annotation says what it will be.
            let uid = if let Some(uid) = other.cluster_uid() {
                Some(uid.to_owned())
            } else {
                let secret = secrets.get(&reference.name).await.ok().flatten();
                secret.and_then(|it| it.annotations().get(CLUSTER_UID).cloned())
            };
            if uid.as_deref() == Some(remote) {
                let other_name = other.name_any();
                return Err(format!(
                    "the cluster of this kubeconfig is already connected as {other_name}, and the fabric serves it under one name only: \
                     --remote-kubeconfig and --remote-context name another cluster. To rename this one, first `liqo-csi disconnect \
                     {other_name} --remote-context CONTEXT`"
                )
                .into());
            }
        }
        Ok(())
    }

    /// The other `RemoteCluster`s whose kubeconfig has a token of this identity in the cluster with this uid. One
    /// whose cluster is not known counts.
    pub(in crate::cli) async fn other_users(
        &self,
        name: &ClusterId,
        namespace: &NamespaceName,
        uid: &str,
    ) -> Outcome<Vec<String>> {
        let secrets = self.cluster.within::<Secret>(&self.namespace);
        let mut users = Vec::new();
        for (other, reference) in self.others(name).await? {
            let secret = secrets.get(&reference.name).await?;
            let uses_it = |it: &Secret| {
                other_uid(Some(it), Some(&other), uid).is_none()
                    && namespace_in(it, &reference.key).as_ref() == Some(namespace)
            };
            if secret.is_some_and(|it| uses_it(&it)) {
                users.push(other.name_any());
            }
        }
        Ok(users)
    }

    /// The other `RemoteCluster`s with a kubeconfig, and where that is.
    async fn others(&self, name: &ClusterId) -> Outcome<Vec<(RemoteCluster, KubeconfigSecretRef)>> {
        let all = self.cluster.all::<RemoteCluster>().list(None).await?;
        let others = all.into_iter().filter(|it| it.name_any() != name.as_str());
        let with_kubeconfig = others.filter_map(|it| {
            let reference = it.spec.kubeconfig_secret_ref.clone()?;
            Some((it, reference))
        });
        Ok(with_kubeconfig.collect())
    }

    pub(super) async fn write_secret(
        &self,
        name: &ClusterId,
        existing: &Existing,
        kubeconfig: &str,
        uid: &str,
    ) -> Outcome {
        let all = self.cluster.within::<Secret>(&self.namespace);
        let data = BTreeMap::from([(
            existing.reference.key.clone(),
            ByteString(kubeconfig.as_bytes().to_vec()),
        )]);
        let annotations = BTreeMap::from([(CLUSTER_UID.to_owned(), uid.to_owned())]);
        if let Some(known) = &existing.secret {
            let patch = json!({
                "metadata": {"uid": known.metadata.uid, "annotations": annotations},
                "data": data,
            });
            let changed = all.merge(&existing.reference.name, &patch).await?;
            return changed
                .map(drop)
                .ok_or_else(|| Self::meanwhile("Secret", &existing.reference.name));
        }
        let labels = [
            (mark::MANAGED_BY.to_owned(), MANAGED_BY_CONNECT.to_owned()),
            ("storage.liqo.io/remote-cluster".to_owned(), name.to_string()),
        ];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(existing.reference.name.clone()),
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
            .ok_or_else(|| Self::meanwhile("Secret", &existing.reference.name))
    }

    /// Creates the `RemoteCluster`. In an existing one it changes only the requested fields.
    pub(super) async fn declare(&self, request: &Request, level: Level, existing: &Existing) -> Outcome {
        let all = self.cluster.all::<RemoteCluster>();
        let name = request.name.as_str();
        let Some(object) = &existing.object else {
            // As untyped object, because the typed one would write today's defaults for fields that are left out.
            let kind = ApiResource::erase::<RemoteCluster>(&());
            let object: DynamicObject = serde_json::from_value(declaration(request, level)?)?;
            let made = self.cluster.dynamic(&kind, None).create(&object).await?;
            return made
                .map(drop)
                .ok_or_else(|| Self::meanwhile("RemoteCluster", name));
        };
        let mut spec = json!({});
        if !request.nodes.is_empty() {
            let before = object
                .spec
                .node_selector
                .iter()
                .flat_map(|it| it.match_labels.keys());
            // A merge patch keeps what it does not name.
            let mut labels: BTreeMap<&String, Value> = before.map(|key| (key, Value::Null)).collect();
            labels.extend(request.nodes.iter().map(|(key, value)| (key, json!(value))));
            spec["nodeSelector"] = json!({"matchLabels": labels, "matchExpressions": null});
        }
        if let Some(class) = &request.storage_class {
            spec["storageClasses"] = json!({"default": class});
        }
        if spec == json!({}) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": object.metadata.uid}, "spec": spec});
        let changed = all.merge(name, &patch).await?;
        changed
            .map(drop)
            .ok_or_else(|| Self::meanwhile("RemoteCluster", name))
    }

    fn meanwhile(kind: &str, name: &str) -> Box<dyn std::error::Error + Send + Sync> {
        format!("something else created or deleted the {kind} {name} at the same time: run this again").into()
    }
}
