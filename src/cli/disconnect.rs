//! `liqo-csi disconnect`: takes back at both ends what `liqo-csi connect` made, unless data of this cluster
//! would be out of reach.

mod look;
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
    connect::{DEFAULT_NAMESPACE, Home, Remote, RemoteArgs, namespace_in, secret_of},
    process::duration,
};
use crate::{
    access::{self, ACCOUNT, Identity, MANAGED_BY_CONNECT, NamespaceName},
    api::remote_cluster::{REACHABLE, READY, RemoteCluster},
    cluster::Precondition,
    volume::{ClusterId, mark},
};

const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Said with a list of what holds it.
const REFUSED: u8 = 2;
/// By which the controller holds a `RemoteCluster` while something is in its cluster.
const FINALIZER: &str = "storage.liqo.io/volumes";

/// Takes a cluster off: the `RemoteCluster` and its Secret here, and the identity there with its rights and
/// tokens. Refused, with exit code 2, while volumes, snapshots or offloaded namespaces are there, also such
/// that nobody uses any more. Run again, it goes on where it ended.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Name of the cluster.
    name: ClusterId,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Only take it off here, because the cluster there does not exist any more. Its volumes are lost with
    /// it.
    #[arg(long, requires = "the_cluster_is_gone", conflicts_with_all = ["remote_kubeconfig", "remote_context"])]
    local_only: bool,
    /// With --local-only: your word that the cluster is gone, and will not come back.
    #[arg(long, requires = "local_only")]
    the_cluster_is_gone: bool,
    /// Namespace of the identity there [default: that of the kubeconfig which the driver has, or
    /// liqo-csi-remote].
    #[arg(long)]
    remote_namespace: Option<NamespaceName>,
    /// How long to wait for the controller to let it go.
    #[arg(long, default_value = "120s", value_parser = duration)]
    timeout: Duration,
    /// Namespace of the driver here [default: where its controller is].
    #[arg(long)]
    driver_namespace: Option<String>,
    /// Id of this cluster [default: what the controller was told, or the uid of the namespace kube-system].
    #[arg(long)]
    cluster_id: Option<ClusterId>,
    #[command(flatten)]
    home: ClusterArgs,
}

/// What is asked for.
struct Wish {
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
            Some(args.remote.visit(args.remote.read()?, &args.name).await?)
        };
        let wish = Wish {
            name: args.name,
            remote_namespace: args.remote_namespace,
            timeout: args.timeout,
        };
        disconnect(&home, remote.as_ref(), &wish).await
    })
}

