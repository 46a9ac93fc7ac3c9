//! What the command prints about its results and the next steps.

use k8s_openapi::api::apps::v1::Deployment;

use super::{Home, Outcome, Request};
use crate::{
    access::{ACCOUNT, Identity, Level, NamespaceName, TokenFacts},
    api::remote_cluster::RemoteCluster,
    controllers,
};

const FABRIC: &str = "app.kubernetes.io/name=liqo-csi,app.kubernetes.io/component=fabric";

/// The objects that exist now.
pub(super) fn made(
    secret: &str,
    server: &str,
    request: &Request,
    level: Level,
    identity: &Identity,
    token: &str,
) {
    let name = &request.name;
    let account = format!("{}/{ACCOUNT}", identity.namespace);
    if request.token_only {
        println!("In {name}: the rights of {account} stay as they are.");
    } else {
        println!("In {name}: {account} has the rights of the level {level}.");
    }
    let expires = TokenFacts::read(token).and_then(|it| it.expires);
    let until = expires.and_then(|it| jiff::Timestamp::from_second(it).ok());
    let until = until.map_or_else(String::new, |it| {
        format!(", with a token that is valid until {}", it.strftime("%F %TZ"))
    });
    println!("Here: Secret {secret} for {server}{until}, and RemoteCluster {name}.");
}

/// What the identity may do, and which rights the controller lacks.
pub(super) fn rights(level: Level, identity: &Identity, cluster: &RemoteCluster) {
    let status = cluster.status.clone().unwrap_or_default();
    println!(
        "Reached: Kubernetes {}.",
        status.server_version.unwrap_or_default()
    );
    println!("There the driver may:");
    for one in level.may() {
        println!("  - {one}");
    }
    if !identity.listed.is_empty() {
        let listed: Vec<&str> = identity.listed.iter().map(NamespaceName::as_str).collect();
        println!("    (listed: {})", listed.join(", "));
    }
    println!("It may not:");
    for one in level.may_not() {
        println!("  - {one}");
    }
    for limit in &status.limits {
        println!("  └ {limit}");
    }
    println!("docs/remote/security.md lists each right. --level changes them.");
}

/// The other `RemoteCluster`s whose tokens were revoked, too.
pub(super) fn without_token(others: Outcome<Vec<String>>) {
    let others = others.unwrap_or_else(|error| {
        eprintln!("It is not known whether other RemoteClusters use this identity too: {error}");
        Vec::new()
    });
    for other in others {
        eprintln!(
            "The RemoteCluster {other} uses this identity too, as far as is known: `liqo-csi connect {other} --remote-context \
             CONTEXT` gives it another token."
        );
    }
}

/// The next command. The clusters are connected already, so nothing here is a failure.
pub(super) async fn next(home: &Home, cluster: &RemoteCluster, request: &Request) {
    if cluster.spec.fabric.is_none() {
        println!(
            "Next: the virtual nodes of {0}. kubectl get nodes -l topology.storage.liqo.io/cluster={0} shows them.",
            request.name
        );
        return;
    }
    let deployments = home.cluster.within::<Deployment>(&home.namespace);
    match deployments.list(Some(FABRIC)).await {
        Ok(fabrics) if fabrics.is_empty() => {
            println!(
                "Next: the fabric, which is not installed. With the release and the chart of the driver:\n  helm upgrade RELEASE CHART -n {} \
                 --reset-then-reuse-values --set fabric.enabled=true --wait",
                home.namespace
            );
            return;
        }
        Ok(_) => {}
        Err(error) => eprintln!("It is not known whether the fabric is installed: {error}"),
    }
    match controllers::approve_serving(&home.cluster, &home.namespace).await {
        Ok(decided) => {
            for name in &decided.approved {
                println!(
                    "Approved: the serving certificate of the fabric, CertificateSigningRequest {name}."
                );
            }
            for why in &decided.refused {
                eprintln!("Not approved: the CertificateSigningRequest {why}");
            }
        }
        // Only logs, exec and port-forward of pods there need it.
        Err(error) => eprintln!(
            "The serving certificate of the fabric, for logs and exec of pods there, is not approved: {error}. `liqo-csi doctor` \
             prints the command."
        ),
    }
    println!(
        "Next: extend a namespace into it. --create-namespace creates it if it does not exist.\n  liqo-csi offload namespace \
         NAMESPACE --create-namespace"
    );
}
