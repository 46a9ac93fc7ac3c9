//! Renews the tokens with which the driver reaches remote clusters, after a third of their lifetime: those
//! that are bound to the Secret of a session there. The renewed kubeconfig is in a Secret of the driver. The
//! Secret that a user or a repository wrote is not changed, and is used again as soon as its content changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec, TokenRequestStatus},
        core::v1::Secret,
    },
};
use kube::{ResourceExt, config::Kubeconfig};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    access::{LONGEST_TOKEN, RENEWED, TokenFacts, renewed_key, seed_key},
    api::remote_cluster::RemoteCluster,
    cluster::{ApiError, Cause, Cluster},
    fleet::{Registry, Remote, Unreachable, kubeconfig},
    observe::{
        crash::{self, Step},
        log::Ongoing,
    },
    rounds::Rounds,
    volume::ClusterId,
};

/// Tokens of Kubernetes have about 1 KiB. All clusters share one Secret of at most 1 MiB, which one of
/// them must not fill.
const MOST_BYTES: usize = 16 * 1024;

pub(super) struct Sessions<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    namespace: String,
    failures: HashMap<ClusterId, Ongoing>,
    /// The declared clusters when renewed kubeconfigs of others were last deleted.
    pruned: Option<Vec<ClusterId>>,
}

/// Why a token was not renewed.
#[derive(Debug, thiserror::Error)]
enum NotRenewed {
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    #[error("{0}")]
    Api(#[from] ApiError),
    #[error("its kubeconfig cannot be read again")]
    Unreadable,
    #[error("the Secret {0}/{RENEWED}, which the chart makes, is missing")]
    NoSecret(String),
    #[error("the API server there answered without a token")]
    NoToken,
    #[error("the API server there gave a token of {0} bytes: at most {MOST_BYTES} are accepted")]
    TooLong(usize),
    #[error("the API server there gave a token that is not of this account and session")]
    NotOurs,
    #[error("the API server there gave a token that expires no later than the one in use, at {0}")]
    NoLater(jiff::Timestamp),
}

impl<'a> Sessions<'a> {
    pub(super) fn new(home: &'a Cluster, registry: &'a Registry, namespace: &str) -> Self {
        Self {
            home,
            registry,
            namespace: namespace.to_owned(),
            failures: HashMap::new(),
            pruned: None,
        }
    }

    async fn renew(&self, remote: &Remote, token: &TokenFacts, seed: &str) -> Result<(), NotRenewed> {
        let there = remote.reach()?;
        let request = token_request(token);
        let given = crash::around(
            Step::TokenRenew,
            there.request_token(&token.namespace, &token.account, &request),
        );
        let given = given.await?.status.ok_or(NotRenewed::NoToken)?;
        check(&given, token)?;
        let text = remote.kubeconfig().ok_or(NotRenewed::Unreadable)?;
        let vetted: Kubeconfig =
            serde_json::from_str(text.expose_secret()).map_err(|_| NotRenewed::Unreadable)?;
        let renewed = kubeconfig::with_token(vetted, &given.token.into());
        let renewed = serde_json::to_vec(&renewed).map_err(|_| NotRenewed::Unreadable)?;
        let data = BTreeMap::from([
            (renewed_key(remote.id.as_str()), ByteString(renewed)),
            (seed_key(remote.id.as_str()), ByteString(seed.as_bytes().to_vec())),
        ]);
        self.write(json!(data)).await?;
        let expires = given.expiration_timestamp.0;
        tracing::info!(cluster = %remote.id, %expires, "the token of a remote cluster was renewed");
        Ok(())
    }

    /// Writes these values to the Secret, which also has those of other clusters.
    async fn write(&self, data: Value) -> Result<(), NotRenewed> {
        let all = self.home.within::<Secret>(&self.namespace);
        let patch = json!({ "data": data });
        let written = crash::around(Step::TokenWrite, all.merge(RENEWED, &patch)).await?;
        written
            .map(drop)
            .ok_or_else(|| NotRenewed::NoSecret(self.namespace.clone()))
    }

