//! Services that lead to other endpoints in a remote cluster than at home, or to none. They are
//! copied, and get an event.

use serde_json::Value;

use super::object::text;
use crate::offload::pods::leaves_out_label;

/// The fields of a Service that have another meaning in the cluster: for each the reason of an event, and its note.
/// `is_same_there` tells whether a namespace has the same name there; pods there lack the labels of `skip_labels`.
#[must_use]
pub fn caveats(
    service: &Value,
    cluster: &str,
    is_same_there: impl Fn(&str) -> bool,
    skip_labels: &[String],
) -> Vec<(&'static str, String)> {
    let spec = &service["spec"];
    let mut all = Vec::new();
    let name = text(&spec["externalName"]);
    if let Some(namespace) = namespace_in(name).filter(|it| !is_same_there(it)) {
        all.push((
            "HomeNamespaceName",
            format!(
                "its externalName {name} is a name in the namespace {namespace} of this cluster: in the cluster {cluster} it \
                 leads to nothing or to others. Offload {namespace} with the namespaceMappingStrategy EnforceSameName, or \
                 use a name that leads to the same in both clusters"
            ),
        ));
    }
    let selector = spec["selector"].as_object().into_iter().flatten();
    let lacking = selector.map(|(key, _)| key.as_str());
    let lacking: Vec<&str> = lacking.filter(|key| leaves_out_label(key, skip_labels)).collect();
    if !lacking.is_empty() {
        all.push((
            "SelectorNotCarried",
            format!(
                "it selects by labels that pods in the cluster {cluster} do not have from here ({}), so it does not lead to \
                 them there: select by other labels, or see pods.skipLabels of RemoteCluster {cluster}",
                lacking.join(", ")
            ),
        ));
    }
    all
}

/// The namespace in the name of a Service, or of one of its pods, in the usual domain of clusters.
fn namespace_in(name: &str) -> Option<&str> {
    let name = name.trim_end_matches('.');
    let name = name.strip_suffix(".cluster.local").unwrap_or(name);
    let (service, namespace) = name.strip_suffix(".svc")?.rsplit_once('.')?;
    (!service.is_empty()).then_some(namespace)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reasons(spec: &Value) -> Vec<&'static str> {
        let skipped = ["corp/*".to_owned()];
        let all = caveats(
            &json!({"spec": spec}),
            "milan",
            |namespace| namespace == "same",
            &skipped,
        );
        assert!(all.iter().all(|(_, note)| note.contains("milan")));
        all.into_iter().map(|(reason, _)| reason).collect()
    }

    #[test]
    fn external_names_in_namespaces_with_another_remote_name_are_reported() {
        for (name, is_reported) in [
            ("db.data.svc.cluster.local", true),
            ("db-0.db.data.svc.cluster.local.", true),
            ("db.data.svc", true),
            ("db.same.svc.cluster.local", false),
            ("db.example.com", false),
            ("db.svc.example.com", false),
            ("svc.cluster.local", false),
            ("data.svc", false),
            ("", false),
        ] {
            let wanted: &[&str] = if is_reported { &["HomeNamespaceName"] } else { &[] };
            assert_eq!(reasons(&json!({"externalName": name})), wanted, "{name}");
        }
    }

    #[test]
    fn a_selector_of_labels_that_stay_at_home_is_reported() {
        for (label, is_reported) in [
            ("app", false),
            ("corp/team", true),
            // API servers write that of the node into each pod.
            ("topology.kubernetes.io/zone", true),
        ] {
            let wanted: &[&str] = if is_reported { &["SelectorNotCarried"] } else { &[] };
            assert_eq!(
                reasons(&json!({"selector": {label: "a", "app": "web"}})),
                wanted,
                "{label}"
            );
        }
    }
}
