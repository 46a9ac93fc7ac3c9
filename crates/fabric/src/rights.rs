//! The rights to run pods in a remote namespace and to copy objects there. They are not granted cluster-wide: the chart
//! of the remote cluster lets this identity bind one `ClusterRole`, only in namespaces of the fabric.

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec},
    rbac::v1::{RoleBinding, RoleRef, Subject},
};
use kube::api::ObjectMeta;

use crate::{
    cluster::{ApiError, Cluster, may_within},
    observe::crash::{self, Step},
    offload::Readiness,
    volume::mark,
};

const BINDING: &str = "liqo-csi-fabric";
const GROUP: &str = "rbac.authorization.k8s.io";
/// The suffix of the name of the chart's role.
const ROLE: &str = "-workloads";
/// Granted rights are effective after this time, not at once.
pub(super) const EFFECTIVE_AFTER: Duration = Duration::from_secs(10);

/// Creates the `RoleBinding`, unless objects of the kind `what` can be created already. Returns the state of the
/// namespace if they cannot: `Creating` while the rights may not be effective yet.
pub(super) async fn take(
    there: &Cluster,
    namespace: &str,
    what: &str,
) -> Result<Result<(), Readiness>, ApiError> {
    if may_within(there, namespace, "create", "", what).await? {
        return Ok(Ok(()));
    }
    let missing = |why: &str| {
        format!(
            "the namespace {namespace} exists, but this driver may not create {what} in it{why}: see remoteAccess.level \
             fabric of the chart"
        )
    };
    let refused = |why: &str| Ok(Err(Readiness::Failed(missing(why))));
    let Some(binding) = binding(there, namespace).await? else {
        return refused("");
    };
    let bindings = there.within::<RoleBinding>(namespace);
    match crash::around(Step::OffloadBind, bindings.create(&binding)).await {
        Ok(_) => Ok(Err(Readiness::Creating(missing(&format!(
            " although there is the RoleBinding {BINDING} (if that names another role or account, delete it there)"
        ))))),
        Err(error) if error.is_refusal() => refused(&format!(" ({error})")),
        Err(error) => Err(error),
    }
}

/// The binding of the chart's role to this identity; `None` if it may bind no such role.
async fn binding(there: &Cluster, namespace: &str) -> Result<Option<RoleBinding>, ApiError> {
    let review = SelfSubjectReview::default();
    let reviewed = there.all::<SelfSubjectReview>().create(&review).await?;
    let user = reviewed.and_then(|it| it.status).and_then(|it| it.user_info);
    let name = user.and_then(|it| it.username).unwrap_or_default();
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let rules = match there.all::<SelfSubjectRulesReview>().create(&review).await {
        Err(error) if error.is_refusal() => None,
        answered => answered?.and_then(|it| it.status),
    };
    let rules = rules.map(|it| it.resource_rules).unwrap_or_default();
    Ok(role(&rules, &name).map(|role| RoleBinding {
        metadata: ObjectMeta {
            name: Some(BINDING.to_owned()),
            labels: Some([(mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned())].into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: GROUP.to_owned(),
            kind: "ClusterRole".to_owned(),
            name: role,
        },
        subjects: Some(vec![subject(&name)]),
    }))
}

/// The role of the chart: the one that this identity may bind, or if the rules do not show it the one named after its
/// service account.
fn role(rules: &[ResourceRule], user: &str) -> Option<String> {
    let has = |all: &Option<Vec<String>>, name: &str| all.iter().flatten().any(|it| it == name);
    let may_bind = |rule: &&ResourceRule| {
        rule.verbs.iter().any(|it| it == "bind")
            && has(&rule.api_groups, GROUP)
            && has(&rule.resources, "clusterroles")
    };
    let named = rules
        .iter()
        .filter(may_bind)
        .flat_map(|rule| rule.resource_names.iter().flatten());
    let ours = named.filter(|name| name.ends_with(ROLE)).min().cloned();
    ours.or_else(|| account(user).map(|(namespace, account)| format!("{account}.{namespace}{ROLE}")))
}

fn subject(user: &str) -> Subject {
    match account(user) {
        Some((namespace, account)) => Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        },
        None => Subject {
            kind: "User".to_owned(),
            name: user.to_owned(),
            api_group: Some(GROUP.to_owned()),
            ..Subject::default()
        },
    }
}

/// Namespace and name, if it is a service account.
fn account(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix("system:serviceaccount:")?.split_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: &str = "liqo-csi-remote.liqo-csi-workloads";

    fn may(verb: &str, resource: &str, name: &str) -> ResourceRule {
        let one = |text: &str| Some(vec![text.to_owned()]);
        ResourceRule {
            verbs: vec![verb.to_owned()],
            api_groups: one(GROUP),
            resources: one(resource),
            resource_names: one(name),
        }
    }

    #[test]
    fn the_bindable_role_of_the_chart_is_bound_to_this_identity() {
        let rules = [
            may("bind", "clusterroles", "view"),
            may("get", "clusterroles", "a-workloads"),
            may("bind", "clusterroles", CHART),
        ];
        for user in ["milan", "system:serviceaccount:elsewhere:other"] {
            assert_eq!(role(&rules, user).as_deref(), Some(CHART), "{user}");
        }
        let user = subject("milan");
        assert_eq!((user.kind.as_str(), user.name.as_str()), ("User", "milan"));
        assert_eq!(user.api_group.as_deref(), Some(GROUP));
        let account = subject("system:serviceaccount:elsewhere:other");
        assert_eq!(
            (
                account.kind.as_str(),
                account.name.as_str(),
                account.namespace.as_deref()
            ),
            ("ServiceAccount", "other", Some("elsewhere"))
        );
    }

    #[test]
    fn without_rules_the_role_is_named_after_the_service_account() {
        let account = "system:serviceaccount:liqo-csi:liqo-csi-remote";
        assert_eq!(role(&[], account).as_deref(), Some(CHART));
        assert_eq!(role(&[], "milan"), None);
    }
}