    /// Deletes the renewed kubeconfigs of clusters that are not declared any more: the tokens that users wrote may
    /// have expired since, so the declarations are read live.
    async fn prune(&self) -> Result<(), ApiError> {
        let all = self.home.within::<Secret>(&self.namespace);
        let Some(secret) = all.get(RENEWED).await? else {
            return Ok(());
        };
        let declared = self.home.all::<RemoteCluster>();
        let mut declared = match declared.pick(None, None, |it| Some(it.name_any())).await {
            // The kind is not installed, or not served yet.
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => return Ok(()),
            declared => declared?,
        };
        declared.extend(self.registry.all().iter().map(|remote| remote.id.to_string()));
        let known: HashSet<String> = declared
            .iter()
            .flat_map(|id| [renewed_key(id), seed_key(id)])
            .collect();
        let data = secret.data.unwrap_or_default();
        let gone = data.keys().filter(|key| !known.contains(*key));
        let gone: BTreeMap<&String, Value> = gone.map(|key| (key, Value::Null)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // A token that was renewed since then must stay.
        let patch = json!({"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": gone});
        crash::around(Step::TokenWrite, all.merge(RENEWED, &patch))
            .await
            .map(drop)
    }
}

/// A request for a token with the same lifetime as this one.
fn token_request(token: &TokenFacts) -> TokenRequest {
    let longest = i64::try_from(LONGEST_TOKEN).unwrap_or(i64::MAX);
    TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: token.bound_to.clone(),
                uid: None,
            }),
            expiration_seconds: token.lifetime().map(|lifetime| lifetime.clamp(600, longest)),
        },
        ..TokenRequest::default()
    }
}

/// Whether the token that a remote cluster returned may replace the one in use.
fn check(given: &TokenRequestStatus, used: &TokenFacts) -> Result<(), NotRenewed> {
    if given.token.len() > MOST_BYTES {
        return Err(NotRenewed::TooLong(given.token.len()));
    }
    let facts = TokenFacts::read(&given.token).filter(TokenFacts::is_renewed);
    // A token of another account or session would be used until it expires, and not be renewed.
    if facts.is_none_or(|it| (it.namespace, it.account) != (used.namespace.clone(), used.account.clone())) {
        return Err(NotRenewed::NotOurs);
    }
    // The API server may grant a shorter lifetime than requested, so its response counts.
    let expires = given.expiration_timestamp.0;
    if used.expires.is_some_and(|before| expires.as_second() <= before) {
        return Err(NotRenewed::NoLater(expires));
    }
    Ok(())
}

