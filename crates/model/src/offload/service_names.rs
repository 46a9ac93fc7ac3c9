//! The namespaces in names of Services, such as `db.shop.svc` and `db.shop`, and the addresses, in pods and their
//! configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;

/// The domain of clusters, unless an administrator chose another one.
const DOMAIN: &str = "cluster.local";
const LONGEST_NAMESPACE: usize = 63;

/// Calls `with` for each text in this part of an object.
pub(super) fn each_text<'a>(part: &'a Value, with: &mut impl FnMut(&'a str)) {
    match part {
        Value::String(text) => with(text),
        Value::Array(all) => all.iter().for_each(|one| each_text(one, with)),
        Value::Object(all) => all.values().for_each(|one| each_text(one, with)),
        _ => {}
    }
}

/// The namespaces that a text names: `own`, also without a Service, with any domain, and as in `db.shop`; others
/// only in what is certainly the name of a Service. Namespaces of Kubernetes itself are left out, because each
/// cluster has them.
pub(super) fn namespaces<'a>(text: &'a str, own: &str) -> impl Iterator<Item = &'a str> {
    let short = short_names(text).filter(move |namespace| *namespace == own);
    let long = text.match_indices(".svc").filter_map(move |(at, domain)| {
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
    });
    long.chain(short)
}

/// What is a namespace in a host name such as `db.shop` or `db-0.db.shop`, if it is one: any other host name with as
/// many labels has this form, too. A host name is the whole text, the value of an argument, or part of a URL or an
/// address with a port.
pub(super) fn short_names(text: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |it: char| is_of_label(it) || it == '.';
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find(is_of_name) {
        let before = &text[..text.len() - rest.len() + start];
        let name = &rest[start..];
        let name = &name[..name.find(|it| !is_of_name(it)).unwrap_or(name.len())];
        rest = &rest[start + name.len()..];
        if is_host(before, rest) {
            found.extend(namespace_of(name));
        }
    }
    found.into_iter()
}

/// Whether what is between these parts of a text is a host name.
fn is_host(before: &str, after: &str) -> bool {
    let port = after.strip_prefix(':');
    let has_port = port.is_some_and(|it| it.starts_with(|it: char| it.is_ascii_digit()));
    before.ends_with("//")
        || before.ends_with('@')
        || after.is_empty() && (before.is_empty() || before.ends_with('='))
        || has_port && !before.ends_with(['/', '_'])
}

/// The last label of a short name.
fn namespace_of(name: &str) -> Option<&str> {
    let labels: Vec<&str> = name.split('.').collect();
    let namespace = *labels.last()?;
    let is_valid = |label: &&str| {
        !label.is_empty()
            && label.len() <= LONGEST_NAMESPACE
            && !label.contains(|it: char| it.is_ascii_uppercase())
    };
    let is_short = matches!(labels.len(), 2 | 3)
        && labels.iter().all(is_valid)
        && namespace.contains(|it: char| it.is_ascii_alphabetic())
        && namespace != "svc"
        && !namespace.starts_with("kube-");
    is_short.then_some(namespace)
}

/// The addresses in a text that may be those of Services. Ranges of addresses are left out.
pub(super) fn addresses(text: &str) -> impl Iterator<Item = IpAddr> {
    let v4 = words(text, |it| it.is_ascii_digit() || it == '.');
    let v4 = v4.filter_map(|it| it.parse::<Ipv4Addr>().ok()).map(IpAddr::from);
    let v6 = words(text, |it| it.is_ascii_hexdigit() || it == ':');
    let v6 = v6.filter_map(|it| it.parse::<Ipv6Addr>().ok()).map(IpAddr::from);
    v4.chain(v6)
        .filter(|it| !it.is_loopback() && !it.is_unspecified())
}

/// The parts of a text that consist of these characters, without those in front of a prefix length such as `/16`.
fn words(text: &str, is_of_word: impl Fn(char) -> bool) -> impl Iterator<Item = &str> {
    let paths = text.split(move |it| !is_of_word(it) && it != '/');
    paths.flat_map(|path| {
        let words = match path.rsplit_once('/') {
            Some((range, length)) if is_prefix_length(length) => {
                range.rsplit_once('/').map_or("", |(before, _)| before)
            }
            _ => path,
        };
        words.split('/')
    })
}

fn is_prefix_length(text: &str) -> bool {
    matches!(text.len(), 1..=3) && text.chars().all(|it| it.is_ascii_digit())
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
    use super::*;

    #[test]
    fn ranges_of_addresses_are_no_addresses() {
        for (text, wanted) in [
            ("10.96.0.7", vec!["10.96.0.7"]),
            ("http://10.96.0.7/x, 10.96.0.8/", vec!["10.96.0.7", "10.96.0.8"]),
            ("NO_PROXY=10.96.0.0/12,10.0.0.0/8", vec![]),
            ("fd00:96::/112 fd00:96::7", vec!["fd00:96::7"]),
            ("http://10.96.0.7/12/x", vec!["10.96.0.7"]),
        ] {
            let found: Vec<String> = addresses(text).map(|it| it.to_string()).collect();
            assert_eq!(found, wanted, "{text}");
        }
    }

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
            ("db.shop", vec!["shop"]),
            ("http://web.shop/x", vec!["shop"]),
            ("amqp://user:word@mq.shop:5672", vec!["shop"]),
            ("--db=db-0.db.shop", vec!["shop"]),
            ("a.shop:1,b.data:2", vec!["shop"]),
            ("shop", vec![]),
            ("shop:80", vec![]),
            ("see db.shop", vec![]),
            ("/etc/db.shop:1", vec![]),
            ("db.shop.example.com:80", vec![]),
            ("my_db.shop:80", vec![]),
            ("a.b.c.shop:80", vec![]),
        ] {
            assert_eq!(namespaces(text, "shop").collect::<Vec<_>>(), wanted, "{text}");
        }
    }
}
