//! Writes a `Role` that names the nodes of the fabric. The chart binds it to the account of the fabric,
//! and a policy lets that account write only the pods of these nodes. The fabric cannot change the
//! `Role`: with a stolen token of the fabric an attacker cannot reach other nodes.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use kube::api::ObjectMeta;
use serde_json::json;
use tokio::sync::watch;

use crate::{
    cluster::{ApiError, Cluster, Objects},
    observe::crash::{self, Step},
    rounds::Rounds,
    volume::mark,
};

const NAME: &str = "liqo-csi-fabric-nodes";

pub(super) struct FabricNodes<'a> {
    home: &'a Cluster,
    roles: Objects<Role>,
}

impl<'a> FabricNodes<'a> {
    pub(super) fn new(home: &'a Cluster, namespace: &str) -> Self {
        Self {
            home,
            roles: home.within(namespace),
        }
    }

    fn rules(&self) -> Vec<PolicyRule> {
        let clusters = self.home.views().remote_clusters.all();
        let nodes: BTreeSet<String> = clusters.iter().filter_map(|it| it.fabric_node()).collect();
        // A rule without resource names would permit all nodes.
        let rule = (!nodes.is_empty()).then(|| PolicyRule {
            api_groups: Some(vec!["storage.liqo.io".to_owned()]),
            resources: Some(vec!["fabricnodes".to_owned()]),
            resource_names: Some(nodes.into_iter().collect()),
            verbs: vec!["run".to_owned()],
            ..PolicyRule::default()
        });
        rule.into_iter().collect()
    }
}

impl Rounds for FabricNodes<'_> {
    const NAME: &'static str = "fabric-nodes";
    const RESYNC: Duration = Duration::from_mins(2);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.home.views().remote_clusters.version()]
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        // A node that is not known yet would lose its right to write the status of its pods.
        self.home.views().remote_clusters.complete().await;
        let rules = self.rules();
        let before = self.roles.get(NAME).await?;
        let has = before.as_ref().and_then(|it| it.rules.as_deref());
        if has.unwrap_or_default() == rules {
            return Ok(());
        }
        let written = async {
            if let Some(before) = &before {
                // A former leader must not withdraw the rights of nodes that it does not know.
                let version = &before.metadata.resource_version;
                let patch = json!({"metadata": {"resourceVersion": version}, "rules": rules});
                return self.roles.merge(NAME, &patch).await;
            }
            let labels = [(mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned())];
            let metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            };
            let rules = Some(rules);
            self.roles.create(&Role { metadata, rules }).await
        };
        crash::around(Step::FabricNodeList, written).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cluster::testing::FakeApi;

    const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/ours/roles/liqo-csi-fabric-nodes";

    fn cluster(name: &str) -> String {
        format!("/apis/storage.liqo.io/v1alpha1/remoteclusters/{name}")
    }

    async fn names_after_a_round(home: &FakeApi) -> Value {
        let cluster = home.cluster().await;
        FabricNodes::new(&cluster, "ours").round().await.unwrap();
        let role = home.object(ROLE).unwrap_or_default();
        assert!(
            role["rules"]
                .as_array()
                .into_iter()
                .flatten()
                .all(|it| it["verbs"] == json!(["run"]))
        );
        role["rules"][0]["resourceNames"].clone()
    }

    #[tokio::test]
    async fn the_role_names_only_the_nodes_of_the_fabric() {
        let home = FakeApi::start().await;
        assert_eq!(names_after_a_round(&home).await, Value::Null);
        assert_eq!(
            home.writes(),
            0,
            "where the fabric has no nodes nothing is written"
        );
        let reference = json!({"name": "a"});
        for (name, fabric, selector) in [
            ("milan", json!({}), Value::Null),
            ("turin", json!({"nodeName": "north"}), Value::Null),
            ("rome", json!({}), json!({"matchLabels": {"a": "b"}})),
            ("pisa", Value::Null, json!({"matchLabels": {"a": "b"}})),
        ] {
            let spec = json!({"kubeconfigSecretRef": reference, "fabric": fabric, "nodeSelector": selector});
            home.put(&cluster(name), json!({ "spec": spec }));
        }
        assert_eq!(names_after_a_round(&home).await, json!(["milan", "north"]));
        let writes = home.writes();
        assert_eq!(names_after_a_round(&home).await, json!(["milan", "north"]));
        assert_eq!(home.writes(), writes, "it is as it should be");
        home.remove(&cluster("milan"));
        assert_eq!(names_after_a_round(&home).await, json!(["north"]));
        home.remove(&cluster("turin"));
        assert_eq!(names_after_a_round(&home).await, Value::Null);
        assert_eq!(
            home.object(ROLE).unwrap()["rules"],
            json!([]),
            "without names it were all nodes"
        );
    }
}
