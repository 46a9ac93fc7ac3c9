//! Keeps the registry equal to the declarations: creates a link for each cluster, replaces it when the
//! credentials change, and ends it when the cluster is not declared any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::select_all;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, ResourceExt, runtime::watcher};
use secrecy::ExposeSecret;
use tokio::{sync::watch, time};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    declaration::{ClusterDeclaration, Context, Credentials, SecretRef},
    installed::{AllDeclarations, Installed, NATIVE},
    link::{self, Access, Link},
    liqo,
    registry::{AccessFacts, Closed, Registry, Remote},
};
use crate::{
    access::{TokenFacts, fingerprint, renewed_key, seed_key},
    cluster::{
        Cluster, Lean, plain,
        view::{Slim, View},
    },
    fleet::kubeconfig::{Allowed, token, vet},
    observe::log::Ongoing,
    placement::{Adjustments, Declared},
    volume::ClusterId,
};

/// How soon a new fabric is noticed.
const FABRICS_INTERVAL: Duration = Duration::from_secs(20);
/// How long to wait for the credentials of a cluster.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(30);
/// Changes come in bursts.
const SETTLE: Duration = Duration::from_millis(100);

/// Settings for remote clusters.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the driver, with the Secrets of `RemoteCluster`s.
    pub namespace: String,
    /// Whether kubeconfigs that are not Liqo's may name a proxy.
    pub allow_proxy: bool,
    /// The namespaces that Liqo has for remote clusters: its objects in other namespaces are not trusted.
    pub liqo_tenants: BTreeSet<String>,
}

/// Keeps the registry up to date, forever.
pub async fn keep(registry: Registry, home: Cluster, settings: Settings) {
    let mut keeper = Keeper::new(registry, home, settings);
    loop {
        keeper.detect_fabrics().await;
        let next = time::Instant::now() + FABRICS_INTERVAL;
        while time::Instant::now() < next {
            let mut triggers = keeper.triggers();
            keeper.apply();
            // A Secret that is watched from now on has to be waited for, too.
            if keeper.triggers().len() == triggers.len() {
                wait(&mut triggers, next).await;
            }
        }
    }
}

async fn wait(triggers: &mut [watch::Receiver<u64>], until: time::Instant) {
    if triggers.is_empty() {
        time::sleep_until(until).await;
        return;
    }
    let changes = triggers.iter_mut().map(|trigger| Box::pin(trigger.changed()));
    let _enough = time::timeout_at(until, select_all(changes)).await;
    time::sleep(SETTLE).await;
}

struct Keeper {
    registry: Registry,
    home: Cluster,
    context: Context,
    installed: Installed,
    /// Why the installed fabrics cannot be read.
    undetected: Ongoing,
    secrets: Secrets,
    links: BTreeMap<ClusterId, OpenLink>,
    /// Since when the credentials of each cluster are missing.
    awaited: BTreeMap<ClusterId, time::Instant>,
    /// The last content of the registry, with the reason why a cluster is closed.
    declared: Vec<(Declared, Option<Closed>)>,
}

/// A link, and its inputs.
struct OpenLink {
    /// The uid of the `RemoteCluster` that declares the cluster, if one does: what was read for another one is not
    /// recorded in it.
    object_uid: Option<String>,
    access: Result<Access, NoAccess>,
    facts: Option<Arc<AccessFacts>>,
    link: watch::Receiver<Link>,
    _ends: Option<DropGuard>,
}

#[derive(Clone, PartialEq, Eq)]
enum NoAccess {
    /// Not all inputs were read yet.
    NotYet(String),
    /// The inputs cannot be used.
    Refused(String),
    /// Several declarations contradict each other.
    Disputed(String),
}

impl Keeper {
    fn new(registry: Registry, home: Cluster, settings: Settings) -> Self {
        Self {
            context: Context {
                client: home.client().clone(),
                remote_clusters: home.views().remote_clusters.clone(),
                offloadings: home.views().offloadings.clone(),
                namespace: settings.namespace,
                allowed: Allowed {
                    proxy: settings.allow_proxy,
                },
                liqo_tenants: settings.liqo_tenants,
            },
            registry,
            home,
            installed: Installed::default(),
            undetected: Ongoing::default(),
            secrets: Secrets::default(),
            links: BTreeMap::new(),
            awaited: BTreeMap::new(),
            declared: Vec::new(),
        }
    }

