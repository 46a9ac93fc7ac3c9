//! How many volumes of this driver fit on this node, as `NodeGetInfo` reports it. Kubelet writes that to the
//! `CSINode`, from which the scheduler takes it.

use std::time::Duration;

use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client};

use crate::volume::DRIVER_NAME;

/// Kubelet registers the driver only after the answer.
const API_TIMEOUT: Duration = Duration::from_secs(3);

/// The number of volumes that fit on this node.
#[derive(Clone)]
pub enum MaxVolumes {
    /// This number, which the administrator has set.
    Fixed(i64),
    /// What the controller has written to the `CSINode`. Kubelet would overwrite it with another answer.
    Written(Client),
}

impl MaxVolumes {
    /// The number now; 0 means no limit, also if the API server does not answer: the controller writes it
    /// again.
    pub async fn on(&self, node: &str) -> i64 {
        let client = match self {
            Self::Fixed(number) => return *number,
            Self::Written(client) => client.clone(),
        };
        let csi_nodes: Api<CSINode> = Api::all(client);
        match tokio::time::timeout(API_TIMEOUT, csi_nodes.get_opt(node)).await {
            Ok(Ok(found)) => found.as_ref().map_or(0, written),
            Ok(Err(error)) => {
                tracing::warn!(node, %error, "reading how many volumes fit on this node");
                0
            }
            Err(_) => {
                tracing::warn!(
                    node,
                    "cannot read from the API server how many volumes fit on this node"
                );
                0
            }
        }
    }
}

/// The number in the entry of this driver; 0 if it has none.
fn written(node: &CSINode) -> i64 {
    let entry = node.spec.drivers.iter().find(|driver| driver.name == DRIVER_NAME);
    let allocatable = entry.and_then(|driver| driver.allocatable.as_ref());
    allocatable
        .and_then(|allocatable| allocatable.count)
        .unwrap_or_default()
        .into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_number_is_that_of_this_driver() {
        let node = |ours: Value| {
            let other = json!({"name": "disk.example", "nodeID": "i-1", "allocatable": {"count": 39}});
            let node = json!({"metadata": {}, "spec": {"drivers": [other, ours]}});
            serde_json::from_value::<CSINode>(node).unwrap()
        };
        let entry =
            |allocatable: Value| json!({"name": DRIVER_NAME, "nodeID": "n1", "allocatable": allocatable});
        assert_eq!(written(&node(entry(json!({"count": 24})))), 24);
        assert_eq!(written(&node(entry(json!({"count": 0})))), 0);
        assert_eq!(written(&node(entry(Value::Null))), 0);
    }
}
