//! Renews the tokens by which remote clusters are reached: those that are bound to the Secret of a session
//! there, after a third of their life. What is renewed is kept in a Secret of the driver's own; the one that
//! somebody has written stays as it is, and counts again once it says something else.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::Secret,
    },
};
use kube::config::Kubeconfig;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    access::{LONGEST_TOKEN, RENEWED, TokenFacts, renewed_key, seed_key},
    cluster::{ApiError, Cluster},
    fleet::{Registry, Remote, Unreachable, kubeconfig},
    observe::{
        crash::{self, Step},
        log::Ongoing,
    },
    rounds::Rounds,
    volume::ClusterId,
};

/// The loop.
pub(super) struct Sessions<'a> {
    home: &'a Cluster,
    registry: &'a Registry,
    namespace: String,
    trouble: HashMap<ClusterId, Ongoing>,
    /// The clusters of which what is kept was looked through last.
    looked: Option<Vec<ClusterId>>,
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
    #[error("the API server there gave an empty token")]
    Empty,
    #[error("the API server there gave a token that ends no later ({0})")]
    NoLater(i64),
}

impl<'a> Sessions<'a> {
    /// The driver is in this namespace.
    pub(super) fn new(home: &'a Cluster, registry: &'a Registry, namespace: &str) -> Self {
        Self {
            home,
            registry,
            namespace: namespace.to_owned(),
            trouble: HashMap::new(),
            looked: None,
        }
    }

    async fn renew(&self, remote: &Remote, token: &TokenFacts, seed: &str) -> Result<(), NotRenewed> {
        let there = remote.reach()?;
        let wanted = wanted(token);
        let given = crash::around(
            Step::TokenRenew,
            there.request_token(&token.namespace, &token.account, &wanted),
        );
        let given = given.await?.status.ok_or(NotRenewed::Empty)?;
        // The server may give less than was asked for: what it says is what counts.
        let ends = given.expiration_timestamp.0.as_second();
        if given.token.is_empty() {
            return Err(NotRenewed::Empty);
        }
        if token.expires.is_some_and(|before| ends <= before) {
            return Err(NotRenewed::NoLater(ends));
        }
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
        tracing::info!(cluster = %remote.id, until = %given.expiration_timestamp.0, "the token of a remote cluster was renewed");
        Ok(())
    }

    /// Writes these values into the Secret, beside those of other clusters.
    async fn write(&self, data: Value) -> Result<(), NotRenewed> {
        let all = self.home.within::<Secret>(&self.namespace);
        let patch = json!({ "data": data });
        let written = crash::around(Step::TokenWrite, all.merge(RENEWED, &patch)).await?;
        written
            .map(drop)
            .ok_or_else(|| NotRenewed::NoSecret(self.namespace.clone()))
    }

    /// What is kept of clusters that are not declared any more is taken out.
    async fn forget(&self) -> Result<(), ApiError> {
        let all = self.home.within::<Secret>(&self.namespace);
        let Some(secret) = all.get(RENEWED).await? else {
            return Ok(());
        };
        let known: Vec<String> = self
            .registry
            .all()
            .iter()
            .flat_map(|remote| [renewed_key(remote.id.as_str()), seed_key(remote.id.as_str())])
            .collect();
        let data = secret.data.unwrap_or_default();
        let gone = data.keys().filter(|key| !known.contains(key));
        let gone: BTreeMap<&String, Value> = gone.map(|key| (key, Value::Null)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let patch = json!({ "data": gone });
        crash::around(Step::TokenWrite, all.merge(RENEWED, &patch))
            .await
            .map(drop)
    }
}

/// A token that lives as long as this one.
fn wanted(token: &TokenFacts) -> TokenRequest {
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

impl Rounds for Sessions<'_> {
    const NAME: &'static str = "sessions";
    const RESYNC: Duration = Duration::from_mins(1);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        // Nothing is known of who is declared before that was read.
        if self.registry.unread().is_none_or(|unread| !unread.is_empty()) {
            return Ok(());
        }
        let remotes = self.registry.all();
        self.trouble
            .retain(|id, _| remotes.iter().any(|remote| remote.id == *id));
        let now = jiff::Timestamp::now().as_second();
        for remote in &remotes {
            let Some(access) = remote.access() else { continue };
            let Some(token) = access.token.as_ref().filter(|token| token.is_due(now)) else {
                continue;
            };
            // Liqo renews its own.
            if remote.fabric.is_some() {
                continue;
            }
            let renewed = self.renew(remote, token, &access.seed).await;
            let trouble = self.trouble.entry(remote.id.clone()).or_default();
            match renewed {
                Ok(()) => trouble.is_over(),
                Err(error) => {
                    if trouble.is_news(error.to_string()) {
                        let until = token.expires.and_then(|at| jiff::Timestamp::from_second(at).ok());
                        tracing::warn!(
                            cluster = %remote.id, %error, until = ?until,
                            "the token of a remote cluster cannot be renewed; `liqo-csi connect` gives it another one"
                        );
                    }
                }
            }
        }
        let ids: Vec<ClusterId> = remotes.iter().map(|remote| remote.id.clone()).collect();
        if self.looked.as_ref() != Some(&ids) {
            self.forget().await?;
            self.looked = Some(ids);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        access::{ACCOUNT, SESSION, fingerprint},
        cluster::{
            Rights,
            testing::{Act, FakeApi, Fault},
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

    /// A cluster that is reached by a token of this age.
    async fn world(age: i64) -> World {
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
            "current-context": "c",
        });
        let link = Link::Up(Arc::new(Connected {
            cluster: there.remote_cluster("milan", Rights::ALL).await,
            version: "v1.36.3".into(),
            kubeconfig: Some(kubeconfig.to_string().into()),
        }));
        let issued = jiff::Timestamp::now().as_second() - age;
        let registry = Registry::fixed([(Declared::plain("milan"), link)]).with_access(&AccessFacts {
            seed: fingerprint(SEED),
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
    }

    #[tokio::test]
    async fn a_token_is_renewed_after_a_third_of_its_life() {
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
    async fn one_that_cannot_be_renewed_is_tried_again_and_keeps_what_is_there() {
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

    #[tokio::test]
    async fn what_is_kept_of_clusters_that_are_gone_is_taken_out() {
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
}
