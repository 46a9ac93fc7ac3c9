//! `EndpointSlice`s: the endpoints of a Service that are copied to a cluster, which are those that are
//! reachable from it, of the home cluster and of others. It finds its own pods itself: its copy of the
//! Service has the same selector.

use serde_json::{Value, json};

use super::{
    Kind, Marks, SKIP, Wanted,
    object::{metadata, text, wanted},
};

/// Label of a slice: the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of a slice: its manager. Controllers ignore the slices of others.
pub const SLICE_MANAGER: &str = "endpointslice.kubernetes.io/managed-by";
/// Value of that label on the copies.
pub const SLICES_OF_FABRIC: &str = "fabric.storage.liqo.io";
/// Label of slices of headless Services, which kube-proxy ignores.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Address types that are copied; host names are not.
const TYPES: [&str; 2] = ["IPv4", "IPv6"];
const CONDITIONS: [&str; 3] = ["ready", "serving", "terminating"];

/// The part of a slice at home that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Its name, and that of its copies.
    pub name: String,
    pub service: String,
    /// Index key of the slices of a Service: see [`slices_of`].
    pub of_service: String,
    uid: String,
    headless: Option<String>,
    address_type: String,
    ports: Value,
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq)]
struct Endpoint {
    addresses: Vec<String>,
    hostname: Option<String>,
    conditions: [Option<bool>; 3],
    node: Option<String>,
}

/// Index key of all slices of a Service. It is not a valid object name, so it cannot collide with one.
#[must_use]
pub fn slices_of(service: &str) -> String {
    format!("service/{service}")
}

impl Slice {
    /// Reads a slice. `None` if it is not copied: it has no Service, the user excluded it, or it is a copy
    /// itself, whose creator distributes it.
    #[must_use]
    pub fn read(object: &Value) -> Option<Self> {
        let (labels, annotations) = metadata(object);
        let is_copy = labels.get(SLICE_MANAGER).is_some_and(|it| it == SLICES_OF_FABRIC);
        let is_skipped = labels.contains_key(SKIP) || annotations.contains_key(SKIP);
        let address_type = text(&object["addressType"]);
        if is_copy || is_skipped || !TYPES.contains(&address_type) {
            return None;
        }
        let service = labels.get(SERVICE_NAME)?.clone();
        let endpoints = object["endpoints"].as_array().into_iter().flatten();
        Some(Self {
            name: text(&object["metadata"]["name"]).to_owned(),
            of_service: slices_of(&service),
            service,
            uid: text(&object["metadata"]["uid"]).to_owned(),
            headless: labels.get(HEADLESS).cloned(),
            address_type: address_type.to_owned(),
            ports: object["ports"].clone(),
            endpoints: endpoints.map(Endpoint::read).collect(),
        })
    }

    /// Whether one of its endpoints is ready. One that does not say so counts as ready, as in Kubernetes.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.endpoints.iter().any(|it| it.conditions[0] != Some(false))
    }

    /// The desired copy, with the endpoints on nodes that satisfy `is_reached`, which gets `None` for
    /// endpoints without a node. There is no copy without endpoints.
    #[must_use]
    pub fn copy(&self, is_reached: impl Fn(Option<&str>) -> bool, marks: &Marks) -> Option<Wanted> {
        let reached = self.endpoints.iter().filter(|it| is_reached(it.node.as_deref()));
        let endpoints: Vec<Value> = reached.map(Endpoint::object).collect();
        if endpoints.is_empty() {
            return None;
        }
        let mut labels = json!({SERVICE_NAME: self.service, SLICE_MANAGER: SLICES_OF_FABRIC});
        if let Some(headless) = &self.headless {
            labels[HEADLESS] = headless.as_str().into();
        }
        let object = json!({
            "metadata": {"name": self.name, "uid": self.uid, "labels": labels},
            "addressType": self.address_type, "ports": self.ports, "endpoints": endpoints,
        });
        wanted(Kind::EndpointSlice, object, marks).ok()
    }
}

impl Endpoint {
    fn read(object: &Value) -> Self {
        let addresses = object["addresses"].as_array().into_iter().flatten();
        Self {
            addresses: addresses.map(|it| text(it).to_owned()).collect(),
            hostname: object["hostname"].as_str().map(str::to_owned),
            conditions: CONDITIONS.map(|it| object["conditions"][it].as_bool()),
            node: object["nodeName"].as_str().map(str::to_owned),
        }
    }

