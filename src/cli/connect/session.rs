//! The end of a session: its tokens are bound to a Secret in the remote cluster, and are valid as long as that
//! exists.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt, api::ObjectMeta};
use tokio::time::{Instant, sleep};

use super::{
    Outcome,
    remote::{Remote, explained},
};
use crate::{
    access::{ACCOUNT, NamespaceName, SESSION},
    cluster::Precondition,
};

/// API servers cache for ten seconds that a token is valid (`TokenSuccessCacheTTL`): until then, a revoked token could
/// still be used to request one for the next session.
const CACHED: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(15)
};
const POLL: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 500 });

impl Remote {
    /// Waits, if a session was ended, until no API server accepts its tokens any more. With `revoke` it ends the
    /// current one first, revokes tokens that never expire, and begins another session. Without a session it revokes
    /// nothing, unless the caller begins one afterwards: otherwise the driver would be left without a token.
    pub(super) async fn end_session(
        &self,
        namespace: &NamespaceName,
        revoke: bool,
        caller_begins: bool,
    ) -> Outcome {
        let secrets = self.cluster.within::<Secret>(namespace.as_str());
        let found = secrets.get(SESSION).await.map_err(explained)?;
        if found.is_some() && !revoke {
            return Ok(());
        }
        if found.is_none() && !caller_begins {
            return Err(missing(namespace).into());
        }
        if let Some(session) = &found {
            let exactly = Precondition {
                uid: session.uid().unwrap_or_default(),
                resource_version: None,
            };
            secrets.delete(SESSION, exactly).await.map_err(explained)?;
        }
        if revoke {
            self.delete_permanent_tokens(namespace).await?;
        }
        println!(
            "There: all tokens of {namespace}/{ACCOUNT} that are bound to {SESSION} are revoked. Waiting {}s, because API \
             servers cache valid tokens for some seconds.",
            CACHED.as_secs()
        );
        let until = Instant::now() + CACHED;
        loop {
            if let Some(now) = secrets.get(SESSION).await.map_err(explained)? {
                let is_same = found.as_ref().is_some_and(|it| it.uid() == now.uid());
                let why = if is_same {
                    held(&now, namespace)
                } else {
                    begun_by_others(namespace)
                };
                return Err(why.into());
            }
            if Instant::now() >= until {
                break;
            }
            sleep(POLL).await;
        }
        if let Some(session) = found {
            let next = Secret {
                metadata: ObjectMeta {
                    name: Some(SESSION.to_owned()),
                    namespace: Some(namespace.to_string()),
                    labels: session.metadata.labels,
                    annotations: session.metadata.annotations,
                    ..ObjectMeta::default()
                },
                ..session
            };
            secrets.create(&next).await.map_err(explained)?;
        }
        Ok(())
    }

    /// Deletes the Secrets with tokens of the account that never expire, such as that of the chart.
    async fn delete_permanent_tokens(&self, namespace: &NamespaceName) -> Outcome {
        let secrets = self.cluster.within::<Secret>(namespace.as_str());
        for secret in secrets.list(None).await.map_err(explained)? {
            let account = secret.annotations().get("kubernetes.io/service-account.name");
            let is_token = secret.type_.as_deref() == Some("kubernetes.io/service-account-token");
            if !is_token || account.is_none_or(|it| it != ACCOUNT) {
                continue;
            }
            let name = secret.name_any();
            let exactly = Precondition {
                uid: secret.uid().unwrap_or_default(),
                resource_version: None,
            };
            secrets.delete(&name, exactly).await.map_err(explained)?;
            println!("There: the Secret {namespace}/{name} is deleted, whose token would never expire.");
        }
        Ok(())
    }
}

/// The error if new tokens could not be bound to anything.
fn missing(namespace: &NamespaceName) -> String {
    format!(
        "nothing was revoked: there is no Secret {namespace}/{SESSION} there, to which new tokens are bound, so the driver would \
         have no token afterwards. With Helm, remoteAccess.token=session creates it; otherwise apply the manifests of the \
         identity again. Then run this again"
    )
}

/// A finalizer keeps the Secret: its tokens are still valid.
fn held(secret: &Secret, namespace: &NamespaceName) -> String {
    format!(
        "the Secret {namespace}/{SESSION} there is not deleted, because it has the finalizers {}: remove them, and run this again",
        secret.finalizers().join(", ")
    )
}

/// The error if another process has begun a session too early.
fn begun_by_others(namespace: &NamespaceName) -> String {
    format!(
        "the Secret {namespace}/{SESSION} there was created again at once, so that a stolen token that an API server still \
         caches may have been renewed: stop what creates it, such as GitOps, until this command is done, and run it again \
         with --revoke-tokens"
    )
}
