//! The lifetime of tokens, their sessions, and `--token-only`.

use super::*;

#[test]
fn the_lifetime_of_the_token_before_is_kept_as_far_as_it_is_allowed() {
    let day = Duration::from_hours(24);
    let lifetime = |before| request().lifetime(day.as_secs(), before).unwrap();
    assert_eq!(lifetime(None), day);
    assert_eq!(lifetime(Some(1)), SHORTEST_TOKEN);
    assert_eq!(lifetime(Some(u64::MAX)), day);
}

#[tokio::test]
async fn the_second_run_keeps_the_lifetime() {
    let two = Two::new().await;
    let short = Duration::from_hours(10);
    let first = Request {
        lifetime: Some(short),
        ..request()
    };
    two.connect(&first).await.unwrap();
    two.connect(&request()).await.unwrap();
    let token = TokenFacts::read(&two.token()).unwrap();
    assert_eq!(token.lifetime(), short.as_secs().try_into().ok());
}

/// What happened to the Secret of the session after these requests, and when the token was requested.
fn of_session(two: &Two, after: usize) -> Vec<String> {
    let mut requests = two.remote.requests().split_off(after);
    let own = |it: &String| it.contains("/secrets") && !it.ends_with("-token") || it.ends_with("/token");
    requests.retain(own);
    requests.iter().map(|it| it.replace(NAMESPACE, "")).collect()
}

#[tokio::test]
async fn a_session_begins_when_no_token_of_the_one_before_is_remembered() {
    let two = Two::new().await;
    let session = format!("{NAMESPACE}/secrets/{SESSION}");
    two.connect(&request()).await.unwrap();
    let (token, before) = (two.token(), two.remote.object(&session).unwrap());
    two.connect(&request()).await.unwrap();
    let after = |it: &Value| two.remote.object(&session).unwrap()["metadata"]["uid"] != it["metadata"]["uid"];
    assert!(!after(&before), "without a reason no token is revoked");

    let revoke = Request {
        revoke_tokens: true,
        ..request()
    };
    for (is_deleted, request, begins) in [
        (false, &revoke, "POST /secrets"),
        (true, &request(), "PATCH /secrets/liqo-csi-session"),
    ] {
        let before = two.remote.object(&session).unwrap();
        if is_deleted {
            two.remote.remove(&session);
        }
        let earlier = two.remote.requests().len();
        assert_eq!(two.connect(request).await.unwrap(), ExitCode::SUCCESS);
        assert!(after(&before));
        assert_ne!(two.token(), token);
        let requests = of_session(&two, earlier);
        let looks = requests.iter().filter(|it| it.starts_with("GET ")).count();
        assert!(looks > 1, "it was not awaited: {requests:?}");
        let at = |what: &str| requests.iter().position(|it| it == what);
        assert_eq!(at("DELETE /secrets/liqo-csi-session"), (!is_deleted).then_some(1));
        assert!(at(begins) >= Some(looks), "{requests:?}");
        assert!(
            at("POST /serviceaccounts/liqo-csi-remote/token") > at(begins),
            "{requests:?}"
        );
    }
}

#[tokio::test]
async fn tokens_of_the_account_that_never_expire_are_revoked_too() {
    const ACCOUNTS: [&str; 2] = ["liqo-csi-remote", "another"];
    let two = Two::new().await;
    two.connect(&request()).await.unwrap();
    let path = |name: &str| format!("{NAMESPACE}/secrets/{name}");
    for account in ACCOUNTS {
        let secret = json!({
            "type": "kubernetes.io/service-account-token",
            "metadata": {"annotations": {"kubernetes.io/service-account.name": account}},
        });
        two.remote.put(&path(&format!("{account}-token")), secret);
    }
    let left = |two: &Two| ACCOUNTS.map(|it| two.remote.object(&path(&format!("{it}-token"))).is_some());
    two.connect(&request()).await.unwrap();
    assert_eq!(left(&two), [true, true]);
    let revoke = Request {
        revoke_tokens: true,
        ..request()
    };
    two.connect(&revoke).await.unwrap();
    assert_eq!(left(&two), [false, true]);
}

/// What the command then refuses would leave the driver without a token.
#[tokio::test]
async fn nothing_is_revoked_if_no_token_could_be_given_afterwards() {
    const PERMANENT: &str = "liqo-csi-remote-token";
    let two = Two::new().await;
    two.connect(&leveled(Level::Full)).await.unwrap();
    let path = |name: &str| format!("{NAMESPACE}/secrets/{name}");
    two.remote.put(
        &path(PERMANENT),
        json!({
            "type": "kubernetes.io/service-account-token",
            "metadata": {"annotations": {"kubernetes.io/service-account.name": "liqo-csi-remote"}},
        }),
    );
    let session = || {
        two.remote
            .object(&path(SESSION))
            .map(|it| it["metadata"]["uid"].clone())
    };
    let before = session();
    let listed = Request {
        listed: ["missing".parse().unwrap()].into(),
        revoke_tokens: true,
        ..leveled(Level::Namespaced)
    };
    let why = said(two.connect(&listed).await);
    assert!(why.contains("no namespace missing"), "{why}");
    assert_eq!(session(), before);

    two.remote.remove(&path(SESSION));
    let only = Request {
        token_only: true,
        revoke_tokens: true,
        level: None,
        ..leveled(Level::Full)
    };
    let why = said(two.connect(&only).await);
    assert!(why.contains("remoteAccess.token=session"), "{why}");
    assert!(
        two.remote.object(&path(PERMANENT)).is_some(),
        "the token that the driver uses is revoked"
    );
}

