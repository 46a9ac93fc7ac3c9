//! The side of the remote cluster: the identity, its rights and its tokens.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    Outcome,
    ends::{ETERNAL_NAMESPACE, Way, uid},
    home::other_uid,
};
use crate::{
    access::{
        self, ACCOUNT, HOME, Identity, LEVEL, Level, MANAGED_BY_CONNECT, NamespaceName, ObjectRef, SESSION,
    },
    api::remote_cluster::RemoteCluster,
    cluster::{ApiError, Cause, Cluster, Objects, Precondition},
    volume::{ClusterId, mark},
};

/// The Secret with a token for ever, as the chart makes it where nobody asks for sessions.
const PERMANENT_TOKEN: &str = "liqo-csi-remote-token";
/// Kubernetes puts the certificate of its API server into this `ConfigMap` of every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";
/// Label of namespaces that the fabric of a home cluster has made.
const FABRIC_HOME: &str = "fabric.storage.liqo.io/home";
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// A controller of Kubernetes writes that `ConfigMap`; it takes a moment in a new namespace.
const ROOT_CA_PATIENCE: Duration = Duration::from_secs(20);

/// The remote cluster, with the rights of whoever calls.
pub(in crate::cli) struct Remote {
    pub(in crate::cli) cluster: Cluster,
}

/// What is there already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Now {
    pub(super) level: Option<Level>,
    pub(super) listed: BTreeSet<NamespaceName>,
    /// Whether the namespace is there and was not made by this command.
    pub(super) namespace_of_others: bool,
}

/// What became of what is not wanted any more.
#[derive(Debug, Default)]
pub(in crate::cli) struct Tidy {
    pub(in crate::cli) deleted: usize,
    /// What is left, and why.
    pub(in crate::cli) left: Vec<String>,
}

/// How an API server calls objects of a kind that an identity has.
pub(in crate::cli) fn resource(kind: &str) -> Option<ApiResource> {
    Some(match kind {
        "Namespace" => ApiResource::erase::<Namespace>(&()),
        "ServiceAccount" => ApiResource::erase::<ServiceAccount>(&()),
        "Secret" => ApiResource::erase::<Secret>(&()),
        "ConfigMap" => ApiResource::erase::<ConfigMap>(&()),
        "ClusterRole" => ApiResource::erase::<ClusterRole>(&()),
        "ClusterRoleBinding" => ApiResource::erase::<ClusterRoleBinding>(&()),
        "Role" => ApiResource::erase::<Role>(&()),
        "RoleBinding" => ApiResource::erase::<RoleBinding>(&()),
        "ValidatingAdmissionPolicy" => ApiResource::erase::<ValidatingAdmissionPolicy>(&()),
        "ValidatingAdmissionPolicyBinding" => ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()),
        _ => return None,
    })
}

/// The namespaces there that the fabric of a home cluster has made.
pub(in crate::cli) async fn fabric_namespaces(
    cluster: &Cluster,
    home: &ClusterId,
) -> Result<Vec<String>, ApiError> {
    let label = format!("{FABRIC_HOME}={home}");
    let found = cluster.all::<Namespace>().list(Some(&label)).await?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

/// What the API server said, with what it means for whoever calls.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn explained(error: ApiError) -> String {
    match &error.cause {
        Cause::Forbidden(_) => format!(
            "{error} (this command works with your own rights there, and needs those of an administrator)"
        ),
        _ => error.to_string(),
    }
}

impl Remote {
    /// Which cluster it is, whatever its address.
    pub(super) async fn uid(&self) -> Outcome<String> {
        let uid = uid(&self.cluster).await?;
        Ok(uid.ok_or_else(|| {
            format!("the remote cluster has no namespace {ETERNAL_NAMESPACE}: is it a Kubernetes cluster?")
        })?)
    }

    fn objects(&self, object: &ObjectRef) -> Outcome<Objects<DynamicObject>> {
        let kind = resource(&object.kind);
        let kind = kind.ok_or_else(|| format!("{object} is of a kind that this program does not know"))?;
        Ok(self.cluster.dynamic(&kind, object.namespace.as_deref()))
    }

