//! `liqo-csi disconnect`: deletes at both ends what `liqo-csi connect` created, unless this cluster still has
//! data there.

mod holdings;
#[cfg(test)]
mod tests;

use std::{process::ExitCode, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    Outcome,
    common::{ClusterArgs, block_on},
    connect::{DEFAULT_NAMESPACE, Home, Remote, RemoteArgs, namespace_in, other_uid, secret_of},
    process::duration,
};
use crate::{
    access::{self, ACCOUNT, Identity, MANAGED_BY_CONNECT, NamespaceName},
    api::remote_cluster::{REACHABLE, READY, RemoteCluster},
    cluster::Precondition,
    volume::{ClusterId, mark},
};

const POLL: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 500 });
/// Exit code if something of this cluster is in the other one.
const REFUSED: u8 = 2;
/// The controller's, on a `RemoteCluster` while volumes or snapshots are in its cluster.
const FINALIZER: &str = "storage.liqo.io/volumes";

const EXAMPLES: &str = "\
Examples:
  liqo-csi disconnect milan --remote-context milan
  liqo-csi disconnect milan --local-only --the-cluster-is-gone";

/// Deletes the `RemoteCluster` and its Secret here, and the identity there with its rights and
/// tokens. Refused, with exit code 2, while there are volumes, snapshots or offloaded namespaces
/// there, even if nothing uses them any more. A repeated run continues.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Name of the cluster.
    name: ClusterId,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Delete only the objects here, because the other cluster does not exist any more. Its volumes are lost.
    #[arg(long, requires = "the_cluster_is_gone", conflicts_with_all = ["remote_kubeconfig", "remote_context"])]
    local_only: bool,
    /// With --local-only: you declare that the cluster is gone and will not come back.
    #[arg(long, requires = "local_only")]
    the_cluster_is_gone: bool,
    /// Namespace of the identity there [default: that of the kubeconfig which the driver has, or
    /// liqo-csi-remote].
    #[arg(long)]
    remote_namespace: Option<NamespaceName>,
    /// How long to wait until the controller removes its finalizer.
    #[arg(long, default_value = "120s", value_parser = duration)]
    timeout: Duration,
    /// Namespace of the driver here [default: where its controller is].
    #[arg(long)]
    driver_namespace: Option<String>,
    /// Id of this cluster [default: that of the controller, or the uid of the namespace kube-system].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
    #[command(flatten)]
    home: ClusterArgs,
}

/// The user's request.
struct Request {
    name: ClusterId,
    remote_namespace: Option<NamespaceName>,
    timeout: Duration,
}

pub(super) fn run(args: Args) -> Outcome<ExitCode> {
    block_on(async move {
        let home = Home::find(
            &args.home,
            args.driver_namespace.as_deref(),
            args.cluster_id.clone(),
        )
        .await?;
        let remote = if args.local_only {
            None
        } else {
            Some(args.remote.client(args.remote.read()?, &args.name).await?)
        };
        let request = Request {
            name: args.name,
            remote_namespace: args.remote_namespace,
            timeout: args.timeout,
        };
        disconnect(&home, remote.as_ref(), &request).await
    })
}