#[tokio::test]
async fn a_failure_after_the_revocation_says_how_the_driver_gets_a_token() {
    let two = Two::new().await;
    two.connect(&request()).await.unwrap();
    let token = two.token();
    let mut revoke = Request {
        revoke_tokens: true,
        ..request()
    };
    two.home.fault(Fault::new("PATCH", SECRET, Act::Refuse(403)));
    let why = said(two.connect(&revoke).await);
    assert!(why.contains("has none"), "{why}");
    two.home.heal();
    two.remote.fault(Fault::new(
        "PATCH",
        "/validatingadmissionpolicies/",
        Act::Refuse(403),
    ));
    let why = said(two.connect(&revoke).await);
    assert!(why.contains("--token-only"), "{why}");
    assert_eq!(two.token(), token);
    (revoke.token_only, revoke.revoke_tokens) = (true, false);
    two.connect(&revoke).await.unwrap();
    assert_ne!(two.token(), token);
}

#[tokio::test]
async fn a_session_recreated_by_others_is_not_used() {
    let two = Two::new().await;
    let session = format!("{NAMESPACE}/secrets/{SESSION}");
    two.connect(&request()).await.unwrap();
    let revoke = Request {
        revoke_tokens: true,
        ..request()
    };
    let (token, again) = (two.token(), session.clone());
    two.remote.before("GET", &session, |_| {});
    two.remote
        .before("GET", &session, move |store| drop(store.put(&again, json!({}))));
    let why = said(two.connect(&revoke).await);
    assert!(why.contains("GitOps"), "{why}");
    assert_eq!(two.token(), token);

    two.remote.change(&session, |it| {
        it["metadata"]["finalizers"] = json!(["example.test/held"]);
    });
    let why = said(two.connect(&revoke).await);
    assert!(why.contains("example.test/held"), "{why}");
}

#[tokio::test]
async fn only_the_token_is_created_if_helm_manages_the_identity() {
    let two = Two::new().await;
    let helm = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}});
    let only = Request {
        token_only: true,
        ..request()
    };
    let why = said(two.connect(&only).await);
    assert!(why.contains("--token-only"), "{why}");
    two.remote.put(ACCOUNT, helm.clone());
    let why = said(two.connect(&only).await);
    assert!(why.contains("remoteAccess.token=session"), "{why}");
    two.remote
        .put(&format!("{NAMESPACE}/secrets/liqo-csi-session"), helm);
    for revoke_tokens in [false, true] {
        let only = Request {
            revoke_tokens,
            ..only.clone()
        };
        assert_eq!(two.connect(&only).await.unwrap(), ExitCode::SUCCESS);
    }
    assert_eq!(two.identity(), Vec::<String>::new());

    // A token is useless if the policy of the release does not let the driver renew it.
    two.remote.change(ACCOUNT, |it| {
        it["metadata"]["annotations"] = json!({access::TOKEN_SECONDS: "86400", access::LEVEL: "fabric"});
    });
    two.connect(&only).await.unwrap();
    let lifetime = || TokenFacts::read(&two.token()).unwrap().lifetime();
    assert_eq!(lifetime(), Some(86400));
    let longer = Request {
        lifetime: Some(Duration::from_hours(48)),
        ..only
    };
    let why = said(two.connect(&longer).await);
    assert!(
        why.contains("86400s") && why.contains("remoteAccess.tokenSeconds"),
        "{why}"
    );
    two.connect(&Request {
        token_only: false,
        ..longer.clone()
    })
    .await
    .unwrap_err();
    assert_eq!(lifetime(), Some(86400));
}

#[tokio::test]
async fn with_token_only_namespaces_and_level_are_left_to_their_manager() {
    let two = Two::new().await;
    two.remote.put(
        ACCOUNT,
        json!({"metadata": {
            "labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": {access::LEVEL: "namespaced"},
        }}),
    );
    two.remote
        .put(&format!("{NAMESPACE}/secrets/liqo-csi-session"), json!({}));
    let only = Request {
        token_only: true,
        level: None,
        ..leveled(Level::Namespaced)
    };
    assert_eq!(two.connect(&only).await.unwrap(), ExitCode::SUCCESS);
    let why = said(
        two.connect(&Request {
            fabric: true,
            nodes: BTreeMap::new(),
            name: "rome".parse().unwrap(),
            ..only
        })
        .await,
    );
    assert!(why.contains("remoteAccess.level=fabric"), "{why}");
}
