//! The rights of the driver in a cluster. At home the chart grants them; in a remote cluster they may be
//! fewer, at least for claims in the namespaces offloaded to it, and the API server is asked which they are.
//! The consequences of a missing right are reported in advance.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReviewStatus,
};

use super::{ApiError, Cluster, snapshots::SNAPSHOT_GROUP};

/// The rights of the driver, in addition to managing claims in the namespaces of twins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is granted by itself, in any combination"
)]
pub struct Rights {
    /// Watch storage classes.
    pub classes: bool,
    /// Watch nodes.
    pub nodes: bool,
    /// Watch drivers, the nodes where they run, and their capacities.
    pub capacities: bool,
    /// Read and list PVs.
    pub volumes: bool,
    /// Change PVs.
    pub volume_changes: bool,
    /// Watch claims of all namespaces.
    pub all_claims: bool,
    /// Read and change the contents of snapshots.
    pub snapshot_contents: bool,
    /// The API server could not answer for some of the rights that are false here: they are not used, but
    /// also not assumed to be missing.
    pub uncertain: bool,
}

/// The answer of an API server about one right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Granted,
    Missing,
    /// It could not evaluate the right.
    Unknown,
}

impl Answer {
    fn of(status: Option<&SubjectAccessReviewStatus>) -> Self {
        let Some(status) = status else {
            return Self::Unknown;
        };
        let failed = status
            .evaluation_error
            .as_ref()
            .is_some_and(|error| !error.is_empty());
        if status.allowed {
            Self::Granted
        } else if failed && status.denied != Some(true) {
            Self::Unknown
        } else {
            Self::Missing
        }
    }

    /// The combined answer for several rights that are only useful together.
    fn all(answers: &[Self]) -> Self {
        let any = |answer| answers.contains(&answer);
        match (any(Self::Missing), any(Self::Unknown)) {
            (true, _) => Self::Missing,
            (false, true) => Self::Unknown,
            (false, false) => Self::Granted,
        }
    }
}

impl Rights {
    pub const ALL: Self = Self {
        classes: true,
        nodes: true,
        capacities: true,
        volumes: true,
        volume_changes: true,
        all_claims: true,
        snapshot_contents: true,
        uncertain: false,
    };

    /// Asks the API server. Rights that it cannot evaluate are as in `before`.
    pub(crate) async fn review_all(cluster: &Cluster, before: Option<Self>) -> Result<Self, ApiError> {
        let may = |verb, group, resource| Box::pin(may(cluster, verb, group, resource));
        Self::from_answers(may, before.unwrap_or_default()).await
    }

    async fn from_answers<F>(
        may: impl Fn(&'static str, &'static str, &'static str) -> F,
        before: Self,
    ) -> Result<Self, ApiError>
    where
        F: Future<Output = Result<Answer, ApiError>>,
    {
        // Watched objects are listed first.
        let watch = async |group, resource| {
            let (list, watch) =
                tokio::try_join!(may("list", group, resource), may("watch", group, resource))?;
            Ok::<Answer, ApiError>(Answer::all(&[list, watch]))
        };
        let storage = "storage.k8s.io";
        let contents = "volumesnapshotcontents";
        let (classes, nodes, csi_nodes, drivers, capacities, read, list, change, claims, seen, kept) = tokio::try_join!(
            watch(storage, "storageclasses"),
            watch("", "nodes"),
            watch(storage, "csinodes"),
            watch(storage, "csidrivers"),
            watch(storage, "csistoragecapacities"),
            may("get", "", "persistentvolumes"),
            may("list", "", "persistentvolumes"),
            may("patch", "", "persistentvolumes"),
            watch("", "persistentvolumeclaims"),
            may("get", SNAPSHOT_GROUP, contents),
            may("patch", SNAPSHOT_GROUP, contents),
        )?;
        let mut uncertain = false;
        let mut granted = |answers: &[Answer], before: bool| match Answer::all(answers) {
            Answer::Granted => true,
            Answer::Missing => false,
            Answer::Unknown => {
                uncertain |= !before;
                before
            }
        };
        Ok(Self {
            classes: granted(&[classes], before.classes),
            nodes: granted(&[nodes], before.nodes),
            capacities: granted(&[csi_nodes, drivers, capacities], before.capacities),
            volumes: granted(&[read, list], before.volumes),
            volume_changes: granted(&[read, list, change], before.volume_changes),
            all_claims: granted(&[claims], before.all_claims),
            snapshot_contents: granted(&[seen, kept], before.snapshot_contents),
            uncertain,
        })
    }

    /// The missing rights, and their consequences.
    #[must_use]
    pub fn losses(self) -> Vec<&'static str> {
        let costs = [
            (
                !self.uncertain,
                "the API server could not evaluate some of these rights (evaluationError, see this driver's log): until it can, no volume counts as deleted because its PersistentVolume cannot be read",
            ),
            (
                self.classes,
                "storage classes cannot be read: a class has to be named, whether it exists is unknown in advance, and the driver does not wait for volumes of immediate classes",
            ),
            (
                self.nodes,
                "nodes cannot be read: the policy WaitForBound works with immediate classes only",
            ),
            (
                self.capacities,
                "capacities cannot be read: a pod may be scheduled where there is no capacity",
            ),
            (
                self.volumes,
                "PersistentVolumes cannot be read: a volume counts as deleted when its twin is, and its real size is that of the twin",
            ),
            (
                self.volume_changes,
                "PersistentVolumes cannot be changed: the reclaim policy Retain is not enforced, and the data of a twin that is deleted by another client cannot be recovered",
            ),
            (
                self.all_claims,
                "claims can only be watched namespace by namespace: twins in namespaces that are not offloaded any more are not noticed",
            ),
            (
                self.snapshot_contents,
                "VolumeSnapshotContents cannot be read and changed: the deletion policy Retain is not enforced, and deleting the twin of a snapshot, for example with its namespace, deletes its data",
            ),
        ];
        let missing = costs.into_iter().filter(|(granted, _)| !granted);
        missing.map(|(_, cost)| cost).collect()
    }
}