/// Disconnects the cluster; without `remote`, one that the user declares to be gone.
async fn disconnect(home: &Home, remote: Option<&Remote>, request: &Request) -> Outcome<ExitCode> {
    let name = &request.name;
    let all = home.cluster.all::<RemoteCluster>();
    let object = all.get(name.as_str()).await?;
    if let Some(from) = object.as_ref().and_then(|it| it.spec.discovered_from.as_ref()) {
        return Err(format!("{:?} declares the cluster {name}: remove it there", from.fabric).into());
    }
    let reference = secret_of(name, object.as_ref());
    let secret = home
        .cluster
        .within::<Secret>(&home.namespace)
        .get(&reference.name)
        .await?;
    let namespace = match (
        &request.remote_namespace,
        secret.as_ref().and_then(|it| namespace_in(it, &reference.key)),
    ) {
        (Some(asked), _) => asked.clone(),
        (None, Some(known)) => known,
        (None, None) => DEFAULT_NAMESPACE.parse()?,
    };
    let holdings::AtHome {
        mut holding,
        elsewhere,
    } = Box::pin(holdings::at_home(home, name)).await;
    let mut users = Vec::new();
    if let Some(remote) = remote {
        let uid = remote.uid().await?;
        if let Some(known) = other_uid(secret.as_ref(), object.as_ref(), &uid) {
            return Err(format!(
                "the name {name} belongs to another cluster than the one of this kubeconfig: the uid of its namespace kube-system is \
                 {known}, here it is {uid}"
            )
            .into());
        }
        remote.is_of(&namespace, &home.id).await?;
        users = home.other_users(name, &namespace, &uid).await?;
        holding.extend(holdings::in_remote(&remote.cluster, &home.id, name, &elsewhere).await);
    } else if object.as_ref().is_some_and(answers) {
        return Err(format!(
            "the pods of the controller reach {name}, so it is not gone: run this without --local-only"
        )
        .into());
    }
    if let Err(held) = access::may_disconnect(name.as_str(), holding) {
        if remote.is_some() {
            eprintln!("{name} is not disconnected. It still has objects of this cluster:");
            for one in held {
                eprintln!("  - {}\n    → {}", one.what, one.way_out);
            }
            return Ok(ExitCode::from(REFUSED));
        }
        eprintln!("Lost with {name}, because you declare that it is gone:");
        for one in held {
            eprintln!("  - {}", one.what);
        }
    }
    let until = Instant::now() + request.timeout;
    if let Some(object) = object
        && !delete_declaration(home, &object, remote.is_none(), until).await?
    {
        return Ok(ExitCode::FAILURE);
    }
    println!("Here: there is no RemoteCluster {name} any more.");
    match remote {
        Some(_) if !users.is_empty() => println!(
            "There: {namespace}/{ACCOUNT} stays, because the RemoteCluster {} uses it too, as far as is known.",
            users.join(", ")
        ),
        Some(remote) => delete_identity(home, remote, &namespace).await?,
        None => println!(
            "Should the cluster come back: the driver finds its volumes again if it is connected under the same name, {name}; and \
             the identity {namespace}/{ACCOUNT} there is valid until its tokens expire."
        ),
    }
    // Last, because a repeated run reads the namespace of the identity in it.
    if let Some(secret) = secret {
        delete_secret(home, &secret).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Deletes the identity there, the tokens first.
async fn delete_identity(home: &Home, remote: &Remote, namespace: &NamespaceName) -> Outcome {
    let identity = Identity {
        listed: remote.listed(namespace).await?,
        namespace: namespace.clone(),
        home: home.id.clone(),
    };
    let mut objects = access::every(&identity);
    // Without this Secret no token of the identity is valid.
    objects.sort_by_key(|object| object.name != access::SESSION || object.kind != "Secret");
    let deletion = remote.delete(&objects).await?;
    for left in &deletion.left {
        eprintln!("Left there: {left}");
    }
    match deletion.deleted {
        0 => println!("There: nothing that liqo-csi connect created for {namespace}/{ACCOUNT}."),
        many => {
            println!("There: {namespace}/{ACCOUNT}, its rights and its tokens are deleted ({many} objects).");
        }
    }
    Ok(())
}

/// Whether the controller reports that the cluster answers.
fn answers(object: &RemoteCluster) -> bool {
    let conditions = object.status.iter().flat_map(|it| &it.conditions);
    conditions
        .into_iter()
        .any(|it| it.type_ == REACHABLE && it.status == "True")
}

/// Deletes the `RemoteCluster`, and waits until its finalizers are removed.
async fn delete_declaration(
    home: &Home,
    object: &RemoteCluster,
    is_gone: bool,
    until: Instant,
) -> Outcome<bool> {
    let all = home.cluster.all::<RemoteCluster>();
    let name = object.name_any();
    let exactly = Precondition {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        resource_version: None,
    };
    all.delete(&name, exactly).await?;
    let mut shown = String::new();
    loop {
        let Some(now) = all.get(&name).await? else {
            return Ok(true);
        };
        if now.metadata.uid != object.metadata.uid {
            return Err(format!(
                "the RemoteCluster {name} was deleted, and something created it again: stop that, such as GitOps, and run this again"
            )
            .into());
        }
        if is_gone && now.finalizers().iter().any(|it| it == FINALIZER) {
            // The controller would keep its finalizer for volumes that cannot be reached any more.
            let others: Vec<&String> = now.finalizers().iter().filter(|it| *it != FINALIZER).collect();
            let patch = json!({"metadata": {
                "uid": now.metadata.uid, "resourceVersion": now.metadata.resource_version, "finalizers": others,
            }});
            match all.merge(&name, &patch).await {
                Err(error) if !error.is_conflict() => return Err(error.into()),
                _ => continue,
            }
        }
        let status = now.status.clone().unwrap_or_default();
        let ready = status.conditions.iter().find(|it| it.type_ == READY);
        let message = ready.map_or_else(String::new, |it| it.message.clone());
        if message != shown && !message.is_empty() {
            println!("  {message}");
            shown = message;
        }
        if Instant::now() >= until {
            eprintln!(
                "{name}: its RemoteCluster is being deleted, and has the finalizers {}. `liqo-csi doctor` says what they wait for. \
                 Run this again when it is gone{}.",
                now.finalizers().join(", "),
                if is_gone {
                    ""
                } else {
                    "; until then the driver keeps its rights there, to delete its objects there"
                },
            );
            return Ok(false);
        }
        sleep(POLL).await;
    }
}

/// Deletes the Secret with the kubeconfig, if `connect` created it and no other `RemoteCluster` names it.
async fn delete_secret(home: &Home, secret: &Secret) -> Outcome {
    let name = secret.name_any();
    let clusters = home.cluster.all::<RemoteCluster>();
    let named_by = clusters.pick(None, None, |it| {
        let names_it = it.spec.kubeconfig_secret_ref.as_ref()?.name == name;
        names_it.then(|| it.name_any())
    });
    let named_by = named_by.await?;
    if !named_by.is_empty() {
        eprintln!(
            "Left here: the Secret {}/{name}, which the RemoteCluster {} names too.",
            home.namespace,
            named_by.join(", ")
        );
        return Ok(());
    }
    if mark::manager(secret.labels()) != Some(MANAGED_BY_CONNECT) {
        eprintln!(
            "Left here: the Secret {}/{name}, which liqo-csi connect did not create.",
            home.namespace
        );
        return Ok(());
    }
    let exactly = Precondition {
        uid: secret.metadata.uid.clone().unwrap_or_default(),
        resource_version: None,
    };
    Ok(home
        .cluster
        .within::<Secret>(&home.namespace)
        .delete(&name, exactly)
        .await?)
}
