//! The namespaces in names of Services, such as `db.shop.svc`, in pods and their configuration.

use std::collections::BTreeSet;

use serde_json::Value;

/// The domain of clusters, unless an administrator chose another one.
const DOMAIN: &str = "cluster.local";
const LONGEST_NAMESPACE: usize = 63;

/// Adds the [`namespaces`] that texts in this part of an object name.
pub(super) fn add_namespaces(part: &Value, own: &str, found: &mut BTreeSet<String>) {
    match part {
        Value::String(text) => found.extend(namespaces(text, own).map(str::to_owned)),
        Value::Array(all) => all.iter().for_each(|one| add_namespaces(one, own, found)),
        Value::Object(all) => all.values().for_each(|one| add_namespaces(one, own, found)),
        _ => {}
    }
}

/// The namespaces that a text names: `own`, also without a Service and with any domain; others only
/// in what is certainly the name of a Service. Namespaces of Kubernetes itself are left out, because
/// each cluster has them.
pub(super) fn namespaces<'a>(text: &'a str, own: &str) -> impl Iterator<Item = &'a str> {
    text.match_indices(".svc").filter_map(move |(at, domain)| {
        let (before, after) = (&text[..at], &text[at + domain.len()..]);
        let namespace = before.rsplit(|it: char| !is_of_label(it)).next()?;
        let service = before[..before.len() - namespace.len()].strip_suffix('.');
        let is_service = service.is_some_and(|it| it.ends_with(is_of_label));
        let is_other = is_service
            && ends(after)
            && namespace.len() <= LONGEST_NAMESPACE
            && !namespace.starts_with("kube-")
            && !namespace.contains(|it: char| it.is_ascii_uppercase());
        let is_named = !namespace.is_empty() && !after.starts_with(is_of_label);
        (is_named && (namespace == own || is_other)).then_some(namespace)
    })
}

fn is_of_label(it: char) -> bool {
    it.is_ascii_alphanumeric() || it == '-'
}

/// Whether the name ends here, or with the usual domain.
fn ends(after: &str) -> bool {
    let Some(domain) = after.strip_prefix('.') else {
        return true;
    };
    let rest = domain.strip_prefix(DOMAIN).unwrap_or(domain);
    !rest.starts_with(is_of_label)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn namespaces_are_found_in_names_of_services() {
        for (text, wanted) in [
            ("db.shop.svc", vec!["shop"]),
            ("shop.svc.cluster.local", vec!["shop"]),
            ("db.shop.svc.example.com", vec!["shop"]),
            ("db.shop.svc-2", vec![]),
            ("db.data.svc", vec!["data"]),
            (
                "postgres://user:word@db-0.db.data.svc.cluster.local:5432/x",
                vec!["data"],
            ),
            ("http://a.one.svc/,http://b.two.svc.", vec!["one", "two"]),
            ("data.svc.cluster.local", vec![]),
            ("db.data.svc.example.com", vec![]),
            ("db.data.svc.cluster.localhost", vec![]),
            ("https://example.com/Orders.svc", vec![]),
            ("https://example.com/api.Orders.svc", vec![]),
            ("resolver kube-dns.kube-system.svc.cluster.local;", vec![]),
            ("ü.svc", vec![]),
            (".svc", vec![]),
            ("db.data", vec![]),
        ] {
            assert_eq!(namespaces(text, "shop").collect::<Vec<_>>(), wanted, "{text}");
        }
        let mut found = BTreeSet::new();
        let part = json!([{"name": "DB", "value": "db.data.svc"}, {"x": ["web.shop.svc", 1, null]}]);
        add_namespaces(&part, "shop", &mut found);
        assert_eq!(found, ["data".to_owned(), "shop".to_owned()].into());
    }
}
