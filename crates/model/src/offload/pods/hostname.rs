//! The host name of a pod with `setHostnameAsFQDN`: it has the name of the namespace, which may be longer in the
//! remote cluster.

use serde_json::Value;

use super::Destination;
use crate::offload::names::is_own_there;

/// The longest host name in Linux. A kubelet starts no pod with a longer one.
const LONGEST: usize = 64;
/// The default domain of clusters, with the dot before it.
const USUAL_DOMAIN: &str = ".cluster.local";

/// Why no kubelet of the remote cluster starts the pod in this namespace, whatever the domain of the cluster.
#[must_use]
pub fn refused_hostname(home: &Value, namespace: &str) -> Option<String> {
    let name = hostname(home, namespace).filter(|name| is_refused(name))?;
    let own = home["metadata"]["namespace"].as_str().unwrap_or_default();
    let fits_here = hostname(home, own).is_some_and(|name| !is_refused(&name));
    let same_name = if fits_here && is_own_there(own) {
        ", or the namespaceMappingStrategy EnforceSameName"
    } else {
        ""
    };
    Some(format!(
        "with setHostnameAsFQDN its host name there is {name}.DOMAIN, and no kubelet starts a pod whose host name has more than \
         {LONGEST} characters: use a shorter hostname or subdomain{same_name}, or keep the pod on nodes of this cluster"
    ))
}

/// A pod with a host name that is too long if the remote cluster has the usual domain. The note is the same for all
/// replicas.
pub(super) fn long_hostname(home: &Value, destination: &Destination<'_>) -> Option<(&'static str, String)> {
    let name = hostname(home, destination.namespace)? + USUAL_DOMAIN;
    let note = format!(
        "with setHostnameAsFQDN the host name of the pod ends with .{}.{}.svc{USUAL_DOMAIN} in the cluster {}, unless that has \
         another domain, and has more than {LONGEST} characters, with which no kubelet starts a pod: use a shorter hostname or \
         subdomain, or keep the pod on nodes of this cluster",
        home["spec"]["subdomain"].as_str().unwrap_or_default(),
        destination.namespace,
        destination.cluster
    );
    (name.len() > LONGEST).then_some(("HostnameTooLong", note))
}

/// The host name without the domain of the cluster; `None` if it has no domain. Without a subdomain, kubelets use the short
/// name.
fn hostname(home: &Value, namespace: &str) -> Option<String> {
    let spec = &home["spec"];
    let text = |value: &Value| value.as_str().filter(|it| !it.is_empty()).map(str::to_owned);
    let subdomain = text(&spec["subdomain"]).filter(|_| spec["setHostnameAsFQDN"] == true)?;
    let own = text(&spec["hostname"]).or_else(|| text(&home["metadata"]["name"]))?;
    Some(format!("{own}.{subdomain}.{namespace}.svc"))
}

/// Whether it is too long even with an empty domain, after which the dot remains.
fn is_refused(name: &str) -> bool {
    name.len() >= LONGEST
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn host_names_that_are_too_long_in_every_domain_are_refused() {
        let pod = |hostname: usize, others: Value| {
            let mut spec = json!({
                "setHostnameAsFQDN": true, "hostname": "h".repeat(hostname), "subdomain": "s".repeat(20),
            });
            spec.as_object_mut()
                .unwrap()
                .extend(others.as_object().unwrap().clone());
            json!({"metadata": {"name": "n".repeat(60), "namespace": "shop"}, "spec": spec})
        };
        let refused = |home: &Value| refused_hostname(home, "shop-home");
        let longest = LONGEST - 1 - ".".len() - 20 - ".shop-home.svc".len();
        assert_eq!(refused(&pod(longest, json!({}))), None);
        let why = refused(&pod(longest + 1, json!({}))).unwrap();
        assert!(
            why.contains(".shop-home.svc.")
                && why.contains("EnforceSameName")
                && why.contains("keep the pod"),
            "{why}"
        );
        assert_eq!(
            refused_hostname(&pod(longest + 1, json!({})), "shop"),
            None,
            "its own namespace is shorter"
        );
        let long_here = refused(&pod(60, json!({}))).unwrap();
        assert!(!long_here.contains("EnforceSameName"), "{long_here}");
        for others in [
            json!({"setHostnameAsFQDN": false}),
            json!({"setHostnameAsFQDN": null}),
            json!({"subdomain": ""}),
            json!({"subdomain": null}),
        ] {
            assert_eq!(refused(&pod(60, others.clone())), None, "{others}");
        }
        assert!(
            refused(&pod(0, json!({}))).is_some(),
            "the name of the pod counts"
        );
    }
}