/// Takes it off. Without a remote cluster, that one is gone: its user says so.
async fn disconnect(home: &Home, remote: Option<&Remote>, wish: &Wish) -> Outcome<ExitCode> {
    let name = &wish.name;
    let all = home.cluster.all::<RemoteCluster>();
    let object = all.get(name.as_str()).await?;
    if let Some(from) = object.as_ref().and_then(|it| it.spec.discovered_from.as_ref()) {
        return Err(format!("{name} is a cluster of {:?}: take it off there", from.fabric).into());
    }
    let reference = secret_of(name, object.as_ref());
    let secret = home
        .cluster
        .within::<Secret>(&home.namespace)
        .get(&reference.name)
        .await?;
    let namespace = match (
        &wish.remote_namespace,
        secret.as_ref().and_then(|it| namespace_in(it, &reference.key)),
    ) {
        (Some(asked), _) => asked.clone(),
        (None, Some(known)) => known,
        (None, None) => DEFAULT_NAMESPACE.parse()?,
    };
    let look::AtHome {
        mut holding,
        elsewhere,
    } = look::at_home(home, name).await;
    if let Some(remote) = remote {
        remote.is_the_one(name, secret.as_ref(), object.as_ref()).await?;
        holding.extend(look::there(&remote.cluster, &home.id, name, &elsewhere).await);
    } else if object.as_ref().is_some_and(answers) {
        return Err(format!(
            "the pods of the controller reach {name}: it is not gone. Leave --local-only out"
        )
        .into());
    }
    if let Err(held) = access::may_disconnect(name.as_str(), holding) {
        if remote.is_some() {
            eprintln!("{name} is not disconnected. It holds:");
            for one in held {
                eprintln!("  - {}\n    → {}", one.what, one.way_out);
            }
            return Ok(ExitCode::from(REFUSED));
        }
        eprintln!("Lost with {name}, as you say that it is gone:");
        for one in held {
            eprintln!("  - {}", one.what);
        }
    }
    let until = Instant::now() + wish.timeout;
    if let Some(object) = object
        && !let_go(home, &object, remote.is_none(), until).await?
    {
        return Ok(ExitCode::FAILURE);
    }
    println!("Here: {name} is not declared any more.");
    match remote {
        Some(remote) => clear(home, remote, &namespace).await?,
        None => println!(
            "Should the cluster come back: its volumes are found again if it is connected under this very name, {name}; and the \
             identity {namespace}/{ACCOUNT} there is valid until its tokens expire."
        ),
    }
    // The last: it says where the identity is, for a run that has to go on.
    if let Some(secret) = secret {
        forget(home, &secret).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes the identity away there, the tokens first.
async fn clear(home: &Home, remote: &Remote, namespace: &NamespaceName) -> Outcome {
    remote.is_of(namespace, &home.id).await?;
    let identity = Identity {
        listed: remote.listed(namespace).await?,
        namespace: namespace.clone(),
        home: home.id.clone(),
    };
    let mut objects = access::every(&identity);
    // From this moment on no token of it is valid, whoever has one.
    objects.sort_by_key(|object| object.name != access::SESSION || object.kind != "Secret");
    let tidy = remote.take(&objects).await?;
    for left in &tidy.left {
        eprintln!("Left there: {left}");
    }
    match tidy.deleted {
        0 => println!("There: nothing of {namespace}/{ACCOUNT} is left that this command has made."),
        many => {
            println!("There: {namespace}/{ACCOUNT}, its rights and its tokens are gone ({many} objects).");
        }
    }
    Ok(())
}

/// Whether the controller says that the cluster answers.
fn answers(object: &RemoteCluster) -> bool {
    let conditions = object.status.iter().flat_map(|it| &it.conditions);
    conditions
        .into_iter()
        .any(|it| it.type_ == REACHABLE && it.status == "True")
}

/// Deletes the declaration, and waits until the controller has let it go.
async fn let_go(home: &Home, object: &RemoteCluster, is_gone: bool, until: Instant) -> Outcome<bool> {
    let all = home.cluster.all::<RemoteCluster>();
    let name = object.name_any();
    let exactly = Precondition {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        resource_version: None,
    };
    all.delete(&name, exactly).await?;
    let mut shown = String::new();
    loop {
        let now = all.get(&name).await?;
        let Some(now) = now.filter(|it| it.metadata.uid == object.metadata.uid) else {
            return Ok(true);
        };
        if is_gone && now.finalizers().iter().any(|it| it == FINALIZER) {
            // The controller would hold it for what nobody can reach any more.
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
        let words = ready.map_or_else(String::new, |it| it.message.clone());
        if words != shown && !words.is_empty() {
            println!("  {words}");
            shown = words;
        }
        if Instant::now() >= until {
            eprintln!(
                "{name}: its RemoteCluster is being deleted, and is held by {}. It goes when those are off: `liqo-csi doctor` \
                 says what they wait for. Run this again then{}.",
                now.finalizers().join(", "),
                if is_gone {
                    ""
                } else {
                    "; until then the driver has its rights there, to end what is there"
                },
            );
            return Ok(false);
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Deletes the Secret with the kubeconfig, if `connect` has made it.
async fn forget(home: &Home, secret: &Secret) -> Outcome {
    let name = secret.name_any();
    if secret.labels().get(mark::MANAGED_BY).map(String::as_str) != Some(MANAGED_BY_CONNECT) {
        eprintln!(
            "Left here: the Secret {}/{name}, which liqo-csi connect has not made.",
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
