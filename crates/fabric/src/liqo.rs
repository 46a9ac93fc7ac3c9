//! Whether Liqo is installed: only one of the two may carry out `NamespaceOffloading`s.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};

use crate::cluster::{ApiError, Cluster, plain};

const GROUP: &str = "offloading.liqo.io";

/// The object that shows that Liqo is installed, if any. Its CRDs do not show that: they are kept
/// when Liqo is uninstalled.
pub async fn installed(home: &Cluster) -> Result<Option<String>, String> {
    if has_virtual_nodes(home).await? {
        return Ok(Some("there are VirtualNodes of Liqo".to_owned()));
    }
    let webhook = webhook(home).await.map_err(|error| error.to_string())?;
    Ok(webhook.map(|name| format!("the webhook {name} is for NamespaceOffloadings")))
}

async fn has_virtual_nodes(home: &Cluster) -> Result<bool, String> {
    Ok(has_any(home, "VirtualNode").await? == Some(true))
}

/// Whether the kind is defined. Liqo's chart and ours do so.
pub(super) async fn defines_offloadings(home: &Cluster) -> Result<bool, String> {
    Ok(has_any(home, "NamespaceOffloading").await?.is_some())
}

/// Whether objects of a kind of Liqo exist; `None` if it is not defined.
async fn has_any(home: &Cluster, kind: &str) -> Result<Option<bool>, String> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1beta1", kind));
    let all: Api<DynamicObject> = Api::all_with(home.client().clone(), &resource);
    let one = ListParams::default().limit(1);
    let most = home.calls().timeout;
    match tokio::time::timeout(most, all.list(&one)).await {
        Ok(Ok(found)) => Ok(Some(!found.items.is_empty())),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(error)) => Err(format!("cannot list {kind}s: {}", plain(&error))),
        Err(_) => Err(format!("cannot list {kind}s: no answer within {most:?}")),
    }
}

/// The name of any webhook configuration for `NamespaceOffloading`s.
async fn webhook(home: &Cluster) -> Result<Option<String>, ApiError> {
    let all = home.all::<ValidatingWebhookConfiguration>();
    let validating = all.pick(None, None, |it| {
        let mut all = it.webhooks.iter().flatten();
        let found = all.any(|one| is_for_offloading(one.rules.as_deref()));
        found.then_some(it.metadata.name.unwrap_or_default())
    });
    if let Some(name) = validating.await?.pop() {
        return Ok(Some(name));
    }
    let all = home.all::<MutatingWebhookConfiguration>();
    let mutating = all.pick(None, None, |it| {
        let mut all = it.webhooks.iter().flatten();
        let found = all.any(|one| is_for_offloading(one.rules.as_deref()));
        found.then_some(it.metadata.name.unwrap_or_default())
    });
    Ok(mutating.await?.pop())
}

fn is_for_offloading(rules: Option<&[RuleWithOperations]>) -> bool {
    let names = |all: &Option<Vec<String>>, name: &str| all.iter().flatten().any(|it| it == name);
    rules
        .into_iter()
        .flatten()
        .any(|rule| names(&rule.api_groups, GROUP) && names(&rule.resources, "namespaceoffloadings"))
}