    /// Node, zone, hints and pod are meaningful at home only.
    fn object(&self) -> Value {
        let mut object = json!({"addresses": self.addresses});
        if let Some(hostname) = &self.hostname {
            object["hostname"] = hostname.as_str().into();
        }
        for (condition, is_so) in CONDITIONS.iter().zip(self.conditions) {
            if let Some(is_so) = is_so {
                object["conditions"][*condition] = is_so.into();
            }
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Routes;

    fn marks() -> Marks {
        Marks {
            home: "rome".into(),
            labels: [("fabric.storage.liqo.io/home".to_owned(), "rome".to_owned())].into(),
            annotations: [].into(),
        }
    }

    fn routes() -> Routes {
        let clusters = [
            ("to-milan", "milan", true),
            ("to-turin", "turin", true),
            ("to-bari", "bari", false),
        ];
        clusters
            .into_iter()
            .map(|(node, cluster, routed)| (node.to_owned(), cluster.to_owned(), routed))
            .collect()
    }

    fn slice(endpoints: &[Value]) -> Value {
        json!({
            "metadata": {
                "name": "db-x7", "uid": "u",
                "labels": {
                    SERVICE_NAME: "db", SLICE_MANAGER: "endpointslice-controller.k8s.io", HEADLESS: "", "app": "db",
                },
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "client", "port": 2379, "protocol": "TCP"}],
            "endpoints": endpoints,
        })
    }

    fn endpoint(address: &str, node: &str) -> Value {
        json!({
            "addresses": [address], "nodeName": node, "zone": "a", "hints": {"forZones": [{"name": "a"}]},
            "targetRef": {"kind": "Pod", "name": "x"}, "conditions": {"ready": true},
        })
    }

    fn copy_for(cluster: &str, object: &Value) -> Option<Value> {
        let routes = routes();
        let copy = Slice::read(object)?.copy(|node| routes.lead(cluster, node), &marks());
        copy.map(|it| it.object)
    }

    fn addresses(copy: Option<Value>) -> Vec<String> {
        let endpoints = copy.unwrap_or_default()["endpoints"].clone();
        let endpoints = endpoints.as_array().cloned().unwrap_or_default();
        endpoints
            .iter()
            .map(|it| text(&it["addresses"][0]).to_owned())
            .collect()
    }

    #[test]
    fn a_cluster_gets_all_endpoints_except_its_own_and_unreachable_ones() {
        let all = slice(&[
            endpoint("10.0.0.1", "worker"),
            endpoint("10.1.0.1", "to-milan"),
            endpoint("10.2.0.1", "to-turin"),
            endpoint("10.3.0.1", "to-bari"),
            json!({"addresses": ["192.0.2.1"]}),
        ]);
        assert_eq!(
            addresses(copy_for("milan", &all)),
            ["10.0.0.1", "10.2.0.1", "192.0.2.1"]
        );
        assert_eq!(
            addresses(copy_for("turin", &all)),
            ["10.0.0.1", "10.1.0.1", "192.0.2.1"]
        );
        let own = slice(&[endpoint("10.1.0.1", "to-milan"), endpoint("10.3.0.1", "to-bari")]);
        assert_eq!(copy_for("milan", &own), None, "nothing is left");
    }

    #[test]
    fn endpoints_keep_hostname_ports_and_conditions_but_not_their_location() {
        let mut first = endpoint("10.0.0.1", "worker");
        first["hostname"] = "db-0".into();
        first["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        let copy = copy_for("milan", &slice(&[first, json!({"addresses": ["10.0.0.2"]})])).unwrap();
        assert_eq!(
            copy["endpoints"],
            json!([
                {
                    "addresses": ["10.0.0.1"], "hostname": "db-0",
                    "conditions": {"ready": false, "serving": true, "terminating": true},
                },
                {"addresses": ["10.0.0.2"]},
            ])
        );
        assert_eq!(
            copy["ports"],
            json!([{"name": "client", "port": 2379, "protocol": "TCP"}])
        );
        assert_eq!(
            (&copy["apiVersion"], &copy["kind"], &copy["addressType"]),
            (
                &json!("discovery.k8s.io/v1"),
                &json!("EndpointSlice"),
                &json!("IPv4")
            )
        );
        assert_eq!(
            copy["metadata"]["labels"],
            json!({
                SERVICE_NAME: "db", SLICE_MANAGER: SLICES_OF_FABRIC, HEADLESS: "", "fabric.storage.liqo.io/home": "rome",
            })
        );
        let annotations = copy["metadata"]["annotations"].as_object().unwrap();
        assert!(
            annotations
                .keys()
                .all(|key| key.starts_with("fabric.storage.liqo.io/")),
            "{annotations:?}"
        );
    }

    #[test]
    fn slices_of_both_ip_families_are_copied_but_not_fqdn_slices() {
        let of_type = |kind: &str, address: &str| {
            let mut object = slice(&[endpoint(address, "worker")]);
            object["addressType"] = kind.into();
            copy_for("milan", &object)
        };
        let six = of_type("IPv6", "fd00::1").unwrap();
        assert_eq!(
            (&six["addressType"], &six["endpoints"][0]["addresses"][0]),
            (&json!("IPv6"), &json!("fd00::1"))
        );
        assert_eq!(of_type("FQDN", "a.test"), None);
    }

    #[test]
    fn skipped_slices_slices_without_service_and_copies_are_not_copied() {
        let changed = |change: fn(&mut Value)| {
            let mut object = slice(&[endpoint("10.0.0.1", "worker")]);
            change(&mut object["metadata"]);
            copy_for("milan", &object)
        };
        assert!(changed(|_| {}).is_some());
        assert_eq!(changed(|it| it["labels"][SKIP] = "".into()), None);
        assert_eq!(changed(|it| it["annotations"][SKIP] = "true".into()), None);
        assert_eq!(changed(|it| it["labels"] = json!({})), None);
        assert_eq!(
            changed(|it| it["labels"][SLICE_MANAGER] = SLICES_OF_FABRIC.into()),
            None
        );
    }
}