    /// What of the identity is there; an error if it is somebody else's.
    pub(super) async fn look(
        &self,
        namespace: &NamespaceName,
        home: &ClusterId,
        token_only: bool,
    ) -> Outcome<Now> {
        let in_it = namespace.as_str();
        let accounts = self.cluster.within::<ServiceAccount>(in_it);
        let account = accounts.get(ACCOUNT).await.map_err(explained)?;
        let listed = self.listed(namespace).await?;
        let found = self
            .cluster
            .all::<Namespace>()
            .get(in_it)
            .await
            .map_err(explained)?;
        let is_ours = |labels: &BTreeMap<String, String>| {
            labels.get(mark::MANAGED_BY).map(String::as_str) == Some(MANAGED_BY_CONNECT)
        };
        let namespace_of_others = found.as_ref().is_some_and(|it| !is_ours(it.labels()));
        if found.is_some_and(|it| it.metadata.deletion_timestamp.is_some()) {
            return Err(format!(
                "the namespace {namespace} there is being deleted: try again when it is gone"
            )
            .into());
        }
        let Some(account) = account else {
            if token_only {
                return Err(format!(
                    "--token-only: there is no ServiceAccount {namespace}/{ACCOUNT} there. Apply what `liqo-csi connect … -o \
                     yaml --only remote` prints, or leave --token-only out"
                )
                .into());
            }
            return Ok(Now {
                namespace_of_others,
                listed,
                level: None,
            });
        };
        if let Some(other) = account.annotations().get(HOME).filter(|it| **it != home.as_str()) {
            return Err(format!(
                "the ServiceAccount {namespace}/{ACCOUNT} there is that of another home cluster, {other}, and this one is \
                 {home}: --remote-namespace names another namespace for this one"
            )
            .into());
        }
        if account.labels().get(mark::MANAGED_BY).map(String::as_str) == Some("Helm") && !token_only {
            return Err(format!(
                "the identity in the namespace {namespace} there is of a Helm release. Change its level there (remoteAccess.level), with \
                 remoteAccess.token=session, and pass --token-only; or name another namespace: --remote-namespace"
            )
            .into());
        }
        let level = account.annotations().get(LEVEL).and_then(|it| it.parse().ok());
        Ok(Now {
            level,
            listed,
            namespace_of_others,
        })
    }

    /// An error if this is not the cluster that the name stands for.
    pub(in crate::cli) async fn is_the_one(
        &self,
        name: &ClusterId,
        secret: Option<&Secret>,
        object: Option<&RemoteCluster>,
    ) -> Outcome {
        let uid = self.uid().await?;
        match other_uid(secret, object, &uid) {
            Some(known) => Err(format!(
                "{name} is another cluster than this kubeconfig leads to: its namespace kube-system has the uid {known}, and here it \
                 is {uid}"
            )
            .into()),
            None => Ok(()),
        }
    }

    /// An error if the identity there is that of another home cluster.
    pub(in crate::cli) async fn is_of(&self, namespace: &NamespaceName, home: &ClusterId) -> Outcome {
        let accounts = self.cluster.within::<ServiceAccount>(namespace.as_str());
        let account = accounts.get(ACCOUNT).await.map_err(explained)?;
        let other = account.and_then(|it| it.annotations().get(HOME).cloned());
        match other.filter(|it| it != home.as_str()) {
            Some(other) => Err(format!(
                "the ServiceAccount {namespace}/{ACCOUNT} there is that of another home cluster, {other}, and is left as it is: \
                 --remote-namespace names that of this one"
            )
            .into()),
            None => Ok(()),
        }
    }

    /// The namespaces in which the identity has a role of its own.
    pub(in crate::cli) async fn listed(&self, namespace: &NamespaceName) -> Outcome<BTreeSet<NamespaceName>> {
        let ours = format!("{}={MANAGED_BY_CONNECT}", mark::MANAGED_BY);
        let name = format!("{ACCOUNT}.{namespace}");
        let roles = self
            .cluster
            .all::<Role>()
            .list(Some(&ours))
            .await
            .map_err(explained)?;
        let named = roles.iter().filter(|role| role.name_any() == name);
        Ok(named.filter_map(|role| role.namespace()?.parse().ok()).collect())
    }

    /// Gives the identity the rights of a level, and takes those of others away.
    pub(super) async fn give(&self, level: Level, identity: &Identity, now: &Now) -> Outcome {
        if level != Level::Fabric {
            let held = fabric_namespaces(&self.cluster, &identity.home)
                .await
                .map_err(explained)?;
            if !held.is_empty() {
                return Err(format!(
                    "the fabric has namespaces there ({}), and with the level {level} it could neither run their pods nor delete \
                     them: unoffload the namespaces here that they were made for (liqo-csi unoffload namespace)",
                    held.join(", ")
                )
                .into());
            }
        }
        for one in &identity.listed {
            if self
                .cluster
                .all::<Namespace>()
                .get(one.as_str())
                .await
                .map_err(explained)?
                .is_none()
            {
                return Err(
                    format!("--namespaces: there is no namespace {one} there: create it first").into(),
                );
            }
        }
        let wanted = access::render(level, identity);
        for (object, text) in &wanted {
            // One that was there before is not ours, and not to be deleted by us one day.
            if object.kind == "Namespace" && now.namespace_of_others {
                continue;
            }
            let manifest: Value = serde_saphyr::from_str(text)
                .map_err(|error| format!("the manifest of {object} cannot be read: {error}"))?;
            self.objects(object)?
                .apply(&object.name, &manifest)
                .await
                .map_err(|error| match &error.cause {
                    Cause::NotFound(_) if object.kind.starts_with("ValidatingAdmissionPolicy") => {
                        format!("{error}: the fence of the identity needs Kubernetes 1.30 or later there")
                    }
                    _ => explained(error),
                })?;
        }
        let wanted: BTreeSet<&ObjectRef> = wanted.iter().map(|(object, _)| object).collect();
        let everywhere = Identity {
            listed: now.listed.union(&identity.listed).cloned().collect(),
            ..identity.clone()
        };
        let mut outdated = access::every(&everywhere);
        outdated.retain(|object| !wanted.contains(object) && object.kind != "Namespace");
        for left in self.take(&outdated).await?.left {
            eprintln!("not taken away: {left}");
        }
        let secrets = self.cluster.within::<Secret>(identity.namespace.as_str());
        if secrets.get(PERMANENT_TOKEN).await.map_err(explained)?.is_some() {
            eprintln!(
                "The Secret {}/{PERMANENT_TOKEN} there holds a token of the identity that never expires. Once nothing uses it: \
                 kubectl delete secret -n {0} {PERMANENT_TOKEN}",
                identity.namespace
            );
        }
        Ok(())
    }

