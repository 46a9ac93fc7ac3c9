//! Host names and addresses of Services in a pod, which lead elsewhere in the remote cluster.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::Value;

use super::{
    super::{spec::path_variables, volumes},
    Destination, containers, joined,
};
use crate::offload::{
    names::is_own_there,
    service_names::{add_namespaces, addresses, each_text, short_names},
};

/// The fields of a container that may hold the name or the address of a Service.
const WITH_NAMES: [&str; 8] = [
    "args",
    "command",
    "env",
    "image",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
];
/// Fields of a volume that name no server.
const WITHOUT_SERVER: [&str; 7] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "name",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const DNS_CONFIG: &str = "spec.dnsConfig";

/// The namespaces that short names such as `db.data` in a pod may mean.
#[must_use]
pub fn short_namespaces(home: &Value) -> BTreeSet<&str> {
    let mut all = BTreeSet::new();
    for (_, part) in with_names(&home["spec"]) {
        each_text(part, &mut |text| all.extend(short_names(text)));
    }
    all.remove(home["metadata"]["namespace"].as_str().unwrap_or_default());
    all
}

/// The fields of a pod that may hold the address of a Service, and the addresses in each.
#[must_use]
pub fn named_addresses(home: &Value) -> Vec<(String, BTreeSet<IpAddr>)> {
    let all = with_names(&home["spec"]).into_iter().map(|(place, part)| {
        let mut found = BTreeSet::new();
        each_text(part, &mut |text| found.extend(addresses(text)));
        (place, found)
    });
    all.filter(|(_, found)| !found.is_empty()).collect()
}

/// A pod that names Services of namespaces with another name in the remote cluster, or that are not
/// there.
pub(super) fn names_of_home(home: &Value, destination: &Destination<'_>) -> Vec<(&'static str, String)> {
    const REASON: &str = "NameOfHomeNamespace";
    let own = home["metadata"]["namespace"].as_str().unwrap_or_default();
    let (cluster, mut all) = (destination.cluster, Vec::new());
    let (mut of_own, mut of_others, mut others) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (place, part) in with_names(&home["spec"]) {
        let mut named = BTreeSet::new();
        add_namespaces(part, own, &mut named);
        each_text(part, &mut |text| {
            let existing = short_names(text).filter(|it| destination.existing.contains(*it));
            named.extend(existing.map(str::to_owned));
        });
        if place == DNS_CONFIG {
            named.extend(searched(part).map(str::to_owned));
        }
        named.retain(|it| destination.leads_elsewhere(own, it));
        if named.remove(own) {
            of_own.insert(place.clone());
        }
        if !named.is_empty() {
            of_others.insert(place);
            others.extend(named);
        }
    }
    if destination.leads_elsewhere(own, own) {
        of_own.extend(named_by_path_variables(&home["spec"]));
    }
    if !of_own.is_empty() {
        all.push((
            REASON,
            format!(
                "{} has a name in the namespace {own}, and that of the pod in the cluster {cluster} is {}, where such a name \
                 leads to nothing or to others: use the name of the Service alone, or the namespaceMappingStrategy \
                 EnforceSameName, or keep the pod on nodes of this cluster",
                joined(&of_own),
                destination.namespace
            ),
        ));
    }
    if !of_others.is_empty() {
        let of_api = if others.contains("default") {
            " (kubernetes.default is the API server of that cluster)"
        } else {
            ""
        };
        let way_out = if others.iter().any(|it| is_own_there(it)) {
            "Offload these with the namespaceMappingStrategy EnforceSameName"
        } else {
            "Use Services of namespaces that may have their own name there"
        };
        all.push((
            REASON,
            format!(
                "{} names Services in namespaces that are not offloaded under their own names ({}): in the cluster {cluster} \
                 such a name leads to nothing, or to what that cluster has under it{of_api}. {way_out}, or keep the pod on nodes \
                 of this cluster",
                joined(&of_others),
                joined(&others)
            ),
        ));
    }
    all
}

impl Destination<'_> {
    /// Whether names in a namespace do not lead to the same Services as at home, where the
    /// namespace of the pod is `own`.
    #[must_use]
    pub fn leads_elsewhere(&self, own: &str, namespace: &str) -> bool {
        namespace != self.namespace && (namespace == own || !(self.is_same_there)(namespace))
    }
}

