//! The remote cluster: the identity, its rights and its tokens.

use std::{collections::BTreeSet, time::Duration};

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

use super::{Outcome, ends::Endpoint};
use crate::{
    access::{
        self, ACCOUNT, HOME, Identity, LEVEL, Level, MANAGED_BY_CONNECT, NamespaceName, ObjectRef, SESSION,
        TOKEN_SECONDS,
    },
    api::fabric::PodSecurity,
    cluster::{ApiError, Cause, Cluster, KUBE_SYSTEM, Objects, Precondition},
    volume::{ClusterId, mark},
};

/// The Secret with a token that never expires, which the chart creates with `remoteAccess.token=permanent`.
const PERMANENT_TOKEN: &str = "liqo-csi-remote-token";
/// Kubernetes publishes the certificate authority of its API server in this `ConfigMap` of every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";
/// As Helm labels what it manages.
const HELM: &str = "Helm";
/// Label of namespaces that the fabric of a home cluster created.
const FABRIC_HOME: &str = "fabric.storage.liqo.io/home";
const POLL: Duration = Duration::from_millis(200);
/// A controller of Kubernetes writes that `ConfigMap` some time after a namespace is created.
const ROOT_CA_TIMEOUT: Duration = Duration::from_secs(20);

/// The remote cluster, with the rights of the user.
pub(in crate::cli) struct Remote {
    pub(in crate::cli) cluster: Cluster,
}

/// The identity as it was before this run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Current {
    pub(super) has_account: bool,
    pub(super) level: Option<Level>,
    pub(super) listed: BTreeSet<NamespaceName>,
    /// The longest life of a token, in seconds, that the policy allows.
    pub(super) longest_token: Option<u64>,
    /// Whether the namespace exists and this command did not create it.
    pub(super) namespace_of_others: bool,
}

/// The outcome of deleting objects.
#[derive(Debug, Default)]
pub(in crate::cli) struct Deletion {
    pub(in crate::cli) deleted: usize,
    /// What is left, and why.
    pub(in crate::cli) left: Vec<String>,
}

/// The resource of a kind that an identity consists of.
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

/// The namespaces there that the fabric of a home cluster created.
pub(in crate::cli) async fn fabric_namespaces(
    cluster: &Cluster,
    home: &ClusterId,
) -> Result<Vec<String>, ApiError> {
    let label = format!("{FABRIC_HOME}={home}");
    let found = cluster.all::<Namespace>().list(Some(&label)).await?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}

/// The error of the API server, with what the user can do about it.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn explained(error: ApiError) -> String {
    match &error.cause {
        Cause::Forbidden(_) => {
            format!("{error} (this command uses your own rights there, and needs those of an administrator)")
        }
        _ => error.to_string(),
    }
}

/// Selects the twins of a home cluster, in all namespaces.
pub(in crate::cli) fn twins_of(home: &ClusterId) -> String {
    format!(
        "{}={},{}={home}",
        mark::MANAGED_BY,
        mark::MANAGED_BY_US,
        mark::HOME_CLUSTER
    )
}

/// An error if the account belongs to another home cluster.
fn is_of(account: &ServiceAccount, namespace: &NamespaceName, home: &ClusterId) -> Outcome {
    match account.annotations().get(HOME).filter(|it| *it != home.as_str()) {
        Some(other) => Err(format!(
            "the ServiceAccount {namespace}/{ACCOUNT} there belongs to the home cluster {other}, and this one is {home}: name \
             another namespace by --remote-namespace"
        )
        .into()),
        None => Ok(()),
    }
}

impl Remote {
    /// The uid that identifies the cluster, whatever its address is.
    pub(in crate::cli) async fn uid(&self) -> Outcome<String> {
        let uid = self.cluster.uid().await.map_err(explained)?;
        Ok(uid.ok_or_else(|| {
            format!("the remote cluster has no namespace {KUBE_SYSTEM}: is it a Kubernetes cluster?")
        })?)
    }

    fn objects(&self, object: &ObjectRef) -> Outcome<Objects<DynamicObject>> {
        let kind = resource(&object.kind);
        let kind = kind.ok_or_else(|| format!("{object} is of a kind that this program does not know"))?;
        Ok(self.cluster.dynamic(&kind, object.namespace.as_deref()))
    }

