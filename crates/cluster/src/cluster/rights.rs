//! What we may do in a cluster. At home that is what the chart gives us; a remote
//! cluster gives what it likes, at least claims in the namespaces offloaded to
//! it, and the API server is asked what that is. What is missing costs
//! something, which is said rather than found out.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReviewStatus,
};

use super::{ApiError, Cluster, snapshots::SNAPSHOT_GROUP};

/// What we may do in a cluster beyond managing claims where twins are.
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
    /// Watch drivers, where they run and what room they have.
    pub capacities: bool,
    /// Read and list PVs.
    pub volumes: bool,
    /// Change PVs.
    pub volume_changes: bool,
    /// Watch claims of all namespaces.
    pub all_claims: bool,
    /// Read and change the contents of snapshots.
    pub snapshot_contents: bool,
    /// The API server could not tell about some of what is not granted here: it is not
    /// used, but nothing is concluded from its absence either.
    pub uncertain: bool,
}

/// What an API server says of one right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Granted,
    Missing,
    /// It could not find out.
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

    /// What is known of several rights that are only of use together.
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
    /// Everything.
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

    /// Asks the API server. What it cannot tell is as it was `before`.
    pub(crate) async fn ask(cluster: &Cluster, before: Option<Self>) -> Result<Self, ApiError> {
        let may = |verb, group, resource| Box::pin(may(cluster, verb, group, resource));
        Self::told_by(may, before.unwrap_or_default()).await
    }

    async fn told_by<F>(
        may: impl Fn(&'static str, &'static str, &'static str) -> F,
        before: Self,
    ) -> Result<Self, ApiError>
    where
        F: Future<Output = Result<Answer, ApiError>>,
    {
        // Whatever is watched is listed first.
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

    /// What is missing, and what that costs.
    #[must_use]
    pub fn losses(self) -> Vec<&'static str> {
        let costs = [
            (
                !self.uncertain,
                "the API server could not tell about some of these rights (evaluationError, see this driver's log): until it can, no volume is called deleted because its PersistentVolume cannot be read",
            ),
            (
                self.classes,
                "storage classes cannot be read: a class has to be named, whether it exists is not known beforehand, and volumes of immediate classes are not waited for",
            ),
            (
                self.nodes,
                "nodes cannot be read: the policy WaitForBound works with immediate classes only",
            ),
            (
                self.capacities,
                "capacities cannot be read: a pod may be sent where there is no room",
            ),
            (
                self.volumes,
                "PersistentVolumes cannot be read: a volume counts as deleted when its twin is, and its real size is that of the twin",
            ),
            (
                self.volume_changes,
                "PersistentVolumes cannot be changed: the reclaim policy Retain is not enforced, and data of a twin that somebody deletes cannot be rescued",
            ),
            (
                self.all_claims,
                "claims can only be watched namespace by namespace: twins in namespaces that are not offloaded any more are not noticed",
            ),
            (
                self.snapshot_contents,
                "VolumeSnapshotContents cannot be read and changed: the deletion policy Retain is not enforced, and whoever deletes the twin of a snapshot, as by deleting its namespace, deletes its data",
            ),
        ];
        let missing = costs.into_iter().filter(|(granted, _)| !granted);
        missing.map(|(_, cost)| cost).collect()
    }
}

/// Whether we may do this to objects of a kind in a namespace.
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

/// Whether we may do this to all objects of a kind.
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
    if told == Answer::Unknown {
        let error = status
            .and_then(|status| status.evaluation_error)
            .unwrap_or_default();
        tracing::warn!(
            verb,
            group,
            resource,
            error,
            "the API server could not tell whether this is allowed"
        );
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_right_has_its_cost() {
        assert!(Rights::ALL.losses().is_empty());
        assert_eq!(Rights::default().losses().len(), 7);
        let no_nodes = Rights {
            nodes: false,
            ..Rights::ALL
        };
        assert!(no_nodes.losses()[0].contains("WaitForBound"));
    }

    #[tokio::test]
    async fn what_may_be_watched_but_not_listed_is_not_seen() {
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
            assert_eq!(Rights::told_by(but_nodes, Rights::default()).await, Ok(expected));
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
    fn a_review_that_failed_is_no_refusal() {
        let error = Some("clusterroles.rbac.authorization.k8s.io \"x\" not found");
        assert_eq!(reviewed(true, None, error), Answer::Granted);
        assert_eq!(reviewed(false, None, error), Answer::Unknown);
        assert_eq!(reviewed(false, Some(true), error), Answer::Missing);
        assert_eq!(reviewed(false, None, Some("")), Answer::Missing);
        assert_eq!(reviewed(false, None, None), Answer::Missing);
        assert_eq!(Answer::of(None), Answer::Unknown);
    }

    #[tokio::test]
    async fn what_is_not_known_is_as_it_was() {
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
        assert_eq!(Rights::told_by(failing, Rights::ALL).await, Ok(without_nodes));

        let told = Rights::told_by(failing, Rights::default()).await.unwrap();
        assert!(!told.volumes && !told.volume_changes && told.uncertain);
        assert!(told.losses()[0].contains("evaluationError"));
    }
}
