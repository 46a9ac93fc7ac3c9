//! What we may do in a cluster. At home that is what the chart gives us; a remote
//! cluster gives what it likes, at least claims in the namespaces offloaded to
//! it, and the API server is asked what that is. What is missing costs
//! something, which is said rather than found out.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};

use super::{ApiError, Cluster};

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
    };

    /// Asks the API server.
    pub(super) async fn ask(cluster: &Cluster) -> Result<Self, ApiError> {
        Self::told_by(|verb, group, resource| Box::pin(may(cluster, verb, group, resource))).await
    }

    async fn told_by<F>(may: impl Fn(&'static str, &'static str, &'static str) -> F) -> Result<Self, ApiError>
    where
        F: Future<Output = Result<bool, ApiError>>,
    {
        // Whatever is watched is listed first.
        let watch = async |group, resource| {
            let (list, watch) =
                tokio::try_join!(may("list", group, resource), may("watch", group, resource))?;
            Ok::<bool, ApiError>(list && watch)
        };
        let storage = "storage.k8s.io";
        let (classes, nodes, csi_nodes, drivers, capacities, read, list, change, claims) = tokio::try_join!(
            watch(storage, "storageclasses"),
            watch("", "nodes"),
            watch(storage, "csinodes"),
            watch(storage, "csidrivers"),
            watch(storage, "csistoragecapacities"),
            may("get", "", "persistentvolumes"),
            may("list", "", "persistentvolumes"),
            may("patch", "", "persistentvolumes"),
            watch("", "persistentvolumeclaims"),
        )?;
        Ok(Self {
            classes,
            nodes,
            capacities: csi_nodes && drivers && capacities,
            volumes: read && list,
            volume_changes: read && list && change,
            all_claims: claims,
        })
    }

    /// What is missing, and what that costs.
    #[must_use]
    pub fn losses(self) -> Vec<&'static str> {
        let costs = [
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
        ];
        let missing = costs.into_iter().filter(|(granted, _)| !granted);
        missing.map(|(_, cost)| cost).collect()
    }
}

/// Whether we may do this to all objects of a kind.
async fn may(cluster: &Cluster, verb: &str, group: &str, resource: &str) -> Result<bool, ApiError> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
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
    Ok(status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_right_has_its_cost() {
        assert!(Rights::ALL.losses().is_empty());
        assert_eq!(Rights::default().losses().len(), 6);
        let no_nodes = Rights {
            nodes: false,
            ..Rights::ALL
        };
        assert!(no_nodes.losses()[0].contains("WaitForBound"));
    }

    #[tokio::test]
    async fn what_may_be_watched_but_not_listed_is_not_seen() {
        for verb in ["list", "watch"] {
            let but_nodes =
                async |asked: &'static str, _, resource| Ok(!(asked == verb && resource == "nodes"));
            let expected = Rights {
                nodes: false,
                ..Rights::ALL
            };
            assert_eq!(Rights::told_by(but_nodes).await, Ok(expected));
        }
    }
}