    /// Reads the identity; an error if it belongs to another home cluster, or to Helm.
    pub(super) async fn identity(
        &self,
        namespace: &NamespaceName,
        home: &ClusterId,
        token_only: bool,
    ) -> Outcome<Current> {
        let in_it = namespace.as_str();
        let accounts = self.cluster.within::<ServiceAccount>(in_it);
        let account = accounts.get(ACCOUNT).await.map_err(explained)?;
        let mut current = Current {
            listed: self.listed(namespace).await?,
            ..Current::default()
        };
        let found = self
            .cluster
            .all::<Namespace>()
            .get(in_it)
            .await
            .map_err(explained)?;
        current.namespace_of_others = found
            .as_ref()
            .is_some_and(|it| mark::manager(it.labels()) != Some(MANAGED_BY_CONNECT));
        if found.is_some_and(|it| it.metadata.deletion_timestamp.is_some()) {
            return Err(format!(
                "the namespace {namespace} there is being deleted: run this again when it is gone"
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
            return Ok(current);
        };
        is_of(&account, namespace, home)?;
        if mark::manager(account.labels()) == Some(HELM) && !token_only {
            return Err(format!(
                "Helm manages the identity in the namespace {namespace} there. Set its level there (remoteAccess.level) and \
                 remoteAccess.token=session, and pass --token-only; or name another namespace by --remote-namespace"
            )
            .into());
        }
        let said = |key: &str| account.annotations().get(key);
        current.has_account = true;
        current.level = said(LEVEL).and_then(|it| it.parse().ok());
        current.longest_token = said(TOKEN_SECONDS).and_then(|it| it.parse().ok());
        Ok(current)
    }

    /// An error if the identity there belongs to another home cluster.
    pub(in crate::cli) async fn is_of(&self, namespace: &NamespaceName, home: &ClusterId) -> Outcome {
        let accounts = self.cluster.within::<ServiceAccount>(namespace.as_str());
        let account = accounts.get(ACCOUNT).await.map_err(explained)?;
        account.map_or(Ok(()), |it| is_of(&it, namespace, home))
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

    /// An error if the identity cannot have this level: tokens must not be revoked before that is known.
    pub(super) async fn may_apply(&self, level: Level, identity: &Identity) -> Outcome {
        if level != Level::Fabric {
            let held = fabric_namespaces(&self.cluster, &identity.home)
                .await
                .map_err(explained)?;
            if !held.is_empty() {
                return Err(format!(
                    "the fabric has namespaces there ({}), and with the level {level} it could neither run their pods nor delete \
                     them: first unoffload their namespaces here (liqo-csi unoffload namespace)",
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
        Ok(())
    }

    /// Creates or repairs the identity with the rights of a level, and deletes those of other levels.
    pub(super) async fn apply(&self, level: Level, identity: &Identity, current: &Current) -> Outcome {
        if level.is_listed() {
            self.warn_of_twins_elsewhere(level, identity).await?;
        }
        let wanted = access::render(level, identity);
        for (object, text) in &wanted {
            // Without our label, disconnect will not delete a namespace that existed before.
            if object.kind == "Namespace" && current.namespace_of_others {
                continue;
            }
            let manifest: Value = serde_saphyr::from_str(text)
                .map_err(|error| format!("the manifest of {object} cannot be read: {error}"))?;
            self.objects(object)?
                .apply(&object.name, &manifest)
                .await
                .map_err(|error| match &error.cause {
                    Cause::NotFound(_) if object.kind.starts_with("ValidatingAdmissionPolicy") => {
                        format!("{error}: the policies that limit the identity need Kubernetes 1.30 or later there")
                    }
                    _ => explained(error),
                })?;
        }
        let wanted: BTreeSet<&ObjectRef> = wanted.iter().map(|(object, _)| object).collect();
        let everywhere = Identity {
            listed: current.listed.union(&identity.listed).cloned().collect(),
            ..identity.clone()
        };
        let mut outdated = access::every(&everywhere);
        outdated.retain(|object| !wanted.contains(object) && object.kind != "Namespace");
        for left in self.delete(&outdated).await?.left {
            eprintln!("Not deleted: {left}");
        }
        if level == Level::Fabric {
            self.label_namespaces(&identity.home).await?;
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

    /// Adds the Pod Security label to namespaces that an older version of the fabric created without it: the
    /// identity may not change namespaces.
    async fn label_namespaces(&self, home: &ClusterId) -> Outcome {
        let all = self.cluster.all::<Namespace>();
        let found = all.list(Some(&format!("{FABRIC_HOME}={home}"))).await;
        for namespace in found.map_err(explained)? {
            if namespace.labels().contains_key(PodSecurity::LABEL) {
                continue;
            }
            let labels = json!({PodSecurity::LABEL: PodSecurity::default().name()});
            let patch = json!({"metadata": {"uid": namespace.uid(), "labels": labels}});
            all.merge(&namespace.name_any(), &patch)
                .await
                .map_err(explained)?;
        }
        Ok(())
    }

    /// Reports which twins the driver could not serve at a level with a list of namespaces.
    async fn warn_of_twins_elsewhere(&self, level: Level, identity: &Identity) -> Outcome {
        let ours = twins_of(&identity.home);
        let twins = self
            .cluster
            .all::<PersistentVolumeClaim>()
            .list(Some(&ours))
            .await;
        let namespaces: BTreeSet<String> = twins
            .map_err(explained)?
            .iter()
            .filter_map(ResourceExt::namespace)
            .filter(|it| !identity.listed.iter().any(|listed| listed.as_str() == it))
            .collect();
        if !namespaces.is_empty() {
            let named: Vec<String> = namespaces.into_iter().collect();
            eprintln!(
                "Claims of this home cluster are also in the namespaces {} there, which --namespaces does not list: with the level \
                 {level} the driver can neither create nor delete claims in them.",
                named.join(", ")
            );
        }
        Ok(())
    }

    /// Deletes those of the objects that this command created.
    pub(in crate::cli) async fn delete(&self, objects: &[ObjectRef]) -> Outcome<Deletion> {
        let mut deletion = Deletion::default();
        for object in objects {
            let all = self.objects(object)?;
            let found = match all.get(&object.name).await {
                Ok(found) => found,
                // The API server does not know the kind, so there are no objects of it.
                Err(error) if matches!(error.cause, Cause::NotFound(_)) => None,
                Err(error) => return Err(explained(error).into()),
            };
            let Some(found) = found else { continue };
            match mark::manager(found.labels()) {
                Some(MANAGED_BY_CONNECT) => {}
                // The namespace existed before, so it is not deleted.
                _ if object.kind == "Namespace" => continue,
                Some(HELM) => {
                    deletion
                        .left
                        .push(format!("{object} (Helm manages it: helm uninstall)"));
                    continue;
                }
                _ => {
                    deletion
                        .left
                        .push(format!("{object} (liqo-csi connect did not create it)"));
                    continue;
                }
            }
            if object.kind == "Namespace"
                && let Some(why) = self.is_used(&object.name).await?
            {
                deletion.left.push(format!("{object} ({why})"));
                continue;
            }
            let exactly = Precondition {
                uid: found.metadata.uid.unwrap_or_default(),
                resource_version: None,
            };
            all.delete(&object.name, exactly).await.map_err(explained)?;
            deletion.deleted += 1;
        }
        Ok(deletion)
    }

    /// Which objects are in a namespace that this command created, if there are any.
    async fn is_used(&self, namespace: &str) -> Outcome<Option<String>> {
        let pods = self.cluster.within::<Pod>(namespace).list(None).await;
        let pods = pods.map_err(explained)?;
        let claims = self.cluster.within::<PersistentVolumeClaim>(namespace);
        let claims = claims.list(None).await.map_err(explained)?;
        Ok((!pods.is_empty() || !claims.is_empty())
            .then(|| format!("{} pods and {} claims are in it", pods.len(), claims.len())))
    }

    /// Requests a token of the identity that expires, and is bound to the Secret of its session.
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
                "{error}: check whether the Secret {namespace}/{SESSION} there exists, to which tokens are bound; with Helm, \
                 remoteAccess.token=session creates it"
            ),
            _ => explained(error),
        })?;
        let token = given.status.map(|it| it.token).filter(|it| !it.is_empty());
        Ok(token.ok_or("the remote cluster answered without a token")?)
    }

    /// The certificate authority of the API server, in base64: that of the user's kubeconfig, or else that
    /// which the cluster publishes.
    pub(super) async fn authority(&self, namespace: &NamespaceName, endpoint: &Endpoint) -> Outcome<String> {
        if let Some(known) = &endpoint.authority {
            return Ok(known.clone());
        }
        let maps = self.cluster.within::<ConfigMap>(namespace.as_str());
        let until = tokio::time::Instant::now() + ROOT_CA_TIMEOUT;
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
                    "the certificate authority of the API server is not known: your kubeconfig has none for this address, and the \
                     ConfigMap {namespace}/{ROOT_CA} there is missing. Put certificate-authority-data into your kubeconfig"
                )
                .into());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