impl Rounds for Sessions<'_> {
    const NAME: &'static str = "sessions";
    const RESYNC: Duration = Duration::from_mins(1);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        // Before all declarations were read, a cluster that is missing may be declared.
        if self.registry.unread().is_none_or(|unread| !unread.is_empty()) {
            return Ok(());
        }
        let remotes = self.registry.all();
        self.failures
            .retain(|id, _| remotes.iter().any(|remote| remote.id == *id));
        let now = jiff::Timestamp::now().as_second();
        for remote in &remotes {
            let Some(access) = remote.access() else { continue };
            let Some(token) = access.token.as_ref().filter(|token| token.is_due(now)) else {
                continue;
            };
            // Liqo and Kosmos renew the kubeconfigs of their discovered clusters.
            if remote.fabric.is_some() {
                continue;
            }
            let renewed = self.renew(remote, token, &access.seed).await;
            let failures = self.failures.entry(remote.id.clone()).or_default();
            match renewed {
                Ok(()) => failures.is_over(),
                Err(error) => {
                    if failures.is_news(error.to_string()) {
                        let expires = token.expires.and_then(|at| jiff::Timestamp::from_second(at).ok());
                        tracing::warn!(
                            cluster = %remote.id, %error, expires = expires.map(|at| at.to_string()),
                            "failed to renew the token of a remote cluster; `liqo-csi connect` creates another one"
                        );
                    }
                }
            }
        }
        let ids: Vec<ClusterId> = remotes.iter().map(|remote| remote.id.clone()).collect();
        if self.pruned.as_ref() != Some(&ids) {
            self.prune().await?;
            self.pruned = Some(ids);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::{
        access::{ACCOUNT, SESSION, fingerprint, token_saying},
        cluster::{
            Rights,
            testing::{Act, FakeApi, Fault, Life},
        },
        fleet::{AccessFacts, Connected, Link},
        placement::Declared,
    };

    const KEPT: &str = "/api/v1/namespaces/ours/secrets/liqo-csi-sessions";
    const TOKEN: &str = "/api/v1/namespaces/access/serviceaccounts/liqo-csi-remote/token";
    const SEED: &[u8] = b"seed";
    /// Thirty days.
    const LIFE: i64 = 2_592_000;

    struct World {
        home: FakeApi,
        there: FakeApi,
        registry: Registry,
    }

    /// A cluster that is reached with a token of this age.
    async fn world(age: i64) -> World {
        world_of(age, SEED).await
    }

    /// The same with this kubeconfig of the user, which the renewed one records.
    async fn world_of(age: i64, seed: &[u8]) -> World {
        let (home, there) = (FakeApi::start().await, FakeApi::start().await);
        home.put(KEPT, json!({"metadata": {"labels": {"a": "b"}}}));
        there.put(
            "/api/v1/namespaces/access/serviceaccounts/liqo-csi-remote",
            json!({}),
        );
        there.put("/api/v1/namespaces/access/secrets/liqo-csi-session", json!({}));
        let kubeconfig = json!({
            "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "before"}}],
            "current-context": "c", "preferences": {"seed": fingerprint(seed)},
        });
        let link = Link::Up(Arc::new(Connected {
            cluster: there.remote_cluster("milan", Rights::ALL).await,
            version: "v1.36.3".into(),
            uid: None,
            kubeconfig: Some(kubeconfig.to_string().into()),
        }));
        let issued = jiff::Timestamp::now().as_second() - age;
        let registry = Registry::fixed([(Declared::plain("milan"), link)]).with_access(&AccessFacts {
            seed: fingerprint(seed),
            token: Some(TokenFacts {
                namespace: "access".into(),
                account: ACCOUNT.into(),
                issued,
                expires: Some(issued + LIFE),
                bound_to: Some(SESSION.into()),
            }),
        });
        World {
            home,
            there,
            registry,
        }
    }

    impl World {
        async fn round(&self) {
            let home = self.home.cluster_unwatched().await;
            Sessions::new(&home, &self.registry, "ours")
                .round()
                .await
                .unwrap();
        }

        fn kept(&self) -> BTreeMap<String, ByteString> {
            let data = self.home.object(KEPT).unwrap()["data"].clone();
            serde_json::from_value(data).unwrap_or_default()
        }

        /// The seed of the only renewal.
        fn of_one_seed(&self) -> String {
            let kept = self.kept();
            assert_eq!(kept.len(), 2, "{kept:?}");
            let seed = String::from_utf8(kept[&seed_key("milan")].0.clone()).unwrap();
            let file: Value = serde_json::from_slice(&kept[&renewed_key("milan")].0).unwrap();
            assert_eq!(file["preferences"]["seed"], seed);
            let token = file["users"][0]["user"]["token"].as_str().unwrap();
            assert!(TokenFacts::read(token).unwrap().is_renewed());
            seed
        }
    }

    #[tokio::test]
    async fn a_token_is_renewed_after_a_third_of_its_lifetime() {
        let world = world(LIFE / 3 + 60).await;
        world.round().await;
        let kept = world.kept();
        assert_eq!(kept[&seed_key("milan")].0, fingerprint(SEED).into_bytes());
        let file: Value = serde_json::from_slice(&kept[&renewed_key("milan")].0).unwrap();
        assert_eq!(file["clusters"][0]["cluster"]["server"], "https://192.0.2.1");
        let token = TokenFacts::read(file["users"][0]["user"]["token"].as_str().unwrap()).unwrap();
        assert_eq!(token.bound_to.as_deref(), Some(SESSION));
        assert_eq!(token.lifetime(), Some(LIFE));
    }

    #[tokio::test]
    async fn a_young_token_is_left_alone() {
        let world = world(LIFE / 3 - 60).await;
        world.round().await;
        assert!(world.kept().is_empty());
        assert_eq!(world.there.writes(), 0);
    }

    #[tokio::test]
    async fn a_token_of_liqo_is_liqos_to_renew() {
        let mut world = world(LIFE).await;
        let declared = Declared {
            fabric: Some(&crate::fleet::KOSMOS),
            ..Declared::plain("milan")
        };
        let remote = world.registry.get(&"milan".parse().unwrap()).unwrap();
        let access = remote.access().unwrap().clone();
        world.registry = Registry::fixed([(declared, remote.link())]).with_access(&access);
        world.round().await;
        assert_eq!(world.there.writes(), 0);
    }

    #[tokio::test]
    async fn a_failed_renewal_is_retried_and_keeps_the_old_token() {
        for fault in [
            Fault::new("POST", TOKEN, Act::Forbid("the policy says no")),
            Fault::new("POST", TOKEN, Act::Refuse(404)),
        ] {
            let world = world(LIFE / 2).await;
            world.there.fault(fault);
            world.round().await;
            assert!(world.kept().is_empty());
            world.there.heal();
            world.round().await;
            assert!(world.kept().contains_key(&renewed_key("milan")));
        }
        let world = world(LIFE / 2).await;
        world.home.remove(KEPT);
        world.round().await;
        assert_eq!(world.home.object(KEPT), None, "the chart makes it");
    }

    #[test]
    fn an_invalid_new_token_is_refused() {
        let of = |subject: &str, bound: &str| {
            token_saying(&json!({
                "sub": format!("system:serviceaccount:{subject}"), "iat": 0, "exp": 2000,
                "kubernetes.io": {"secret": {"name": bound}},
            }))
        };
        let ours = of("access:liqo-csi-remote", SESSION);
        let used = TokenFacts {
            expires: Some(1000),
            ..TokenFacts::read(&ours).unwrap()
        };
        for (token, expires, is_refused) in [
            (ours.clone(), 2000, false),
            (ours.clone(), 1000, true),
            (format!("{ours}{}", "x".repeat(MOST_BYTES)), 2000, true),
            (String::new(), 2000, true),
            (of("access:liqo-csi-remote", "other"), 2000, true),
            (of("access:other", SESSION), 2000, true),
        ] {
            let given = TokenRequestStatus {
                token,
                expiration_timestamp: Time(jiff::Timestamp::from_second(expires).unwrap()),
            };
            assert_eq!(
                check(&given, &used).is_err(),
                is_refused,
                "{expires} {:.60}",
                given.token
            );
        }
    }

    #[tokio::test]
    async fn a_renewal_is_repeated_after_a_crash() {
        for writes in 0..3 {
            let world = world(LIFE / 2).await;
            world.home.change(KEPT, |it| {
                it["data"] = json!({renewed_key("rome"): ByteString(b"x".to_vec())});
            });
            let life = Life::of_writes(writes);
            world.home.live(Some(life.clone()));
            world.there.live(Some(life.clone()));
            let died = tokio::select! {
                () = world.round() => false,
                () = life.over() => true,
            };
            assert!(died, "a round makes three writes");
            world.home.live(None);
            world.there.live(None);
            world.round().await;
            let kept: Vec<String> = world.kept().into_keys().collect();
            assert_eq!(
                kept,
                [renewed_key("milan"), seed_key("milan")],
                "after {writes} writes"
            );
        }
    }

    /// A replica that has lost the lease and has not noticed yet renews a token at the same time as
    /// the new leader, which already knows a newer kubeconfig of the user.
    #[tokio::test]
    async fn two_replicas_that_renew_at_once_leave_the_renewal_of_one() {
        for writes in 0..2 {
            let (stale, successor) = (world(LIFE / 2).await, world_of(LIFE / 2, b"newer").await);
            successor.round().await;
            let theirs = json!(successor.kept());
            for _ in 0..writes {
                stale.home.before("PATCH", KEPT, |_| {});
            }
            stale.home.before("PATCH", KEPT, move |store| {
                let mut secret = store.get(KEPT).unwrap();
                secret["data"] = theirs;
                store.put(KEPT, secret);
            });
            stale.round().await;
            assert_eq!(stale.of_one_seed(), fingerprint(SEED), "after {writes} writes");
            // Its record names another kubeconfig than the current one: it is not used, and the new
            // leader renews again.
            let home = stale.home.cluster_unwatched().await;
            let mut again = Sessions::new(&home, &successor.registry, "ours");
            again.round().await.unwrap();
            assert_eq!(stale.of_one_seed(), fingerprint(b"newer"));
        }
    }

    #[tokio::test]
    async fn tokens_of_deleted_clusters_are_removed() {
        let world = world(0).await;
        let kept = BTreeMap::from([
            (renewed_key("rome"), ByteString(b"x".to_vec())),
            (seed_key("rome"), ByteString(b"x".to_vec())),
            (renewed_key("milan"), ByteString(b"x".to_vec())),
        ]);
        world.home.change(KEPT, |it| it["data"] = json!(kept));
        world.round().await;
        assert_eq!(
            world.kept().into_keys().collect::<Vec<_>>(),
            [renewed_key("milan")]
        );
    }

    /// The registry may lack clusters for a moment.
    #[tokio::test]
    async fn tokens_of_existing_remote_clusters_are_kept() {
        let world = world(0).await;
        let turin = json!({"spec": {"kubeconfigSecretRef": {"name": "turin"}, "fabric": {}}});
        world
            .home
            .put("/apis/storage.liqo.io/v1alpha1/remoteclusters/turin", turin);
        let kept = BTreeMap::from([(renewed_key("turin"), ByteString(b"x".to_vec()))]);
        world.home.change(KEPT, |it| it["data"] = json!(kept));
        world.round().await;
        assert_eq!(world.kept(), kept);
        let refused = Fault::new("GET", "/remoteclusters", Act::Refuse(404));
        world.home.fault(refused);
        world.round().await;
        assert_eq!(world.kept(), kept);
    }
}
