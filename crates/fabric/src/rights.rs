//! The rights to run pods in a namespace that the fabric has made, and to copy what they need. They are
//! not granted for the whole remote cluster: the chart there lets this identity bind one `ClusterRole`,
//! and that only in namespaces of the fabric.

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

/// The name of the binding.
const BINDING: &str = "liqo-csi-fabric";
const GROUP: &str = "rbac.authorization.k8s.io";
/// How the name of the chart's role ends.
const ROLE: &str = "-workloads";
/// A right that is given a moment ago is not known to the API server at once, but after so long.
pub(super) const KNOWN_AFTER: Duration = Duration::from_secs(10);

/// Takes the rights, unless they are there. What is said of the namespace if objects of this kind cannot
/// be made in it: it is being made while the API server may not know yet what it was given.
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
            "the namespace {namespace} is there, but this driver may not make {what} in it{why}: see remoteAccess.level fabric \
             of the chart"
        )
    };
    let refused = |why: &str| Ok(Err(Readiness::Failed(missing(why))));
    let Some(binding) = binding(there, namespace).await? else {
        return refused("");
    };
    let bindings = there.within::<RoleBinding>(namespace);
    match crash::around(Step::OffloadBind, bindings.create(&binding)).await {
        Ok(_) => Ok(Err(Readiness::Creating(missing(
            " although it has bound its role there",
        )))),
        Err(error) if error.is_refusal() => refused(&format!(" ({error})")),
        Err(error) => Err(error),
    }
}

/// Gives the role of the chart to whom we are; `None` if there is none that we may give.
async fn binding(there: &Cluster, namespace: &str) -> Result<Option<RoleBinding>, ApiError> {
    let asked = SelfSubjectReview::default();
    let reviewed = there.all::<SelfSubjectReview>().create(&asked).await?;
    let user = reviewed.and_then(|it| it.status).and_then(|it| it.user_info);
    let name = user.and_then(|it| it.username).unwrap_or_default();
    let asked = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let rules = match there.all::<SelfSubjectRulesReview>().create(&asked).await {
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

/// The role of the chart: the one that we may give, or where that is not said the one that is called
/// after us.
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
    fn whoever_may_give_the_role_of_the_chart_gives_it_to_himself() {
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
    fn where_it_is_not_said_the_role_is_called_after_the_account() {
        let account = "system:serviceaccount:liqo-csi:liqo-csi-remote";
        assert_eq!(role(&[], account).as_deref(), Some(CHART));
        assert_eq!(role(&[], "milan"), None);
    }
}
