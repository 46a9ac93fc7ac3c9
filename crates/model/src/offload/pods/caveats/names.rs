//! Host names and addresses of Services in a pod, which lead elsewhere in the remote cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::Value;

use super::{
    super::{spec::path_variables, volumes},
    Destination, containers, joined,
};
use crate::offload::{
    names::is_own_there,
    service_names::{addresses, each_text, namespaces, short_names},
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
/// How many bytes of values are written into a text at most. A few variables that use each other could have values of
/// gigabytes.
const LONGEST_EXPANSION: usize = 1024;

/// The namespaces that short names such as `db.data` in a pod may mean.
#[must_use]
pub fn short_namespaces(home: &Value) -> BTreeSet<&str> {
    let mut all = BTreeSet::new();
    for (_, part, _) in with_names(&home["spec"]) {
        each_text(part, &mut |text| all.extend(short_names(text)));
    }
    all.remove(home["metadata"]["namespace"].as_str().unwrap_or_default());
    all
}

/// The fields of a pod that may hold the address of a Service, and the addresses in each.
#[must_use]
pub fn named_addresses(home: &Value) -> Vec<(String, BTreeSet<IpAddr>)> {
    let all = with_names(&home["spec"]).into_iter().map(|(place, part, _)| {
        let mut found = BTreeSet::new();
        each_text(part, &mut |text| found.extend(addresses(text)));
        (place, found)
    });
    all.filter(|(_, found)| !found.is_empty()).collect()
}

/// A pod that names Services of namespaces with another name in the remote cluster, or that are not
/// there.
pub(super) fn names_of_home(home: &Value, destination: &Destination<'_>) -> Vec<(&'static str, String)> {
    const REASON: &str = "HomeNamespaceName";
    let own = home["metadata"]["namespace"].as_str().unwrap_or_default();
    let (cluster, mut all) = (destination.cluster, Vec::new());
    let (mut of_own, mut of_others, mut others) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut known = (&Value::Null, BTreeMap::new());
    for (place, part, container) in with_names(&home["spec"]) {
        // A container has several fields in a row.
        if !std::ptr::eq(known.0, container) {
            known = (container, values(container, own));
        }
        let mut named = BTreeSet::new();
        each_text(part, &mut |text| {
            named.extend(namespaces(&expanded(text, &known.1), own).map(str::to_owned));
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
    if !of_own.is_empty() {
        all.push((
            REASON,
            format!(
                "{} has a host name in the namespace {own}. The pod's namespace in the cluster {cluster} is {}, so that name leads \
                 to nothing there or to other Services: use the name of the Service alone, or the namespaceMappingStrategy \
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

/// The variables of a container whose values are known, and these: written ones, and the namespace of home, which a variable
/// keeps if a `subPathExpr` uses it.
fn values(container: &Value, own: &str) -> BTreeMap<String, String> {
    let in_subpaths = path_variables(container);
    let mut values = BTreeMap::new();
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        let is_namespace = variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.namespace";
        if let Some(value) = variable["value"].as_str() {
            let value = expanded(value, &values);
            values.insert(name.to_owned(), value);
        } else if is_namespace && in_subpaths.iter().any(|it| it == name) {
            values.insert(name.to_owned(), own.to_owned());
        } else {
            values.remove(name);
        }
    }
    values
}

/// A text with the values of these variables, which Kubernetes and shells expand. Variables whose values are too long
/// remain as they are.
fn expanded(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut parts = text.split('$');
    let mut all = parts.next().unwrap_or_default().to_owned();
    let mut left = LONGEST_EXPANSION;
    for part in parts {
        let end = part.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let braced = |open: char, close: char| part.strip_prefix(open)?.split_once(close);
        let (name, rest) = braced('(', ')')
            .or_else(|| braced('{', '}'))
            .unwrap_or_else(|| part.split_at(end.unwrap_or(part.len())));
        if let Some(value) = values.get(name).filter(|it| it.len() <= left) {
            left -= value.len();
            all.push_str(value);
            all.push_str(rest);
        } else {
            all.push('$');
            all.push_str(part);
        }
    }
    all
}

/// The fields that may hold the name of a Service, their values, and the container of each, if it has one.
fn with_names(spec: &Value) -> Vec<(String, &Value, &Value)> {
    let mut places = Vec::new();
    for (list, container) in containers(spec) {
        let name = container["name"].as_str().unwrap_or_default();
        let fields = WITH_NAMES.iter();
        places.extend(fields.map(|field| {
            let place = format!("spec.{list}[{name}].{field}");
            (place, &container[*field], container)
        }));
    }
    for volume in volumes::all(spec) {
        let name = volume["name"].as_str().unwrap_or_default();
        let kinds = volume.as_object().into_iter().flatten();
        let kinds = kinds.filter(|(kind, _)| !WITHOUT_SERVER.contains(&kind.as_str()));
        places.extend(kinds.map(|(_, server)| (format!("spec.volumes[{name}]"), server, &Value::Null)));
    }
    places.push((DNS_CONFIG.to_owned(), &spec["dnsConfig"], &Value::Null));
    places.push(("spec.hostAliases".to_owned(), &spec["hostAliases"], &Value::Null));
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
            assert_eq!(there[0].0, "HomeNamespaceName");
            assert!(there[0].1.starts_with(&format!("{place} ")), "{}", there[0].1);
            assert!(said(&spec, "shop").is_empty());
        }
        let there = said(
            &container("args", json!(["web.shop.svc", "db.data.svc", "db.same.svc"])),
            "shop",
        );
        assert_eq!((there.len(), there[0].0), (1, "HomeNamespaceName"));
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
            assert_eq!((there.len(), there[0].0), (1, "HomeNamespaceName"), "{domain}");
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

    #[test]
    fn names_with_variables_of_the_home_namespace_are_reported() {
        let written = json!({"name": "NS", "value": "shop"});
        let there = json!({"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}});
        let with = |variable: &Value, args: &str, subpath: &str| {
            json!({"containers": [{
                "name": "web", "env": [variable, {"name": "DB", "value": "db.$(NS)"}], "args": [args],
                "volumeMounts": [{"name": "v", "mountPath": "/data", "subPathExpr": subpath}],
            }]})
        };
        for name in [
            "db.$(NS).svc",
            "http://db.${NS}.svc.cluster.local/x",
            "db.$NS.svc:80",
            "$(DB).svc",
            "--db=db.$(NS)",
        ] {
            // With the subpath, the variable keeps the value from home.
            for (variable, subpath) in [(&written, "a"), (&there, "$(NS)")] {
                let spec = with(variable, name, subpath);
                let all = said(&spec, "shop-home");
                assert_eq!((all.len(), all[0].0), (1, "HomeNamespaceName"), "{spec}");
                let note = &all[0].1;
                assert!(note.contains("spec.containers[web].args"), "{note}");
                assert!(said(&spec, "shop").is_empty(), "it has the same name there");
            }
            assert!(
                said(&with(&there, name, "a"), "shop-home").is_empty(),
                "it has the value there"
            );
        }
        for other in ["--namespace=$(NS)", "db.$NSX.svc", "db.$(OTHER).svc", "db.$"] {
            let spec = json!({"containers": [{"name": "web", "env": [written], "args": [other]}]});
            assert!(said(&spec, "shop-home").is_empty(), "{other}");
        }
    }

    /// Without a limit, the last one would have 2^70 bytes.
    #[test]
    fn variables_that_multiply_are_expanded_to_a_limit() {
        let mut all = vec![json!({"name": "V0", "value": "db.shop.svc"})];
        for at in 1..70 {
            let before = at - 1;
            all.push(json!({"name": format!("V{at}"), "value": format!("$(V{before})$(V{before})")}));
        }
        let values = values(&json!({ "env": all }), "shop");
        assert_eq!(values["V1"], "db.shop.svcdb.shop.svc");
        assert!(values.values().all(|it| it.len() < 2 * LONGEST_EXPANSION));
        let long = "x".repeat(2 * LONGEST_EXPANSION);
        assert!(expanded(&format!("{long}$(V0)"), &values).ends_with("xdb.shop.svc"));
    }

    #[test]
    fn short_names_of_services_elsewhere_are_reported_if_the_namespace_exists() {
        let args = |text: &str| json!({"containers": [{"name": "web", "args": [text]}]});
        let there = said(&args("--db=postgres://db.data/x"), "shop");
        assert_eq!((there.len(), there[0].0), (1, "HomeNamespaceName"));
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
            assert_eq!((there.len(), there[0].0), (1, "HomeNamespaceName"), "{text}");
            let note = &there[0].1;
            assert_eq!(note.contains("EnforceSameName"), has_advice, "{note}");
            assert!(
                note.contains("kubernetes.default is the API server of that cluster"),
                "{note}"
            );
        }
    }
}