/// Whether the driver may do this with objects of a kind in a namespace.
pub async fn may_within(
    cluster: &Cluster,
    namespace: &str,
    verb: &str,
    group: &str,
    resource: &str,
) -> Result<bool, ApiError> {
    let answer = review(cluster, Some(namespace), verb, group, resource).await?;
    Ok(answer == Answer::Granted)
}

/// Whether the driver may do this with all objects of a kind.
async fn may(cluster: &Cluster, verb: &str, group: &str, resource: &str) -> Result<Answer, ApiError> {
    review(cluster, None, verb, group, resource).await
}

async fn review(
    cluster: &Cluster,
    namespace: Option<&str>,
    verb: &str,
    group: &str,
    resource: &str,
) -> Result<Answer, ApiError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: namespace.map(str::to_owned),
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = cluster.all::<SelfSubjectAccessReview>().create(&review).await?;
    let status = answer.and_then(|answer| answer.status);
    let told = Answer::of(status.as_ref());
    let error = status
        .and_then(|status| status.evaluation_error)
        .unwrap_or_default();
    let failure = (told == Answer::Unknown).then_some(error.as_str());
    let question = format!("{} {namespace:?} {verb} {group} {resource}", cluster.id());
    if cluster.calls().unanswered.is_news(question, failure) {
        tracing::warn!(
            cluster = %cluster.id(),
            namespace,
            verb,
            group,
            resource,
            error,
            "the API server could not evaluate whether this is allowed"
        );
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::{FakeApi, Warnings};

    /// All rights are checked every minute.
    #[tokio::test]
    async fn a_right_that_cannot_be_evaluated_is_logged_when_that_changes() {
        let api = FakeApi::start().await;
        let cluster = api.cluster_unwatched().await;
        let log = Warnings::record();
        let mut counts = Vec::new();
        for error in [
            Some("no role x"),
            Some("no role x"),
            Some("no role y"),
            None,
            Some("no role y"),
        ] {
            api.put(
                "/denied",
                json!({"resources": ["pods"], "evaluationError": error}),
            );
            let may = may_within(&cluster, "shop", "create", "", "pods").await;
            assert_eq!(may, Ok(false));
            counts.push(log.lines().len());
        }
        assert_eq!(counts, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn each_missing_right_is_reported_with_its_consequence() {
        assert!(Rights::ALL.losses().is_empty());
        assert_eq!(Rights::default().losses().len(), 7);
        let no_nodes = Rights {
            nodes: false,
            ..Rights::ALL
        };
        assert!(no_nodes.losses()[0].contains("WaitForBound"));
    }

    #[tokio::test]
    async fn a_kind_needs_the_rights_to_list_and_to_watch() {
        for verb in ["list", "watch"] {
            let but_nodes = async |asked: &'static str, _, resource| {
                Ok(if asked == verb && resource == "nodes" {
                    Answer::Missing
                } else {
                    Answer::Granted
                })
            };
            let expected = Rights {
                nodes: false,
                ..Rights::ALL
            };
            assert_eq!(
                Rights::from_answers(but_nodes, Rights::default()).await,
                Ok(expected)
            );
        }
    }

    fn reviewed(allowed: bool, denied: Option<bool>, error: Option<&str>) -> Answer {
        Answer::of(Some(&SubjectAccessReviewStatus {
            allowed,
            denied,
            evaluation_error: error.map(str::to_owned),
            reason: None,
        }))
    }

    #[test]
    fn a_failed_access_review_is_no_refusal() {
        let error = Some("clusterroles.rbac.authorization.k8s.io \"x\" not found");
        assert_eq!(reviewed(true, None, error), Answer::Granted);
        assert_eq!(reviewed(false, None, error), Answer::Unknown);
        assert_eq!(reviewed(false, Some(true), error), Answer::Missing);
        assert_eq!(reviewed(false, None, Some("")), Answer::Missing);
        assert_eq!(reviewed(false, None, None), Answer::Missing);
        assert_eq!(Answer::of(None), Answer::Unknown);
    }

    #[tokio::test]
    async fn an_unknown_right_keeps_its_last_state() {
        let failing = async |_, _, resource: &'static str| {
            Ok(match resource {
                "persistentvolumes" => Answer::Unknown,
                "nodes" => Answer::Missing,
                _ => Answer::Granted,
            })
        };
        let without_nodes = Rights {
            nodes: false,
            ..Rights::ALL
        };
        assert_eq!(
            Rights::from_answers(failing, Rights::ALL).await,
            Ok(without_nodes)
        );

        let told = Rights::from_answers(failing, Rights::default()).await.unwrap();
        assert!(!told.volumes && !told.volume_changes && told.uncertain);
        assert!(told.losses()[0].contains("evaluationError"));
    }
}