/// The namespaces of search domains such as `shop.svc.cluster.local`.
fn searched(dns_config: &Value) -> impl Iterator<Item = &str> {
    let domains = dns_config["searches"].as_array().into_iter().flatten();
    domains.filter_map(Value::as_str).filter_map(|domain| {
        let (namespace, rest) = domain.split_once(".svc")?;
        let is_of_services = rest.is_empty() || rest.starts_with('.');
        let is_other = !namespace.contains('.') && !namespace.starts_with("kube-");
        (is_of_services && is_other).then_some(namespace)
    })
}

/// The containers in which a variable with the namespace is in the name of a Service and in a `subPathExpr`: because of the
/// latter it has the value from home.
fn named_by_path_variables(spec: &Value) -> impl Iterator<Item = String> {
    let in_names = containers(spec).filter(|(_, container)| {
        path_variables(container).iter().any(|name| {
            let mut variables = container["env"].as_array().into_iter().flatten();
            let variable = variables.rfind(|one| one["name"] == name.as_str());
            let is_namespace =
                variable.is_some_and(|it| it["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace");
            let uses = [format!("$({name})"), format!("${{{name}}}"), format!("${name}")];
            let uses = uses.map(|used| format!(".{used}.svc"));
            let mut is_in_name = false;
            for field in WITH_NAMES {
                each_text(&container[field], &mut |text| {
                    is_in_name |= uses.iter().any(|used| text.contains(used));
                });
            }
            is_namespace && is_in_name
        })
    });
    in_names.map(|(list, container)| {
        let name = container["name"].as_str().unwrap_or_default();
        format!("spec.{list}[{name}]")
    })
}

/// The fields that may hold the name of a Service, and their values.
fn with_names(spec: &Value) -> Vec<(String, &Value)> {
    let mut places = Vec::new();
    for (list, container) in containers(spec) {
        let name = container["name"].as_str().unwrap_or_default();
        let fields = WITH_NAMES.iter();
        places.extend(fields.map(|field| (format!("spec.{list}[{name}].{field}"), &container[*field])));
    }
    for volume in volumes::all(spec) {
        let name = volume["name"].as_str().unwrap_or_default();
        let kinds = volume.as_object().into_iter().flatten();
        let kinds = kinds.filter(|(kind, _)| !WITHOUT_SERVER.contains(&kind.as_str()));
        places.extend(kinds.map(|(_, server)| (format!("spec.volumes[{name}]"), server)));
    }
    places.push((DNS_CONFIG.to_owned(), &spec["dnsConfig"]));
    places.push(("spec.hostAliases".to_owned(), &spec["hostAliases"]));
    places
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::tests::said, *};

    #[test]
    fn service_names_with_the_home_namespace_are_reported() {
        let container = |field: &str, value: Value| json!({"containers": [{"name": "web", field: value}]});
        for (spec, place) in [
            (
                container("args", json!(["--db=db.shop.svc:5432"])),
                "spec.containers[web].args",
            ),
            (
                container("command", json!(["curl", "http://db.shop.svc.cluster.local/x"])),
                "spec.containers[web].command",
            ),
            (
                container("env", json!([{"name": "DB", "value": "db.shop.svc"}])),
                "spec.containers[web].env",
            ),
            (
                container("livenessProbe", json!({"httpGet": {"host": "db.shop.svc"}})),
                "spec.containers[web].livenessProbe",
            ),
            (
                json!({"dnsConfig": {"searches": ["shop.svc.cluster.local"]}}),
                "spec.dnsConfig",
            ),
            (
                json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["db.shop.svc"]}]}),
                "spec.hostAliases",
            ),
            (
                json!({"volumes": [{"name": "nas", "nfs": {"server": "nfs.shop.svc.cluster.local", "path": "/"}}]}),
                "spec.volumes[nas]",
            ),
            (
                json!({"volumes": [{"name": "nas", "csi": {
                    "driver": "smb.csi.k8s.io", "volumeAttributes": {"source": "//smb.shop.svc/share"},
                }}]}),
                "spec.volumes[nas]",
            ),
            (
                container("image", json!("registry.shop.svc:5000/web:1")),
                "spec.containers[web].image",
            ),
            (
                container("env", json!([{"name": "DB", "value": "db.shop:5432"}])),
                "spec.containers[web].env",
            ),
        ] {
            let there = said(&spec, "shop-home");
            assert_eq!(there.len(), 1, "{spec}");
            assert_eq!(there[0].0, "NameOfHomeNamespace");
            assert!(there[0].1.starts_with(&format!("{place} ")), "{}", there[0].1);
            assert!(said(&spec, "shop").is_empty());
        }
        let there = said(
            &container("args", json!(["web.shop.svc", "db.data.svc", "db.same.svc"])),
            "shop",
        );
        assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"));
        let note = &there[0].1;
        assert!(
            note.starts_with("spec.containers[web].args names") && note.contains(" (data): "),
            "{note}"
        );
        for other in [
            "db.shop.svc-2",
            "db.shop.example.com",
            "/etc/db.shop",
            "db.shop-home.svc",
            "db.same.svc",
            "db",
        ] {
            assert!(
                said(&container("args", json!([other])), "shop-home").is_empty(),
                "{other}"
            );
        }
    }

    #[test]
    fn search_domains_of_other_namespaces_are_reported() {
        let searches = |domain: &str| json!({"dnsConfig": {"searches": [domain]}});
        for domain in ["data.svc", "data.svc.cluster.local"] {
            let there = said(&searches(domain), "shop");
            assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"), "{domain}");
            assert!(there[0].1.contains(" (data): "), "{}", there[0].1);
        }
        for other in [
            "same.svc.cluster.local",
            "kube-system.svc",
            "svc.cluster.local",
            "data.svcs.com",
        ] {
            assert!(said(&searches(other), "shop").is_empty(), "{other}");
        }
    }

    /// The variable keeps the value from home, so that the directory has one name.
    #[test]
    fn names_by_a_variable_that_a_subpath_uses_are_reported() {
        let namespace = json!({"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}});
        let with = |args: &str, subpath: &str| {
            json!({"containers": [{
                "name": "web", "env": [namespace], "args": [args],
                "volumeMounts": [{"name": "v", "mountPath": "/data", "subPathExpr": subpath}],
            }]})
        };
        for name in [
            "db.$(NS).svc",
            "http://db.${NS}.svc.cluster.local/x",
            "db.$NS.svc:80",
        ] {
            let there = said(&with(name, "$(NS)"), "shop-home");
            assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"), "{name}");
            assert!(there[0].1.starts_with("spec.containers[web] "), "{}", there[0].1);
            assert!(
                said(&with(name, "$(NS)"), "shop").is_empty(),
                "it is the same there"
            );
            assert!(
                said(&with(name, "a"), "shop-home").is_empty(),
                "it has the value there"
            );
        }
        assert!(said(&with("--namespace=$(NS)", "$(NS)"), "shop-home").is_empty());
    }

    #[test]
    fn short_names_of_services_elsewhere_are_reported_if_the_namespace_exists() {
        let args = |text: &str| json!({"containers": [{"name": "web", "args": [text]}]});
        let there = said(&args("--db=postgres://db.data/x"), "shop");
        assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"));
        assert!(there[0].1.contains(" (data): "), "{}", there[0].1);
        for other in [
            "db.same:80",
            "https://example.com",
            "config.data.yaml",
            "x --data=db.data.x",
        ] {
            assert!(said(&args(other), "shop").is_empty(), "{other}");
        }
    }

    #[test]
    fn namespaces_that_cannot_have_their_own_name_there_get_no_such_advice() {
        let args = |text: &str| json!({"containers": [{"name": "web", "args": [text]}]});
        for (text, has_advice) in [
            ("https://kubernetes.default.svc", false),
            ("https://kubernetes.default.svc http://db.data.svc", true),
        ] {
            let there = said(&args(text), "shop");
            assert_eq!((there.len(), there[0].0), (1, "NameOfHomeNamespace"), "{text}");
            let note = &there[0].1;
            assert_eq!(note.contains("EnforceSameName"), has_advice, "{note}");
            assert!(
                note.contains("kubernetes.default is the API server of that cluster"),
                "{note}"
            );
        }
    }
}