    async fn detect_fabrics(&mut self) {
        let groups = time::timeout(self.home.calls().timeout, served_groups(self.home.client())).await;
        let error = match groups {
            Ok(Ok(groups)) => {
                self.undetected.is_over();
                self.installed.follow(&groups, &self.context);
                return;
            }
            Ok(Err(error)) => plain(&error),
            Err(_) => "no answer in time".to_owned(),
        };
        // Fabrics that were installed before still are.
        self.installed.interrupted();
        if self.undetected.is_news(&error) {
            tracing::warn!(error, "cannot read which fabrics are installed");
        }
    }

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        let mut triggers = self.installed.triggers();
        triggers.extend(self.secrets.triggers());
        for trigger in &mut triggers {
            trigger.mark_unchanged();
        }
        triggers
    }

    fn apply(&mut self) {
        let Some(AllDeclarations {
            declared,
            mut adjustments,
            unread,
        }) = self.installed.all_declarations()
        else {
            return;
        };
        let news = self.registry.unread().as_ref() != Some(&unread);
        if news && !unread.is_empty() {
            let groups = format!("{unread:?}");
            tracing::warn!(
                groups,
                "the clusters of these fabrics are unknown, because their objects cannot be read"
            );
        }
        let declared = without_disputes(declared, self.home.id());
        self.secrets.follow(&self.context, &declared);
        let known: BTreeSet<&ClusterId> = declared.iter().map(|(one, _)| &one.declared.id).collect();
        let before = self.links.len();
        self.links.retain(|id, _| known.contains(id));
        self.awaited.retain(|id, _| known.contains(id));
        let mut changed = before != self.links.len();
        if changed {
            let home = self.home.id().as_str();
            let known: BTreeSet<&str> = known.iter().map(|id| id.as_str()).collect();
            self.home.calls().keep(|id| id == home || known.contains(id));
        }
        for (one, trouble) in &declared {
            let access = match trouble {
                Some(why) => Err(NoAccess::Disputed(why.clone())),
                None => self.access(one),
            };
            let (access, seed) = match access {
                Ok((access, seed)) => (Ok(access), Some(seed)),
                Err(why) => (Err(why), None),
            };
            let access = self.refuse_after_timeout(&one.declared.id, access);
            let id = &one.declared.id;
            let as_before = |held: &OpenLink| {
                held.access == access
                    && held.facts.as_ref().map(|it| &it.seed) == seed.as_ref()
                    && held.object_uid == one.declared.object_uid
            };
            if !self.links.get(id).is_some_and(as_before) {
                let held = self.link(&one.declared, access, seed);
                self.links.insert(id.clone(), held);
                changed = true;
            }
        }
        let is_unread = unread.contains(NATIVE);
        let declared: Vec<_> = declared
            .into_iter()
            .map(|(one, _)| with_settings(one, &mut adjustments, is_unread))
            .map(|(declared, closed)| (self.with_uids(declared), closed))
            .collect();
        if changed || news || declared != self.declared {
            let remotes = declared.iter().filter_map(|(declared, closed)| {
                let held = self.links.get(&declared.id)?;
                let remote = Remote {
                    declared: declared.clone(),
                    closed: *closed,
                    link: held.link.clone(),
                    access: held.facts.clone(),
                };
                Some((declared.id.clone(), Arc::new(remote)))
            });
            self.registry.replace(remotes.collect(), unread);
            self.declared = declared;
        }
    }

    /// A discovered cluster with the uids in its `RemoteCluster`; those of another one were read with its declaration.
    fn with_uids(&self, declared: Declared) -> Declared {
        let object = self.context.remote_clusters.get(declared.id.as_str());
        match object.filter(|_| declared.fabric.is_some()) {
            Some(object) => Declared {
                uid: object.cluster_uid().map(str::to_owned),
                object_uid: object.uid(),
                ..declared
            },
            None => declared,
        }
    }

    /// After a timeout, missing credentials are an error.
    fn refuse_after_timeout(
        &mut self,
        id: &ClusterId,
        access: Result<Access, NoAccess>,
    ) -> Result<Access, NoAccess> {
        let Err(NoAccess::NotYet(why)) = access else {
            self.awaited.remove(id);
            return access;
        };
        let since = self.awaited.entry(id.clone()).or_insert_with(time::Instant::now);
        Err(if since.elapsed() < CREDENTIALS_TIMEOUT {
            NoAccess::NotYet(why)
        } else {
            NoAccess::Refused(why)
        })
    }

    /// The access to a cluster, and the fingerprint of the kubeconfig that a user wrote for it.
    fn access(&self, declared: &ClusterDeclaration) -> Result<(Access, String), NoAccess> {
        let written = match &declared.credentials {
            Credentials::Inline(text) => Arc::clone(text),
            Credentials::Missing(why) => return Err(NoAccess::Refused(why.clone())),
            Credentials::Secret { secret, key, .. } => self.secrets.text(secret, key)?,
        };
        let seed = fingerprint(&written);
        let renewed = match &declared.credentials {
            Credentials::Secret {
                renewed: Some(renewed),
                ..
            } => self
                .secrets
                .renewed(renewed, declared.declared.id.as_str(), &seed)?,
            _ => None,
        };
        let access = Access {
            text: renewed.unwrap_or(written),
            allowed: declared.allowed,
        };
        Ok((access, seed))
    }

    fn link(&self, declared: &Declared, access: Result<Access, NoAccess>, seed: Option<String>) -> OpenLink {
        let id = &declared.id;
        let link = match &access {
            Ok(access) => {
                let stop = CancellationToken::new();
                let ends = stop.clone().drop_guard();
                let known = link::start(
                    self.registry.notifier(),
                    self.registry.twin_notifier(id),
                    id.clone(),
                    self.home.id().clone(),
                    access.clone(),
                    self.home.calls().clone(),
                    stop,
                );
                (known, Some(ends))
            }
            Err(NoAccess::NotYet(why)) => (
                watch::Sender::new(Link::Connecting(why.clone())).subscribe(),
                None,
            ),
            Err(NoAccess::Refused(why)) => {
                tracing::warn!(cluster = %id, why, "a remote cluster cannot be used");
                (watch::Sender::new(Link::Refused(why.clone())).subscribe(), None)
            }
            Err(NoAccess::Disputed(why)) => {
                tracing::warn!(cluster = %id, why, "a remote cluster cannot be used");
                (watch::Sender::new(Link::Disputed(why.clone())).subscribe(), None)
            }
        };
        let facts = access.as_ref().ok().zip(seed).map(|(access, seed)| {
            let vetted = vet(&access.text, access.allowed).ok();
            let token = vetted.as_ref().and_then(token);
            Arc::new(AccessFacts {
                seed,
                token: token.and_then(|token| TokenFacts::read(token.expose_secret())),
            })
        });
        OpenLink {
            object_uid: declared.object_uid.clone(),
            access,
            facts,
            link: link.0,
            _ends: link.1,
        }
    }
}