    /// Deletes those of the objects that this command has made.
    pub(in crate::cli) async fn take(&self, objects: &[ObjectRef]) -> Outcome<Tidy> {
        let mut tidy = Tidy::default();
        for object in objects {
            let all = self.objects(object)?;
            let found = match all.get(&object.name).await {
                Ok(found) => found,
                // No such kind there: none of them either.
                Err(error) if matches!(error.cause, Cause::NotFound(_)) => None,
                Err(error) => return Err(explained(error).into()),
            };
            let Some(found) = found else { continue };
            match found.labels().get(mark::MANAGED_BY).map(String::as_str) {
                Some(MANAGED_BY_CONNECT) => {}
                Some("Helm") => {
                    tidy.left
                        .push(format!("{object} (of a Helm release: helm uninstall)"));
                    continue;
                }
                _ => {
                    // A namespace that somebody had before is simply not ours.
                    if object.kind != "Namespace" {
                        tidy.left.push(format!("{object} (not made by liqo-csi connect)"));
                    }
                    continue;
                }
            }
            if object.kind == "Namespace"
                && let Some(why) = self.is_used(&object.name).await?
            {
                tidy.left.push(format!("{object} ({why})"));
                continue;
            }
            let exactly = Precondition {
                uid: found.metadata.uid.unwrap_or_default(),
                resource_version: None,
            };
            all.delete(&object.name, exactly).await.map_err(explained)?;
            tidy.deleted += 1;
        }
        Ok(tidy)
    }

    /// What of others is in a namespace that this command made.
    async fn is_used(&self, namespace: &str) -> Outcome<Option<String>> {
        let pods = self.cluster.within::<Pod>(namespace).list(None).await?;
        let claims = self
            .cluster
            .within::<PersistentVolumeClaim>(namespace)
            .list(None)
            .await?;
        Ok((!pods.is_empty() || !claims.is_empty()).then(|| {
            format!(
                "{} pods and {} claims of others are in it",
                pods.len(),
                claims.len()
            )
        }))
    }

    /// A token of the identity that ends, and is bound to the Secret of its session.
    pub(super) async fn token(&self, namespace: &NamespaceName, lifetime: Duration) -> Outcome<String> {
        let wanted = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(SESSION.to_owned()),
                    uid: None,
                }),
                expiration_seconds: Some(lifetime.as_secs().try_into()?),
            },
            ..TokenRequest::default()
        };
        let given = self
            .cluster
            .request_token(namespace.as_str(), ACCOUNT, &wanted)
            .await;
        let given = given.map_err(|error| match &error.cause {
            Cause::NotFound(_) => format!(
                "{error}: the Secret {namespace}/{SESSION}, to which tokens are bound, may be missing there: with Helm, set \
                 remoteAccess.token=session"
            ),
            _ => explained(error),
        })?;
        let token = given.status.map(|it| it.token).filter(|it| !it.is_empty());
        Ok(token.ok_or("the remote cluster gave an empty token")?)
    }

    /// Who vouches for the API server: as your own kubeconfig says, or else as the cluster does.
    pub(super) async fn authority(&self, namespace: &NamespaceName, way: &Way) -> Outcome<String> {
        if let Some(known) = &way.authority {
            return Ok(known.clone());
        }
        let maps = self.cluster.within::<ConfigMap>(namespace.as_str());
        let until = tokio::time::Instant::now() + ROOT_CA_PATIENCE;
        loop {
            let found = maps.get(ROOT_CA).await.map_err(explained)?;
            let text = found.and_then(|it| it.data?.get("ca.crt").cloned());
            if let Some(text) = text {
                return Ok(json!(k8s_openapi::ByteString(text.into_bytes()))
                    .as_str()
                    .unwrap_or_default()
                    .to_owned());
            }
            if tokio::time::Instant::now() >= until {
                return Err(format!(
                    "your kubeconfig names no certificate authority, and the ConfigMap {namespace}/{ROOT_CA} there, which has that \
                     of the cluster, is missing: put certificate-authority-data into your kubeconfig"
                )
                .into());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}