/// The API groups that are served. That of Liqo counts only if it has virtual nodes: the fabric of this
/// driver has a kind in this group as well.
async fn served_groups(client: &Client) -> Result<BTreeSet<String>, kube::Error> {
    let found = client.list_api_groups().await?;
    let mut groups: BTreeSet<String> = found.groups.into_iter().map(|group| group.name).collect();
    if groups.contains(liqo::GROUP) {
        match client.list_api_group_resources(liqo::GROUP_VERSION).await {
            Ok(kinds) if kinds.resources.iter().any(|it| it.name == liqo::VIRTUAL_NODES) => {}
            Ok(_) => drop(groups.remove(liqo::GROUP)),
            // An older or newer Liqo: its clusters are reported as unreadable.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(groups)
}

/// A cluster with the settings of its `RemoteCluster`, and the reason why it is closed. While the settings
/// cannot be read, nothing is done that they may forbid.
fn with_settings(
    one: ClusterDeclaration,
    adjustments: &mut BTreeMap<ClusterId, Adjustments>,
    is_unread: bool,
) -> (Declared, Option<Closed>) {
    if one.declared.fabric.is_none() {
        return (one.declared, one.leaving.then_some(Closed::Leaving));
    }
    if is_unread {
        let unprotected = Declared {
            protect: false,
            ..one.declared
        };
        return (unprotected, Some(Closed::Unread));
    }
    match adjustments.remove(&one.declared.id) {
        Some(adjustments) => (one.declared.adjusted(adjustments), None),
        None => (one.declared, None),
    }
}

/// The declarations, each with the reason why it must not be used.
fn without_disputes(
    declared: Vec<ClusterDeclaration>,
    home: &ClusterId,
) -> Vec<(ClusterDeclaration, Option<String>)> {
    let mut by_id: BTreeMap<ClusterId, Vec<ClusterDeclaration>> = BTreeMap::new();
    for one in declared {
        by_id.entry(one.declared.id.clone()).or_default().push(one);
    }
    let judged = by_id.into_iter().filter_map(|(id, mut all)| {
        if all.iter().any(|one| one.believed) {
            all.retain(|one| one.believed);
        } else {
            all.truncate(1);
        }
        let names: Vec<String> = all.iter().map(|one| one.declared.object.clone()).collect();
        all.sort_by_key(|one| one.declared.fabric.map(|fabric| fabric.name));
        let many = all.len() > 1;
        let first = all.into_iter().next()?;
        let trouble = if id == *home {
            Some(format!(
                "{id} is the id of the home cluster: give it another name"
            ))
        } else {
            many.then(|| format!("it is declared more than once ({}): keep one", names.join(", ")))
        };
        Some((first, trouble))
    });
    judged.collect()
}

/// The required Secrets, each with its own watch.
#[derive(Default)]
struct Secrets {
    watched: BTreeMap<SecretRef, (View<SecretContent>, DropGuard)>,
}

/// The content of a Secret. It has no `Debug`, so that it is never logged.
#[derive(PartialEq)]
struct SecretContent {
    name: String,
    data: BTreeMap<String, Arc<[u8]>>,
}

impl Slim for SecretContent {
    fn topic(&self) -> &str {
        &self.name
    }
}

impl Secrets {
    fn follow(&mut self, context: &Context, declared: &[(ClusterDeclaration, Option<String>)]) {
        let needed: BTreeSet<&SecretRef> = declared
            .iter()
            .filter_map(|(one, _)| match &one.credentials {
                Credentials::Secret { secret, renewed, .. } => Some([Some(secret), renewed.as_ref()]),
                Credentials::Inline(_) | Credentials::Missing(_) => None,
            })
            .flatten()
            .flatten()
            .collect();
        self.watched.retain(|secret, _| needed.contains(secret));
        for secret in needed {
            if !self.watched.contains_key(secret) {
                let stop = CancellationToken::new();
                let api: Api<Lean<Secret>> = Api::namespaced(context.client.clone(), &secret.namespace);
                let only = watcher::Config::default().fields(&format!("metadata.name={}", secret.name));
                let view = View::start(api, only, |it| Some(text(it)), &stop);
                self.watched.insert(secret.clone(), (view, stop.drop_guard()));
            }
        }
    }

    fn triggers(&self) -> impl Iterator<Item = watch::Receiver<u64>> {
        self.watched.values().map(|(view, _)| view.version())
    }

    /// The kubeconfig that the controller renewed from the one with the fingerprint `seed`, if any.
    fn renewed(&self, secret: &SecretRef, cluster: &str, seed: &str) -> Result<Option<Arc<[u8]>>, NoAccess> {
        let view = self.watched.get(secret).map(|(view, _)| view);
        let Some(view) = view.filter(|view| *view.version().borrow() > 0) else {
            return Err(NoAccess::NotYet(format!(
                "the {secret} with renewed tokens was not read yet"
            )));
        };
        let found = view.of_topic(&secret.name);
        let data = found.first().map(|found| &found.data);
        let value = |key: String| data.and_then(|data| data.get(&key)).cloned();
        let is_of_it = value(seed_key(cluster)).is_some_and(|it| *it == *seed.as_bytes());
        Ok(value(renewed_key(cluster)).filter(|_| is_of_it))
    }

    fn text(&self, secret: &SecretRef, key: &str) -> Result<Arc<[u8]>, NoAccess> {
        let view = self.watched.get(secret).map(|(view, _)| view);
        let Some(view) = view.filter(|view| *view.version().borrow() > 0) else {
            return Err(NoAccess::NotYet(format!(
                "the {secret} with its kubeconfig was not read yet; if this persists, check whether this driver may watch it"
            )));
        };
        let found = view.of_topic(&secret.name);
        let Some(found) = found.first() else {
            let why = format!("the {secret} with its kubeconfig does not exist");
            return Err(NoAccess::Refused(why));
        };
        let text = found.data.get(key).cloned();
        text.ok_or_else(|| NoAccess::Refused(format!("the {secret} has no key {key:?}")))
    }
}

fn text(secret: Secret) -> SecretContent {
    let data = secret.data.unwrap_or_default();
    SecretContent {
        name: secret.metadata.name.unwrap_or_default(),
        data: data
            .into_iter()
            .map(|(key, ByteString(value))| (key, Arc::from(value)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cluster::{
            Calls, Metrics,
            testing::{Act, FakeApi, Fault, Warnings},
        },
        fleet::liqo::LIQO,
        placement::{ClassMap, Fabric},
        volume::BindingPolicy,
    };

    fn found(fabric: Option<&'static Fabric>) -> ClusterDeclaration {
        ClusterDeclaration {
            declared: Declared {
                fabric,
                ..Declared::plain("milan")
            },
            leaving: false,
            credentials: Credentials::Missing("there are none".into()),
            allowed: Allowed::default(),
            believed: true,
        }
    }

    fn said() -> BTreeMap<ClusterId, Adjustments> {
        let classes = ClassMap {
            default: Some("gold".into()),
            ..ClassMap::default()
        };
        let adjustments = Adjustments {
            classes,
            policy: BindingPolicy::WaitForBound,
            protect: true,
        };
        [("milan".parse().unwrap(), adjustments)].into()
    }

    #[test]
    fn a_remote_cluster_object_configures_a_discovered_cluster() {
        let (declared, closed) = with_settings(found(Some(&LIQO)), &mut said(), false);
        assert_eq!((declared.classes.real(None), closed), (Some("gold"), None));
        assert_eq!(declared.policy, BindingPolicy::WaitForBound);
        let (declared, _) = with_settings(found(None), &mut said(), false);
        assert_eq!(declared.classes.real(None), None, "it has its own declaration");
    }

    #[test]
    fn a_discovered_cluster_is_not_used_while_its_settings_are_unreadable() {
        let (declared, closed) = with_settings(found(Some(&LIQO)), &mut BTreeMap::new(), true);
        assert_eq!((declared.protect, closed), (false, Some(Closed::Unread)));
        let (declared, closed) = with_settings(found(None), &mut BTreeMap::new(), true);
        assert_eq!((declared.protect, closed), (true, None));
    }

    fn kubeconfig(account: &str, expires: i64) -> String {
        let token = liqo_csi_model::access::token_saying(&json!({
            "sub": format!("system:serviceaccount:access:{account}"), "iat": 0, "exp": expires,
        }));
        json!({
            "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "current-context": "c",
        })
        .to_string()
    }

    const OBJECT: &str = "/apis/storage.liqo.io/v1alpha1/remoteclusters/milan";
    const SEED: &str = "/api/v1/namespaces/ours/secrets/remote-milan";

    #[tokio::test]
    async fn a_failure_to_read_which_fabrics_are_installed_is_logged_once() {
        let api = FakeApi::start().await;
        let mut keeper = Keeper::new(Registry::default(), api.cluster_unwatched().await, settings());
        let log = Warnings::record();
        for logged in [1, 2] {
            api.fault(Fault::new("GET", "/apis", Act::Refuse(500)));
            keeper.detect_fabrics().await;
            keeper.detect_fabrics().await;
            assert_eq!(log.lines().len(), logged, "{:?}", log.lines());
            api.heal();
            api.put("/apis", json!({"groups": []}));
            keeper.detect_fabrics().await;
        }
    }

    /// What was read over the connection of a deleted `RemoteCluster` may be of another cluster.
    #[tokio::test]
    async fn a_remote_cluster_that_is_created_again_gets_another_connection() {
        let api = FakeApi::start().await;
        api.put("/apis", json!({"groups": [{"name": NATIVE, "versions": []}]}));
        api.put(
            OBJECT,
            json!({
                "metadata": {"uid": "first"},
                "spec": {"kubeconfigSecretRef": {"name": "remote-milan"}, "fabric": {}},
            }),
        );
        let text = kubeconfig("a", 1000);
        api.put(
            SEED,
            json!({"data": {"kubeconfig": ByteString(text.as_bytes().to_vec())}}),
        );
        let (registry, home) = (Registry::default(), api.cluster().await);
        let keeping = tokio::spawn(keep(registry.clone(), home, settings()));
        let declared_by = async |uid: &str| {
            let mut changes = registry.changes();
            let wait = async {
                loop {
                    let remote = registry.get(&"milan".parse().unwrap()).ok();
                    let is_it =
                        |it: &Arc<Remote>| it.object_uid.as_deref() == Some(uid) && it.access.is_some();
                    if let Some(remote) = remote.filter(is_it) {
                        return remote;
                    }
                    changes.changed().await.unwrap();
                }
            };
            time::timeout(Duration::from_secs(20), wait).await.unwrap()
        };
        let first = declared_by("first").await;
        api.change(OBJECT, |object| object["metadata"]["uid"] = json!("second"));
        let second = declared_by("second").await;
        assert!(!first.link.same_channel(&second.link));
        keeping.abort();
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_removed_cluster() {
        let api = FakeApi::start().await;
        api.put("/apis", json!({"groups": [{"name": NATIVE, "versions": []}]}));
        let spec = json!({"kubeconfigSecretRef": {"name": "remote-milan"}, "fabric": {}});
        api.put(OBJECT, json!({ "spec": spec }));
        let mut series = prometheus_client::registry::Registry::default();
        let calls = Calls::new(Duration::from_secs(10), Metrics::register(&mut series));
        let home = api.cluster_with(calls).await;
        let mut keeper = Keeper::new(Registry::default(), home.clone(), settings());
        keeper.detect_fabrics().await;
        let objects = &home.views().remote_clusters;
        objects.complete().await;
        keeper.apply();
        assert_eq!((keeper.links.len(), keeper.awaited.len()), (1, 1));
        for cluster in ["home", "milan"] {
            home.calls()
                .metrics
                .record(cluster, "read", Ok(()), Duration::ZERO);
        }

        let mut changes = objects.version();
        api.remove(OBJECT);
        changes.changed().await.unwrap();
        keeper.apply();
        assert_eq!((keeper.links.len(), keeper.awaited.len()), (0, 0));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &series).unwrap();
        assert!(page.contains("\"home\"") && !page.contains("\"milan\""), "{page}");
    }

    fn settings() -> Settings {
        Settings {
            namespace: "ours".into(),
            allow_proxy: false,
            liqo_tenants: BTreeSet::new(),
        }
    }

    #[tokio::test]
    async fn a_renewed_token_is_used_until_the_kubeconfig_changes() {
        let api = FakeApi::start().await;
        api.put("/apis", json!({"groups": [{"name": NATIVE, "versions": []}]}));
        api.put(
            OBJECT,
            json!({
                "spec": {"kubeconfigSecretRef": {"name": "remote-milan"}, "fabric": {}},
                "status": {"virtualNode": {"clusterUid": "recorded"}},
            }),
        );
        let of = |text: &str| json!({"kubeconfig": ByteString(text.as_bytes().to_vec())});
        let written = kubeconfig("a", 1000);
        api.put(SEED, json!({"data": of(&written)}));
        let (registry, home) = (Registry::default(), api.cluster().await);
        let keeping = tokio::spawn(keep(registry.clone(), home, settings()));
        let id: ClusterId = "milan".parse().unwrap();
        let until = async |expires: i64| {
            let mut changes = registry.changes();
            let wait = async {
                loop {
                    let remote = registry.get(&id).ok();
                    let facts = remote.as_ref().and_then(|remote| remote.access());
                    let token = facts.and_then(|facts| facts.token.as_ref()?.expires);
                    if token == Some(expires) {
                        return facts.unwrap().seed.clone();
                    }
                    changes.changed().await.unwrap();
                }
            };
            time::timeout(Duration::from_secs(20), wait).await.unwrap()
        };
        assert_eq!(until(1000).await, fingerprint(written.as_bytes()));
        assert_eq!(registry.get(&id).unwrap().uid.as_deref(), Some("recorded"));

        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let renewed = BTreeMap::from([
            (renewed_key("milan"), bytes(&kubeconfig("a", 2000))),
            (seed_key("milan"), bytes(&fingerprint(written.as_bytes()))),
        ]);
        api.put(
            "/api/v1/namespaces/ours/secrets/liqo-csi-sessions",
            json!({"data": renewed}),
        );
        assert_eq!(
            until(2000).await,
            fingerprint(written.as_bytes()),
            "it has the fingerprint of the original"
        );

        let another = kubeconfig("a", 3000);
        api.put(SEED, json!({"data": of(&another)}));
        assert_eq!(until(3000).await, fingerprint(another.as_bytes()));
        keeping.abort();
    }
}
